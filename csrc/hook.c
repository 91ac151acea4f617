/* The frame evaluation hook (PEP 523): runs compiled replacement code in place of a frame that is about to start.

   A frame that has not started holds only its arguments (cells are made and free variables copied by bytecode), so the
   code object can be exchanged in place: put the new code, reset the instruction pointer, clear the other slots. Function,
   closure, globals stay. Replacement code takes the same argument slots, all positional, and one more: the tuple of values
   that its guard program read.

   The hook is on for a thread while a Session is entered there. It is installed in the interpreter only while some thread
   has it on, so that other Python code runs at full speed. What is compiled is kept in a slot of the code object:
   entries of (session, guard program, replacement code), most recently used first. */
#include "braze.h"
#include "structmember.h"

#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"

#if PY_VERSION_HEX >= 0x030C0000
#define GetExtra PyUnstable_Code_GetExtra
#define SetExtra PyUnstable_Code_SetExtra
#define RequestIndex PyUnstable_Eval_RequestCodeExtraIndex
#define FRAME_FUNC(f) ((f)->f_funcobj)
#else
#define GetExtra _PyCode_GetExtra
#define SetExtra _PyCode_SetExtra
#define RequestIndex _PyEval_RequestCodeExtraIndex
#define FRAME_FUNC(f) ((PyObject *)(f)->f_func)
#endif
#if PY_VERSION_HEX >= 0x030D0000
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define FRAME_SET_CODE(f, c) ((f)->f_executable = (PyObject *)(c))
#define FRAME_IP(f) ((f)->instr_ptr)
#define START_IP(c) (_PyCode_CODE(c))
#else
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_SET_CODE(f, c) ((f)->f_code = (PyCodeObject *)(c))
#define FRAME_IP(f) ((f)->prev_instr)
#define START_IP(c) (_PyCode_CODE(c) - 1)
#endif

/* ---- types and state ---- */

typedef struct {
    PyObject_HEAD
    uint64_t id;         /* never reused: entries name their session by it, and do not keep it alive */
} Session;

typedef struct {
    PyObject_HEAD
    PyObject *guard;     /* a guard program, or NULL: always valid */
    PyObject *code;      /* replacement code, or NULL: run the original */
    PyObject *info;      /* what Python keeps with it */
    uint64_t session;
    Py_ssize_t hits;
} Entry;

typedef struct {
    int skip;            /* never of interest, in any session: 1 this frame, 2 all below it, too */
    uint32_t changes;    /* bumped when the entries change */
    Py_ssize_t n, room;
    Entry **entries;
} Extra;

static Py_ssize_t extra_index = -1;
static uint64_t next_session = 1;
static Py_ssize_t threads_on = 0;                 /* threads with the hook on */
static _PyFrameEvalFunction previous_eval = NULL; /* what was installed before us */
static PyObject *str_callback, *stubs;            /* stubs: argument slots -> code that returns None */
static Py_ssize_t count_hits, count_misses, count_grown, count_shadowed;

static _Thread_local Session *active = NULL;      /* NULL: off. Borrowed from the stack below */
static _Thread_local struct { Session **items; Py_ssize_t n, room; } stack; /* entered sessions, strong; saved actives */

static PyObject *hook(PyThreadState *ts, _PyInterpreterFrame *f, int throwflag);

/* Another tool's hook that was installed while this one was on hands its frames back to it: a frame that comes back
   goes to the interpreter, or the two would call each other for ever. */
static inline PyObject *run_original(PyThreadState *ts, _PyInterpreterFrame *f, int throwflag) {
    static _Thread_local _PyInterpreterFrame *forwarded;
    if (previous_eval == NULL || forwarded == f) return _PyEval_EvalFrameDefault(ts, f, throwflag);
    _PyInterpreterFrame *outer = forwarded;
    forwarded = f;
    PyObject *result = previous_eval(ts, f, throwflag);
    forwarded = outer;
    return result;
}

