/* Converting messages to columns, without a Python object for each message: what a table of messages is made of. */
#include "core.h"

#include "arrow/column.h"
#include "arrow/msgpack_write.h"

#include <stdlib.h>

static const char *const kind_names[COLUMN_KINDS] = {
    "bool", "int", "float", "string", "binary", "timestamp", "date", "decimal", "list", "map", "struct",
};
#define DEEPEST 64

typedef struct {
    PyObject_HEAD
    Column *root;
    Growing offsets; /* where the record of each message begins */
    Growing copy;    /* of the payload that is being read */
    char whole;      /* messages are taken as they are */
    char busy;       /* a thread is in a call, perhaps without the GIL */
} Columns;

/* Creating columns from a plan */

static char *copied(const char *from, size_t size) {
    char *copy = malloc(size + 1);
    if (!copy) return PyErr_NoMemory(), NULL;
    memcpy(copy, from, size);
    copy[size] = 0;
    return copy;
}

static Column *column_from(PyObject *plan, int depth);

static int malformed(const char *reason) {
    PyErr_SetString(PyExc_ValueError, reason);
    return -1;
}

static int key_from(Field *field) {
    if (!(field->key = malloc(field->name_size + 2 * LONGEST_HEAD))) return PyErr_NoMemory(), -1;
    uint8_t *body = put_str(field->key, field->name_size);
    memcpy(body, field->name, field->name_size);
    field->key_size = (size_t)(body - field->key) + field->name_size;
    memcpy(&field->key_start, field->key, field->key_size < 8 ? field->key_size : 8);
    field->key_mask = field->key_size < 8 ? ((uint64_t)1 << 8 * field->key_size) - 1 : UINT64_MAX;
    return 0;
}

static int field_from(PyObject *plan, Field *field, int depth) {
    if (!PyTuple_Check(plan) || PyTuple_GET_SIZE(plan) != 4) return malformed("a field is (key, fallback, label, plan)");
    PyObject *key = PyTuple_GET_ITEM(plan, 0), *fallback = PyTuple_GET_ITEM(plan, 1), *label = PyTuple_GET_ITEM(plan, 2);
    if (!(PyUnicode_Check(key) || PyLong_Check(key)) || !(fallback == Py_None || PyBytes_Check(fallback)) || !PyUnicode_Check(label))
        return malformed("a field is (key, fallback, label, plan)");
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(label, &size);
    if (!text || !(field->label = copied(text, (size_t)size))) return -1;
    if (PyUnicode_Check(key)) {
        text = PyUnicode_AsUTF8AndSize(key, &size);
        if (!text || !(field->name = copied(text, (size_t)size))) return -1;
        field->name_size = (size_t)size;
        if (key_from(field)) return -1;
    } else if (unsigned_from(key, UINT64_MAX, &field->position))
        return -1;
    if (fallback != Py_None) {
        char *bytes;
        if (PyBytes_AsStringAndSize(fallback, &bytes, &size) || !(field->fallback = (uint8_t *)copied(bytes, (size_t)size))) return -1;
        field->fallback_size = (size_t)size;
    }
    return (field->column = column_from(PyTuple_GET_ITEM(plan, 3), depth + 1)) ? 0 : -1;
}

static int fields_from(Column *column, PyObject *plans, int depth) {
    Py_ssize_t count = PyTuple_GET_SIZE(plans);
    Py_ssize_t wanted = column->kind == COLUMN_LIST ? 1 : column->kind == COLUMN_MAP ? 2 : column->kind == COLUMN_STRUCT ? count : 0;
    if (count != wanted) {
        PyErr_Format(PyExc_ValueError, "%s has %zd fields, not %zd", kind_names[column->kind], count, wanted);
        return -1;
    }
    column->fields = calloc((size_t)count + 1, sizeof *column->fields);
    if (!column->fields) return PyErr_NoMemory(), -1;
    for (; column->field_count < (size_t)count; column->field_count++) {
        Field *field = &column->fields[column->field_count];
        int failed = field_from(PyTuple_GET_ITEM(plans, (Py_ssize_t)column->field_count), field, depth);
        if (column->field_count == 0) column->by_position = !field->name;
        if (!failed && column->by_position == !field->name) continue;
        if (!failed) malformed("fields have names or positions, not some of each");
        column->field_count++; /* it is partly built, and freed with the others */
        return -1;
    }
    return 0;
}

