/* The guard of LMDB's pages. See `guard.c`. */

#ifndef CKPTFS_GUARD_H
#define CKPTFS_GUARD_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC visibility push(hidden)

/* For Python: `store/snapshot.py` says what they are for. */
#define GUARD_METHODS \
    {"guard", guard_guard, METH_VARARGS, guard_guard_doc}, \
    {"committed", guard_committed, METH_O, "A commit was made into the data file at this path."}, \
    {"require", (PyCFunction)(void (*)(void))guard_require, METH_FASTCALL, guard_require_doc}, \
    {"require_all", (PyCFunction)(void (*)(void))guard_require_all, METH_FASTCALL, \
     guard_require_all_doc}, \
    {"require_some", (PyCFunction)(void (*)(void))guard_require_some, METH_FASTCALL, \
     guard_require_some_doc}, \
    {"require_before", (PyCFunction)(void (*)(void))guard_require_before, METH_FASTCALL, \
     guard_require_before_doc}, \
    {"free_is_whole", guard_free_is_whole, METH_NOARGS, \
     "Whether the lists of free pages are what was committed."}, \
    {"release", guard_release, METH_NOARGS, "Let go of the pages that were looked at."}

extern const char guard_guard_doc[], guard_require_doc[], guard_require_all_doc[];
extern const char guard_require_some_doc[], guard_require_before_doc[];
PyObject *guard_guard(PyObject *module, PyObject *args);
PyObject *guard_committed(PyObject *module, PyObject *path);
PyObject *guard_require(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *guard_require_some(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *guard_require_before(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *guard_require_all(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *guard_free_is_whole(PyObject *module, PyObject *none);
PyObject *guard_release(PyObject *module, PyObject *none);

#pragma GCC visibility pop

#endif
