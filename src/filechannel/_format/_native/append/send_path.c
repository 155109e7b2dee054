/* Encoding an object and appending it as a record. The reference is append/send_path.py. */
#include "core.h"

#define SMALLEST_BUFFER 256
#define LARGEST_BUFFER 65536 /* a larger one is not kept for the next message */

PyTypeObject *SendPathType;

typedef struct {
    PyObject_HEAD
    Writer *writer;
    Callee encode;      /* no callable: raw mode, any buffer is its own payload */
    PyObject *refuse;
    Callee encode_into; /* for items of exactly these types, which need no check: into a bytearray, which saves a bytes object */
    PyObject *exact;    /* a tuple of types */
    PyObject *buffer;   /* that bytearray, unless it is in use */
    Py_ssize_t capacity;
} SendPath;

/* Let Python raise the error for an item that cannot be encoded. */
static PyObject *refused(SendPath *self, PyObject *item, PyObject *index) {
    PyObject *type = NULL, *error = NULL, *traceback = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    if (type) PyErr_NormalizeException(&type, &error, &traceback);
    if (type && !PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        PyErr_Restore(type, error, traceback);
        return NULL;
    }
    if (traceback) PyException_SetTraceback(error, traceback);
    PyObject *arguments[] = {item, error ? error : Py_None, index};
    PyObject *never = PyObject_Vectorcall(self->refuse, arguments, 3, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    if (never) {
        Py_DECREF(never);
        PyErr_SetString(PyExc_SystemError, "refuse() must raise");
    }
    return NULL;
}

static int is_exact(const SendPath *self, PyObject *item) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->exact); i++)
        if ((PyObject *)Py_TYPE(item) == PyTuple_GET_ITEM(self->exact, i)) return 1;
    return 0;
}

/* In raw mode any buffer is its own payload. */
static PyObject *raw(PyObject *item) {
    if (PyBytes_CheckExact(item)) return Py_NewRef(item);
    PyObject *view = PyMemoryView_FromObject(item);
    PyObject *payload = view ? PyObject_CallMethod(view, "tobytes", NULL) : NULL;
    Py_XDECREF(view);
    return payload;
}

/* Encode into the bytearray. Encoding may run Python code that sends on the same path: it finds no bytearray. */
static PyObject *into_buffer(SendPath *self, PyObject *item) {
    PyObject *buffer = self->buffer;
    self->buffer = NULL;
    if (!buffer && !(buffer = PyByteArray_FromStringAndSize(NULL, 0))) return NULL;
    if (PyByteArray_Resize(buffer, self->capacity)) {
        Py_DECREF(buffer);
        return NULL;
    }
    PyObject *arguments[] = {item, buffer}, *done = callee_call(&self->encode_into, arguments, 2);
    if (!done) {
        Py_DECREF(buffer);
        return NULL;
    }
    Py_DECREF(done);
    Py_ssize_t size = PyByteArray_GET_SIZE(buffer);
    if (size > self->capacity && size <= LARGEST_BUFFER) self->capacity = size;
    return buffer;
}

/* Return the bytes or bytearray with the payload of an item. */
static PyObject *encoded(SendPath *self, PyObject *item, PyObject *index) {
    PyObject *payload;
    if (self->encode_into.callable && is_exact(self, item)) {
        payload = into_buffer(self, item);
        return payload ? payload : refused(self, item, index);
    }
    if (self->encode.callable)
        payload = callee_call(&self->encode, &item, 1);
    else
        payload = PyObject_CheckBuffer(item) ? raw(item) : NULL;
    if (!payload) return refused(self, item, index);
    if (PyBytes_Check(payload)) return payload;
    PyErr_Format(PyExc_TypeError, "the codec's encode() returned %.100s, not bytes", Py_TYPE(payload)->tp_name);
    Py_DECREF(payload);
    return refused(self, item, index);
}

static char *data_of(PyObject *payload) {
    return PyBytes_Check(payload) ? PyBytes_AS_STRING(payload) : PyByteArray_AS_STRING(payload);
}
static Py_ssize_t size_of(PyObject *payload) {
    return PyBytes_Check(payload) ? PyBytes_GET_SIZE(payload) : PyByteArray_GET_SIZE(payload);
}

static void done_with(SendPath *self, PyObject *payload) {
    /* If the encoder kept a reference, it may use the bytearray: do not reuse it. */
    if (PyByteArray_CheckExact(payload) && !self->buffer && PyByteArray_GET_SIZE(payload) <= LARGEST_BUFFER &&
        Py_REFCNT(payload) == 1)
        self->buffer = payload;
    else
        Py_DECREF(payload);
}

static PyObject *put(SendPath *self, PyObject *item, int want_offset) {
    PyObject *payload = encoded(self, item, Py_None), *result = NULL;
    if (!payload) return NULL;
    Payload content = {data_of(payload), payload_length(size_of(payload)), 0};
    PyObject *owner = PyBytes_Check(payload) ? payload : NULL;
    uint64_t offset;
    switch (writer_append(self->writer, &content, 1, &offset)) {
    case APPENDED: result = want_offset ? PyLong_FromUnsignedLongLong(offset) : Py_NewRef(Py_None); break;
    case OVERFLOWS: result = writer_overflow(self->writer, &content, &owner, 1); break;
    case APPEND_FAILED: break;
    }
    done_with(self, payload);
    return result;
}

