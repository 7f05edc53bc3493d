/* What stands: names and inodes of the head as the last commit left them, read from LMDB's file.
 *
 * To look a name up through the store takes some twenty calls in the interpreter, and whoever looks at
 * a tree for the first time looks for thousands. But most of a tree is as it was committed, and LMDB
 * never changes a page of its last commit: the pages can be read as they are in the file, until the
 * next one. So they are mapped here a second time, and its trees are searched.
 *
 * What was changed since is not in them. Every key that is written tells which inode, or the names of
 * which directory, that is (`touch`), and of those nothing is said here; nor of anything that is not as
 * it should be: then the store is asked, and says what is wrong.
 *
 * Layouts are those of LMDB 0.9 (as `store/pages.py` has them) and of docs/FORMAT.md.
 */

#include "_standing.h"
#include "_numbers.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- pages -------------------------------------------------------------------------------------- */

#define PAGE 4096
#define META_AT 16
#define MAGIC 0xBEEFC0DEu
#define VERSION 1
#define BRANCH 1
#define LEAF 2
#define BIG_DATA 1
#define NO_PAGE UINT64_MAX
#define DEPTH_MAX 32
/* As much as LMDB maps. */
#define MAP_SIZE ((size_t)1 << 40)

typedef struct {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
} Tree;

typedef struct {
    uint32_t magic, version;
    uint64_t address, map_size;
    Tree trees[2]; /* free pages, names of tables */
    uint64_t last_page, txn;
} Meta;

typedef struct {
    uint64_t number;
    uint16_t pad, flags, lower, upper;
    uint16_t places[];
} Page;

typedef struct {
    uint16_t low, high, flags, key_size;
    unsigned char data[];
} Node;

typedef struct {
    const unsigned char *at;
    size_t size;
} Bytes;

static const unsigned char *map; /* NULL: the file is not mapped */
static uint64_t last_page;
static Tree inodes, dirents;

/* A page of a tree. NULL if it is not as it should be: a branch, or where the leaves are a leaf. */
static const Page *page_at(uint64_t number, int is_leaf)
{
    const Page *page = (const void *)(map + number * PAGE);
    if (number > last_page || page->number != number || page->flags != (is_leaf ? LEAF : BRANCH) ||
        page->lower <= sizeof *page || page->lower > page->upper || page->upper > PAGE)
        return NULL;
    return page;
}

static unsigned count_of(const Page *page)
{
    return (page->lower - sizeof *page) / 2;
}

/* NULL if it is not within its page. */
static const Node *node_at(const Page *page, unsigned index)
{
    size_t place = page->places[index];
    const Node *node = (const void *)((const char *)page + place);
    if (place & 1 || place < page->upper || place + sizeof *node > PAGE ||
        place + sizeof *node + node->key_size > PAGE)
        return NULL;
    return node;
}

static int compare(const Node *node, Bytes key)
{
    size_t least = node->key_size < key.size ? node->key_size : key.size;
    int order = memcmp(node->data, key.at, least);
    return order ? order : (node->key_size > key.size) - (node->key_size < key.size);
}

/* Where a key is in a page, or would be: the first node that is not below it. In a branch the first
 * key counts as below all. Looks at the same nodes as LMDB does, so that both are led astray by the
 * same. Returns -1 if the page makes no sense. */
static int place_in(const Page *page, Bytes key, int *is_there)
{
    int low = page->flags == BRANCH, high = (int)count_of(page) - 1, middle = 0, order = 0;
    while (low <= high) {
        middle = (low + high) / 2;
        const Node *node = node_at(page, (unsigned)middle);
        if (!node)
            return -1;
        order = -compare(node, key);
        if (!order)
            break;
        if (order > 0)
            low = middle + 1;
        else
            high = middle - 1;
    }
    *is_there = !order;
    return middle + (order > 0);
}

/* -- a way through a tree ------------------------------------------------------------------------ */

/* So many nodes may be looked at on one way: as many as a directory has entries that are ever listed
 * here, and versions. In a tree that leads to itself there is no end. */
