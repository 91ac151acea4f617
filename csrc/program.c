/* The guard program: built from Python's list of instructions, run by the hook on each call of a compiled frame.

   A run first tries the stamp of the last full walk (stamp.c); where that does not hold, it walks all instructions, and
   stamps again if they pass. Guards that call Python (CUSTOM) come last, when everything else is decided and what the
   program returns is owned. */
#include "program.h"
#include "structmember.h"

/* ---- run ---- */

static void walk_begin(Walk *w, Program *p, PyFunctionObject *function, PyObject *const *args, PyObject **regs) {
    w->p = p;
    w->function = function;
    w->args = args;
    w->regs = regs;
    w->careful = w->fast = false;
    w->owned = w->owned_first;
    w->nowned = 0;
    w->owned_room = sizeof w->owned_first / sizeof *w->owned_first;
}

static void walk_end(Walk *w) {
    for (Py_ssize_t i = 0; i < w->nowned; i++) Py_DECREF(w->owned[i]);
    if (w->owned != w->owned_first) PyMem_Free(w->owned);
    w->owned = w->owned_first;
    w->nowned = 0;
}

static int full_walk(Walk *w, Recorder *r) {
    Program *p = w->p;
    for (Py_ssize_t i = 0; i < p->n - p->ncustom; i++) {
        int ok = braze_step(w, &p->ins[i]);
        if (ok == 1 && r != NULL) ok = braze_record(r, w, (int32_t)i) == 0 ? 1 : -1;
        if (ok != 1) {
            p->failed = (int32_t)i;
            return ok;
        }
    }
    return 1;
}

/* The guards that call Python, then the result. Owns what they look at first: they may change anything. */
static int finish(Walk *w, PyObject **inputs) {
    Program *p = w->p;
    if (p->nreads > 0) {
        *inputs = PyTuple_New(p->nreads);
        if (*inputs == NULL) return -1;
        for (Py_ssize_t i = 0; i < p->nreads; i++)
            PyTuple_SET_ITEM(*inputs, i, Py_NewRef(w->regs[p->reads[i]]));
    }
    if (p->ncustom == 0) return 1;
    PyObject *values = PyTuple_New(p->ncustom);
    if (values == NULL) return -1;
    const Ins *custom = p->ins + p->n - p->ncustom;
    for (Py_ssize_t i = 0; i < p->ncustom; i++) PyTuple_SET_ITEM(values, i, Py_NewRef(w->regs[custom[i].src]));
    int ok = 1;
    for (Py_ssize_t i = 0; i < p->ncustom && ok == 1; i++) {
        void *paused = braze_pause();
        PyObject *answer = PyObject_CallOneArg(custom[i].obj, PyTuple_GET_ITEM(values, i));
        braze_resume(paused);
        ok = answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (ok != 1) p->failed = (int32_t)(p->n - p->ncustom + i);
    }
    Py_DECREF(values);
    return ok;
}

static int run_fast(Walk *w, PyObject **inputs, int32_t *ins, int32_t *word) {
    w->fast = true;
    int ok = braze_stamp_run(w, ins, word);
    if (ok == 1) {
        w->p->count_fast++;
        w->p->misses_in_a_row = 0;
        ok = finish(w, inputs);
    }
    return ok;
}

static int run_full(Walk *w, PyObject **inputs, int32_t missed_ins, int32_t missed_word) {
    Program *p = w->p;
    Recorder *r = NULL;
    if (p->pause > 0)
        p->pause--;
    else
        r = braze_record_begin(w);
    int ok = full_walk(w, r);
    p->count_full++;
    if (r != NULL) {
        if (ok == 1 && (missed_ins >= 0 || missed_word >= 0)) braze_stamp_missed(p, missed_ins, missed_word);
        braze_record_end(r, w, ok == 1);
    }
    return ok == 1 ? finish(w, inputs) : ok;
}

static int run_careful(Program *p, PyFunctionObject *function, PyObject *const *args, PyObject **inputs) {
    Walk w;
    PyObject **regs = PyMem_Calloc(p->nregs + 1, sizeof *regs);
    if (regs == NULL) return -1;
    walk_begin(&w, p, function, args, regs);
    w.careful = true;
    p->count_careful++;
    void *paused = braze_pause();
    int ok = full_walk(&w, NULL);
    if (ok == 1) ok = finish(&w, inputs);
    walk_end(&w);
    braze_resume(paused);
    PyMem_Free(regs);
    return ok;
}

