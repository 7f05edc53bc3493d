/* The compiled server: what its parts share. README.md says what the box is for, and what each file
 * owns.
 *
 * The state of one mount is a `Server`, a Python object. Every function that needs it is given it,
 * or a `Request`, which names it. The only thing that belongs to the process is the list of
 * servers, by which libfuse's calls find theirs (server.c).
 *
 * A request is read in the loop (server.c) and goes to write-behind (pending.c), which replies
 * before anything is in the store; what that passes on goes to its handler (dispatch.c, readdir.c).
 * Everything runs with the interpreter's lock held, but for the wait for the next request.
 */

#ifndef CKPTFS_SERVER_H
#define CKPTFS_SERVER_H

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include "hashset.h"
#include "pages.h"
#include "protocol.h"
#include "waiting.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* -- constants that Python has, too ------------------------------------------------------------ */

/* The module exports these; `binding.load` refuses a module whose values are not its own. The low
 * 40 bits of a node id are the inode number, the last slot is `.checkpoints` (`nodes`). A cookie of
 * a listing is a stream and a position in it (`listings`). */
#define INO_BITS 40
#define LIVE_END (1ULL << INO_BITS)
#define HISTORY (((1ULL << 22) - 1) << INO_BITS)
#define HISTORY_ROOT (HISTORY | 1)
#define FORKS_ROOT (HISTORY | 1ULL << 36)
#define CONTROL (HISTORY | 1ULL << 39)
#define CONTROL_STEP (1ULL << 38)
#define CONTROL_CONNECTION (1ULL << 37)
#define CONTROL_NUMBERS (CONTROL_CONNECTION - 1)
#define POSITION_BITS 32
#define STREAM_FIRST ((uint64_t)1 << 30)
/* One block: of a larger file the rest goes to the store. */
#define BLOCK_SIZE 65536
#define FILE_SIZE_MAX ((uint64_t)INT64_MAX - BLOCK_SIZE)
#define NAME_BYTES_MAX 255
#define TARGET_BYTES_MAX 4095
#define HISTORY_NAME ".checkpoints"
#define FORKS_NAME ".forks"

#define STAT_BLOCK 512

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE (1 << 0)
#endif

/* The fields of `model.Inode` that stat shows, by position. */
enum { INO, MODE, NLINK, UID, GID, RDEV, SIZE, ALLOCATED, ATIME, MTIME, CTIME };

/* What `serve` returns. */
enum { LEFT, TURN, ENDED };

/* How a request was dealt with. FAILED: a Python exception is set, and becomes the reply. */
typedef enum { REPLIED, PASSED, FAILED } Outcome;

/* UNSURE: the store has to be asked. */
typedef enum { UNSURE, ABSENT, FOUND } Look;

/* -- what Python is asked for ------------------------------------------------------------------ */

/* The methods of `interface.Callbacks`, which says what they are for. */
#define METHODS(X) \
    X(lookup) X(getattr) X(setattr) X(readlink) X(mknod) X(make_nameless) X(mkdir) X(symlink) \
    X(link) X(unlink) X(rmdir) X(rename) X(read_pieces) X(write) X(allocate) X(seek) \
    X(copy_range) X(sync) X(forget) X(entries) X(adopt) X(control_read) X(control_write) \
    X(control_forget) X(share_record) X(lease) X(joins) X(names_version) X(record) X(flush) \
    X(link_flushed) X(may_acknowledge) X(write_acknowledged) X(fail) X(errno_of) X(other) \
    X(compare) X(compare_all) X(end_of) X(block_digest) X(inline_digest)

typedef struct {
#define FIELD(name) PyObject *name;
    METHODS(FIELD)
#undef FIELD
    /* State that is looked at without asking: files without a name that are in use, files that a
     * restore replaced while they were, numbers that a restore gave to other files, by file the
     * blocks in the partial-block buffer, directories that are not compared with the lower
     * directory yet, and files whose size changed without a request. */
    PyObject *unlinked, *limbo, *generations, *partial, *uncompared, *resized;
} Callbacks;

