/* What the parts that answer before the store share: `pending.c` has the items and what may be done to
 * them, `pending_data.c` their bytes, `coalesce.c` writes to files that are in the store, `lease.c` what allows
 * all that. */

#ifndef CKPTFS_PENDING_H
#define CKPTFS_PENDING_H

#include "server.h"

/* One block: of a larger file the rest goes the ordinary way. */
#define DATA_MAX 65536
#define NAME_MOST 255
#define TARGET_MOST 4095
/* So many threads and processes may be known to act together. */
#define PARTY_MAX 16

typedef struct {
    struct fuse_attr attributes;
    int64_t btime_ns;
    uint64_t parent;
    uint32_t maker; /* the process */
    char name[NAME_MOST + 1];
    /* Of a file its bytes, of a link its target. */
    char *data;
    size_t room;
    PyObject *record; /* of the bytes, once they are in the store; NULL before */
    int is_shared;    /* they were there already, and are not here */
} Pending;

#pragma GCC visibility push(hidden)

/* -- items (pending.c) --------------------------------------------------------------------------- */

/* NULL if a node is not fresh. */
Pending *pending_of(uint64_t node);

/* The ordinary way for a change: the store knows all that came before it, and from here on nothing
 * is known. */
Outcome pass_change(void);

/* What was acknowledged is not in the store: nothing goes on as if it were. */
void fail(void);

void stamp_change(struct fuse_attr *attributes, int64_t now_ns);

/* -- their bytes (pending_data.c) ---------------------------------------------------------------------- */

/* As `pending_bind`. */
int bytes_bind(PyObject *owner);

int has_bytes(const Pending *item);

/* Room for so many bytes of an item. Returns 0 if there is none. */
int make_space(Pending *item, size_t size);

/* Puts the bytes of a file into the store, which looks at them where they are. Returns 0 with an
 * exception set if that failed. */
int record_bytes(Pending *item);

/* What comes with an item: of a file the record of its bytes, of a link its target. */
PyObject *told_data(Pending *item);

Outcome write_bytes(const Request *request);
Outcome copy_bytes(const Request *request);
Outcome read_bytes(const Request *request);
Outcome read_link(const Request *request);

/* -- writes that go on (coalesce.c) ------------------------------------------------------------------ */

/* As `pending_bind`. */
int coalesce_bind(PyObject *owner);

/* Told of every request: any other than a write ends the run. */
void coalesce_note(const Request *request);

/* Whether a write goes on where the last one ended, and its answer. */
int coalesce_continues(const Request *request);
Outcome coalesce_write(const Request *request);

/* Whether a write is one of whole blocks, and its answer, ahead of the store if that is sure to take
 * it. */
int is_stream(const Request *request);
Outcome stream_write(const Request *request);

/* Hands the run over to the store. */
void coalesce_flush(void);

/* Nothing is known of the last write any more. */
void coalesce_forget(void);

/* -- what allows it (lease.c) ------------------------------------------------------------------- */

extern struct Lease {
    int held;
    uint32_t party[PARTY_MAX]; /* the first one is the one that asked */
    size_t party_size;
    int64_t until_ns;
    uint64_t ino; /* of the first item; they are numbered in order */
    uint64_t bytes;
} lease;

/* As `pending_bind`. */
int lease_bind(PyObject *owner);

/* Whether a process has the grant, and whether it has it or gets one. */
int has_lease(uint32_t pid);
int may_change(uint32_t pid);

/* Whether it is for so many bytes more, and that they were used. */
int lease_covers(uint64_t size);
void lease_spend(uint64_t size);

/* Told of a change that went the ordinary way. */
void lease_pass(void);

/* The time of a change now. */
int64_t stamp_ns(void);

#pragma GCC visibility pop

#endif
