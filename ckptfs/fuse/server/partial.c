/* Python's partial-block buffer (`fs/buffers.py`), as far as single writes are looked at there: a
 * database that is loaded writes hundreds of thousands of pages into blocks that wait. */

#include "server.h"

/* Attributes of a `PartialBlock`. */
static PyObject *start_name, *stop_name, *stopped_at_name, *unlogged_name, *data_name;

int partial_ready(void)
{
    start_name = PyUnicode_InternFromString("start");
    stop_name = PyUnicode_InternFromString("stop");
    stopped_at_name = PyUnicode_InternFromString("stopped_at");
    unlogged_name = PyUnicode_InternFromString("unlogged");
    data_name = PyUnicode_InternFromString("data");
    return start_name && stop_name && stopped_at_name && unlogged_name && data_name;
}

int partial_has(const Server *server, uint64_t node, uint64_t number)
{
    PyObject *ino = NUMBER(node), *key = NUMBER(number);
    PyObject *blocks = ino ? PyDict_GetItemWithError(server->calls.partial, ino) : NULL;
    int is = blocks && key && PyDict_Check(blocks) && PyDict_Contains(blocks, key) == 1;
    Py_XDECREF(ino);
    Py_XDECREF(key);
    PyErr_Clear();
    return is;
}

/* An attribute that is a number, none of which is negative; -1 on an error of Python's. */
static Py_ssize_t number_of(PyObject *block, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(block, name);
    Py_ssize_t number = found ? PyLong_AsSsize_t(found) : -1;
    Py_XDECREF(found);
    return number;
}

/* Sets an attribute, and takes the value over. */
static int set(PyObject *block, PyObject *name, PyObject *value)
{
    int failed = !value || PyObject_SetAttr(block, name, value);
    Py_XDECREF(value);
    return failed;
}

/* Makes the range that the journal does not have cover a piece. */
static int note_unlogged(PyObject *block, Py_ssize_t start, Py_ssize_t stop)
{
    Py_ssize_t first, last;
    PyObject *range = PyObject_GetAttr(block, unlogged_name);
    int failed = !range || !PyArg_ParseTuple(range, "nn", &first, &last);
    Py_XDECREF(range);
    if (failed || (start >= first && stop <= last))
        return failed;
    return set(block, unlogged_name,
               Py_BuildValue("nn", Py_MIN(first, start), Py_MAX(last, stop)));
}

/* `PartialBlock.overwrite`; -1 on an error of Python's. */
static int overwrite_block(PyObject *block, Py_ssize_t start, const Py_buffer *piece)
{
    Py_ssize_t first = number_of(block, start_name), last = number_of(block, stop_name);
    Py_ssize_t stopped = number_of(block, stopped_at_name), stop = start + piece->len;
    PyObject *data = PyObject_GetAttr(block, data_name);
    int outcome = PyErr_Occurred() ? -1 : 0;
    if (!outcome && start >= first && stop <= last && !(stop == BLOCK_SIZE && start == stopped) &&
        PyByteArray_Check(data) && stop <= PyByteArray_GET_SIZE(data)) {
        memcpy(PyByteArray_AS_STRING(data) + start, piece->buf, (size_t)piece->len);
        int failed = note_unlogged(block, start, stop) ||
                     set(block, stopped_at_name, PyLong_FromSsize_t(stop));
        outcome = failed ? -1 : 1;
    }
    Py_XDECREF(data);
    return outcome;
}

static int overwrite_piece(PyObject *blocks, PyObject *piece, PyObject *unlogged)
{
    unsigned long long offset;
    Py_buffer bytes;
    if (!PyTuple_Check(piece)) {
        PyErr_SetString(PyExc_TypeError, "overwrite: a piece is an offset and bytes");
        return -1;
    }
    if (!PyArg_ParseTuple(piece, "Ky*", &offset, &bytes))
        return -1;
    PyObject *number = NUMBER(offset / BLOCK_SIZE);
    /* Kept, whatever its attributes do when they are asked for. */
    PyObject *block = Py_XNewRef(number ? PyDict_GetItemWithError(blocks, number) : NULL);
    int outcome = PyErr_Occurred() ? -1 : 0;
    if (block)
        outcome = overwrite_block(block, (Py_ssize_t)(offset % BLOCK_SIZE), &bytes);
    if (outcome > 0 && PyDict_SetItem(unlogged, block, Py_None))
        outcome = -1;
    Py_XDECREF(block);
    Py_XDECREF(number);
    PyBuffer_Release(&bytes);
    return outcome;
}

PyObject *overwrite(PyObject *module, PyObject *args)
{
    PyObject *blocks, *pieces, *unlogged;
    if (!PyArg_ParseTuple(args, "O!OO!", &PyDict_Type, &blocks, &pieces, &PyDict_Type, &unlogged))
        return NULL;
    /* As they are now, whatever becomes of a list meanwhile. */
    PyObject *all = PySequence_Tuple(pieces);
    Py_ssize_t count = 0, size = all ? PyTuple_GET_SIZE(all) : 0;
    int outcome = all ? 1 : -1;
    while (outcome > 0 && count < size) {
        outcome = overwrite_piece(blocks, PyTuple_GET_ITEM(all, count), unlogged);
        count += outcome > 0;
    }
    Py_XDECREF(all);
    return outcome < 0 ? NULL : PyLong_FromSsize_t(count);
}
