/* Records in a buffer: write, read, scan, skip, find. The reference is records.py. */
#include "core.h"

enum record_state record_check(const uint8_t *base, uint64_t position, uint64_t stop, uint64_t offset, uint32_t *word) {
    if (stop - position < RECORD_HEADER_SIZE) return RECORD_CUT;
    *word = get_u32(base + position);
    uint64_t length = *word & LENGTH_MASK;
    if (stop - position - RECORD_HEADER_SIZE < length) return RECORD_CUT;
    uint32_t crc = crc32c(0, base + position + RECORD_HEADER_SIZE, length);
    return record_crc(crc, *word, offset) == get_u32(base + position + 4) ? RECORD_OK : RECORD_BAD;
}

/* Load the word once, bound it, copy, and check the copy: the bytes may be overwritten meanwhile. */
PyObject *record_copy(const uint8_t *base, uint64_t position, uint64_t stop, uint64_t offset, uint64_t most, uint32_t *word,
                      enum record_state *state) {
    *state = RECORD_CUT;
    if (stop - position < RECORD_HEADER_SIZE) return NULL;
    const uint8_t *at = base + position;
    *word = get_u32(at);
    uint32_t crc = get_u32(at + 4);
    uint64_t length = *word & LENGTH_MASK;
    if (stop - position - RECORD_HEADER_SIZE < length) return NULL;
    *state = RECORD_LONG; /* before so much memory is allocated: a length from disk cannot be trusted */
    if (length > most) return NULL;
    *state = RECORD_OK;
    PyObject *payload = PyBytes_FromStringAndSize((const char *)at + RECORD_HEADER_SIZE, (Py_ssize_t)length);
    if (!payload) return NULL;
    if (record_crc(crc32c(0, PyBytes_AS_STRING(payload), length), *word, offset) == crc) return payload;
    Py_DECREF(payload);
    *state = RECORD_BAD;
    return NULL;
}

const char *record_reason(enum record_state state) {
    if (state == RECORD_LONG) return "record is longer than a message may be";
    return state == RECORD_CUT ? "record reaches beyond the end" : "checksum mismatch";
}

static int check_range(uint64_t position, uint64_t stop, const Py_buffer *view) {
    if (position <= stop && stop <= (uint64_t)view->len) return 0;
    PyErr_SetString(PyExc_ValueError, "range is not inside the buffer");
    return -1;
}

/* The arguments (buffer, position, stop, offset) that the reading functions share. */
static int parse_range(const char *name, PyObject *const *args, Py_ssize_t count, Py_buffer *view, uint64_t *position,
                       uint64_t *stop, uint64_t *offset) {
    if (check_count(name, count, 4) || unsigned_from(args[1], UINT64_MAX, position) ||
        unsigned_from(args[2], UINT64_MAX, stop) || unsigned_from(args[3], UINT64_MAX, offset) ||
        PyObject_GetBuffer(args[0], view, PyBUF_SIMPLE))
        return -1;
    if (!check_range(*position, *stop, view)) return 0;
    PyBuffer_Release(view);
    return -1;
}

