#include "braze.h"
int braze_init_guards(PyObject *m) { (void)m; return 0; }
