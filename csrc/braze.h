/* Shared declarations of the extension braze._C.

   hook.c     the frame evaluation hook (PEP 523), sessions, and the compiled entries of each code object
   program.c  the guard program: its type, its construction from Python, its run
   steps.c    one instruction of a guard program: loads and checks
   stamp.c    the fast path: memory words that prove a whole object tree unchanged
   tensor.c   tensor metadata and torch's global state, read natively
*/
#ifndef BRAZE_H
#define BRAZE_H
#define PY_SSIZE_T_CLEAN
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef Py_GIL_DISABLED
#error "braze does not support free-threaded builds of CPython"
#endif

int braze_init_hook(PyObject *module);
int braze_init_guards(PyObject *module);
int braze_init_tensor(PyObject *module);

/* ---- guard programs (program.c) ---- */

extern PyTypeObject BrazeProgram_Type;

/* Run a guard program on a frame: 1 passed, 0 failed. Never leaves an exception set. On a pass *inputs is a new tuple of
   the values that the program reads. */
int braze_program_run(PyObject *program, PyFunctionObject *function, PyObject *const *args, PyObject **inputs);

/* ---- tensors and torch's state (tensor.c) ---- */

#define BRAZE_FREE_SIZE INT64_MIN /* "any" in the sizes and strides of a TensorSpec */
#define BRAZE_META_MASK 0xFFFFFFFFFFULL /* dtype (2 bytes), device type, device index, device present */

typedef struct {
    PyTypeObject *cls;    /* strong */
    PyObject *spec;       /* strong: the Python TensorSpec, for what is not read natively */
    uint64_t meta, keys;  /* dtype and device; dispatch keys */
    int64_t rank;
    int requires_grad, leaf; /* leaf: -1 is "any" */
    bool native;          /* false: ask spec.mismatch */
    bool strided;         /* strides are checked */
    int64_t *dims;        /* rank sizes, then rank strides */
} TensorSpec;

/* Byte offsets of what guards read: cdata in the Python object, rank, meta, keys and the pointers to the storage (0:
   unknown) and to the autograd metadata in the TensorImpl; the pointer to its first byte in a storage; in that of a plain tensor (by its vtable), the word with the requires_grad flag, and grad_fn. */
typedef struct {
    bool known, autograd_known;
    Py_ssize_t cdata, rank, meta, keys, storage, data, autograd, flag, grad_fn;
    uint64_t vtable;
    bool (*requires_grad)(const void *impl);
} TensorLayout;
extern TensorLayout braze_layout;

static inline char *braze_impl(PyObject *tensor) { return *(char **)((char *)tensor + braze_layout.cdata); }

bool braze_plain_tensor(PyObject *value); /* a torch.Tensor or a Parameter, of no other class */
TensorSpec *braze_spec_new(PyObject *tuple); /* NULL with an exception */
void braze_spec_free(TensorSpec *spec);
int braze_spec_check(const TensorSpec *spec, PyObject *value); /* 1, 0, or -1 with an exception */
int64_t braze_tensor_int(PyObject *tensor, int what, Py_ssize_t dim, bool *ok); /* what: 0 size, 1 stride, 2 offset */

typedef struct { int64_t values[16]; } TorchState;
bool braze_state_read(TorchState *state); /* false: torch's state functions are not bound */

/* ---- the hook (hook.c) ---- */

/* Turn the hook off for this thread, and back on; used around Python code that the hook must not see. */
void *braze_pause(void);
void braze_resume(void *paused);

#endif
