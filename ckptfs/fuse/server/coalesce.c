/* Write coalescing: short writes that continue where the last one ended are put together before
 * they reach the store, as long as nothing else is asked for; a few files have such a run of writes
 * each. Of a *stream*, whole blocks at the
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

/* Puts bytes into the store whose writer has its reply. */
static void store(Server *server, const Coalesced *run, uint64_t offset, PyObject *bytes)
{
    int keep_set_id = !(run->flags & FUSE_WRITE_KILL_SUIDGID);
    PyObject *result =
        CALL(server, write_acknowledged, NUMBER(run->node), NUMBER(offset), bytes, NUMBER(run->pid),
             PyLong_FromLongLong(run->time_ns), PyBool_FromLong(keep_set_id));
    if (!result)
        fail(server);
    Py_XDECREF(result);
}

void coalesce_flush(Server *server)
{
    for (size_t i = 0; i < RUNS_MAX; i++) {
        Coalesced *run = &server->pending->runs[i];
        if (!run->size)
            continue;
        store(server, run, run->end - run->size,
              PyBytes_FromStringAndSize(waiting_bytes(server, run), (Py_ssize_t)run->size));
        run->size = 0;
    }
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

/* It stays in the block that the last one ended in: the store has seen then that the block can be
 * written to. */
int coalesce_continues(const Request *request)
{
    const Coalesced *last = run_of(request->server, request->head->nodeid);
    const struct fuse_write_in *in = (const void *)request->body;
    if (!last)
        return 0;
    uint64_t room = (BLOCK_SIZE - last->end % BLOCK_SIZE) % BLOCK_SIZE;
    return request->head->pid == last->pid && in->offset == last->end && in->size &&
           in->size <= room && in->size <= request->size - sizeof *in &&
           in->write_flags == last->flags && is_plain_write(in->write_flags) &&
           in->offset + in->size <= FILE_SIZE_MAX;
}

Outcome coalesce_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    Server *server = request->server;
    Coalesced *run = run_of(server, request->head->nodeid);
    if (!run || !has_lease(server, request->head->pid) || !lease_covers(server, in->size))
        return pass_change(server);
    memcpy(waiting_bytes(server, run) + run->size, in + 1, in->size);
    run->size += in->size;
    run->end += in->size;
    run->time_ns = stamp_ns();
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
    Coalesced *run = begin_run(request);
    run->time_ns = stamp_ns();
    reply(request, &out, sizeof out);
    store(server, run, in->offset, lend(&server->lent, (char *)(in + 1), in->size));
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
