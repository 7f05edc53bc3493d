/* The grant under which something is answered before it is in the store (`pending.c`): who has it, for
 * how long, and for how much. */

#include "pending.h"

/* Where no grant was given, so many changes go the ordinary way before it is asked for again. */
#define PATIENCE 6

struct Lease lease;
static unsigned patience;
static PyObject *call_lease, *call_joins;

static int ask_for_lease(uint32_t pid)
{
    unsigned long long ino, bytes;
    long long until_ns;
    PyObject *granted = CALL(call_lease, NUMBER(pid));
    int given = granted && granted != Py_None &&
                PyArg_ParseTuple(granted, "KLK", &ino, &until_ns, &bytes);
    if (given) {
        lease.held = 1;
        lease.party[0] = pid;
        lease.party_size = 1;
        lease.ino = ino;
        lease.until_ns = until_ns;
        lease.bytes = bytes;
    } else if (PyErr_Occurred()) {
        errno_of_failure();
    }
    Py_XDECREF(granted);
    return given;
}

/* Whether a process acts together with the one that the grant was given to. */
static int is_of_party(uint32_t pid)
{
    for (size_t i = 0; i < lease.party_size; i++)
        if (lease.party[i] == pid)
            return 1;
    if (lease.party_size == PARTY_MAX)
        return 0;
    PyObject *joins = CALL(call_joins, NUMBER(pid));
    if (!joins)
        errno_of_failure();
    int does = joins == Py_True;
    Py_XDECREF(joins);
    if (does)
        lease.party[lease.party_size++] = pid;
    return does;
}

int has_lease(uint32_t pid)
{
    return lease.held && monotonic_ns() < lease.until_ns && is_of_party(pid);
}

/* Whether this process may change something without asking. */
int may_change(uint32_t pid)
{
    if (has_lease(pid))
        return 1;
    if (patience)
        return 0;
    pending_flush();
    int given = ask_for_lease(pid);
    patience = given ? 0 : PATIENCE;
    return given;
}

int64_t stamp_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* as `wall_clock` in `model`, which says why */
    return now.tv_sec * NS + now.tv_nsec;
}

int lease_covers(uint64_t size)
{
    return size <= lease.bytes;
}

void lease_spend(uint64_t size)
{
    lease.bytes -= size;
}

void lease_pass(void)
{
    patience -= patience > 0;
}

int lease_bind(PyObject *owner)
{
    lease.held = 0;
    patience = 0;
    return take_attribute(owner, "lease", &call_lease) &&
           take_attribute(owner, "joins", &call_joins);
}
