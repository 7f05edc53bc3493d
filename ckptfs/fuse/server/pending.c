/* Write-behind: what was acknowledged and is not in the store yet. Four buffers hold it, all in
 * `Server.pending`, and `flush` is the one way out of them:
 *
 * - coalesced: bytes of short writes to files that were just written to (coalesce.c);
 *
 * - items, the *pending creates*: files, directories and links that were made a moment ago, with
 *   their bytes (pending_data.c);
 *
 * - dirty inodes: attributes of inodes in the store that were changed, and of directories there in
 *   which something was made;
 *
 * - link: the second name of a pending file.
 *
 * A program that makes a file makes it, writes it, and sets its times, its owner and its mode: half
 * a dozen requests, each of which would change the same records. Here they meet in memory, are
 * replied to at once, and go into the store together: by the next turn of the loop at the latest,
 * which is two milliseconds, and before any request that could tell the difference. So nothing
 * outside of `serve` ever has to know of them.
 *
 * It is done only under a *lease* (lease.c, `write_behind.py`): for one process and those that act
 * together with it, of which no change needs to be announced before it happens, for a time, for
 * numbers that nothing else gives out meanwhile, and for bytes that the disk is known to have. Then
 * nothing can fail any more when they are flushed.
 */

#include "server.h"
#include "sparse.h"

/* -- what is pending --------------------------------------------------------------------------- */

Pending *pending_of(const Server *server, uint64_t node)
{
    WriteBehind *pending = server->pending;
    uint64_t first = pending->lease.ino;
    return pending->count && node >= first && node - first < pending->count
               ? &pending->items[node - first]
               : NULL;
}

static Pending *pending_named(const Server *server, uint64_t parent, const char *name)
{
    WriteBehind *pending = server->pending;
    for (size_t i = pending->count; i-- > 0;)
        if (pending->items[i].parent == parent && !strcmp(pending->items[i].name, name))
            return &pending->items[i];
    return NULL;
}

/* NULL if the store has all of it. */
static DirtyInode *dirty_inode(const Server *server, uint64_t node)
{
    WriteBehind *pending = server->pending;
    for (size_t i = pending->dirty_count; i-- > 0;)
        if (pending->dirty[i].attributes.ino == node)
            return &pending->dirty[i];
    return NULL;
}

int pending_is_dirty(const Server *server, uint64_t node)
{
    return dirty_inode(server, node) != NULL;
}

void pending_apply(const Server *server, struct fuse_attr *attributes)
{
    const DirtyInode *dirty = dirty_inode(server, attributes->ino);
    if (dirty)
        *attributes = dirty->attributes;
}

void pending_free(WriteBehind *pending)
{
    for (size_t i = 0; i < PENDING_MAX; i++) {
        Py_CLEAR(pending->items[i].record);
        free(pending->items[i].data);
    }
    sparse_free(pending, sizeof *pending);
}

/* -- the flush --------------------------------------------------------------------------------- */

static PyObject *flushed_item(Server *server, Pending *item)
{
    const struct fuse_attr *a = &item->attributes;
    PyObject *data = flushed_data(server, item);
    if (!data)
        return NULL;
    return Py_BuildValue(
        "(KIIIIIKLLLLKyN)", (unsigned long long)a->ino, a->mode, a->nlink, a->uid, a->gid, a->rdev,
        (unsigned long long)a->size, (long long)join_time(a->atime, a->atimensec),
        (long long)join_time(a->mtime, a->mtimensec), (long long)join_time(a->ctime, a->ctimensec),
        (long long)item->btime_ns, (unsigned long long)item->parent, item->name, data);
}

static PyObject *flushed_maker(Server *server, Pending *item)
{
    return NUMBER(item->maker);
}

static PyObject *flushed_inode(const DirtyInode *dirty)
{
    const struct fuse_attr *a = &dirty->attributes;
    return Py_BuildValue(
        "(KIIILLLii)", (unsigned long long)a->ino, a->mode, a->uid, a->gid,
        (long long)join_time(a->atime, a->atimensec), (long long)join_time(a->mtime, a->mtimensec),
        (long long)join_time(a->ctime, a->ctimensec), dirty->subdirectories, dirty->is_set);
}

