/* The instructions of a guard program, one at a time.

   Registers hold borrowed references: nothing below runs Python code, so nothing that was read can go away during a walk.
   A step that would run Python code (a property, a __getattr__, a comparison of user objects) answers NEEDS_CARE; the
   program then runs in careful mode, where each register owns its value. */
#include "program.h"
#include "structmember.h"

#include "internal/pycore_dict.h"
#include "internal/pycore_object.h"
#if PY_VERSION_HEX >= 0x030D0000
#include "internal/pycore_setobject.h"
#endif

int braze_own(Walk *w, PyObject *value) {
    if (w->nowned == w->owned_room) {
        Py_ssize_t room = 2 * w->owned_room;
        PyObject **grown = PyMem_Malloc(room * sizeof *grown);
        if (grown == NULL) {
            Py_DECREF(value);
            PyErr_NoMemory();
            return -1;
        }
        memcpy(grown, w->owned, w->nowned * sizeof *grown);
        if (w->owned != w->owned_first) PyMem_Free(w->owned);
        w->owned = grown;
        w->owned_room = room;
    }
    w->owned[w->nowned++] = value;
    return 0;
}

static inline int put(Walk *w, const Ins *p, PyObject *value) {
    if (value == NULL) return 0;
    w->regs[p->dst] = value;
    if (w->careful && braze_own(w, Py_NewRef(value)) < 0) return -1;
    return 1;
}

/* A new reference that the walk keeps; NULL with a reading error counts as a failed guard. */
static int put_new(Walk *w, const Ins *p, PyObject *value) {
    if (value == NULL) {
        PyErr_Clear();
        return 0;
    }
    w->via.kind = VIA_NOTHING;
    w->regs[p->dst] = value;
    return braze_own(w, value) < 0 ? -1 : 1;
}

static PyObject *dict_get(PyObject *dict, PyObject *key, Py_hash_t hash) {
    PyObject *value = _PyDict_GetItem_KnownHash(dict, key, hash);
    if (value == NULL) PyErr_Clear();
    return value;
}

/* Keys whose hash and comparison are C code, so that looking them up runs no Python code. */
static bool plain_key(PyObject *key) {
    if (PyTuple_CheckExact(key)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
            if (!plain_key(PyTuple_GET_ITEM(key, i))) return false;
        return true;
    }
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || key == Py_None || PyBool_Check(key) ||
           PyFloat_CheckExact(key) || PyBytes_CheckExact(key) || PyFunction_Check(key) || PyModule_CheckExact(key) ||
           Py_IS_TYPE(key, &PyType_Type);
}

/* ---- instance dicts ---- */

#if PY_VERSION_HEX >= 0x030D0000
/* An attribute among the inline values of an object (3.13). Sets via; *found tells whether the object has such values. */
static PyObject *inline_get(Walk *w, PyObject *o, PyObject *name, bool *found) {
    PyTypeObject *type = Py_TYPE(o);
    *found = false;
    if (!(type->tp_flags & Py_TPFLAGS_INLINE_VALUES)) return NULL;
    PyDictValues *values = _PyObject_InlineValues(o);
    if (!values->valid) return NULL;
    *found = true;
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    PyDictUnicodeEntry *entries = DK_UNICODE_ENTRIES(keys);
    w->via.header = (const uint64_t *)values;
    for (Py_ssize_t i = 0; i < keys->dk_nentries; i++) {
        PyObject *key = entries[i].me_key;
        if (key != name && (key == NULL || PyUnicode_Compare(key, name) != 0)) continue;
        w->via.kind = VIA_FIELD;
        w->via.field = &values->values[i];
        return values->values[i];
    }
    w->via.kind = VIA_FIELD;
    w->via.field = NULL;
    w->via.usage = (const uint64_t *)&keys->dk_nentries;
    return NULL;
}
#endif

