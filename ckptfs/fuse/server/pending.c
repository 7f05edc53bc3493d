/* What is fresh: files, directories and links that were made a moment ago, and are not in the store
 * yet.
 *
 * A program that makes a file makes it, writes it, and sets its times, its owner and its mode: half a
 * dozen requests, each of which would change the same records. Here they meet in memory, are answered
 * at once, and go into the store together: by the next turn of the loop at the latest, which is two
 * milliseconds, and before any request that could tell the difference. So nothing outside of `serve`
 * ever has to know of them.
 *
 * In the same way, writes that go on where the last one ended are put together to a *run*, as long as
 * nothing else is asked for.
 *
 * It is done only under a *grant* from `fuse/server/write_behind.py`: for one process and those that act together
 * with it, of which no change needs to be told before it happens, for a time, for numbers that nobody
 * else gives out meanwhile, and for bytes that the disk is known to have. Then nothing can fail any
 * more when they are handed over.
 */

#include "pending.h"

#define PENDING_MAX 128
#define DIRECTORIES_MAX 64

/* A directory in the store whose attributes are known. */
typedef struct {
    struct fuse_attr attributes; /* as they are now */
    int subdirectories;          /* made in it since */
    int changed;                 /* in any way that the store has not heard of */
    int dressed;                 /* by a program, not only by what was made in it */
} Directory;

static Pending items[PENDING_MAX];
static size_t count;
static Directory directories[DIRECTORIES_MAX];
static size_t directories_count;

/* Who is in the middle of making a file, as far as one can tell; 0 if nobody is. */
static uint32_t busy_maker;

/* Whether the last file that was made got another name at its end: then the next name that its maker
 * looks for is that of the file, not of the next one. */
static int ends_with_move;

/* A fresh file that has just got a second name, as a program does that writes beside, links into place
 * and removes the first name. It has two only until the next request; none if there is no item. */
static struct {
    Pending *item;
    uint64_t parent;
    char name[NAME_MOST + 1];
    uint32_t pid;
} second;

/* The name that was looked for last and is not there; none if its directory is 0. */
static uint64_t negative_parent;
static char negative_name[NAME_MOST + 1];

static PyObject *call_flush, *call_fail, *call_lookup, *call_getattr, *call_link;

/* -- what is known ----------------------------------------------------------------------------- */

Pending *pending_of(uint64_t node)
{
    return count && node >= lease.ino && node - lease.ino < count ? &items[node - lease.ino] : NULL;
}

static Pending *pending_named(uint64_t parent, const char *name)
{
    for (size_t i = count; i-- > 0;)
        if (items[i].parent == parent && !strcmp(items[i].name, name))
            return &items[i];
    return NULL;
}

static Directory *directory_of(uint64_t node)
{
    for (size_t i = directories_count; i-- > 0;)
        if (directories[i].attributes.ino == node)
            return &directories[i];
    return NULL;
}

/* The name was found absent, and nothing has changed since. */
static int is_negative(uint64_t parent, const char *name)
{
    return negative_parent == parent && !strcmp(negative_name, name);
}

void pending_note_negative(const Request *request)
{
    size_t length = strlen(request->body);
    negative_parent = 0;
    if (request->head->nodeid < LIVE_END && length <= NAME_MOST) {
        negative_parent = request->head->nodeid;
        memcpy(negative_name, request->body, length + 1);
    }
}

void pending_note_directory(struct fuse_attr *attributes)
{
    /* One without a name goes as soon as the kernel forgets it, and that is not waited for here. */
    if (attributes->ino >= LIVE_END || !S_ISDIR(attributes->mode) || !attributes->nlink)
        return;
    Directory *place = directory_of(attributes->ino);
    if (place && place->changed) {
        *attributes = place->attributes;
        return;
    }
    if (!place) {
        if (directories_count == DIRECTORIES_MAX)
            return;
        place = &directories[directories_count++];
    }
    *place = (Directory){.attributes = *attributes};
}

static void forget_knowledge(void)
{
    directories_count = 0;
    negative_parent = 0;
    coalesce_forget();
}

/* -- handing over ------------------------------------------------------------------------------ */

static PyObject *told_item(Pending *item)
{
    const struct fuse_attr *a = &item->attributes;
    PyObject *data = told_data(item);
    if (!data)
        return NULL;
    return Py_BuildValue("(KIIIIIKLLLLKyN)", (unsigned long long)a->ino, a->mode, a->nlink, a->uid,
                         a->gid, a->rdev, (unsigned long long)a->size,
                         (long long)join_time(a->atime, a->atimensec),
                         (long long)join_time(a->mtime, a->mtimensec),
                         (long long)join_time(a->ctime, a->ctimensec), (long long)item->btime_ns,
                         (unsigned long long)item->parent, item->name, data);
}

