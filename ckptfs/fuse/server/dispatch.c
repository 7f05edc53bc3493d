/* One handler for each opcode: the request is parsed where it was read, the method of `Requests`
 * that it means is called with plain values, and the result is written out as the reply. What the
 * tables or the committed snapshot know, Python is not asked for.
 */

#include "server.h"

int is_connection(uint64_t node)
{
    return node >= CONTROL && node & CONTROL_CONNECTION;
}

/* -- names ------------------------------------------------------------------------------------- */

static Outcome reply_committed(const Request *request, struct fuse_attr *attributes)
{
    note_attributes(request->server, attributes);
    return reply_entry_attr(request, attributes);
}

static Outcome reply_no_entry(const Request *request)
{
    dentries_add_negative(&request->server->dentries, request->head->nodeid, request->body);
    return reply_negative(request);
}

static Outcome do_lookup(const Request *request)
{
    uint64_t parent = request->head->nodeid;
    struct fuse_attr attributes;
    Look look = find_committed(request->server, parent, request->body, &attributes);
    if (look != UNSURE)
        return look == FOUND ? reply_committed(request, &attributes) : reply_no_entry(request);
    PyObject *inode =
        CALL(request->server, lookup, NUMBER(parent), PyBytes_FromString(request->body));
    if (inode != Py_None)
        return reply_entry(request, inode);
    Py_DECREF(inode);
    return reply_no_entry(request);
}

static Outcome do_getattr(const Request *request)
{
    const struct fuse_attr *known =
        inodes_attributes(&request->server->inodes, request->head->nodeid);
    struct fuse_attr attributes;
    if (known)
        return reply_attr(request, known);
    if (get_committed(request->server, request->head->nodeid, &attributes)) {
        note_attributes(request->server, &attributes);
        return reply_attr(request, &attributes);
    }
    return reply_attributes(request, CALL(request->server, getattr, NUMBER(request->head->nodeid)));
}

static Outcome do_mkdir(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    const struct fuse_mkdir_in *in = (const void *)request->body;
    if (head->nodeid == HISTORY_ROOT)
        return PASSED;
    return reply_entry(request, CALL(request->server, mkdir, NUMBER(head->nodeid),
                                     PyBytes_FromString((const char *)(in + 1)), NUMBER(in->mode),
                                     NUMBER(head->pid), NUMBER(head->uid), NUMBER(head->gid)));
}

static PyObject *make_node(const Request *request, const char *name, uint32_t mode, uint32_t rdev)
{
    const struct fuse_in_header *head = request->head;
    return CALL(request->server, mknod, NUMBER(head->nodeid), PyBytes_FromString(name),
                NUMBER(mode), NUMBER(rdev), NUMBER(head->pid), NUMBER(head->uid),
                NUMBER(head->gid));
}

static Outcome do_mknod(const Request *request)
{
    const struct fuse_mknod_in *in = (const void *)request->body;
    return reply_entry(request, make_node(request, (const char *)(in + 1), in->mode, in->rdev));
}

static Outcome do_symlink(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    const char *target = request->body + strlen(request->body) + 1;
    return reply_entry(request, CALL(request->server, symlink, NUMBER(head->nodeid),
                                     PyBytes_FromString(request->body), PyBytes_FromString(target),
                                     NUMBER(head->pid), NUMBER(head->uid), NUMBER(head->gid)));
}

static Outcome do_link(const Request *request)
{
    const struct fuse_link_in *in = (const void *)request->body;
    return reply_entry(
        request, CALL(request->server, link, NUMBER(in->oldnodeid), NUMBER(request->head->nodeid),
                      PyBytes_FromString((const char *)(in + 1)), NUMBER(request->head->pid)));
}

static Outcome do_readlink(const Request *request)
{
    return reply_bytes(request, CALL(request->server, readlink, NUMBER(request->head->nodeid)));
}

static Outcome do_unlink(const Request *request)
{
    request->server->unacknowledged = request;
    return reply_changed(
        request, CALL(request->server, unlink, NUMBER(request->head->nodeid),
                      PyBytes_FromString(request->body), NUMBER(request->head->pid)));
}

static Outcome do_rmdir(const Request *request)
{
    if (request->head->nodeid == HISTORY_ROOT)
        return PASSED;
    request->server->unacknowledged = request;
    return reply_changed(
        request, CALL(request->server, rmdir, NUMBER(request->head->nodeid),
                      PyBytes_FromString(request->body), NUMBER(request->head->pid)));
}