/* An attribute in the object's own dict, borrowed; NULL if it is not there (or there is no dict). Sets via. */
static PyObject *instance_get(Walk *w, PyObject *o, PyObject *name, Py_hash_t hash) {
    w->via = (Via){.kind = VIA_FIELD, .object = o};
#if PY_VERSION_HEX >= 0x030D0000
    bool found;
    PyObject *value = inline_get(w, o, name, &found);
    if (found) return value;
    w->via.header = NULL;
#endif
    PyObject **slot = _PyObject_GetDictPtr(o);
    if (slot == NULL) {
        PyErr_Clear();
        w->via.kind = VIA_TYPE_OF; /* no dict: the type says so */
        return NULL;
    }
    if (*slot == NULL) {
        w->via.field = slot;
        return NULL;
    }
    w->via.kind = VIA_DICT;
    w->via.dict_slot = slot;
    w->via.dict = *slot;
    return dict_get(*slot, name, hash);
}

/* ---- attributes ---- */

/* Whether getattr on this type is object's: dict, class, and a __getattr__ for what neither has. */
static bool plain_getattr(PyTypeObject *type) {
    static PyObject *name, *own;
    if (type->tp_getattro == PyObject_GenericGetAttr || type->tp_getattro == PyModule_Type.tp_getattro) return true;
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
    if (name == NULL) {
        name = PyUnicode_InternFromString("__getattribute__");
        own = name ? _PyType_Lookup(&PyBaseObject_Type, name) : NULL;
    }
    return own != NULL && _PyType_Lookup(type, name) == own;
}

static int function_field(Walk *w, const Ins *p, PyFunctionObject *f) {
    const char *name = PyUnicode_AsUTF8(p->obj);
    PyObject **field = NULL;
    if (name == NULL) return -1;
    if (strcmp(name, "__code__") == 0) field = &f->func_code;
    if (strcmp(name, "__defaults__") == 0) field = &f->func_defaults;
    if (strcmp(name, "__kwdefaults__") == 0) field = &f->func_kwdefaults;
    if (strcmp(name, "__closure__") == 0) field = &f->func_closure;
    if (strcmp(name, "__globals__") == 0) field = &f->func_globals;
    if (field == NULL) return NEEDS_CARE;
    w->via = (Via){.kind = VIA_FIELD, .object = (PyObject *)f, .field = field};
    return put(w, p, *field ? *field : Py_None);
}

/* A member (slot or C field) of an object; its descriptor says where. */
static int member_field(Walk *w, const Ins *p, PyObject *o, PyObject *descriptor) {
    PyMemberDef *d = ((PyMemberDescrObject *)descriptor)->d_member;
    if ((d->type != T_OBJECT && d->type != T_OBJECT_EX) || !PyType_IsSubtype(Py_TYPE(o), PyDescr_TYPE(descriptor)))
        return w->careful ? put_new(w, p, PyObject_GetAttr(o, p->obj)) : NEEDS_CARE;
    PyObject **field = (PyObject **)((char *)o + d->offset);
    w->via = (Via){.kind = VIA_FIELD, .object = o, .field = field, .type = Py_TYPE(o)};
    if (*field == NULL && d->type == T_OBJECT) return put(w, p, Py_None);
    return put(w, p, *field);
}

bool braze_plain_tensor(PyObject *o) {
    static PyObject *tensor, *parameter;
    if (tensor == NULL) {
        PyObject *torch = PyImport_GetModule(PyUnicode_InternFromString("torch"));
        PyObject *nn = torch ? PyObject_GetAttrString(torch, "nn") : NULL;
        parameter = nn ? PyObject_GetAttrString(nn, "Parameter") : NULL;
        tensor = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
        PyErr_Clear();
    }
    return (PyObject *)Py_TYPE(o) == tensor || (PyObject *)Py_TYPE(o) == parameter;
}

/* x.__dict__: the object's own dict, where the class does not say otherwise. */
static int own_dict(Walk *w, const Ins *p, PyObject *o, PyObject *descriptor) {
    PyObject **slot = Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) ? _PyObject_GetDictPtr(o) : NULL;
    if (slot == NULL || *slot == NULL) {
        PyErr_Clear();
        return NEEDS_CARE;
    }
    w->via = (Via){.kind = VIA_FIELD, .object = o, .field = slot, .type = Py_TYPE(o)};
    return put(w, p, *slot);
}