static PyObject *told_directory(const Directory *directory)
{
    const struct fuse_attr *a = &directory->attributes;
    return Py_BuildValue("(KIIILLLii)", (unsigned long long)a->ino, a->mode, a->uid, a->gid,
                         (long long)join_time(a->atime, a->atimensec),
                         (long long)join_time(a->mtime, a->mtimensec),
                         (long long)join_time(a->ctime, a->ctimensec), directory->subdirectories,
                         directory->dressed);
}

static PyObject *told_maker(Pending *item)
{
    return NUMBER(item->maker);
}

/* A list with what is told of each item. */
static PyObject *told_items(PyObject *(*told)(Pending *))
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *item = told(&items[i]);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

static PyObject *told_directories(void)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < directories_count; i++) {
        if (!directories[i].changed)
            continue;
        PyObject *item = told_directory(&directories[i]);
        if (!item || PyList_Append(list, item))
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

void fail(void)
{
    errno_of_failure();
    PyObject *result = CALL(call_fail);
    if (!result)
        errno_of_failure();
    Py_XDECREF(result);
}

static int is_clean(void)
{
    for (size_t i = 0; i < directories_count; i++)
        if (directories[i].changed)
            return 0;
    return !count;
}

/* The second name, once the file is in the store. */
static void flush_link(void)
{
    PyObject *result =
        CALL(call_link, NUMBER(second.item->attributes.ino), NUMBER(second.parent),
             PyBytes_FromString(second.name), NUMBER(second.pid),
             PyLong_FromLongLong(join_time(second.item->attributes.ctime,
                                           second.item->attributes.ctimensec)));
    if (!result)
        fail();
    Py_XDECREF(result);
    second.item = NULL;
}

static void forget_items(void)
{
    for (size_t i = 0; i < count; i++) {
        Py_CLEAR(items[i].record);
        items[i].is_shared = 0;
    }
    count = 0;
}

void pending_flush(void)
{
    coalesce_flush();
    lease.held = 0;
    if (is_clean())
        return;
    if (second.item)
        second.item->attributes.nlink = 1;
    PyObject *result = CALL(call_flush, told_items(told_item), told_directories(),
                            told_items(told_maker), NUMBER(lease.party[0]));
    if (!result)
        fail();
    Py_XDECREF(result);
    if (second.item)
        flush_link();
    forget_items();
    busy_maker = 0;
    for (size_t i = 0; i < directories_count; i++) {
        directories[i].changed = directories[i].dressed = 0;
        directories[i].subdirectories = 0;
    }
}

int pending_is_midway(void)
{
    return busy_maker != 0;
}

void pending_end(void)
{
    pending_flush();
    forget_knowledge();
}

Outcome pass_change(void)
{
    lease_pass();
    pending_end();
    return PASSED;
}

/* -- making ------------------------------------------------------------------------------------ */

void stamp_change(struct fuse_attr *attributes, int64_t now_ns)
{
    set_time(&attributes->mtime, &attributes->mtimensec, now_ns);
    set_time(&attributes->ctime, &attributes->ctimensec, now_ns);
}

static int get_stored(uint64_t node, struct fuse_attr *attributes)
{
    PyObject *inode = CALL(call_getattr, NUMBER(node));
    int filled = inode && fill_attributes(attributes, inode, 0);
    Py_XDECREF(inode);
    PyErr_Clear(); /* the ordinary way meets it, too */
    return filled;
}

/* The attributes of the directory that something is to be made in; NULL if nothing can be. */
static struct fuse_attr *place_for(uint64_t parent)
{
    Pending *item = pending_of(parent);
    if (item)
        return S_ISDIR(item->attributes.mode) ? &item->attributes : NULL;
    Directory *directory = directory_of(parent);
    if (!directory) {
        struct fuse_attr attributes;
        if (!get_committed(parent, &attributes) && !get_stored(parent, &attributes))
            return NULL;
        pending_note_directory(&attributes);
        directory = directory_of(parent);
    }
    return directory && directory->attributes.nlink ? &directory->attributes : NULL;
}

static int is_free(uint64_t parent, const char *name)
{
    if (pending_named(parent, name))
        return 0;
    if (is_negative(parent, name) || pending_of(parent) || dentries_is_negative(parent, name))
        return 1;
    struct fuse_attr attributes;
    Look look = find_committed(parent, name, &attributes);
    if (look != UNSURE)
        return look == ABSENT;
    PyObject *found = CALL(call_lookup, NUMBER(parent), PyBytes_FromString(name));
    int is_free = found == Py_None;
    Py_XDECREF(found);
    PyErr_Clear();
    return is_free;
}

static int can_be_named(uint64_t parent, const char *name)
{
    size_t length = strlen(name);
    if (!length || length > NAME_MOST || !strcmp(name, ".") || !strcmp(name, ".."))
        return 0;
    return parent != FUSE_ROOT_ID || strcmp(name, HISTORY_NAME);
}

static void note_entry(uint64_t parent, struct fuse_attr *attributes, int is_directory,
                       int64_t now_ns)
{
    stamp_change(attributes, now_ns);
    attributes->nlink += (uint32_t)is_directory;
    Directory *directory = directory_of(parent);
    if (directory) {
        directory->changed = 1;
        directory->subdirectories += is_directory;
    }
}

/* Whether this process may make something here without asking. */
static int may_make(const Request *request, const char *name)
{
    const struct fuse_in_header *head = request->head;
    if (head->nodeid >= LIVE_END || !can_be_named(head->nodeid, name))
        return 0;
    if (count == PENDING_MAX)
        pending_flush();
    return may_change(head->pid);
}

static void note_maker(uint32_t pid, int is_file)
{
    if (pid == busy_maker) {
        ends_with_move = 0;
        busy_maker = 0;
    }
    if (is_file)
        busy_maker = pid;
}

/* A process goes on to another item: the file that it made before is done with, as far as one can
 * tell. The process was just answered and is busy for longer than it takes to store the bytes, which
 * is half of the work of handing a file over. Then nobody waits for that. */
static void record_one_before(size_t index)
{
    uint32_t maker = items[index].maker;
    while (index-- > 0) {
        Pending *item = &items[index];
        if (item->maker != maker || !S_ISREG(item->attributes.mode))
            continue;
        if (has_bytes(item) && !item->record && !record_bytes(item))
            fail();
        return;
    }
}

static Outcome make(const Request *request, const char *name, uint32_t mode, const char *target)
{
    const struct fuse_in_header *head = request->head;
    uint64_t parent = head->nodeid;
    size_t size = target ? strlen(target) : 0;
    if (!may_make(request, name))
        return pass_change();
    struct fuse_attr *place = place_for(parent);
    Pending *item = &items[count];
    if (!place || !is_free(parent, name) || !make_space(item, size) || !lease_covers(size))
        return pass_change();
    int is_directory = S_ISDIR(mode);
    uint32_t gid = head->gid;
    if (place->mode & S_ISGID) {
        gid = place->gid;
        mode |= is_directory ? S_ISGID : 0;
    }
    int64_t now_ns = stamp_ns();
    item->parent = parent;
    item->maker = head->pid;
    item->btime_ns = now_ns;
    strcpy(item->name, name);
    if (size)
        memcpy(item->data, target, size);
    item->attributes = (struct fuse_attr){
        .ino = lease.ino + count,
        .mode = mode,
        .nlink = is_directory ? 2 : 1,
        .uid = head->uid,
        .gid = gid,
        .size = size,
        .blksize = IO_SIZE,
    };
    set_time(&item->attributes.atime, &item->attributes.atimensec, now_ns);
    stamp_change(&item->attributes, now_ns);
    count++;
    note_maker(head->pid, S_ISREG(mode));
    lease_spend(size);
    negative_parent = 0;
    note_entry(parent, place, is_directory, now_ns);
    dentries_note_name(parent, name);
    if (is_directory)
        dentries_note_directory(item->attributes.ino);
    reply_entry_attr(request, &item->attributes);
    record_one_before(count - 1);
    return REPLIED;
}

static Outcome make_node(const Request *request)
{
    const struct fuse_mknod_in *in = (const void *)request->body;
    if (!S_ISREG(in->mode))
        return pass_change();
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
    if (!size || size > TARGET_MOST)
        return pass_change();
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

/* The attributes of something that is fresh, or of a directory; NULL of others. */
static struct fuse_attr *attributes_to_set(uint64_t node)
{
    Pending *item = pending_of(node);
    if (item)
        return &item->attributes;
    struct fuse_attr *attributes = node < LIVE_END ? place_for(node) : NULL;
    if (attributes) {
        Directory *directory = directory_of(node);
        directory->changed = directory->dressed = 1;
    }
    return attributes;
}

static Outcome set_attributes(const Request *request)
{
    const struct fuse_setattr_in *in = (const void *)request->body;
    if (in->valid & (FATTR_SIZE | FATTR_CTIME) || !may_change(request->head->pid))
        return pass_change();
    struct fuse_attr *attributes = attributes_to_set(request->head->nodeid);
    if (!attributes)
        return pass_change();
    set_owner(attributes, in);
    set_times(attributes, in, stamp_ns());
    return reply_attr(request, attributes);
}

static void put_under(Pending *item, uint64_t parent, const char *name, int64_t now_ns)
{
    item->parent = parent;
    strcpy(item->name, name);
    dentries_note_name(parent, name);
    set_time(&item->attributes.ctime, &item->attributes.ctimensec, now_ns);
    ends_with_move = 1;
    busy_maker = 0;
    negative_parent = 0;
}

/* A file or link that is fresh gets another name, as when a program writes beside and then moves into
 * place. Over something that is there it goes the ordinary way. */
static Outcome move(const Request *request, uint64_t directory, uint32_t flags, const char *name)
{
    const struct fuse_in_header *head = request->head;
    const char *new_name = name + strlen(name) + 1;
    Pending *item = pending_named(head->nodeid, name);
    if (!item || S_ISDIR(item->attributes.mode) || flags & ~RENAME_NOREPLACE ||
        directory >= LIVE_END || !can_be_named(directory, new_name) || !has_lease(head->pid))
        return pass_change();
    struct fuse_attr *from = place_for(head->nodeid), *to = place_for(directory);
    if (!from || !to || !is_free(directory, new_name))
        return pass_change();
    int64_t now_ns = stamp_ns();
    put_under(item, directory, new_name, now_ns);
    note_entry(head->nodeid, from, 0, now_ns);
    note_entry(directory, to, 0, now_ns);
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
    Pending *item = pending_of(in->oldnodeid);
    if (!item || !S_ISREG(item->attributes.mode) || head->nodeid >= LIVE_END ||
        !can_be_named(head->nodeid, name) || !has_lease(head->pid))
        return pass_change();
    struct fuse_attr *place = place_for(head->nodeid);
    if (!place || !is_free(head->nodeid, name))
        return pass_change();
    int64_t now_ns = stamp_ns();
    second.item = item;
    second.parent = head->nodeid;
    second.pid = head->pid;
    strcpy(second.name, name);
    dentries_note_name(head->nodeid, name);
    item->attributes.nlink = 2;
    set_time(&item->attributes.ctime, &item->attributes.ctimensec, now_ns);
    negative_parent = 0;
    note_entry(head->nodeid, place, 0, now_ns);
    return reply_entry_attr(request, &item->attributes);
}

/* The first of a file's two names goes. Every other removal goes the ordinary way. */
static Outcome remove_name(const Request *request)
{
    const struct fuse_in_header *head = request->head;
    Pending *item = second.item;
    if (!item || item->parent != head->nodeid || strcmp(item->name, request->body) ||
        !has_lease(head->pid))
        return pass_change();
    struct fuse_attr *place = place_for(head->nodeid);
    if (!place)
        return pass_change();
    int64_t now_ns = stamp_ns();
    put_under(item, second.parent, second.name, now_ns);
    item->attributes.nlink = 1;
    second.item = NULL;
    note_entry(head->nodeid, place, 0, now_ns);
    return reply_error(request, 0);
}

/* -- looking ----------------------------------------------------------------------------------- */

static Outcome look_up(const Request *request)
{
    uint64_t parent = request->head->nodeid;
    Pending *item = pending_named(parent, request->body);
    if (request->head->pid == busy_maker && !ends_with_move)
        busy_maker = 0; /* it is at the next one */
    if (item)
        return reply_entry_attr(request, &item->attributes);
    if (!pending_of(parent) && !dentries_is_negative(parent, request->body))
        return PASSED;
    /* What is in a fresh directory is fresh, too. */
    return strlen(request->body) > NAME_MOST ? reply_error(request, ENAMETOOLONG)
                                             : reply_negative(request);
}

static Outcome get_attributes(const Request *request)
{
    Pending *item = pending_of(request->head->nodeid);
    if (item)
        return reply_attr(request, &item->attributes);
    Directory *directory = directory_of(request->head->nodeid);
    return directory ? reply_attr(request, &directory->attributes) : PASSED;
}

/* What is fresh is in directories that are fresh or have changed. */
static Outcome list_entries(const Request *request)
{
    Directory *directory = directory_of(request->head->nodeid);
    if (pending_of(request->head->nodeid) || (directory && directory->changed))
        pending_flush();
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

/* Notes the name that a request, which goes the ordinary way, may put something under. */
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
    dentries_note_name(parent, name);
}

static Outcome handle(const Request *request)
{
    if (second.item && is_about_names(request->head->opcode))
        pending_flush();
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
        pending_flush();
        return PASSED;
    default:
        return pass_change();
    }
}

Outcome pending_handle(const Request *request)
{
    Outcome outcome = handle(request);
    if (outcome == PASSED)
        note_name(request);
    return outcome;
}

/* -- the beginning ----------------------------------------------------------------------------- */

int pending_bind(PyObject *owner)
{
    forget_items();
    ends_with_move = 0;
    forget_knowledge();
    second.item = NULL;
    return lease_bind(owner) && coalesce_bind(owner) && bytes_bind(owner) &&
           take_attribute(owner, "flush", &call_flush) &&
           take_attribute(owner, "fail", &call_fail) &&
           take_attribute(owner, "lookup", &call_lookup) &&
           take_attribute(owner, "getattr", &call_getattr) &&
           take_attribute(owner, "link_flushed", &call_link);
}