static PyObject *py_put(PyObject *op, PyObject *item) { return put((SendPath *)op, item, 1); }

static int must_wait(const SendPath *self) { return self->writer->deferred || slice_over(); }

/* Another writer holds the lock, and this thread must not sleep: the coroutine can wait. */
static int was_busy(PyObject *done) {
    if (done || !PyErr_ExceptionMatches(busy)) return 0;
    PyErr_Clear();
    return 1;
}

static PyObject *py_put_or_yield(PyObject *op, PyObject *item) {
    if (must_wait((SendPath *)op)) Py_RETURN_NONE;
    PyObject *done = py_put(op, item);
    return was_busy(done) ? Py_NewRef(Py_None) : done;
}

PyObject *send_path_step(PyObject *op, PyObject *item) {
    SendPath *self = (SendPath *)op;
    if (must_wait(self)) return NULL;
    PyObject *done = put(self, item, 0);
    if (was_busy(done) || !done || done == Py_None) return done;
    Py_DECREF(done); /* the slow path always returns an offset */
    Py_RETURN_NONE;
}

PyObject *send_path_now(PyObject *op, PyObject *item) {
    SendPath *self = (SendPath *)op;
    return self->writer->deferred ? NULL : put(self, item, 1);
}

/* --- Batches ----------------------------------------------------------------------------------------------- */

/* The payloads of a batch: bytes objects that are kept, or one long arena that they are copied to. */
typedef struct {
    Payload *contents;
    PyObject **kept;
    size_t count;
    char *arena;
    size_t used, capacity;
} Batch;

static void batch_free(Batch *batch) {
    for (size_t i = 0; batch->kept && i < batch->count; i++) Py_XDECREF(batch->kept[i]);
    PyMem_Free(batch->contents);
    PyMem_Free(batch->kept);
    PyMem_Free(batch->arena);
}

static int batch_keep(Batch *batch, PyObject *payload) {
    batch->contents[batch->count] = (Payload){PyBytes_AS_STRING(payload), payload_length(PyBytes_GET_SIZE(payload)), 0};
    batch->kept[batch->count++] = payload;
    return 0;
}

static int batch_copy(Batch *batch, const char *data, size_t size) {
    if (batch->capacity - batch->used < size) {
        size_t capacity = (batch->used + size) * 2;
        char *arena = PyMem_Realloc(batch->arena, capacity);
        if (!arena) return PyErr_NoMemory(), -1;
        batch->arena = arena;
        batch->capacity = capacity;
    }
    if (size) memcpy(batch->arena + batch->used, data, size);
    batch->contents[batch->count] = (Payload){NULL, payload_length((Py_ssize_t)size), 0}; /* the arena may still move */
    batch->kept[batch->count++] = NULL;
    batch->used += size;
    return 0;
}

static int batch_add(SendPath *self, Batch *batch, PyObject *item, uint64_t number) {
    if (!self->encode.callable && PyBytes_CheckExact(item)) return batch_keep(batch, Py_NewRef(item));
    PyObject *index = PyLong_FromUnsignedLongLong(number);
    Py_INCREF(item);
    PyObject *payload = index ? encoded(self, item, index) : NULL;
    Py_DECREF(item);
    Py_XDECREF(index);
    if (!payload) return -1;
    if (PyBytes_Check(payload)) return batch_keep(batch, payload);
    int failed = batch_copy(batch, data_of(payload), (size_t)size_of(payload));
    done_with(self, payload);
    return failed;
}

static int batch_encode(SendPath *self, Batch *batch, PyObject *items, uint64_t first) {
    Py_ssize_t count = PyList_GET_SIZE(items);
    batch->contents = PyMem_Malloc(((size_t)count + 1) * sizeof *batch->contents);
    batch->kept = PyMem_Malloc(((size_t)count + 1) * sizeof *batch->kept);
    if (!batch->contents || !batch->kept) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GET_SIZE(items) != count) { /* by encode() or another thread */
            PyErr_SetString(PyExc_RuntimeError, "the list changed size while it was encoded");
            return -1;
        }
        if (batch_add(self, batch, PyList_GET_ITEM(items, i), first + (uint64_t)i)) return -1;
    }
    const char *at = batch->arena ? batch->arena : ""; /* if all payloads are empty */
    for (size_t i = 0; i < batch->count; i++) {
        if (batch->kept[i]) continue;
        batch->contents[i].data = at;
        at += batch->contents[i].length;
    }
    return 0;
}

static int check_list(PyObject *items) {
    if (PyList_CheckExact(items)) return 0;
    PyErr_SetString(PyExc_TypeError, "items must be a list");
    return -1;
}

