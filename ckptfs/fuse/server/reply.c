/* Replies to the kernel: what Python, the store or a table knows, in the kernel's form. And how
 * Python is called. */

#include "server.h"

#include <sys/uio.h>

/* How many blocks the bytes of one reply may be from. */
#define PIECES_MAX (WRITE_MAX / IO_SIZE + 2)

int send_reply(const Request *request, int error, const void *body, size_t size)
{
    struct fuse_out_header head = {
        .len = sizeof head + size,
        .error = -error,
        .unique = request->head->unique,
    };
    struct iovec parts[] = {{&head, sizeof head}, {(void *)body, size}};
    return writev(request->server->device, parts, size ? 2 : 1) > 0;
}

Outcome reply(const Request *request, const void *body, size_t size)
{
    send_reply(request, 0, body, size);
    return REPLIED;
}

Outcome reply_error(const Request *request, int error)
{
    send_reply(request, error, NULL, 0);
    return REPLIED;
}

/* The result of a call that says only whether it worked. */
Outcome reply_done(const Request *request, PyObject *result)
{
    if (!result)
        return FAILED;
    Py_DECREF(result);
    return reply_error(request, 0);
}

/* The same of a change that Python may have acknowledged. */
Outcome reply_changed(const Request *request, PyObject *result)
{
    Server *server = request->server;
    int is_acknowledged = !server->unacknowledged;
    server->unacknowledged = NULL;
    if (!is_acknowledged)
        return reply_done(request, result);
    if (!result)
        fail(server);
    Py_XDECREF(result);
    return REPLIED;
}

PyObject *acknowledge_method(PyObject *self, PyObject *none)
{
    Server *server = (Server *)self;
    if (server->unacknowledged)
        reply_error(server->unacknowledged, 0);
    server->unacknowledged = NULL;
    Py_RETURN_NONE;
}

uint64_t base_of(uint64_t node)
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