/* -- inodes (inodes.c) ------------------------------------------------------------------------- */

typedef struct InodeBlock InodeBlock;

typedef struct {
    struct fuse_attr attributes;
    int are_valid; /* or the type alone is still right */
} CachedAttributes;

typedef struct {
    InodeBlock **slots; /* by the block's number, with linear probing */
    size_t size, count;
    InodeBlock *recent; /* the one found last: neighbours are looked up together */
    InodeBlock *dirty;  /* those with dirty marks */
    CachedAttributes *cache;
} InodeTable;

/* -- dentries (dentries.c) --------------------------------------------------------------------- */

typedef struct {
    /* Directories whose entries are all known, and hashes of the names in them. */
    HashSet known;
    /* The namespace's version when the last turn ended; NULL if nothing was known then. */
    PyObject *version;
    /* The name that was looked up last and is not there; none if its directory is 0. */
    uint64_t negative_parent;
    char negative_name[NAME_BYTES_MAX + 1];
} DentryTable;

/* -- write-behind (pending.c, pending_data.c, coalesce.c, lease.c) ----------------------------- */

#define PENDING_MAX 128
#define DIRTY_MAX 64
/* So many threads and processes may be known to act together. */
#define PARTY_MAX 16

/* A block of memory that Python may look at; see lent.c. */
typedef struct Lent Lent;

/* A file, directory or link that was acknowledged and is not in the store. */
typedef struct {
    struct fuse_attr attributes;
    int64_t btime_ns;
    uint64_t parent;
    uint32_t maker; /* the process */
    char name[NAME_BYTES_MAX + 1];
    /* Of a file its bytes, of a link its target. */
    char *data;
    size_t room;
    PyObject *record; /* of the bytes, once they are in the store; NULL before */
    int is_shared;    /* they were there already, and are not here */
} Pending;

/* An inode in the store with attributes that the store does not have yet. */
typedef struct {
    struct fuse_attr attributes;
    int subdirectories; /* made since, in a directory */
    int is_set;         /* by a program, not only by what was made in it */
} DirtyInode;

/* Under which changes are acknowledged before they are in the store: which processes, for how long,
 * and for how much. */
typedef struct {
    int held;
    uint32_t party[PARTY_MAX]; /* the first one is the one that asked */
    size_t party_size;
    int64_t until_ns;
    uint64_t ino; /* of the first pending create; they are numbered in order */
    uint64_t bytes;
    unsigned patience; /* so many changes pass before a lease is asked for again */
} Lease;

/* Bytes of a file. */
typedef struct {
    uint64_t offset;
    size_t size;
} Extent;

/* So much waits of a run at most. */
#define EXTENTS_MAX 64
#define RUN_BYTES (4 * BLOCK_SIZE)

/* The last write(2) to a file in the store, and those behind it that are not in the store yet; none
 * if its node is 0. */
typedef struct {
    uint64_t node;
    uint64_t end; /* of the last one */
    uint32_t pid;
    uint32_t flags;
    int64_t time_ns; /* when the last one was acknowledged */
    /* What waits, in the order of the writes, and how many bytes that is. */
    Extent extents[EXTENTS_MAX];
    size_t count, size;
} Coalesced;

/* Of so many files: a database writes to its journal and to itself in turn. */
#define RUNS_MAX 4

/* All that was acknowledged and is not in the store. `flush` (pending.c) hands it over. */
typedef struct {
    Pending items[PENDING_MAX];
    size_t count;
    DirtyInode dirty[DIRTY_MAX];
    size_t dirty_count;
    /* A pending file that has just got a second name, as a program does that writes beside, links
     * into place and removes the first name. It has two only until the next request; none if there
     * is no item. */
    struct {
        Pending *item;
        uint64_t parent;
        char name[NAME_BYTES_MAX + 1];
        uint32_t pid;
    } link;
    Coalesced runs[RUNS_MAX];
    unsigned runs_begun;
    char coalesced[RUNS_MAX][RUN_BYTES];
    Lease lease;
    /* The process that is in the middle of making a file, as far as one can tell; 0 if none is. */
    uint32_t busy_maker;
    /* Whether the last file that was made got another name at its end: then the next name that its
     * maker looks up is that of the file, not of the next one. */
    int ends_with_move;
} WriteBehind;

