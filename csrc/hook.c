#include "braze.h"
int braze_init_hook(PyObject *m) { (void)m; return 0; }
