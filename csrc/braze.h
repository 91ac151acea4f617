/* Shared declarations of the extension braze._C: hook.c (frame evaluation hook), guards.c (guard evaluator). */
#ifndef BRAZE_H
#define BRAZE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
int braze_init_hook(PyObject *module);
int braze_init_guards(PyObject *module);
#endif
