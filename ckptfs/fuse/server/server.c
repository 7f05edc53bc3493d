/* The server of one mount: the loop that reads requests from the FUSE descriptor, the hook between
 * pyfuse3 and libfuse, and the Python type.
 *
 * pyfuse3 asks libfuse for the next request by `fuse_session_receive_buf`. This module is loaded
 * with its symbols visible before pyfuse3 is, so that call arrives here: it gets the request that
 * `serve` read and passed on. Without this module everything works the same, slower.
 *
 * Requests name the node that they are about, so files and directories need not be opened: the
 * kernel is told so once, and from then on open(2) and close(2) cost what they cost natively. Which
 * files are in use is then known by what the kernel has looked up and not forgotten yet (inodes.c).
 */

#include "server.h"
#include "sparse.h"

#include "loops.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

/* All servers of the process, the newest first: libfuse's calls come without one. */
static Server *servers;

/* -- the beginning ----------------------------------------------------------------------------- */

/* The reply to the kernel's INIT is sent here. libfuse, if there is one, is left to hear of it, too;
 * its own reply then comes too late, which is no trouble to it. */
static Outcome do_init(const Request *request)
{
    const struct fuse_init_in *in = (const void *)request->body;
    Server *server = request->server;
    if (!is_able(in)) {
        server->is_refused = 1;
        if (server->is_standalone)
            return reply_error(request, EPROTO);
        return gate_compare_all(server) ? PASSED : FAILED;
    }
    struct fuse_init_out out = agreement_with(in);
    reply(request, &out, sizeof out);
    return server->is_standalone ? REPLIED : PASSED;
}

/* -- the loop ---------------------------------------------------------------------------------- */

static const Handler INIT = {do_init, offsetof(struct fuse_init_in, flags) + sizeof(uint32_t)};

static Outcome handle_request(Server *server, size_t size)
{
    char *buffer = server->buffer;
    const struct fuse_in_header *head = (const void *)buffer;
    if (size < sizeof *head)
        return PASSED;
    Request request = {server, head, buffer + sizeof *head, size - sizeof *head};
    if (gate_handle(&request) != PASSED)
        return REPLIED;
    const Handler *handler = head->opcode == FUSE_INIT ? &INIT : handler_of(head->opcode);
    if (!handler && !server->is_standalone)
        return PASSED;
    if (handler && request.size < handler->least)
        return reply_error(&request, EIO);
    memset(buffer + size, 0, NAMES_MAX);
    Outcome outcome = handler ? pending_handle(&request) : PASSED;
    if (handler && outcome == PASSED)
        outcome = handler->handle(&request);
    if (outcome == PASSED && server->is_standalone)
        outcome = ask_other(&request);
    if (outcome == FAILED)
        reply_error(&request, errno_of_failure(server));
    return outcome;
}

static char *new_buffer(void)
{
    return malloc(REQUEST_MAX + NAMES_MAX);
}

/* Takes the buffer back from Python before the next request is read into it. Returns 0 if there is
 * no memory for another one. */
static int reclaim_buffer(Server *server)
{
    if (!take_back(&server->lent, server->buffer))
        server->buffer = new_buffer();
    return server->buffer != NULL;
}

static void doze(const Server *leader, int64_t wait_ns)
{
    struct pollfd wanted[] = {{leader->device, POLLIN, 0}, {leader->companions.ready, POLLIN, 0}};
    struct timespec left = {wait_ns / NS, wait_ns % NS};
    ppoll(wanted, 2, &left, NULL);
}

/* Reads the next request of those that are served, in turn, if there is one before ``until``: a
 * client that got its reply mostly asks again at once, and to wake up costs both sides more than to
 * look for a while. Other threads, which notify the kernel of changes, come in between. Returns the
 * server that has it; NULL if there was none, and `size` and errno are of the last read. */
static Server *look_for_request(Server *leader, int64_t until, ssize_t *size)
{
    const Companions *served = &leader->companions;
    size_t count = served->active_count, first = served->next % count;
    Server *found = NULL;
    *size = (ssize_t)gate_take(leader); /* what waited comes first */
    if (*size)
        return leader;
    int is_bound = leader->waits.bound >= 0;
    int looks = 0;
    Py_BEGIN_ALLOW_THREADS
    for (;;) {
        for (size_t i = 0; i < count && !found; i++) {
            Server *server = served->active[(first + i) % count];
            *size = read(server->device, server->buffer, REQUEST_MAX);
            if (*size >= 0 || errno != EAGAIN)
                found = server;
        }
        int64_t left = until - monotonic_ns();
        if (found || left <= 0)
            break;
        looks++;
        if (is_bound) /* to the client's CPU: a spin would keep the client from running */
            doze(leader, left);
        else
            breathe();
    }
    Py_END_ALLOW_THREADS
    waits_note(&leader->waits, looks, found != NULL);
    return found;
}

