/* What stands: the tree as the last commit left it, read without the interpreter. See `snapshot.c`. */

#ifndef CKPTFS_SNAPSHOT_H
#define CKPTFS_SNAPSHOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* What a record says of an inode, as far as stat shows it. */
typedef struct {
    uint64_t ino;
    uint32_t mode, nlink, uid, gid;
    uint64_t rdev, size, allocated;
    int64_t atime_ns, mtime_ns, ctime_ns;
} InodeRecord;

/* UNSURE: the store has to be asked. */
typedef enum { UNSURE, ABSENT, FOUND } Look;

#pragma GCC visibility push(hidden)

/* What stands under a name in a directory. */
Look snapshot_lookup(uint64_t parent, const char *name, InodeRecord *found);

/* An inode by its number; never ABSENT. */
Look snapshot_getattr(uint64_t ino, InodeRecord *found);

/* What is done with each entry of a directory: its name, its number, and what it leads to, unless that
 * is not wanted. Returns 0 to end it. */
typedef int Each(void *context, const char *name, size_t size, uint64_t ino, const InodeRecord *inode);

/* All entries of a directory, by name. ``is_familiar`` tells of which the number is enough. Returns 0
 * if not all were given. */
int snapshot_readdir(uint64_t directory, int (*is_familiar)(uint64_t), Each *each, void *context);

/* The number of the directory above one. Returns 0 if that is not known. */
int snapshot_parent(uint64_t directory, uint64_t *above);

/* Told of an inode that is changed from here on, or in which names are. */
void snapshot_touch(uint64_t ino);

/* For Python: `store/snapshot.py` says what they are for. */
#define SNAPSHOT_METHODS \
    {"refresh", snapshot_refresh, METH_VARARGS, snapshot_refresh_doc}, \
    {"invalidate", snapshot_invalidate, METH_NOARGS, "Nothing is known to stand until the next `refresh`."}, \
    {"detach", snapshot_detach, METH_NOARGS, "The same, and the file is another from here on."}, \
    {"touch", snapshot_touch_entity, METH_O, "Told of a key that begins with what changes."}, \
    {"look_up", snapshot_look, METH_VARARGS, snapshot_look_doc}, \
    {"names_in", snapshot_names, METH_O, snapshot_names_doc}

extern const char snapshot_refresh_doc[], snapshot_look_doc[], snapshot_names_doc[];
PyObject *snapshot_refresh(PyObject *module, PyObject *args);
PyObject *snapshot_invalidate(PyObject *module, PyObject *none);
PyObject *snapshot_detach(PyObject *module, PyObject *none);
PyObject *snapshot_touch_entity(PyObject *module, PyObject *entity);
PyObject *snapshot_look(PyObject *module, PyObject *args);
PyObject *snapshot_names(PyObject *module, PyObject *directory);

#pragma GCC visibility pop

#endif