static int step_attr(Walk *w, const Ins *p, PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    if (w->careful) return put_new(w, p, PyObject_GetAttr(o, p->obj));
    if (PyFunction_Check(o)) {
        int r = function_field(w, p, (PyFunctionObject *)o);
        if (r != NEEDS_CARE) return r;
    }
    if (PyType_Check(o) || !plain_getattr(type)) return NEEDS_CARE;
    PyObject *descriptor = _PyType_Lookup(type, p->obj);
    descrgetfunc get = descriptor ? Py_TYPE(descriptor)->tp_descr_get : NULL;
    if (get != NULL && Py_TYPE(descriptor)->tp_descr_set != NULL) { /* a data descriptor comes first */
        if (Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return member_field(w, p, o, descriptor);
        if (Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) && braze_plain_tensor(o)) return put_new(w, p, get(descriptor, o, (PyObject *)type));
        return PyUnicode_CompareWithASCIIString(p->obj, "__dict__") ? NEEDS_CARE : own_dict(w, p, o, descriptor);
    }
    PyObject *value = instance_get(w, o, p->obj, p->hash);
    w->via.type = type; /* a descriptor put on the class later would win */
    if (value != NULL) return put(w, p, value);
    if (descriptor == NULL) return type->tp_getattro == PyObject_GenericGetAttr ? 0 : NEEDS_CARE; /* else __getattr__ */
    if (get == NULL) return put(w, p, descriptor); /* via says that the instance does not have it */
    if (PyFunction_Check(descriptor)) return put_new(w, p, get(descriptor, o, (PyObject *)type));
    return NEEDS_CARE;
}

static int step_type_attr(Walk *w, const Ins *p, PyObject *o) {
    if (!PyType_Check(o)) return 0;
    w->via = (Via){.kind = VIA_TYPE_ATTR, .object = o, .type = (PyTypeObject *)o};
    return put(w, p, _PyType_Lookup((PyTypeObject *)o, p->obj));
}

/* ---- containers ---- */

static int sequence_item(Walk *w, const Ins *p, PyObject *o, PyObject **items, Py_ssize_t n, int kind) {
    if (!PyLong_CheckExact(p->obj)) return w->careful ? put_new(w, p, PyObject_GetItem(o, p->obj)) : NEEDS_CARE;
    Py_ssize_t i = (Py_ssize_t)p->n;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return 0;
    w->via = (Via){.kind = kind, .object = o, .field = items + i};
    return put(w, p, items[i]);
}

static int step_item(Walk *w, const Ins *p, PyObject *o) {
    if (PyDict_Check(o)) {
        w->via = (Via){.kind = VIA_DICT, .object = o, .dict = o};
        if (!plain_key(p->obj) && !w->careful) return NEEDS_CARE;
        return put(w, p, dict_get(o, p->obj, p->hash));
    }
    if (PyTuple_Check(o)) return sequence_item(w, p, o, ((PyTupleObject *)o)->ob_item, PyTuple_GET_SIZE(o), VIA_TUPLE);
    if (PyList_Check(o)) return sequence_item(w, p, o, ((PyListObject *)o)->ob_item, PyList_GET_SIZE(o), VIA_LIST);
    return w->careful ? put_new(w, p, PyObject_GetItem(o, p->obj)) : NEEDS_CARE;
}

static int step_dict_key(Walk *w, const Ins *p, PyObject *o) {
    PyObject *key = NULL;
    Py_ssize_t at = 0;
    if (!PyDict_Check(o)) return 0;
    for (int64_t i = 0; i <= p->n; i++)
        if (!PyDict_Next(o, &at, &key, NULL)) return 0;
    w->via = (Via){.kind = VIA_DICT, .object = o, .dict = o};
    return put(w, p, key);
}

static int step_cell(Walk *w, const Ins *p, PyObject *o) {
    if (!PyCell_Check(o)) return 0;
    w->via = (Via){.kind = VIA_FIELD, .object = o, .field = &((PyCellObject *)o)->ob_ref};
    return put(w, p, ((PyCellObject *)o)->ob_ref);
}

