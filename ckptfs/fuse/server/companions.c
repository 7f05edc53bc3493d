/* Other mounts that one loop serves: the *companions* of a server.
 *
 * A companion is a server like any other, with tables, buffers and a lease of its own, but no
 * libfuse behind it: it has the FUSE descriptor itself, and what has no handler here is answered by
 * `Callbacks.other` (`fallback.py`), at once or later by `reply`.
 *
 * `serve` goes round those that are active, one request each, so none waits for more than one
 * request of each other. A companion is active from its first request on until it had none for a
 * while; which others have one is asked of one epoll descriptor for all, so a mount that is idle
 * costs the others nothing. Nothing of one depends on what another holds: they are different trees,
 * and the numbers of their inodes are leased apart. So each is flushed by its own requests, and all
 * of them at the end of a turn.
 */

#include "server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

/* How often it is asked who else has a request. */
#define LOOK_NS 200000
/* A companion without a request for so long is not asked in turn any more. */
#define IDLE_NS 2000000
/* So many become active at once; the others are found with the next look. */
#define EVENTS_MAX 16

int companions_init(Server *server)
{
    Companions *here = &server->companions;
    here->ready = -1;
    here->active = malloc(sizeof *here->active);
    if (!here->active)
        return 0;
    here->active[0] = server;
    here->active_count = 1;
    return 1;
}

void companions_free(Server *server)
{
    Companions *here = &server->companions;
    here->active_count = here->active ? 1 : 0;
    while (here->count)
        Py_DECREF(here->all[--here->count]);
    free(here->all);
    here->all = NULL;
    if (here->ready >= 0)
        close(here->ready);
    here->ready = -1;
}

/* -- turns ------------------------------------------------------------------------------------- */

static int is_active(const Companions *here, const Server *server)
{
    for (size_t i = 0; i < here->active_count; i++)
        if (here->active[i] == server)
            return 1;
    return 0;
}

static int activate(Companions *here, Server *server, int64_t now)
{
    if (server->is_ended || is_active(here, server))
        return 1;
    if (!begin_turn(server))
        return 0;
    server->served_ns = now;
    here->active[here->active_count++] = server;
    return 1;
}

int companions_look(Server *server, int64_t now, int is_due)
{
    Companions *here = &server->companions;
    if (!here->count || (!is_due && now < here->look_ns))
        return 1;
    here->look_ns = now + LOOK_NS;
    struct epoll_event found[EVENTS_MAX];
    int count = epoll_wait(here->ready, found, EVENTS_MAX, 0);
    for (int i = 0; i < count; i++)
        if (!activate(here, found[i].data.ptr, now))
            return 0;
    return 1;
}

int companions_begin_turn(Server *server)
{
    const Companions *here = &server->companions;
    for (size_t i = 0; i < here->active_count; i++)
        if (!begin_turn(here->active[i]))
            return 0;
    return 1;
}

/* All are flushed before the version of the names is asked for, which is one for all. */
void companions_end_turn(Server *server)
{
    Companions *here = &server->companions;
    int64_t now = monotonic_ns();
    for (size_t i = 0; i < here->active_count; i++)
        flush_and_forget(here->active[i]);
    for (size_t i = 0; i < here->active_count; i++)
        end_turn(here->active[i]);
    for (size_t i = here->active_count; i-- > 1;)
        if (here->active[i]->is_ended || now - here->active[i]->served_ns > IDLE_NS)
            here->active[i] = here->active[--here->active_count];
}

/* -- joining ----------------------------------------------------------------------------------- */

const char open_doc[] = PyDoc_STR(
    "open(fd)\n\n"
    "Reply to the requests of this FUSE descriptor, without libfuse; as a companion of another.");

PyObject *open_method(PyObject *self, PyObject *args)
{
    Server *server = (Server *)self;
    int descriptor;
    if (!PyArg_ParseTuple(args, "i", &descriptor))
        return NULL;
    int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    server->device = descriptor;
    server->is_standalone = 1;
    Py_RETURN_NONE;
}

static int has_room(Companions *here)
{
    size_t wanted = (here->count + 2) * sizeof(Server *);
    Server **all = realloc(here->all, wanted), **active = NULL;
    if (all) {
        here->all = all;
        active = realloc(here->active, wanted);
    }
    if (active)
        here->active = active;
    return active != NULL;
}

const char join_doc[] = PyDoc_STR("join(other)\n\nServe an open server in the same loop.");

PyObject *join_method(PyObject *self, PyObject *other)
{
    Server *server = (Server *)self, *companion = (Server *)other;
    Companions *here = &server->companions;
    if (Py_TYPE(other) != Py_TYPE(self) || !companion->is_standalone || server->is_closed) {
        PyErr_SetString(PyExc_ValueError, "join: an open server is to join one that serves");
        return NULL;
    }
    if (!has_room(here))
        return PyErr_NoMemory();
    if (here->ready < 0)
        here->ready = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = companion};
    if (here->ready < 0 || epoll_ctl(here->ready, EPOLL_CTL_ADD, companion->device, &wanted) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    here->all[here->count++] = (Server *)Py_NewRef(other);
    return PyLong_FromLong(here->ready);
}

static void remove_from(Server **list, size_t *count, const Server *server)
{
    for (size_t i = 0; i < *count; i++)
        if (list[i] == server)
            list[i--] = list[--*count];
}

PyObject *part_method(PyObject *self, PyObject *other)
{
    Companions *here = &((Server *)self)->companions;
    Server *companion = (Server *)other;
    size_t before = here->count;
    remove_from(here->all, &here->count, companion);
    if (here->count == before)
        Py_RETURN_NONE;
    remove_from(here->active, &here->active_count, companion);
    epoll_ctl(here->ready, EPOLL_CTL_DEL, companion->device, NULL);
    Py_DECREF(other);
    Py_RETURN_NONE;
}

PyObject *is_ended_method(PyObject *self, PyObject *none)
{
    return PyBool_FromLong(((Server *)self)->is_ended);
}

/* -- what has no handler ----------------------------------------------------------------------- */

Outcome ask_other(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    if (head->opcode == FUSE_DESTROY)
        return reply_error(request, 0);
    flush(request->server);
    PyObject *result =
        CALL(request->server, other, NUMBER(head->opcode), NUMBER(head->unique),
             NUMBER(head->nodeid), NUMBER(head->uid), NUMBER(head->pid),
             PyBytes_FromStringAndSize(request->body, (Py_ssize_t)request->size));
    if (result != Py_None)
        return reply_bytes(request, result);
    Py_DECREF(result);
    return REPLIED; /* later */
}

const char reply_doc[] =
    PyDoc_STR("reply(unique, errno, body)\n\nReply to a request that `other` left for later.");

PyObject *reply_method(PyObject *self, PyObject *args)
{
    unsigned long long unique;
    int error;
    Py_buffer body;
    if (!PyArg_ParseTuple(args, "Kiy*", &unique, &error, &body))
        return NULL;
    struct fuse_in_header head = {.unique = unique};
    Request request = {(Server *)self, &head, NULL, 0};
    send_reply(&request, error, body.buf, error ? 0 : (size_t)body.len);
    PyBuffer_Release(&body);
    Py_RETURN_NONE;
}
