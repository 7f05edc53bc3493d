/* The compiled front: it reads requests from the FUSE descriptor, answers the frequent ones, and
 * leaves the rest to libfuse and pyfuse3.
 *
 * pyfuse3 reads a request, makes a coroutine, a context and an attribute object for it, and visits
 * the event loop; that is most of what a small request costs. Here a request is parsed where it was
 * read, the method of `Requests` that it means is called with plain values, and the inode that it
 * returns is written out as the answer. What it means is decided there, in Python, for both doors.
 *
 * pyfuse3 asks libfuse for the next request by `fuse_session_receive_buf`. This module is loaded
 * with its symbols visible before pyfuse3 is, so that call arrives here: it is given the request
 * that `serve` read and did not answer. Without this module everything works the same, slower.
 *
 * Requests name the node that they are about, so files and directories need not be opened: the
 * kernel is told so once, and from then on open(2) and close(2) cost what they cost natively. Who
 * uses a file is then known by what the kernel has looked up and not forgotten yet.
 *
 * Everything runs with the interpreter's lock held, but for the wait for the next request.
 */

#include "_front.h"

/* How many blocks the bytes of one answer may be from. */
#define PIECES_MAX (WRITE_MAX / IO_SIZE + 2)

static int device = -1;
static char *buffer;
static size_t waiting; /* bytes of a request in `buffer` that libfuse is to take */
static int hooked;     /* pyfuse3 was seen to come here */
static unsigned long long requests;

/* The methods of `Requests`, and the state that is looked at here without asking it. */
#define METHODS(X) \
    X(lookup) X(getattr) X(setattr) X(readlink) X(mknod) X(mkdir) X(symlink) X(link) X(unlink) \
    X(rmdir) X(rename) X(read_pieces) X(write) X(sync) X(forget) X(entries) X(adopt) X(errno_of)
#define DECLARE(name) static PyObject *call_##name;
METHODS(DECLARE)
static PyObject *generations, *limbo, *unlinked;

/* -- what the kernel knows -------------------------------------------------------------------- */

/* How often each live inode was looked up and not forgotten, in pages that come and go: numbers
 * are given out in order, so most of a page is in use if any of it is. A page is small, since of a
 * million files that came and went a few may be left here and there. */
#define PAGE_BITS 8
#define PAGE_SIZE (1 << PAGE_BITS)
typedef struct {
    uint32_t used;
    uint32_t counts[PAGE_SIZE];
} Page;
static Page **pages;
static size_t pages_count;

static int make_room(size_t index)
{
    size_t wanted = (index + 1) * 2;
    Page **more = index < pages_count ? pages : realloc(pages, wanted * sizeof *pages);
    if (!more)
        return 0;
    if (index >= pages_count) {
        memset(more + pages_count, 0, (wanted - pages_count) * sizeof *pages);
        pages = more;
        pages_count = wanted;
    }
    if (!pages[index])
        pages[index] = calloc(1, sizeof **pages);
    return pages[index] != NULL;
}

static void remember(uint64_t node)
{
    size_t index = node >> PAGE_BITS;
    if (node >= LIVE_END || node <= FUSE_ROOT_ID)
        return;
    if (!make_room(index)) {
        fprintf(stderr, "ckptfs: out of memory\n");
        abort(); /* a file that is forgotten while it is open would lose its bytes */
    }
    if (!pages[index]->counts[node % PAGE_SIZE]++)
        pages[index]->used++;
}

static int is_known(uint64_t node)
{
    size_t index = node >> PAGE_BITS;
    if (node == FUSE_ROOT_ID)
        return 1; /* without having been looked up */
    return index < pages_count && pages[index] && pages[index]->counts[node % PAGE_SIZE];
}

/* Whether that was all the kernel knew of it. */
static int forget_some(uint64_t node, uint64_t times)
{
    if (node >= LIVE_END || node == FUSE_ROOT_ID || !is_known(node))
        return 0;
    Page **page = &pages[node >> PAGE_BITS];
    uint32_t *count = &(*page)->counts[node % PAGE_SIZE];
    *count -= times < *count ? (uint32_t)times : *count;
    if (*count)
        return 0;
    if (!--(*page)->used) {
        free(*page);
        *page = NULL;
    }
    return 1;
}

static void forget_everything(void)
{
    for (size_t i = 0; i < pages_count; i++)
        free(pages[i]);
    free(pages);
    pages = NULL;
    pages_count = 0;
}

/* -- answers ---------------------------------------------------------------------------------- */

/* Whether the one who asked took the answer. */
int send_answer(const Request *request, int error, const void *body, size_t size)
{
    struct fuse_out_header head = {
        .len = sizeof head + size,
        .error = -error,
        .unique = request->head->unique,
    };
    struct iovec parts[] = {{&head, sizeof head}, {(void *)body, size}};
    return writev(device, parts, size ? 2 : 1) > 0;
}

Outcome answer(const Request *request, const void *body, size_t size)
{
    send_answer(request, 0, body, size);
    return ANSWERED;
}

Outcome answer_error(const Request *request, int error)
{
    send_answer(request, error, NULL, 0);
    return ANSWERED;
}

/* The result of a call that says only whether it worked. */
static Outcome answer_done(const Request *request, PyObject *result)
{
    if (!result)
        return FAILED;
    Py_DECREF(result);
    return answer_error(request, 0);
}

static uint64_t base_of(uint64_t node)
{
    return node < HISTORY ? node & ~(LIVE_END - 1) : 0;
}

static int64_t field(PyObject *inode, int index)
{
    return PyLong_AsLongLong(PyTuple_GET_ITEM(inode, index));
}

void set_time(uint64_t *seconds, uint32_t *nanoseconds, int64_t time_ns)
{
    int before = time_ns % NS < 0; /* C rounds towards zero */
    *seconds = (uint64_t)(time_ns / NS - before);
    *nanoseconds = (uint32_t)(time_ns % NS + (before ? NS : 0));
}

