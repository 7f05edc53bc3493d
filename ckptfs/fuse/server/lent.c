/* Memory of the server that Python looks at during a call: the bytes of a large write where they
 * were read, and those of a pending file. They are not copied, so the memory must not be used again
 * while a view of it is alive. Nothing in ckptfs keeps one beyond the call; should something do so,
 * the memory is left to it, and the server takes new memory.
 */

#include "server.h"

struct Lent {
    PyObject_HEAD
    char *bytes;
    Py_ssize_t size;
    char *memory; /* freed with this; NULL while it is the server's */
};

static void lent_dealloc(PyObject *self)
{
    free(((Lent *)self)->memory);
    PyObject_Free(self);
}

static int lent_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    Lent *lent = (Lent *)self;
    return PyBuffer_FillInfo(view, self, lent->bytes, lent->size, 1, flags);
}

static PyBufferProcs lent_buffer = {.bf_getbuffer = lent_getbuffer};

static PyTypeObject LentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ckptfs.fuse.server._server.Lent",
    .tp_doc = "Bytes of the server, for as long as a call takes.",
    .tp_basicsize = sizeof(Lent),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = lent_dealloc,
    .tp_as_buffer = &lent_buffer,
};

int lent_ready(void)
{
    return PyType_Ready(&LentType) == 0;
}

PyObject *lend(Lent **lent, char *bytes, size_t size)
{
    Lent *made = PyObject_New(Lent, &LentType);
    if (!made)
        return NULL;
    made->bytes = bytes;
    made->size = (Py_ssize_t)size;
    made->memory = NULL;
    *lent = made;
    return PyMemoryView_FromObject((PyObject *)made);
}

int take_back(Lent **lent, char *memory)
{
    Lent *made = *lent;
    int is_kept = made && Py_REFCNT(made) > 1;
    if (is_kept)
        made->memory = memory;
    *lent = NULL;
    Py_XDECREF(made);
    return !is_kept;
}
