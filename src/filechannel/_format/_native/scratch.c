/* A reusable buffer: the private copy of a payload while it is decoded.
 *
 * A decoded message may keep the buffer or a view of it (msgspec.Raw does). Then the message owns it, and the reader
 * allocates another. */
#include "core.h"

static PyTypeObject *ScratchType;

static int get_buffer(PyObject *op, Py_buffer *view, int flags) {
    Scratch *self = (Scratch *)op;
    if (PyBuffer_FillInfo(view, op, self->data, self->size, 1, flags)) return -1;
    self->exports++;
    return 0;
}

static void release_buffer(PyObject *op, Py_buffer *Py_UNUSED(view)) { ((Scratch *)op)->exports--; }

static void dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyMem_Free(((Scratch *)op)->data);
    type->tp_free(op);
    Py_DECREF(type);
}

PyObject *scratch_for(Scratch **scratch, Py_ssize_t size) {
    if (*scratch && ((*scratch)->exports || Py_REFCNT((PyObject *)*scratch) > 1)) Py_CLEAR(*scratch);
    if (!*scratch && !(*scratch = (Scratch *)ScratchType->tp_alloc(ScratchType, 0))) return NULL;
    Scratch *self = *scratch;
    if (size > self->capacity || !self->data) {
        Py_ssize_t capacity = size + size / 2 + 256;
        char *data = PyMem_Realloc(self->data, (size_t)capacity);
        if (!data) return PyErr_NoMemory();
        self->data = data;
        self->capacity = capacity;
    }
    self->size = size;
    return (PyObject *)self;
}

static PyType_Slot slots[] = {
    {Py_tp_doc, "The payload that is being decoded."},
    {Py_bf_getbuffer, get_buffer},
    {Py_bf_releasebuffer, release_buffer},
    {Py_tp_dealloc, dealloc},
    {0, NULL},
};
static PyType_Spec spec = {
    .name = "filechannel._format._core.Scratch",
    .basicsize = sizeof(Scratch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

int add_scratch(PyObject *Py_UNUSED(module)) { return (ScratchType = (PyTypeObject *)PyType_FromSpec(&spec)) ? 0 : -1; }
