/* The committed snapshot: names and inodes of the head as the last commit left them, read from
 * LMDB's file.
 *
 * To look a name up through the store takes some twenty calls in the interpreter, and a program
 * that looks at a tree for the first time looks up thousands. But most of a tree is as it was
 * committed, and LMDB never changes a page of its last commit: the pages can be read as they are in
 * the file, until the next one (pages.c). So its trees are searched here.
 *
 * What was changed since is not in them. Every key that is written marks its inode, or the
 * directory that its name is in, as dirty (`touch`), and of those nothing is said here; nor of
 * anything that is not as it should be: then the store is asked, and says what is wrong.
 *
 * Layouts are those of docs/FORMAT.md; `decode_inode` is there for a test that compares them with
 * `store/format.py`.
 */

#include "server.h"

/* -- versions ---------------------------------------------------------------------------------- */

#define KEY_MAX 512

static int is_seen(const Snapshot *snapshot, const unsigned char *suffix)
{
    PyObject *key = PyBytes_FromStringAndSize((const char *)suffix, SUFFIX_SIZE);
    int found = key ? PySet_Contains(snapshot->seen, key) : -1;
    Py_XDECREF(key);
    if (found < 0)
        PyErr_Clear();
    return found;
}

Look snapshot_newest(Snapshot *snapshot, const Tree *tree, unsigned char *key, size_t size,
                     Bytes *record)
{
    Way way;
    int sure = 1;
    memcpy(key + size, snapshot->first, SUFFIX_SIZE);
    if (is_empty(tree))
        return ABSENT;
    if (!find_way(&way, &snapshot->pages, tree, (Bytes){key, size + SUFFIX_SIZE}))
        return UNSURE;
    for (const Node *node; (node = node_on(&way, &sure));) {
        if (node->key_size != size + SUFFIX_SIZE || memcmp(node->data, key, size))
            return ABSENT;
        int is_ours = is_seen(snapshot, node->data + size);
        if (is_ours < 0 || (is_ours && !record_of(way.pages[way.depth - 1], node, record)))
            return UNSURE;
        if (is_ours)
            return record->size ? FOUND : ABSENT;
        way.indexes[way.depth - 1]++;
    }
    return sure ? ABSENT : UNSURE;
}

/* -- changes since then ------------------------------------------------------------------------ */

static void invalidate(Server *server)
{
    Py_CLEAR(server->snapshot.seen);
}

void snapshot_touch(Server *server, uint64_t ino)
{
    if (server->snapshot.seen && !inodes_mark_dirty(&server->inodes, ino))
        invalidate(server);
}

void snapshot_detach(Server *server)
{
    invalidate(server);
    pages_detach(&server->snapshot.pages);
    pages_detach(&server->snapshot.prepared);
}

static int is_clean(Server *server, uint64_t ino)
{
    return server->snapshot.seen && !inodes_is_dirty(&server->inodes, ino);
}

/* -- records ----------------------------------------------------------------------------------- */