static int step_tensor_int(Walk *w, const Ins *p, PyObject *o) {
    static const char *const methods[] = {"size", "stride", "storage_offset"};
    if (braze_layout.known && braze_plain_tensor(o)) {
        bool ok = true;
        int64_t value = braze_tensor_int(o, (int)p->n, (Py_ssize_t)p->m, &ok);
        return ok ? put_new(w, p, PyLong_FromLongLong(value)) : 0;
    }
    if (!w->careful) return NEEDS_CARE;
    if (p->n == 2) return put_new(w, p, PyObject_CallMethod(o, methods[2], NULL));
    return put_new(w, p, PyObject_CallMethod(o, methods[p->n], "L", (long long)p->m));
}

static int step_load(Walk *w, const Ins *p) {
    PyFunctionObject *f = w->function;
    w->via = (Via){.kind = VIA_ROOT};
    switch (p->op) {
    case OP_LOCAL: return put(w, p, w->args[p->n]);
    case OP_FUNCTION: return put(w, p, (PyObject *)f);
    case OP_CELL:
        if (f->func_closure == NULL || p->n >= PyTuple_GET_SIZE(f->func_closure)) return 0;
        return put(w, p, PyTuple_GET_ITEM(f->func_closure, p->n));
    case OP_GLOBALS: return put(w, p, f->func_globals);
    case OP_BUILTINS: return put(w, p, f->func_builtins);
    case OP_CONST: w->via.kind = VIA_FIXED; return put(w, p, p->obj);
    }
    PyObject *o = w->regs[p->src];
    w->via = (Via){.kind = VIA_NOTHING};
    switch (p->op) {
    case OP_ATTR: return step_attr(w, p, o);
    case OP_INSTANCE_ATTR: return put(w, p, instance_get(w, o, p->obj, p->hash));
    case OP_ITEM: return step_item(w, p, o);
    case OP_DICT_KEY: return step_dict_key(w, p, o);
    case OP_TYPE:
        w->via = (Via){.kind = VIA_TYPE_OF, .object = o};
        return put(w, p, (PyObject *)Py_TYPE(o));
    case OP_TYPE_ATTR: return step_type_attr(w, p, o);
    case OP_CELL_CONTENTS: return step_cell(w, p, o);
    case OP_TENSOR_INT: return step_tensor_int(w, p, o);
    default: return w->careful ? put_new(w, p, PyObject_CallOneArg(p->obj, o)) : NEEDS_CARE;
    }
}

/* ---- checks ---- */

/* Whether a weak reference still leads to o. (A dead one reads as None, which is never referred to weakly.) */
static inline bool refers_to(PyObject *ref, PyObject *o) { return o != Py_None && ((PyWeakReference *)ref)->wr_object == o; }

static bool same_float(double a, double b) { return (a != a && b != b) || memcmp(&a, &b, sizeof a) == 0; }

static bool plain_keys(PyObject *set) {
    PyObject *key;
    Py_hash_t hash;
    Py_ssize_t at = 0;
    while (_PySet_NextEntry(set, &at, &key, &hash))
        if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) return false; /* 1, 1.0 and True are not the same here */
    return true;
}

/* Whether a set has the items of a frozenset; NEEDS_CARE where comparing items may run Python code. */
static int set_equals(PyObject *set, PyObject *wanted) {
    PyObject *key;
    Py_hash_t hash;
    Py_ssize_t at = 0;
    if (!PyAnySet_Check(set)) return 0;
    if (PySet_GET_SIZE(set) != PySet_GET_SIZE(wanted)) return 0;
    if (!plain_keys(set) || !plain_keys(wanted)) return NEEDS_CARE;
    while (_PySet_NextEntry(set, &at, &key, &hash)) {
        int r = PySet_Contains(wanted, key);
        if (r != 1) return r;
    }
    return 1;
}