#define STEPS_MAX (1 << 16)

typedef struct {
    int levels; /* of the tree */
    const Page *pages[DEPTH_MAX];
    unsigned indexes[DEPTH_MAX];
    int depth;
    int steps;
} Way;

static uint64_t child_of(const Node *node)
{
    return node->low | (uint64_t)node->high << 16 | (uint64_t)node->flags << 32;
}

/* Where to go on in a page: to its beginning, or with a key to where that would be. Returns -1 if that
 * cannot be. */
static int step_in(const Page *page, const Bytes *key)
{
    int is_there = 0;
    int index = key ? place_in(page, *key, &is_there) : 0;
    /* In a branch: the one that is equal or, mostly, the one before the first that is above. */
    return index - (page->flags == BRANCH && key && index > 0 && !is_there);
}

/* Goes down from what the last step of the way leads to, to a leaf. Returns 0 if that cannot be. */
static int go_down(Way *way, uint64_t number, const Bytes *key)
{
    while (way->depth < way->levels) {
        const Page *page = page_at(number, way->depth == way->levels - 1);
        int index = page ? step_in(page, key) : -1;
        if (index < 0)
            return 0;
        way->pages[way->depth] = page;
        way->indexes[way->depth++] = (unsigned)index;
        if (way->depth == way->levels)
            return 1;
        const Node *node = node_at(page, (unsigned)index);
        if (!node)
            return 0;
        number = child_of(node);
    }
    return 0;
}

/* Finds the way to where a key would be in a tree. Returns 0 if that cannot be. */
static int find_way(Way *way, const Tree *tree, Bytes key)
{
    /* The steps are filled in as they come. (GCC 12.2 with -fwrapv takes them back if they are cleared
     * here.) */
    way->levels = tree->depth;
    way->depth = way->steps = 0;
    return tree->depth <= DEPTH_MAX && go_down(way, tree->root, &key);
}

static int is_empty(const Tree *tree)
{
    return tree->root == NO_PAGE;
}

/* The node that a way leads to; at the end of a leaf that of the next. NULL at the end of the tree, or
 * with ``sure`` cleared where the tree makes no sense. */
static const Node *node_on(Way *way, int *sure)
{
    while (way->depth) {
        const Page *page = way->pages[way->depth - 1];
        unsigned index = way->indexes[way->depth - 1];
        if (index >= count_of(page)) {
            if (--way->depth)
                way->indexes[way->depth - 1]++;
            continue;
        }
        const Node *node = node_at(page, index);
        *sure = node && ++way->steps < STEPS_MAX;
        if (!*sure || page->flags == LEAF)
            return *sure ? node : NULL;
        *sure = go_down(way, child_of(node), NULL);
        if (!*sure)
            return NULL;
    }
    return NULL;
}

/* -- versions ------------------------------------------------------------------------------------ */

#define SUFFIX 4
#define KEY_MAX 512

/* The head's view at that commit: the suffixes of the epochs that it sees, and its own. NULL: nothing
 * stands. */
static PyObject *seen;
static unsigned char first[SUFFIX];

static int is_seen(const unsigned char *suffix)
{
    PyObject *key = PyBytes_FromStringAndSize((const char *)suffix, SUFFIX);
    int found = key ? PySet_Contains(seen, key) : -1;
    Py_XDECREF(key);
    if (found < 0)
        PyErr_Clear();
    return found;
}

/* The bytes of a record, which stand in its node; none of these tables has longer ones. */
static int record_of(const Page *page, const Node *node, Bytes *record)
{
    size_t size = node->low | (size_t)node->high << 16;
    const unsigned char *at = node->data + node->key_size;
    if (node->flags & BIG_DATA || at + size > (const unsigned char *)page + PAGE)
        return 0;
    *record = (Bytes){at, size};
    return 1;
}

