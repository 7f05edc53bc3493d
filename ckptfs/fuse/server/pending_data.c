/* The bytes of pending creates (pending.c): how they come, by write(2) or from another file, how
 * they are read, and how they go into the store, which may be before the file does. */

#include "server.h"

#include <fcntl.h>

/* The store looks at the bytes where they are. Should a view of them outlive the call, the memory
 * is its own from there on, and the item has a copy. */
int record_bytes(Server *server, Pending *item)
{
    char *data = item->data;
    Lent *lent = NULL;
    item->record = CALL(server, record, lend(&lent, data, item->attributes.size));
    if (!take_back(&lent, data)) {
        item->data = malloc(item->room);
        if (!item->data) {
            fprintf(stderr, "ckptfs: out of memory\n");
            abort(); /* bytes that were acknowledged would be lost */
        }
        memcpy(item->data, data, item->attributes.size);
    }
    return item->record != NULL;
}

int has_bytes(const Pending *item)
{
    return S_ISREG(item->attributes.mode) && item->attributes.size;
}

PyObject *flushed_data(Server *server, Pending *item)
{
    if (has_bytes(item))
        return item->record || record_bytes(server, item) ? Py_NewRef(item->record) : NULL;
    int is_link = S_ISLNK(item->attributes.mode);
    return PyBytes_FromStringAndSize(item->data, is_link ? (Py_ssize_t)item->attributes.size : 0);
}

int make_space(Pending *item, size_t size)
{
    if (size <= item->room)
        return 1;
    size_t room = size < 4096 ? 4096 : BLOCK_SIZE;
    char *data = realloc(item->data, room);
    if (!data)
        return 0;
    item->data = data;
    item->room = room;
    return 1;
}

/* The pending file that bytes may be put into, up to ``end``; NULL if there is none. */
static Pending *file_for(const Request *request, uint64_t node, uint64_t offset, uint64_t end)
{
    Server *server = request->server;
    Pending *item = pending_of(server, node);
    if (!item || item->record || !has_lease(server, request->head->pid))
        return NULL;
    if (offset > item->attributes.size || end > BLOCK_SIZE || !lease_covers(server, end - offset) ||
        !S_ISREG(item->attributes.mode) || !make_space(item, end))
        return NULL;
    return item;
}

/* Bytes were put into a file up to ``end``. */
static Outcome reply_written(const Request *request, Pending *item, uint64_t size, uint64_t end)
{
    struct fuse_attr *attributes = &item->attributes;
    if (end > attributes->size)
        attributes->size = end;
    lease_spend(request->server, size);
    attributes->blocks = (attributes->size + STAT_BLOCK - 1) / STAT_BLOCK;
    stamp_change(attributes, stamp_ns());
    struct fuse_write_out out = {.size = (uint32_t)size};
    return reply(request, &out, sizeof out);
}

/* Passes a write(2) on to the store. What is known of other files' runs stays true: it changes this
 * file only, and the lease that the next of theirs needs is a new one. */
static Outcome pass_write(const Request *request)
{
    Server *server = request->server;
    lease_pass(server);
    flush(server);
    dentries_clear_negative(&server->dentries);
    coalesce_end(server, request->head->nodeid);
    return PASSED;
}

/* Has a program that appends write at the end. Without a writeback cache the kernel goes on at the
 * end that it knows, also after it was notified, until a program asks it for the size. */
static void seek_end(const Request *request, struct fuse_write_in *in)
{
    Server *server = request->server;
    PyObject *node = NUMBER(request->head->nodeid);
    if (node && PySet_Contains(server->calls.resized, node) == 1) {
        flush(server);
        coalesce_end(server, request->head->nodeid);
        PyObject *end = CALL(server, end_of, NUMBER(request->head->nodeid), NUMBER(in->offset));
        if (end)
            in->offset = PyLong_AsUnsignedLongLong(end);
        Py_XDECREF(end);
    }
    Py_XDECREF(node);
    PyErr_Clear(); /* the write itself tells what is wrong with the file */
}

Outcome write_bytes(const Request *request)
{
    struct fuse_write_in *in = (void *)request->body;
    if (in->flags & O_APPEND && PySet_GET_SIZE(request->server->calls.resized) &&
        !(in->write_flags & FUSE_WRITE_CACHE))
        seek_end(request, in);
    if (coalesce_write(request) == REPLIED)
        return REPLIED;
    coalesce_flush(request->server);
    if (is_stream(request))
        return stream_write(request);
    uint64_t end = in->offset + in->size;
    if (in->write_flags & FUSE_WRITE_CACHE || in->size > request->size - sizeof *in)
        return pass_change(request->server);
    Pending *item = file_for(request, request->head->nodeid, in->offset, end);
    if (!item)
        return coalesce_begin(request) == REPLIED ? REPLIED : pass_write(request);
    memcpy(item->data + in->offset, in + 1, in->size);
    if (in->write_flags & FUSE_WRITE_KILL_SUIDGID)
        item->attributes.mode = without_set_id(item->attributes.mode);
    return reply_written(request, item, in->size, end);
}