static PyObject *py_crc32c(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t value = 0;
    Py_buffer view;
    if (count < 1 || count > 2) return check_count("crc32c", count, 2), NULL;
    if (count == 2 && unsigned_from(args[1], UINT32_MAX, &value)) return NULL;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE)) return NULL;
    uint32_t crc = crc32c((uint32_t)value, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *py_write_record(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, offset, flags;
    Py_buffer view, payload;
    if (check_count("write_record", count, 5) || unsigned_from(args[1], UINT64_MAX, &position) ||
        unsigned_from(args[2], UINT64_MAX, &offset) || unsigned_from(args[3], UINT64_MAX, &flags) ||
        PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE))
        return NULL;
    if (PyObject_GetBuffer(args[4], &payload, PyBUF_SIMPLE)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    PyObject *result = NULL;
    uint64_t size = RECORD_HEADER_SIZE + (uint64_t)payload.len;
    if (payload.len > (Py_ssize_t)LENGTH_MASK || flags & ~(uint64_t)(BATCH_CONTINUES | CONTROL_RECORD))
        PyErr_SetString(PyExc_ValueError, "payload or flags do not fit the word");
    else if (position > (uint64_t)view.len || (uint64_t)view.len - position < size)
        PyErr_SetString(PyExc_ValueError, "range is not inside the buffer");
    else {
        uint8_t *at = (uint8_t *)view.buf + position;
        uint32_t word = (uint32_t)payload.len | (uint32_t)flags;
        uint32_t crc = record_crc(crc32c(0, payload.buf, (size_t)payload.len), word, offset);
        /* The payload may be a part of the same buffer: move it before it is overwritten. */
        memmove(at + RECORD_HEADER_SIZE, payload.buf, (size_t)payload.len);
        put_u32(at, word);
        put_u32(at + 4, crc);
        result = PyLong_FromUnsignedLongLong(position + size);
    }
    PyBuffer_Release(&payload);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *py_read_record(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, stop, offset;
    Py_buffer view;
    if (parse_range("read_record", args, count, &view, &position, &stop, &offset)) return NULL;
    uint32_t word;
    enum record_state state;
    PyObject *payload = record_copy(view.buf, position, stop, offset, LENGTH_MASK, &word, &state);
    PyBuffer_Release(&view);
    if (payload) return Py_BuildValue("IN", word, payload);
    if (state != RECORD_OK) PyErr_SetString(PyExc_ValueError, record_reason(state));
    return NULL;
}

static PyObject *py_scan_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, stop, offset;
    Py_buffer view;
    if (parse_range("scan_records", args, count, &view, &position, &stop, &offset)) return NULL;
    uint64_t batch_end = position, batch_messages = 0, messages = 0, last = position, from = position;
    uint32_t word;
    Py_BEGIN_ALLOW_THREADS
    while (position < stop && record_check(view.buf, position, stop, offset + (position - from), &word) == RECORD_OK) {
        uint64_t start = position;
        messages += !(word & CONTROL_RECORD);
        position += RECORD_HEADER_SIZE + (word & LENGTH_MASK);
        if (word & BATCH_CONTINUES) continue;
        batch_end = position;
        batch_messages = messages;
        last = start;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return Py_BuildValue("KKKK", (unsigned long long)batch_end, (unsigned long long)batch_messages,
                         (unsigned long long)position, (unsigned long long)last);
}

static PyObject *py_skip_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, stop, offset, most;
    Py_buffer view;
    if (check_count("skip_records", count, 5) || unsigned_from(args[4], UINT64_MAX, &most) ||
        parse_range("skip_records", args, 4, &view, &position, &stop, &offset))
        return NULL;
    uint64_t messages = 0, from = position;
    uint32_t word;
    Py_BEGIN_ALLOW_THREADS
    while (position < stop && messages < most &&
           record_check(view.buf, position, stop, offset + (position - from), &word) == RECORD_OK) {
        messages += !(word & CONTROL_RECORD);
        position += RECORD_HEADER_SIZE + (word & LENGTH_MASK);
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return Py_BuildValue("KK", (unsigned long long)position, (unsigned long long)messages);
}

static PyObject *py_find_record(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, stop, offset;
    Py_buffer view;
    if (parse_range("find_record", args, count, &view, &position, &stop, &offset)) return NULL;
    uint64_t at = position;
    uint32_t word;
    Py_BEGIN_ALLOW_THREADS
    while (at < stop && record_check(view.buf, at, stop, offset + (at - position), &word) != RECORD_OK) at++;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return at < stop ? PyLong_FromUnsignedLongLong(at) : PyLong_FromLong(-1);
}

/* Payloads as records, as in a log that begins with them. */
static PyObject *py_join_records(PyObject *Py_UNUSED(module), PyObject *payloads) {
    if (!PyList_CheckExact(payloads)) return PyErr_SetString(PyExc_TypeError, "payloads must be a list of bytes"), NULL;
    uint64_t total = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(payloads); i++) {
        PyObject *payload = PyList_GET_ITEM(payloads, i);
        if (!PyBytes_Check(payload)) return PyErr_Format(PyExc_TypeError, "payload %zd must be bytes", i);
        if (PyBytes_GET_SIZE(payload) > (Py_ssize_t)LENGTH_MASK)
            return PyErr_SetString(PyExc_ValueError, "payload or flags do not fit the word"), NULL;
        total += RECORD_HEADER_SIZE + (uint64_t)PyBytes_GET_SIZE(payload);
    }
    PyObject *joined = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (!joined) return NULL;
    uint8_t *base = (uint8_t *)PyBytes_AS_STRING(joined), *at = base;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(payloads); i++) {
        const char *payload = PyBytes_AS_STRING(PyList_GET_ITEM(payloads, i));
        uint32_t length = (uint32_t)PyBytes_GET_SIZE(PyList_GET_ITEM(payloads, i));
        put_u32(at, length);
        put_u32(at + 4, record_crc(crc32c(0, payload, length), length, (uint64_t)(at - base)));
        copy_payload_bytes(at + RECORD_HEADER_SIZE, payload, length);
        at += RECORD_HEADER_SIZE + length;
    }
    return joined;
}