static int all_bytes(PyObject *items) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++)
        if (!PyBytes_CheckExact(PyList_GET_ITEM(items, i))) return 0;
    return 1;
}

static PyObject *py_put_all(PyObject *op, PyObject *items) {
    SendPath *self = (SendPath *)op;
    if (check_list(items)) return NULL;
    if (!self->encode.callable && all_bytes(items)) return writer_append_list(self->writer, items);
    Batch batch = {0};
    PyObject *result = NULL;
    uint64_t offset;
    if (!batch_encode(self, &batch, items, 0)) switch (writer_append(self->writer, batch.contents, batch.count, &offset)) {
        case APPENDED: result = PyLong_FromUnsignedLongLong(offset); break;
        case OVERFLOWS: result = writer_overflow(self->writer, batch.contents, batch.kept, batch.count); break;
        case APPEND_FAILED: break;
        }
    batch_free(&batch);
    return result;
}

static PyObject *py_encode_all(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    uint64_t first;
    if (check_count("encode_all", count, 2) || check_list(args[0]) || unsigned_from(args[1], UINT64_MAX, &first)) return NULL;
    Batch batch = {0};
    int failed = batch_encode((SendPath *)op, &batch, args[0], first);
    PyObject *payloads = failed ? NULL : payloads_as_bytes(batch.contents, batch.kept, batch.count);
    batch_free(&batch);
    /* The caller encodes slice by slice, and checks in between whether to yield. */
    for (Py_ssize_t i = 0; payloads && i < PyList_GET_SIZE(payloads); i++)
        slice_charge((size_t)PyBytes_GET_SIZE(PyList_GET_ITEM(payloads, i)));
    return payloads;
}

static PyObject *path_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *writer, *encode, *refuse, *encode_into = Py_None, *exact = NULL;
    if (check_no_keywords("SendPath", keywords) ||
        !PyArg_ParseTuple(args, "OOO|OO:SendPath", &writer, &encode, &refuse, &encode_into, &exact))
        return NULL;
    if (!PyObject_TypeCheck(writer, WriterType))
        return PyErr_Format(PyExc_TypeError, "writer must be a Writer, not %.100s", Py_TYPE(writer)->tp_name);
    if (exact && !PyTuple_Check(exact)) {
        PyErr_SetString(PyExc_TypeError, "exact must be a tuple of types");
        return NULL;
    }
    exact = exact ? Py_NewRef(exact) : PyTuple_New(0);
    SendPath *self = exact ? (SendPath *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        Py_XDECREF(exact);
        return NULL;
    }
    self->writer = (Writer *)Py_NewRef(writer);
    callee_init(&self->encode, encode);
    self->refuse = Py_NewRef(refuse);
    callee_init(&self->encode_into, encode_into);
    self->exact = exact;
    self->capacity = SMALLEST_BUFFER;
    return (PyObject *)self;
}

static int path_traverse(PyObject *op, visitproc visit, void *arg) {
    SendPath *self = (SendPath *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->writer);
    Py_VISIT(self->encode.callable);
    Py_VISIT(self->refuse);
    Py_VISIT(self->encode_into.callable);
    Py_VISIT(self->exact);
    return 0;
}

static void path_dealloc(PyObject *op) {
    SendPath *self = (SendPath *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_XDECREF(self->writer);
    Py_XDECREF(self->encode.callable);
    Py_XDECREF(self->refuse);
    Py_XDECREF(self->encode_into.callable);
    Py_XDECREF(self->exact);
    Py_XDECREF(self->buffer);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"put", py_put, METH_O, "put($self, item, /)\n--\n\nEncode and append one item; return its offset."},
    {"put_or_yield", py_put_or_yield, METH_O,
     "put_or_yield($self, item, /)\n--\n\n"
     "Like `put`, for a coroutine: None, with nothing done, if it has to yield or to wait for another process."},
    {"put_all", py_put_all, METH_O, "put_all($self, items, /)\n--\n\n"
     "Encode and append a list as one batch; return the first offset."},
    {"encode_all", FAST(py_encode_all), METH_FASTCALL,
     "encode_all($self, items, first, /)\n--\n\n"
     "Encode a list of items; the index in an error message counts from *first*."},
    {NULL, NULL, 0, NULL},
};
static PyObject *get_deferred(PyObject *op, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((SendPath *)op)->writer->deferred);
}
static PyGetSetDef getset[] = {
    {"deferred", get_deferred, NULL, "Whether publishing is left to the flush.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "SendPath(writer, encode, refuse, encode_into=None, exact=(), /)\n--\n\nEncodes items of one type into one writer."},
    {Py_tp_new, path_new},    {Py_tp_traverse, path_traverse}, {Py_tp_dealloc, path_dealloc},
    {Py_tp_methods, methods}, {Py_tp_getset, getset}, {0, NULL},
};
static PyType_Spec spec = {
    .name = "filechannel._format._core.SendPath",
    .basicsize = sizeof(SendPath),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_send_path(PyObject *module) { return (SendPathType = add_type(module, &spec)) ? 0 : -1; }
