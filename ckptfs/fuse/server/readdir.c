/* Listings of directories, with the attributes of what is in them. */

#include "server.h"

/* Room for an entry, or NULL if there is none. */
static char *room_for(Listing *listing, size_t head, size_t name_size)
{
    size_t wanted = FUSE_DIRENT_ALIGN(head + name_size);
    if (listing->used + wanted > listing->size)
        return NULL;
    char *place = listing->out + listing->used;
    memset(place, 0, wanted);
    listing->used += wanted;
    return place;
}

static int is_dot(const char *name, size_t size)
{
    return name[0] == '.' && (size == 1 || (size == 2 && name[1] == '.'));
}

/* Returns whether it fitted. */
static int put_entry(Listing *listing, const char *name, size_t name_size,
                     const struct fuse_entry_out *entry, uint64_t cookie)
{
    size_t head = listing->plus ? FUSE_NAME_OFFSET_DIRENTPLUS : FUSE_NAME_OFFSET;
    char *place = room_for(listing, head, name_size);
    if (!place)
        return 0;
    struct fuse_dirent *dirent = (void *)place;
    if (listing->plus) {
        struct fuse_direntplus *both = (void *)place;
        both->entry_out = *entry;
        if (is_dot(name, name_size))
            both->entry_out.nodeid = 0; /* not looked up */
        dirent = &both->dirent;
    }
    dirent->ino = entry->attr.ino;
    dirent->off = listing->last = cookie;
    dirent->namelen = (uint32_t)name_size;
    dirent->type = (entry->attr.mode & S_IFMT) >> 12;
    memcpy(dirent->name, name, name_size);
    return 1;
}

/* Says no more of something than what it is: the kernel knows the rest. Where a directory leads up
 * to, a directory is. */
static struct fuse_entry_out named_entry(Server *server, const char *name, size_t name_size,
                                         uint64_t ino)
{
    struct fuse_entry_out entry = {.attr.ino = ino};
    entry.attr.mode = is_dot(name, name_size) ? S_IFDIR : inodes_type(&server->inodes, ino);
    return entry;
}

int is_cached(Server *server, uint64_t ino)
{
    return inodes_is_referenced(&server->inodes, ino) && inodes_type(&server->inodes, ino);
}

/* Adds (name, inode or the number of a cached one, cookie). Returns 1 if it fitted, 0 if not,
 * -1 for an exception. */
static int add_item(Server *server, Listing *listing, PyObject *item)
{
    PyObject *name, *inode;
    unsigned long long cookie;
    struct fuse_entry_out entry;
    if (!PyArg_ParseTuple(item, "SOK", &name, &inode, &cookie))
        return -1;
    size_t name_size = (size_t)PyBytes_GET_SIZE(name);
    if (PyLong_Check(inode))
        entry = named_entry(server, PyBytes_AS_STRING(name), name_size,
                            PyLong_AsUnsignedLongLong(inode));
    else if (!fill_entry(server, &entry, inode, base_of(listing->node)))
        return -1;
    if (PyErr_Occurred())
        return -1;
    return put_entry(listing, PyBytes_AS_STRING(name), name_size, &entry, cookie);
}

/* Streams of what is listed here have higher numbers than those of `listings`. */
#define STREAM_END ((uint64_t)1 << 31)

static void keep_stream(Listings *listings, uint64_t stream, const Listing *listing)
{
    size_t place = stream % STREAMS_MAX;
    char *shorter = listing->used ? realloc(listing->out, listing->used) : NULL;
    free(listings->streams[place].listing.out);
    listings->streams[place].stream = stream;
    listings->streams[place].listing = *listing;
    if (shorter)
        listings->streams[place].listing.out = shorter;
}

void listings_init(Listings *listings)
{
    listings->last_stream = STREAM_END - 1;
}

void listings_free(Listings *listings)
{
    for (size_t i = 0; i < STREAMS_MAX; i++)
        free(listings->streams[i].listing.out);
    *listings = (Listings){0};
}

