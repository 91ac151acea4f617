#include "braze.h"

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "The frame hook and the guard evaluator.", -1, NULL};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__C(void) {
    PyObject *m = PyModule_Create(&definition);
    if (m == NULL) return NULL;
    if (braze_init_hook(m) < 0 || braze_init_guards(m) < 0 || braze_init_tensor(m) < 0) {
        Py_DECREF(m);
        return NULL;
    }
    return m;
}
