/* The guard of LMDB's pages: before a record is read or changed, the pages on LMDB's way to it must
 * be what was committed. What that was is known by `pages.c`; who asks is `store/tables.py`. */

#include "server.h"

#include <limits.h>

/* -- what is about to be read or changed ------------------------------------------------------- */

/* Whether a key lies behind all that begin with a prefix. */
static int is_behind(const Node *node, Bytes prefix)
{
    size_t least = node->key_size < prefix.size ? node->key_size : prefix.size;
    return memcmp(node->data, prefix.at, least) > 0;
}

/* Leaves that were looked at: the last one, the one before it, and how many may be. */
typedef struct {
    const Page *last, *before;
    int left;
} Leaves;

/* Whether all pages are whole on which LMDB would look for a key, and for what follows it and
 * begins with a prefix. */
static int is_whole_from(Pages *pages, const Tree *tree, Bytes key, Bytes prefix, Leaves *leaves)
{
    Way way;
    int sure = 1;
    if (is_empty(tree))
        return 1;
    if (!pages_names_are_whole(pages) || !find_way(&way, pages, tree, key))
        return 0;
    while (leaves->left-- && node_on(&way, &sure)) {
        leaves->before = leaves->last;
        leaves->last = way.pages[way.depth - 1];
        const Node *last = node_at(leaves->last, count_of(leaves->last) - 1);
        if (!last || (compare(last, key) >= 0 && is_behind(last, prefix))) {
            leaves->left = 0;
            return last != NULL;
        }
        way.indexes[way.depth - 1] = count_of(leaves->last);
        way.steps = 0; /* pages that are what was committed lead to an end, however many they are */
    }
    return sure;
}

/* The same, without a search for what is in the leaf that was found last. */
static int is_whole_at(Pages *pages, Table *table, Bytes key, Bytes prefix)
{
    uint32_t tick = pages_tick();
    if (table->leaf && table->leaf_tick == tick) {
        const Node *low = node_at(table->leaf, 0);
        const Node *high = node_at(table->leaf, count_of(table->leaf) - 1);
        if (low && high && compare(low, key) <= 0 && compare(high, key) >= 0 &&
            is_behind(high, prefix))
            return 1;
    }
    Leaves leaves = {.left = INT_MAX};
    int whole = is_whole_from(pages, &table->tree, key, prefix, &leaves);
    table->leaf = whole ? leaves.last : NULL;
    table->leaf_tick = tick;
    return whole;
}

/* The same for the leaf before that of a key. */
static int is_whole_before(Pages *pages, const Tree *tree, Bytes key)
{
    Way way;
    if (is_empty(tree))
        return 1;
    if (!find_way(&way, pages, tree, key))
        return 0;
    do
        if (!--way.depth)
            return 1; /* it is the first one */
    while (!way.indexes[way.depth - 1]);
    const Node *node = node_at(way.pages[way.depth - 1], way.indexes[way.depth - 1] - 1);
    while (node && way.depth < way.levels) {
        const Page *page = page_at(pages, child_of(node), ++way.depth == way.levels);
        node = page ? node_at(page, count_of(page) - 1) : NULL;
    }
    return node != NULL;
}

/* -- for Python -------------------------------------------------------------------------------- */

static Pages *pages_of(PyObject *self)
{
    return &((Server *)self)->snapshot.pages;
}

const char guard_doc[] = "guard(names, error, damaged)\n\n"
                         "From here on `require` knows the tables of these names by their places, "
                         "and raises ``error``.\n"
                         "Before it does so of what was to be changed it calls ``damaged``.";

PyObject *guard_method(PyObject *self, PyObject *args)
{
    Snapshot *snapshot = &((Server *)self)->snapshot;
    PyObject *names, *error, *call;
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &names, &error, &call))
        return NULL;
    pages_forget_tables(&snapshot->pages);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        const char *name = PyBytes_AsString(PyTuple_GET_ITEM(names, i));
        if (!name)
            return NULL;
        if (!pages_add_table(&snapshot->pages, name)) {
            PyErr_SetString(PyExc_ValueError, "guard: such a table was not expected");
            return NULL;
        }
    }
    Py_XSETREF(snapshot->damaged, Py_NewRef(error));
    Py_XSETREF(snapshot->call_damaged, Py_NewRef(call));
    Py_RETURN_NONE;
}

PyObject *guard_committed_method(PyObject *self, PyObject *path)
{
    const char *name = PyBytes_AsString(path);
    if (name && ((Server *)self)->is_closed)
        Py_RETURN_TRUE;
    return name ? PyBool_FromLong(pages_follow_last(pages_of(self), name) >= 0) : NULL;
}

static const char words[] =
    "a page of the data file is damaged; unmount, and see: ckptfs check --deep";

static PyObject *raise_damaged(PyObject *self, int is_write)
{
    const Snapshot *snapshot = &((Server *)self)->snapshot;
    PyObject *result = is_write ? PyObject_CallNoArgs(snapshot->call_damaged) : Py_NewRef(Py_None);
    if (!result)
        return NULL;
    Py_DECREF(result);
    PyObject *error = PyObject_CallFunction(snapshot->damaged, "s", words);
    if (error)
        PyErr_SetObject(snapshot->damaged, error);
    Py_XDECREF(error);
    return NULL;
}

static int take_bytes(PyObject *object, Bytes *bytes)
{
    if (!PyBytes_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "require: a key was expected");
        return 0;
    }
    *bytes =
        (Bytes){(const unsigned char *)PyBytes_AS_STRING(object), (size_t)PyBytes_GET_SIZE(object)};
    return 1;
}