int64_t join_time(uint64_t seconds, uint32_t nanoseconds)
{
    __int128 joined = (__int128)(int64_t)seconds * NS + nanoseconds;
    return joined > INT64_MAX ? INT64_MAX : joined < INT64_MIN ? INT64_MIN : (int64_t)joined;
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

void fill_from_record(struct fuse_attr *attributes, const InodeRecord *record)
{
    *attributes = (struct fuse_attr){
        .ino = record->ino,
        .size = record->size,
        .blocks = (record->allocated + STAT_BLOCK - 1) / STAT_BLOCK,
        .mode = record->mode,
        .nlink = record->nlink,
        .uid = record->uid,
        .gid = record->gid,
        .rdev = (uint32_t)record->rdev,
        .blksize = IO_SIZE,
    };
    set_time(&attributes->atime, &attributes->atimensec, record->atime_ns);
    set_time(&attributes->mtime, &attributes->mtimensec, record->mtime_ns);
    set_time(&attributes->ctime, &attributes->ctimensec, record->ctime_ns);
}

int has_number(PyObject *numbers, uint64_t node)
{
    if (!PyDict_GET_SIZE(numbers))
        return 0;
    PyObject *number = NUMBER(node);
    int has = number ? PyDict_Contains(numbers, number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return has != 0;
}

int is_plain(Server *server, uint64_t node)
{
    return node < LIVE_END && !has_number(server->calls.limbo, node) &&
           !has_number(server->calls.generations, node);
}

Look find_committed(Server *server, uint64_t parent, const char *name, struct fuse_attr *attributes)
{
    InodeRecord record;
    if (!is_plain(server, parent) || is_special(parent, name))
        return UNSURE;
    Look look = snapshot_lookup(server, parent, name, &record);
    if (look == FOUND && !is_plain(server, record.ino))
        return UNSURE;
    if (look == FOUND)
        fill_from_record(attributes, &record);
    return look;
}

int get_committed(Server *server, uint64_t node, struct fuse_attr *attributes)
{
    InodeRecord record;
    if (!is_plain(server, node) || snapshot_getattr(server, node, &record) != FOUND)
        return 0;
    fill_from_record(attributes, &record);
    return 1;
}

int read_committed(Server *server, const Request *request, Bytes *bytes)
{
    const struct fuse_read_in *in = (const void *)request->body;
    uint64_t node = request->head->nodeid;
    return is_plain(server, node) && snapshot_read(server, node, in->offset, in->size, bytes);
}

static uint64_t generation_of(Server *server, PyObject *inode, uint64_t node)
{
    PyObject *generations = server->calls.generations;
    if (node >= LIVE_END || !PyDict_GET_SIZE(generations))
        return 0;
    PyObject *generation = PyDict_GetItem(generations, PyTuple_GET_ITEM(inode, INO));
    return generation ? PyLong_AsUnsignedLongLong(generation) : 0;
}

void note_attributes(Server *server, struct fuse_attr *attributes)
{
    inodes_cache(&server->inodes, attributes);
    pending_apply(server, attributes);
}

/* The node of an inode. A readable control file gets another one with every lookup, so that every
 * process that opens it has pages of its own: the kernel keeps what is written in pages of a node.
 */
static uint64_t node_of(Server *server, uint64_t ino)
{
    int is_same = ino < CONTROL || ino & CONTROL_STEP;
    return is_same ? ino : ino | (++server->control_lookups & CONTROL_NUMBERS);
}

/* The reply to a write has no mode. So the kernel has to ask for that of a file with set-id bits
 * whenever it needs it: it would start the program with the rights that a write has taken from it.
 * It needs the mode of `.checkpoints` for each step into it, which `ls -l` makes for each entry. */
int64_t validity_of(const struct fuse_attr *attributes)
{
    uint32_t mode = attributes->mode;
    int loses_bits = S_ISREG(mode) && without_set_id(mode) != mode;
    int may_change = attributes->ino >= HISTORY && !is_of_forks(attributes->ino);
    if (attributes->ino == HISTORY_ROOT)
        return CHECKPOINTS_VALID_NS;
    return may_change || loses_bits ? 0 : (int64_t)FOREVER * NS;
}

/* Entries of `.checkpoints` itself have no base, and come and go. Those of checkpoints hold while a
 * program looks at one: `ls -l` asks for each three times. What a verb deletes the kernel is notified
 * of, and in what expired nothing is found any more. */
static uint64_t entry_validity(uint64_t node, uint64_t base)
{
    if (base || node < LIVE_END || node == HISTORY_ROOT || is_of_forks(node))
        return FOREVER;
    return base_of(node) ? CHECKPOINT_VALID_S : 0;
}

/* An inode together with its name. */
int fill_entry(Server *server, struct fuse_entry_out *entry, PyObject *inode, uint64_t base)
{
    memset(entry, 0, sizeof *entry);
    if (!fill_attributes(&entry->attr, inode, base))
        return 0;
    note_attributes(server, &entry->attr);
    entry->nodeid = node_of(server, entry->attr.ino);
    entry->generation = generation_of(server, inode, entry->nodeid);
    set_time(&entry->attr_valid, &entry->attr_valid_nsec, validity_of(&entry->attr));
    entry->entry_valid = entry_validity(entry->nodeid, base);
    return 1;
}

Outcome reply_entry(const Request *request, PyObject *inode)
{
    struct fuse_entry_out entry;
    if (!inode)
        return FAILED;
    int filled = fill_entry(request->server, &entry, inode, base_of(request->head->nodeid));
    Py_DECREF(inode);
    if (!filled)
        return FAILED;
    if (send_reply(request, 0, &entry, sizeof entry))
        inodes_reference(&request->server->inodes, entry.nodeid);
    return REPLIED;
}

Outcome reply_entry_attr(const Request *request, const struct fuse_attr *attributes)
{
    struct fuse_entry_out entry = {
        .nodeid = attributes->ino,
        .attr = *attributes,
        .entry_valid = FOREVER,
    };
    set_time(&entry.attr_valid, &entry.attr_valid_nsec, validity_of(attributes));
    if (send_reply(request, 0, &entry, sizeof entry))
        inodes_reference(&request->server->inodes, entry.nodeid);
    return REPLIED;
}

Outcome reply_negative(const Request *request)
{
    /* Node 0 and a time: the kernel remembers that the name is not there. */
    uint64_t valid = request->head->nodeid < HISTORY ? FOREVER : 0;
    struct fuse_entry_out absent = {.entry_valid = valid};
    return reply(request, &absent, sizeof absent);
}

Outcome reply_attr(const Request *request, const struct fuse_attr *attributes)
{
    struct fuse_attr_out out = {.attr = *attributes};
    set_time(&out.attr_valid, &out.attr_valid_nsec, validity_of(attributes));
    return reply(request, &out, sizeof out);
}

Outcome reply_attributes(const Request *request, PyObject *inode)
{
    struct fuse_attr_out out = {0};
    if (!inode)
        return FAILED;
    int filled = fill_attributes(&out.attr, inode, base_of(request->head->nodeid));
    Py_DECREF(inode);
    if (!filled)
        return FAILED;
    note_attributes(request->server, &out.attr);
    set_time(&out.attr_valid, &out.attr_valid_nsec, validity_of(&out.attr));
    return reply(request, &out, sizeof out);
}

/* The bytes of an object, whatever it is, without a copy. */
Outcome reply_bytes(const Request *request, PyObject *result)
{
    Py_buffer data;
    if (!result)
        return FAILED;
    int got = !PyObject_GetBuffer(result, &data, PyBUF_SIMPLE);
    if (got) {
        reply(request, data.buf, (size_t)data.len);
        PyBuffer_Release(&data);
    }
    Py_DECREF(result);
    return got ? REPLIED : FAILED;
}

/* The bytes of the objects in a list, one behind the other, without a copy. */
Outcome reply_pieces(const Request *request, PyObject *list)
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
        writev(request->server->device, parts, (int)got + 1);
    for (Py_ssize_t i = 0; i < got; i++)
        PyBuffer_Release(&buffers[i]);
    Py_DECREF(list);
    return got == wanted ? REPLIED : FAILED;
}

int errno_of_failure(Server *server)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    PyObject *number = PyObject_CallOneArg(server->calls.errno_of, value);
    int error = number ? (int)PyLong_AsLong(number) : EIO;
    PyErr_Clear();
    Py_XDECREF(number);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return error > 0 ? error : EIO;
}

/* -- calls ------------------------------------------------------------------------------------- */

PyObject *call(PyObject *method, size_t count, PyObject **arguments)
{
    PyObject *result = NULL;
    size_t made = 0;
    while (made < count && arguments[made])
        made++;
    if (made == count)
        result =
            PyObject_Vectorcall(method, arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    for (size_t i = 0; i < count; i++)
        Py_XDECREF(arguments[i]);
    return result;
}