/* A list with something of each item. */
static PyObject *flushed_items(Server *server, PyObject *(*flushed)(Server *, Pending *))
{
    WriteBehind *pending = server->pending;
    PyObject *list = PyList_New((Py_ssize_t)pending->count);
    for (size_t i = 0; list && i < pending->count; i++) {
        PyObject *item = flushed(server, &pending->items[i]);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

static PyObject *flushed_inodes(const WriteBehind *pending)
{
    PyObject *list = PyList_New((Py_ssize_t)pending->dirty_count);
    for (size_t i = 0; list && i < pending->dirty_count; i++) {
        PyObject *item = flushed_inode(&pending->dirty[i]);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

void fail(Server *server)
{
    errno_of_failure(server);
    PyObject *result = CALL(server, fail);
    if (!result)
        errno_of_failure(server);
    Py_XDECREF(result);
}

/* The second name, once the file is in the store. */
static void flush_link(Server *server)
{
    WriteBehind *pending = server->pending;
    const struct fuse_attr *a = &pending->link.item->attributes;
    PyObject *result = CALL(server, link_flushed, NUMBER(a->ino), NUMBER(pending->link.parent),
                            PyBytes_FromString(pending->link.name), NUMBER(pending->link.pid),
                            PyLong_FromLongLong(join_time(a->ctime, a->ctimensec)));
    if (!result)
        fail(server);
    Py_XDECREF(result);
    pending->link.item = NULL;
}

static void forget_items(WriteBehind *pending)
{
    for (size_t i = 0; i < pending->count; i++) {
        Py_CLEAR(pending->items[i].record);
        pending->items[i].is_shared = 0;
    }
    pending->count = pending->dirty_count = 0;
}

void flush(Server *server)
{
    WriteBehind *pending = server->pending;
    coalesce_flush(server);
    pending->lease.held = 0;
    if (!pending->count && !pending->dirty_count)
        return;
    if (pending->link.item)
        pending->link.item->attributes.nlink = 1;
    PyObject *result =
        CALL(server, flush, flushed_items(server, flushed_item), flushed_inodes(pending),
             flushed_items(server, flushed_maker), NUMBER(pending->lease.party[0]));
    if (!result)
        fail(server);
    Py_XDECREF(result);
    if (pending->link.item)
        flush_link(server);
    forget_items(pending);
    pending->busy_maker = 0;
}

int pending_is_midway(const Server *server)
{
    return server->pending->busy_maker != 0;
}

void flush_and_forget(Server *server)
{
    flush(server);
    dentries_clear_negative(&server->dentries);
    coalesce_end_all(server);
}

Outcome pass_change(Server *server)
{
    lease_pass(server);
    flush_and_forget(server);
    return PASSED;
}

/* -- directories ------------------------------------------------------------------------------- */

void stamp_change(struct fuse_attr *attributes, int64_t now_ns)
{
    set_time(&attributes->mtime, &attributes->mtimensec, now_ns);
    set_time(&attributes->ctime, &attributes->ctimensec, now_ns);
}

int get_stored(Server *server, uint64_t node, struct fuse_attr *attributes)
{
    PyObject *inode = CALL(server, getattr, NUMBER(node));
    int filled = inode && fill_attributes(attributes, inode, 0);
    Py_XDECREF(inode);
    PyErr_Clear(); /* the store meets it again */
    return filled;
}

/* The attributes of an inode as they were acknowledged last. Returns 0 if it cannot be changed without
 * the store: it has no name any more, and then goes as soon as the kernel forgets it. */
static int get_current(Server *server, uint64_t node, struct fuse_attr *attributes)
{
    const Pending *item = pending_of(server, node);
    const DirtyInode *dirty = item ? NULL : dirty_inode(server, node);
    const struct fuse_attr *cached = inodes_attributes(&server->inodes, node);
    if (item)
        *attributes = item->attributes;
    else if (dirty)
        *attributes = dirty->attributes;
    else if (cached)
        *attributes = *cached;
    else if (get_committed(server, node, attributes) || get_stored(server, node, attributes))
        inodes_cache(&server->inodes, attributes);
    else
        return 0;
    return attributes->nlink != 0;
}

/* The same of a directory that something is to be done in. */
static int get_directory(Server *server, uint64_t node, struct fuse_attr *attributes)
{
    return get_current(server, node, attributes) && S_ISDIR(attributes->mode);
}

/* The same, to be changed until the next flush. There is room: see `has_room`. */
static struct fuse_attr *change_inode(Server *server, const struct fuse_attr *attributes)
{
    WriteBehind *pending = server->pending;
    Pending *item = pending_of(server, attributes->ino);
    DirtyInode *dirty = item ? NULL : dirty_inode(server, attributes->ino);
    if (item)
        return &item->attributes;
    if (!dirty) {
        dirty = &pending->dirty[pending->dirty_count++];
        *dirty = (DirtyInode){.attributes = *attributes};
    }
    return &dirty->attributes;
}

/* Whether two more inodes may become dirty. */
static int has_room(const Server *server)
{
    return server->pending->dirty_count + 2 <= DIRTY_MAX;
}

static void note_entry(Server *server, const struct fuse_attr *directory, int is_directory,
                       int64_t now_ns)
{
    struct fuse_attr *attributes = change_inode(server, directory);
    stamp_change(attributes, now_ns);
    attributes->nlink += (uint32_t)is_directory;
    DirtyInode *dirty = dirty_inode(server, directory->ino);
    if (dirty)
        dirty->subdirectories += is_directory;
}

/* -- making ------------------------------------------------------------------------------------ */

static int is_free(Server *server, uint64_t parent, const char *name)
{
    if (pending_named(server, parent, name))
        return 0;
    if (pending_of(server, parent) || dentries_was_negative(&server->dentries, parent, name))
        return 1;
    struct fuse_attr attributes;
    Look look = find_committed(server, parent, name, &attributes);
    if (look != UNSURE)
        return look == ABSENT;
    PyObject *found = CALL(server, lookup, NUMBER(parent), PyBytes_FromString(name));
    int is_free = found == Py_None;
    Py_XDECREF(found);
    PyErr_Clear();
    return is_free;
}

static int can_be_named(uint64_t parent, const char *name)
{
    size_t length = strlen(name);
    if (!length || length > NAME_BYTES_MAX || !strcmp(name, ".") || !strcmp(name, ".."))
        return 0;
    return !is_special(parent, name);
}

/* Whether this process may make something here without asking. */
static int may_make(const Request *request, const char *name)
{
    const struct fuse_in_header *head = request->head;
    if (head->nodeid >= LIVE_END || !can_be_named(head->nodeid, name))
        return 0;
    if (request->server->pending->count == PENDING_MAX || !has_room(request->server))
        flush(request->server);
    return may_change(request->server, head->pid);
}

static void note_maker(WriteBehind *pending, uint32_t pid, int is_file)
{
    if (pid == pending->busy_maker) {
        pending->ends_with_move = 0;
        pending->busy_maker = 0;
    }
    if (is_file)
        pending->busy_maker = pid;
}

/* A process goes on to another item: the file that it made before is done with, as far as one can
 * tell. The process was just replied to and is busy for longer than it takes to store the bytes,
 * which is half of the work of flushing a file. Then no process waits for that. */
static void record_one_before(Server *server, size_t index)
{
    Pending *items = server->pending->items;
    uint32_t maker = items[index].maker;
    while (index-- > 0) {
        Pending *item = &items[index];
        if (item->maker != maker || !S_ISREG(item->attributes.mode))
            continue;
        if (has_bytes(item) && !item->record && !record_bytes(server, item))
            fail(server);
        return;
    }
}

static Outcome make(const Request *request, const char *name, uint32_t mode, const char *target)
{
    const struct fuse_in_header *head = request->head;
    Server *server = request->server;
    WriteBehind *pending = server->pending;
    struct fuse_attr directory;
    size_t size = target ? strlen(target) : 0;
    if (!may_make(request, name) || !get_directory(server, head->nodeid, &directory))
        return pass_change(server);
    Pending *item = &pending->items[pending->count];
    if (!is_free(server, head->nodeid, name) || !make_space(item, size) ||
        !lease_covers(server, size))
        return pass_change(server);
    int is_directory = S_ISDIR(mode);
    uint32_t gid = head->gid;
    if (directory.mode & S_ISGID) {
        gid = directory.gid;
        mode |= is_directory ? S_ISGID : 0;
    }
    int64_t now_ns = stamp_ns();
    item->parent = head->nodeid;
    item->maker = head->pid;
    item->btime_ns = now_ns;
    strcpy(item->name, name);
    if (size)
        memcpy(item->data, target, size);
    item->attributes = (struct fuse_attr){
        .ino = pending->lease.ino + pending->count,
        .mode = mode,
        .nlink = is_directory ? 2 : 1,
        .uid = head->uid,
        .gid = gid,
        .size = size,
        .blksize = IO_SIZE,
    };
    set_time(&item->attributes.atime, &item->attributes.atimensec, now_ns);
    stamp_change(&item->attributes, now_ns);
    pending->count++;
    note_maker(pending, head->pid, S_ISREG(mode));
    lease_spend(server, size);
    dentries_clear_negative(&server->dentries);
    note_entry(server, &directory, is_directory, now_ns);
    dentries_add(&server->dentries, head->nodeid, name);
    if (is_directory)
        dentries_add_directory(&server->dentries, item->attributes.ino);
    reply_entry_attr(request, &item->attributes);
    record_one_before(server, pending->count - 1);
    return REPLIED;
}

static Outcome make_node(const Request *request)
{
    const struct fuse_mknod_in *in = (const void *)request->body;
    if (!S_ISREG(in->mode))
        return pass_change(request->server);
    return make(request, (const char *)(in + 1), in->mode, NULL);
}

static Outcome make_directory(const Request *request)
{
    const struct fuse_mkdir_in *in = (const void *)request->body;
    return make(request, (const char *)(in + 1), S_IFDIR | (in->mode & 07777), NULL);
}

static Outcome make_link(const Request *request)
{
    const char *target = request->body + strlen(request->body) + 1;
    size_t size = strlen(target);
    if (!size || size > TARGET_BYTES_MAX)
        return pass_change(request->server);
    return make(request, request->body, S_IFLNK | 0777, target);
}

/* -- changing ---------------------------------------------------------------------------------- */

static void set_owner(struct fuse_attr *attributes, const struct fuse_setattr_in *in)
{
    if (in->valid & FATTR_UID)
        attributes->uid = in->uid;
    if (in->valid & FATTR_GID)
        attributes->gid = in->gid;
    if (in->valid & FATTR_MODE)
        attributes->mode = (attributes->mode & S_IFMT) | (in->mode & 07777);
    else if (in->valid & (FATTR_UID | FATTR_GID) && !S_ISDIR(attributes->mode))
        attributes->mode = without_set_id(attributes->mode);
}

static void set_times(struct fuse_attr *attributes, const struct fuse_setattr_in *in,
                      int64_t now_ns)
{
    if (in->valid & (FATTR_ATIME | FATTR_ATIME_NOW))
        set_time(&attributes->atime, &attributes->atimensec,
                 in->valid & FATTR_ATIME_NOW ? now_ns : join_time(in->atime, in->atimensec));
    if (in->valid & (FATTR_MTIME | FATTR_MTIME_NOW))
        set_time(&attributes->mtime, &attributes->mtimensec,
                 in->valid & FATTR_MTIME_NOW ? now_ns : join_time(in->mtime, in->mtimensec));
    set_time(&attributes->ctime, &attributes->ctimensec, now_ns);
}

/* The attributes of an inode, to be changed; NULL if only the store can. */
static struct fuse_attr *attributes_to_set(Server *server, uint64_t node)
{
    struct fuse_attr current;
    Pending *item = pending_of(server, node);
    if (item)
        return &item->attributes;
    if (node >= LIVE_END || !get_current(server, node, &current))
        return NULL;
    struct fuse_attr *attributes = change_inode(server, &current);
    dirty_inode(server, node)->is_set = 1;
    return attributes;
}

static Outcome set_attributes(const Request *request)
{
    const struct fuse_setattr_in *in = (const void *)request->body;
    Server *server = request->server;
    if (!has_room(server))
        flush(server);
    if (in->valid & (FATTR_SIZE | FATTR_CTIME) || !may_change(server, request->head->pid))
        return pass_change(server);
    struct fuse_attr *attributes = attributes_to_set(server, request->head->nodeid);
    if (!attributes)
        return pass_change(server);
    set_owner(attributes, in);
    set_times(attributes, in, stamp_ns());
    return reply_attr(request, attributes);
}

static void put_under(Server *server, Pending *item, uint64_t parent, const char *name,
                      int64_t now_ns)
{
    item->parent = parent;
    strcpy(item->name, name);
    dentries_add(&server->dentries, parent, name);
    set_time(&item->attributes.ctime, &item->attributes.ctimensec, now_ns);
    server->pending->ends_with_move = 1;
    server->pending->busy_maker = 0;
    dentries_clear_negative(&server->dentries);
}

/* A pending file or link gets another name, as when a program writes beside and then moves into
 * place. Over something that is there the store does it. */
static Outcome move(const Request *request, uint64_t directory, uint32_t flags, const char *name)
{
    const struct fuse_in_header *head = request->head;
    Server *server = request->server;
    const char *new_name = name + strlen(name) + 1;
    struct fuse_attr from, to;
    Pending *item = pending_named(server, head->nodeid, name);
    if (!item || S_ISDIR(item->attributes.mode) || flags & ~RENAME_NOREPLACE ||
        directory >= LIVE_END || !can_be_named(directory, new_name) || !has_room(server) ||
        !has_lease(server, head->pid))
        return pass_change(server);
    if (!get_directory(server, head->nodeid, &from) || !get_directory(server, directory, &to) ||
        !is_free(server, directory, new_name))
        return pass_change(server);
    int64_t now_ns = stamp_ns();
    put_under(server, item, directory, new_name, now_ns);
    note_entry(server, &from, 0, now_ns);
    note_entry(server, &to, 0, now_ns);
    return reply_error(request, 0);
}

static Outcome rename_name(const Request *request)
{
    const struct fuse_rename_in *in = (const void *)request->body;
    return move(request, in->newdir, 0, (const char *)(in + 1));
}

static Outcome rename_name_2(const Request *request)
{
    const struct fuse_rename2_in *in = (const void *)request->body;
    return move(request, in->newdir, in->flags, (const char *)(in + 1));
}

static Outcome link_name(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    const struct fuse_link_in *in = (const void *)request->body;
    const char *name = (const char *)(in + 1);
    Server *server = request->server;
    WriteBehind *pending = server->pending;
    struct fuse_attr directory;
    Pending *item = pending_of(server, in->oldnodeid);
    if (!item || !S_ISREG(item->attributes.mode) || head->nodeid >= LIVE_END ||
        !can_be_named(head->nodeid, name) || !has_room(server) || !has_lease(server, head->pid))
        return pass_change(server);
    if (!get_directory(server, head->nodeid, &directory) || !is_free(server, head->nodeid, name))
        return pass_change(server);
    int64_t now_ns = stamp_ns();
    pending->link.item = item;
    pending->link.parent = head->nodeid;
    pending->link.pid = head->pid;
    strcpy(pending->link.name, name);
    dentries_add(&server->dentries, head->nodeid, name);
    item->attributes.nlink = 2;
    set_time(&item->attributes.ctime, &item->attributes.ctimensec, now_ns);
    dentries_clear_negative(&server->dentries);
    note_entry(server, &directory, 0, now_ns);
    return reply_entry_attr(request, &item->attributes);
}

/* The first of a file's two names goes. The store does every other removal. */
static Outcome remove_name(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    Server *server = request->server;
    WriteBehind *pending = server->pending;
    Pending *item = pending->link.item;
    struct fuse_attr directory;
    if (!item || item->parent != head->nodeid || strcmp(item->name, request->body) ||
        !has_room(server) || !has_lease(server, head->pid) ||
        !get_directory(server, head->nodeid, &directory))
        return pass_change(server);
    int64_t now_ns = stamp_ns();
    put_under(server, item, pending->link.parent, pending->link.name, now_ns);
    item->attributes.nlink = 1;
    pending->link.item = NULL;
    note_entry(server, &directory, 0, now_ns);
    return reply_error(request, 0);
}

/* -- looking ----------------------------------------------------------------------------------- */

static Outcome look_up(const Request *request)
{
    Server *server = request->server;
    WriteBehind *pending = server->pending;
    uint64_t parent = request->head->nodeid;
    Pending *item = pending_named(server, parent, request->body);
    if (request->head->pid == pending->busy_maker && !pending->ends_with_move)
        pending->busy_maker = 0; /* it is at the next one */
    if (item)
        return reply_entry_attr(request, &item->attributes);
    if (!pending_of(server, parent) &&
        !dentries_is_negative(&server->dentries, parent, request->body))
        return PASSED;
    /* Everything in a pending directory is pending, too. */
    return strlen(request->body) > NAME_BYTES_MAX ? reply_error(request, ENAMETOOLONG)
                                                  : reply_negative(request);
}

static Outcome get_attributes(const Request *request)
{
    const Pending *item = pending_of(request->server, request->head->nodeid);
    if (item)
        return reply_attr(request, &item->attributes);
    const DirtyInode *dirty = dirty_inode(request->server, request->head->nodeid);
    return dirty ? reply_attr(request, &dirty->attributes) : PASSED;
}

/* Pending entries are in directories that are pending or dirty. */
static Outcome list_entries(const Request *request)
{
    Server *server = request->server;
    uint64_t node = request->head->nodeid;
    if (pending_of(server, node) || dirty_inode(server, node))
        flush(server);
    return PASSED;
}

/* Whether a request is about names, of which a file must not have two any more. */
static int is_about_names(uint32_t opcode)
{
    return opcode != FUSE_GETATTR && opcode != FUSE_UNLINK;
}

static const char *behind(const char *name)
{
    return name + strlen(name) + 1;
}

/* Notes the name that a request, which the store replies to, may put something under. */
static void note_name(const Request *request)
{
    const char *body = request->body, *name;
    uint64_t parent = request->head->nodeid;
    switch (request->head->opcode) {
    case FUSE_SYMLINK:
        name = body;
        break;
    case FUSE_MKNOD:
        name = body + sizeof(struct fuse_mknod_in);
        break;
    case FUSE_MKDIR:
        name = body + sizeof(struct fuse_mkdir_in);
        break;
    case FUSE_LINK:
        name = body + sizeof(struct fuse_link_in);
        break;
    case FUSE_RENAME:
        parent = ((const struct fuse_rename_in *)body)->newdir;
        name = behind(body + sizeof(struct fuse_rename_in));
        break;
    case FUSE_RENAME2:
        parent = ((const struct fuse_rename2_in *)body)->newdir;
        name = behind(body + sizeof(struct fuse_rename2_in));
        break;
    default:
        return;
    }
    dentries_add(&request->server->dentries, parent, name);
}

static Outcome handle(const Request *request)
{
    if (request->server->pending->link.item && is_about_names(request->head->opcode))
        flush(request->server);
    coalesce_note(request);
    switch (request->head->opcode) {
    case FUSE_LOOKUP:
        return look_up(request);
    case FUSE_GETATTR:
        return get_attributes(request);
    case FUSE_READ:
        return read_bytes(request);
    case FUSE_READLINK:
        return read_link(request);
    case FUSE_MKNOD:
        return make_node(request);
    case FUSE_MKDIR:
        return make_directory(request);
    case FUSE_SYMLINK:
        return make_link(request);
    case FUSE_WRITE:
        return write_bytes(request);
    case FUSE_COPY_FILE_RANGE:
        return copy_bytes(request);
    case FUSE_SETATTR:
        return set_attributes(request);
    case FUSE_LINK:
        return link_name(request);
    case FUSE_UNLINK:
        return remove_name(request);
    case FUSE_RENAME:
        return rename_name(request);
    case FUSE_RENAME2:
        return rename_name_2(request);
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
    case FUSE_OPEN:
    case FUSE_OPENDIR:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_CREATE:
    case FUSE_FLUSH:
    case FUSE_IOCTL:
        return PASSED; /* says nothing about what is in the store */
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        return list_entries(request);
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
        flush(request->server);
        return PASSED;
    default:
        return pass_change(request->server);
    }
}

Outcome pending_handle(const Request *request)
{
    Outcome outcome = handle(request);
    if (outcome == PASSED)
        note_name(request);
    return outcome;
}