/* Puts the bytes of the objects in a list one behind the other. Returns how many they are, or -1 if
 * they are not such, or more than there is room for: a mistake of our own, after which what is
 * there may be part of both. */
static ssize_t put_pieces(char *place, size_t room, PyObject *list)
{
    size_t used = 0;
    if (!list || !PyList_Check(list))
        return -1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        Py_buffer piece;
        if (PyObject_GetBuffer(PyList_GET_ITEM(list, i), &piece, PyBUF_SIMPLE))
            return -1;
        size_t size = (size_t)piece.len;
        int fits = size <= room - used;
        if (fits)
            memcpy(place + used, piece.buf, size);
        PyBuffer_Release(&piece);
        if (!fits)
            return -1;
        used += size;
    }
    return (ssize_t)used;
}

/* Puts bytes of a file, which may be pending itself, somewhere; fewer than ``size`` at its end.
 * Returns how many they are, or -1 if they cannot be had. */
static ssize_t put_bytes_of(Server *server, uint64_t node, uint64_t offset, char *place,
                            size_t size)
{
    Pending *source = pending_of(server, node);
    if (source && source->is_shared)
        return -1;
    if (source) {
        uint64_t end = source->attributes.size;
        uint64_t left = offset < end ? end - offset : 0;
        size = left < size ? left : size;
        if (size)
            memcpy(place, source->data + offset, size);
        return (ssize_t)size;
    }
    PyObject *pieces = CALL(server, read_pieces, NUMBER(node), NUMBER(offset), NUMBER(size));
    ssize_t used = put_pieces(place, size, pieces);
    Py_XDECREF(pieces);
    PyErr_Clear(); /* the store meets it again */
    return used;
}

/* All the bytes of a file that is in the store, for one that is empty. Returns whether it has them.
 */
static int share_bytes(Pending *item, const Request *request)
{
    const struct fuse_copy_file_range_in *in = (const void *)request->body;
    uint64_t node = request->head->nodeid;
    if (in->off_in || in->off_out || !in->len || item->attributes.size ||
        pending_of(request->server, node))
        return 0;
    PyObject *record = CALL(request->server, share_record, NUMBER(node), NUMBER(in->len));
    if (record && PyBytes_Check(record)) {
        item->record = record;
        item->is_shared = 1;
        return 1;
    }
    Py_XDECREF(record);
    PyErr_Clear(); /* the store meets it again */
    return 0;
}

/* Bytes of another file, as by cp. */
Outcome copy_bytes(const Request *request)
{
    const struct fuse_copy_file_range_in *in = (const void *)request->body;
    uint64_t node = request->head->nodeid;
    if (in->nodeid_out == node || in->len > BLOCK_SIZE || in->off_out > BLOCK_SIZE)
        return pass_change(request->server);
    Pending *item = file_for(request, in->nodeid_out, in->off_out, in->off_out + in->len);
    if (!item)
        return pass_change(request->server);
    ssize_t size = (ssize_t)in->len;
    if (!share_bytes(item, request))
        size = put_bytes_of(request->server, node, in->off_in, item->data + in->off_out, in->len);
    if (size < 0)
        return pass_change(request->server);
    if (!keeps_set_id(request))
        item->attributes.mode = without_set_id(item->attributes.mode);
    return reply_written(request, item, (uint64_t)size, in->off_out + (uint64_t)size);
}

Outcome read_bytes(const Request *request)
{
    const struct fuse_read_in *in = (const void *)request->body;
    Pending *item = pending_of(request->server, request->head->nodeid);
    if (item && item->is_shared) {
        flush(request->server);
        return PASSED;
    }
    if (!item)
        return PASSED;
    uint64_t size = item->attributes.size;
    if (in->offset >= size)
        return reply(request, NULL, 0);
    uint64_t left = size - in->offset;
    return reply(request, item->data + in->offset, left < in->size ? left : in->size);
}

Outcome read_link(const Request *request)
{
    Pending *item = pending_of(request->server, request->head->nodeid);
    return item ? reply(request, item->data, item->attributes.size) : PASSED;
}