/* Sleeps until a request comes or other tasks get their turn: whether they do, since there is
 * something on the descriptor that `others` wait for. */
static int wait_for_request(const Server *server, int64_t turn, int others)
{
    struct pollfd wanted[] = {
        {server->device, POLLIN, 0}, {others, POLLIN, 0}, {server->companions.ready, POLLIN, 0}};
    int64_t now = monotonic_ns();
    if (now >= turn)
        return 0;
    struct timespec left = {(turn - now) / NS, (turn - now) % NS};
    Py_BEGIN_ALLOW_THREADS
    ppoll(wanted, 3, &left, NULL);
    Py_END_ALLOW_THREADS
    return wanted[1].revents && !wanted[0].revents && !wanted[2].revents;
}

/* A read that finds nothing must not wait: no other task would get a turn until the next request.
 */
static void watch(Server *server, int descriptor)
{
    if (descriptor == server->device)
        return;
    server->device = descriptor;
    int flags = fcntl(descriptor, F_GETFL);
    if (flags >= 0)
        fcntl(descriptor, F_SETFL, flags | O_NONBLOCK);
}

/* So much longer a turn may take if a file is being made: to go on with one that is in the store
 * already takes several times as long. */
#define MIDWAY_NS 500000

PyDoc_STRVAR(
    serve_doc,
    "serve(fd, spin_ns, turn_ns, others) -> int\n\n"
    "Reply to requests, those of the companions included, until one comes that is left to\n"
    "libfuse (LEFT), the mount of a companion ends (ENDED), or other tasks get their turn\n"
    "(TURN): the monotonic clock is past turn_ns, or while no request comes something can be\n"
    "read from ``others``, a descriptor. Without spin_ns it does not wait: other tasks are about\n"
    "to run.");

/* Whether a process seems to be in the middle of making a file, in any mount. */
static int is_midway(const Server *leader)
{
    for (size_t i = 0; i < leader->companions.active_count; i++)
        if (pending_is_midway(leader->companions.active[i]))
            return 1;
    return 0;
}

/* While there is time. */
static void flush_all(Server *leader)
{
    for (size_t i = 0; i < leader->companions.active_count; i++)
        flush(leader->companions.active[i]);
}

static int serve_requests(Server *leader, int64_t spin_ns, int64_t turn_ns, int others)
{
    for (;;) {
        int64_t now = monotonic_ns();
        if (now > turn_ns && (!is_midway(leader) || now > turn_ns + MIDWAY_NS))
            return TURN;
        if (!companions_look(leader, now, 0))
            return LEFT;
        ssize_t size;
        Server *server = look_for_request(leader, now + spin_ns, &size);
        if (!server) {
            if (!is_midway(leader))
                flush_all(leader);
            if (!spin_ns || wait_for_request(leader, turn_ns, others))
                return TURN;
            if (!companions_look(leader, now, 1))
                return LEFT;
            continue;
        }
        if (size < 0 && (errno == ENOENT || errno == EINTR))
            continue; /* the caller took it back */
        leader->requests++;
        leader->companions.next++;
        if (size < 0 && server->is_standalone) {
            server->is_ended = 1;
            return ENDED;
        }
        if (size < 0)
            return LEFT; /* the end of the mount: libfuse meets it, too */
        stay_beside(&leader->waits, ((const struct fuse_in_header *)server->buffer)->pid, now);
        server->served_ns = now;
        server->requests += server != leader; /* the leader counts those of all */
        if (handle_request(server, (size_t)size) == PASSED) {
            server->waiting = (size_t)size;
            return LEFT;
        }
        if (!reclaim_buffer(server))
            return LEFT;
    }
}

int begin_turn(Server *server)
{
    dentries_begin_turn(server);
    return reclaim_buffer(server);
}

void end_turn(Server *server)
{
    if (!server->is_closed)
        dentries_end_turn(server);
}

static PyObject *serve(PyObject *self, PyObject *args)
{
    Server *server = (Server *)self;
    int descriptor, others, outcome = LEFT;
    long long spin_ns, turn_ns;
    if (!PyArg_ParseTuple(args, "iLLi", &descriptor, &spin_ns, &turn_ns, &others))
        return NULL;
    if (server->is_closed) {
        PyErr_SetString(PyExc_ValueError, "serve: the server is closed");
        return NULL;
    }
    watch(server, descriptor);
    server->waits.is_alone = spin_ns > 0;
    int has_memory = companions_begin_turn(server);
    if (has_memory) {
        outcome = serve_requests(server, spin_ns, turn_ns, others);
        has_memory = server->buffer != NULL;
    }
    companions_end_turn(server);
    return has_memory ? PyLong_FromLong(outcome) : PyErr_NoMemory();
}