/* guards.same_constant: 1, 0, or NEEDS_CARE for values whose comparison may run Python code. */
static int same_constant(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    if (PyFloat_CheckExact(a)) return same_float(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    if (PyTuple_CheckExact(a)) {
        if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++) {
            int r = same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
            if (r != 1) return r;
        }
        return 1;
    }
    if (PyComplex_CheckExact(a)) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return same_float(x.real, y.real) && same_float(x.imag, y.imag);
    }
    if (PyAnySet_Check(a)) return PyFrozenSet_CheckExact(a) ? set_equals(a, b) : NEEDS_CARE;
    /* numbers, strings, slices, torch.device: compared in C */
    if (Py_TYPE(a)->tp_flags & Py_TPFLAGS_HEAPTYPE || PyList_Check(a) || PyDict_Check(a)) return NEEDS_CARE;
    return PyObject_RichCompareBool(a, b, Py_EQ);
}

/* The Python meaning, for constants that C does not compare itself. */
static int same_constant_python(PyObject *a, PyObject *b) {
    PyObject *module = PyImport_ImportModule("braze.capture.guards");
    PyObject *r = module ? PyObject_CallMethod(module, "same_constant", "OO", a, b) : NULL;
    Py_XDECREF(module);
    if (r == NULL) return -1;
    Py_DECREF(r);
    return r == Py_True;
}

static int set_equals_python(PyObject *set, PyObject *wanted) {
    PyObject *copy = PyFrozenSet_New(set);
    int r = copy ? same_constant_python(copy, wanted) : -1;
    Py_XDECREF(copy);
    return r;
}

static int check_length(PyObject *o, int64_t n) {
    if (PyDict_Check(o)) return PyDict_GET_SIZE(o) == n;
    if (PyList_Check(o)) return PyList_GET_SIZE(o) == n;
    if (PyTuple_Check(o)) return PyTuple_GET_SIZE(o) == n;
    if (PyAnySet_Check(o)) return PySet_GET_SIZE(o) == n;
    PyTypeObject *type = Py_TYPE(o);
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return NEEDS_CARE;
    Py_ssize_t length = PyObject_Size(o); /* a builtin type: C code */
    if (length < 0) PyErr_Clear();
    return length == n;
}

static int check_truth(PyObject *o, int64_t truth) {
    PyTypeObject *type = Py_TYPE(o);
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        if (PyDict_Check(o)) return (PyDict_GET_SIZE(o) != 0) == truth;
        if (PyList_Check(o)) return (PyList_GET_SIZE(o) != 0) == truth;
        if (PyTuple_Check(o)) return (PyTuple_GET_SIZE(o) != 0) == truth;
        return NEEDS_CARE;
    }
    int r = PyObject_IsTrue(o);
    if (r < 0) PyErr_Clear();
    return r == truth;
}

static int check_range(const Ins *p, PyObject *o) {
    if (!PyLong_CheckExact(o)) return 0;
    int overflow = 0;
    int64_t v = PyLong_AsLongLongAndOverflow(o, &overflow);
    return !overflow && p->n <= v && v <= p->m;
}

/* Whether an OrderedDict has the order of the dict that it is: move_to_end() changes the one without the other. */
static int in_order(PyObject *o) {
    PyObject *key, *value, *ordered = PyODict_Type.tp_iter(o);
    if (ordered == NULL) return -1;
    Py_ssize_t at = 0;
    int same = 1;
    while (same && PyDict_Next(o, &at, &key, &value)) {
        PyObject *other = PyIter_Next(ordered);
        same = other == key;
        Py_XDECREF(other);
    }
    Py_DECREF(ordered);
    return PyErr_Occurred() ? -1 : same;
}

static int check_keys(Walk *w, const Ins *p, PyObject *o) {
    Py_ssize_t at = 0, i = 0, n = PyTuple_GET_SIZE(p->obj);
    PyObject *key;
    w->via = (Via){.kind = VIA_DICT, .object = o, .dict = o};
    if (!PyDict_Check(o) || PyDict_GET_SIZE(o) != n) return 0;
    while (PyDict_Next(o, &at, &key, NULL)) {
        PyObject *want = PyTuple_GET_ITEM(p->obj, i++);
        if (key == want) continue;
        int r = same_constant(want, key);
        if (r != 1) return r == NEEDS_CARE ? 0 : r; /* other keys are compared by identity */
    }
    if (!PyODict_Check(o)) return 1;
    w->via = (Via){.kind = VIA_NOTHING}; /* the dict's version does not tell */
    return in_order(o);
}

