/* The compiled server: it reads requests from the FUSE descriptor, answers the frequent ones, and
 * leaves the rest to libfuse and pyfuse3.
 *
 * pyfuse3 reads a request, makes a coroutine, a context and an attribute object for it, and visits
 * the event loop; that is most of what a small request costs. Here a request is parsed where it was
 * read, the method of `Requests` that it means is called with plain values, and the inode that it
 * returns is written out as the answer. What it means is decided there, in Python, for both doors.
 *
 * pyfuse3 asks libfuse for the next request by `fuse_session_receive_buf`. This module is loaded
 * with its symbols visible before pyfuse3 is, so that call arrives here: it is given the request
 * that `serve` read and did not answer. Without this module everything works the same, slower.
 *
 * Requests name the node that they are about, so files and directories need not be opened: the
 * kernel is told so once, and from then on open(2) and close(2) cost what they cost natively. Who
 * uses a file is then known by what the kernel has looked up and not forgotten yet.
 *
 * Everything runs with the interpreter's lock held, but for the wait for the next request.
 */

#include "server.h"
#include "guard.h"

#include <limits.h>

static char *buffer;
static size_t waiting; /* bytes of a request in `buffer` that libfuse is to take */
static int hooked;     /* pyfuse3 was seen to come here */
static unsigned long long requests;

/* -- the beginning ---------------------------------------------------------------------------- */

/* The kernel hears what is agreed on from here. libfuse is left to hear of the beginning, too; its
 * own answer then comes too late, which is no trouble to it. */
static Outcome do_init(const Request *request)
{
    const struct fuse_init_in *in = (const void *)request->body;
    if (!is_able(in)) {
        hooked = 0;
        return PASSED;
    }
    struct fuse_init_out out = agreement_with(in);
    reply(request, &out, sizeof out);
    return PASSED;
}

/* -- the loop --------------------------------------------------------------------------------- */

static const Handler BEGINNING = {do_init, offsetof(struct fuse_init_in, flags) + sizeof(uint32_t)};

static Outcome handle_request(size_t size)
{
    const struct fuse_in_header *head = (const void *)buffer;
    if (size < sizeof *head)
        return PASSED;
    Request request = {head, buffer + sizeof *head, size - sizeof *head};
    const Handler *handler = head->opcode == FUSE_INIT ? &BEGINNING : handler_of(head->opcode);
    if (!handler)
        return PASSED;
    if (request.size < handler->least)
        return reply_error(&request, EIO);
    memset(buffer + size, 0, NAMES_MAX);
    Outcome outcome = pending_handle(&request);
    if (outcome == PASSED)
        outcome = handler->handle(&request);
    if (outcome == FAILED)
        reply_error(&request, errno_of_failure());
    return outcome;
}

/* Reads the next request, if there is one before ``until``: a client that got its answer mostly asks
 * again at once, and to wake up costs both sides more than to look for a while. Other threads, which
 * tell the kernel what changed, come in between. */
static ssize_t look_for_request(int64_t until)
{
    ssize_t size;
    Py_BEGIN_ALLOW_THREADS
    while ((size = read(device, buffer, REQUEST_MAX)) < 0 && errno == EAGAIN &&
           monotonic_ns() < until)
        breathe();
    Py_END_ALLOW_THREADS
    return size;
}

/* Sleeps until a request comes or it is somebody else's turn: whether it is, since there is
 * something on the descriptor that `others` wait for. */
static int wait_for_request(int64_t turn, int others)
{
    struct pollfd wanted[] = {{device, POLLIN, 0}, {others, POLLIN, 0}};
    int64_t now = monotonic_ns();
    if (now >= turn)
        return 0;
    struct timespec left = {(turn - now) / NS, (turn - now) % NS};
    Py_BEGIN_ALLOW_THREADS
    ppoll(wanted, 2, &left, NULL);
    Py_END_ALLOW_THREADS
    return wanted[1].revents && !wanted[0].revents;
}

/* A read that finds nothing must not wait: nobody else would get a turn until the next request. */
static void watch(int descriptor)
{
    if (descriptor == device)
        return;
    device = descriptor;
    int flags = fcntl(device, F_GETFL);
    if (flags >= 0)
        fcntl(device, F_SETFL, flags | O_NONBLOCK);
}

/* So much longer a turn may take if a file is being made: to go on with one that is in the store
 * already takes several times as long. */
#define MIDWAY_NS 500000

PyDoc_STRVAR(serve_doc,
             "serve(fd, spin_ns, turn_ns, others) -> int\n\n"
             "Answer requests until one comes that is left to libfuse (LEFT), or it is somebody\n"
             "else's turn (TURN): the monotonic clock is past turn_ns, or while no request comes\n"
             "something can be read from ``others``, a descriptor. Without spin_ns none is waited\n"
             "for.");

/* Answers what comes; returns what `serve` does. */
static int serve_requests(int64_t spin_ns, int64_t turn_ns, int others)
{
    for (;;) {
        int64_t now = monotonic_ns();
        if (now > turn_ns && (!pending_is_midway() || now > turn_ns + MIDWAY_NS))
            return TURN;
        ssize_t size = look_for_request(now + spin_ns);
        if (size < 0 && errno == EAGAIN) {
            if (!pending_is_midway())
                pending_flush(); /* while there is time */
            if (!spin_ns || wait_for_request(turn_ns, others))
                return TURN;
            continue;
        }
        if (size < 0 && (errno == ENOENT || errno == EINTR))
            continue; /* taken back by the one who asked */
        requests++;
        if (size < 0)
            return LEFT; /* the end of the mount: libfuse meets it, too */
        if (handle_request((size_t)size) == PASSED) {
            waiting = (size_t)size;
            return LEFT;
        }
    }
}