/* -- between pyfuse3 and libfuse --------------------------------------------------------------- */

/* As libfuse has it; fields behind these are not touched. */
struct fuse_buf {
    size_t size;
    int flags;
    void *mem;
    int fd;
    off_t pos;
};

/* What `symbol` would have been to the caller without this module; its libfuse may have any name.
 */
static void *beyond(void *caller, const char *symbol)
{
    Dl_info info;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, symbol) : NULL;
    if (library)
        dlclose(library);
    return found;
}

/* The newest server that has this session; with NULL one that has none yet. */
static Server *server_of(const struct fuse_session *session)
{
    Server *server = servers;
    while (server && server->session != session)
        server = server->next;
    return server;
}

/* pyfuse3 calls this before it asks for a request: the sign that it comes here for those, too. The
 * newest server without a session is the one that is mounted; where that fails, it may be mounted in
 * another way, with another session. */
int fuse_session_mount(struct fuse_session *session, const char *mountpoint)
{
    int (*mount)(struct fuse_session *, const char *) =
        beyond(__builtin_return_address(0), "fuse_session_mount");
    Server *server = server_of(NULL);
    int result = mount ? mount(session, mountpoint) : -1;
    if (server && result == 0)
        server->session = session;
    return result;
}

int fuse_session_receive_buf(struct fuse_session *session, struct fuse_buf *out)
{
    Server *server = server_of(session);
    if (!server || !server->waiting) {
        int (*receive)(struct fuse_session *, struct fuse_buf *) =
            beyond(__builtin_return_address(0), "fuse_session_receive_buf");
        int result = receive ? receive(session, out) : -ENOSYS;
        return result == -EAGAIN ? -EINTR : result; /* as pyfuse3 knows it: to be tried again */
    }
    if (!out->mem && !(out->mem = malloc(REQUEST_MAX)))
        return -ENOMEM;
    memcpy(out->mem, server->buffer, server->waiting);
    out->size = server->waiting;
    out->flags = 0;
    server->waiting = 0;
    return (int)out->size;
}

/* -- the type ---------------------------------------------------------------------------------- */

/* The references of a server, for the garbage collector and for `close`. */
#define STATE(X) X(unlinked) X(limbo) X(generations) X(partial) X(uncompared) X(resized)

static int server_traverse(PyObject *self, visitproc visit, void *arg)
{
    Server *server = (Server *)self;
#define VISIT(name) Py_VISIT(server->calls.name);
    METHODS(VISIT)
    STATE(VISIT)
    for (size_t i = 0; i < server->companions.count; i++)
        Py_VISIT(server->companions.all[i]);
    Py_VISIT(server->dentries.version);
    Py_VISIT(server->snapshot.seen);
    Py_VISIT(server->snapshot.damaged);
    Py_VISIT(server->snapshot.call_damaged);
    return 0;
}

static int server_clear(PyObject *self)
{
    Server *server = (Server *)self;
#define CLEAR(name) Py_CLEAR(server->calls.name);
    METHODS(CLEAR)
    STATE(CLEAR)
    Py_CLEAR(server->dentries.version);
    Py_CLEAR(server->snapshot.seen);
    Py_CLEAR(server->snapshot.damaged);
    Py_CLEAR(server->snapshot.call_damaged);
    return 0;
}

static void unlist(Server *server)
{
    for (Server **place = &servers; *place; place = &(*place)->next)
        if (*place == server) {
            *place = server->next;
            return;
        }
}

/* A store that still asks hears that nothing is known, and that every page is whole. */
static PyObject *close_server(PyObject *self, PyObject *none)
{
    Server *server = (Server *)self;
    server->is_closed = 1;
    unlist(server);
    server->session = NULL;
    server->waiting = 0;
    companions_free(server);
    server_clear(self);
    snapshot_detach(server);
    Py_RETURN_NONE;
}

static void server_dealloc(PyObject *self)
{
    Server *server = (Server *)self;
    PyObject_GC_UnTrack(self);
    unlist(server);
    companions_free(server);
    free(server->companions.active);
    server_clear(self);
    pages_detach(&server->snapshot.pages);
    pages_detach(&server->snapshot.prepared);
    free(server->snapshot.block);
    listings_free(&server->listings);
    gate_free(&server->gate);
    inodes_free(&server->inodes);
    dentries_free(&server->dentries);
    if (server->pending)
        pending_free(server->pending);
    if (take_back(&server->lent, server->buffer))
        free(server->buffer);
    Py_TYPE(self)->tp_free(self);
}