static Column *column_from(PyObject *plan, int depth) {
    PyObject *fields = PyTuple_Check(plan) && PyTuple_GET_SIZE(plan) == 3 ? PyTuple_GET_ITEM(plan, 2) : NULL;
    if (!fields || !PyTuple_Check(fields) || !PyUnicode_Check(PyTuple_GET_ITEM(plan, 0)))
        return malformed("a plan is (kind, nullable, fields)"), NULL;
    if (depth > DEEPEST) return malformed("the type is nested too deeply"), NULL;
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(plan, 0));
    int nullable = PyObject_IsTrue(PyTuple_GET_ITEM(plan, 1));
    if (!name || nullable < 0) return NULL;
    Column *column = calloc(1, sizeof *column);
    if (!column) return (Column *)PyErr_NoMemory();
    column->nullable = (char)nullable;
    while (column->kind < COLUMN_KINDS && strcmp(kind_names[column->kind], name)) column->kind++;
    if (column->kind == COLUMN_KINDS)
        PyErr_Format(PyExc_ValueError, "no kind of column is called %s", name);
    else if (!fields_from(column, fields, depth))
        return column;
    column_free(column);
    return NULL;
}

static PyObject *columns_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *plan;
    if (check_no_keywords("Columns", keywords) || !PyArg_ParseTuple(args, "O", &plan)) return NULL;
    Columns *self = (Columns *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->whole = plan == Py_None;
    self->root = self->whole ? calloc(1, sizeof *self->root) : column_from(plan, 0);
    if (self->whole && self->root) self->root->kind = COLUMN_BINARY;
    if (!self->root) {
        if (self->whole) PyErr_NoMemory();
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void columns_dealloc(Columns *self) {
    PyTypeObject *type = Py_TYPE(self);
    column_free(self->root);
    free(self->offsets.data);
    free(self->copy.data);
    type->tp_free(self);
    Py_DECREF(type);
}

static int enter(Columns *self) {
    if (!self->busy) {
        self->busy = 1;
        return 0;
    }
    PyErr_SetString(PyExc_RuntimeError, "another thread is using these columns");
    return -1;
}

/* Taking messages */

static uint8_t *reserve_in(Growing *growing, size_t size) {
    if (growing->capacity < size) {
        size_t capacity = growing->capacity ? growing->capacity : 4096;
        while (capacity < size) capacity *= 2;
        uint8_t *data = realloc(growing->data, capacity);
        if (!data) return NULL;
        growing->data = data;
        growing->capacity = capacity;
    }
    return growing->data;
}

/* All of it or, with a problem, nothing. */
static Problem take_message(Columns *self, const uint8_t *payload, size_t size, uint64_t offset, const char **where) {
    size_t rows = self->root->length;
    Input in = {payload, payload + size};
    Problem problem = NULL;
    if (!reserve_in(&self->offsets, 8 * (rows + 1)))
        problem = column_no_memory;
    else if (self->whole)
        problem = column_put_whole(self->root, payload, size);
    else if (!(problem = column_put(self->root, &in, where)) && in.at != in.end)
        problem = "the message is followed by other bytes";
    if (problem)
        column_cut(self->root, rows);
    else
        put_u64(self->offsets.data + 8 * rows, offset);
    return problem;
}

/* Load the word once, bound it, copy, check the copy: the bytes may be overwritten meanwhile. */
static Problem take_record(Columns *self, const uint8_t *base, uint64_t *position, uint64_t stop, uint64_t offset, const char **where) {
    if (stop - *position < RECORD_HEADER_SIZE) return record_reason(RECORD_CUT);
    uint32_t word = get_u32(base + *position), crc = get_u32(base + *position + 4);
    uint64_t size = word & LENGTH_MASK;
    if (stop - *position - RECORD_HEADER_SIZE < size) return record_reason(RECORD_CUT);
    uint8_t *copy = reserve_in(&self->copy, size + 1);
    if (!copy) return column_no_memory;
    memcpy(copy, base + *position + RECORD_HEADER_SIZE, size);
    if (record_crc(crc32c(0, copy, size), word, offset) != crc) return record_reason(RECORD_BAD);
    Problem problem = word & CONTROL_RECORD ? NULL : take_message(self, copy, size, offset, where);
    if (!problem) *position += RECORD_HEADER_SIZE + size;
    return problem;
}

static PyObject *refuse(Problem problem, const char *where) {
    if (problem == column_no_memory) return PyErr_NoMemory();
    if (where) return PyErr_Format(PyExc_ValueError, "%s: %s", where, problem);
    return PyErr_SetString(PyExc_ValueError, problem), NULL;
}

static PyObject *columns_take(Columns *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t position, stop, offset, most;
    Py_buffer view;
    if (check_count("take", count, 5) || unsigned_from(args[1], UINT64_MAX, &position) || unsigned_from(args[2], UINT64_MAX, &stop) ||
        unsigned_from(args[3], UINT64_MAX, &offset) || unsigned_from(args[4], UINT64_MAX, &most) ||
        PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE))
        return NULL;
    if (position > stop || stop > (uint64_t)view.len || enter(self)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "range is not inside the buffer");
        PyBuffer_Release(&view);
        return NULL;
    }
    Problem problem = NULL;
    const char *where = NULL;
    uint64_t from = position;
    size_t before = self->root->length;
    Py_BEGIN_ALLOW_THREADS
    while (!problem && position < stop && self->root->length - before < most)
        problem = take_record(self, view.buf, &position, stop, offset + (position - from), &where);
    Py_END_ALLOW_THREADS
    size_t taken = self->root->length - before;
    self->busy = 0;
    PyBuffer_Release(&view);
    if (problem && position == from) return refuse(problem, where); /* otherwise the next call starts with it, and reports it */
    return Py_BuildValue("Kn", (unsigned long long)position, (Py_ssize_t)taken);
}

