/* A map of a file that can be closed while threads use it. The reference is memory/closable_map.py.
 *
 * `close` unmaps at once or, if a call in another thread is using the memory, when the last such call returns. From
 * `close` on, every access raises ClosedResourceError, and none reads memory that may have been unmapped. Python's own
 * mmap cannot be closed while it is in use, and raises ValueError afterwards. */
#include "core.h"

PyObject *closed_error;

static PyTypeObject *base;     /* mmap.mmap, whose fields come before ours */
static PyObject *close_method; /* its method */

enum { OPEN, CLOSING /* when the last view is released */, CLOSED };

static char *state_of(PyObject *op) { return (char *)op + base->tp_basicsize; }

void raise_closed(void) { PyErr_SetNone(closed_error); }

/* -1 with an exception. A map that is in use is not unmapped yet. */
static int unmap(PyObject *op) {
    *state_of(op) = CLOSING;
    PyObject *done = PyObject_CallOneArg(close_method, op);
    Py_XDECREF(done);
    if (done)
        *state_of(op) = CLOSED;
    else if (PyErr_ExceptionMatches(PyExc_BufferError))
        PyErr_Clear();
    else
        return -1;
    return 0;
}

static PyObject *py_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    if (*state_of(op) != CLOSED && unmap(op)) return NULL;
    Py_RETURN_NONE;
}

static int map_get_buffer(PyObject *op, Py_buffer *view, int flags) {
    if (*state_of(op) == OPEN) return base->tp_as_buffer->bf_getbuffer(op, view, flags);
    view->obj = NULL;
    raise_closed();
    return -1;
}

static void map_release_buffer(PyObject *op, Py_buffer *view) {
    base->tp_as_buffer->bf_releasebuffer(op, view);
    if (*state_of(op) != CLOSING) return;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (unmap(op)) PyErr_WriteUnraisable(op);
    PyErr_Restore(type, error, traceback);
}

static PyObject *map_subscript(PyObject *op, PyObject *key) {
    if (*state_of(op) == OPEN) return base->tp_as_mapping->mp_subscript(op, key);
    raise_closed();
    return NULL;
}

static int map_ass_subscript(PyObject *op, PyObject *key, PyObject *value) {
    if (*state_of(op) == OPEN) return base->tp_as_mapping->mp_ass_subscript(op, key, value);
    raise_closed();
    return -1;
}

static PyMethodDef methods[] = {
    {"close", py_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Unmap now or, if another thread uses the memory, when it is done. Closing twice has no further effect."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A map of a file that can be closed while it is in use."},
    {Py_tp_methods, methods},
    {Py_bf_getbuffer, map_get_buffer},
    {Py_bf_releasebuffer, map_release_buffer},
    {Py_mp_subscript, map_subscript},
    {Py_mp_ass_subscript, map_ass_subscript},
    {0, NULL},
};
static PyType_Spec spec = {
    .name = "filechannel._format._core.Map",
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int add_map(PyObject *module) {
    PyObject *mmap = PyImport_ImportModule("mmap");
    base = mmap ? (PyTypeObject *)PyObject_GetAttrString(mmap, "mmap") : NULL;
    Py_XDECREF(mmap);
    close_method = base ? PyObject_GetAttrString((PyObject *)base, "close") : NULL;
    if (!close_method) return -1;
    spec.basicsize = (int)base->tp_basicsize + (int)sizeof(void *); /* the state, padded to keep the size aligned */
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpecWithBases(&spec, (PyObject *)base);
    int failed = !type || PyModule_AddType(module, type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}
