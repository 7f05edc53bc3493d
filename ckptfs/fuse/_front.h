/* What the parts of the compiled front share. A request is read in `_front.c`, the loop, and goes to
 * `_fresh.c`, which answers before anything is put into the store; what it leaves goes the ordinary way
 * (`_ordinary.c`, `_listing.c`). `_answers.c` is how the kernel is told. What need not be asked for:
 * `_absent.c` has names that are not there, `_known.c` attributes, `_lookups.c` what the kernel knows. */

#ifndef CKPTFS_FRONT_H
#define CKPTFS_FRONT_H

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "../store/_standing.h"
#include "_protocol.h"

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
typedef enum { ANSWERED, NOT_OURS, FAILED } Outcome;

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

/* -- answers (_answers.c) ---------------------------------------------------------------------- */

/* As `fresh_bind`. */
int answers_bind(PyObject *owner);

/* The FUSE descriptor. */
extern int device;

/* Whether the one who asked took the answer. */
int send_answer(const Request *request, int error, const void *body, size_t size);
Outcome answer(const Request *request, const void *body, size_t size);
Outcome answer_error(const Request *request, int error);

/* For how long the kernel may believe attributes. */
uint64_t validity_of(const struct fuse_attr *attributes);

/* What stands under a name, and that nothing does. */
Outcome answer_new_entry(const Request *request, const struct fuse_attr *attributes);
Outcome answer_absent(const Request *request);
/* The attributes of a node. */
Outcome answer_known(const Request *request, const struct fuse_attr *attributes);

/* What Python returned, which is let go of: nothing, an inode under a name, the attributes of one,
 * bytes, a list of such, which are not copied. FAILED if it is NULL. */
Outcome answer_done(const Request *request, PyObject *result);
Outcome answer_entry(const Request *request, PyObject *inode);
Outcome answer_attributes(const Request *request, PyObject *inode);
Outcome answer_bytes(const Request *request, PyObject *result);
Outcome answer_pieces(const Request *request, PyObject *list);

/* What stands under a name, or has a number, in the live tree, as far as that is known without asking
 * the store. */
Look find_standing(uint64_t parent, const char *name, struct fuse_attr *attributes);
int get_standing(uint64_t node, struct fuse_attr *attributes);
void show_standing(struct fuse_attr *attributes, const Standing *standing);

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

/* -- the ordinary way (_ordinary.c, _listing.c) --------------------------------------------------- */

/* What answers a request, and how many bytes it must have behind its head. Names come after those,
 * and end with a zero in any case. */
typedef struct {
    Outcome (*handle)(const Request *request);
    size_t least;
} Handler;

/* NULL for what is left to libfuse. */
const Handler *ordinary_of(uint32_t opcode);

Outcome do_readdir(const Request *request);
Outcome do_readdirplus(const Request *request);

/* Whether a listing may give no more than the number of a live inode. */
int is_familiar(uint64_t ino);

/* As `fresh_bind`. */
int ordinary_bind(PyObject *owner);
int listing_bind(PyObject *owner);

/* -- what the kernel knows (_lookups.c) ----------------------------------------------------------- */

/* Told of a node that was answered together with its name, and that the kernel forgets such answers.
 * Of the second: whether that was all it knew of the node. */
void lookups_add(uint64_t node);
int lookups_drop(uint64_t node, uint64_t times);

/* Whether the kernel knows a live inode, and may be using it. */
int lookups_has(uint64_t node);

/* Another workspace. */
void lookups_forget_all(void);

/* -- what is fresh (_fresh.c) ------------------------------------------------------------------ */

/* Whose methods to call. Returns 0 with an exception set if one is missing. */
int fresh_bind(PyObject *owner);

/* Answers the request if that can be done without the store, which then hears of it later. Else
 * sees to it that the store knows all that the request may depend on. */
Outcome fresh_handle(const Request *request);

/* Told of a name that is not there, right after that was answered. */
void fresh_note_absent(const Request *request);

/* Told of attributes that are about to be answered; puts in what the store has not heard of yet. */
void fresh_note_directory(struct fuse_attr *attributes);

/* Told of a write(2) that the store has taken. */
void fresh_note_write(const Request *request);

/* Hands everything over to the store. */
void fresh_settle(void);

/* Whether somebody seems to be in the middle of making a file. */
int fresh_is_midway(void);

/* The same, and forgets all that is known: somebody else may change anything from here on. */
void fresh_end(void);

/* -- what is known to be absent (_absent.c) ------------------------------------------------------ */

/* As `fresh_bind`. */
int absent_bind(PyObject *owner);

/* Told of a directory that was just made and has nothing in it. */
void absent_note_directory(uint64_t node);

/* Told of every name that something was put under, or may have been. */
void absent_note_name(uint64_t parent, const char *name);

/* Whether it is known that a directory has nothing of that name. */
int absent_is(uint64_t parent, const char *name);

/* Between two turns others may put names into directories. */
void absent_begin_turn(void);
void absent_end_turn(void);

/* -- what is known of inodes (_known.c) ----------------------------------------------------------- */

/* Another workspace. */
void known_forget_all(void);

/* Told of attributes that are about to be answered. */
void known_note(const struct fuse_attr *attributes);

/* Whether anything is known of a node. */
int known_has(uint64_t node);

/* The attributes of a file or directory as the store has them, if they are known; else NULL. */
const struct fuse_attr *known_of(uint64_t node);

/* The bits of a node's mode that say what it is; 0 if that is not known. */
uint32_t known_type_of(uint64_t node);

/* Told of an inode that changes. */
void known_forget(uint64_t node);

#pragma GCC visibility pop

#endif