/* Returns 0 if what Python returned is no inode; an exception is set then. */
int fill_attributes(struct fuse_attr *attributes, PyObject *inode, uint64_t base)
{
    if (!PyTuple_Check(inode) || PyTuple_GET_SIZE(inode) <= CTIME) {
        PyErr_SetString(PyExc_TypeError, "an inode was expected");
        return 0;
    }
    memset(attributes, 0, sizeof *attributes);
    attributes->ino = base | (uint64_t)field(inode, INO);
    attributes->size = (uint64_t)field(inode, SIZE);
    attributes->blocks = ((uint64_t)field(inode, ALLOCATED) + STAT_BLOCK - 1) / STAT_BLOCK;
    set_time(&attributes->atime, &attributes->atimensec, field(inode, ATIME));
    set_time(&attributes->mtime, &attributes->mtimensec, field(inode, MTIME));
    set_time(&attributes->ctime, &attributes->ctimensec, field(inode, CTIME));
    attributes->mode = (uint32_t)field(inode, MODE);
    attributes->nlink = (uint32_t)field(inode, NLINK);
    attributes->uid = (uint32_t)field(inode, UID);
    attributes->gid = (uint32_t)field(inode, GID);
    attributes->rdev = (uint32_t)field(inode, RDEV);
    attributes->blksize = IO_SIZE;
    return !PyErr_Occurred();
}

static void show_standing(struct fuse_attr *attributes, const Standing *standing)
{
    *attributes = (struct fuse_attr){
        .ino = standing->ino,
        .size = standing->size,
        .blocks = (standing->allocated + STAT_BLOCK - 1) / STAT_BLOCK,
        .mode = standing->mode,
        .nlink = standing->nlink,
        .uid = standing->uid,
        .gid = standing->gid,
        .rdev = (uint32_t)standing->rdev,
        .blksize = IO_SIZE,
    };
    set_time(&attributes->atime, &attributes->atimensec, standing->atime_ns);
    set_time(&attributes->mtime, &attributes->mtimensec, standing->mtime_ns);
    set_time(&attributes->ctime, &attributes->ctimensec, standing->ctime_ns);
}

