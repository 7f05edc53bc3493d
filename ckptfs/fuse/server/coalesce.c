/* Write coalescing: short writes to a file that was just written to are put together before they
 * reach the store, as long as nothing else is asked for; a few files have such a run of writes each.
 * A run takes what cannot fail when it is flushed: writes to blocks that the store has open, and
 * writes that go on behind the end of the file. It begins with a write that went to the store, or
 * at the end of a file that the process was writing to, such as one that was flushed while it was
 * being made. Of a *stream*, whole blocks at the
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

/* NULL if no write to the file can be continued. */
static Coalesced *run_of(const Server *server, uint64_t node)
{
    Coalesced *runs = server->pending->runs;
    for (size_t i = 0; i < RUNS_MAX; i++)
        if (runs[i].node == node)
            return &runs[i];
    return NULL;
}

static char *waiting_bytes(const Server *server, const Coalesced *run)
{
    return server->pending->coalesced[run - server->pending->runs];
}

/* Puts bytes into the store whose writer has its reply: a list of offsets with their bytes. */
static void store(Server *server, const Coalesced *run, PyObject *pieces)
{
    int keep_set_id = !(run->flags & FUSE_WRITE_KILL_SUIDGID);
    PyObject *result =
        CALL(server, write_acknowledged, NUMBER(run->node), pieces, NUMBER(run->pid),
             PyLong_FromLongLong(run->time_ns), PyBool_FromLong(keep_set_id));
    if (!result)
        fail(server);
    Py_XDECREF(result);
}

static PyObject *coalesced_pieces(const Server *server, const Coalesced *run)
{
    PyObject *pieces = PyList_New((Py_ssize_t)run->count);
    const char *bytes = waiting_bytes(server, run);
    for (size_t i = 0; pieces && i < run->count; i++) {
        const Extent *extent = &run->extents[i];
        PyObject *piece = Py_BuildValue("(Ky#)", (unsigned long long)extent->offset, bytes,
                                        (Py_ssize_t)extent->size);
        if (!piece)
            Py_CLEAR(pieces);
        else
            PyList_SET_ITEM(pieces, (Py_ssize_t)i, piece);
        bytes += extent->size;
    }
    return pieces;
}

static void flush_run(Server *server, Coalesced *run)
{
    if (run->count)
        store(server, run, coalesced_pieces(server, run));
    run->count = run->size = 0;
}

void coalesce_flush(Server *server)
{
    for (size_t i = 0; i < RUNS_MAX; i++)
        flush_run(server, &server->pending->runs[i]);
}

void coalesce_end(Server *server, uint64_t node)
{
    Coalesced *run = run_of(server, node);
    if (run)
        run->node = 0;
}

void coalesce_end_all(Server *server)
{
    for (size_t i = 0; i < RUNS_MAX; i++)
        server->pending->runs[i].node = 0;
}

/* The run that a write begins or goes on with: nothing is coalesced, so any may give way. */
static Coalesced *begin_run(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    WriteBehind *pending = request->server->pending;
    Coalesced *run = run_of(request->server, request->head->nodeid);
    if (!run)
        run = &pending->runs[pending->runs_begun++ % RUNS_MAX];
    run->node = request->head->nodeid;
    run->end = in->offset + in->size;
    run->pid = request->head->pid;
    run->flags = in->write_flags;
    return run;
}

void coalesce_note_write(const Request *request)
{
    begin_run(request);
}

/* Whether the file that a run is of ends where the run does, or before: there is no block there that
 * could be damaged. */
static int is_at_end(Server *server, const Coalesced *run)
{
    const struct fuse_attr *known = inodes_attributes(&server->inodes, run->node);
    struct fuse_attr attributes;
    if (!known && get_stored(server, run->node, &attributes)) {
        inodes_cache(&server->inodes, &attributes);
        known = &attributes;
    }
    return known && S_ISREG(known->mode) && known->size <= run->end;
}

/* Whether a write is one that can be part of a run: within a block, and no whole one. */
static int is_short(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    return in->size && in->size <= request->size - sizeof *in && is_plain_write(in->write_flags) &&
           in->offset + in->size <= FILE_SIZE_MAX &&
           in->size <= BLOCK_SIZE - in->offset % BLOCK_SIZE && in->size < BLOCK_SIZE;
}