/* Set the thread's session, and install or remove the hook where this is the first or the last one. */
static void set_active(Session *session) {
    if ((active == NULL) != (session == NULL)) {
        PyInterpreterState *interp = PyInterpreterState_Get();
        _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);
        if (session != NULL && threads_on++ == 0 && now != hook) {
            previous_eval = now == _PyEval_EvalFrameDefault ? NULL : now;
            _PyInterpreterState_SetEvalFrameFunc(interp, hook);
        }
        if (session == NULL && --threads_on == 0 && now == hook)
            _PyInterpreterState_SetEvalFrameFunc(interp, previous_eval ? previous_eval : _PyEval_EvalFrameDefault);
    }
    active = session;
}

void *braze_pause(void) {
    Session *saved = active;
    if (saved != NULL) set_active(NULL);
    return saved;
}

void braze_resume(void *paused) {
    if (active != paused) set_active(paused);
}

/* ---- entries of a code object ---- */

static void extra_clear(Extra *x) {
    Entry **entries = x->entries;
    Py_ssize_t n = x->n;
    x->entries = NULL;
    x->n = x->room = 0;
    x->changes++;
    for (Py_ssize_t i = 0; i < n; i++) Py_DECREF(entries[i]);
    PyMem_Free(entries);
}

static void extra_free(void *p) {
    Extra *x = p;
    if (x == NULL) return;
    extra_clear(x);
    PyMem_Free(x);
}

/* The slot of a code object; NULL if it has none (and create is false) or, with an exception, on failure. */
static Extra *get_extra(PyCodeObject *code, bool create) {
    void *p = NULL;
    if (GetExtra((PyObject *)code, extra_index, &p) < 0) {
        PyErr_Clear();
        p = NULL;
    }
    if (p == NULL && create) {
        p = PyMem_Calloc(1, sizeof(Extra));
        if (p == NULL) return (Extra *)PyErr_NoMemory();
        if (SetExtra((PyObject *)code, extra_index, p) < 0) {
            PyMem_Free(p);
            return NULL;
        }
    }
    return p;
}

/* What get_extra(code, false) gives, without a call: the layout is CPython's own (Objects/codeobject.c), checked at import. */
static inline Extra *peek_extra(PyCodeObject *code) {
    const struct { Py_ssize_t n; void *items[]; } *x = code->co_extra;
    return x != NULL && extra_index < x->n ? x->items[extra_index] : NULL;
}

static int check_peek(void) {
    PyObject *code = (PyObject *)PyCode_NewEmpty("", "", 1);
    bool ok = code != NULL && peek_extra((PyCodeObject *)code) == NULL;
    Extra *x = ok ? get_extra((PyCodeObject *)code, true) : NULL;
    ok = x != NULL && peek_extra((PyCodeObject *)code) == x;
    Py_XDECREF(code);
    if (!ok && !PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "braze does not know this CPython's code objects");
    return ok ? 0 : -1;
}