static int check_has(Walk *w, const Ins *p, PyObject *o) {
    if (!PyDict_Check(o)) return 0;
    w->via = (Via){.kind = VIA_DICT, .object = o, .dict = o};
    if (!plain_key(p->obj) && !w->careful) return NEEDS_CARE;
    return (dict_get(o, p->obj, p->hash) != NULL) == p->n;
}

static int check_distinct(Walk *w, const Ins *p) {
    const uint8_t *pins = w->fast ? w->p->stamp.pins : NULL;
    for (int64_t i = 0; i < p->n; i++) {
        PyObject *a = w->regs[p->list[i]];
        if (pins != NULL && pins[p->list[i]]) continue; /* against the others only below */
        for (int64_t j = pins != NULL ? 0 : i + 1; j < p->n; j++)
            if (j != i && w->regs[p->list[j]] == a) return 0;
    }
    return 1;
}

enum { R_CONST, R_REG, R_TENSOR, R_ADD, R_MUL, R_FLOORDIV, R_MOD, R_MIN, R_MAX, R_EQ, R_NE, R_LT, R_LE };

static int64_t arithmetic(int64_t op, int64_t a, int64_t b) {
    int64_t q = b ? a / b : 0, r = b ? a % b : 0;
    bool down = r != 0 && (r < 0) != (b < 0);
    switch (op) {
    case R_ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
    case R_MUL: return (int64_t)((uint64_t)a * (uint64_t)b);
    case R_FLOORDIV: return q - down;
    case R_MOD: return down ? r + b : r;
    case R_MIN: return a < b ? a : b;
    case R_MAX: return a < b ? b : a;
    case R_EQ: return a == b;
    case R_NE: return a != b;
    case R_LT: return a < b;
    default: return a <= b;
    }
}

/* A postfix program of pairs (op, operand) over 64-bit integers. */
static int check_relation(Walk *w, const Ins *p) {
    int64_t stack[32];
    int top = 0;
    for (int64_t i = 0; i < p->n; i += 2) {
        int64_t op = p->list[i], arg = p->list[i + 1];
        if (op >= R_ADD) {
            if (top < 2) return 0;
            top--;
            stack[top - 1] = arithmetic(op, stack[top - 1], stack[top]);
            continue;
        }
        if (top == 32) return 0;
        if (op == R_CONST) {
            stack[top++] = arg;
            continue;
        }
        PyObject *o = w->regs[arg & 0xFFFFFFFF];
        bool ok = true;
        if (op == R_TENSOR && !(braze_layout.known && braze_plain_tensor(o))) return NEEDS_CARE;
        int64_t v = op == R_TENSOR ? braze_tensor_int(o, (int)(arg >> 48), (Py_ssize_t)(arg >> 32 & 0xFFFF), &ok)
                                   : PyLong_AsLongLong(o);
        if (!ok || (op == R_REG && PyErr_Occurred())) {
            PyErr_Clear();
            return 0;
        }
        stack[top++] = v;
    }
    return top == 1 && stack[0] != 0;
}

static int check_state(const Ins *p) {
    TorchState now;
    if (PyBytes_Check(p->obj)) return braze_state_read(&now) && memcmp(&now, PyBytes_AS_STRING(p->obj), sizeof now) == 0;
    PyObject *text = PyObject_CallNoArgs(p->obj);
    if (text == NULL) return -1;
    Py_DECREF(text);
    return text == Py_None;
}