static int take_attribute(PyObject *owner, const char *name, PyObject **place)
{
    *place = PyObject_GetAttrString(owner, name);
    return *place != NULL;
}

/* One of a type. */
static int take_state(PyObject *owner, const char *name, PyTypeObject *type, PyObject **place)
{
    if (!take_attribute(owner, name, place))
        return 0;
    if (!PyObject_TypeCheck(*place, type)) {
        PyErr_Format(PyExc_TypeError, "Server: %s is to be a %s", name, type->tp_name);
        return 0;
    }
    return 1;
}

static int take_callbacks(Callbacks *calls, PyObject *owner)
{
#define TAKE(name) \
    if (!take_attribute(owner, #name, &calls->name)) \
        return 0;
    METHODS(TAKE)
    return take_state(owner, "unlinked", &PySet_Type, &calls->unlinked) &&
           take_state(owner, "limbo", &PyDict_Type, &calls->limbo) &&
           take_state(owner, "generations", &PyDict_Type, &calls->generations) &&
           take_state(owner, "partial", &PyDict_Type, &calls->partial) &&
           take_state(owner, "resized", &PySet_Type, &calls->resized) &&
           take_state(owner, "uncompared", &PyDict_Type, &calls->uncompared);
}

static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "O", &owner))
        return NULL;
    Server *server = (Server *)type->tp_alloc(type, 0);
    if (!server)
        return NULL;
    server->device = -1;
    pages_init(&server->snapshot.pages);
    pages_init(&server->snapshot.prepared);
    listings_init(&server->listings);
    waits_init(&server->waits);
    server->buffer = new_buffer();
    server->snapshot.block = malloc(SNAPSHOT_BLOCK_MAX);
    server->pending = sparse_new(sizeof *server->pending);
    if (!companions_init(server) || !server->buffer || !server->snapshot.block || !server->pending ||
        !inodes_init(&server->inodes) || !dentries_init(&server->dentries)) {
        Py_DECREF(server);
        return PyErr_NoMemory();
    }
    if (!take_callbacks(&server->calls, owner)) {
        Py_DECREF(server);
        return NULL;
    }
    server->next = servers;
    servers = server;
    return (PyObject *)server;
}

static PyObject *is_hooked(PyObject *self, PyObject *none)
{
    const Server *server = (Server *)self;
    return PyBool_FromLong(server->session && !server->is_refused);
}

static PyObject *is_referenced(PyObject *self, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(inodes_is_referenced(&((Server *)self)->inodes, number));
}

static PyObject *is_cached_method(PyObject *self, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_cached((Server *)self, number));
}

static PyObject *invalidate_inode(PyObject *self, PyObject *node)
{
    Server *server = (Server *)self;
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    if (PyErr_Occurred())
        return NULL;
    inodes_invalidate(&server->inodes, number);
    snapshot_touch(server, number);
    Py_RETURN_NONE;
}

