/* Tensor metadata and torch's global state, read without Python calls.

   torch's headers are not needed: where a tensor keeps its sizes, dtype and dispatch keys is found by probing known
   tensors (capture/native.py) and handed over as byte offsets; torch's state functions are looked up by symbol. Where
   either is not found, the Python meaning of the guard is asked instead: slower, never wrong. */
#include "braze.h"
#include <dlfcn.h>

TensorLayout braze_layout;

/* ---- tensors ---- */

void braze_spec_free(TensorSpec *s) {
    if (s == NULL) return;
    Py_XDECREF(s->cls);
    Py_XDECREF(s->spec);
    PyMem_Free(s->dims);
    PyMem_Free(s);
}

static int read_dims(PyObject *tuple, int64_t *out) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *v = PyTuple_GET_ITEM(tuple, i);
        out[i] = v == Py_None ? BRAZE_FREE_SIZE : PyLong_AsLongLong(v);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* (spec, cls, meta or -1, keys, requires_grad, leaf: -1 0 1, sizes, strides or None) */
TensorSpec *braze_spec_new(PyObject *tuple) {
    PyObject *spec, *cls, *sizes, *strides, *meta;
    unsigned long long keys;
    int requires_grad, leaf;
    if (!PyArg_ParseTuple(tuple, "OO!OKiiO!O", &spec, &PyType_Type, &cls, &meta, &keys, &requires_grad, &leaf, &PyTuple_Type,
                          &sizes, &strides))
        return NULL;
    Py_ssize_t rank = PyTuple_GET_SIZE(sizes);
    TensorSpec *s = PyMem_Calloc(1, sizeof *s);
    if (s == NULL) return (TensorSpec *)PyErr_NoMemory();
    s->dims = PyMem_Calloc(2 * rank + 1, sizeof *s->dims);
    s->cls = (PyTypeObject *)Py_NewRef(cls);
    s->spec = Py_NewRef(spec);
    s->keys = keys;
    s->rank = rank;
    s->requires_grad = requires_grad;
    s->leaf = leaf;
    s->strided = strides != Py_None;
    s->native = braze_layout.known && meta != Py_None && leaf < 0;
    if (s->native) s->meta = PyLong_AsUnsignedLongLong(meta);
    bool ok = s->dims != NULL && !PyErr_Occurred() && read_dims(sizes, s->dims) == 0;
    if (ok && s->strided)
        ok = PyTuple_Check(strides) && PyTuple_GET_SIZE(strides) == rank && read_dims(strides, s->dims + rank) == 0;
    if (!ok) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "malformed tensor spec");
        braze_spec_free(s);
        return NULL;
    }
    return s;
}

/* sizes, then (at the returned pointer + *gap) strides */
static inline const int64_t *dims_of(const char *impl, int64_t rank, int64_t *gap) {
    const int64_t *inline_dims = (const int64_t *)(impl + braze_layout.rank) + 1;
    if (rank <= 5) {
        *gap = 5;
        return inline_dims;
    }
    *gap = rank;
    return *(const int64_t *const *)inline_dims;
}

int braze_spec_check(const TensorSpec *s, PyObject *value) {
    if (Py_TYPE(value) != s->cls) return 0;
    if (!s->native) {
        PyObject *text = PyObject_CallMethod(s->spec, "mismatch", "O", value);
        if (text == NULL) return -1;
        Py_DECREF(text);
        return text == Py_None;
    }
    const char *impl = braze_impl(value);
    if (*(const uint64_t *)(impl + braze_layout.keys) != s->keys) return 0;
    if ((*(const uint64_t *)(impl + braze_layout.meta) & BRAZE_META_MASK) != s->meta) return 0;
    int64_t rank = *(const int64_t *)(impl + braze_layout.rank), gap;
    if (rank != s->rank) return 0;
    const int64_t *dims = dims_of(impl, rank, &gap);
    for (int64_t i = 0; i < rank; i++)
        if (s->dims[i] != dims[i] && s->dims[i] != BRAZE_FREE_SIZE) return 0;
    if (s->strided)
        for (int64_t i = 0; i < rank; i++)
            if (s->dims[rank + i] != dims[gap + i] && s->dims[rank + i] != BRAZE_FREE_SIZE) return 0;
    return braze_layout.requires_grad(impl) == (s->requires_grad != 0);
}