static int check_no_attr(Walk *w, const Ins *p, PyObject *o) {
    if (p->n) { /* of a class: neither it nor its bases have the attribute */
        if (!PyType_Check(o)) return 0;
        w->via = (Via){.kind = VIA_TYPE_ATTR, .object = o, .type = (PyTypeObject *)o};
        return _PyType_Lookup((PyTypeObject *)o, p->obj) == NULL;
    }
    if (instance_get(w, o, p->obj, p->hash) != NULL) return 0;
    w->via.type = Py_TYPE(o);
    return _PyType_Lookup(Py_TYPE(o), p->obj) == NULL;
}

static int check_equals(Walk *w, const Ins *p, PyObject *o) {
    int r = same_constant(o, p->obj);
    if (r != NEEDS_CARE) return r;
    return w->careful ? same_constant_python(o, p->obj) : NEEDS_CARE;
}

static int careful_length(PyObject *o, int64_t n) {
    Py_ssize_t length = PyObject_Size(o);
    return length < 0 ? -1 : length == n;
}

static int careful_truth(PyObject *o, int64_t truth) {
    int r = PyObject_IsTrue(o);
    return r < 0 ? -1 : r == truth;
}

static int relation_in_python(const Ins *p, Walk *w) {
    /* sizes of tensor subclasses: ask the tensors; the operands become constants */
    Ins q = *p;
    q.list = PyMem_Malloc(p->n * sizeof *q.list);
    if (q.list == NULL) return -1;
    memcpy(q.list, p->list, p->n * sizeof *q.list);
    static const char *const methods[] = {"size", "stride", "storage_offset"};
    int r = 1;
    for (int64_t i = 0; r == 1 && i < p->n; i += 2) {
        if (q.list[i] != R_TENSOR) continue;
        int64_t arg = q.list[i + 1], what = arg >> 48;
        PyObject *o = w->regs[arg & 0xFFFFFFFF];
        PyObject *v = what == 2 ? PyObject_CallMethod(o, methods[2], NULL)
                                : PyObject_CallMethod(o, methods[what], "L", (long long)(arg >> 32 & 0xFFFF));
        q.list[i] = R_CONST;
        q.list[i + 1] = v ? PyLong_AsLongLong(v) : 0;
        Py_XDECREF(v);
        if (PyErr_Occurred()) r = -1;
    }
    if (r == 1) r = check_relation(w, &q);
    PyMem_Free(q.list);
    return r;
}

int braze_step(Walk *w, const Ins *p) {
    if (braze_is_load(p->op)) return step_load(w, p);
    PyObject *o = p->src >= 0 ? w->regs[p->src] : NULL;
    int r;
    switch (p->op) {
    case OP_TYPE_IS: return (PyObject *)Py_TYPE(o) == p->obj;
    case OP_IS: return o == p->obj;
    case OP_IS_WEAK: return refers_to(p->obj, o);
    case OP_NOT_NONE: return o != Py_None;
    case OP_EQUALS: return check_equals(w, p, o);
    case OP_TRUTH: r = check_truth(o, p->n); return r == NEEDS_CARE && w->careful ? careful_truth(o, p->n) : r;
    case OP_RANGE: return check_range(p, o);
    case OP_TENSOR: return p->spec->native || w->careful ? braze_spec_check(p->spec, o) : NEEDS_CARE;
    case OP_LENGTH: r = check_length(o, p->n); return r == NEEDS_CARE && w->careful ? careful_length(o, p->n) : r;
    case OP_DICT_KEYS: return check_keys(w, p, o);
    case OP_DICT_HAS: return check_has(w, p, o);
    case OP_SET_EQUALS: r = set_equals(o, p->obj); return r == NEEDS_CARE && w->careful ? set_equals_python(o, p->obj) : r;
    case OP_LACKS: return instance_get(w, o, p->obj, p->hash) == NULL;
    case OP_NO_ATTR: return check_no_attr(w, p, o);
    case OP_CODE_IS: return PyFunction_Check(o) && refers_to(p->obj, ((PyFunctionObject *)o)->func_code);
    case OP_SAME: return o == w->regs[p->dst];
    case OP_DISTINCT: return check_distinct(w, p);
    case OP_RELATION: r = check_relation(w, p); return r == NEEDS_CARE && w->careful ? relation_in_python(p, w) : r;
    default: return check_state(p);
    }
}
