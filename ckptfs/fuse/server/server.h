/* What the parts of the compiled server share. A request is read in `server.c`, the loop, and goes to
 * `pending.c`, which answers before anything is put into the store; what it leaves goes the ordinary way
 * (`dispatch.c`, `readdir.c`). `reply.c` is how the kernel is told. What need not be asked for:
 * `dentries.c` has names that are not there, `attributes.c` attributes, `lookups.c` what the kernel knows. */

#ifndef CKPTFS_SERVER_H
#define CKPTFS_SERVER_H

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "snapshot.h"
#include "protocol.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* As in `nodes`: the low 40 bits of a node id are the inode number, the last slot is
 * `.checkpoints`. */
#define INO_BITS 40
#define LIVE_END (1ULL << INO_BITS)
#define HISTORY (((1ULL << 22) - 1) << INO_BITS)
#define HISTORY_ROOT (HISTORY | 1)
#define CONTROL (HISTORY | 1ULL << 39)
#define CONTROL_STEP (1ULL << 38)
#define CONTROL_CONNECTION (1ULL << 37)
#define CONTROL_NUMBERS (CONTROL_CONNECTION - 1)

#define STAT_BLOCK 512
#define HISTORY_NAME ".checkpoints"

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE (1 << 0)
#endif

/* The fields of `model.Inode` that stat shows, by position. */
enum { INO, MODE, NLINK, UID, GID, RDEV, SIZE, ALLOCATED, ATIME, MTIME, CTIME };

/* What `serve` returns. */
enum { LEFT, TURN };

/* How a request was dealt with. FAILED: a Python exception is set, and becomes the answer. */
typedef enum { REPLIED, PASSED, FAILED } Outcome;

typedef struct {
    const struct fuse_in_header *head;
    const char *body;
    size_t size;
} Request;

/* Whether a file keeps its set-id bits when its bytes change by something else than write(2), of which
 * the kernel does not say whose they are to lose. */
static inline int keeps_set_id(const Request *request)
{
    return request->head->uid == 0;
}

/* The mode that a write or a change of owner leaves a file with; as in `inodes`. */
static inline uint32_t without_set_id(uint32_t mode)
{
    return mode & ~(uint32_t)(S_ISUID | (mode & S_IXGRP ? S_ISGID : 0));
}

#pragma GCC visibility push(hidden)

/* -- answers (reply.c) ---------------------------------------------------------------------- */

/* As `pending_bind`. */
int reply_bind(PyObject *owner);

/* The FUSE descriptor. */
extern int device;

/* Whether the one who asked took the answer. */
int send_reply(const Request *request, int error, const void *body, size_t size);
Outcome reply(const Request *request, const void *body, size_t size);
Outcome reply_error(const Request *request, int error);

/* For how long the kernel may believe attributes. */
uint64_t validity_of(const struct fuse_attr *attributes);

/* What stands under a name, and that nothing does. */
Outcome reply_entry_attr(const Request *request, const struct fuse_attr *attributes);
Outcome reply_negative(const Request *request);
/* The attributes of a node. */
Outcome reply_attr(const Request *request, const struct fuse_attr *attributes);

/* What Python returned, which is let go of: nothing, an inode under a name, the attributes of one,
 * bytes, a list of such, which are not copied. FAILED if it is NULL. */
Outcome reply_done(const Request *request, PyObject *result);
Outcome reply_entry(const Request *request, PyObject *inode);
Outcome reply_attributes(const Request *request, PyObject *inode);
Outcome reply_bytes(const Request *request, PyObject *result);
Outcome reply_pieces(const Request *request, PyObject *list);

/* What stands under a name, or has a number, in the live tree, as far as that is known without asking
 * the store. */
Look find_committed(uint64_t parent, const char *name, struct fuse_attr *attributes);
int get_committed(uint64_t node, struct fuse_attr *attributes);
void fill_from_record(struct fuse_attr *attributes, const InodeRecord *record);

/* Whether a number means what it means in the store: a restore may have parted the two. */
int is_plain(uint64_t node);

/* Files that a restore replaced while they were in use, by node. */
extern PyObject *limbo;

/* What the numbers of inodes in the view of a node have above them. */
uint64_t base_of(uint64_t node);

/* Return 0 if what Python returned is no inode; an exception is set then. */
int fill_attributes(struct fuse_attr *attributes, PyObject *inode, uint64_t base);
int fill_entry(struct fuse_entry_out *entry, PyObject *inode, uint64_t base);

