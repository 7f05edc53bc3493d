/* Loops over very many entries. See `loops.c`. */

#ifndef CKPTFS_LOOPS_H
#define CKPTFS_LOOPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#pragma GCC visibility push(hidden)

PyObject *pass_unchanged(PyObject *module, PyObject *args);
PyObject *read_small(PyObject *module, PyObject *args);
PyObject *sound_ends(PyObject *module, PyObject *args);
PyObject *sound_leaves(PyObject *module, PyObject *args);

#pragma GCC visibility pop

#define LOOP_FUNCTIONS                                                                             \
    {"pass_unchanged", pass_unchanged, METH_VARARGS,                                               \
     "pass_unchanged(directory, known, version) -> (count, names)\n\n"                             \
     "Take the entries of an open directory out of ``known`` whose record there begins with their\n" \
     "signature; return how many these are, and the names of the others."},                        \
    {"read_small", read_small, METH_VARARGS,                                                       \
     "read_small(directory, name, limit) -> (attributes, content, time)\n\n"                       \
     "A regular file up to that long, without holes, other names and extended attributes, and\n"   \
     "when it was opened; None of others."},                                                       \
    {"sound_ends", sound_ends, METH_VARARGS,                                                       \
     "sound_ends(page, ordered, end) -> (count, first, last, ends)\n\n"                            \
     "The keys of a leaf that has nothing wrong and no large records: how many, the first, the\n"  \
     "last, and the last ``end`` bytes of each, equal ones in a row once; None of others."},        \
    {"sound_leaves", sound_leaves, METH_VARARGS,                                                   \
     "sound_leaves(file, numbers, borders, end) -> (count, ends)\n\n"                              \
     "The same of several leaves of a mapped file, each between two of the borders; None if one\n"  \
     "of them is another."}

#endif
