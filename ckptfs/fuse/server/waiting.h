/* Waiting for the next request, and where. See `waiting.c`. */

#ifndef CKPTFS_WAITING_H
#define CKPTFS_WAITING_H

#include <sched.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct {
    int in_vain;        /* spins without a request, one after the other */
    int is_alone;       /* no other task is about to run: what it starts would be bound, too */
    int bound;          /* the CPU that the thread is bound to, or -1 */
    cpu_set_t allowed;  /* those that it may run on otherwise */
    int64_t looked_ns;  /* when it was last looked whether the machine is crowded */
    int64_t crowded_ns; /* when it last was */
    int is_raised;      /* the priority */
    int niceness, niceness_raised;
    int has_session; /* of its own, whose niceness is that of the thread */
} Waits;

#pragma GCC visibility push(hidden)

void waits_init(Waits *waits);

/* The server has looked for a request so often, and it came or did not. */
void waits_note(Waits *waits, int looks, int has_come);

/* A client has asked: on a crowded machine the thread goes to its CPU. */
void stay_beside(Waits *waits, uint32_t pid, int64_t now_ns);

/* Other tasks have their turn: the thread may run on any CPU again, and after a pause of the requests
 * it has its own priority, until the next one. */
void leave_client(Waits *waits, int64_t now_ns);

#pragma GCC visibility pop

#endif
