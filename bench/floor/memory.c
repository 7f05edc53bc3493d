/* The file system of the floor: names, attributes and bytes in memory, and for each request as little as
 * can be done. It knows nothing of the kernel but what requests mean.
 *
 * What is synced is not kept either: an fsync is a request and its answer. Everything is gone when it
 * ends. Memory of what is deleted is used again, but not given back.
 */

#include "floor.h"

#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK 4096
#define SLAB (64 << 20)
#define TAKEN_MAX (1ULL << 30)
#define HUGE_PAGE (2 << 20)
#define FILE_MAX (1ULL << 36)
#define TABLE (1 << 20)

/* A name stands in a table of all of them, and in its directory in the order of making. */
typedef struct Name {
    struct Name *alike;
    struct Name *before, *after;
    Node *directory, *node;
    uint64_t cookie;
    uint32_t hash;
    uint32_t size;
    char text[];
} Name;

/* Its address is the number by which the kernel knows it; `attr.ino` is what stat shows. */
struct Node {
    struct fuse_attr attr;
    uint64_t known; /* how often it was looked up and not forgotten */

    Node *parent; /* of a directory, and its names */
    Name *first, *last;
    Name *listed; /* where the last listing ended */
    uint64_t cookies;

    char **chunks; /* of a file; NULL is a hole */
    size_t chunks_count;

    char *target; /* of a symbolic link */
};

static Node root;
static Name *table[TABLE];
static uint64_t last_ino = FUSE_ROOT_ID;
static char listing[WRITE_MAX];

/* -- memory ----------------------------------------------------------------------------------- */

void *required(void *memory)
{
    if (!memory) {
        fprintf(stderr, "memory: there is none left\n");
        abort();
    }
    return memory;
}

/* Chunks that are free. Their addresses are kept beside them: to write them into the chunks would
 * be to touch all the bytes of a large file that is deleted. */
static char **spare;
static size_t spare_count, spare_room;

static void give_back(char *chunk)
{
    if (spare_count == spare_room) {
        spare_room = spare_room ? spare_room * 2 : 1 << 16;
        spare = required(realloc(spare, spare_room * sizeof *spare));
    }
    spare[spare_count++] = chunk;
}

/* In huge pages: to be given a small one takes the kernel longer than to fill it. */
static void take_slab(void)
{
    char *slab = required(aligned_alloc(HUGE_PAGE, SLAB));
    madvise(slab, SLAB, MADV_HUGEPAGE); /* if not, then slower */
    for (size_t at = SLAB; at; at -= CHUNK)
        give_back(slab + at - CHUNK);
}

static char *new_chunk(void)
{
    if (!spare_count)
        take_slab();
    return spare[--spare_count];
}

/* So that no row pays for memory that the machine has not used before, which on a virtual one takes
 * several times as long as to fill it. */
void take_memory(void)
{
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    uint64_t wanted = all / 8 < TAKEN_MAX ? all / 8 : TAKEN_MAX;
    for (uint64_t taken = 0; taken < wanted; taken += SLAB)
        take_slab();
    for (size_t i = 0; i < spare_count; i++)
        *spare[i] = 1;
}

/* -- times ------------------------------------------------------------------------------------ */

static void touch_change(struct fuse_attr *attr)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    attr->ctime = (uint64_t)now.tv_sec;
    attr->ctimensec = (uint32_t)now.tv_nsec;
}

static void touch(struct fuse_attr *attr)
{
    touch_change(attr);
    attr->mtime = attr->ctime;
    attr->mtimensec = attr->ctimensec;
}

/* -- nodes ------------------------------------------------------------------------------------ */

Node *node_of(uint64_t id)
{
    return id == FUSE_ROOT_ID ? &root : (Node *)id;
}

static uint64_t id_of(const Node *node)
{
    return node == &root ? FUSE_ROOT_ID : (uint64_t)node;
}

static int is_directory(const Node *node)
{
    return S_ISDIR(node->attr.mode);
}

static Node *new_node(const Request *request, uint32_t mode, uint32_t rdev)
{
    const struct fuse_attr *parent = &request->node->attr;
    Node *node = required(calloc(1, sizeof *node));
    node->attr = (struct fuse_attr){
        .ino = ++last_ino,
        .mode = mode,
        .uid = request->head->uid,
        .gid = parent->mode & S_ISGID ? parent->gid : request->head->gid,
        .rdev = rdev,
        .blksize = IO_SIZE,
    };
    if (is_directory(node))
        node->attr.mode |= parent->mode & S_ISGID;
    touch(&node->attr);
    node->attr.atime = node->attr.mtime;
    node->attr.atimensec = node->attr.mtimensec;
    return node;
}

