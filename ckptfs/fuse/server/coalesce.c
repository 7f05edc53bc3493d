/* Write coalescing: short writes that continue where the last one ended are put together before
 * they reach the store, as long as nothing else is asked for. Of a *stream*, whole blocks at the
 * end of a file, each is acknowledged before it is stored: its writer gets the next one ready
 * meanwhile. */

#include "server.h"

/* Shorter writes are no stream: to ask whether they may be acknowledged takes as long as it saves.
 */
#define STREAM_LEAST (2 * BLOCK_SIZE)

/* Whether a write may be acknowledged ahead of the store: one by write(2). */
static int is_plain_write(uint32_t flags)
{
    return !(flags & ~(uint32_t)FUSE_WRITE_KILL_SUIDGID);
}

/* Puts bytes into the store whose writer has its reply. */
static void store(Server *server, uint64_t node, uint64_t offset, PyObject *bytes)
{
    const Coalesced *last = &server->pending->coalesced;
    int keep_set_id = !(last->flags & FUSE_WRITE_KILL_SUIDGID);
    PyObject *result =
        CALL(server, write_acknowledged, NUMBER(node), NUMBER(offset), bytes, NUMBER(last->pid),
             PyLong_FromLongLong(last->time_ns), PyBool_FromLong(keep_set_id));
    if (!result)
        fail(server);
    Py_XDECREF(result);
}

void coalesce_flush(Server *server)
{
    Coalesced *last = &server->pending->coalesced;
    if (!last->size)
        return;
    store(server, last->node, last->end - last->size,
          PyBytes_FromStringAndSize(last->bytes, (Py_ssize_t)last->size));
    last->size = 0;
}

void coalesce_note_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Coalesced *last = &request->server->pending->coalesced;
    last->node = request->head->nodeid;
    last->end = in->offset + in->size;
    last->pid = request->head->pid;
    last->flags = in->write_flags;
}

/* It stays in the block that the last one ended in: the store has seen then that the block can be
 * written to. */
int coalesce_continues(const Request *request)
{
    const Coalesced *last = &request->server->pending->coalesced;
    const struct fuse_write_in *in = (const void *)request->body;
    uint64_t room = (BLOCK_SIZE - last->end % BLOCK_SIZE) % BLOCK_SIZE;
    return request->head->nodeid == last->node && request->head->pid == last->pid &&
           in->offset == last->end && in->size && in->size <= room &&
           in->size <= request->size - sizeof *in && in->write_flags == last->flags &&
           is_plain_write(in->write_flags) && in->offset + in->size <= FILE_SIZE_MAX;
}

Outcome coalesce_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Server *server = request->server;
    Coalesced *last = &server->pending->coalesced;
    if (!has_lease(server, request->head->pid) || !lease_covers(server, in->size))
        return pass_change(server);
    memcpy(last->bytes + last->size, in + 1, in->size);
    last->size += in->size;
    last->end += in->size;
    last->time_ns = stamp_ns();
    lease_spend(server, in->size);
    struct fuse_write_out out = {.size = in->size};
    return reply(request, &out, sizeof out);
}

int is_stream(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    return in->size >= STREAM_LEAST && in->size % BLOCK_SIZE == 0 && in->offset % BLOCK_SIZE == 0 &&
           in->size <= request->size - sizeof *in && is_plain_write(in->write_flags) &&
           in->offset + in->size <= FILE_SIZE_MAX;
}

static int may_acknowledge(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    PyObject *certain = CALL(request->server, may_acknowledge, NUMBER(request->head->nodeid),
                             NUMBER(in->offset), NUMBER(in->size), NUMBER(request->head->pid));
    int is = certain == Py_True;
    if (!certain)
        errno_of_failure(request->server);
    Py_XDECREF(certain);
    return is;
}

Outcome stream_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Server *server = request->server;
    flush(server);
    if (!may_acknowledge(request))
        return pass_change(server);
    struct fuse_write_out out = {.size = in->size};
    coalesce_note_write(request);
    server->pending->coalesced.time_ns = stamp_ns();
    reply(request, &out, sizeof out);
    store(server, request->head->nodeid, in->offset,
          lend(&server->lent, (char *)(in + 1), in->size));
    flush_and_forget(server);
    coalesce_note_write(request);
    return REPLIED;
}

void coalesce_note(const Request *request)
{
    Coalesced *last = &request->server->pending->coalesced;
    if (request->head->opcode == FUSE_WRITE || !last->node)
        return;
    coalesce_flush(request->server);
    if (request->head->opcode != FUSE_FSYNC) /* after which a log is written on */
        last->node = 0;
}
