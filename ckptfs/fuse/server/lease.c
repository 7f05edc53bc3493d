/* The lease under which a change is acknowledged before it is in the store (pending.c): which
 * processes have it, for how long, and for how much. */

#include "server.h"

/* Where no lease was given, so many changes go to the store before it is asked for again. */
#define PATIENCE 6

static int ask_for_lease(Server *server, uint32_t pid)
{
    Lease *lease = &server->pending->lease;
    unsigned long long ino, bytes;
    long long until_ns;
    PyObject *result = CALL(server, lease, NUMBER(pid));
    int given =
        result && result != Py_None && PyArg_ParseTuple(result, "KLK", &ino, &until_ns, &bytes);
    if (given) {
        lease->held = 1;
        lease->party[0] = pid;
        lease->party_size = 1;
        lease->ino = ino;
        lease->until_ns = until_ns;
        lease->bytes = bytes;
    } else if (PyErr_Occurred()) {
        errno_of_failure(server);
    }
    Py_XDECREF(result);
    return given;
}

/* Whether a process acts together with the one that got the lease. */
static int is_of_party(Server *server, uint32_t pid)
{
    Lease *lease = &server->pending->lease;
    for (size_t i = 0; i < lease->party_size; i++)
        if (lease->party[i] == pid)
            return 1;
    if (lease->party_size == PARTY_MAX)
        return 0;
    PyObject *joins = CALL(server, joins, NUMBER(pid));
    if (!joins)
        errno_of_failure(server);
    int does = joins == Py_True;
    Py_XDECREF(joins);
    if (does)
        lease->party[lease->party_size++] = pid;
    return does;
}

int has_lease(Server *server, uint32_t pid)
{
    const Lease *lease = &server->pending->lease;
    return lease->held && monotonic_ns() < lease->until_ns && is_of_party(server, pid);
}

int may_change(Server *server, uint32_t pid)
{
    if (has_lease(server, pid))
        return 1;
    if (server->pending->lease.patience)
        return 0;
    flush(server);
    int given = ask_for_lease(server, pid);
    server->pending->lease.patience = given ? 0 : PATIENCE;
    return given;
}

int64_t stamp_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* as `wall_clock` in `model`, which says why */
    return now.tv_sec * NS + now.tv_nsec;
}

int lease_covers(const Server *server, uint64_t size)
{
    return size <= server->pending->lease.bytes;
}

void lease_spend(Server *server, uint64_t size)
{
    server->pending->lease.bytes -= size;
}

void lease_pass(Server *server)
{
    server->pending->lease.patience -= server->pending->lease.patience > 0;
}