static PyObject *update_inode(PyObject *self, PyObject *inode)
{
    Server *server = (Server *)self;
    struct fuse_attr attributes;
    if (!fill_attributes(&attributes, inode, 0))
        return NULL;
    if (inodes_has(&server->inodes, attributes.ino))
        inodes_cache(&server->inodes, &attributes);
    snapshot_touch(server, attributes.ino);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(set_priority_doc,
             "set_priority(niceness, raised, has_session)\n\n"
             "The niceness of the thread that serves, and the one that it gets on a crowded\n"
             "machine; and with it the session of the process, if that is its own.");

static PyObject *set_priority(PyObject *self, PyObject *args)
{
    Waits *waits = &((Server *)self)->waits;
    if (!PyArg_ParseTuple(args, "iip", &waits->niceness, &waits->niceness_raised,
                          &waits->has_session))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *leave_client_method(PyObject *self, PyObject *none)
{
    leave_client(&((Server *)self)->waits, monotonic_ns());
    Py_RETURN_NONE;
}

static PyObject *requests(PyObject *self, PyObject *none)
{
    return PyLong_FromUnsignedLongLong(((Server *)self)->requests);
}

static PyMethodDef methods[] = {
    {"serve", serve, METH_VARARGS, serve_doc},
    {"close", close_server, METH_NOARGS, "The mount is over: drop what belongs to it."},
    {"hooked", is_hooked, METH_NOARGS, "Whether pyfuse3 comes here for its requests."},
    {"requests", requests, METH_NOARGS, "How many requests were read here."},
    {"set_priority", set_priority, METH_VARARGS, set_priority_doc},
    {"leave_client", leave_client_method, METH_NOARGS, "Other tasks have their turn."},
    {"is_referenced", is_referenced, METH_O, "Whether the kernel has looked up a live inode."},
    {"is_cached", is_cached_method, METH_O, "Whether a listing may give an inode's number alone."},
    {"invalidate_inode", invalidate_inode, METH_O, "A live inode is about to change or go."},
    {"update_inode", update_inode, METH_O, "A live inode has become this."},
    {"acknowledge", acknowledge_method, METH_NOARGS, "Nothing can refuse the change any more."},
    COMPANION_METHODS,
    SNAPSHOT_METHODS,
    GUARD_METHODS,
    GATE_METHODS,
    {0},
};

static PyTypeObject ServerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ckptfs.fuse.server._server.Server",
    .tp_doc = "Server(callbacks)\n\nThe compiled server of one mount.",
    .tp_basicsize = sizeof(Server),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = server_new,
    .tp_dealloc = server_dealloc,
    .tp_traverse = server_traverse,
    .tp_clear = server_clear,
    .tp_methods = methods,
};

/* -- the module -------------------------------------------------------------------------------- */

#ifdef CKPTFS_SANITIZED
/* Breaks the rules of C on demand, so that a test can see whether it would be noticed. */
static PyObject *overflow(PyObject *module, PyObject *name)
{
    volatile int largest = INT_MAX;
    volatile char *bytes = malloc(8);
    int is_memory = PyUnicode_CompareWithASCIIString(name, "memory") == 0;
    int found = !bytes ? 0 : is_memory ? bytes[8] : largest + 1;
    free((void *)bytes);
    return PyLong_FromLong(found);
}
#endif

PyDoc_STRVAR(overwrite_doc,
             "overwrite(blocks, pieces, unlogged) -> count\n\n"
             "Write the first of these pieces, as long as they replace bytes that wait in these\n"
             "partial blocks of a file; note the blocks as unlogged.");

static PyMethodDef functions[] = {
#ifdef CKPTFS_SANITIZED
    {"overflow", overflow, METH_O, "Overflow: of \"memory\", or of an integer."},
#endif
    {"decode_inode", decode_inode, METH_VARARGS, decode_inode_doc},
    LOOP_FUNCTIONS,
    {"overwrite", overwrite, METH_VARARGS, overwrite_doc},
    {0},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_server",
                                        "The compiled server of a mount.", -1, functions};

static int add_number(PyObject *constants, const char *name, uint64_t value)
{
    PyObject *number = NUMBER(value);
    int added = number && !PyDict_SetItemString(constants, name, number);
    Py_XDECREF(number);
    return added;
}

/* The constants that Python has, too. */
static PyObject *make_constants(void)
{
    PyObject *constants = PyDict_New();
#define ADD(name) constants && add_number(constants, #name, name)
    if (ADD(INO_BITS) && ADD(HISTORY) && ADD(FORKS_ROOT) && ADD(CONTROL) && ADD(CONTROL_STEP) &&
        ADD(CONTROL_CONNECTION) && ADD(POSITION_BITS) && ADD(STREAM_FIRST) && ADD(BLOCK_SIZE) &&
        ADD(FILE_SIZE_MAX) && ADD(NAME_BYTES_MAX) && ADD(TARGET_BYTES_MAX) && ADD(SUFFIX_SIZE) &&
        ADD(FOREVER) && ADD(IO_SIZE) && ADD(FATTR_ATIME_NOW) && ADD(FATTR_MTIME_NOW))
        return constants;
    Py_XDECREF(constants);
    return NULL;
}

PyMODINIT_FUNC PyInit__server(void)
{
    if (PyType_Ready(&ServerType) < 0 || !lent_ready() || !partial_ready() ||
        !add_number(ServerType.tp_dict, "LEFT", LEFT) ||
        !add_number(ServerType.tp_dict, "TURN", TURN) ||
        !add_number(ServerType.tp_dict, "ENDED", ENDED))
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    PyObject *constants = make_constants();
    int is_made = module && constants && !PyModule_AddObjectRef(module, "CONSTANTS", constants) &&
                  !PyModule_AddStringConstant(module, "HISTORY_NAME", HISTORY_NAME) &&
                  !PyModule_AddStringConstant(module, "FORKS_NAME", FORKS_NAME) &&
                  !PyModule_AddObjectRef(module, "Server", (PyObject *)&ServerType);
    Py_XDECREF(constants);
    if (!is_made)
        Py_CLEAR(module);
    return module;
}
