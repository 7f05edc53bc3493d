/* What is done for very many entries at once: which entries of a directory are as the ledger has
 * them, what a small file contains (`sync/lower.py`), and the keys of a page of LMDB's file
 * (`store/pages.py`).
 *
 * All of it only takes what is in order. Everything else is left to Python, which looks for itself;
 * it does the same alone where this was not compiled. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "loops.h"
#include "pages.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* -- a directory and the ledger ---------------------------------------------------------------- */

#define LISTED_AT_ONCE 65536
#define NS 1000000000LL
/* Seconds of which nanoseconds surely fit 64 bits. */
#define TIME_MAX_S 9000000000LL

typedef struct {
    uint64_t ino;
    int64_t offset;
    unsigned short size;
    unsigned char type;
    char name[];
} Listed;

/* As `sync/ledger.py` packs it. */
typedef struct __attribute__((packed)) {
    uint8_t version;
    uint32_t mode, uid, gid;
    uint64_t ino, size, mtime_ns, ctime_ns;
} Signature;

static int is_storable(const struct timespec *time)
{
    return time->tv_sec > -TIME_MAX_S && time->tv_sec < TIME_MAX_S;
}

static uint64_t nanoseconds(const struct timespec *time)
{
    return htole64((uint64_t)(time->tv_sec * NS + time->tv_nsec));
}

/* Whether an entry that is no directory, and has one name, begins its record. */
static int is_as_recorded(int fd, const char *name, PyObject *record, uint8_t version)
{
    struct stat seen;
    if (!PyBytes_Check(record) || PyBytes_GET_SIZE(record) < (Py_ssize_t)sizeof(Signature) ||
        fstatat(fd, name, &seen, AT_SYMLINK_NOFOLLOW) || S_ISDIR(seen.st_mode) ||
        seen.st_nlink != 1 || !is_storable(&seen.st_atim) || !is_storable(&seen.st_mtim) ||
        !is_storable(&seen.st_ctim))
        return 0;
    uint64_t size = seen.st_size ? (uint64_t)seen.st_size : (uint64_t)seen.st_rdev;
    Signature found = {
        .version = version,
        .mode = htole32(seen.st_mode),
        .uid = htole32(seen.st_uid),
        .gid = htole32(seen.st_gid),
        .ino = htole64(seen.st_ino),
        .size = htole64(size),
        .mtime_ns = nanoseconds(&seen.st_mtim),
        .ctime_ns = nanoseconds(&seen.st_ctim),
    };
    return !memcmp(&found, PyBytes_AS_STRING(record), sizeof found);
}

/* Takes an entry out of what is known if it is unchanged, else adds it to the others. Returns -1 on
 * an error of Python's. */
static int sort_entry(int fd, const Listed *entry, PyObject *known, PyObject *others,
                      uint8_t version)
{
    int done = -1;
    PyObject *name = PyBytes_FromString(entry->name), *record = NULL;
    if (!name)
        return -1;
    if (entry->type != DT_DIR)
        record = PyDict_GetItemWithError(known, name);
    if (record && is_as_recorded(fd, entry->name, record, version))
        done = PyDict_DelItem(known, name) ? -1 : 1;
    else if (!PyErr_Occurred())
        done = PyList_Append(others, name);
    Py_DECREF(name);
    return done;
}