int64_t braze_tensor_int(PyObject *tensor, int what, Py_ssize_t dim, bool *ok) {
    const char *impl = braze_impl(tensor);
    int64_t rank = *(const int64_t *)(impl + braze_layout.rank), gap;
    const int64_t *dims = dims_of(impl, rank, &gap);
    if (what == 2) return *((const int64_t *)(impl + braze_layout.rank) + 11); /* after the rank and ten inline dims */
    if (dim < 0) dim += rank;
    *ok = *ok && dim >= 0 && dim < rank;
    return *ok ? dims[(what ? gap : 0) + dim] : 0;
}

/* ---- torch's state ---- */

static struct {
    bool known;
    bool (*grad)(void), (*inference)(void), (*autocast)(signed char), (*autocast_cache)(void);
    signed char (*autocast_dtype)(signed char), (*default_dtype)(void);
    void *(*context)(void);
    bool (*deterministic)(const void *), (*deterministic_warn)(const void *);
    int (*threads)(void);
    int64_t (*function_modes)(void), (*dispatch_modes)(void);
    int (*torch_function)(void);
} torch_state;

bool braze_state_read(TorchState *s) {
    memset(s, 0, sizeof *s);
    if (!torch_state.known) return false;
    void *context = torch_state.context();
    int64_t *v = s->values;
    v[0] = torch_state.grad();
    v[1] = torch_state.inference();
    for (int device = 0; device < 2; device++) { /* c10::DeviceType: 0 CPU, 1 CUDA */
        v[2 + device] = torch_state.autocast((signed char)device);
        v[4 + device] = torch_state.autocast_dtype((signed char)device);
    }
    v[6] = torch_state.autocast_cache();
    v[7] = torch_state.default_dtype();
    v[8] = torch_state.deterministic(context);
    v[9] = torch_state.deterministic_warn(context);
    v[10] = torch_state.threads();
    v[11] = torch_state.function_modes();
    v[12] = torch_state.dispatch_modes();
    v[13] = torch_state.torch_function();
    return true;
}

static void *symbol(void *const libraries[2], const char *name) {
    for (int i = 0; i < 2; i++) {
        void *found = libraries[i] ? dlsym(libraries[i], name) : NULL;
        if (found != NULL) return found;
    }
    return NULL;
}