static PyObject *columns_put(Columns *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t offset;
    Py_buffer view;
    if (check_count("put", count, 2) || unsigned_from(args[1], UINT64_MAX, &offset) || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE))
        return NULL;
    const char *where = NULL;
    Problem problem = NULL;
    int failed = enter(self);
    if (!failed) {
        problem = take_message(self, view.buf, (size_t)view.len, offset, &where);
        self->busy = 0;
    }
    PyBuffer_Release(&view);
    if (failed) return NULL;
    if (problem) return refuse(problem, where);
    Py_RETURN_NONE;
}

/* Exporting the columns */

static PyObject *bytes_of(const Growing *growing) {
    return PyBytes_FromStringAndSize((const char *)growing->data, (Py_ssize_t)growing->size);
}

static PyObject *offsets_of(const Column *column) {
    switch (column->kind) {
    case COLUMN_STRING: case COLUMN_BINARY: case COLUMN_LIST: case COLUMN_MAP:
        return column->offsets.size ? bytes_of(&column->offsets) : PyBytes_FromStringAndSize("\0\0\0\0", 4);
    default: Py_RETURN_NONE;
    }
}

static PyObject *data_of(const Column *column) {
    if (column->kind >= COLUMN_LIST) Py_RETURN_NONE;
    return bytes_of(&column->data);
}

static PyObject *result_of(const Column *column) {
    PyObject *inner = PyTuple_New((Py_ssize_t)column->field_count);
    for (size_t index = 0; inner && index < column->field_count; index++) {
        PyObject *result = result_of(column->fields[index].column);
        if (result)
            PyTuple_SET_ITEM(inner, (Py_ssize_t)index, result);
        else
            Py_CLEAR(inner);
    }
    PyObject *validity = inner ? column->nulls ? bytes_of(&column->validity) : Py_NewRef(Py_None) : NULL;
    PyObject *offsets = validity ? offsets_of(column) : NULL;
    PyObject *data = offsets ? data_of(column) : NULL;
    if (data) return Py_BuildValue("nnNNNN", (Py_ssize_t)column->length, (Py_ssize_t)column->nulls, validity, offsets, data, inner);
    Py_XDECREF(offsets);
    Py_XDECREF(validity);
    Py_XDECREF(inner);
    return NULL;
}

static PyObject *columns_finish(Columns *self, PyObject *Py_UNUSED(ignored)) {
    if (enter(self)) return NULL;
    self->offsets.size = 8 * self->root->length;
    PyObject *result = result_of(self->root), *offsets = result ? bytes_of(&self->offsets) : NULL;
    if (offsets) column_clear(self->root);
    self->busy = 0;
    if (offsets) return Py_BuildValue("NN", result, offsets);
    Py_XDECREF(result);
    return NULL;
}

static PyObject *columns_length(Columns *self, void *Py_UNUSED(closure)) { return PyLong_FromSize_t(self->root->length); }

static PyMethodDef methods[] = {
    {"take", FAST(columns_take), METH_FASTCALL,
     "take($self, buffer, position, stop, offset, most, /)\n--\n\n"
     "Take up to *most* messages from the records in a range; return (position reached, messages taken). "
     "`ValueError` if the first record cannot be converted; records before one that cannot are taken."},
    {"put", FAST(columns_put), METH_FASTCALL, "put($self, payload, offset, /)\n--\n\nTake one message."},
    {"finish", (PyCFunction)columns_finish, METH_NOARGS,
     "finish($self, /)\n--\n\nReturn the columns and the offset of each message, and start over."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {
    {"length", (getter)columns_length, NULL, "How many messages there are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Columns(plan, /)\n--\n\n"
     "Columns of messages; without a plan (None), one binary column of whole messages."},
    {Py_tp_new, columns_new}, {Py_tp_dealloc, columns_dealloc}, {Py_tp_methods, methods}, {Py_tp_getset, properties}, {0, NULL},
};
static PyType_Spec spec = {"filechannel._format._core.Columns", sizeof(Columns), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

int add_columns(PyObject *module) {
    PyTypeObject *type = add_type(module, &spec);
    Py_XDECREF(type);
    return type ? 0 : -1;
}