static PyObject *py_split_records(PyObject *Py_UNUSED(module), PyObject *joined) {
    Py_buffer view;
    if (PyObject_GetBuffer(joined, &view, PyBUF_SIMPLE)) return NULL;
    PyObject *payloads = PyList_New(0);
    for (uint64_t position = 0, stop = (uint64_t)view.len; payloads && position < stop;) {
        uint32_t word;
        enum record_state state;
        PyObject *payload = record_copy(view.buf, position, stop, position, LENGTH_MASK, &word, &state);
        if (!payload && state != RECORD_OK) PyErr_SetString(PyExc_ValueError, record_reason(state));
        if (!payload || PyList_Append(payloads, payload)) Py_CLEAR(payloads);
        if (payload) position += RECORD_HEADER_SIZE + (uint64_t)PyBytes_GET_SIZE(payload);
        Py_XDECREF(payload);
    }
    PyBuffer_Release(&view);
    return payloads;
}

static PyMethodDef functions[] = {
    {"crc32c", FAST(py_crc32c), METH_FASTCALL,
     "crc32c(data, value=0, /)\n--\n\nExtend a CRC-32C by the bytes of data."},
    {"write_record", FAST(py_write_record), METH_FASTCALL,
     "write_record(buffer, position, offset, flags, payload, /)\n--\n\nWrite one record and return the position after it."},
    {"read_record", FAST(py_read_record), METH_FASTCALL,
     "read_record(buffer, position, stop, offset, /)\n--\n\nReturn (word, payload), or raise ValueError with the reason."},
    {"scan_records", FAST(py_scan_records), METH_FASTCALL,
     "scan_records(buffer, position, stop, offset, /)\n--\n\n"
     "Walk valid records from position on. Return (end of the last whole batch, messages up to there, end of the "
     "last record, start of the record that closed the batch)."},
    {"skip_records", FAST(py_skip_records), METH_FASTCALL,
     "skip_records(buffer, position, stop, offset, most, /)\n--\n\n"
     "Skip valid records from position on, with at most *most* messages; return (position after them, messages). "
     "The position has not moved if *most* is 0, or if no whole record validates there."},
    {"find_record", FAST(py_find_record), METH_FASTCALL,
     "find_record(buffer, position, stop, offset, /)\n--\n\nReturn the first position where a whole record validates, or -1."},
    {"join_records", py_join_records, METH_O,
     "join_records(payloads, /)\n--\n\nReturn payloads as records, the first one at offset 0."},
    {"split_records", py_split_records, METH_O,
     "split_records(joined, /)\n--\n\n"
     "Return the payloads of records, the first one at offset 0; `ValueError` if one does not validate."},
    {NULL, NULL, 0, NULL},
};

int add_records(PyObject *module) { return PyModule_AddFunctions(module, functions); }
