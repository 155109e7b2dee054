/* Loads, stores and compare-and-swap on the aligned words of a shared map. */
#include "core.h"

/* A view of `width` aligned bytes at a position, or NULL with an exception. */
uint8_t *word_at(PyObject *const *args, Py_ssize_t width, int writable, Py_buffer *view) {
    uint64_t position;
    if (unsigned_from(args[1], UINT64_MAX, &position)) return NULL;
    if (PyObject_GetBuffer(args[0], view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return NULL;
    if (position % (uint64_t)width || (uintptr_t)view->buf % (uintptr_t)width || position > (uint64_t)view->len ||
        (uint64_t)view->len - position < (uint64_t)width) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "position is not an aligned word inside the buffer");
        return NULL;
    }
    return (uint8_t *)view->buf + position;
}

static PyObject *py_load_u32(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    if (check_count("load_u32", count, 2) || !(at = word_at(args, 4, 0, &view))) return NULL;
    uint32_t value = load_acquire_u32(at);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(value);
}

static PyObject *py_load_u64(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    if (check_count("load_u64", count, 2) || !(at = word_at(args, 8, 0, &view))) return NULL;
    uint64_t value = load_acquire_u64(at);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *py_store_u32(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t value;
    if (check_count("store_u32", count, 3) || unsigned_from(args[2], UINT32_MAX, &value)) return NULL;
    if (!(at = word_at(args, 4, 1, &view))) return NULL;
    store_release_u32(at, (uint32_t)value);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *py_store_u64(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t value;
    if (check_count("store_u64", count, 3) || unsigned_from(args[2], UINT64_MAX, &value)) return NULL;
    if (!(at = word_at(args, 8, 1, &view))) return NULL;
    store_release_u64(at, value);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *py_swap_if_u32(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t expected, value;
    if (check_count("swap_if_u32", count, 4) || unsigned_from(args[2], UINT32_MAX, &expected) ||
        unsigned_from(args[3], UINT32_MAX, &value))
        return NULL;
    if (!(at = word_at(args, 4, 1, &view))) return NULL;
    int swapped = swap_if_u32(at, (uint32_t)expected, (uint32_t)value);
    PyBuffer_Release(&view);
    return PyBool_FromLong(swapped);
}

static PyObject *py_swap_if_u64(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t expected, value;
    if (check_count("swap_if_u64", count, 4) || unsigned_from(args[2], UINT64_MAX, &expected) ||
        unsigned_from(args[3], UINT64_MAX, &value))
        return NULL;
    if (!(at = word_at(args, 8, 1, &view))) return NULL;
    int swapped = __atomic_compare_exchange_n((uint64_t *)at, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    PyBuffer_Release(&view);
    return PyBool_FromLong(swapped);
}

static PyObject *py_add_u64(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t value;
    if (check_count("add_u64", count, 3) || unsigned_from(args[2], UINT64_MAX, &value) || !(at = word_at(args, 8, 1, &view))) return NULL;
    uint64_t before = __atomic_fetch_add((uint64_t *)at, value, __ATOMIC_SEQ_CST);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(before);
}

static PyObject *py_fence(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"load_u32", FAST(py_load_u32), METH_FASTCALL,
     "load_u32(buffer, position, /)\n--\n\nRead a shared word (acquire)."},
    {"load_u64", FAST(py_load_u64), METH_FASTCALL,
     "load_u64(buffer, position, /)\n--\n\nRead a shared double word (acquire)."},
    {"store_u32", FAST(py_store_u32), METH_FASTCALL,
     "store_u32(buffer, position, value, /)\n--\n\nWrite a shared word (release)."},
    {"store_u64", FAST(py_store_u64), METH_FASTCALL,
     "store_u64(buffer, position, value, /)\n--\n\nWrite a shared double word (release)."},
    {"swap_if_u32", FAST(py_swap_if_u32), METH_FASTCALL,
     "swap_if_u32(buffer, position, expected, value, /)\n--\n\n"
     "Store value if the word is still as expected; return whether it was."},
    {"swap_if_u64", FAST(py_swap_if_u64), METH_FASTCALL,
     "swap_if_u64(buffer, position, expected, value, /)\n--\n\n"
     "Store value if the double word is still as expected; return whether it was."},
    {"add_u64", FAST(py_add_u64), METH_FASTCALL,
     "add_u64(buffer, position, value, /)\n--\n\nAdd to a double word, modulo 2**64; return the old value."},
    {"fence", py_fence, METH_NOARGS, "fence()\n--\n\nOrder every store before it against every load after it."},
    {NULL, NULL, 0, NULL},
};

int add_words(PyObject *module) { return PyModule_AddFunctions(module, functions); }