static PyObject *serve(PyObject *module, PyObject *args)
{
    int descriptor, others;
    long long spin_ns, turn_ns;
    if (!PyArg_ParseTuple(args, "iLLi", &descriptor, &spin_ns, &turn_ns, &others))
        return NULL;
    watch(descriptor);
    dentries_begin_turn();
    int outcome = serve_requests(spin_ns, turn_ns, others);
    pending_end();
    dentries_end_turn();
    return PyLong_FromLong(outcome);
}

/* -- between pyfuse3 and libfuse -------------------------------------------------------------- */

/* As libfuse has it; fields behind these are not dirty. */
struct fuse_session;
struct fuse_buf {
    size_t size;
    int flags;
    void *mem;
    int fd;
    off_t pos;
};

/* What `symbol` would have been to the caller without this module; its libfuse may have any name. */
static void *beyond(void *caller, const char *symbol)
{
    Dl_info info;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = library ? dlsym(library, symbol) : NULL;
    if (library)
        dlclose(library);
    return found;
}

/* pyfuse3 calls this before it asks for a request: the sign that it comes here for those, too. */
int fuse_session_mount(struct fuse_session *session, const char *mountpoint)
{
    int (*mount)(struct fuse_session *, const char *) =
        beyond(__builtin_return_address(0), "fuse_session_mount");
    hooked = mount != NULL;
    return mount ? mount(session, mountpoint) : -1;
}

int fuse_session_receive_buf(struct fuse_session *session, struct fuse_buf *out)
{
    if (!waiting) {
        int (*receive)(struct fuse_session *, struct fuse_buf *) =
            beyond(__builtin_return_address(0), "fuse_session_receive_buf");
        int result = receive ? receive(session, out) : -ENOSYS;
        return result == -EAGAIN ? -EINTR : result; /* as pyfuse3 knows it: to be tried again */
    }
    if (!out->mem && !(out->mem = malloc(REQUEST_MAX)))
        return -ENOMEM;
    memcpy(out->mem, buffer, waiting);
    out->size = waiting;
    out->flags = 0;
    waiting = 0;
    return (int)out->size;
}

/* -- the module ------------------------------------------------------------------------------- */

PyDoc_STRVAR(bind_doc, "bind(requests)\n\nWhose methods to call, and whose state to look at.");

static PyObject *bind(PyObject *module, PyObject *owner)
{
    waiting = 0;
    hooked = 0;
    lookups_forget_all();
    attributes_forget_all();
    if (!reply_bind(owner) || !dispatch_bind(owner) || !readdir_bind(owner) ||
        !pending_bind(owner) || !dentries_bind(owner))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *is_hooked(PyObject *module, PyObject *none)
{
    return PyBool_FromLong(hooked);
}

static PyObject *knows(PyObject *module, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(lookups_has(number));
}

static PyObject *familiar(PyObject *module, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_familiar(number));
}

static PyObject *changing(PyObject *module, PyObject *node)
{
    unsigned long long number = PyLong_AsUnsignedLongLong(node);
    if (PyErr_Occurred())
        return NULL;
    attributes_forget(number);
    snapshot_touch(number);
    Py_RETURN_NONE;
}

static PyObject *changed(PyObject *module, PyObject *inode)
{
    struct fuse_attr attributes;
    if (!fill_attributes(&attributes, inode, 0))
        return NULL;
    if (attributes_has(attributes.ino))
        attributes_note(&attributes);
    snapshot_touch(attributes.ino);
    Py_RETURN_NONE;
}

static PyObject *count(PyObject *module, PyObject *none)
{
    return PyLong_FromUnsignedLongLong(requests);
}

#ifdef CKPTFS_SANITIZED
/* Breaks the rules of C where that is asked for, so that a test can see whether it would be noticed. */
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

static PyMethodDef functions[] = {
#ifdef CKPTFS_SANITIZED
    {"overflow", overflow, METH_O, "Overflow: of \"memory\", or of an integer."},
#endif
    {"bind", bind, METH_O, bind_doc},
    {"serve", serve, METH_VARARGS, serve_doc},
    {"hooked", is_hooked, METH_NOARGS, "Whether pyfuse3 comes here for its requests."},
    {"knows", knows, METH_O, "Whether the kernel knows a live inode, and may be using it."},
    {"familiar", familiar, METH_O, "Whether a listing may give no more than a live inode's number."},
    {"changing", changing, METH_O, "Told of a live inode that is about to change or go."},
    {"changed", changed, METH_O, "Told what a live inode has become."},
    {"count", count, METH_NOARGS, "How many requests were read here."},
    SNAPSHOT_METHODS,
    GUARD_METHODS,
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_server", "The compiled server of the mount.", -1, functions};

PyMODINIT_FUNC PyInit__server(void)
{
    PyObject *module = PyModule_Create(&definition);
    buffer = malloc(REQUEST_MAX + NAMES_MAX);
    if (!module || !buffer || PyModule_AddIntConstant(module, "LEFT", LEFT) ||
        PyModule_AddIntConstant(module, "TURN", TURN)) {
        Py_XDECREF(module);
        return buffer ? NULL : PyErr_NoMemory();
    }
    return module;
}