/* Whether a run goes on with a write, as far as that can be said without the store. */
static int goes_on_with(const Coalesced *run, const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    return request->head->pid == run->pid && in->write_flags == run->flags && is_short(request) &&
           !pending_is_dirty(request->server, run->node);
}

/* Whether nothing can be wrong with the block that a write is to. The one that the last write ended
 * in was seen by the store. */
static int is_certain(Server *server, const Coalesced *run, uint64_t offset)
{
    if (offset == run->end && (offset % BLOCK_SIZE || is_at_end(server, run)))
        return 1;
    return partial_has(server, run->node, offset / BLOCK_SIZE);
}

/* The last write of a run and the one that follows it are one. */
static int is_continued(const Coalesced *run, uint64_t offset)
{
    if (!run->count)
        return 0;
    const Extent *last = &run->extents[run->count - 1];
    return last->offset + last->size == offset;
}

/* Makes sure that the writer has a lease for so many bytes. */
static int lease_bytes(Server *server, uint32_t pid, uint32_t size)
{
    if (!may_change(server, pid))
        return 0;
    if (!lease_covers(server, size))
        flush(server); /* and with it goes the lease */
    return may_change(server, pid) && lease_covers(server, size);
}

static void add(Server *server, Coalesced *run, uint64_t offset, const char *bytes, size_t size)
{
    memcpy(waiting_bytes(server, run) + run->size, bytes, size);
    run->size += size;
    if (is_continued(run, offset))
        run->extents[run->count - 1].size += size;
    else
        run->extents[run->count++] = (Extent){offset, size};
    run->end = offset + size;
    run->time_ns = stamp_ns();
}

/* Takes a write, and replies to it. */
static Outcome take(const Request *request, Coalesced *run)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Server *server = request->server;
    add(server, run, in->offset, (const char *)(in + 1), in->size);
    lease_spend(server, in->size);
    struct fuse_write_out out = {.size = in->size};
    reply(request, &out, sizeof out);
    if (run->count == EXTENTS_MAX || run->size + in->size > RUN_BYTES)
        flush_run(server, run); /* while the writer gets the next one ready */
    return REPLIED;
}

Outcome coalesce_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Server *server = request->server;
    Coalesced *run = run_of(server, request->head->nodeid);
    if (!run || !goes_on_with(run, request) || !lease_bytes(server, run->pid, in->size))
        return PASSED;
    if (run->size + in->size > RUN_BYTES || run->count == EXTENTS_MAX)
        flush_run(server, run);
    return is_certain(server, run, in->offset) ? take(request, run) : PASSED;
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

/* Whether no block that could be damaged is there, if the file ends at an offset. */
static int may_begin_at(const Server *server, uint64_t node, uint64_t offset)
{
    return offset % BLOCK_SIZE == 0 || partial_has(server, node, offset / BLOCK_SIZE);
}

Outcome coalesce_begin(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    uint64_t node = request->head->nodeid;
    Server *server = request->server;
    if (node >= LIVE_END || !is_short(request) || pending_of(server, node) ||
        pending_is_dirty(server, node) || !may_begin_at(server, node, in->offset) ||
        !may_acknowledge(request))
        return PASSED;
    if (!may_change(server, request->head->pid) || !lease_covers(server, in->size))
        return PASSED;
    /* To get the lease may have stored what was open. */
    return may_begin_at(server, node, in->offset) ? take(request, begin_run(request)) : PASSED;
}

Outcome stream_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Server *server = request->server;
    flush(server);
    if (!may_acknowledge(request))
        return pass_change(server);
    struct fuse_write_out out = {.size = in->size};
    Coalesced *run = begin_run(request);
    run->time_ns = stamp_ns();
    reply(request, &out, sizeof out);
    store(server, run,
          Py_BuildValue("[(KN)]", (unsigned long long)in->offset,
                        lend(&server->lent, (char *)(in + 1), in->size)));
    flush_and_forget(server);
    coalesce_note_write(request);
    return REPLIED;
}

/* Whether a request leaves the files as they are, so that a run of writes goes on after it. */
static int only_looks(uint32_t opcode)
{
    return opcode == FUSE_FSYNC || opcode == FUSE_READ || opcode == FUSE_GETATTR ||
           opcode == FUSE_LOOKUP;
}

void coalesce_note(const Request *request)
{
    if (request->head->opcode == FUSE_WRITE)
        return;
    coalesce_flush(request->server);
    if (!only_looks(request->head->opcode))
        coalesce_end_all(request->server);
}