/* Frees the chunks from one on. */
static void cut(Node *node, size_t from)
{
    for (size_t i = from; i < node->chunks_count; i++) {
        if (!node->chunks[i])
            continue;
        give_back(node->chunks[i]);
        node->chunks[i] = NULL;
        node->attr.blocks -= CHUNK / 512;
    }
}

static void free_if_unused(Node *node)
{
    if (node->known || node->attr.nlink || node == &root)
        return;
    cut(node, 0);
    free(node->chunks);
    free(node->target);
    free(node);
}

void make_root(void)
{
    root.attr = (struct fuse_attr){
        .ino = FUSE_ROOT_ID, .mode = S_IFDIR | 0755, .nlink = 2, .blksize = IO_SIZE};
    root.parent = &root;
    touch(&root.attr);
}

/* -- names ------------------------------------------------------------------------------------ */

static uint32_t hash_of(const Node *directory, const char *text)
{
    uint32_t hash = (uint32_t)directory->attr.ino * 2654435761u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash ^ hash >> 15;
}

static Name *find(const Node *directory, const char *text)
{
    uint32_t hash = hash_of(directory, text);
    Name *name = table[hash % TABLE];
    while (name &&
           (name->hash != hash || name->directory != directory || strcmp(name->text, text)))
        name = name->alike;
    return name;
}

static void add_name(Node *directory, const char *text, Node *node)
{
    size_t size = strlen(text);
    Name *name = required(malloc(sizeof *name + size + 1));
    uint32_t hash = hash_of(directory, text);
    *name = (Name){
        .alike = table[hash % TABLE],
        .before = directory->last,
        .directory = directory,
        .node = node,
        .cookie = 3 + directory->cookies++, /* 1 and 2 are the dots */
        .hash = hash,
        .size = (uint32_t)size,
    };
    memcpy(name->text, text, size + 1);
    table[hash % TABLE] = name;
    *(directory->last ? &directory->last->after : &directory->first) = name;
    directory->last = name;
    node->attr.nlink++;
    if (is_directory(node)) {
        node->parent = directory;
        node->attr.nlink++;
        directory->attr.nlink++;
    }
    touch(&directory->attr);
}

/* The node stays, even if this was its last name. */
static Node *remove_name(Name *name)
{
    Node *directory = name->directory, *node = name->node;
    Name **place = &table[name->hash % TABLE];
    while (*place != name)
        place = &(*place)->alike;
    *place = name->alike;
    *(name->before ? &name->before->after : &directory->first) = name->after;
    *(name->after ? &name->after->before : &directory->last) = name->before;
    if (directory->listed == name)
        directory->listed = NULL;
    node->attr.nlink--;
    if (is_directory(node)) {
        node->parent = node;
        node->attr.nlink--;
        directory->attr.nlink--;
    }
    touch(&directory->attr);
    touch_change(&node->attr);
    free(name);
    return node;
}

/* -- answers ---------------------------------------------------------------------------------- */

static struct fuse_entry_out entry_of(const Node *node)
{
    return (struct fuse_entry_out){
        .nodeid = id_of(node),
        .attr = node->attr,
        .attr_valid = FOREVER,
        .entry_valid = FOREVER,
    };
}

static void answer_entry(const Request *request, Node *node)
{
    struct fuse_entry_out entry = entry_of(node);
    if (answer(request, &entry, sizeof entry))
        node->known++;
}

static void answer_attributes(const Request *request)
{
    struct fuse_attr_out out = {.attr = request->node->attr, .attr_valid = FOREVER};
    answer(request, &out, sizeof out);
}

/* To OPEN, OPENDIR, CREATE (MKNOD is enough), FLUSH, GETXATTR and whatever else: it tells the kernel
 * not to ask again. */
static void do_nothing_of_the_kind(const Request *request)
{
    answer_error(request, ENOSYS);
}

static void do_agree(const Request *request)
{
    answer_error(request, 0);
}

static void do_not_answer(const Request *request)
{
    (void)request;
}

/* -- requests about names --------------------------------------------------------------------- */

static void do_lookup(const Request *request)
{
    struct fuse_entry_out absent = {.entry_valid = FOREVER};
    Name *name = find(request->node, request->body);
    if (name)
        answer_entry(request, name->node);
    else if (strlen(request->body) > NAME_MAX)
        answer_error(request, ENAMETOOLONG); /* which ends whatever was to be done with it */
    else
        answer(request, &absent, sizeof absent);
}

/* Puts a new node under a name. */
static void make(const Request *request, const char *text, Node *node)
{
    add_name(request->node, text, node);
    answer_entry(request, node);
}

