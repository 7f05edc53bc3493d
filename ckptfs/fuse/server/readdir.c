/* Listings of directories, with the attributes of what is in them. */

#include "server.h"

static PyObject *call_entries, *call_adopt;

/* The answer to a request for the entries of a directory, as far as it is put together. */
typedef struct {
    uint64_t node;
    int plus; /* with attributes */
    char *out;
    size_t used, size;
    uint64_t last; /* the cookie of the last entry in it */
} Listing;

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
static struct fuse_entry_out named_entry(const char *name, size_t name_size, uint64_t ino)
{
    struct fuse_entry_out entry = {.attr.ino = ino};
    entry.attr.mode = is_dot(name, name_size) ? S_IFDIR : attributes_type(ino);
    return entry;
}

int is_familiar(uint64_t ino)
{
    return lookups_has(ino) && attributes_type(ino);
}

/* Adds (name, inode or the number of one that is familiar, cookie). Returns 1 if it fitted, 0 if not,
 * -1 for an exception. */
static int add_item(Listing *listing, PyObject *item)
{
    PyObject *name, *inode;
    unsigned long long cookie;
    struct fuse_entry_out entry;
    if (!PyArg_ParseTuple(item, "SOK", &name, &inode, &cookie))
        return -1;
    size_t name_size = (size_t)PyBytes_GET_SIZE(name);
    if (PyLong_Check(inode))
        entry = named_entry(PyBytes_AS_STRING(name), name_size, PyLong_AsUnsignedLongLong(inode));
    else if (!fill_entry(&entry, inode, base_of(listing->node)))
        return -1;
    if (PyErr_Occurred())
        return -1;
    return put_entry(listing, PyBytes_AS_STRING(name), name_size, &entry, cookie);
}

/* As in `listings`: a cookie is a stream and a place in it. Streams of what is listed here have higher
 * numbers than the others. */
#define POSITION_BITS 32
#define STREAM_FIRST ((uint64_t)1 << 30)
#define STREAM_END ((uint64_t)1 << 31)
#define STREAMS_MAX 64

/* The last answers of which all names were given at once; should somebody go on behind one of them, or
 * somewhere in the middle, `Listings` takes the names. None if there is no stream. */
static struct {
    uint64_t stream;
    Listing listing;
} streams[STREAMS_MAX];
static uint64_t last_stream = STREAM_END - 1;

static void keep_stream(uint64_t stream, const Listing *listing)
{
    size_t place = stream % STREAMS_MAX;
    char *shorter = listing->used ? realloc(listing->out, listing->used) : NULL;
    free(streams[place].listing.out);
    streams[place].stream = stream;
    streams[place].listing = *listing;
    if (shorter)
        streams[place].listing.out = shorter;
}

static void forget_streams(void)
{
    for (size_t i = 0; i < STREAMS_MAX; i++)
        keep_stream(i, &(Listing){0});
}

/* The names in an answer, as they were given, without the dots. */
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

/* Somebody goes on in a stream: its names are handed over. Returns 0 with an exception set if that
 * failed. */
static int hand_over_stream(uint64_t node, uint64_t stream)
{
    size_t place = stream % STREAMS_MAX;
    if (stream < STREAM_FIRST || streams[place].stream != stream ||
        streams[place].listing.node != node)
        return 1;
    PyObject *result =
        CALL(call_adopt, NUMBER(node), NUMBER(stream), names_of(&streams[place].listing));
    streams[place].stream = 0;
    Py_XDECREF(result);
    return result != NULL;
}

static int add_committed(void *context, const char *name, size_t name_size, uint64_t ino,
                        const InodeRecord *inode)
{
    Listing *listing = context;
    struct fuse_entry_out entry = named_entry(name, name_size, ino);
    if (inode && !is_plain(ino))
        return 0;
    if (inode) {
        fill_from_record(&entry.attr, inode);
        note_attributes(&entry.attr);
        entry.nodeid = ino;
        entry.attr_valid = validity_of(&entry.attr);
        entry.entry_valid = FOREVER;
    }
    return put_entry(listing, name, name_size, &entry, listing->last + 1);
}

/* All that is in a directory, if it stands as it was committed, and fits. */
static int list_committed(Listing *listing)
{
    uint64_t above;
    last_stream = last_stream + 1 < STREAM_END ? last_stream + 1 : STREAM_FIRST;
    listing->last = last_stream << POSITION_BITS;
    /* In the root `.checkpoints` may have to be shown. */
    if (!is_plain(listing->node) || listing->node == FUSE_ROOT_ID)
        return 0;
    if (!snapshot_parent(listing->node, &above) || !above ||
        !add_committed(listing, ".", 1, listing->node, NULL) ||
        !add_committed(listing, "..", 2, above, NULL))
        return 0;
    return snapshot_readdir(listing->node, is_familiar, add_committed, listing);
}

/* What Python gives. Returns 1 if that was all, 0 if it did not fit, -1 for an exception. */
static int list_stored(Listing *listing, uint64_t offset)
{
    PyObject *entries = CALL(call_entries, NUMBER(listing->node), NUMBER(offset));
    int fits = entries ? 1 : -1;
    PyObject *item = NULL;
    while (fits > 0 && (item = PyIter_Next(entries))) {
        fits = add_item(listing, item);
        Py_DECREF(item);
    }
    Py_XDECREF(entries);
    return PyErr_Occurred() ? -1 : fits;
}

static void remember_listed(const Listing *listing)
{
    for (size_t at = 0; at < listing->used;) {
        const struct fuse_direntplus *entry = (const void *)(listing->out + at);
        lookups_add(entry->entry_out.nodeid);
        at += FUSE_DIRENTPLUS_SIZE(entry);
    }
}

/* The end of the listing that was answered last: the kernel asks until it gets nothing. */
static uint64_t ended_node, ended_at;

/* Puts an answer together. Returns 1 if it ends the listing, 0 if there is more, -1 for an exception. */
static int fill_listing(Listing *listing, uint64_t offset)
{
    if (!listing->out) {
        PyErr_NoMemory();
        return -1;
    }
    if (offset && offset == ended_at && listing->node == ended_node)
        return 1;
    if (!offset && list_committed(listing))
        return 1;
    listing->used = 0;
    listing->last = offset;
    if (!hand_over_stream(listing->node, offset >> POSITION_BITS))
        return -1;
    return list_stored(listing, offset);
}

static Outcome list(const Request *request, int plus)
{
    const struct fuse_read_in *in = (const void *)request->body;
    Listing listing = {request->head->nodeid, plus, malloc(in->size), 0, in->size, 0};
    int ends = fill_listing(&listing, in->offset);
    ended_node = listing.node;
    ended_at = ends > 0 ? (listing.used ? listing.last : in->offset) : 0;
    if (ends >= 0 && send_reply(request, 0, listing.out, listing.used) && plus)
        remember_listed(&listing);
    if (ends > 0 && !in->offset && listing.last >> POSITION_BITS >= STREAM_FIRST)
        keep_stream(listing.last >> POSITION_BITS, &listing);
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

int readdir_bind(PyObject *owner)
{
    forget_streams();
    ended_node = ended_at = 0;
    return take_attribute(owner, "entries", &call_entries) &&
           take_attribute(owner, "adopt", &call_adopt);
}