/* The names in a reply, as they were given, without the dots. */
static PyObject *names_of(const Listing *listing)
{
    PyObject *names = PyList_New(0);
    for (size_t at = 0; names && at < listing->used;) {
        const struct fuse_direntplus *both = (const void *)(listing->out + at);
        const struct fuse_dirent *dirent = listing->plus ? &both->dirent : (const void *)both;
        at += listing->plus ? FUSE_DIRENTPLUS_SIZE(both) : FUSE_DIRENT_SIZE(dirent);
        if (is_dot(dirent->name, dirent->namelen))
            continue;
        PyObject *name = PyBytes_FromStringAndSize(dirent->name, dirent->namelen);
        if (!name || PyList_Append(names, name))
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* A reader continues in a stream: `Listings` takes its names. Returns 0 with an exception set if
 * that failed. */
static int adopt_stream(Server *server, uint64_t node, uint64_t stream)
{
    size_t place = stream % STREAMS_MAX;
    const Listing *listing = &server->listings.streams[place].listing;
    if (stream < STREAM_FIRST || server->listings.streams[place].stream != stream ||
        listing->node != node)
        return 1;
    PyObject *result = CALL(server, adopt, NUMBER(node), NUMBER(stream), names_of(listing));
    server->listings.streams[place].stream = 0;
    Py_XDECREF(result);
    return result != NULL;
}

typedef struct {
    Server *server;
    Listing *listing;
} Adding;

static int add_committed(void *context, const char *name, size_t name_size, uint64_t ino,
                         const InodeRecord *inode)
{
    Server *server = ((Adding *)context)->server;
    Listing *listing = ((Adding *)context)->listing;
    struct fuse_entry_out entry = named_entry(server, name, name_size, ino);
    if (inode && !is_plain(server, ino))
        return 0;
    if (inode) {
        fill_from_record(&entry.attr, inode);
        note_attributes(server, &entry.attr);
        entry.nodeid = ino;
        set_time(&entry.attr_valid, &entry.attr_valid_nsec, validity_of(&entry.attr));
        entry.entry_valid = FOREVER;
    }
    return put_entry(listing, name, name_size, &entry, listing->last + 1);
}

/* All that is in a directory, if it is as it was committed, and fits. */
static int list_committed(Server *server, Listing *listing)
{
    uint64_t above, stream = server->listings.last_stream + 1;
    Adding adding = {server, listing};
    server->listings.last_stream = stream < STREAM_END ? stream : STREAM_FIRST;
    listing->last = server->listings.last_stream << POSITION_BITS;
    /* In the root `.checkpoints` may have to be shown. */
    if (!is_plain(server, listing->node) || listing->node == FUSE_ROOT_ID)
        return 0;
    if (!snapshot_parent(server, listing->node, &above) || !above ||
        !add_committed(&adding, ".", 1, listing->node, NULL) ||
        !add_committed(&adding, "..", 2, above, NULL))
        return 0;
    return snapshot_readdir(server, listing->node, is_cached, add_committed, &adding);
}

/* What Python gives. Returns 1 if that was all, 0 if it did not fit, -1 for an exception. */
static int list_stored(Server *server, Listing *listing, uint64_t offset)
{
    PyObject *entries = CALL(server, entries, NUMBER(listing->node), NUMBER(offset));
    int fits = entries ? 1 : -1;
    PyObject *item = NULL;
    while (fits > 0 && (item = PyIter_Next(entries))) {
        fits = add_item(server, listing, item);
        Py_DECREF(item);
    }
    Py_XDECREF(entries);
    return PyErr_Occurred() ? -1 : fits;
}

static void reference_listed(Server *server, const Listing *listing)
{
    for (size_t at = 0; at < listing->used;) {
        const struct fuse_direntplus *entry = (const void *)(listing->out + at);
        inodes_reference(&server->inodes, entry->entry_out.nodeid);
        at += FUSE_DIRENTPLUS_SIZE(entry);
    }
}

/* Puts a reply together. Returns 1 if it ends the listing, 0 if there is more, -1 for an exception.
 */
static int fill_listing(Server *server, Listing *listing, uint64_t offset)
{
    const Listings *listings = &server->listings;
    if (!listing->out) {
        PyErr_NoMemory();
        return -1;
    }
    if (offset && offset == listings->ended_at && listing->node == listings->ended_node)
        return 1;
    if (!offset && list_committed(server, listing))
        return 1;
    listing->used = 0;
    listing->last = offset;
    if (!adopt_stream(server, listing->node, offset >> POSITION_BITS))
        return -1;
    return list_stored(server, listing, offset);
}

static Outcome list(const Request *request, int plus)
{
    const struct fuse_read_in *in = (const void *)request->body;
    Listing listing = {request->head->nodeid, plus, malloc(in->size), 0, in->size, 0};
    Server *server = request->server;
    int ends = fill_listing(server, &listing, in->offset);
    server->listings.ended_node = listing.node;
    server->listings.ended_at = ends > 0 ? (listing.used ? listing.last : in->offset) : 0;
    if (ends >= 0 && send_reply(request, 0, listing.out, listing.used) && plus)
        reference_listed(server, &listing);
    if (ends > 0 && !in->offset && listing.last >> POSITION_BITS >= STREAM_FIRST)
        keep_stream(&server->listings, listing.last >> POSITION_BITS, &listing);
    else
        free(listing.out);
    return ends < 0 ? FAILED : REPLIED;
}

Outcome do_readdir(const Request *request)
{
    return list(request, 0);
}

Outcome do_readdirplus(const Request *request)
{
    return list(request, 1);
}