/* NULL with an exception set if there is no such table. */
static Table *table_of(PyObject *self, PyObject *number)
{
    Table *table = pages_table(pages_of(self), PyLong_AsSize_t(number));
    if (!table && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "require: there is no such table");
    return PyErr_Occurred() ? NULL : table;
}

const char guard_require_doc[] = "require(table, key, prefix, is_write)\n\n"
                                 "Raise an error unless the pages are whole on which LMDB looks "
                                 "for a key, and for those behind it\n"
                                 "that begin with the prefix.";

PyObject *guard_require_method(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Pages *pages = pages_of(self);
    Bytes key, prefix;
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError, "require: four arguments were expected");
        return NULL;
    }
    Table *table = table_of(self, args[0]);
    if (!table || !take_bytes(args[1], &key) || !take_bytes(args[2], &prefix))
        return NULL;
    if (!is_whole_at(pages, table, key, prefix))
        return raise_damaged(self, args[3] == Py_True);
    Py_RETURN_NONE;
}

/* As many leaves are looked at before a walk goes on. */
#define AHEAD 32

const char guard_require_some_doc[] = "require_some(table, key, prefix)\n\n"
                                      "The same for a walk, which asks again once it comes to the "
                                      "key that is returned. None: that was\n"
                                      "all.";

PyObject *guard_require_some_method(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Pages *pages = pages_of(self);
    Bytes key, prefix;
    Leaves leaves = {.left = AHEAD};
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "require_some: three arguments were expected");
        return NULL;
    }
    const Table *table = table_of(self, args[0]);
    if (!table || !take_bytes(args[1], &key) || !take_bytes(args[2], &prefix))
        return NULL;
    if (!is_whole_from(pages, &table->tree, key, prefix, &leaves))
        return raise_damaged(self, 0);
    if (leaves.left >= 0 || !leaves.before)
        Py_RETURN_NONE;
    /* Not that of the last leaf: if it was deleted since, a walk would be behind it without a stop.
     */
    const Node *node = node_at(leaves.before, count_of(leaves.before) - 1);
    return PyBytes_FromStringAndSize((const char *)node->data, node->key_size);
}

const char guard_require_before_doc[] = "require_before(table, key)\n\n"
                                        "The same for a key, and for the one before it.";

PyObject *guard_require_before_method(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Pages *pages = pages_of(self);
    Bytes key;
    Leaves leaves = {.left = INT_MAX};
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "require_before: two arguments were expected");
        return NULL;
    }
    const Table *table = table_of(self, args[0]);
    if (!table || !take_bytes(args[1], &key))
        return NULL;
    if (!is_whole_from(pages, &table->tree, key, key, &leaves) ||
        !is_whole_before(pages, &table->tree, key))
        return raise_damaged(self, 0);
    Py_RETURN_NONE;
}

const char guard_require_all_doc[] =
    "require_all(table, records)\n\n"
    "The same for all keys of a list of (key, value) that are to be changed.";

PyObject *guard_require_all_method(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Pages *pages = pages_of(self);
    if (count != 2 || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "require_all: a table and a list were expected");
        return NULL;
    }
    Table *table = table_of(self, args[0]);
    for (Py_ssize_t i = 0; table && i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *item = PyList_GET_ITEM(args[1], i);
        Bytes key;
        if (!PyTuple_Check(item) || !PyTuple_GET_SIZE(item)) {
            PyErr_SetString(PyExc_TypeError, "require_all: records were expected");
            return NULL;
        }
        if (!take_bytes(PyTuple_GET_ITEM(item, 0), &key))
            return NULL;
        if (!is_whole_at(pages, table, key, key))
            return raise_damaged(self, 1);
    }
    return table ? Py_NewRef(Py_None) : NULL;
}

PyObject *guard_free_is_whole_method(PyObject *self, PyObject *none)
{
    return PyBool_FromLong(pages_free_are_whole(pages_of(self)));
}

const char guard_prepare_doc[] =
    "prepare(path, budget_ns)\n\n"
    "Seal pages of the file that is to take the data file's place, for so long. Whether all are\n"
    "sealed; then again after each commit into it. Without a path: it is not to any more.";

PyObject *guard_prepare_method(PyObject *self, PyObject *args)
{
    Snapshot *snapshot = &((Server *)self)->snapshot;
    PyObject *name;
    unsigned long long budget_ns;
    if (!PyArg_ParseTuple(args, "OK", &name, &budget_ns))
        return NULL;
    const char *path = name == Py_None ? NULL : PyBytes_AsString(name);
    if (PyErr_Occurred())
        return NULL;
    if (!path)
        pages_detach(&snapshot->prepared);
    /* Without a data file that is followed there is nothing to go on with. */
    if (!path || !snapshot->pages.map)
        Py_RETURN_TRUE;
    int done = pages_prepare(&snapshot->prepared, &snapshot->pages, path, budget_ns);
    return done < 0 ? raise_damaged(self, 0) : PyBool_FromLong(done);
}

const char guard_exchange_doc[] =
    "exchange(path)\n\n"
    "The file that was prepared is the data file from here on, at this path. Nothing is known of "
    "the\nhead until a refresh.";

PyObject *guard_exchange_method(PyObject *self, PyObject *path)
{
    Snapshot *snapshot = &((Server *)self)->snapshot;
    const char *name = PyBytes_AsString(path);
    if (!name)
        return NULL;
    Py_CLEAR(snapshot->seen);
    pages_adopt(&snapshot->pages, &snapshot->prepared, name);
    Py_RETURN_NONE;
}

PyObject *guard_release_method(PyObject *self, PyObject *none)
{
    pages_release(pages_of(self));
    Py_RETURN_NONE;
}