/* -- listings (readdir.c) ---------------------------------------------------------------------- */

/* The reply to a request for the entries of a directory, as far as it is put together. */
typedef struct {
    uint64_t node;
    int plus; /* with attributes */
    char *out;
    size_t used, size;
    uint64_t last; /* the cookie of the last entry in it */
} Listing;

#define STREAMS_MAX 64

typedef struct {
    /* The last replies that held all names at once: a reader that continues behind one of them, or
     * somewhere in the middle, is served by `Listings`, which takes the names. */
    struct {
        uint64_t stream; /* 0: none */
        Listing listing;
    } streams[STREAMS_MAX];
    uint64_t last_stream;
    /* The end of the listing that was replied last: the kernel asks until it gets nothing. */
    uint64_t ended_node, ended_at;
} Listings;

/* -- the committed snapshot (snapshot.c) ------------------------------------------------------- */

#define SUFFIX_SIZE 4
/* A block's record with its head, and the head of the page that it begins in. */
#define SNAPSHOT_BLOCK_MAX (sizeof(Page) + 2 + BLOCK_SIZE)

typedef struct {
    Pages pages;
    Pages prepared; /* the file that is to take the other's place */
    Tree inodes, dirents, blockmap, blocks;
    /* The head's view at that commit: the suffixes of the epochs that it sees, and its own. NULL:
     * nothing is known. */
    PyObject *seen;
    unsigned char first[SUFFIX_SIZE];
    /* A block that was read last, with what LMDB puts before it (contents.c). */
    unsigned char *block;
    /* What the guard raises, and what it calls before it does so of a change. */
    PyObject *damaged, *call_damaged;
} Snapshot;

/* What a record says of an inode, as far as stat shows it, and which content it has. */
typedef struct {
    uint64_t ino;
    uint32_t mode, nlink, uid, gid;
    uint64_t rdev, size, allocated;
    int64_t atime_ns, mtime_ns, ctime_ns;
    uint64_t content;
} InodeRecord;

/* -- the gate (gate.c) ------------------------------------------------------------------------- */

/* A change that waits for the gate to open. */
typedef struct Held Held;

typedef struct {
    int is_closed;
    Held *first, *last; /* in the order in which they came; the last counts if there is a first */
} Gate;

/* -- the server (server.c) --------------------------------------------------------------------- */

struct fuse_session;

/* Other mounts that a server serves in its loop (companions.c). */
typedef struct {
    struct Server **all;
    size_t count;
    int ready; /* an epoll descriptor of theirs; -1 before the first */
    /* Those that are asked for a request in turn: the server itself, then companions that had one a
     * moment ago. There is room for all. */
    struct Server **active;
    size_t active_count, next;
    int64_t look_ns; /* when to look next which others have a request */
} Companions;

typedef struct Request Request;

typedef struct Server {
    PyObject_HEAD
    struct Server *next; /* in the list of all */
    /* libfuse's, once pyfuse3 has mounted; NULL if it does not come here. */
    struct fuse_session *session;
    int is_standalone; /* it has a descriptor of its own, and no libfuse behind it */
    int is_refused;    /* the kernel cannot do what it must */
    int is_ended;      /* a standalone one: the kernel has ended the connection */
    int is_closed;
    int64_t served_ns; /* a companion: when it had its last request */
    Companions companions;
    int device;     /* the FUSE descriptor; -1 before the first request */
    char *buffer;   /* the request that was read last */
    size_t waiting; /* bytes of it that libfuse is to take */
    Lent *lent;     /* the buffer while Python looks at it, or NULL */
    const Request *unacknowledged; /* may be replied to before it is made; or NULL */
    unsigned long long requests;
    Waits waits;
    uint64_t control_lookups;
    Callbacks calls;
    InodeTable inodes;
    DentryTable dentries;
    WriteBehind *pending;
    Listings listings;
    Snapshot snapshot;
    Gate gate;
} Server;