static int is_there(const Request *request, const char *text)
{
    int there = find(request->node, text) != NULL;
    if (there)
        answer_error(request, EEXIST);
    return there;
}

static void do_mknod(const Request *request)
{
    const struct fuse_mknod_in *in = (const void *)request->body;
    const char *text = (const char *)(in + 1);
    if (!is_there(request, text))
        make(request, text, new_node(request, in->mode, in->rdev));
}

static void do_mkdir(const Request *request)
{
    const struct fuse_mkdir_in *in = (const void *)request->body;
    const char *text = (const char *)(in + 1);
    if (!is_there(request, text))
        make(request, text, new_node(request, S_IFDIR | in->mode, 0));
}

static void do_symlink(const Request *request)
{
    const char *text = request->body, *target = text + strlen(text) + 1;
    if (is_there(request, text))
        return;
    Node *node = new_node(request, S_IFLNK | 0777, 0);
    node->target = required(strdup(target));
    node->attr.size = strlen(target);
    make(request, text, node);
}

static void do_link(const Request *request)
{
    const struct fuse_link_in *in = (const void *)request->body;
    const char *text = (const char *)(in + 1);
    Node *node = node_of(in->oldnodeid);
    if (is_there(request, text))
        return;
    touch_change(&node->attr);
    make(request, text, node);
}

static void do_readlink(const Request *request)
{
    answer(request, request->node->target, request->node->attr.size);
}

static void do_unlink(const Request *request)
{
    Name *name = find(request->node, request->body);
    if (!name)
        return answer_error(request, ENOENT);
    if (name->node->first)
        return answer_error(request, ENOTEMPTY);
    free_if_unused(remove_name(name));
    answer_error(request, 0);
}

static void exchange(Name *name, Name *other, const char *text, const char *other_text)
{
    Node *directory = name->directory, *other_directory = other->directory;
    Node *node = remove_name(name), *other_node = remove_name(other);
    add_name(directory, text, other_node);
    add_name(other_directory, other_text, node);
}

/* What may be moved over what, but for a directory that is not empty, the kernel has seen to. */
static void rename_to(const Request *request, Node *directory, uint32_t flags, const char *text)
{
    const char *new_text = text + strlen(text) + 1;
    Name *name = find(request->node, text), *over = find(directory, new_text);
    if (flags & ~(uint32_t)(RENAME_NOREPLACE | RENAME_EXCHANGE))
        return answer_error(request, EINVAL);
    if (!name || (flags & RENAME_EXCHANGE && !over))
        return answer_error(request, ENOENT);
    if (over && flags & RENAME_NOREPLACE)
        return answer_error(request, EEXIST);
    if (flags & RENAME_EXCHANGE) {
        exchange(name, over, text, new_text);
        return answer_error(request, 0);
    }
    if (over && over->node->first)
        return answer_error(request, ENOTEMPTY);
    if (over)
        free_if_unused(remove_name(over));
    add_name(directory, new_text, remove_name(name));
    answer_error(request, 0);
}

static void do_rename(const Request *request)
{
    const struct fuse_rename_in *in = (const void *)request->body;
    rename_to(request, node_of(in->newdir), 0, (const char *)(in + 1));
}

static void do_rename2(const Request *request)
{
    const struct fuse_rename2_in *in = (const void *)request->body;
    rename_to(request, node_of(in->newdir), in->flags, (const char *)(in + 1));
}

static void forget(Node *node, uint64_t times)
{
    node->known -= times < node->known ? times : node->known;
    free_if_unused(node);
}

static void do_forget(const Request *request)
{
    const struct fuse_forget_in *in = (const void *)request->body;
    forget(request->node, in->nlookup);
}

static void do_batch_forget(const Request *request)
{
    const struct fuse_batch_forget_in *in = (const void *)request->body;
    const struct fuse_forget_one *items = (const void *)(in + 1);
    for (uint32_t i = 0; i < in->count; i++)
        forget(node_of(items[i].nodeid), items[i].nlookup);
}

/* -- requests about attributes ---------------------------------------------------------------- */

static void do_getattr(const Request *request)
{
    answer_attributes(request);
}

static void clear_set_ids(struct fuse_attr *attr)
{
    if (S_ISDIR(attr->mode))
        return;
    attr->mode &= ~(uint32_t)S_ISUID;
    if (attr->mode & S_IXGRP)
        attr->mode &= ~(uint32_t)S_ISGID;
}

