/* Pages of LMDB's last commit, read from its file with doubt. See `_pages.c`.
 *
 * Layouts are those of LMDB 0.9 (as `store/pages.py` has them). */

#ifndef CKPTFS_PAGES_H
#define CKPTFS_PAGES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PAGE 4096
#define BRANCH 1
#define LEAF 2
#define BIG_DATA 1
#define NO_PAGE UINT64_MAX
#define DEPTH_MAX 32

typedef struct {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
} Tree;

typedef struct {
    uint64_t number;
    uint16_t pad, flags, lower, upper;
    uint16_t places[];
} Page;

typedef struct {
    uint16_t low, high, flags, key_size;
    unsigned char data[];
} Node;

typedef struct {
    const unsigned char *at;
    size_t size;
} Bytes;

static inline unsigned count_of(const Page *page)
{
    return (page->lower - sizeof *page) / 2;
}

static inline int is_empty(const Tree *tree)
{
    return tree->root == NO_PAGE;
}

#pragma GCC visibility push(hidden)

/* A way through a tree to one of its nodes. */
typedef struct {
    int levels; /* of the tree */
    const Page *pages[DEPTH_MAX];
    unsigned indexes[DEPTH_MAX];
    int depth;
    int steps;
} Way;

/* Finds the way to where a key would be in a tree. Returns 0 if that cannot be. */
int find_way(Way *way, const Tree *tree, Bytes key);

/* The node that a way leads to; at the end of a leaf that of the next. NULL at the end of the tree, or
 * with ``sure`` cleared where the tree makes no sense, or a page is not what was committed. */
const Node *node_on(Way *way, int *sure);

/* The bytes of a record that stand in its node. Returns 0 if they do not. */
int record_of(const Page *page, const Node *node, Bytes *record);

/* Goes by the last commit of the file at a path. Returns 0 if it cannot be read. */
int pages_follow(const char *path);

/* The tree of a table at that commit. Returns 0 if there is none. */
int pages_tree(const char *name, Tree *tree);

/* The file is another from here on. */
void pages_leave(void);

/* For Python: `store/standing.py` says what they are for. */
#define PAGES_METHODS \
    {"guard", pages_guard, METH_VARARGS, pages_guard_doc}, \
    {"committed", pages_committed, METH_O, "A commit was made into the data file at this path."}, \
    {"require", (PyCFunction)(void (*)(void))pages_require, METH_FASTCALL, pages_require_doc}, \
    {"require_all", (PyCFunction)(void (*)(void))pages_require_all, METH_FASTCALL, \
     pages_require_all_doc}, \
    {"require_some", (PyCFunction)(void (*)(void))pages_require_some, METH_FASTCALL, \
     pages_require_some_doc}, \
    {"require_before", (PyCFunction)(void (*)(void))pages_require_before, METH_FASTCALL, \
     pages_require_before_doc}, \
    {"free_is_whole", pages_free_is_whole, METH_NOARGS, \
     "Whether the lists of free pages are what was committed."}, \
    {"release", pages_release, METH_NOARGS, "Let go of the pages that were looked at."}

extern const char pages_guard_doc[], pages_require_doc[], pages_require_all_doc[];
extern const char pages_require_some_doc[], pages_require_before_doc[];
PyObject *pages_guard(PyObject *module, PyObject *args);
PyObject *pages_committed(PyObject *module, PyObject *path);
PyObject *pages_require(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pages_require_some(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pages_require_before(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pages_require_all(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *pages_free_is_whole(PyObject *module, PyObject *none);
PyObject *pages_release(PyObject *module, PyObject *none);

#pragma GCC visibility pop

#endif