/* Attributes as the store has them are about to be answered; puts in what it has not heard of yet. */
void note_attributes(struct fuse_attr *attributes);

void set_time(uint64_t *seconds, uint32_t *nanoseconds, int64_t time_ns);
int64_t join_time(uint64_t seconds, uint32_t nanoseconds);

/* The errno for the exception that is set; it is told in the log if nobody expected it. */
int errno_of_failure(void);

#define NUMBER(value) PyLong_FromUnsignedLongLong(value)

/* Calls with arguments that are all new references, and lets go of them. There is a free place
 * before the first, which a method puts its object into. */
PyObject *call(PyObject *method, size_t count, PyObject **arguments);

#define CALL(method, ...) \
    call(method, sizeof((PyObject *[]){NULL, ##__VA_ARGS__}) / sizeof(PyObject *) - 1, \
         (PyObject *[]){NULL, ##__VA_ARGS__} + 1)

/* Keep an attribute of an object, the second one of a type. Return 0 with an exception set if there is
 * none. */
int take_attribute(PyObject *owner, const char *name, PyObject **place);
int take_state(PyObject *owner, const char *name, PyTypeObject *type, PyObject **place);

/* -- the ordinary way (dispatch.c, readdir.c) --------------------------------------------------- */

/* What answers a request, and how many bytes it must have behind its head. Names come after those,
 * and end with a zero in any case. */
typedef struct {
    Outcome (*handle)(const Request *request);
    size_t least;
} Handler;

/* NULL for what is left to libfuse. */
const Handler *handler_of(uint32_t opcode);

Outcome do_readdir(const Request *request);
Outcome do_readdirplus(const Request *request);

/* Whether a listing may give no more than the number of a live inode. */
int is_familiar(uint64_t ino);

/* As `pending_bind`. */
int dispatch_bind(PyObject *owner);
int readdir_bind(PyObject *owner);

/* -- what the kernel knows (lookups.c) ----------------------------------------------------------- */

/* Told of a node that was answered together with its name, and that the kernel forgets such answers.
 * Of the second: whether that was all it knew of the node. */
void lookups_add(uint64_t node);
int lookups_drop(uint64_t node, uint64_t times);

/* Whether the kernel knows a live inode, and may be using it. */
int lookups_has(uint64_t node);

/* Another workspace. */
void lookups_forget_all(void);

/* -- what is fresh (pending.c) ------------------------------------------------------------------ */

/* Whose methods to call. Returns 0 with an exception set if one is missing. */
int pending_bind(PyObject *owner);

/* Answers the request if that can be done without the store, which then hears of it later. Else
 * sees to it that the store knows all that the request may depend on. */
Outcome pending_handle(const Request *request);

/* Told of a name that is not there, right after that was answered. */
void pending_note_negative(const Request *request);

/* Told of attributes that are about to be answered; puts in what the store has not heard of yet. */
void pending_note_directory(struct fuse_attr *attributes);

/* Told of a write(2) that the store has taken. */
void pending_note_write(const Request *request);

/* Hands everything over to the store. */
void pending_flush(void);

/* Whether somebody seems to be in the middle of making a file. */
int pending_is_midway(void);

/* The same, and forgets all that is known: somebody else may change anything from here on. */
void pending_end(void);

/* -- what is known to be absent (dentries.c) ------------------------------------------------------ */

/* As `pending_bind`. */
int dentries_bind(PyObject *owner);

/* Told of a directory that was just made and has nothing in it. */
void dentries_note_directory(uint64_t node);

/* Told of every name that something was put under, or may have been. */
void dentries_note_name(uint64_t parent, const char *name);

/* Whether it is known that a directory has nothing of that name. */
int dentries_is_negative(uint64_t parent, const char *name);

/* Between two turns others may put names into directories. */
void dentries_begin_turn(void);
void dentries_end_turn(void);

/* -- what is known of inodes (attributes.c) ----------------------------------------------------------- */

/* Another workspace. */
void attributes_forget_all(void);

/* Told of attributes that are about to be answered. */
void attributes_note(const struct fuse_attr *attributes);

/* Whether anything is known of a node. */
int attributes_has(uint64_t node);

/* The attributes of a file or directory as the store has them, if they are known; else NULL. */
const struct fuse_attr *attributes_of(uint64_t node);

/* The bits of a node's mode that say what it is; 0 if that is not known. */
uint32_t attributes_type(uint64_t node);

/* Told of an inode that changes. */
void attributes_forget(uint64_t node);

#pragma GCC visibility pop

#endif