static void resize(Node *node, uint64_t size)
{
    size_t last = size / CHUNK;
    if (size < node->attr.size) {
        cut(node, (size + CHUNK - 1) / CHUNK);
        if (size % CHUNK && last < node->chunks_count && node->chunks[last])
            memset(node->chunks[last] + size % CHUNK, 0, CHUNK - size % CHUNK);
    }
    node->attr.size = size;
}

static void set_times(struct fuse_attr *attr, const struct fuse_setattr_in *in)
{
    int access_now = in->valid & FATTR_ATIME_NOW, change_now = in->valid & FATTR_MTIME_NOW;
    if (in->valid & FATTR_ATIME) {
        attr->atime = access_now ? attr->ctime : in->atime;
        attr->atimensec = access_now ? attr->ctimensec : in->atimensec;
    }
    if (in->valid & FATTR_MTIME) {
        attr->mtime = change_now ? attr->ctime : in->mtime;
        attr->mtimensec = change_now ? attr->ctimensec : in->mtimensec;
    }
}

static void do_setattr(const Request *request)
{
    const struct fuse_setattr_in *in = (const void *)request->body;
    struct fuse_attr *attr = &request->node->attr;
    touch_change(attr);
    if (in->valid & FATTR_SIZE) {
        resize(request->node, in->size);
        touch(attr);
    }
    if (in->valid & FATTR_MODE)
        attr->mode = (attr->mode & S_IFMT) | (in->mode & 07777);
    if (in->valid & FATTR_UID)
        attr->uid = in->uid;
    if (in->valid & FATTR_GID)
        attr->gid = in->gid;
    if (in->valid & (FATTR_UID | FATTR_GID | FATTR_KILL_SUIDGID))
        clear_set_ids(attr);
    set_times(attr, in);
    answer_attributes(request);
}

static void do_statfs(const Request *request)
{
    uint64_t blocks = FILE_MAX / CHUNK;
    struct fuse_statfs_out out = {
        .st = {.blocks = blocks,
               .bfree = blocks,
               .bavail = blocks,
               .files = 1 << 30,
               .ffree = 1 << 30,
               .bsize = CHUNK,
               .frsize = CHUNK,
               .namelen = NAME_MAX},
    };
    answer(request, &out, sizeof out);
}

static void do_ioctl(const Request *request)
{
    answer_error(request, ENOTTY);
}

/* -- requests about bytes --------------------------------------------------------------------- */

/* Straight from the chunks. */
static void do_read(const Request *request)
{
    static char hole[CHUNK];
    const struct fuse_read_in *in = (const void *)request->body;
    const Node *node = request->node;
    struct iovec parts[PAGES_MAX + 2];
    int count = 1;
    uint64_t at = in->offset, end = in->offset + (in->size < WRITE_MAX ? in->size : WRITE_MAX);
    if (end > node->attr.size)
        end = node->attr.size;
    while (at < end) {
        size_t index = at / CHUNK, from = at % CHUNK;
        size_t size = end - at < CHUNK - from ? end - at : CHUNK - from;
        char *chunk = index < node->chunks_count ? node->chunks[index] : NULL;
        parts[count++] = (struct iovec){(chunk ? chunk : hole) + from, size};
        at += size;
    }
    send_parts(request, 0, parts, count);
}

static void make_room(Node *node, size_t count)
{
    if (count <= node->chunks_count)
        return;
    size_t wanted = node->chunks_count ? count * 2 : count;
    node->chunks = required(realloc(node->chunks, wanted * sizeof *node->chunks));
    memset(node->chunks + node->chunks_count, 0,
           (wanted - node->chunks_count) * sizeof *node->chunks);
    node->chunks_count = wanted;
}

/* Within a chunk. */
static void put(Node *node, uint64_t at, const char *data, size_t size)
{
    char **chunk = &node->chunks[at / CHUNK];
    if (!*chunk) {
        *chunk = new_chunk();
        node->attr.blocks += CHUNK / 512;
        if (size < CHUNK)
            memset(*chunk, 0, CHUNK);
    }
    memcpy(*chunk + at % CHUNK, data, size);
}

static void do_write(const Request *request)
{
    const struct fuse_write_in *in = (const void *)request->body;
    const char *data = (const char *)(in + 1);
    struct fuse_write_out out = {.size = in->size};
    Node *node = request->node;
    uint64_t at = in->offset, end = in->offset + in->size;
    if (end > FILE_MAX)
        return answer_error(request, EFBIG);
    make_room(node, (end + CHUNK - 1) / CHUNK);
    while (at < end) {
        size_t room = CHUNK - at % CHUNK;
        size_t size = end - at < room ? end - at : room;
        put(node, at, data, size);
        data += size;
        at += size;
    }
    if (end > node->attr.size)
        node->attr.size = end;
    if (in->write_flags & FUSE_WRITE_KILL_SUIDGID)
        clear_set_ids(&node->attr);
    touch(&node->attr);
    answer(request, &out, sizeof out);
}

