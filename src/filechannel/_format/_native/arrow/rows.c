/* Converting columns to messages, without a Python object for each message: the result is records that only have to be
 * copied into the log. */
#include "core.h"

#include "arrow/row.h"

static const char *const kind_names[ROW_KINDS] = {
    "bool", "int", "float", "string", "binary", "uuid", "timestamp", "moment", "date", "decimal", "list", "map", "struct",
};
#define DEEPEST 64
#define MOST_VALUES ((uint64_t)1 << 40) /* no sum or product of such numbers overflows */

typedef struct {
    PyObject_HEAD
    Shape *root;
    Growing out;
    Py_buffer *views; /* of the columns, while they are encoded */
    size_t view_count, most_views;
    char whole; /* the values of a binary column are the messages */
    char busy;  /* a thread is in a call, perhaps without the GIL */
} RowEncoder;

/* Creating shapes */

static int malformed(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return -1;
}

static int text_from(PyObject *given, Text *text) {
    char *bytes;
    Py_ssize_t size;
    if (!PyBytes_Check(given)) return malformed("texts and keys are bytes");
    if (PyBytes_AsStringAndSize(given, &bytes, &size)) return -1;
    if (!(text->data = calloc(1, (size_t)size + KEY_PADDING))) return PyErr_NoMemory(), -1;
    memcpy(text->data, bytes, (size_t)size);
    text->size = (size_t)size;
    return 0;
}

static void shape_free(Shape *shape) {
    if (!shape) return;
    for (size_t index = 0; index < shape->text_count; index++) free(shape->texts[index].data);
    for (size_t index = 0; index < shape->field_count; index++) {
        free(shape->fields[index].key.data);
        shape_free(shape->fields[index].shape);
    }
    free(shape->texts);
    free(shape->fields);
    free(shape);
}

static Shape *shape_from(PyObject *given, int depth, size_t *count);

static int field_from(PyObject *given, ShapeField *field, int depth, size_t *count) {
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 2) return malformed("a field is (key, shape)");
    if (text_from(PyTuple_GET_ITEM(given, 0), &field->key)) return -1;
    return (field->shape = shape_from(PyTuple_GET_ITEM(given, 1), depth + 1, count)) ? 0 : -1;
}

static int check_shape(const Shape *shape) {
    const char *name = kind_names[shape->kind];
    size_t fields = shape->kind == ROW_LIST ? 1 : shape->kind == ROW_MAP ? 2 : shape->kind == ROW_STRUCT ? shape->field_count : 0;
    uint64_t n = shape->number;
    int fits = shape->kind == ROW_INT ? n == 1 || n == 2 || n == 4 || n == 8
               : shape->kind == ROW_FLOAT ? n == 4 || n == 8
               : shape->kind == ROW_DECIMAL ? n <= 38
               : shape->kind == ROW_STRUCT ? n <= 1
               : shape->kind == ROW_LIST ? n <= INT32_MAX : n == 0;
    if (shape->field_count != fields)
        return PyErr_Format(PyExc_ValueError, "%s has %zu fields, not %zu", name, shape->field_count, fields), -1;
    if (!fits) return PyErr_Format(PyExc_ValueError, "%s has no number %llu", name, (unsigned long long)n), -1;
    return 0;
}

static int parts_from(Shape *shape, PyObject *texts, PyObject *fields, int depth, size_t *count) {
    size_t text_count = (size_t)PyTuple_GET_SIZE(texts), field_count = (size_t)PyTuple_GET_SIZE(fields);
    shape->texts = calloc(text_count + 1, sizeof *shape->texts);
    shape->fields = calloc(field_count + 1, sizeof *shape->fields);
    if (!shape->texts || !shape->fields) return PyErr_NoMemory(), -1;
    shape->text_count = text_count;
    shape->field_count = field_count;
    if (check_shape(shape)) return -1;
    for (size_t index = 0; index < text_count; index++)
        if (text_from(PyTuple_GET_ITEM(texts, (Py_ssize_t)index), &shape->texts[index])) return -1;
    for (size_t index = 0; index < field_count; index++) {
        if (field_from(PyTuple_GET_ITEM(fields, (Py_ssize_t)index), &shape->fields[index], depth, count)) return -1;
        shape->may_shrink |= shape->fields[index].shape->null == NULL_LEFT_OUT;
    }
    return 0;
}

static Shape *shape_from(PyObject *given, int depth, size_t *count) {
    const char *name;
    unsigned long long number;
    int null;
    PyObject *texts, *fields;
    if (depth > DEEPEST) return malformed("the type is nested too deeply"), NULL;
    if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "sKiO!O!", &name, &number, &null, &PyTuple_Type, &texts, &PyTuple_Type, &fields)) {
        PyErr_Clear();
        return malformed("a shape is (kind, number, null, texts, fields)"), NULL;
    }
    Shape *shape = calloc(1, sizeof *shape);
    if (!shape) return (Shape *)PyErr_NoMemory();
    shape->number = number;
    shape->null = (enum row_null)null;
    while (shape->kind < ROW_KINDS && strcmp(kind_names[shape->kind], name)) shape->kind++;
    ++*count;
    if (shape->kind == ROW_KINDS)
        PyErr_Format(PyExc_ValueError, "no kind of value is called %s", name);
    else if (null < 0 || null >= ROW_NULLS)
        malformed("null is refused, written or left out");
    else if (!parts_from(shape, texts, fields, depth, count))
        return shape;
    shape_free(shape);
    return NULL;
}