static Outcome rename_to(const Request *request, uint64_t directory, uint32_t flags,
                         const char *name)
{
    const char *new_name = name + strlen(name) + 1;
    request->server->unacknowledged = request;
    return reply_changed(request, CALL(request->server, rename, NUMBER(request->head->nodeid),
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

/* The kernel waits for no reply, and a failure with one node is no matter to the next. */
static void forget_node(Server *server, uint64_t node, uint64_t times)
{
    const Callbacks *calls = &server->calls;
    PyObject *result;
    if (is_connection(node)) /* each of these is looked up once */
        result = CALL(server, control_forget, NUMBER(node));
    else if (inodes_unreference(&server->inodes, node, times) &&
             (PySet_GET_SIZE(calls->unlinked) || PyDict_GET_SIZE(calls->limbo)))
        result = CALL(server, forget, NUMBER(node));
    else
        return;
    if (!result)
        errno_of_failure(server);
    Py_XDECREF(result);
}

static Outcome do_forget(const Request *request)
{
    const struct fuse_forget_in *in = (const void *)request->body;
    forget_node(request->server, request->head->nodeid, in->nlookup);
    return REPLIED;
}

static Outcome do_batch_forget(const Request *request)
{
    const struct fuse_batch_forget_in *in = (const void *)request->body;
    const struct fuse_forget_one *items = (const void *)(in + 1);
    size_t there = (request->size - sizeof *in) / sizeof *items;
    for (size_t i = 0; i < in->count && i < there; i++)
        forget_node(request->server, items[i].nodeid, items[i].nlookup);
    return REPLIED;
}

static Outcome do_interrupt(const Request *request)
{
    /* A request is replied to before the next is read: there is nothing left to interrupt. */
    (void)request;
    return REPLIED;
}

/* -- attributes -------------------------------------------------------------------------------- */

static PyObject *optional(int wanted, int64_t value)
{
    return wanted ? PyLong_FromLongLong(value) : Py_NewRef(Py_None);
}

static Outcome do_setattr(const Request *request)
{
    const struct fuse_setattr_in *in = (const void *)request->body;
    uint32_t valid = in->valid;
    return reply_attributes(
        request,
        CALL(request->server, setattr, NUMBER(request->head->nodeid),
             optional(valid & FATTR_MODE, in->mode), optional(valid & FATTR_UID, in->uid),
             optional(valid & FATTR_GID, in->gid), optional(valid & FATTR_SIZE, (int64_t)in->size),
             optional(valid & FATTR_ATIME, join_time(in->atime, in->atimensec)),
             optional(valid & FATTR_MTIME, join_time(in->mtime, in->mtimensec)),
             optional(valid & FATTR_CTIME, join_time(in->ctime, in->ctimensec)),
             NUMBER(valid & (FATTR_ATIME_NOW | FATTR_MTIME_NOW)), NUMBER(request->head->pid),
             PyBool_FromLong(!(valid & FATTR_KILL_SUIDGID))));
}

/* -- files ------------------------------------------------------------------------------------- */

static Outcome do_create(const Request *request)
{
    /* A file is made, and needs not be opened: ENOSYS tells the kernel to ask for the first only.
     */
    return reply_error(request, ENOSYS);
}

/* A file without a name, which is opened in the same request. */
static Outcome do_tmpfile(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    const struct fuse_create_in *in = (const void *)request->body;
    struct {
        struct fuse_entry_out entry;
        struct fuse_open_out open;
    } out = {0};
    PyObject *inode = CALL(request->server, make_nameless, NUMBER(head->nodeid), NUMBER(in->mode),
                           NUMBER(head->pid), NUMBER(head->uid), NUMBER(head->gid));
    int filled = inode && fill_entry(request->server, &out.entry, inode, base_of(head->nodeid));
    Py_XDECREF(inode);
    if (!filled)
        return FAILED;
    out.open.open_flags = FOPEN_KEEP_CACHE;
    if (send_reply(request, 0, &out, sizeof out))
        inodes_reference(&request->server->inodes, out.entry.nodeid);
    return REPLIED;
}

static Outcome do_open(const Request *request)
{
    /* ENOSYS tells the kernel that neither files nor directories need to be opened, and to keep
     * what it read of them until they change. It does not ask again, nor does it tell of a close.
     */
    return reply_error(request, ENOSYS);
}

static Outcome do_release(const Request *request)
{
    return reply_error(request, 0);
}

static Outcome do_read(const Request *request)
{
    const struct fuse_read_in *in = (const void *)request->body;
    Bytes bytes;
    if (read_committed(request->server, request, &bytes))
        return reply(request, bytes.at, bytes.size);
    if (is_connection(request->head->nodeid))
        return reply_bytes(request,
                           CALL(request->server, control_read, NUMBER(request->head->nodeid),
                                NUMBER(in->offset), NUMBER(in->size), NUMBER(request->head->uid)));
    return reply_pieces(request, CALL(request->server, read_pieces, NUMBER(request->head->nodeid),
                                      NUMBER(in->offset), NUMBER(in->size)));
}

/* The bytes of a write: many are not copied, but lent where they were read (lent.c). */
static PyObject *bytes_of(Server *server, const struct fuse_write_in *in)
{
    char *data = (char *)(in + 1);
    return in->size < IO_SIZE ? PyBytes_FromStringAndSize(data, (Py_ssize_t)in->size)
                              : lend(&server->lent, data, in->size);
}

static Outcome do_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    struct fuse_write_out out = {.size = in->size};
    if (in->size > request->size - sizeof *in)
        return reply_error(request, EIO);
    /* Pages of a mapping are written by the process that reclaims memory. */
    int is_mapped = in->write_flags & FUSE_WRITE_CACHE;
    uint32_t pid = is_mapped ? 0 : request->head->pid;
    if (is_mapped && request->head->nodeid >= HISTORY)
        return reply_error(request, EROFS); /* a page is no message to a control file */
    PyObject *result = is_connection(request->head->nodeid)
                           ? CALL(request->server, control_write, NUMBER(request->head->nodeid),
                                  NUMBER(in->offset), bytes_of(request->server, in),
                                  NUMBER(request->head->uid), NUMBER(pid))
                           : CALL(request->server, write, NUMBER(request->head->nodeid),
                                  NUMBER(in->offset), bytes_of(request->server, in), NUMBER(pid),
                                  PyBool_FromLong(!(in->write_flags & FUSE_WRITE_KILL_SUIDGID)));
    if (!result)
        return FAILED;
    Py_DECREF(result);
    if (pid && request->head->nodeid < LIVE_END) /* messages to a control file are not coalesced */
        coalesce_note_write(request);
    return reply(request, &out, sizeof out);
}

static Outcome do_fallocate(const Request *request)
{
    const struct fuse_fallocate_in *in = (const void *)request->body;
    return reply_done(request,
                      CALL(request->server, allocate, NUMBER(request->head->nodeid),
                           NUMBER(in->offset), NUMBER(in->length), NUMBER(in->mode),
                           NUMBER(request->head->pid), PyBool_FromLong(keeps_set_id(request))));
}

/* Whether Python returned a number, which is let go of; if not, an exception is set. */
static int take_number(PyObject *result, uint64_t *number)
{
    if (!result)
        return 0;
    *number = PyLong_AsUnsignedLongLong(result);
    Py_DECREF(result);
    return !PyErr_Occurred();
}

static Outcome do_lseek(const Request *request)
{
    const struct fuse_lseek_in *in = (const void *)request->body;
    struct fuse_lseek_out out;
    PyObject *place = CALL(request->server, seek, NUMBER(request->head->nodeid), NUMBER(in->offset),
                           NUMBER(in->whence));
    return take_number(place, &out.offset) ? reply(request, &out, sizeof out) : FAILED;
}

static Outcome do_copy(const Request *request)
{
    const struct fuse_copy_file_range_in *in = (const void *)request->body;
    uint64_t copied;
    PyObject *result =
        CALL(request->server, copy_range, NUMBER(request->head->nodeid), NUMBER(in->off_in),
             NUMBER(in->nodeid_out), NUMBER(in->off_out), NUMBER(in->len),
             NUMBER(request->head->pid), PyBool_FromLong(keeps_set_id(request)));
    if (!take_number(result, &copied))
        return FAILED;
    struct fuse_write_out out = {.size = (uint32_t)copied};
    return reply(request, &out, sizeof out);
}

static Outcome do_fsync(const Request *request)
{
    return reply_done(request, CALL(request->server, sync));
}

static Outcome do_ioctl(const Request *request)
{
    /* Programs ask every file whether it is a terminal. */
    return reply_error(request, ENOTTY);
}

static Outcome do_flush(const Request *request)
{
    /* Nothing waits for close(2); ENOSYS tells the kernel not to ask again. */
    return reply_error(request, ENOSYS);
}

/* -- which is for what ------------------------------------------------------------------------- */

static const Handler HANDLERS[] = {
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
    [FUSE_OPENDIR] = {do_open, 0},
    [FUSE_READDIR] = {do_readdir, sizeof(struct fuse_read_in)},
    [FUSE_RELEASEDIR] = {do_release, 0},
    [FUSE_FSYNCDIR] = {do_fsync, 0},
    [FUSE_CREATE] = {do_create, 0},
    [FUSE_INTERRUPT] = {do_interrupt, 0},
    [FUSE_IOCTL] = {do_ioctl, 0},
    [FUSE_BATCH_FORGET] = {do_batch_forget, sizeof(struct fuse_batch_forget_in)},
    [FUSE_FALLOCATE] = {do_fallocate, sizeof(struct fuse_fallocate_in)},
    [FUSE_READDIRPLUS] = {do_readdirplus, sizeof(struct fuse_read_in)},
    [FUSE_RENAME2] = {do_rename2, sizeof(struct fuse_rename2_in)},
    [FUSE_LSEEK] = {do_lseek, sizeof(struct fuse_lseek_in)},
    [FUSE_TMPFILE] = {do_tmpfile, sizeof(struct fuse_create_in)},
    [FUSE_COPY_FILE_RANGE] = {do_copy, sizeof(struct fuse_copy_file_range_in)},
};
#define HANDLERS_COUNT (sizeof HANDLERS / sizeof *HANDLERS)

const Handler *handler_of(uint32_t opcode)
{
    return opcode < HANDLERS_COUNT && HANDLERS[opcode].handle ? &HANDLERS[opcode] : NULL;
}
