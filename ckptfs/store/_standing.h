/* What stands: the tree as the last commit left it, read without the interpreter. See `_standing.c`. */

#ifndef CKPTFS_STANDING_H
#define CKPTFS_STANDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* What a record says of an inode, as far as stat shows it. */
typedef struct {
    uint64_t ino;
    uint32_t mode, nlink, uid, gid;
    uint64_t rdev, size, allocated;
    int64_t atime_ns, mtime_ns, ctime_ns;
} Standing;

/* UNSURE: the store has to be asked. */
typedef enum { UNSURE, ABSENT, FOUND } Look;

#pragma GCC visibility push(hidden)

/* What stands under a name in a directory. */
Look standing_look_up(uint64_t parent, const char *name, Standing *found);

/* An inode by its number; never ABSENT. */
Look standing_get(uint64_t ino, Standing *found);

/* What is done with each entry of a directory: its name, its number, and what it leads to, unless that
 * is not wanted. Returns 0 to end it. */
typedef int Each(void *context, const char *name, size_t size, uint64_t ino, const Standing *inode);

/* All entries of a directory, by name. ``is_familiar`` tells of which the number is enough. Returns 0
 * if not all were given. */
int standing_list(uint64_t directory, int (*is_familiar)(uint64_t), Each *each, void *context);

/* The number of the directory above one. Returns 0 if that is not known. */
int standing_parent(uint64_t directory, uint64_t *above);

/* Told of an inode that is changed from here on, or in which names are. */
void standing_touch(uint64_t ino);

/* For Python: `store/standing.py` says what they are for. */
#define STANDING_METHODS \
    {"stand", standing_stand, METH_VARARGS, standing_stand_doc}, \
    {"fall", standing_fall, METH_NOARGS, "Nothing is known to stand until the next `stand`."}, \
    {"leave", standing_leave, METH_NOARGS, "The same, and the file is another from here on."}, \
    {"touch", standing_touch_entity, METH_O, "Told of a key that begins with what changes."}, \
    {"look_up", standing_look, METH_VARARGS, standing_look_doc}, \
    {"names_in", standing_names, METH_O, standing_names_doc}

extern const char standing_stand_doc[], standing_look_doc[], standing_names_doc[];
PyObject *standing_stand(PyObject *module, PyObject *args);
PyObject *standing_fall(PyObject *module, PyObject *none);
PyObject *standing_leave(PyObject *module, PyObject *none);
PyObject *standing_touch_entity(PyObject *module, PyObject *entity);
PyObject *standing_look(PyObject *module, PyObject *args);
PyObject *standing_names(PyObject *module, PyObject *directory);

#pragma GCC visibility pop

#endif