static PyObject *row_encoder_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *given;
    if (check_no_keywords("RowEncoder", keywords) || !PyArg_ParseTuple(args, "O", &given)) return NULL;
    RowEncoder *self = (RowEncoder *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    size_t count = 1;
    self->whole = given == Py_None;
    self->root = self->whole ? calloc(1, sizeof *self->root) : shape_from(given, 0, &count);
    self->views = calloc(3 * count, sizeof *self->views);
    self->most_views = 3 * count;
    if (self->root && self->whole) self->root->kind = ROW_BINARY;
    if (self->root && self->views) return (PyObject *)self;
    if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_DECREF(self);
    return NULL;
}

static void row_encoder_dealloc(RowEncoder *self) {
    PyTypeObject *type = Py_TYPE(self);
    shape_free(self->root);
    free(self->out.data);
    free(self->views);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Columns: from Python objects to pointers that are known to be inside their buffers */

static int view_of(RowEncoder *self, PyObject *given, const uint8_t **data, size_t *size) {
    *data = NULL;
    *size = 0;
    if (given == Py_None) return 0;
    Py_buffer *view = &self->views[self->view_count];
    if (PyObject_GetBuffer(given, view, PyBUF_SIMPLE)) return -1;
    self->view_count++;
    *data = view->buf;
    *size = (size_t)view->len;
    return 0;
}

static void release_columns(RowEncoder *self) {
    while (self->view_count) PyBuffer_Release(&self->views[--self->view_count]);
}

static int bind(RowEncoder *self, Shape *shape, PyObject *values) {
    unsigned long long length, start;
    PyObject *validity, *offsets, *data, *inner;
    if (!PyTuple_Check(values) ||
        !PyArg_ParseTuple(values, "KKOOOO!", &length, &start, &validity, &offsets, &data, &PyTuple_Type, &inner)) {
        PyErr_Clear();
        return malformed("a column is (length, start, validity, offsets, data, inner)");
    }
    if (length > MOST_VALUES || start > MOST_VALUES) return malformed("a column is shorter than it says");
    if ((size_t)PyTuple_GET_SIZE(inner) != shape->field_count) return malformed("a column has other columns inside than its shape");
    size_t end = (size_t)(start + length), bits = (end + 7) / 8, validity_size, offsets_size;
    shape->length = (size_t)length;
    shape->start = (size_t)start;
    if (view_of(self, validity, &shape->validity, &validity_size) || view_of(self, offsets, &shape->offsets, &offsets_size) ||
        view_of(self, data, &shape->data, &shape->data_size))
        return -1;
    size_t needed = shape->kind == ROW_BOOL ? bits : end * row_width(shape);
    if (length && ((shape->validity && validity_size < bits) || shape->data_size < needed ||
                   (row_has_offsets(shape) && offsets_size / 4 < end + 1)))
        return malformed("a column is shorter than it says");
    for (size_t index = 0; index < shape->field_count; index++) {
        Shape *field = shape->fields[index].shape;
        if (bind(self, field, PyTuple_GET_ITEM(inner, (Py_ssize_t)index))) return -1;
        if (shape->kind == ROW_STRUCT && field->length < shape->length) return malformed("a column is shorter than it says");
    }
    return 0;
}

/* Encoding */

static RowProblem put_record(RowEncoder *self, size_t index, uint64_t *longest) {
    Growing *out = &self->out;
    size_t begin = out->size, body = begin + RECORD_HEADER_SIZE;
    if (!grow(out, RECORD_HEADER_SIZE)) return row_no_memory;
    out->size = body;
    RowProblem problem = self->whole ? row_put_whole(self->root, index, out) : row_put(self->root, index, out);
    if (problem) return problem;
    uint64_t size = out->size - body;
    if (size > LENGTH_MASK) return "it is too long for a record";
    if (size > *longest) *longest = size;
    put_u32(out->data + begin, (uint32_t)size);
    put_u32(out->data + begin + 4, record_crc(crc32c(0, out->data + body, size), (uint32_t)size, begin));
    return NULL;
}

static PyObject *row_encoder_encode(RowEncoder *self, PyObject *values) {
    if (self->busy) return PyErr_SetString(PyExc_RuntimeError, "another thread is using this encoder"), NULL;
    self->busy = 1;
    PyObject *result = NULL;
    RowProblem problem = NULL;
    uint64_t longest = 0;
    size_t index = 0;
    if (!bind(self, self->root, values)) {
        self->out.size = 0;
        Py_BEGIN_ALLOW_THREADS
        for (; index < self->root->length && !problem; index++) problem = put_record(self, index, &longest);
        Py_END_ALLOW_THREADS
        if (problem == row_no_memory)
            PyErr_NoMemory();
        else if (problem)
            PyErr_Format(PyExc_ValueError, "row %zu: %s", index - 1, problem);
        else
            result = Py_BuildValue("y#K", self->out.data ? (const char *)self->out.data : "", (Py_ssize_t)self->out.size,
                                   (unsigned long long)longest);
    }
    release_columns(self);
    self->busy = 0;
    return result;
}

static PyMethodDef methods[] = {
    {"encode", (PyCFunction)row_encoder_encode, METH_O,
     "encode($self, values, /)\n--\n\n"
     "Return rows as records, the first one at offset 0, and the length of the longest message. `ValueError` for "
     "the first row that cannot be a message."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "RowEncoder(shape, /)\n--\n\n"
     "Turns columns in the Arrow layout into messages; without a shape (None), binary values as they are."},
    {Py_tp_new, row_encoder_new}, {Py_tp_dealloc, row_encoder_dealloc}, {Py_tp_methods, methods}, {0, NULL},
};
static PyType_Spec spec = {"filechannel._format._core.RowEncoder", sizeof(RowEncoder), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

int add_rows(PyObject *module) {
    PyTypeObject *type = add_type(module, &spec);
    Py_XDECREF(type);
    return type ? 0 : -1;
}