static int run_native(Program *p, PyFunctionObject *function, PyObject *const *args, PyObject **inputs) {
    Walk w;
    int32_t ins = -1, word = -1;
    int ok = TRY_FULL;
#if PY_VERSION_HEX < 0x030C0000
    int collecting = PyGC_Disable(); /* a collection, inside an allocation, could run finalizers in the middle of a walk */
#endif
    if (p->stamp.valid) {
        walk_begin(&w, p, function, args, p->stamp.regs);
        ok = run_fast(&w, inputs, &ins, &word);
        walk_end(&w);
    }
    if (ok == TRY_FULL) {
        p->missed_at = ins;
        walk_begin(&w, p, function, args, p->spare.regs);
        ok = run_full(&w, inputs, ins, word);
        walk_end(&w);
    }
#if PY_VERSION_HEX < 0x030C0000
    if (collecting) PyGC_Enable();
#endif
    return ok;
}

int braze_program_run(PyObject *program, PyFunctionObject *function, PyObject *const *args, PyObject **inputs) {
    Program *p = (Program *)program;
    *inputs = NULL;
    Py_INCREF(p);
    p->failed = -1;
    int ok = p->careful ? NEEDS_CARE : run_native(p, function, args, inputs);
    if (ok == NEEDS_CARE) {
        Py_CLEAR(*inputs);
        if (!p->careful) p->careful_at = p->failed;
        p->careful = true;
        ok = run_careful(p, function, args, inputs);
    }
    if (ok != 1) {
        PyErr_Clear();
        Py_CLEAR(*inputs);
    }
    Py_DECREF(p);
    return ok == 1;
}

/* ---- construction ---- */

static int parse_list(Ins *p, PyObject *list) {
    p->n = PyTuple_GET_SIZE(list);
    p->list = PyMem_Calloc(p->n + 1, sizeof *p->list);
    if (p->list == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t i = 0; i < p->n; i++) p->list[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(list, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* (op, src, dst, obj, n, m, level) */
static int parse_ins(Ins *p, PyObject *tuple, int32_t nregs) {
    int op, level;
    PyObject *obj;
    long long n, m;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "an instruction is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "iiiOLLi", &op, &p->src, &p->dst, &obj, &n, &m, &level)) return -1;
    bool load = op >= 0 && braze_is_load(op);
    if (op < 0 || op >= OP_COUNT || p->src >= nregs || p->dst >= nregs || (load && p->dst < 0) ||
        (load && !braze_is_root(op) && p->src < 0) || (op >= OP_TYPE_IS && op <= OP_SAME && p->src < 0)) {
        PyErr_SetString(PyExc_ValueError, "malformed guard instruction");
        return -1;
    }
    p->op = (uint8_t)op;
    p->level = (uint8_t)level;
    p->n = n;
    p->m = m;
    p->obj = Py_NewRef(obj);
    if (op == OP_TENSOR) return (p->spec = braze_spec_new(obj)) ? 0 : -1;
    if (op == OP_DISTINCT || op == OP_RELATION) return parse_list(p, obj);
    if ((op == OP_IS_WEAK || op == OP_CODE_IS) && !PyWeakref_CheckRef(obj)) {
        PyErr_SetString(PyExc_TypeError, "a weak reference is needed");
        return -1;
    }
    if (PyUnicode_CheckExact(obj)) PyUnicode_InternInPlace(&p->obj);
    if (op == OP_ITEM || op == OP_ATTR || op == OP_INSTANCE_ATTR || op == OP_DICT_HAS || op == OP_LACKS || op == OP_NO_ATTR ||
        op == OP_TYPE_ATTR) {
        p->hash = PyObject_Hash(obj);
        if (p->hash == -1) return -1;
    }
    return 0;
}

static int stamp_init(Stamp *s, int32_t nregs) {
    s->pins = PyMem_Calloc(nregs + 1, 1);
    s->regs = PyMem_Calloc(nregs + 1, sizeof *s->regs);
    return s->pins && s->regs ? 0 : -1;
}

static int parse_program(Program *p, PyObject *list, PyObject *reads) {
    for (; p->n < PyList_GET_SIZE(list); p->n++)
        if (parse_ins(&p->ins[p->n], PyList_GET_ITEM(list, p->n), p->nregs) < 0) {
            p->n++; /* the half-made one is freed too */
            return -1;
        }
    while (p->ncustom < p->n && p->ins[p->n - 1 - p->ncustom].op == OP_CUSTOM) p->ncustom++;
    for (Py_ssize_t i = 0; i < p->n - p->ncustom; i++)
        if (p->ins[i].op == OP_CUSTOM) {
            PyErr_SetString(PyExc_ValueError, "CUSTOM guards come last");
            return -1;
        }
    for (; p->nreads < PyTuple_GET_SIZE(reads); p->nreads++) {
        long reg = PyLong_AsLong(PyTuple_GET_ITEM(reads, p->nreads));
        if (reg < 0 || reg >= p->nregs) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no such register");
            return -1;
        }
        p->reads[p->nreads] = (int32_t)reg;
    }
    return 0;
}

static void program_dealloc(PyObject *self) {
    Program *p = (Program *)self;
    for (Py_ssize_t i = 0; i < p->n; i++) {
        Py_XDECREF(p->ins[i].obj);
        braze_spec_free(p->ins[i].spec);
        PyMem_Free(p->ins[i].list);
    }
    PyMem_Free(p->ins);
    PyMem_Free(p->reads);
    braze_stamp_free(&p->stamp);
    braze_stamp_free(&p->spare);
    Py_TYPE(self)->tp_free(self);
}

/* Program(instructions: list, registers: int, reads: tuple of registers) */
static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *list, *reads;
    int nregs;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!iO!", &PyList_Type, &list, &nregs, &PyTuple_Type, &reads)) return NULL;
    if (nregs < 0) return PyErr_Format(PyExc_ValueError, "%d registers", nregs);
    Program *p = (Program *)type->tp_alloc(type, 0);
    if (p == NULL) return NULL;
    p->nregs = nregs;
    p->failed = p->careful_at = p->missed_at = -1;
    p->ins = PyMem_Calloc(PyList_GET_SIZE(list) + 1, sizeof *p->ins);
    p->reads = PyMem_Calloc(PyTuple_GET_SIZE(reads) + 1, sizeof *p->reads);
    if (!p->ins || !p->reads || stamp_init(&p->stamp, nregs) < 0 || stamp_init(&p->spare, nregs) < 0) {
        Py_DECREF(p);
        return PyErr_NoMemory();
    }
    if (parse_program(p, list, reads) < 0) Py_CLEAR(p);
    return (PyObject *)p;
}

/* ---- Python surface ---- */

static PyObject *program_check(PyObject *self, PyObject *args) {
    PyObject *function, *values, *inputs;
    if (!PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &function, &PyTuple_Type, &values)) return NULL;
    Program *p = (Program *)self;
    for (Py_ssize_t i = 0; i < p->n; i++)
        if (p->ins[i].op == OP_LOCAL && (p->ins[i].n < 0 || p->ins[i].n >= PyTuple_GET_SIZE(values)))
            return PyErr_Format(PyExc_ValueError, "the program reads argument slot %lld", (long long)p->ins[i].n);
    if (!braze_program_run(self, (PyFunctionObject *)function, ((PyTupleObject *)values)->ob_item, &inputs)) Py_RETURN_NONE;
    return inputs ? inputs : PyTuple_New(0);
}

