/* filechannel._format._core: the native implementation of the Python modules beside it. */
#include "core.h"

PyObject *nothing, *busy;
const uint8_t zeros[GROUP_SIZE] __attribute__((aligned(64)));

PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (type && PyModule_AddType(module, type)) Py_CLEAR(type);
    return type;
}

int check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments but %zd were given", name, wanted, given);
    return -1;
}

int check_no_keywords(const char *name, PyObject *keywords) {
    if (!keywords || !PyDict_GET_SIZE(keywords)) return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes no keyword arguments", name);
    return -1;
}

int unsigned_from(PyObject *value, uint64_t most, uint64_t *out) {
    PyObject *index = PyNumber_Index(value);
    if (!index) return -1;
    *out = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    int failed = *out == UINT64_MAX && PyErr_Occurred();
    if (!failed && *out <= most) return 0;
    if (!failed || PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_SetString(PyExc_OverflowError, "value does not fit the word");
    return -1;
}

/* A map that holds shared words: they are loaded and stored atomically, so they must be aligned, as in any mmap. */
int get_aligned(PyObject *from, int flags, Py_ssize_t least, const char *too_short, Py_buffer *view) {
    if (PyObject_GetBuffer(from, view, flags)) return -1;
    if (view->len >= least && (uintptr_t)view->buf % 8 == 0) return 0;
    PyErr_SetString(PyExc_ValueError, view->len < least ? too_short : "buffer is not aligned");
    PyBuffer_Release(view);
    return -1;
}

/* Releasing may run Python code that uses the same object again: empty the field first. */
void release_view(Py_buffer *view) {
    Py_buffer held = *view;
    view->obj = NULL;
    if (held.obj) PyBuffer_Release(&held);
}

/* The numbers of layout.h, for the test that compares them with layout.py. */
static int add_layout(PyObject *module) {
#define ENTRY(name) #name, (unsigned long long)(name)
    PyObject *layout = Py_BuildValue(
        "{sKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsK"
        "sKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsKsK}", ENTRY(INDEX_BYTES), ENTRY(LARGEST_OFFSET), ENTRY(RECORD_HEADER_SIZE), ENTRY(BATCH_CONTINUES), ENTRY(CONTROL_RECORD),
        ENTRY(LENGTH_MASK), ENTRY(SEGMENT_HEADER_SIZE), ENTRY(SEGMENT_BEGIN), ENTRY(SEGMENT_END),
        ENTRY(SEGMENT_FIRST_SEQUENCE), ENTRY(SEGMENT_PREVIOUS_END), ENTRY(SEGMENT_CREATED), ENTRY(SEGMENT_CRC),
        ENTRY(SEGMENT_END_CRC), ENTRY(SEGMENT_DIGITS), ENTRY(ALLOCATED_END), ENTRY(CONTROL_SIZE), ENTRY(WRITER_LOCK),
        ENTRY(WRITE_TAIL), ENTRY(APPEND_TAIL), ENTRY(RESERVED_END), ENTRY(STATE), ENTRY(WAKE), ENTRY(WAKE_THREADS),
        ENTRY(WAKE_LOOPS), ENTRY(WAKE_GENERATION), ENTRY(STATE_SEALED), ENTRY(STATE_DEFERRED), ENTRY(CONTENDED), ENTRY(EPOCH),
        ENTRY(REGISTRATIONS), ENTRY(FLUSHES), ENTRY(FLUSHING_SEGMENTS), ENTRY(FLUSHING_CONTROL), ENTRY(CONTROL_FLUSHES_STEP), ENTRY(CAPACITY_WAKE), ENTRY(CAPACITY_WATCHED), ENTRY(TAIL_SLOT_0), ENTRY(TAIL_SLOT_1), ENTRY(CURSOR_SLOT_0), ENTRY(CURSOR_SLOT_1),
        ENTRY(GROUP_HEAD), ENTRY(GROUP_LOCK), ENTRY(GROUP_TAIL), ENTRY(GROUP_NEXT), ENTRY(GROUP_NEXT_SEQUENCE),
        ENTRY(GROUP_READY), ENTRY(GROUP_DUE), ENTRY(GROUP_RING), ENTRY(GROUP_ENTRIES), ENTRY(GROUP_ENTRY_SIZE),
        ENTRY(GROUP_SIZE), ENTRY(ENTRY_OFFSET), ENTRY(ENTRY_END), ENTRY(ENTRY_SEQUENCE), ENTRY(ENTRY_DEADLINE),
        ENTRY(ENTRY_STATE), ENTRY(ENTRY_ACKED), ENTRY(ENTRY_OUT), ENTRY(ENTRY_READY), ENTRY(ENTRY_DELAYED),
        ENTRY(ENTRY_SKIPPED), ENTRY(ENTRY_ATTEMPT_SHIFT), ENTRY(ENTRY_ATTEMPTS), ENTRY(ENTRY_TOKEN_SHIFT), ENTRY(ENTRY_TOKENS),
        ENTRY(ENTRY_OWNER_SHIFT), ENTRY(LOCK_GENERATION_SHIFT));
#undef ENTRY
    if (!layout) return -1;
    int failed = PyModule_AddObjectRef(module, "LAYOUT", layout);
    Py_DECREF(layout);
    return failed;
}

static PyObject *find(const char *module_name, const char *name) {
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *found = module ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return found;
}

static int find_names(void) {
    nothing = find("filechannel._format.sentinel", "NOTHING");
    busy = nothing ? find("filechannel._errors", "Busy") : NULL;
    closed_error = busy ? find("anyio", "ClosedResourceError") : NULL;
    return closed_error ? 0 : -1;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "filechannel._format._core",
    .m_doc = "Records, shared words and the hot paths, in C.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__core(void) {
    crc32c_init();
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    if (find_names() || add_words(module) || add_records(module) || add_clock(module) || add_mount(module) || add_memory(module) || add_map(module) || add_waiting(module) || add_forking(module) || add_mutex(module) || add_writer(module) ||
        add_send_path(module) || add_scratch(module) || add_ring(module) || add_cursor_slot(module) || add_reader(module) || add_cores(module) || add_columns(module) || add_rows(module) || add_layout(module) ||
        PyModule_AddStringConstant(module, "CRC32C_METHOD", crc32c_method())) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
