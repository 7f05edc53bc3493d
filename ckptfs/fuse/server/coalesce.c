/* Writes that go on where the last one ended. Short ones are put together to a *run* before they reach
 * the store, as long as nothing else is asked for. Of a *stream*, whole blocks at the end of a file, each
 * is answered before it is stored: its writer gets the next one ready meanwhile. */

#include "pending.h"

/* As in `model`. */
#define FILE_SIZE_MAX ((uint64_t)INT64_MAX - DATA_MAX)
/* Shorter writes are no stream: to ask whether they may be answered takes as long as it saves. */
#define STREAM_LEAST (2 * DATA_MAX)

/* The last write(2) to a file in the store, which the next may go on from; none if its node is 0. */
static struct {
    uint64_t node;
    uint64_t end;
    uint32_t pid;
    uint32_t flags;
    int64_t time_ns; /* when it was acknowledged, if it is in the run */
} last_write;

/* What was written behind that and is not in the store yet: the last bytes before its end. */
static char coalesced[DATA_MAX];
static size_t coalesced_size;

static PyObject *call_write_acknowledged, *call_may_acknowledge;

/* Whether a write may be acknowledged ahead of the store: one by write(2), whoever writes. */
static int is_ordinary(uint32_t flags)
{
    return !(flags & ~(uint32_t)FUSE_WRITE_KILL_SUIDGID);
}

/* Puts bytes into the store whose writer has its answer. */
static void hand_over(uint64_t node, uint64_t offset, PyObject *bytes)
{
    int keep_set_id = !(last_write.flags & FUSE_WRITE_KILL_SUIDGID);
    PyObject *result =
        CALL(call_write_acknowledged, NUMBER(node), NUMBER(offset), bytes, NUMBER(last_write.pid),
             PyLong_FromLongLong(last_write.time_ns), PyBool_FromLong(keep_set_id));
    if (!result)
        fail();
    Py_XDECREF(result);
}

void coalesce_flush(void)
{
    if (!coalesced_size)
        return;
    hand_over(last_write.node, last_write.end - coalesced_size,
              PyBytes_FromStringAndSize(coalesced, (Py_ssize_t)coalesced_size));
    coalesced_size = 0;
}

void pending_note_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    last_write.node = request->head->nodeid;
    last_write.end = in->offset + in->size;
    last_write.pid = request->head->pid;
    last_write.flags = in->write_flags;
}

/* Whether a write goes on where the last one ended, and stays in the block that it ended in: the
 * store has seen then that the block can be written to. */
int coalesce_continues(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    uint64_t room = (DATA_MAX - last_write.end % DATA_MAX) % DATA_MAX;
    return request->head->nodeid == last_write.node && request->head->pid == last_write.pid &&
           in->offset == last_write.end && in->size && in->size <= room &&
           in->size <= request->size - sizeof *in && in->write_flags == last_write.flags &&
           is_ordinary(in->write_flags) &&
           in->offset + in->size <= FILE_SIZE_MAX;
}

Outcome coalesce_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    if (!has_lease(request->head->pid) || !lease_covers(in->size))
        return pass_change();
    memcpy(coalesced + coalesced_size, in + 1, in->size);
    coalesced_size += in->size;
    last_write.end += in->size;
    last_write.time_ns = stamp_ns();
    lease_spend(in->size);
    struct fuse_write_out out = {.size = in->size};
    return reply(request, &out, sizeof out);
}

int is_stream(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    return in->size >= STREAM_LEAST && in->size % DATA_MAX == 0 && in->offset % DATA_MAX == 0 &&
           in->size <= request->size - sizeof *in && is_ordinary(in->write_flags) &&
           in->offset + in->size <= FILE_SIZE_MAX;
}

static int may_acknowledge(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    PyObject *certain = CALL(call_may_acknowledge, NUMBER(request->head->nodeid), NUMBER(in->offset),
                             NUMBER(in->size), NUMBER(request->head->pid));
    int is = certain == Py_True;
    if (!certain)
        errno_of_failure();
    Py_XDECREF(certain);
    return is;
}

Outcome stream_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    pending_flush();
    if (!may_acknowledge(request))
        return pass_change();
    struct fuse_write_out out = {.size = in->size};
    pending_note_write(request);
    last_write.time_ns = stamp_ns();
    reply(request, &out, sizeof out);
    /* Looked at where they were read: nothing else is read before this is done. */
    hand_over(request->head->nodeid, in->offset,
              PyMemoryView_FromMemory((char *)(in + 1), (Py_ssize_t)in->size, PyBUF_READ));
    pending_end();
    pending_note_write(request);
    return REPLIED;
}

void coalesce_note(const Request *request)
{
    if (request->head->opcode == FUSE_WRITE || !last_write.node)
        return;
    coalesce_flush();
    if (request->head->opcode != FUSE_FSYNC) /* after which a log is written on */
        last_write.node = 0;
}

void coalesce_forget(void)
{
    last_write.node = 0;
}

int coalesce_bind(PyObject *owner)
{
    coalesced_size = 0;
    coalesce_forget();
    return take_attribute(owner, "write_acknowledged", &call_write_acknowledged) &&
           take_attribute(owner, "may_acknowledge", &call_may_acknowledge);
}
