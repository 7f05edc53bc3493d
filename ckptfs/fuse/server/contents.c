/* The committed snapshot (snapshot.c): bytes of files.
 *
 * A program that looks into every file of a tree asks for a page or two of each. Of what is as it
 * was committed, the block is found here: by the file's inode and the block map, in the block map
 * itself or in a page of the store. Only whole bytes in memory are given: those that are compressed
 * or in the heap, not in the kernel's page cache, or not what their digest says, the store is asked
 * for.
 *
 * Whatever changes a block changes its inode in the same epoch, and be it the time of change. So
 * the dirty marks of inodes do for their bytes, too. What frees an epoch moves its blocks before
 * their inodes, and the epoch leaves `seen` after both: so an inode that is found has its blocks.
 */

#include "server.h"

#include <sys/uio.h>
#include <unistd.h>

#define INLINE_TAG 'J'
#define INLINE_DIGEST 8
#define REFERENCE_TAG 'B'
#define KEY_SIZE 16

/* The record of a block that is in the store. */
typedef struct __attribute__((packed)) {
    char tag;
    uint32_t length;
    unsigned char key[KEY_SIZE];
} Reference;

/* What a block's record begins with. */
typedef struct {
    unsigned char codec, seed;
} BlockHead;

#define CODEC_RAW 0

/* Where LMDB puts a record that is too long for its node: a page's head, then its bytes. */
#define OVERFLOW_HEAD sizeof(Page)

/* Whether a function of Python's gives this digest of some bytes; it is called with a seed unless that
 * is negative. */
static int has_digest(PyObject *digest, Bytes bytes, int seed, const unsigned char *wanted,
                      size_t size)
{
    PyObject *found = NULL, *number = PyLong_FromLong(seed);
    PyObject *view = PyMemoryView_FromMemory((char *)bytes.at, (Py_ssize_t)bytes.size, PyBUF_READ);
    PyObject *arguments[] = {view, number};
    if (view && number)
        found = PyObject_Vectorcall(digest, arguments, seed < 0 ? 1 : 2, NULL);
    int is = found && PyBytes_Check(found) && (size_t)PyBytes_GET_SIZE(found) == size &&
             !memcmp(PyBytes_AS_STRING(found), wanted, size);
    Py_XDECREF(found);
    Py_XDECREF(number);
    Py_XDECREF(view);
    PyErr_Clear(); /* the store meets it again */
    return is;
}

/* Reads from the file if the kernel has that in memory. From disk the store reads, which has what is
 * around it read ahead. */
static int read_cached(const Snapshot *snapshot, uint64_t offset, size_t size)
{
    struct iovec place = {snapshot->block, size};
    ssize_t got = preadv2(snapshot->pages.file, &place, 1, (off_t)offset, RWF_NOWAIT);
    if (got < 0 && errno == EOPNOTSUPP) /* as on a tmpfs, which has no other place */
        got = pread(snapshot->pages.file, snapshot->block, size, (off_t)offset);
    return got == (ssize_t)size;
}

/* Reads a record that has pages of its own. */
static int read_overflow(Snapshot *snapshot, const Node *node, Bytes *record)
{
    uint64_t first;
    size_t size = node->low | (size_t)node->high << 16;
    const Page *page = (const void *)snapshot->block;
    memcpy(&first, node->data + node->key_size, sizeof first);
    *record = (Bytes){snapshot->block + OVERFLOW_HEAD, size};
    return size <= sizeof(BlockHead) + BLOCK_SIZE && first <= snapshot->pages.last_page &&
           read_cached(snapshot, first * PAGE, OVERFLOW_HEAD + size) && page->number == first &&
           page->flags == OVERFLOW;
}

static int block_record(Snapshot *snapshot, Bytes key, Bytes *record)
{
    Way way;
    int sure = 1;
    if (is_empty(&snapshot->blocks) || !find_way(&way, &snapshot->pages, &snapshot->blocks, key))
        return 0;
    const Node *node = node_on(&way, &sure);
    if (!node || compare(node, key))
        return 0;
    const Page *page = way.pages[way.depth - 1];
    const unsigned char *behind = node->data + node->key_size + sizeof(uint64_t);
    if (!(node->flags & BIG_DATA))
        return record_of(page, node, record);
    return behind <= (const unsigned char *)page + PAGE && read_overflow(snapshot, node, record);
}

static int stored_bytes(Server *server, const Reference *reference, Bytes *bytes)
{
    Bytes record, key = {reference->key, KEY_SIZE};
    if (!block_record(&server->snapshot, key, &record) ||
        record.size != sizeof(BlockHead) + reference->length)
        return 0;
    const BlockHead *head = (const void *)record.at;
    *bytes = (Bytes){record.at + sizeof *head, reference->length};
    return head->codec == CODEC_RAW &&
           has_digest(server->calls.block_digest, *bytes, head->seed, reference->key, KEY_SIZE);
}

static int inline_bytes(Server *server, Bytes record, Bytes *bytes)
{
    size_t start = 1 + INLINE_DIGEST;
    if (record.size < start)
        return 0;
    *bytes = (Bytes){record.at + start, record.size - start};
    return has_digest(server->calls.inline_digest, *bytes, -1, record.at + 1, INLINE_DIGEST);
}

/* The bytes of one block of a content. */
static int block_bytes(Server *server, uint64_t content, uint64_t number, Bytes *bytes)
{
    unsigned char key[2 * sizeof(uint64_t) + SUFFIX_SIZE];
    Bytes record;
    put_big(key, content);
    put_big(key + sizeof content, number);
    if (snapshot_newest(&server->snapshot, &server->snapshot.blockmap, key, 2 * sizeof content,
                        &record) != FOUND)
        return 0;
    if (*record.at == INLINE_TAG)
        return inline_bytes(server, record, bytes);
    return *record.at == REFERENCE_TAG && record.size == sizeof(Reference) &&
           stored_bytes(server, (const void *)record.at, bytes);
}

int snapshot_read(Server *server, uint64_t ino, uint64_t offset, uint64_t size, Bytes *bytes)
{
    InodeRecord inode;
    uint64_t start = offset % BLOCK_SIZE;
    if (snapshot_getattr(server, ino, &inode) != FOUND || !S_ISREG(inode.mode) || !inode.content ||
        offset >= inode.size)
        return 0;
    if (size > inode.size - offset)
        size = inode.size - offset;
    if (size > BLOCK_SIZE - start ||
        !block_bytes(server, inode.content, offset / BLOCK_SIZE, bytes) ||
        start + size > bytes->size) /* what is not there is zeros, if the file has holes */
        return 0;
    *bytes = (Bytes){bytes->at + start, size};
    return 1;
}

const char snapshot_read_doc[] =
    "bytes_at(ino, offset, size)\n\n"
    "Bytes of a file as they were committed; None if the store has to be asked.";

PyObject *snapshot_read_method(PyObject *self, PyObject *args)
{
    unsigned long long ino, offset, size;
    Bytes bytes;
    if (!PyArg_ParseTuple(args, "KKK", &ino, &offset, &size))
        return NULL;
    if (!snapshot_read((Server *)self, ino, offset, size, &bytes))
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)bytes.at, (Py_ssize_t)bytes.size);
}