/* The newest record of an entity that the view sees. ``key`` has room behind the entity. */
static Look newest(const Tree *tree, unsigned char *key, size_t size, Bytes *record)
{
    Way way;
    int sure = 1;
    memcpy(key + size, first, SUFFIX);
    if (is_empty(tree))
        return ABSENT;
    if (!find_way(&way, tree, (Bytes){key, size + SUFFIX}))
        return UNSURE;
    for (const Node *node; (node = node_on(&way, &sure));) {
        if (node->key_size != size + SUFFIX || memcmp(node->data, key, size))
            return ABSENT;
        int is_ours = is_seen(node->data + size);
        if (is_ours < 0 || (is_ours && !record_of(way.pages[way.depth - 1], node, record)))
            return UNSURE;
        if (is_ours)
            return record->size ? FOUND : ABSENT;
        way.indexes[way.depth - 1]++;
    }
    return sure ? ABSENT : UNSURE;
}

/* -- what was changed since ---------------------------------------------------------------------- */

#define TOUCHED_SIZE (1 << 14)

static uint64_t touched_places[TOUCHED_SIZE];
static Numbers touched = {touched_places, TOUCHED_SIZE, 0};

static void fall(void)
{
    Py_CLEAR(seen);
}

void standing_touch(uint64_t ino)
{
    if (seen && !numbers_put(&touched, ino))
        fall();
}

static int stands(uint64_t ino)
{
    return seen && !numbers_have(&touched, ino);
}

/* -- records ------------------------------------------------------------------------------------- */

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

static void put_big(unsigned char *at, uint64_t value)
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
        sum = turned(lanes[0], 1) + turned(lanes[1], 7) + turned(lanes[2], 12) + turned(lanes[3], 18);
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

static Standing unpacked(uint64_t ino, const unsigned char *at)
{
    return (Standing){
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
    };
}

/* The record of an inode that is as it was committed. */
static int inode_record(uint64_t ino, Bytes *record)
{
    unsigned char key[8 + SUFFIX];
    put_big(key, ino);
    return stands(ino) && newest(&inodes, key, 8, record) == FOUND && is_whole(*record);
}