static int is_itself_or_above(const char *name)
{
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

static Py_ssize_t sort_entries(int fd, char *buffer, PyObject *known, PyObject *others,
                               uint8_t version)
{
    Py_ssize_t unchanged = 0;
    for (;;) {
        long size = syscall(SYS_getdents64, fd, buffer, LISTED_AT_ONCE);
        if (size < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (!size)
            return unchanged;
        for (long at = 0; at < size;) {
            const Listed *entry = (const void *)(buffer + at);
            at += entry->size;
            if (is_itself_or_above(entry->name))
                continue;
            int sorted = sort_entry(fd, entry, known, others, version);
            if (sorted < 0)
                return -1;
            unchanged += sorted;
        }
    }
}

PyObject *pass_unchanged(PyObject *module, PyObject *args)
{
    int fd;
    unsigned char version;
    PyObject *known;
    if (!PyArg_ParseTuple(args, "iO!b", &fd, &PyDict_Type, &known, &version))
        return NULL;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    char *buffer = PyMem_Malloc(LISTED_AT_ONCE);
    PyObject *others = buffer ? PyList_New(0) : PyErr_NoMemory();
    Py_ssize_t unchanged = others ? sort_entries(fd, buffer, known, others, version) : -1;
    PyMem_Free(buffer);
    lseek(fd, 0, SEEK_SET); /* who lists it next begins at the beginning */
    if (unchanged < 0) {
        Py_XDECREF(others);
        return NULL;
    }
    return Py_BuildValue("nN", unchanged, others);
}

/* -- a small file ------------------------------------------------------------------------------ */

/* As in `sync/lower.py`: not followed, and not waited for. */
#define READING (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* Whether a file is one of the many: it has one name and no holes, and all of it is read at once. */
static int is_small(const struct stat *seen, long limit)
{
    return S_ISREG(seen->st_mode) && seen->st_nlink == 1 && seen->st_size <= limit &&
           seen->st_blocks * 512 >= seen->st_size && is_storable(&seen->st_atim) &&
           is_storable(&seen->st_mtim) && is_storable(&seen->st_ctim);
}

/* Fills a buffer from the beginning of a file; returns how much, less than all where it ends. */
static ssize_t read_whole(int fd, char *buffer, size_t size)
{
    size_t filled = 0;
    while (filled < size) {
        ssize_t more = pread(fd, buffer + filled, size - filled, (off_t)filled);
        if (more <= 0)
            return more < 0 ? -1 : (ssize_t)filled;
        filled += (size_t)more;
    }
    return (ssize_t)filled;
}

/* Whether a file has no extended attributes, and nothing of it changed while it was read: its
 * content may be for fewer readers than its mode then said. */
static int is_plain(int fd, const struct stat *then)
{
    struct stat now;
    ssize_t names = flistxattr(fd, NULL, 0);
    if (names > 0 || (names < 0 && errno != ENOTSUP && errno != ENOSYS && errno != EPERM))
        return 0;
    return !fstat(fd, &now) && now.st_mode == then->st_mode && now.st_uid == then->st_uid &&
           now.st_gid == then->st_gid && now.st_ctim.tv_sec == then->st_ctim.tv_sec &&
           now.st_ctim.tv_nsec == then->st_ctim.tv_nsec;
}

static PyObject *content_of(int fd, struct stat *seen, long limit)
{
    if (fstat(fd, seen) || !is_small(seen, limit))
        return NULL;
    PyObject *data = PyBytes_FromStringAndSize(NULL, seen->st_size);
    if (!data)
        return NULL;
    ssize_t size = read_whole(fd, PyBytes_AS_STRING(data), (size_t)seen->st_size);
    if (size < 0 || !is_plain(fd, seen) || (size < seen->st_size && _PyBytes_Resize(&data, size)))
        Py_CLEAR(data);
    return data;
}

static long long time_of(const struct timespec *time)
{
    return time->tv_sec * NS + time->tv_nsec;
}

PyObject *read_small(PyObject *module, PyObject *args)
{
    int directory;
    const char *name;
    long limit;
    struct stat seen;
    struct timespec now;
    if (!PyArg_ParseTuple(args, "iyl", &directory, &name, &limit))
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now); /* its content is at least as new */
    int fd = openat(directory, name, READING | O_NOATIME);
    if (fd < 0 && errno == EPERM)
        fd = openat(directory, name, READING);
    if (fd < 0)
        Py_RETURN_NONE;
    PyObject *data = content_of(fd, &seen, limit);
    close(fd);
    if (!data && PyErr_Occurred())
        return NULL;
    if (!data)
        Py_RETURN_NONE;
    return Py_BuildValue("(IKKKIILKLLL)NL", seen.st_mode, (unsigned long long)seen.st_dev,
                         (unsigned long long)seen.st_ino, (unsigned long long)seen.st_nlink,
                         seen.st_uid, seen.st_gid, (long long)seen.st_size,
                         (unsigned long long)seen.st_rdev, time_of(&seen.st_atim),
                         time_of(&seen.st_mtim), time_of(&seen.st_ctim), data, time_of(&now));
}

/* -- a page of LMDB's file --------------------------------------------------------------------- */

/* Appends the last bytes of a key, unless the one before it ends with the same. */
static int add_end(PyObject *ends, const Node *node, const Node *last, size_t size)
{
    size_t length = node->key_size < size ? node->key_size : size;
    const unsigned char *end = node->data + node->key_size - length;
    if (last && length == (last->key_size < size ? last->key_size : size) &&
        !memcmp(last->data + last->key_size - length, end, length))
        return 0;
    PyObject *found = PyBytes_FromStringAndSize((const char *)end, (Py_ssize_t)length);
    int failed = !found || PyList_Append(ends, found);
    Py_XDECREF(found);
    return failed ? -1 : 0;
}

/* Goes through the nodes of a leaf. 1 if it is sound, 0 if not, -1 if Python has no memory. */
static int look_at_leaf(const unsigned char *page, int ordered, size_t end, PyObject *ends)
{
    const Page *head = (const void *)page;
    unsigned count = count_of(head);
    size_t filled = head->upper, lowest = PAGE;
    const Node *last = NULL;
    for (unsigned i = 0; i < count; i++) {
        size_t at = head->places[i];
        const Node *node = (const void *)(page + at);
        if (at & 1 || at < head->upper || at + sizeof *node > PAGE || node->flags || node->high ||
            !node->key_size || at + sizeof *node + node->key_size + node->low > PAGE)
            return 0;
        if (ordered && last && compare(last, (Bytes){node->data, node->key_size}) >= 0)
            return 0;
        size_t length = (size_t)node->key_size + node->low;
        filled += sizeof *node + length + length % 2;
        lowest = at < lowest ? at : lowest;
        if (add_end(ends, node, last, end))
            return -1;
        last = node;
    }
    return filled == PAGE && lowest == head->upper;
}

static int is_in_order(const Page *head)
{
    return head->lower > sizeof *head && !(head->lower & 1) && head->lower <= head->upper &&
           head->upper <= PAGE;
}

static const Node *node_of(const Page *head, unsigned index)
{
    return (const void *)((const unsigned char *)head + head->places[index]);
}

PyObject *sound_ends(PyObject *module, PyObject *args)
{
    const unsigned char *page;
    Py_ssize_t size;
    int ordered;
    Py_ssize_t end;
    if (!PyArg_ParseTuple(args, "y#pn", &page, &size, &ordered, &end))
        return NULL;
    const Page *head = (const void *)page;
    if (size != PAGE || !is_in_order(head))
        Py_RETURN_NONE;
    PyObject *ends = PyList_New(0);
    int sound = ends ? look_at_leaf(page, ordered, (size_t)end, ends) : -1;
    if (sound <= 0) {
        Py_XDECREF(ends);
        if (sound < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    unsigned count = count_of(head);
    const Node *first = node_of(head, 0), *last = node_of(head, count - 1);
    return Py_BuildValue("Iy#y#N", count, first->data, (Py_ssize_t)first->key_size, last->data,
                         (Py_ssize_t)last->key_size, ends);
}

/* Whether a key lies at or behind one border and before the other. None is no border. */
static int is_between(const Node *node, PyObject *low, PyObject *high)
{
    Bytes from = {NULL, 0}, to = {NULL, 0};
    if (PyBytes_Check(low))
        from = (Bytes){(const void *)PyBytes_AS_STRING(low), (size_t)PyBytes_GET_SIZE(low)};
    if (PyBytes_Check(high))
        to = (Bytes){(const void *)PyBytes_AS_STRING(high), (size_t)PyBytes_GET_SIZE(high)};
    return (!from.at || compare(node, from) >= 0) && (!to.at || compare(node, to) < 0);
}

/* Goes through the leaf of a number, which belongs between two keys: as `look_at_leaf`. */
static int look_at_numbered(const Py_buffer *file, PyObject *number, PyObject *low, PyObject *high,
                            size_t end, PyObject *ends)
{
    size_t place = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return -1;
    if (place >= (size_t)file->len / PAGE)
        return 0;
    const unsigned char *page = (const unsigned char *)file->buf + place * PAGE;
    const Page *head = (const void *)page;
    if (head->number != place || head->flags != LEAF || !is_in_order(head))
        return 0;
    int sound = look_at_leaf(page, 1, end, ends);
    return sound > 0 ? is_between(node_of(head, 0), low, high) &&
                           is_between(node_of(head, count_of(head) - 1), low, high)
                     : sound;
}

PyObject *sound_leaves(PyObject *module, PyObject *args)
{
    Py_buffer file;
    PyObject *numbers, *borders;
    Py_ssize_t end;
    if (!PyArg_ParseTuple(args, "y*O!O!n", &file, &PyList_Type, &numbers, &PyList_Type, &borders,
                          &end))
        return NULL;
    PyObject *ends = PyList_New(0);
    int sound = ends ? PyList_GET_SIZE(borders) == PyList_GET_SIZE(numbers) + 1 : -1;
    unsigned long long count = 0;
    for (Py_ssize_t i = 0; sound > 0 && i < PyList_GET_SIZE(numbers); i++) {
        PyObject *number = PyList_GET_ITEM(numbers, i);
        sound = look_at_numbered(&file, number, PyList_GET_ITEM(borders, i),
                                 PyList_GET_ITEM(borders, i + 1), (size_t)end, ends);
        if (sound > 0)
            count += count_of(
                (const void *)((const char *)file.buf + PyLong_AsSize_t(number) * PAGE));
    }
    PyBuffer_Release(&file);
    if (sound > 0)
        return Py_BuildValue("KN", count, ends);
    Py_XDECREF(ends);
    if (sound < 0)
        return NULL;
    Py_RETURN_NONE;
}