struct Request {
    Server *server;
    const struct fuse_in_header *head;
    const char *body;
    size_t size;
};

/* Whether a file keeps its set-id bits when its bytes change by something else than write(2), of
 * which the kernel does not say whose they are to lose. */
static inline int keeps_set_id(const Request *request)
{
    return request->head->uid == 0;
}

/* Whether a name may be one that no table has: only Python knows what stands there. */
static inline int is_special(uint64_t parent, const char *name)
{
    return parent == FUSE_ROOT_ID && *name == '.' &&
           (!strcmp(name, HISTORY_NAME) || !strcmp(name, FORKS_NAME));
}

/* `.forks` and what stands in it: mounts stand there, so they are not asked for again and again. */
static inline int is_of_forks(uint64_t node)
{
    return node >= FORKS_ROOT && node < CONTROL;
}

/* The mode that a write or a change of owner leaves a file with; as in `inodes`. */
static inline uint32_t without_set_id(uint32_t mode)
{
    return mode & ~(uint32_t)(S_ISUID | (mode & S_IXGRP ? S_ISGID : 0));
}

#pragma GCC visibility push(hidden)

/* -- the loop (server.c) and other mounts in it (companions.c) --------------------------------- */

/* Begins and ends the part of a server in a turn of the loop. Of the first: 0 if there is no memory
 * for a request. */
int begin_turn(Server *server);
void end_turn(Server *server);

int companions_init(Server *server);
void companions_free(Server *server);

/* Looks which companions have a request, and has them served from here on; not more often than is
 * needed, unless ``is_due``. Returns 0 if there is no memory. */
int companions_look(Server *server, int64_t now, int is_due);

/* Begins and ends the turn of all that are served. Of the first: 0 if there is no memory. */
int companions_begin_turn(Server *server);
void companions_end_turn(Server *server);

extern const char open_doc[], join_doc[], reply_doc[];
PyObject *open_method(PyObject *self, PyObject *args);
PyObject *join_method(PyObject *self, PyObject *other);
PyObject *part_method(PyObject *self, PyObject *other);
PyObject *reply_method(PyObject *self, PyObject *args);
PyObject *is_ended_method(PyObject *self, PyObject *none);
#define COMPANION_METHODS \
    {"open", open_method, METH_VARARGS, open_doc}, {"join", join_method, METH_O, join_doc}, \
    {"part", part_method, METH_O, "Serve that one no longer."}, \
    {"reply", reply_method, METH_VARARGS, reply_doc}, \
    {"ended", is_ended_method, METH_NOARGS, "Whether the kernel has ended the connection."}

/* What a standalone server does with a request that has no handler here. */
Outcome ask_other(const Request *request);

/* -- replies (reply.c) ------------------------------------------------------------------------- */

/* Whether the caller was there to take the reply. */
int send_reply(const Request *request, int error, const void *body, size_t size);
Outcome reply(const Request *request, const void *body, size_t size);
Outcome reply_error(const Request *request, int error);

/* For how many nanoseconds the kernel may believe attributes. */
int64_t validity_of(const struct fuse_attr *attributes);

/* An inode under a name, and a name that is not there. */
Outcome reply_entry_attr(const Request *request, const struct fuse_attr *attributes);
Outcome reply_negative(const Request *request);
/* The attributes of a node. */
Outcome reply_attr(const Request *request, const struct fuse_attr *attributes);

PyObject *acknowledge_method(PyObject *self, PyObject *none);

/* What Python returned, whose reference is dropped: nothing, an inode under a name, the attributes
 * of one, bytes, a list of such, which are not copied. FAILED if it is NULL. */
