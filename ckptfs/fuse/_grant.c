/* The grant under which something is answered before it is in the store (`_fresh.c`): who has it, for
 * how long, and for how much. */

#include "_fresh.h"

/* Where no grant was given, so many changes go the ordinary way before it is asked for again. */
#define PATIENCE 6

struct Grant grant;
static unsigned patience;
static PyObject *call_grant, *call_joins;

static int ask_for_grant(uint32_t pid)
{
    unsigned long long ino, bytes;
    long long until_ns;
    PyObject *granted = CALL(call_grant, NUMBER(pid));
    int given = granted && granted != Py_None &&
                PyArg_ParseTuple(granted, "KLK", &ino, &until_ns, &bytes);
    if (given) {
        grant.held = 1;
        grant.party[0] = pid;
        grant.party_size = 1;
        grant.ino = ino;
        grant.until_ns = until_ns;
        grant.bytes = bytes;
    } else if (PyErr_Occurred()) {
        errno_of_failure();
    }
    Py_XDECREF(granted);
    return given;
}

/* Whether a process acts together with the one that the grant was given to. */
static int is_of_party(uint32_t pid)
{
    for (size_t i = 0; i < grant.party_size; i++)
        if (grant.party[i] == pid)
            return 1;
    if (grant.party_size == PARTY_MAX)
        return 0;
    PyObject *joins = CALL(call_joins, NUMBER(pid));
    if (!joins)
        errno_of_failure();
    int does = joins == Py_True;
    Py_XDECREF(joins);
    if (does)
        grant.party[grant.party_size++] = pid;
    return does;
}

int is_granted(uint32_t pid)
{
    return grant.held && monotonic_ns() < grant.until_ns && is_of_party(pid);
}

/* Whether this process may change something without asking. */
int may_change(uint32_t pid)
{
    if (is_granted(pid))
        return 1;
    if (patience)
        return 0;
    fresh_settle();
    int given = ask_for_grant(pid);
    patience = given ? 0 : PATIENCE;
    return given;
}

int64_t stamp_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now); /* as `wall_clock` in `model`, which says why */
    return now.tv_sec * NS + now.tv_nsec;
}

int grant_covers(uint64_t size)
{
    return size <= grant.bytes;
}

void grant_spend(uint64_t size)
{
    grant.bytes -= size;
}

void grant_pass(void)
{
    patience -= patience > 0;
}

int grant_bind(PyObject *owner)
{
    grant.held = 0;
    patience = 0;
    return take_attribute(owner, "grant", &call_grant) &&
           take_attribute(owner, "joins", &call_joins);
}