static uint32_t u32_at(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t u64_at(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

void put_big(unsigned char *at, uint64_t value)
{
    value = __builtin_bswap64(value);
    memcpy(at, &value, sizeof value);
}

#define P1 2654435761u
#define P2 2246822519u
#define P3 3266489917u
#define P4 668265263u
#define P5 374761393u

static uint32_t turned(uint32_t value, int by)
{
    return value << by | value >> (32 - by);
}

/* XXH32 with the seed 0. */
static uint32_t digest_of(Bytes bytes)
{
    const unsigned char *at = bytes.at, *end = at + bytes.size;
    uint32_t sum = P5;
    if (bytes.size >= 16) {
        uint32_t lanes[] = {P1 + P2, P2, 0, 0 - P1};
        for (; end - at >= 16; at += 16)
            for (int i = 0; i < 4; i++)
                lanes[i] = turned(lanes[i] + u32_at(at + 4 * i) * P2, 13) * P1;
        sum =
            turned(lanes[0], 1) + turned(lanes[1], 7) + turned(lanes[2], 12) + turned(lanes[3], 18);
    }
    sum += (uint32_t)bytes.size;
    for (; end - at >= 4; at += 4)
        sum = turned(sum + u32_at(at) * P3, 17) * P4;
    for (; at < end; at++)
        sum = turned(sum + *at * P5, 11) * P1;
    sum = (sum ^ sum >> 15) * P2;
    sum = (sum ^ sum >> 13) * P3;
    return sum ^ sum >> 16;
}

/* An inode's record: where its fields are. */
enum {
    MODE_AT = 0,
    NLINK_AT = 4,
    UID_AT = 8,
    GID_AT = 12,
    RDEV_AT = 16,
    SIZE_AT = 24,
    ALLOCATED_AT = 32,
    ATIME_AT = 40,
    MTIME_AT = 48,
    CTIME_AT = 56,
    CONTENT_AT = 72,
    PARENT_AT = 84,
    NAME_SIZE_AT = 92,
    NAME_AT = 93,
    SUM = 4
};
/* In the mode of a record that has its digest. */
#define SUMMED (1u << 31)

static int is_whole(Bytes record)
{
    return record.size >= NAME_AT + SUM && u32_at(record.at + MODE_AT) & SUMMED &&
           record.size >= (size_t)NAME_AT + record.at[NAME_SIZE_AT] + SUM &&
           __builtin_bswap32(digest_of((Bytes){record.at, record.size - SUM})) ==
               u32_at(record.at + record.size - SUM);
}

static InodeRecord unpacked(uint64_t ino, const unsigned char *at)
{
    return (InodeRecord){
        .ino = ino,
        .mode = u32_at(at + MODE_AT) ^ SUMMED,
        .nlink = u32_at(at + NLINK_AT),
        .uid = u32_at(at + UID_AT),
        .gid = u32_at(at + GID_AT),
        .rdev = u64_at(at + RDEV_AT),
        .size = u64_at(at + SIZE_AT),
        .allocated = u64_at(at + ALLOCATED_AT),
        .atime_ns = (int64_t)u64_at(at + ATIME_AT),
        .mtime_ns = (int64_t)u64_at(at + MTIME_AT),
        .ctime_ns = (int64_t)u64_at(at + CTIME_AT),
        .content = u64_at(at + CONTENT_AT),
    };
}

/* The record of an inode that is as it was committed. */
static int inode_record(Server *server, uint64_t ino, Bytes *record)
{
    unsigned char key[8 + SUFFIX_SIZE];
    put_big(key, ino);
    return is_clean(server, ino) &&
           snapshot_newest(&server->snapshot, &server->snapshot.inodes, key, 8, record) == FOUND &&
           is_whole(*record);
}

Look snapshot_getattr(Server *server, uint64_t ino, InodeRecord *found)
{
    Bytes record;
    if (!inode_record(server, ino, &record))
        return UNSURE;
    *found = unpacked(ino, record.at);
    return FOUND;
}

/* Whether the inode says that this is its name; one with several says so of one of them. */
static int is_named(Bytes record, uint64_t parent, const char *name, size_t size)
{
    return u64_at(record.at + PARENT_AT) == parent && record.at[NAME_SIZE_AT] == size &&
           !memcmp(record.at + NAME_AT, name, size);
}

/* The inode that an entry leads to. Returns 0 if that is not sure. */
static int follow(Server *server, uint64_t ino, uint64_t parent, const char *name, size_t size,
                  InodeRecord *found)
{
    Bytes record;
    if (!inode_record(server, ino, &record) || !is_named(record, parent, name, size))
        return 0;
    *found = unpacked(ino, record.at);
    return 1;
}

Look snapshot_lookup(Server *server, uint64_t parent, const char *name, InodeRecord *found)
{
    unsigned char key[KEY_MAX];
    size_t size = strlen(name);
    uint64_t above;
    Bytes entry;
    if (!is_clean(server, parent) || size > UINT8_MAX)
        return UNSURE;
    put_big(key, parent);
    memcpy(key + 8, name, size + 1);
    Look look =
        snapshot_newest(&server->snapshot, &server->snapshot.dirents, key, 8 + size + 1, &entry);
    if (look == ABSENT) /* unless the directory came later */
        return snapshot_parent(server, parent, &above) ? ABSENT : UNSURE;
    if (look == UNSURE || entry.size != 8)
        return UNSURE;
    return follow(server, __builtin_bswap64(u64_at(entry.at)), parent, name, size, found) ? FOUND
                                                                                          : UNSURE;
}

/* The name in a key of an entry; the size of it, or 0 if there is none. */
static size_t name_in(const Node *node, const char **name)
{
    if (node->key_size < 8 + 1 + 1 + SUFFIX_SIZE || node->data[node->key_size - SUFFIX_SIZE - 1])
        return 0;
    *name = (const char *)node->data + 8;
    return node->key_size - 8u - 1 - SUFFIX_SIZE;
}

/* Gives one version of an entry. Returns 0 if that is not sure, or was enough. */
static int give(Server *server, const Way *way, const Node *node, uint64_t directory,
                int (*skips)(Server *, uint64_t), Each *each, void *context)
{
    const char *name;
    Bytes entry;
    InodeRecord inode;
    size_t size = name_in(node, &name);
    if (!size || !record_of(way->pages[way->depth - 1], node, &entry))
        return 0;
    if (!entry.size)
        return 1; /* it is gone */
    if (entry.size != 8)
        return 0;
    uint64_t ino = __builtin_bswap64(u64_at(entry.at));
    if (skips(server, ino))
        return each(context, name, size, ino, NULL);
    return follow(server, ino, directory, name, size, &inode) &&
           each(context, name, size, ino, &inode);
}

static int is_version_of(const Node *node, const Node *other)
{
    return other && node->key_size == other->key_size &&
           !memcmp(node->data, other->data, node->key_size - SUFFIX_SIZE);
}

int snapshot_parent(Server *server, uint64_t directory, uint64_t *above)
{
    Bytes record;
    if (!inode_record(server, directory, &record) || !S_ISDIR(u32_at(record.at)))
        return 0;
    *above = u64_at(record.at + PARENT_AT);
    return 1;
}

int snapshot_readdir(Server *server, uint64_t directory, int (*skips)(Server *, uint64_t),
                     Each *each, void *context)
{
    Snapshot *snapshot = &server->snapshot;
    unsigned char prefix[8];
    Way way;
    int sure = 1;
    const Node *last = NULL; /* the one whose name was given, or is gone */
    put_big(prefix, directory);
    if (!is_clean(server, directory) || is_empty(&snapshot->dirents) ||
        !find_way(&way, &snapshot->pages, &snapshot->dirents, (Bytes){prefix, sizeof prefix}))
        return 0;
    for (const Node *node; (node = node_on(&way, &sure)); way.indexes[way.depth - 1]++) {
        if (node->key_size < sizeof prefix || memcmp(node->data, prefix, sizeof prefix))
            return 1;
        if (node->key_size <= sizeof prefix + SUFFIX_SIZE)
            return 0;
        if (is_version_of(node, last))
            continue;
        int is_ours = is_seen(snapshot, node->data + node->key_size - SUFFIX_SIZE);
        if (is_ours < 0 || (is_ours && !give(server, &way, node, directory, skips, each, context)))
            return 0;
        if (is_ours)
            last = node;
    }
    return sure;
}

/* -- for Python -------------------------------------------------------------------------------- */

const char snapshot_refresh_doc[] =
    "refresh(path, seen, first)\n\n"
    "A commit was made. ``path`` is the data file, ``seen`` the set of the suffixes that the head\n"
    "sees, and ``first`` its own. The set is not copied: there may be very many. A suffix that is\n"
    "added later has no records in that commit; before one goes, all that it has was touched.";

PyObject *snapshot_refresh_method(PyObject *self, PyObject *args)
{
    Server *server = (Server *)self;
    Snapshot *snapshot = &server->snapshot;
    const char *path, *own;
    Py_ssize_t own_size;
    PyObject *suffixes;
    if (!PyArg_ParseTuple(args, "yO!y#", &path, &PySet_Type, &suffixes, &own, &own_size))
        return NULL;
    if (own_size != SUFFIX_SIZE) {
        PyErr_SetString(PyExc_ValueError, "refresh: a suffix was expected");
        return NULL;
    }
    invalidate(server);
    inodes_clear_dirty(&server->inodes);
    Pages *pages = &snapshot->pages;
    if (!server->is_closed && pages_follow(pages, path) &&
        pages_tree(pages, "inodes", &snapshot->inodes) &&
        pages_tree(pages, "dirents", &snapshot->dirents) &&
        pages_tree(pages, "blockmap", &snapshot->blockmap) &&
        pages_tree(pages, "blocks", &snapshot->blocks)) {
        memcpy(snapshot->first, own, SUFFIX_SIZE);
        Py_INCREF(suffixes);
        snapshot->seen = suffixes;
    }
    Py_RETURN_NONE;
}

PyObject *snapshot_invalidate_method(PyObject *self, PyObject *none)
{
    invalidate((Server *)self);
    Py_RETURN_NONE;
}

PyObject *snapshot_detach_method(PyObject *self, PyObject *none)
{
    snapshot_detach((Server *)self);
    Py_RETURN_NONE;
}

PyObject *snapshot_touch_method(PyObject *self, PyObject *entity)
{
    if (!PyBytes_Check(entity) || PyBytes_GET_SIZE(entity) < 8) {
        PyErr_SetString(PyExc_TypeError, "touch: a key of the store was expected");
        return NULL;
    }
    const unsigned char *key = (const unsigned char *)PyBytes_AS_STRING(entity);
    snapshot_touch((Server *)self, __builtin_bswap64(u64_at(key)));
    Py_RETURN_NONE;
}

static PyObject *shown(const InodeRecord *found)
{
    return Py_BuildValue("(KIIIIKKKLLL)", (unsigned long long)found->ino, found->mode, found->nlink,
                         found->uid, found->gid, (unsigned long long)found->rdev,
                         (unsigned long long)found->size, (unsigned long long)found->allocated,
                         (long long)found->atime_ns, (long long)found->mtime_ns,
                         (long long)found->ctime_ns);
}

const char snapshot_lookup_doc[] =
    "look_up(parent, name)\n\n"
    "What is known of a name without asking the store: None if it is not sure, False if it is not\n"
    "there, else (number, mode, links, owner, group, device, size, allocated, three times).";

PyObject *snapshot_lookup_method(PyObject *self, PyObject *args)
{
    unsigned long long parent;
    const char *name;
    InodeRecord found;
    if (!PyArg_ParseTuple(args, "Ky", &parent, &name))
        return NULL;
    switch (snapshot_lookup((Server *)self, parent, name, &found)) {
    case ABSENT:
        Py_RETURN_FALSE;
    case FOUND:
        return shown(&found);
    default:
        Py_RETURN_NONE;
    }
}

static int skips_none(Server *server, uint64_t ino)
{
    return 0;
}

static int append_name(void *list, const char *name, size_t size, uint64_t ino,
                       const InodeRecord *inode)
{
    PyObject *item = Py_BuildValue("(y#K)", name, (Py_ssize_t)size, (unsigned long long)ino);
    int added = item && !PyList_Append(list, item);
    Py_XDECREF(item);
    return added;
}

const char snapshot_names_doc[] = "names_in(directory)\n\n"
                                  "The names in a directory, and the numbers that they lead to; "
                                  "None if the store has to be asked.";

PyObject *snapshot_names_method(PyObject *self, PyObject *directory)
{
    Server *server = (Server *)self;
    unsigned long long number = PyLong_AsUnsignedLongLong(directory);
    uint64_t above;
    if (PyErr_Occurred())
        return NULL;
    PyObject *list = PyList_New(0);
    if (!list ||
        (snapshot_parent(server, number, &above) &&
         snapshot_readdir(server, number, skips_none, append_name, list)) ||
        PyErr_Occurred())
        return PyErr_Occurred() ? (Py_XDECREF(list), NULL) : list;
    Py_DECREF(list);
    Py_RETURN_NONE;
}

const char decode_inode_doc[] =
    "decode_inode(ino, record)\n\n"
    "What this side reads in the record of an inode: as `Server.look_up`, then the number of the\n"
    "directory, and the name. None if the record is not whole.";

PyObject *decode_inode(PyObject *module, PyObject *args)
{
    unsigned long long ino;
    const char *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Ky#", &ino, &bytes, &size))
        return NULL;
    Bytes record = {(const unsigned char *)bytes, (size_t)size};
    if (!is_whole(record))
        Py_RETURN_NONE;
    InodeRecord found = unpacked(ino, record.at);
    return Py_BuildValue("(NKy#)", shown(&found), (unsigned long long)u64_at(record.at + PARENT_AT),
                         (const char *)record.at + NAME_AT, (Py_ssize_t)record.at[NAME_SIZE_AT]);
}