static PyObject *program_repeat(PyObject *self, PyObject *args) {
    PyObject *function, *values, *inputs;
    Py_ssize_t times;
    if (!PyArg_ParseTuple(args, "O!O!n", &PyFunction_Type, &function, &PyTuple_Type, &values, &times)) return NULL;
    Py_ssize_t passed = 0;
    for (Py_ssize_t i = 0; i < times; i++) {
        passed += braze_program_run(self, (PyFunctionObject *)function, ((PyTupleObject *)values)->ob_item, &inputs);
        Py_CLEAR(inputs);
    }
    return PyLong_FromSsize_t(passed);
}

static PyObject *program_stats(PyObject *self, PyObject *unused) {
    (void)unused;
    const Program *p = (Program *)self;
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:i,s:O,s:L,s:L,s:L,s:L,s:i,s:i,s:i}", "instructions", p->n, "reads", p->nreads, "words",
                         p->stamp.nwords, "parts", p->stamp.nparts, "hot", p->nhot, "careful",
                         p->careful ? Py_True : Py_False, "fast", (long long)p->count_fast, "full",
                         (long long)p->count_full, "stamps", (long long)p->count_stamps, "careful_runs",
                         (long long)p->count_careful, "failed", p->failed,
                         "careful_at", p->careful_at, "missed_at", p->missed_at);
}

static PyMethodDef program_methods[] = {
    {"check", program_check, METH_VARARGS, "check(function, args): the values that the program reads, or None if a guard fails."},
    {"repeat", program_repeat, METH_VARARGS, "repeat(function, args, n): run n times, count the passes. For benchmarks."},
    {"stats", program_stats, METH_NOARGS, "Sizes, and how often each path ran."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject BrazeProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze._C.Program",
    .tp_doc = "A guard program: Program(instructions, registers, reads).",
    .tp_basicsize = sizeof(Program),
    .tp_new = program_new,
    .tp_dealloc = program_dealloc,
    .tp_methods = program_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

int braze_init_guards(PyObject *m) {
    static const char *const names[] = {
#define X(name) #name,
        BRAZE_OPS(X)
#undef X
    };
    PyObject *ops = PyDict_New();
    for (int i = 0; ops != NULL && i < OP_COUNT; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItemString(ops, names[i], number) < 0) Py_CLEAR(ops);
        Py_XDECREF(number);
    }
    if (ops == NULL || PyModule_AddObjectRef(m, "OPS", ops) < 0) return -1;
    Py_DECREF(ops);
    return PyModule_AddType(m, &BrazeProgram_Type);
}