static int has_number(PyObject *numbers, uint64_t node)
{
    if (!PyDict_GET_SIZE(numbers))
        return 0;
    PyObject *number = NUMBER(node);
    int has = number ? PyDict_Contains(numbers, number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return has != 0;
}

/* Whether a number means what it means in the store: a restore may have parted the two. */
static int is_plain(uint64_t node)
{
    return node < LIVE_END && !has_number(limbo, node) && !has_number(generations, node);
}

Look find_standing(uint64_t parent, const char *name, struct fuse_attr *attributes)
{
    Standing standing;
    if (!is_plain(parent) || (parent == FUSE_ROOT_ID && !strcmp(name, HISTORY_NAME)))
        return UNSURE;
    Look look = standing_look_up(parent, name, &standing);
    if (look == FOUND && !is_plain(standing.ino))
        return UNSURE;
    if (look == FOUND)
        show_standing(attributes, &standing);
    return look;
}

int get_standing(uint64_t node, struct fuse_attr *attributes)
{
    Standing standing;
    if (!is_plain(node) || standing_get(node, &standing) != FOUND)
        return 0;
    show_standing(attributes, &standing);
    return 1;
}

static uint64_t generation_of(PyObject *inode, uint64_t node)
{
    if (node >= LIVE_END || !PyDict_GET_SIZE(generations))
        return 0;
    PyObject *generation = PyDict_GetItem(generations, PyTuple_GET_ITEM(inode, INO));
    return generation ? PyLong_AsUnsignedLongLong(generation) : 0;
}

/* Attributes as the store has them are about to be answered; puts in what it has not heard of yet. */
static void note_attributes(struct fuse_attr *attributes)
{
    known_note(attributes);
    fresh_note_directory(attributes);
}

/* What is said of an inode together with its name. */
static int fill_entry(struct fuse_entry_out *entry, PyObject *inode, uint64_t base)
{
    memset(entry, 0, sizeof *entry);
    if (!fill_attributes(&entry->attr, inode, base))
        return 0;
    note_attributes(&entry->attr);
    entry->nodeid = entry->attr.ino;
    entry->generation = generation_of(inode, entry->nodeid);
    entry->attr_valid = entry->nodeid < HISTORY ? FOREVER : 0;
    /* What stands in `.checkpoints` itself has no base, and comes and goes. */
    entry->entry_valid = base || entry->nodeid < LIVE_END ? FOREVER : 0;
    return 1;
}

static Outcome answer_entry(const Request *request, PyObject *inode)
{
    struct fuse_entry_out entry;
    if (!inode)
        return FAILED;
    int filled = fill_entry(&entry, inode, base_of(request->head->nodeid));
    Py_DECREF(inode);
    if (!filled)
        return FAILED;
    if (send_answer(request, 0, &entry, sizeof entry))
        remember(entry.nodeid);
    return ANSWERED;
}

Outcome answer_new_entry(const Request *request, const struct fuse_attr *attributes)
{
    struct fuse_entry_out entry = {
        .nodeid = attributes->ino,
        .attr = *attributes,
        .attr_valid = FOREVER,
        .entry_valid = FOREVER,
    };
    if (send_answer(request, 0, &entry, sizeof entry))
        remember(entry.nodeid);
    return ANSWERED;
}

Outcome answer_absent(const Request *request)
{
    /* Node 0 and a time: the kernel remembers that the name is not there. */
    uint64_t valid = request->head->nodeid < HISTORY ? FOREVER : 0;
    struct fuse_entry_out absent = {.entry_valid = valid};
    return answer(request, &absent, sizeof absent);
}

Outcome answer_known(const Request *request, const struct fuse_attr *attributes)
{
    struct fuse_attr_out out = {.attr = *attributes, .attr_valid = FOREVER};
    return answer(request, &out, sizeof out);
}

static Outcome answer_attributes(const Request *request, PyObject *inode)
{
    struct fuse_attr_out out = {0};
    if (!inode)
        return FAILED;
    int filled = fill_attributes(&out.attr, inode, base_of(request->head->nodeid));
    Py_DECREF(inode);
    out.attr_valid = out.attr.ino < HISTORY ? FOREVER : 0;
    if (!filled)
        return FAILED;
    note_attributes(&out.attr);
    return answer(request, &out, sizeof out);
}

/* The bytes of an object, whatever it is, without a copy. */
static Outcome answer_bytes(const Request *request, PyObject *result)
{
    Py_buffer data;
    if (!result)
        return FAILED;
    int got = !PyObject_GetBuffer(result, &data, PyBUF_SIMPLE);
    if (got) {
        answer(request, data.buf, (size_t)data.len);
        PyBuffer_Release(&data);
    }
    Py_DECREF(result);
    return got ? ANSWERED : FAILED;
}

/* The bytes of the objects in a list, one behind the other, without a copy. */
static Outcome answer_pieces(const Request *request, PyObject *list)
{
    if (!list)
        return FAILED;
    Py_buffer buffers[PIECES_MAX];
    struct iovec parts[PIECES_MAX + 1];
    struct fuse_out_header head = {.len = sizeof head, .unique = request->head->unique};
    Py_ssize_t wanted = PyList_Check(list) ? PyList_GET_SIZE(list) : PIECES_MAX + 1, got = 0;
    if (wanted > PIECES_MAX)
        PyErr_SetString(PyExc_TypeError, "the bytes of a few blocks were expected");
    while (wanted <= PIECES_MAX && got < wanted &&
           !PyObject_GetBuffer(PyList_GET_ITEM(list, got), &buffers[got], PyBUF_SIMPLE)) {
        head.len += (uint32_t)buffers[got].len;
        parts[got + 1] = (struct iovec){buffers[got].buf, (size_t)buffers[got].len};
        got++;
    }
    parts[0] = (struct iovec){&head, sizeof head};
    if (got == wanted)
        writev(device, parts, (int)got + 1);
    for (Py_ssize_t i = 0; i < got; i++)
        PyBuffer_Release(&buffers[i]);
    Py_DECREF(list);
    return got == wanted ? ANSWERED : FAILED;
}

/* The errno for the exception that is set; it is told in the log if nobody expected it. */
int errno_of_failure(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    PyObject *number = PyObject_CallOneArg(call_errno_of, value);
    int error = number ? (int)PyLong_AsLong(number) : EIO;
    PyErr_Clear();
    Py_XDECREF(number);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return error > 0 ? error : EIO;
}

/* -- calls ------------------------------------------------------------------------------------ */

PyObject *call(PyObject *method, size_t count, PyObject **arguments)
{
    PyObject *result = NULL;
    size_t made = 0;
    while (made < count && arguments[made])
        made++;
    if (made == count)
        result = PyObject_Vectorcall(method, arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    for (size_t i = 0; i < count; i++)
        Py_XDECREF(arguments[i]);
    return result;
}

/* -- names ------------------------------------------------------------------------------------ */

/* A name that stands as it was committed. */
static Outcome answer_standing(const Request *request, struct fuse_attr *attributes)
{
    note_attributes(attributes);
    return answer_new_entry(request, attributes);
}

static Outcome answer_no_entry(const Request *request)
{
    fresh_note_absent(request);
    return answer_absent(request);
}

static Outcome do_lookup(const Request *request)
{
    uint64_t parent = request->head->nodeid;
    struct fuse_attr attributes;
    Look look = find_standing(parent, request->body, &attributes);
    if (look != UNSURE)
        return look == FOUND ? answer_standing(request, &attributes) : answer_no_entry(request);
    PyObject *inode = CALL(call_lookup, NUMBER(parent), PyBytes_FromString(request->body));
    if (inode != Py_None)
        return answer_entry(request, inode);
    Py_DECREF(inode);
    return answer_no_entry(request);
}

static Outcome do_getattr(const Request *request)
{
    const struct fuse_attr *known = known_of(request->head->nodeid);
    struct fuse_attr attributes;
    if (known)
        return answer_known(request, known);
    if (get_standing(request->head->nodeid, &attributes)) {
        note_attributes(&attributes);
        return answer_known(request, &attributes);
    }
    return answer_attributes(request, CALL(call_getattr, NUMBER(request->head->nodeid)));
}

static Outcome do_mkdir(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    const struct fuse_mkdir_in *in = (const void *)request->body;
    if (head->nodeid == HISTORY_ROOT)
        return NOT_OURS;
    return answer_entry(request, CALL(call_mkdir, NUMBER(head->nodeid),
                                      PyBytes_FromString((const char *)(in + 1)), NUMBER(in->mode),
                                      NUMBER(head->pid), NUMBER(head->uid), NUMBER(head->gid)));
}

static PyObject *make_node(const Request *request, const char *name, uint32_t mode, uint32_t rdev)
{
    const struct fuse_in_header *head = request->head;
    return CALL(call_mknod, NUMBER(head->nodeid), PyBytes_FromString(name), NUMBER(mode),
                NUMBER(rdev), NUMBER(head->pid), NUMBER(head->uid), NUMBER(head->gid));
}

static Outcome do_mknod(const Request *request)
{
    const struct fuse_mknod_in *in = (const void *)request->body;
    return answer_entry(request, make_node(request, (const char *)(in + 1), in->mode, in->rdev));
}

static Outcome do_symlink(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    const char *target = request->body + strlen(request->body) + 1;
    return answer_entry(request, CALL(call_symlink, NUMBER(head->nodeid),
                                      PyBytes_FromString(request->body),
                                      PyBytes_FromString(target), NUMBER(head->pid),
                                      NUMBER(head->uid), NUMBER(head->gid)));
}

static Outcome do_link(const Request *request)
{
    const struct fuse_link_in *in = (const void *)request->body;
    return answer_entry(request, CALL(call_link, NUMBER(in->oldnodeid),
                                      NUMBER(request->head->nodeid),
                                      PyBytes_FromString((const char *)(in + 1)),
                                      NUMBER(request->head->pid)));
}

static Outcome do_readlink(const Request *request)
{
    return answer_bytes(request, CALL(call_readlink, NUMBER(request->head->nodeid)));
}

static Outcome remove_name(const Request *request, PyObject *method)
{
    return answer_done(request, CALL(method, NUMBER(request->head->nodeid),
                                     PyBytes_FromString(request->body),
                                     NUMBER(request->head->pid)));
}

static Outcome do_unlink(const Request *request)
{
    return remove_name(request, call_unlink);
}

static Outcome do_rmdir(const Request *request)
{
    return request->head->nodeid == HISTORY_ROOT ? NOT_OURS : remove_name(request, call_rmdir);
}

static Outcome rename_to(const Request *request, uint64_t directory, uint32_t flags,
                         const char *name)
{
    const char *new_name = name + strlen(name) + 1;
    return answer_done(request, CALL(call_rename, NUMBER(request->head->nodeid),
                                     PyBytes_FromString(name), NUMBER(directory),
                                     PyBytes_FromString(new_name), NUMBER(flags),
                                     NUMBER(request->head->pid)));
}

static Outcome do_rename(const Request *request)
{
    const struct fuse_rename_in *in = (const void *)request->body;
    return rename_to(request, in->newdir, 0, (const char *)(in + 1));
}

static Outcome do_rename2(const Request *request)
{
    const struct fuse_rename2_in *in = (const void *)request->body;
    return rename_to(request, in->newdir, in->flags, (const char *)(in + 1));
}

/* Nobody waits for an answer, and what went wrong with one node is no matter to the next. */
static void forget_node(uint64_t node, uint64_t times)
{
    if (!forget_some(node, times) || (!PySet_GET_SIZE(unlinked) && !PyDict_GET_SIZE(limbo)))
        return;
    PyObject *result = CALL(call_forget, NUMBER(node));
    if (!result)
        errno_of_failure();
    Py_XDECREF(result);
}

static Outcome do_forget(const Request *request)
{
    const struct fuse_forget_in *in = (const void *)request->body;
    forget_node(request->head->nodeid, in->nlookup);
    return ANSWERED;
}

static Outcome do_batch_forget(const Request *request)
{
    const struct fuse_batch_forget_in *in = (const void *)request->body;
    const struct fuse_forget_one *items = (const void *)(in + 1);
    size_t there = (request->size - sizeof *in) / sizeof *items;
    for (size_t i = 0; i < in->count && i < there; i++)
        forget_node(items[i].nodeid, items[i].nlookup);
    return ANSWERED;
}

static Outcome do_interrupt(const Request *request)
{
    /* A request is answered before the next is read: there is nothing left to interrupt. */
    (void)request;
    return ANSWERED;
}

/* -- attributes ------------------------------------------------------------------------------- */

static PyObject *optional(int wanted, int64_t value)
{
    return wanted ? PyLong_FromLongLong(value) : Py_NewRef(Py_None);
}

int64_t join_time(uint64_t seconds, uint32_t nanoseconds)
{
    __int128 joined = (__int128)(int64_t)seconds * NS + nanoseconds;
    return joined > INT64_MAX ? INT64_MAX : joined < INT64_MIN ? INT64_MIN : (int64_t)joined;
}

static Outcome do_setattr(const Request *request)
{
    const struct fuse_setattr_in *in = (const void *)request->body;
    uint32_t valid = in->valid;
    return answer_attributes(
        request,
        CALL(call_setattr, NUMBER(request->head->nodeid), optional(valid & FATTR_MODE, in->mode),
             optional(valid & FATTR_UID, in->uid), optional(valid & FATTR_GID, in->gid),
             optional(valid & FATTR_SIZE, (int64_t)in->size),
             optional(valid & FATTR_ATIME, join_time(in->atime, in->atimensec)),
             optional(valid & FATTR_MTIME, join_time(in->mtime, in->mtimensec)),
             optional(valid & FATTR_CTIME, join_time(in->ctime, in->ctimensec)),
             NUMBER(valid & (FATTR_ATIME_NOW | FATTR_MTIME_NOW)), NUMBER(request->head->pid),
             PyBool_FromLong(!(valid & FATTR_KILL_SUIDGID))));
}

/* -- files ------------------------------------------------------------------------------------ */

static Outcome do_create(const Request *request)
{
    /* A file is made, and needs not be opened: ENOSYS tells the kernel to ask for the first only. */
    return answer_error(request, ENOSYS);
}

static Outcome do_open(const Request *request)
{
    /* ENOSYS tells the kernel that neither files nor directories need to be opened, and to keep
     * what it read of them until they change. It does not ask again, nor does it tell of a close. */
    return answer_error(request, ENOSYS);
}

static Outcome do_release(const Request *request)
{
    return answer_error(request, 0);
}

static Outcome do_read(const Request *request)
{
    const struct fuse_read_in *in = (const void *)request->body;
    return answer_pieces(request, CALL(call_read_pieces, NUMBER(request->head->nodeid),
                                       NUMBER(in->offset), NUMBER(in->size)));
}

/* The bytes of a write: many are not copied, but looked at where they were read. Nobody keeps them
 * beyond the call, and the buffer is there for ever. */
static PyObject *bytes_of(const struct fuse_write_in *in)
{
    char *data = (char *)(in + 1);
    return in->size < IO_SIZE ? PyBytes_FromStringAndSize(data, (Py_ssize_t)in->size)
                              : PyMemoryView_FromMemory(data, (Py_ssize_t)in->size, PyBUF_READ);
}

static Outcome do_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    struct fuse_write_out out = {.size = in->size};
    if (in->size > request->size - sizeof *in)
        return answer_error(request, EIO);
    /* Pages of a mapping are written by whoever makes room. */
    uint32_t pid = in->write_flags & FUSE_WRITE_CACHE ? 0 : request->head->pid;
    PyObject *result =
        CALL(call_write, NUMBER(request->head->nodeid), NUMBER(in->offset), bytes_of(in),
             NUMBER(pid), PyBool_FromLong(!(in->write_flags & FUSE_WRITE_KILL_SUIDGID)));
    if (!result)
        return FAILED;
    Py_DECREF(result);
    if (pid)
        fresh_note_write(request);
    return answer(request, &out, sizeof out);
}

static Outcome do_fsync(const Request *request)
{
    return answer_done(request, CALL(call_sync));
}

static Outcome do_ioctl(const Request *request)
{
    /* Programs ask every file whether it is a terminal. */
    return answer_error(request, ENOTTY);
}

static Outcome do_flush(const Request *request)
{
    /* Nothing waits for close(2); ENOSYS tells the kernel not to ask again. */
    return answer_error(request, ENOSYS);
}

/* -- directories ------------------------------------------------------------------------------ */

/* The answer to a request for the entries of a directory, as far as it is put together. */
typedef struct {
    uint64_t node;
    int plus; /* with attributes */
    char *out;
    size_t used, size;
    uint64_t last; /* the cookie of the last entry in it */
} Listing;

/* Room for an entry, or NULL if there is none. */
static char *room_for(Listing *listing, size_t head, size_t name_size)
{
    size_t wanted = FUSE_DIRENT_ALIGN(head + name_size);
    if (listing->used + wanted > listing->size)
        return NULL;
    char *place = listing->out + listing->used;
    memset(place, 0, wanted);
    listing->used += wanted;
    return place;
}

static int is_dot(const char *name, size_t size)
{
    return name[0] == '.' && (size == 1 || (size == 2 && name[1] == '.'));
}

/* Returns whether it fitted. */
static int put_entry(Listing *listing, const char *name, size_t name_size,
                     const struct fuse_entry_out *entry, uint64_t cookie)
{
    size_t head = listing->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    char *place = room_for(listing, head, name_size);
    if (!place)
        return 0;
    struct fuse_dirent *dirent = (void *)place;
    if (listing->plus) {
        struct fuse_direntplus *both = (void *)place;
        both->entry_out = *entry;
        if (is_dot(name, name_size))
            both->entry_out.nodeid = 0; /* not looked up */
        dirent = &both->dirent;
    }
    dirent->ino = entry->attr.ino;
    dirent->off = listing->last = cookie;
    dirent->namelen = (uint32_t)name_size;
    dirent->type = (entry->attr.mode & S_IFMT) >> 12;
    memcpy(dirent->name, name, name_size);
    return 1;
}

/* Says no more of something than what it is: the kernel knows the rest. Where a directory leads up
 * to, a directory is. */
static struct fuse_entry_out named_entry(const char *name, size_t name_size, uint64_t ino)
{
    struct fuse_entry_out entry = {.attr.ino = ino};
    entry.attr.mode = is_dot(name, name_size) ? S_IFDIR : known_type_of(ino);
    return entry;
}

/* Whether a listing may give no more than the number of a live inode. */
static int is_familiar(uint64_t ino)
{
    return is_known(ino) && known_type_of(ino);
}

/* Adds (name, inode or the number of one that is familiar, cookie). Returns 1 if it fitted, 0 if not,
 * -1 for an exception. */
static int add_item(Listing *listing, PyObject *item)
{
    PyObject *name, *inode;
    unsigned long long cookie;
    struct fuse_entry_out entry;
    if (!PyArg_ParseTuple(item, "SOK", &name, &inode, &cookie))
        return -1;
    size_t name_size = (size_t)PyBytes_GET_SIZE(name);
    if (PyLong_Check(inode))
        entry = named_entry(PyBytes_AS_STRING(name), name_size, PyLong_AsUnsignedLongLong(inode));
    else if (!fill_entry(&entry, inode, base_of(listing->node)))
        return -1;
    if (PyErr_Occurred())
        return -1;
    return put_entry(listing, PyBytes_AS_STRING(name), name_size, &entry, cookie);
}

/* As in `listings`: a cookie is a stream and a place in it. Streams of what is listed here have higher
 * numbers than the others. */
#define POSITION_BITS 32
#define STREAM_FIRST ((uint64_t)1 << 30)
#define STREAM_END ((uint64_t)1 << 31)
#define STREAMS_MAX 64

/* The last answers of which all names were given at once; should somebody go on behind one of them, or
 * somewhere in the middle, `Listings` takes the names. None if there is no stream. */
static struct {
    uint64_t stream;
    Listing listing;
} streams[STREAMS_MAX];
static uint64_t last_stream = STREAM_END - 1;

static void keep_stream(uint64_t stream, const Listing *listing)
{
    size_t place = stream % STREAMS_MAX;
    char *shorter = listing->used ? realloc(listing->out, listing->used) : NULL;
    free(streams[place].listing.out);
    streams[place].stream = stream;
    streams[place].listing = *listing;
    if (shorter)
        streams[place].listing.out = shorter;
}

static void forget_streams(void)
{
    for (size_t i = 0; i < STREAMS_MAX; i++)
        keep_stream(i, &(Listing){0});
}

/* The names in an answer, as they were given, without the dots. */
static PyObject *names_of(const Listing *listing)
{
    PyObject *names = PyList_New(0);
    for (size_t at = 0; names && at < listing->used;) {
        const struct fuse_direntplus *both = (const void *)(listing->out + at);
        const struct fuse_dirent *dirent = listing->plus ? &both->dirent : (const void *)both;
        at += listing->plus ? FUSE_DIRENTPLUS_SIZE(both) : FUSE_DIRENT_SIZE(dirent);
        if (is_dot(dirent->name, dirent->namelen))
            continue;
        PyObject *name = PyBytes_FromStringAndSize(dirent->name, dirent->namelen);
        if (!name || PyList_Append(names, name))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* Somebody goes on in a stream: its names are handed over. Returns 0 with an exception set if that
 * failed. */
static int hand_over_stream(uint64_t stream)
{
    size_t place = stream % STREAMS_MAX;
    if (stream < STREAM_FIRST || streams[place].stream != stream)
        return 1;
    PyObject *result = CALL(call_adopt, NUMBER(stream), names_of(&streams[place].listing));
    streams[place].stream = 0;
    Py_XDECREF(result);
    return result != NULL;
}

static int add_standing(void *context, const char *name, size_t name_size, uint64_t ino,
                        const Standing *inode)
{
    Listing *listing = context;
    struct fuse_entry_out entry = named_entry(name, name_size, ino);
    if (inode && !is_plain(ino))
        return 0;
    if (inode) {
        show_standing(&entry.attr, inode);
        note_attributes(&entry.attr);
        entry.nodeid = ino;
        entry.attr_valid = entry.entry_valid = FOREVER;
    }
    return put_entry(listing, name, name_size, &entry, listing->last + 1);
}

/* All that is in a directory, if it stands as it was committed, and fits. */
static int list_standing(Listing *listing)
{
    uint64_t above;
    last_stream = last_stream + 1 < STREAM_END ? last_stream + 1 : STREAM_FIRST;
    listing->last = last_stream << POSITION_BITS;
    /* In the root `.checkpoints` may have to be shown. */
    if (!is_plain(listing->node) || listing->node == FUSE_ROOT_ID)
        return 0;
    if (!standing_parent(listing->node, &above) || !above ||
        !add_standing(listing, ".", 1, listing->node, NULL) ||
        !add_standing(listing, "..", 2, above, NULL))
        return 0;
    return standing_list(listing->node, is_familiar, add_standing, listing);
}

/* What Python gives. Returns 1 if that was all, 0 if it did not fit, -1 for an exception. */
static int list_stored(Listing *listing, uint64_t offset)
{
    PyObject *entries = CALL(call_entries, NUMBER(listing->node), NUMBER(offset));
    int fits = entries ? 1 : -1;
    PyObject *item = NULL;
    while (fits > 0 && (item = PyIter_Next(entries))) {
        fits = add_item(listing, item);
        Py_DECREF(item);
    }
    Py_XDECREF(entries);
    return PyErr_Occurred() ? -1 : fits;
}

static void remember_listed(const Listing *listing)
{
    for (size_t at = 0; at < listing->used;) {
        const struct fuse_direntplus *entry = (const void *)(listing->out + at);
        remember(entry->entry_out.nodeid);
        at += FUSE_DIRENTPLUS_SIZE(entry);
    }
}

/* The end of the listing that was answered last: the kernel asks until it gets nothing. */
static uint64_t ended_node, ended_at;

/* Puts an answer together. Returns 1 if it ends the listing, 0 if there is more, -1 for an exception. */
static int fill_listing(Listing *listing, uint64_t offset)
{
    if (!listing->out) {
        PyErr_NoMemory();
        return -1;
    }
    if (offset && offset == ended_at && listing->node == ended_node)
        return 1;
    if (!offset && list_standing(listing))
        return 1;
    listing->used = 0;
    listing->last = offset;
    return hand_over_stream(offset >> POSITION_BITS) ? list_stored(listing, offset) : -1;
}

static Outcome list(const Request *request, int plus)
{
    const struct fuse_read_in *in = (const void *)request->body;
    Listing listing = {request->head->nodeid, plus, malloc(in->size), 0, in->size, 0};
    int ends = fill_listing(&listing, in->offset);
    ended_node = listing.node;
    ended_at = ends > 0 ? (listing.used ? listing.last : in->offset) : 0;
    if (ends >= 0 && send_answer(request, 0, listing.out, listing.used) && plus)
        remember_listed(&listing);
    if (ends > 0 && !in->offset && listing.last >> POSITION_BITS >= STREAM_FIRST)
        keep_stream(listing.last >> POSITION_BITS, &listing);
    else
        free(listing.out);
    return ends < 0 ? FAILED : ANSWERED;
}

static Outcome do_readdir(const Request *request)
{
    return list(request, 0);
}

static Outcome do_readdirplus(const Request *request)
{
    return list(request, 1);
}

/* -- the beginning ---------------------------------------------------------------------------- */

/* The kernel hears what is agreed on from here. libfuse is left to hear of the beginning, too; its
 * own answer then comes too late, which is no trouble to it. */
static Outcome do_init(const Request *request)
{
    const struct fuse_init_in *in = (const void *)request->body;
    if (!is_able(in)) {
        hooked = 0;
        return NOT_OURS;
    }
    struct fuse_init_out out = agreement_with(in);
    answer(request, &out, sizeof out);
    return NOT_OURS;
}

/* -- the loop --------------------------------------------------------------------------------- */

typedef Outcome Handler(const Request *);

/* What answers a request, and how many bytes it must have behind its head. Names come after those,
 * and end with a zero in any case. */
static const struct {
    Handler *handle;
    size_t least;
} HANDLERS[] = {
    [FUSE_LOOKUP] = {do_lookup, 1},
    [FUSE_FORGET] = {do_forget, sizeof(struct fuse_forget_in)},
    [FUSE_GETATTR] = {do_getattr, 0},
    [FUSE_SETATTR] = {do_setattr, sizeof(struct fuse_setattr_in)},
    [FUSE_READLINK] = {do_readlink, 0},
    [FUSE_SYMLINK] = {do_symlink, 1},
    [FUSE_MKNOD] = {do_mknod, sizeof(struct fuse_mknod_in)},
    [FUSE_MKDIR] = {do_mkdir, sizeof(struct fuse_mkdir_in)},
    [FUSE_UNLINK] = {do_unlink, 1},
    [FUSE_RMDIR] = {do_rmdir, 1},
    [FUSE_RENAME] = {do_rename, sizeof(struct fuse_rename_in)},
    [FUSE_LINK] = {do_link, sizeof(struct fuse_link_in)},
    [FUSE_OPEN] = {do_open, 0},
    [FUSE_READ] = {do_read, sizeof(struct fuse_read_in)},
    [FUSE_WRITE] = {do_write, sizeof(struct fuse_write_in)},
    [FUSE_RELEASE] = {do_release, 0},
    [FUSE_FSYNC] = {do_fsync, 0},
    [FUSE_FLUSH] = {do_flush, 0},
    [FUSE_INIT] = {do_init, offsetof(struct fuse_init_in, flags) + sizeof(uint32_t)},
    [FUSE_OPENDIR] = {do_open, 0},
    [FUSE_READDIR] = {do_readdir, sizeof(struct fuse_read_in)},
    [FUSE_RELEASEDIR] = {do_release, 0},
    [FUSE_FSYNCDIR] = {do_fsync, 0},
    [FUSE_CREATE] = {do_create, 0},
    [FUSE_INTERRUPT] = {do_interrupt, 0},
    [FUSE_IOCTL] = {do_ioctl, 0},
    [FUSE_BATCH_FORGET] = {do_batch_forget, sizeof(struct fuse_batch_forget_in)},
    [FUSE_READDIRPLUS] = {do_readdirplus, sizeof(struct fuse_read_in)},
    [FUSE_RENAME2] = {do_rename2, sizeof(struct fuse_rename2_in)},
};
#define HANDLERS_COUNT (sizeof HANDLERS / sizeof *HANDLERS)

static Outcome handle_request(size_t size)
{
    const struct fuse_in_header *head = (const void *)buffer;
    if (size < sizeof *head)
        return NOT_OURS;
    Request request = {head, buffer + sizeof *head, size - sizeof *head};
    if (head->opcode >= HANDLERS_COUNT || !HANDLERS[head->opcode].handle)
        return NOT_OURS;
    if (request.size < HANDLERS[head->opcode].least)
        return answer_error(&request, EIO);
    memset(buffer + size, 0, NAMES_MAX);
    Outcome outcome = fresh_handle(&request);
    if (outcome == NOT_OURS)
        outcome = HANDLERS[head->opcode].handle(&request);
    if (outcome == FAILED)
        answer_error(&request, errno_of_failure());
    return outcome;
}

/* Reads the next request, if there is one before ``until``: a client that got its answer mostly asks
 * again at once, and to wake up costs both sides more than to look for a while. Other threads, which
 * tell the kernel what changed, come in between. */
static ssize_t look_for_request(int64_t until)
{
    ssize_t size;
    Py_BEGIN_ALLOW_THREADS
    while ((size = read(device, buffer, REQUEST_MAX)) < 0 && errno == EAGAIN &&
           monotonic_ns() < until)
        breathe();
    Py_END_ALLOW_THREADS
    return size;
}

/* Sleeps until a request comes or it is somebody else's turn: whether it is, since there is
 * something on the descriptor that `others` wait for. */
static int wait_for_request(int64_t turn, int others)
{
    struct pollfd wanted[] = {{device, POLLIN, 0}, {others, POLLIN, 0}};
    int64_t now = monotonic_ns();
    if (now >= turn)
        return 0;
    struct timespec left = {(turn - now) / NS, (turn - now) % NS};
    Py_BEGIN_ALLOW_THREADS
    ppoll(wanted, 2, &left, NULL);
    Py_END_ALLOW_THREADS
    return wanted[1].revents && !wanted[0].revents;
}

/* A read that finds nothing must not wait: nobody else would get a turn until the next request. */
static void watch(int descriptor)
{
    if (descriptor == device)
        return;
    device = descriptor;
    int flags = fcntl(device, F_GETFL);
    if (flags >= 0)
        fcntl(device, F_SETFL, flags | O_NONBLOCK);
}

/* So much longer a turn may take if a file is being made: to go on with one that is in the store
 * already takes several times as long. */
#define MIDWAY_NS 500000

PyDoc_STRVAR(serve_doc,
             "serve(fd, spin_ns, turn_ns, others) -> int\n\n"
             "Answer requests until one comes that is left to libfuse (LEFT), or it is somebody\n"
             "else's turn (TURN): the monotonic clock is past turn_ns, or while no request comes\n"
             "something can be read from ``others``, a descriptor. Without spin_ns none is waited\n"
             "for.");

/* Answers what comes; returns what `serve` does. */
static int answer_requests(int64_t spin_ns, int64_t turn_ns, int others)
{
    for (;;) {
        int64_t now = monotonic_ns();
        if (now > turn_ns && (!fresh_is_midway() || now > turn_ns + MIDWAY_NS))
            return TURN;
        ssize_t size = look_for_request(now + spin_ns);
        if (size < 0 && errno == EAGAIN) {
            if (!fresh_is_midway())
                fresh_settle(); /* while there is time */
            if (!spin_ns || wait_for_request(turn_ns, others))
                return TURN;
            continue;
        }
        if (size < 0 && (errno == ENOENT || errno == EINTR))
            continue; /* taken back by the one who asked */
        requests++;
        if (size < 0)
            return LEFT; /* the end of the mount: libfuse meets it, too */
        if (handle_request((size_t)size) == NOT_OURS) {
            waiting = (size_t)size;
            return LEFT;
        }
    }
}

static PyObject *serve(PyObject *module, PyObject *args)
{
    int descriptor, others;
    long long spin_ns, turn_ns;
    if (!PyArg_ParseTuple(args, "iLLi", &descriptor, &spin_ns, &turn_ns, &others))
        return NULL;
    watch(descriptor);
    absent_begin_turn();
    int outcome = answer_requests(spin_ns, turn_ns, others);
    fresh_end();
    absent_end_turn();
    return PyLong_FromLong(outcome);
}

/* -- between pyfuse3 and libfuse -------------------------------------------------------------- */

/* As libfuse has it; fields behind these are not touched. */
struct fuse_session;
struct fuse_buf {
    size_t size;
    int flags;
    void *mem;
    int fd;
    off_t pos;
};

/* What `symbol` would have been to the caller without this module; its libfuse may have any name. */
static void *beyond(void *caller, const char *symbol)
{
    Dl_info info;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, symbol) : NULL;
    if (library)
        dlclose(library);
    return found;
}

/* pyfuse3 calls this before it asks for a request: the sign that it comes here for those, too. */
int fuse_session_mount(struct fuse_session *session, const char *mountpoint)
{
    int (*mount)(struct fuse_session *, const char *) =
        beyond(__builtin_return_address(0), "fuse_session_mount");
    hooked = mount != NULL;
    return mount ? mount(session, mountpoint) : -1;
}

int fuse_session_receive_buf(struct fuse_session *session, struct fuse_buf *out)
{
    if (!waiting) {
        int (*receive)(struct fuse_session *, struct fuse_buf *) =
            beyond(__builtin_return_address(0), "fuse_session_receive_buf");
        int result = receive ? receive(session, out) : -ENOSYS;
        return result == -EAGAIN ? -EINTR : result; /* as pyfuse3 knows it: to be tried again */
    }
    if (!out->mem && !(out->mem = malloc(REQUEST_MAX)))
        return -ENOMEM;
    memcpy(out->mem, buffer, waiting);
    out->size = waiting;
    out->flags = 0;
    waiting = 0;
    return (int)out->size;
}

/* -- the module ------------------------------------------------------------------------------- */

int take_attribute(PyObject *owner, const char *name, PyObject **place)
{
    PyObject *found = PyObject_GetAttrString(owner, name);
    if (!found)
        return 0;
    Py_XSETREF(*place, found);
    return 1;
}

PyDoc_STRVAR(bind_doc, "bind(requests)\n\nWhose methods to call, and whose state to look at.");

static PyObject *bind(PyObject *module, PyObject *owner)
{
#define TAKE(name) \
    if (!take_attribute(owner, #name, &call_##name)) \
        return NULL;
    METHODS(TAKE)
    if (!take_attribute(owner, "generations", &generations) ||
        !take_attribute(owner, "limbo", &limbo) || !take_attribute(owner, "unlinked", &unlinked))
        return NULL;
    if (!PyDict_Check(generations) || !PyDict_Check(limbo) || !PySet_Check(unlinked)) {
        PyErr_SetString(PyExc_TypeError, "bind: two dicts and a set were expected");
        return NULL;
    }
    if (!fresh_bind(owner) || !absent_bind(owner))
        return NULL;
    device = -1;
    waiting = 0;
    hooked = 0;
    forget_everything();
    forget_streams();
    ended_node = ended_at = 0;
    known_forget_all();
    Py_RETURN_NONE;
}

static PyObject *is_hooked(PyObject *module, PyObject *none)
{
    return PyBool_FromLong(hooked);
}

static PyObject *knows(PyObject *module, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_known(number));
}

static PyObject *familiar(PyObject *module, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_familiar(number));
}

static PyObject *changing(PyObject *module, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    if (PyErr_Occurred())
        return NULL;
    known_forget(number);
    standing_touch(number);
    Py_RETURN_NONE;
}

static PyObject *changed(PyObject *module, PyObject *inode)
{
    struct fuse_attr attributes;
    if (!fill_attributes(&attributes, inode, 0))
        return NULL;
    if (known_has(attributes.ino))
        known_note(&attributes);
    standing_touch(attributes.ino);
    Py_RETURN_NONE;
}

static PyObject *count(PyObject *module, PyObject *none)
{
    return PyLong_FromUnsignedLongLong(requests);
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, bind_doc},
    {"serve", serve, METH_VARARGS, serve_doc},
    {"hooked", is_hooked, METH_NOARGS, "Whether pyfuse3 comes here for its requests."},
    {"knows", knows, METH_O, "Whether the kernel knows a live inode, and may be using it."},
    {"familiar", familiar, METH_O, "Whether a listing may give no more than a live inode's number."},
    {"changing", changing, METH_O, "Told of a live inode that is about to change or go."},
    {"changed", changed, METH_O, "Told what a live inode has become."},
    {"count", count, METH_NOARGS, "How many requests were read here."},
    STANDING_METHODS,
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_front", "The compiled front of the mount.", -1, functions};

PyMODINIT_FUNC PyInit__front(void)
{
    PyObject *module = PyModule_Create(&definition);
    buffer = malloc(REQUEST_MAX + NAMES_MAX);
    if (!module || !buffer || PyModule_AddIntConstant(module, "LEFT", LEFT) ||
        PyModule_AddIntConstant(module, "TURN", TURN)) {
        Py_XDECREF(module);
        return buffer ? NULL : PyErr_NoMemory();
    }
    return module;
}
