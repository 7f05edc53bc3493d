/* The gate: what may be answered while the lower directory is still being compared with the store
 * (`sync/scan_behind.py`).
 *
 *   closed    a directory is compared before anything in it is shown; a change waits
 *   open      everything is compared: nothing waits, and nothing is asked
 *
 * It is closed before the first request, if at all, and opens once. A change that waits is a copy of
 * its request: the kernel takes replies in any order, and the caller waits for its own. When the
 * gate opens, these are the next requests, in the order in which they came.
 */

#include "server.h"

struct Held {
    struct Held *next;
    size_t size;
    char bytes[];
};

/* Whether a request may change something that a checkpoint has, or take one. What goes through a
 * connection to the daemon does not: a verb waits there by itself. */
static int is_change(const struct fuse_in_header *head)
{
    switch (head->opcode) {
    case FUSE_SETATTR:
    case FUSE_SYMLINK:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2:
    case FUSE_LINK:
    case FUSE_WRITE:
    case FUSE_SETXATTR:
    case FUSE_REMOVEXATTR:
    case FUSE_CREATE:
    case FUSE_TMPFILE:
    case FUSE_FALLOCATE:
    case FUSE_COPY_FILE_RANGE:
        return !is_connection(head->nodeid);
    default:
        return 0;
    }
}

static int shows_names(const struct fuse_in_header *head)
{
    return head->opcode == FUSE_LOOKUP || head->opcode == FUSE_READDIR ||
           head->opcode == FUSE_READDIRPLUS;
}

static Outcome hold(const Request *request)
{
    Gate *gate = &request->server->gate;
    size_t size = sizeof *request->head + request->size;
    Held *held = malloc(sizeof *held + size);
    if (!held)
        return reply_error(request, ENOMEM);
    held->next = NULL;
    held->size = size;
    memcpy(held->bytes, request->head, size);
    *(gate->first ? &gate->last->next : &gate->first) = held;
    gate->last = held;
    return REPLIED;
}

Outcome gate_handle(const Request *request)
{
    Server *server = request->server;
    if (!server->gate.is_closed)
        return PASSED;
    if (is_change(request->head))
        return hold(request);
    if (!shows_names(request->head) || !has_number(server->calls.uncompared, request->head->nodeid))
        return PASSED;
    PyObject *result = CALL(server, compare, NUMBER(request->head->nodeid));
    if (!result)
        return reply_error(request, errno_of_failure(server));
    Py_DECREF(result);
    return PASSED;
}

int gate_compare_all(Server *server)
{
    if (!server->gate.is_closed)
        return 1;
    server->gate.is_closed = 0;
    PyObject *result = CALL(server, compare_all);
    Py_XDECREF(result);
    return result != NULL;
}

size_t gate_take(Server *server)
{
    Gate *gate = &server->gate;
    Held *held = gate->first;
    if (!held || gate->is_closed)
        return 0;
    size_t size = held->size;
    memcpy(server->buffer, held->bytes, size);
    gate->first = held->next;
    free(held);
    return size;
}

void gate_free(Gate *gate)
{
    for (Held *held; (held = gate->first);) {
        gate->first = held->next;
        free(held);
    }
}

PyObject *gate_close_method(PyObject *self, PyObject *none)
{
    ((Server *)self)->gate.is_closed = 1;
    Py_RETURN_NONE;
}

PyObject *gate_open_method(PyObject *self, PyObject *none)
{
    ((Server *)self)->gate.is_closed = 0;
    Py_RETURN_NONE;
}

PyObject *gate_holds_method(PyObject *self, PyObject *none)
{
    return PyBool_FromLong(((Server *)self)->gate.first != NULL);
}