/* -- listings --------------------------------------------------------------------------------- */

/* What a request asks for, and how far it is filled. */
typedef struct {
    size_t used, size;
    int plus;
} Listing;

/* Whether it fitted. The dots are not looked up. */
static int add_entry(Listing *list, const Node *node, const char *text, size_t size,
                     uint64_t cookie)
{
    size_t head = list->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    size_t wanted = FUSE_DIRENT_ALIGN(head + size);
    char *place = listing + list->used;
    if (list->used + wanted > list->size)
        return 0;
    memset(place + wanted - 8, 0, 8); /* behind the name */
    struct fuse_dirent *dirent = (void *)place;
    if (list->plus) {
        struct fuse_direntplus *both = (void *)place;
        both->entry_out = entry_of(node);
        if (cookie <= 2)
            both->entry_out.nodeid = 0;
        dirent = &both->dirent;
    }
    dirent->ino = node->attr.ino;
    dirent->off = cookie;
    dirent->namelen = (uint32_t)size;
    dirent->type = (node->attr.mode & S_IFMT) >> 12;
    memcpy(dirent->name, text, size);
    list->used += wanted;
    return 1;
}

static Name *name_after(const Node *directory, uint64_t cookie)
{
    if (directory->listed && directory->listed->cookie == cookie)
        return directory->listed->after;
    Name *name = directory->first;
    while (name && name->cookie <= cookie)
        name = name->after;
    return name;
}

static void remember_listed(size_t used)
{
    for (size_t at = 0; at < used;) {
        const struct fuse_direntplus *entry = (const void *)(listing + at);
        if (entry->entry_out.nodeid)
            node_of(entry->entry_out.nodeid)->known++;
        at += FUSE_DIRENTPLUS_SIZE(entry);
    }
}

static void list_names(const Request *request, int plus)
{
    const struct fuse_read_in *in = (const void *)request->body;
    Node *directory = request->node;
    Listing list = {0, in->size < WRITE_MAX ? in->size : WRITE_MAX, plus};
    int fits = 1;
    if (in->offset < 1)
        fits = add_entry(&list, directory, ".", 1, 1);
    if (fits && in->offset < 2)
        fits = add_entry(&list, directory->parent, "..", 2, 2);
    Name *name = fits ? name_after(directory, in->offset) : NULL;
    while (name && add_entry(&list, name->node, name->text, name->size, name->cookie)) {
        directory->listed = name;
        name = name->after;
    }
    if (answer(request, listing, list.used) && plus)
        remember_listed(list.used);
}

static void do_readdir(const Request *request)
{
    list_names(request, 0);
}

static void do_readdirplus(const Request *request)
{
    list_names(request, 1);
}

/* -- which is which --------------------------------------------------------------------------- */

typedef void Handler(const Request *);

/* Whatever is not among them is nothing of the kind. */
static Handler *const HANDLERS[] = {
    [FUSE_LOOKUP] = do_lookup,
    [FUSE_FORGET] = do_forget,
    [FUSE_GETATTR] = do_getattr,
    [FUSE_SETATTR] = do_setattr,
    [FUSE_READLINK] = do_readlink,
    [FUSE_SYMLINK] = do_symlink,
    [FUSE_MKNOD] = do_mknod,
    [FUSE_MKDIR] = do_mkdir,
    [FUSE_UNLINK] = do_unlink,
    [FUSE_RMDIR] = do_unlink,
    [FUSE_RENAME] = do_rename,
    [FUSE_LINK] = do_link,
    [FUSE_READ] = do_read,
    [FUSE_WRITE] = do_write,
    [FUSE_STATFS] = do_statfs,
    [FUSE_FSYNC] = do_agree,
    [FUSE_READDIR] = do_readdir,
    [FUSE_FSYNCDIR] = do_agree,
    [FUSE_INTERRUPT] = do_not_answer,
    [FUSE_IOCTL] = do_ioctl,
    [FUSE_BATCH_FORGET] = do_batch_forget,
    [FUSE_READDIRPLUS] = do_readdirplus,
    [FUSE_RENAME2] = do_rename2,
};
#define HANDLERS_COUNT (sizeof HANDLERS / sizeof *HANDLERS)

void handle(const Request *request)
{
    uint32_t opcode = request->head->opcode;
    Handler *handler = opcode < HANDLERS_COUNT ? HANDLERS[opcode] : NULL;
    (handler ? handler : do_nothing_of_the_kind)(request);
}
