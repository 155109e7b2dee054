/* Storing a log position in a cursor file, for callers in Python. The reference is store_position.py. */
#include "read/store_position.h"

static PyObject *py_write_cursor_slot(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t generation, offset, sequence, time;
    Py_buffer cursor;
    if (check_count("write_cursor_slot", count, 5) || unsigned_from(args[1], UINT64_MAX, &generation) ||
        unsigned_from(args[2], UINT64_MAX, &offset) || unsigned_from(args[3], UINT64_MAX, &sequence) ||
        unsigned_from(args[4], UINT64_MAX, &time) || PyObject_GetBuffer(args[0], &cursor, PyBUF_WRITABLE))
        return NULL;
    int fits = cursor.len >= CURSOR_SLOT_1 + 64;
    if (fits)
        cursor_slot_write(cursor.buf, generation, offset, sequence, time);
    else
        PyErr_SetString(PyExc_ValueError, "cursor is too short");
    PyBuffer_Release(&cursor);
    if (!fits) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"write_cursor_slot", FAST(py_write_cursor_slot), METH_FASTCALL,
     "write_cursor_slot(cursor, generation, offset, sequence, time, /)\n--\n\n"
     "Write a log position, and when it was stored, into a slot of a cursor file."},
    {NULL, NULL, 0, NULL},
};

int add_cursor_slot(PyObject *module) { return PyModule_AddFunctions(module, functions); }