static int extra_add(Extra *x, Entry *e) {
    if (x->n == x->room) {
        Py_ssize_t room = x->room ? 2 * x->room : 4;
        Entry **grown = PyMem_Realloc(x->entries, room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        x->entries = grown;
        x->room = room;
    }
    Py_ssize_t at = e->code ? 0 : x->n; /* "run the original" comes last: only when no version fits */
    memmove(x->entries + at + 1, x->entries + at, (x->n - at) * sizeof *x->entries);
    x->entries[at] = (Entry *)Py_NewRef(e);
    x->n++;
    x->changes++;
    return 0;
}

/* ---- frames ---- */

static inline int argument_slots(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

static inline Py_ssize_t frame_size(PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030C0000
    return code->co_framesize;
#else
    return code->co_nlocalsplus + code->co_stacksize + FRAME_SPECIALS_SIZE;
#endif
}

/* Put code into the frame; keep the first `keep` slots. Steals extra_argument, the slot after them (may be NULL). */
static void exchange_code(_PyInterpreterFrame *f, PyCodeObject *code, int keep, PyObject *extra_argument) {
    PyCodeObject *old = FRAME_CODE(f);
    FRAME_SET_CODE(f, Py_NewRef(code));
    FRAME_IP(f) = START_IP(code);
    for (int i = keep; i < code->co_nlocalsplus; i++) f->localsplus[i] = NULL;
    if (extra_argument != NULL) f->localsplus[keep] = extra_argument;
    f->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

#if PY_VERSION_HEX >= 0x030C0000
/* Code of n positional arguments that returns None; borrowed. */
static PyCodeObject *stub(int n) {
    PyObject *key = PyLong_FromLong(n), *code = NULL, *names = NULL, *source = NULL, *ns = NULL;
    if (key == NULL) return NULL;
    code = PyDict_GetItemWithError(stubs, key);
    if (code != NULL || PyErr_Occurred()) goto done;
    names = PyUnicode_FromString("");
    for (int i = 0; names != NULL && i < n; i++) Py_SETREF(names, PyUnicode_FromFormat("%Ua%d,", names, i));
    if (names == NULL) goto done;
    source = PyUnicode_FromFormat("f = (lambda %U: None).__code__", names);
    ns = source ? PyDict_New() : NULL;
    if (ns == NULL || PyDict_SetItemString(ns, "__builtins__", PyEval_GetBuiltins()) < 0) goto done;
    PyObject *result = PyRun_String(PyUnicode_AsUTF8(source), Py_file_input, ns, ns);
    if (result == NULL) goto done;
    Py_DECREF(result);
    code = PyDict_GetItemString(ns, "f");
    if (code != NULL && PyDict_SetItem(stubs, key, code) < 0) code = NULL;
done:
    Py_XDECREF(names);
    Py_XDECREF(source);
    Py_XDECREF(ns);
    Py_DECREF(key);
    return (PyCodeObject *)code;
}
#endif

/* Finish a frame that will not run. From 3.12 on the callee clears and pops its frame, so run a stub in it; in 3.11 the
   caller does. An exception that is set stays set. */
static void retire(PyThreadState *ts, _PyInterpreterFrame *f) {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *error = PyErr_GetRaisedException();
    int n = argument_slots(FRAME_CODE(f));
    PyCodeObject *code = stub(n);
    if (code == NULL) Py_FatalError("braze: no memory to leave a frame");
    exchange_code(f, code, n, NULL);
    Py_XDECREF(_PyEval_EvalFrameDefault(ts, f, 0));
    if (error != NULL) PyErr_SetRaisedException(error);
#else
    (void)ts, (void)f;
#endif
}

/* Call the replacement as a function of its own: where the frame cannot grow in place. */
static PyObject *run_shadow(PyThreadState *ts, _PyInterpreterFrame *f, PyCodeObject *code, int n, PyObject *inputs) {
    PyObject *result = NULL, **args = PyMem_Malloc((n + 1) * sizeof *args);
    PyFunctionObject *shadow = args ? (PyFunctionObject *)PyFunction_New((PyObject *)code, f->f_globals) : NULL;
    count_shadowed++;
    if (shadow != NULL) {
        PyFunctionObject *function = (PyFunctionObject *)FRAME_FUNC(f);
        shadow->func_closure = Py_XNewRef(function->func_closure);
        Py_SETREF(shadow->func_builtins, Py_NewRef(function->func_builtins));
        memcpy(args, f->localsplus, n * sizeof *args);
        args[n] = inputs;
        result = PyObject_Vectorcall((PyObject *)shadow, args, n + 1, NULL);
        Py_DECREF(shadow);
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    PyMem_Free(args);
    Py_DECREF(inputs);
    retire(ts, f);
    return result;
}

/* Run replacement code in place of the frame, which has not started. Steals inputs. */
static PyObject *run_replaced(PyThreadState *ts, _PyInterpreterFrame *f, PyCodeObject *code, PyObject *inputs) {
    PyCodeObject *old = FRAME_CODE(f);
    int n = argument_slots(old);
    Py_ssize_t old_size = frame_size(old), new_size = frame_size(code);
    if (new_size > old_size) {
        PyObject **end = (PyObject **)f + old_size;
        if (end != ts->datastack_top || new_size - old_size >= ts->datastack_limit - ts->datastack_top)
            return run_shadow(ts, f, code, n, inputs);
        ts->datastack_top += new_size - old_size;
        count_grown++;
    }
    exchange_code(f, code, n, inputs);
    return _PyEval_EvalFrameDefault(ts, f, 0);
}

/* ---- lookup ---- */

/* The entry of this session whose guards hold, as a new reference, with its inputs; NULL if there is none. */
static Entry *lookup(Extra *x, Session *session, PyFunctionObject *function, PyObject *const *args, PyObject **inputs) {
again:;
    uint32_t changes = x->changes;
    for (Py_ssize_t i = 0; i < x->n; i++) {
        Entry *e = x->entries[i];
        if (e->session != session->id) continue;
        Py_INCREF(e);
        *inputs = NULL;
        int ok = e->guard == NULL || braze_program_run(e->guard, function, args, inputs);
        if (ok && e->code != NULL && *inputs == NULL) {
            *inputs = PyTuple_New(0);
            ok = *inputs != NULL;
        }
        if (ok) {
            if (i > 0 && e->code != NULL && changes == x->changes) {
                memmove(x->entries + 1, x->entries, i * sizeof *x->entries);
                x->entries[0] = e;
            }
            return e;
        }
        Py_DECREF(e);
        if (changes != x->changes) goto again; /* a guard ran Python code that compiled or reset something */
    }
    return NULL;
}

/* Ask the session. 1: look again; 0: run the original; -1: an exception is set. */
static int ask(Session *session, PyCodeObject *code, PyObject *function, PyObject *const *args, int n) {
    PyObject *values = PyTuple_New(n);
    if (values == NULL) return -1;
    for (int i = 0; i < n; i++) PyTuple_SET_ITEM(values, i, Py_XNewRef(args[i]));
    PyObject *argv[4] = {(PyObject *)session, (PyObject *)code, function, values};
    Py_INCREF(session);
    void *paused = braze_pause();
    PyObject *answer = PyObject_VectorcallMethod(str_callback, argv, 4, NULL);
    braze_resume(paused);
    Py_DECREF(session);
    Py_DECREF(values);
    if (answer == NULL) return -1;
    int again = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return again;
}

/* The original, with the hook off where the code is marked so. */
static PyObject *run_skipped(PyThreadState *ts, _PyInterpreterFrame *f, Extra *x) {
    if (x == NULL || x->skip != 2) return run_original(ts, f, 0);
    void *paused = braze_pause();
    PyObject *result = run_original(ts, f, 0);
    braze_resume(paused);
    return result;
}

static PyObject *hook(PyThreadState *ts, _PyInterpreterFrame *f, int throwflag) {
    Session *session = active;
    if (session == NULL || throwflag || f->owner != FRAME_OWNED_BY_THREAD) return run_original(ts, f, throwflag);
    PyCodeObject *code = FRAME_CODE(f);
    Extra *x = peek_extra(code);
    const int wanted = CO_OPTIMIZED | CO_NEWLOCALS;
    if (x != NULL && x->skip) return run_skipped(ts, f, x);
    if ((code->co_flags & wanted) != wanted || FRAME_IP(f) != START_IP(code)) return run_original(ts, f, 0);
    PyObject *function = FRAME_FUNC(f), *inputs = NULL;
    Entry *e = x ? lookup(x, session, (PyFunctionObject *)function, f->localsplus, &inputs) : NULL;
    if (e == NULL) {
        count_misses++;
        int again = ask(session, code, function, f->localsplus, argument_slots(code));
        if (again < 0) {
            retire(ts, f);
            return NULL;
        }
        x = again ? get_extra(code, false) : NULL;
        e = x ? lookup(x, session, (PyFunctionObject *)function, f->localsplus, &inputs) : NULL;
    }
    if (e == NULL) return run_skipped(ts, f, peek_extra(code));
    PyCodeObject *replacement = (PyCodeObject *)e->code;
    if (replacement == NULL) {
        Py_DECREF(e);
        Py_XDECREF(inputs);
        return run_original(ts, f, 0);
    }
    e->hits++;
    count_hits++;
    Py_INCREF(replacement);
    Py_DECREF(e);
    PyObject *result = run_replaced(ts, f, replacement, inputs);
    Py_DECREF(replacement);
    return result;
}

/* ---- Session ---- */

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    Session *s = (Session *)type->tp_alloc(type, 0);
    if (s != NULL) s->id = next_session++;
    return (PyObject *)s;
}

/* Push what is active now, and activate session (NULL: pause). */
static int enter(Session *session) {
    if (stack.n + 2 > stack.room) {
        Py_ssize_t room = stack.room ? 2 * stack.room : 16;
        Session **grown = realloc(stack.items, room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        stack.items = grown;
        stack.room = room;
    }
    stack.items[stack.n++] = active;
    stack.items[stack.n++] = (Session *)Py_XNewRef(session);
    set_active(session);
    return 0;
}

static int leave(void) {
    if (stack.n < 2) {
        PyErr_SetString(PyExc_RuntimeError, "a braze session was left that was not entered in this thread");
        return -1;
    }
    Session *entered = stack.items[--stack.n];
    set_active(stack.items[--stack.n]);
    Py_XDECREF(entered);
    return 0;
}

static PyObject *session_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    if (enter((Session *)self) < 0) return NULL;
    return Py_NewRef(self);
}

static PyObject *session_exit(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self, (void)args, (void)n;
    if (leave() < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *session_call(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
    if (n < 1) {
        PyErr_SetString(PyExc_TypeError, "Session.call(function, ...) needs a function");
        return NULL;
    }
    if (enter((Session *)self) < 0) return NULL;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, n - 1, names);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (leave() < 0) Py_CLEAR(result);
    if (type != NULL) PyErr_Restore(type, value, traceback);
    return result;
}

static PyMethodDef session_methods[] = {
    {"__enter__", session_enter, METH_NOARGS, "Turn the hook on for this thread."},
    {"__exit__", (PyCFunction)(void (*)(void))session_exit, METH_FASTCALL, "Back to what was before."},
    {"call", (PyCFunction)(void (*)(void))session_call, METH_FASTCALL | METH_KEYWORDS,
     "call(function, *args, **kwargs): function(*args, **kwargs) with the hook on."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef session_members[] = {
    {"id", T_ULONGLONG, offsetof(Session, id), READONLY, "A number that no other session of the process has."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject Session_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze._C.Session",
    .tp_doc = "One braze.compile call: subclass it with callback(code, function, args) -> bool (True: look again).",
    .tp_basicsize = sizeof(Session),
    .tp_new = session_new,
    .tp_methods = session_methods,
    .tp_members = session_members,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
};

/* ---- Entry ---- */

static void entry_dealloc(PyObject *self) {
    Entry *e = (Entry *)self;
    Py_XDECREF(e->guard);
    Py_XDECREF(e->code);
    Py_XDECREF(e->info);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef entry_members[] = {
    {"guard", T_OBJECT, offsetof(Entry, guard), READONLY, "The guard program, or None."},
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "The replacement code, or None."},
    {"info", T_OBJECT, offsetof(Entry, info), READONLY, "What Python keeps with the entry."},
    {"session", T_ULONGLONG, offsetof(Entry, session), READONLY, "The id of its session."},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), READONLY, "How often it ran."},
    {NULL, 0, 0, 0, NULL},
};
static PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze._C.Entry",
    .tp_doc = "A compiled version of a code object.",
    .tp_basicsize = sizeof(Entry),
    .tp_dealloc = entry_dealloc,
    .tp_members = entry_members,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
};

/* ---- Quiet: a callable that runs with the hook off ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
} Quiet;

static PyObject *quiet_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    void *paused = braze_pause();
    PyObject *result = PyObject_Vectorcall(((Quiet *)self)->function, args, nargsf, names);
    braze_resume(paused);
    return result;
}

static int quiet_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Quiet *)self)->function);
    return 0;
}

static int quiet_clear(PyObject *self) {
    Py_CLEAR(((Quiet *)self)->function);
    return 0;
}

static void quiet_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    quiet_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef quiet_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Quiet, function), READONLY, "The function."},
    {NULL, 0, 0, 0, NULL},
};
static PyTypeObject Quiet_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "braze._C.Quiet",
    .tp_doc = "A function that runs with the hook off: compiled graphs.",
    .tp_basicsize = sizeof(Quiet),
    .tp_dealloc = quiet_dealloc,
    .tp_traverse = quiet_traverse,
    .tp_clear = quiet_clear,
    .tp_members = quiet_members,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Quiet, vectorcall),
    .tp_call = PyVectorcall_Call,
};

static PyObject *m_quiet(PyObject *m, PyObject *function) {
    (void)m;
    if (!PyCallable_Check(function)) return PyErr_Format(PyExc_TypeError, "quiet() takes a callable, got %R", function);
    Quiet *q = PyObject_GC_New(Quiet, &Quiet_Type);
    if (q == NULL) return NULL;
    q->vectorcall = quiet_call;
    q->function = Py_NewRef(function);
    PyObject_GC_Track(q);
    return (PyObject *)q;
}

/* ---- module functions ---- */

static int check_code(PyObject *o) {
    if (PyCode_Check(o)) return 0;
    PyErr_Format(PyExc_TypeError, "expected a code object, got %R", o);
    return -1;
}

static PyObject *m_add_entry(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *code, *guard, *replacement, *info;
    Session *session;
    if (!PyArg_ParseTuple(args, "O!O!OOO", &PyCode_Type, &code, &Session_Type, &session, &guard, &replacement, &info))
        return NULL;
    if (guard != Py_None && !Py_IS_TYPE(guard, &BrazeProgram_Type))
        return PyErr_Format(PyExc_TypeError, "the guard must be a Program or None, got %R", guard);
    if (replacement != Py_None) {
        if (check_code(replacement) < 0) return NULL;
        PyCodeObject *old = (PyCodeObject *)code, *new = (PyCodeObject *)replacement;
        const int bad = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
        if (new->co_argcount != argument_slots(old) + 1 || new->co_kwonlyargcount || new->co_flags & bad ||
            new->co_nfreevars != old->co_nfreevars)
            return PyErr_Format(PyExc_ValueError,
                                "replacement code must take the %d argument slots of %U and the inputs, all positional, "
                                "and the same free variables", argument_slots(old), old->co_qualname);
        Extra *own = get_extra(new, true);
        if (own == NULL) return NULL;
        own->skip = true; /* our own output is never captured */
    }
    Extra *x = get_extra((PyCodeObject *)code, true);
    Entry *e = x ? (Entry *)Entry_Type.tp_alloc(&Entry_Type, 0) : NULL;
    if (e == NULL) return NULL;
    e->guard = guard == Py_None ? NULL : Py_NewRef(guard);
    e->code = replacement == Py_None ? NULL : Py_NewRef(replacement);
    e->info = Py_NewRef(info);
    e->session = session->id;
    if (extra_add(x, e) < 0) Py_CLEAR(e);
    return (PyObject *)e;
}

static PyObject *m_entries(PyObject *m, PyObject *code) {
    (void)m;
    if (check_code(code) < 0) return NULL;
    Extra *x = get_extra((PyCodeObject *)code, false);
    PyObject *out = PyList_New(x ? x->n : 0);
    for (Py_ssize_t i = 0; out != NULL && x != NULL && i < x->n; i++)
        PyList_SET_ITEM(out, i, Py_NewRef((PyObject *)x->entries[i]));
    return out;
}

static PyObject *m_remove_entries(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *code;
    unsigned long long session = 0;
    PyObject *only = Py_None;
    if (!PyArg_ParseTuple(args, "O!|KO", &PyCode_Type, &code, &session, &only)) return NULL;
    Extra *x = get_extra((PyCodeObject *)code, false);
    if (x == NULL) Py_RETURN_NONE;
    PyObject *dropped = PyList_New(0); /* dropped at the end: their destructors run any code */
    if (dropped == NULL) return NULL;
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < x->n; i++) {
        Entry *e = x->entries[i];
        bool drop = (session == 0 || e->session == session) && (only == Py_None || (PyObject *)e == only);
        if (drop && PyList_Append(dropped, (PyObject *)e) == 0)
            Py_DECREF(e);
        else
            x->entries[kept++] = e;
    }
    x->n = kept;
    x->changes++;
    Py_DECREF(dropped);
    Py_RETURN_NONE;
}

static PyObject *m_skip(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *code;
    int on = 1;
    if (!PyArg_ParseTuple(args, "O!|i", &PyCode_Type, &code, &on)) return NULL;
    Extra *x = get_extra((PyCodeObject *)code, true);
    if (x == NULL) return NULL;
    x->skip = on;
    Py_RETURN_NONE;
}

static PyObject *m_is_skipped(PyObject *m, PyObject *code) {
    (void)m;
    if (check_code(code) < 0) return NULL;
    Extra *x = get_extra((PyCodeObject *)code, false);
    return PyBool_FromLong(x != NULL && x->skip);
}

static PyObject *m_active(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return Py_NewRef(active ? (PyObject *)active : Py_None);
}

static PyObject *m_installed(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return PyBool_FromLong(_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook);
}

static PyObject *m_after_fork(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    threads_on = active != NULL; /* the other threads are gone */
    if (active == NULL && _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) == hook)
        _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(),
                                             previous_eval ? previous_eval : _PyEval_EvalFrameDefault);
    Py_RETURN_NONE;
}

static PyObject *m_counters(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return Py_BuildValue("{s:n,s:n,s:n,s:n}", "hits", count_hits, "misses", count_misses, "grown", count_grown, "shadowed",
                         count_shadowed);
}

static PyMethodDef functions[] = {
    {"quiet", m_quiet, METH_O, "quiet(function): the function, run with the hook off."},
    {"add_entry", m_add_entry, METH_VARARGS,
     "add_entry(code, session, guard, replacement, info): guard None is always valid, replacement None the original."},
    {"entries", m_entries, METH_O, "entries(code): the entries of a code object, most recently used first."},
    {"remove_entries", m_remove_entries, METH_VARARGS, "remove_entries(code, session_id=0, entry=None): 0 is every session."},
    {"skip", m_skip, METH_VARARGS, "skip(code, on=1): never look at this code again, in any session; 2: nor at what it calls."},
    {"is_skipped", m_is_skipped, METH_O, "is_skipped(code)."},
    {"active", m_active, METH_NOARGS, "The session that is on in this thread, or None."},
    {"installed", m_installed, METH_NOARGS, "Whether the interpreter runs the hook."},
    {"after_fork", m_after_fork, METH_NOARGS, "Forget the threads that the child of a fork does not have."},
    {"counters", m_counters, METH_NOARGS, "Counts of hits, misses, frames grown in place, and frames run as functions."},
    {NULL, NULL, 0, NULL},
};

int braze_init_hook(PyObject *m) {
    extra_index = RequestIndex(extra_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "no slot is left on code objects");
        return -1;
    }
    if (check_peek() < 0) return -1;
    str_callback = PyUnicode_InternFromString("callback");
    stubs = PyDict_New();
    if (str_callback == NULL || stubs == NULL || PyType_Ready(&Quiet_Type) < 0) return -1;
    if (PyModule_AddType(m, &Session_Type) < 0 || PyModule_AddType(m, &Entry_Type) < 0) return -1;
    return PyModule_AddFunctions(m, functions);
}