Outcome reply_done(const Request *request, PyObject *result);
Outcome reply_changed(const Request *request, PyObject *result);
Outcome reply_entry(const Request *request, PyObject *inode);
Outcome reply_attributes(const Request *request, PyObject *inode);
Outcome reply_bytes(const Request *request, PyObject *result);
Outcome reply_pieces(const Request *request, PyObject *list);

/* A name or an inode of the live tree, as far as the committed snapshot knows it. */
Look find_committed(Server *server, uint64_t parent, const char *name,
                    struct fuse_attr *attributes);
int get_committed(Server *server, uint64_t node, struct fuse_attr *attributes);
/* Bytes of a file, within one of its blocks. Returns 0 if the store has to be asked. */
int read_committed(Server *server, const Request *request, Bytes *bytes);
void fill_from_record(struct fuse_attr *attributes, const InodeRecord *record);

/* Whether a number means what it means in the store: a restore may have parted the two. */
int is_plain(Server *server, uint64_t node);

/* Whether a dictionary has a number for a key; where that cannot be found out, as if it had. */
int has_number(PyObject *numbers, uint64_t node);

/* What the numbers of inodes in the view of a node have above them. */
uint64_t base_of(uint64_t node);

/* Return 0 if what Python returned is no inode; an exception is set then. */
int fill_attributes(struct fuse_attr *attributes, PyObject *inode, uint64_t base);
int fill_entry(Server *server, struct fuse_entry_out *entry, PyObject *inode, uint64_t base);

/* Caches attributes of the store that are about to be replied, and puts in those that the store
 * does not have yet. */
void note_attributes(Server *server, struct fuse_attr *attributes);

void set_time(uint64_t *seconds, uint32_t *nanoseconds, int64_t time_ns);
int64_t join_time(uint64_t seconds, uint32_t nanoseconds);

/* The errno for the exception that is set; an unexpected one is logged. */
int errno_of_failure(Server *server);

#define NUMBER(value) PyLong_FromUnsignedLongLong(value)

/* Calls with arguments that are all new references, and drops those. There is a free place before
 * the first, which a method puts its object into. */
PyObject *call(PyObject *method, size_t count, PyObject **arguments);