Look standing_get(uint64_t ino, Standing *found)
{
    Bytes record;
    if (!inode_record(ino, &record))
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
static int follow(uint64_t ino, uint64_t parent, const char *name, size_t size, Standing *found)
{
    Bytes record;
    if (!inode_record(ino, &record) || !is_named(record, parent, name, size))
        return 0;
    *found = unpacked(ino, record.at);
    return 1;
}

Look standing_look_up(uint64_t parent, const char *name, Standing *found)
{
    unsigned char key[KEY_MAX];
    size_t size = strlen(name);
    uint64_t above;
    Bytes entry;
    if (!stands(parent) || size > UINT8_MAX)
        return UNSURE;
    put_big(key, parent);
    memcpy(key + 8, name, size + 1);
    Look look = newest(&dirents, key, 8 + size + 1, &entry);
    if (look == ABSENT) /* unless the directory came later */
        return standing_parent(parent, &above) ? ABSENT : UNSURE;
    if (look == UNSURE || entry.size != 8)
        return UNSURE;
    return follow(__builtin_bswap64(u64_at(entry.at)), parent, name, size, found) ? FOUND : UNSURE;
}

/* The name in a key of an entry; the size of it, or 0 if there is none. */
static size_t name_in(const Node *node, const char **name)
{
    if (node->key_size < 8 + 1 + 1 + SUFFIX || node->data[node->key_size - SUFFIX - 1])
        return 0;
    *name = (const char *)node->data + 8;
    return node->key_size - 8u - 1 - SUFFIX;
}

/* Gives one version of an entry. Returns 0 if that is not sure, or was enough. */
static int give(const Way *way, const Node *node, uint64_t directory,
                int (*is_familiar)(uint64_t), Each *each, void *context)
{
    const char *name;
    Bytes entry;
    Standing inode;
    size_t size = name_in(node, &name);
    if (!size || !record_of(way->pages[way->depth - 1], node, &entry))
        return 0;
    if (!entry.size)
        return 1; /* it is gone */
    if (entry.size != 8)
        return 0;
    uint64_t ino = __builtin_bswap64(u64_at(entry.at));
    if (is_familiar(ino))
        return each(context, name, size, ino, NULL);
    return follow(ino, directory, name, size, &inode) && each(context, name, size, ino, &inode);
}

static int is_version_of(const Node *node, const Node *other)
{
    return other && node->key_size == other->key_size &&
           !memcmp(node->data, other->data, node->key_size - SUFFIX);
}

int standing_parent(uint64_t directory, uint64_t *above)
{
    Bytes record;
    if (!inode_record(directory, &record) || !S_ISDIR(u32_at(record.at)))
        return 0;
    *above = u64_at(record.at + PARENT_AT);
    return 1;
}

int standing_list(uint64_t directory, int (*is_familiar)(uint64_t), Each *each, void *context)
{
    unsigned char prefix[8];
    Way way;
    int sure = 1;
    const Node *last = NULL; /* the one whose name was given, or is gone */
    put_big(prefix, directory);
    if (!stands(directory) || is_empty(&dirents) ||
        !find_way(&way, &dirents, (Bytes){prefix, sizeof prefix}))
        return 0;
    for (const Node *node; (node = node_on(&way, &sure)); way.indexes[way.depth - 1]++) {
        if (node->key_size < sizeof prefix || memcmp(node->data, prefix, sizeof prefix))
            return 1;
        if (node->key_size <= sizeof prefix + SUFFIX)
            return 0;
        if (is_version_of(node, last))
            continue;
        int is_ours = is_seen(node->data + node->key_size - SUFFIX);
        if (is_ours < 0 || (is_ours && !give(&way, node, directory, is_familiar, each, context)))
            return 0;
        if (is_ours)
            last = node;
    }
    return sure;
}

/* -- the file ------------------------------------------------------------------------------------ */

static const Meta *meta_at(uint64_t number)
{
    const Meta *meta = (const void *)(map + number * PAGE + META_AT);
    return meta->magic == MAGIC && meta->version == VERSION ? meta : NULL;
}

/* The tree of a table. Returns 0 if there is none. */
static int find_tree(const Tree *names, const char *name, Tree *tree)
{
    Way way;
    int sure = 1;
    Bytes key = {(const unsigned char *)name, strlen(name)}, record;
    if (is_empty(names) || !find_way(&way, names, key))
        return 0;
    const Node *node = node_on(&way, &sure);
    if (!node || compare(node, key) || !record_of(way.pages[way.depth - 1], node, &record) ||
        record.size != sizeof *tree)
        return 0;
    memcpy(tree, record.at, sizeof *tree);
    return 1;
}

static char *map_path;

static void unmap(void)
{
    if (map)
        munmap((void *)map, MAP_SIZE);
    map = NULL;
    free(map_path);
    map_path = NULL;
}

static int is_mapped(const char *path)
{
    return map && map_path && !strcmp(path, map_path);
}

/* Maps the file. It is longer than two pages: a store was made in it. */
static int map_file(const char *path)
{
    unmap();
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    /* Private, though nobody writes: so `store/residency.py` can tell it from LMDB's own. */
    void *mapped = mmap(NULL, MAP_SIZE, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return 0;
    madvise(mapped, MAP_SIZE, MADV_RANDOM); /* as `store/residency.py` says of records */
    map = mapped;
    map_path = strdup(path);
    return 1;
}

/* Finds the trees of the last commit. */
static int find_trees(void)
{
    const Meta *one = meta_at(0), *other = meta_at(1);
    const Meta *last = !one || (other && other->txn > one->txn) ? other : one;
    if (!last || sysconf(_SC_PAGESIZE) != PAGE)
        return 0;
    last_page = last->last_page;
    /* LMDB keeps the size of a page where the first tree has its padding. */
    return last->trees[0].pad == PAGE && find_tree(&last->trees[1], "inodes", &inodes) &&
           find_tree(&last->trees[1], "dirents", &dirents);
}

/* -- for Python ---------------------------------------------------------------------------------- */

const char standing_stand_doc[] =
    "stand(path, seen, first)\n\n"
    "A commit was made. ``path`` is the data file, ``seen`` a set of the suffixes that the head\n"
    "sees now, and ``first`` its own.";

PyObject *standing_stand(PyObject *module, PyObject *args)
{
    const char *path, *own;
    Py_ssize_t own_size;
    PyObject *suffixes;
    if (!PyArg_ParseTuple(args, "yO!y#", &path, &PySet_Type, &suffixes, &own, &own_size))
        return NULL;
    if (own_size != SUFFIX) {
        PyErr_SetString(PyExc_ValueError, "stand: a suffix was expected");
        return NULL;
    }
    fall();
    numbers_clear(&touched);
    if ((is_mapped(path) || map_file(path)) && find_trees()) {
        memcpy(first, own, SUFFIX);
        seen = PySet_New(suffixes);
        if (!seen)
            return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *standing_fall(PyObject *module, PyObject *none)
{
    fall();
    Py_RETURN_NONE;
}

PyObject *standing_leave(PyObject *module, PyObject *none)
{
    fall();
    unmap();
    Py_RETURN_NONE;
}

PyObject *standing_release(PyObject *module, PyObject *none)
{
    if (map)
        madvise((void *)map, MAP_SIZE, MADV_DONTNEED);
    Py_RETURN_NONE;
}

PyObject *standing_touch_entity(PyObject *module, PyObject *entity)
{
    if (!PyBytes_Check(entity) || PyBytes_GET_SIZE(entity) < 8) {
        PyErr_SetString(PyExc_TypeError, "touch: a key of the store was expected");
        return NULL;
    }
    standing_touch(__builtin_bswap64(u64_at((const unsigned char *)PyBytes_AS_STRING(entity))));
    Py_RETURN_NONE;
}

const char standing_look_doc[] =
    "look_up(parent, name)\n\n"
    "What is known of a name without asking the store: None if it is not sure, False if it is not\n"
    "there, else (number, mode, links, owner, group, device, size, allocated, three times).";

PyObject *standing_look(PyObject *module, PyObject *args)
{
    unsigned long long parent;
    const char *name;
    Standing found;
    if (!PyArg_ParseTuple(args, "Ky", &parent, &name))
        return NULL;
    switch (standing_look_up(parent, name, &found)) {
    case ABSENT:
        Py_RETURN_FALSE;
    case FOUND:
        return Py_BuildValue("(KIIIIKKKLLL)", (unsigned long long)found.ino, found.mode, found.nlink,
                             found.uid, found.gid, (unsigned long long)found.rdev,
                             (unsigned long long)found.size, (unsigned long long)found.allocated,
                             (long long)found.atime_ns, (long long)found.mtime_ns,
                             (long long)found.ctime_ns);
    default:
        Py_RETURN_NONE;
    }
}

static int is_wanted(uint64_t ino)
{
    return 0;
}

static int append_name(void *list, const char *name, size_t size, uint64_t ino, const Standing *inode)
{
    PyObject *item = Py_BuildValue("(y#K)", name, (Py_ssize_t)size, (unsigned long long)ino);
    int added = item && !PyList_Append(list, item);
    Py_XDECREF(item);
    return added;
}

const char standing_names_doc[] =
    "names_in(directory)\n\n"
    "The names in a directory, and the numbers that they lead to; None if the store has to be asked.";

PyObject *standing_names(PyObject *module, PyObject *directory)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(directory);
    uint64_t above;
    if (PyErr_Occurred())
        return NULL;
    PyObject *list = PyList_New(0);
    if (!list || (standing_parent(number, &above) &&
                  standing_list(number, is_wanted, append_name, list)) || PyErr_Occurred())
        return PyErr_Occurred() ? (Py_XDECREF(list), NULL) : list;
    Py_DECREF(list);
    Py_RETURN_NONE;
}