/* bind_torch(path of libc10, path of libtorch_cpu) -> (layout function found, state functions found) */
static PyObject *m_bind_torch(PyObject *m, PyObject *args) {
    (void)m;
    const char *paths[2];
    void *libraries[2];
    if (!PyArg_ParseTuple(args, "ss", &paths[0], &paths[1])) return NULL;
    for (int i = 0; i < 2; i++) libraries[i] = dlopen(paths[i], RTLD_LAZY | RTLD_NOLOAD);
    const struct { void **to; const char *name; } wanted[] = {
        {(void **)&torch_state.grad, "_ZN3c108GradMode10is_enabledEv"},
        {(void **)&torch_state.inference, "_ZN3c1013InferenceMode10is_enabledEv"},
        {(void **)&torch_state.autocast, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"},
        {(void **)&torch_state.autocast_dtype, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"},
        {(void **)&torch_state.autocast_cache, "_ZN2at8autocast25is_autocast_cache_enabledEv"},
        {(void **)&torch_state.default_dtype, "_ZN3c1031get_default_dtype_as_scalartypeEv"},
        {(void **)&torch_state.context, "_ZN2at13globalContextEv"},
        {(void **)&torch_state.deterministic, "_ZNK2at7Context23deterministicAlgorithmsEv"},
        {(void **)&torch_state.deterministic_warn, "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv"},
        {(void **)&torch_state.threads, "_ZN2at15get_num_threadsEv"},
        {(void **)&torch_state.function_modes, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"},
        {(void **)&torch_state.dispatch_modes, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"},
        {(void **)&torch_state.torch_function, "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv"},
    };
    torch_state.known = true;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = symbol(libraries, wanted[i].name);
        if (*wanted[i].to == NULL) torch_state.known = false;
    }
    *(void **)&braze_layout.requires_grad = symbol(libraries, "_ZNK3c1010TensorImpl13requires_gradEv");
    return Py_BuildValue("OO", braze_layout.requires_grad ? Py_True : Py_False, torch_state.known ? Py_True : Py_False);
}

static PyObject *m_torch_state(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    TorchState s;
    if (!braze_state_read(&s)) Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)&s, sizeof s);
}

/* set_layout(cdata, rank, meta, keys): byte offsets; set_layout() forgets them */
static PyObject *m_set_layout(PyObject *m, PyObject *args) {
    (void)m;
    Py_ssize_t cdata = -1, rank = -1, meta = -1, keys = -1;
    if (!PyArg_ParseTuple(args, "|nnnn", &cdata, &rank, &meta, &keys)) return NULL;
    braze_layout.cdata = cdata;
    braze_layout.rank = rank;
    braze_layout.meta = meta;
    braze_layout.keys = keys;
    braze_layout.known = cdata > 0 && rank > 0 && meta > 0 && keys > 0 && braze_layout.requires_grad != NULL;
    return PyBool_FromLong(braze_layout.known);
}

/* set_autograd_layout(autograd, flag, grad_fn, vtable); set_autograd_layout() forgets them */
static PyObject *m_set_autograd_layout(PyObject *m, PyObject *args) {
    (void)m;
    Py_ssize_t autograd = -1, flag = -1, grad_fn = -1;
    unsigned long long vtable = 0;
    if (!PyArg_ParseTuple(args, "|nnnK", &autograd, &flag, &grad_fn, &vtable)) return NULL;
    braze_layout.autograd = autograd;
    braze_layout.flag = flag;
    braze_layout.grad_fn = grad_fn;
    braze_layout.vtable = vtable;
    braze_layout.autograd_known = autograd > 0 && flag > 0 && grad_fn > 0 && vtable != 0;
    return PyBool_FromLong(braze_layout.autograd_known);
}

static PyObject *m_tensor_meta(PyObject *m, PyObject *tensor) {
    (void)m;
    if (!braze_layout.known) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(*(uint64_t *)(braze_impl(tensor) + braze_layout.meta) & BRAZE_META_MASK);
}

/* set_storage_layout(storage, data): the offset of the storage in a tensor, of its first byte's address in a storage; 0, 0
   forgets them */
static PyObject *m_set_storage_layout(PyObject *m, PyObject *args) {
    (void)m;
    if (!PyArg_ParseTuple(args, "nn", &braze_layout.storage, &braze_layout.data)) return NULL;
    Py_RETURN_NONE;
}

/* may_share(values): False when no two tensors of a tuple have storages that start at one address; True when two have, or
   nobody knows */
static PyObject *m_may_share(PyObject *m, PyObject *values) {
    (void)m;
    if (!braze_layout.known || braze_layout.storage <= 0 || !PyTuple_Check(values)) Py_RETURN_TRUE;
    size_t n = (size_t)PyTuple_GET_SIZE(values), room = 16;
    while (room < 2 * n) room *= 2;
    const void *small[256], **table = room <= 256 ? small : PyMem_Malloc(room * sizeof *table);
    if (table == NULL) return PyErr_NoMemory();
    memset(table, 0, room * sizeof *table);
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) {
        PyObject *value = PyTuple_GET_ITEM(values, i);
        if (PyLong_Check(value) || PyFloat_Check(value) || value == Py_None) continue;
        if (!braze_plain_tensor(value)) found = true;
        const char *storage = found ? NULL : *(char **)(braze_impl(value) + braze_layout.storage);
        const void *data = storage == NULL ? NULL : *(void **)(storage + braze_layout.data);
        size_t at = ((uintptr_t)data >> 4) * 0x9E3779B97F4A7C15ULL >> 32;
        for (; data != NULL && !found; at++) {
            const void **slot = &table[at & (room - 1)];
            if (*slot == NULL) {
                *slot = data;
                break;
            }
            found = *slot == data;
        }
    }
    if (table != small) PyMem_Free(table);
    return PyBool_FromLong(found);
}

static PyMethodDef functions[] = {
    {"set_storage_layout", m_set_storage_layout, METH_VARARGS, "set_storage_layout(storage, data): where tensors keep their storage."},
    {"may_share", m_may_share, METH_O, "Whether two tensors of a tuple may have one storage."},
    {"bind_torch", m_bind_torch, METH_VARARGS, "bind_torch(libc10, libtorch_cpu): look up torch's functions by symbol."},
    {"torch_state", m_torch_state, METH_NOARGS, "The state that guards compare, as bytes, or None if it is not bound."},
    {"set_layout", m_set_layout, METH_VARARGS, "set_layout(cdata, rank, meta, keys): where tensors keep their metadata."},
    {"set_autograd_layout", m_set_autograd_layout, METH_VARARGS, "set_autograd_layout(autograd, flag, grad_fn, vtable)."},
    {"tensor_meta", m_tensor_meta, METH_O, "The dtype and device of a tensor as one number, or None. Takes tensors only."},
    {NULL, NULL, 0, NULL},
};

int braze_init_tensor(PyObject *m) { return PyModule_AddFunctions(m, functions); }