#define CALL(server, method, ...) \
    call((server)->calls.method, \
         sizeof((PyObject *[]){NULL, ##__VA_ARGS__}) / sizeof(PyObject *) - 1, \
         (PyObject *[]){NULL, ##__VA_ARGS__} + 1)

/* -- handlers (dispatch.c, readdir.c) ---------------------------------------------------------- */

/* What replies to a request, and how many bytes it must have behind its head. Names come after
 * those, and end with a zero in any case. */
typedef struct {
    Outcome (*handle)(const Request *request);
    size_t least;
} Handler;

/* Whether a node is a connection to the daemon. */
int is_connection(uint64_t node);

/* NULL for what is passed to libfuse. */
const Handler *handler_of(uint32_t opcode);

Outcome do_readdir(const Request *request);
Outcome do_readdirplus(const Request *request);

void listings_init(Listings *listings);
void listings_free(Listings *listings);

/* Whether a listing may give no more than the number of a live inode. */
int is_cached(Server *server, uint64_t ino);

/* -- memory that Python looks at (lent.c) ------------------------------------------------------ */

int lent_ready(void);

/* A view of bytes, to be called with. ``lent`` is set to what holds them. NULL with an exception
 * set if there is no memory. */
PyObject *lend(Lent **lent, char *bytes, size_t size);

/* The view is not needed any more. Returns 0 if Python kept it: then ``memory``, which the bytes
 * are in, is freed with the last view, and is not the caller's any more. */
int take_back(Lent **lent, char *memory);

/* -- inodes (inodes.c) ------------------------------------------------------------------------- */

int inodes_init(InodeTable *table);
void inodes_free(InodeTable *table);

/* Lookup counts: a node was replied together with its name, and the kernel forgets such replies. Of
 * the second: whether that was all it had of the node. */
void inodes_reference(InodeTable *table, uint64_t node);
int inodes_unreference(InodeTable *table, uint64_t node, uint64_t times);

/* Whether the kernel knows a live inode, and may be using it. */
int inodes_is_referenced(InodeTable *table, uint64_t node);

/* Attributes as they were last replied. */
void inodes_cache(InodeTable *table, const struct fuse_attr *attributes);
/* NULL if they are not valid. */
const struct fuse_attr *inodes_attributes(const InodeTable *table, uint64_t node);
/* Whether anything is cached of a node. */
int inodes_has(const InodeTable *table, uint64_t node);
/* The type, as in a mode; 0 if it is not known. */
uint32_t inodes_type(const InodeTable *table, uint64_t node);
void inodes_invalidate(InodeTable *table, uint64_t node);

/* Dirty marks: an inode, or what is in a directory, changed since the last commit. Returns 0 if
 * there is no memory for the mark. */
int inodes_mark_dirty(InodeTable *table, uint64_t ino);
int inodes_is_dirty(InodeTable *table, uint64_t ino);
void inodes_clear_dirty(InodeTable *table);

/* -- dentries (dentries.c) --------------------------------------------------------------------- */

int dentries_init(DentryTable *table);
void dentries_free(DentryTable *table);

/* A directory was just made and has nothing in it. */
void dentries_add_directory(DentryTable *table, uint64_t node);

/* Something was put under a name, or may have been. */
void dentries_add(DentryTable *table, uint64_t parent, const char *name);

/* A name was looked up and is not there. */
void dentries_add_negative(DentryTable *table, uint64_t parent, const char *name);
void dentries_clear_negative(DentryTable *table);

/* Whether it is known that a directory has nothing of that name. */
int dentries_is_negative(const DentryTable *table, uint64_t parent, const char *name);
/* The same, or it was looked up a moment ago. */
int dentries_was_negative(const DentryTable *table, uint64_t parent, const char *name);

/* Between two turns others may put names into directories. */
void dentries_begin_turn(Server *server);
void dentries_end_turn(Server *server);

/* -- write-behind (pending.c, pending_data.c) -------------------------------------------------- */

/* Replies to the request if that can be done without the store. Else sees to it that the store has
 * all that the request may depend on. */
Outcome pending_handle(const Request *request);

/* Whether the store does not have all of an inode's attributes yet; and puts in what it has not. */
int pending_is_dirty(const Server *server, uint64_t node);
void pending_apply(const Server *server, struct fuse_attr *attributes);

/* A write(2) is in the store. */
void coalesce_note_write(const Request *request);

/* Puts everything that was acknowledged into the store: the one way out of the buffers. */
void flush(Server *server);
/* The same, and forgets all that is known: others may change anything from here on. */
void flush_and_forget(Server *server);

/* Whether a process seems to be in the middle of making a file. */
int pending_is_midway(const Server *server);

void pending_free(WriteBehind *pending);

/* NULL if a node is not pending. */
Pending *pending_of(const Server *server, uint64_t node);

/* The attributes of an inode of the live tree. Returns 0 if the store cannot tell. */
int get_stored(Server *server, uint64_t node, struct fuse_attr *attributes);

/* Passes a change on to the store, which knows all that came before it. */
Outcome pass_change(Server *server);

/* What was acknowledged cannot be put into the store: nothing goes on as if it were there. */
void fail(Server *server);

void stamp_change(struct fuse_attr *attributes, int64_t now_ns);

int has_bytes(const Pending *item);

/* Room for so many bytes of an item. Returns 0 if there is none. */
int make_space(Pending *item, size_t size);

/* Puts the bytes of a file into the store ahead of it. Returns 0 with an exception set if that
 * failed. */
int record_bytes(Server *server, Pending *item);

/* What comes with an item: of a file the record of its bytes, of a link its target. */
PyObject *flushed_data(Server *server, Pending *item);

Outcome write_bytes(const Request *request);
Outcome copy_bytes(const Request *request);
Outcome read_bytes(const Request *request);
Outcome read_link(const Request *request);

/* -- coalescing (coalesce.c) ------------------------------------------------------------------- */

/* Any other request than a write ends the runs of writes, unless it changes nothing. */
void coalesce_note(const Request *request);

/* Replies to a write that goes on with the run of its file; else passes it on. */
Outcome coalesce_write(const Request *request);

/* The same for one that none goes before: at the end of a file that the process was writing to. */
Outcome coalesce_begin(const Request *request);

/* Ends the run of writes to a file, and all runs. */
void coalesce_end(Server *server, uint64_t node);
void coalesce_end_all(Server *server);

/* Whether a write is one of whole blocks, and its reply, ahead of the store if that is sure to take
 * it. */
int is_stream(const Request *request);
Outcome stream_write(const Request *request);

/* The part of `flush` that is about coalesced bytes. */
void coalesce_flush(Server *server);

/* -- partial blocks that wait in Python (partial.c) -------------------------------------------- */

int partial_ready(void);

/* Whether the store has seen that a block can be written to, and has it in its partial-block
 * buffer. */
int partial_has(const Server *server, uint64_t node, uint64_t number);

PyObject *overwrite(PyObject *module, PyObject *args);

/* -- the lease (lease.c) ----------------------------------------------------------------------- */

/* Whether a process has the lease, and whether it has it or gets one. */
int has_lease(Server *server, uint32_t pid);
int may_change(Server *server, uint32_t pid);

/* Whether it is for so many bytes more, and that they were used. */
int lease_covers(const Server *server, uint64_t size);
void lease_spend(Server *server, uint64_t size);

/* A change went to the store. */
void lease_pass(Server *server);

/* The time of a change now. */
int64_t stamp_ns(void);

/* -- the committed snapshot (snapshot.c, contents.c, guard.c) ---------------------------------- */

Look snapshot_lookup(Server *server, uint64_t parent, const char *name, InodeRecord *found);

/* An inode by its number; never ABSENT. */
Look snapshot_getattr(Server *server, uint64_t ino, InodeRecord *found);

/* What is done with each entry of a directory: its name, its number, and the inode, unless that is
 * not wanted. Returns 0 to end it. */
typedef int Each(void *context, const char *name, size_t size, uint64_t ino,
                 const InodeRecord *inode);

/* All entries of a directory, by name. ``skips`` tells of which the number is enough. Returns 0 if
 * not all were given. */
int snapshot_readdir(Server *server, uint64_t directory, int (*skips)(Server *, uint64_t),
                     Each *each, void *context);

/* The number of the directory above one. Returns 0 if that is not known. */
int snapshot_parent(Server *server, uint64_t directory, uint64_t *above);

/* An inode changes from here on, or what is in it. */
void snapshot_touch(Server *server, uint64_t ino);

/* The newest record of an entity that the view sees. ``key`` has room for a suffix behind the
 * entity. */
Look snapshot_newest(Snapshot *snapshot, const Tree *tree, unsigned char *key, size_t size,
                     Bytes *record);

/* A number as it stands in keys. */
void put_big(unsigned char *at, uint64_t value);

/* Bytes of a file that are in one of its blocks, fewer than ``size`` at its end; they stand until
 * the next call. Returns 0 if the store has to be asked. */
int snapshot_read(Server *server, uint64_t ino, uint64_t offset, uint64_t size, Bytes *bytes);

/* Forgets it, and unmaps the file. */
void snapshot_detach(Server *server);

/* -- the gate (gate.c) ------------------------------------------------------------------------- */

/* PASSED if a request may be answered now. */
Outcome gate_handle(const Request *request);

/* Requests will not come by the gate: everything is compared at once. Returns 0 with an exception
 * set if that failed. */
int gate_compare_all(Server *server);

/* Puts the next change that waited into the server's buffer, if the gate is open; its size, or 0. */
size_t gate_take(Server *server);

void gate_free(Gate *gate);

#define GATE_METHODS \
    {"close_gate", gate_close_method, METH_NOARGS, "Changes wait from now on."}, \
    {"open_gate", gate_open_method, METH_NOARGS, "Everything is compared."}, \
    {"holds_changes", gate_holds_method, METH_NOARGS, "Whether a change waits."}
PyObject *gate_close_method(PyObject *self, PyObject *none);
PyObject *gate_open_method(PyObject *self, PyObject *none);
PyObject *gate_holds_method(PyObject *self, PyObject *none);

/* Methods of the server: `store/snapshot.py` says what they are for. */
#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL
#define SNAPSHOT_METHODS \
    {"refresh", snapshot_refresh_method, METH_VARARGS, snapshot_refresh_doc}, \
    {"invalidate", snapshot_invalidate_method, METH_NOARGS, "Know nothing until a refresh."}, \
    {"detach", snapshot_detach_method, METH_NOARGS, "The same; the file is another then."}, \
    {"touch", snapshot_touch_method, METH_O, "A record changes whose key begins so."}, \
    {"look_up", snapshot_lookup_method, METH_VARARGS, snapshot_lookup_doc}, \
    {"names_in", snapshot_names_method, METH_O, snapshot_names_doc}, \
    {"bytes_at", snapshot_read_method, METH_VARARGS, snapshot_read_doc}
#define GUARD_METHODS \
    {"guard", guard_method, METH_VARARGS, guard_doc}, \
    {"committed", guard_committed_method, METH_O, "A commit was made into this data file."}, \
    {"require", FAST(guard_require_method), guard_require_doc}, \
    {"require_all", FAST(guard_require_all_method), guard_require_all_doc}, \
    {"require_some", FAST(guard_require_some_method), guard_require_some_doc}, \
    {"require_before", FAST(guard_require_before_method), guard_require_before_doc}, \
    {"free_is_whole", guard_free_is_whole_method, METH_NOARGS, \
     "Whether the lists of free pages are what was committed."}, \
    {"prepare", guard_prepare_method, METH_VARARGS, guard_prepare_doc}, \
    {"exchange", guard_exchange_method, METH_O, guard_exchange_doc}, \
    {"release", guard_release_method, METH_NOARGS, "Drop the memory that the pages take."}

extern const char snapshot_refresh_doc[], snapshot_lookup_doc[], snapshot_names_doc[];
extern const char snapshot_read_doc[];
PyObject *snapshot_refresh_method(PyObject *self, PyObject *args);
PyObject *snapshot_invalidate_method(PyObject *self, PyObject *none);
PyObject *snapshot_detach_method(PyObject *self, PyObject *none);
PyObject *snapshot_touch_method(PyObject *self, PyObject *entity);
PyObject *snapshot_lookup_method(PyObject *self, PyObject *args);
PyObject *snapshot_names_method(PyObject *self, PyObject *directory);
PyObject *snapshot_read_method(PyObject *self, PyObject *args);

extern const char guard_doc[], guard_require_doc[], guard_require_all_doc[];
extern const char guard_require_some_doc[], guard_require_before_doc[];
extern const char guard_prepare_doc[], guard_exchange_doc[];
PyObject *guard_method(PyObject *self, PyObject *args);
PyObject *guard_committed_method(PyObject *self, PyObject *path);
PyObject *guard_require_method(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *guard_require_some_method(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *guard_require_before_method(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *guard_require_all_method(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *guard_free_is_whole_method(PyObject *self, PyObject *none);
PyObject *guard_prepare_method(PyObject *self, PyObject *args);
PyObject *guard_exchange_method(PyObject *self, PyObject *path);
PyObject *guard_release_method(PyObject *self, PyObject *none);

/* A function of the module: what this side reads in the record of an inode (snapshot.c). */
extern const char decode_inode_doc[];
PyObject *decode_inode(PyObject *module, PyObject *args);

#pragma GCC visibility pop

#endif
