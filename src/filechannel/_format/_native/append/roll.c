/* From one segment to the next, where everything is prepared. The reference, with the order spelled out, is going_on.py.
 *
 * It happens once in thousands of messages, so none of its code is in a cache: in Python it took a third of a
 * millisecond, most of it for reading the interpreter's own structures. Here it is two system calls and two copies. The GIL
 * is held meanwhile: whoever gives it away for some microseconds waits for milliseconds to have it back. */
#include "core.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void release(Successor *next) {
    let_go(&next->map);
    if (next->has_directory) close(next->directory);
    next->has_directory = 0;
    Py_CLEAR(next->source);
    Py_CLEAR(next->target);
    Py_CLEAR(next->told);
    Py_CLEAR(next->watch);
    Py_CLEAR(next->what);
}

static Successor take_next(Writer *self) {
    Successor next = self->next;
    memset(&self->next, 0, sizeof self->next);
    return next;
}

void forget_next(Writer *self) {
    Successor next = take_next(self); /* first: what is let go of may run Python code */
    release(&next);
}

static int check_path(PyObject *path) {
    char *text;
    Py_ssize_t size; /* asked for, so that a zero byte is no error; we say so ourselves */
    if (PyBytes_AsStringAndSize(path, &text, &size)) return -1;
    if (strlen(text) == (size_t)size) return 0;
    PyErr_SetString(PyExc_ValueError, "embedded null byte");
    return -1;
}

PyObject *py_prepare_next(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    Successor next = {0};
    uint64_t digits, directory;
    Py_buffer header;
    if (writer_check_open(self) || check_count("prepare_next", count, 12) || unsigned_from(args[3], UINT64_MAX, &next.device) ||
        unsigned_from(args[4], UINT64_MAX, &next.inode) || unsigned_from(args[7], UINT64_MAX, &digits) ||
        unsigned_from(args[8], UINT64_MAX, &next.window) || unsigned_from(args[11], INT_MAX, &directory) || check_path(args[5]) || check_path(args[6]))
        return NULL;
    uint64_t length = (uint64_t)PyBytes_GET_SIZE(args[6]);
    if (length < SEGMENT_DIGITS || digits > length - SEGMENT_DIGITS) {
        PyErr_SetString(PyExc_ValueError, "digits are not inside the path");
        return NULL;
    }
    if (PyObject_GetBuffer(args[2], &header, PyBUF_SIMPLE)) return NULL;
    int fits = header.len == SEGMENT_HEADER_SIZE;
    if (fits) memcpy(next.header, header.buf, SEGMENT_HEADER_SIZE);
    PyBuffer_Release(&header);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "not a segment header");
        return NULL;
    }
    if (get_aligned(args[1], PyBUF_WRITABLE, SEGMENT_HEADER_SIZE, "segment is shorter than its header", &next.map)) return NULL;
    next.digits = (Py_ssize_t)digits;
    next.source = Py_NewRef(args[5]);
    next.target = PyBytes_FromStringAndSize(PyBytes_AS_STRING(args[6]), (Py_ssize_t)length); /* ours, and written to */
    next.told = Py_NewRef(args[9]);
    next.watch = args[10] == Py_None ? NULL : Py_NewRef(args[10]);
    /* A duplicate, which we own: closing the channel closes the other one, and its number may be given to another file. */
    next.directory = next.target && !self->gone_on ? fcntl((int)directory, F_DUPFD_CLOEXEC, 0) : -1;
    if (next.directory < 0) { /* without a descriptor it is done the slow way */
        int failed = !next.target;
        release(&next);
        if (failed) return NULL;
        Py_RETURN_NONE;
    }
    next.has_directory = 1;
    next.what = Py_NewRef(args[0]);
    forget_next(self);
    self->next = next;
    Py_RETURN_NONE;
}

PyObject *py_forget_next(PyObject *op, PyObject *what) {
    if (((Writer *)op)->next.what == what) forget_next((Writer *)op);
    Py_RETURN_NONE;
}

/* For tests, which fail or die there. They may also have run anything, so we look whether we still are where we were. */
static int watched(const Writer *self, const Successor *next, const char *step) {
    if (!next->watch) return 0;
    const void *segment = self->segment.buf;
    PyObject *done = PyObject_CallFunction(next->watch, "s", step);
    Py_XDECREF(done);
    if (done && self->segment.obj && self->segment.buf == segment) return 0;
    if (done) PyErr_SetString(PyExc_RuntimeError, "the writer was changed meanwhile");
    return -1;
}

/* Whether a record of this size is the first of the next segment, and nothing is in the way. */
static int is_simple(Writer *self, const Successor *next, uint64_t size, uint64_t now) {
    if (!self->segment.obj || self->deferred || self->limited || !writer_is_current(self) || !writer_refresh_tail(self) ||
        !self->alone || self->tail_end <= self->begin)
        return 0;
    /* A window that was closed says that somebody has to ask for room first. */
    if (!writer_fits_window(self, self->tail_end, 0)) return 0;
    uint64_t used = self->tail_end - self->begin, room = (uint64_t)self->segment.len - SEGMENT_HEADER_SIZE;
    uint64_t next_room = (uint64_t)next->map.len - SEGMENT_HEADER_SIZE;
    if (used > room || size <= room - used || size > next_room || next_room > UINT64_MAX - self->tail_end) return 0;
    /* If the clock went back, it takes more to say when the segment begins: times never do. */
    return now >= self->latest && now >= get_u64((uint8_t *)self->segment.buf + SEGMENT_CREATED);
}

static void fill_header(const Writer *self, Successor *next, uint64_t now) {
    uint8_t *header = next->header;
    put_u64(header + SEGMENT_BEGIN, self->tail_end);
    put_u64(header + SEGMENT_END, 0);
    put_u64(header + SEGMENT_FIRST_SEQUENCE, self->tail_sequence);
    put_u64(header + SEGMENT_PREVIOUS_END, self->tail_end);
    put_u64(header + SEGMENT_CREATED, now);
    put_u32(header + SEGMENT_CRC, crc32c(crc32c(0, header, SEGMENT_END), header + SEGMENT_END + 8, SEGMENT_CRC - SEGMENT_END - 8));
    put_u32(header + SEGMENT_END_CRC, 0);
    char digits[SEGMENT_DIGITS + 1];
    snprintf(digits, sizeof digits, "%020llu", (unsigned long long)self->tail_end);
    memcpy(PyBytes_AS_STRING(next->target) + next->digits, digits, SEGMENT_DIGITS);
}

static void store_end(const Writer *self, uint64_t end) {
    uint8_t *header = self->segment.buf, extent[16];
    put_u64(extent, self->begin);
    put_u64(extent + 8, end);
    if (end) put_u32(header + SEGMENT_END_CRC, crc32c(0, extent, sizeof extent));
    store_release_u64(header + SEGMENT_END, end);
}

static int is_there(const Successor *next) {
    struct stat found;
    return !fstatat(next->directory, PyBytes_AS_STRING(next->source), &found, AT_SYMLINK_NOFOLLOW) &&
           (uint64_t)found.st_dev == next->device && (uint64_t)found.st_ino == next->inode;
}

static void change(Writer *self) {
    uint8_t *at = (uint8_t *)self->control.buf + EPOCH;
    self->epoch = load_acquire_u32(at) + 1;
    store_release_u32(at, self->epoch);
}

/* Write to the file that has its name now; what was bound before is the caller's to let go of. */
static Py_buffer bind_next(Writer *self, Successor *next, uint64_t size) {
    Py_buffer before = self->segment;
    uint64_t room = (uint64_t)next->map.len - SEGMENT_HEADER_SIZE, window = next->window < room ? next->window : room;
    int was_ahead = self->ahead_end > self->begin;
    self->segment = next->map;
    next->map.obj = NULL;
    self->begin = self->tail_end;
    self->window_end = self->begin + (window > size ? window : size);
    self->next_mark = self->latest = 0;
    self->ahead_end = was_ahead ? self->begin + room : 0;
    self->ahead_from = self->begin; /* its first pages were made present when it was prepared */
    self->ahead_at = was_ahead && self->ahead / 2 < room ? self->begin + self->ahead / 2 : UINT64_MAX;
    self->gone_on = next->what;
    memcpy(self->gone_on_header, next->header, SEGMENT_HEADER_SIZE);
    self->told = next->told;
    next->what = next->told = NULL;
    store_release_u64((uint8_t *)self->control.buf + ALLOCATED_END, self->begin + room);
    return before;
}

/* 1: the next segment has its name; 0: it could not be done, and nothing is; -1: an exception. The word is taken. */
static int begin_next(Writer *self, Successor *next, uint64_t now) {
    if (watched(self, next, "look")) return -1;
    if (!is_there(next)) return 0;
    fill_header(self, next, now);
    if (watched(self, next, "end")) return -1;
    /* Before anything is published beyond it: a reader that sees more must see where this one ends. */
    store_end(self, self->tail_end);
    int failed = watched(self, next, "header");
    if (!failed) {
        memcpy(next->map.buf, next->header, SEGMENT_HEADER_SIZE);
        failed = watched(self, next, "replace");
    }
    if (!failed &&
        !renameat(next->directory, PyBytes_AS_STRING(next->source), next->directory, PyBytes_AS_STRING(next->target))) {
        if (!watched(self, next, "publish")) return 1;
        change(self); /* whoever cleans up finds the new name */
        return -1;
    }
    if (self->segment.obj) store_end(self, 0);
    return failed ? -1 : 0;
}

/* Append the first record of the next segment; the CRC of its payload is known. */
static enum appended go_on(Writer *self, const Piece *piece, uint64_t *offset) {
    uint64_t size = RECORD_HEADER_SIZE + (uint64_t)piece->length, now = exact_clock_ns();
    if (!writer_take_word(self)) return OVERFLOWS;
    if (!is_simple(self, &self->next, size, now)) {
        release_word((uint8_t *)self->control.buf + WRITER_LOCK);
        return OVERFLOWS;
    }
    Successor next = take_next(self);
    Py_buffer before = {0};
    PyObject *untold = NULL;
    *offset = self->tail_end;
    int begun = begin_next(self, &next, now);
    if (begun > 0) {
        untold = self->told;
        before = bind_next(self, &next, size);
        change(self);
        writer_put_first(self, piece);
    }
    release_word((uint8_t *)self->control.buf + WRITER_LOCK);
    let_go(&before);
    release(&next);
    Py_XDECREF(untold);
    if (begun <= 0) return begun < 0 ? APPEND_FAILED : OVERFLOWS;
    turn_charge(size);
    return APPENDED;
}

/* Where a test watches, the way is over Python: it may end in an exception, after which there is something to clean up. */
enum appended writer_go_on(Writer *self, Piece *piece, uint64_t *offset) {
    if (!self->next.what || self->next.watch) return OVERFLOWS;
    piece->crc = crc32c(0, piece->data, piece->length);
    enum appended appended = go_on(self, piece, offset);
    return appended == APPENDED && writer_wake_armed(self) ? APPEND_FAILED : appended;
}

PyObject *py_go_on(PyObject *op, PyObject *payload) {
    Writer *self = (Writer *)op;
    if (!PyBytes_Check(payload)) return PyErr_Format(PyExc_TypeError, "payload must be bytes, not %.100s", Py_TYPE(payload)->tp_name);
    uint64_t length = (uint64_t)PyBytes_GET_SIZE(payload), offset;
    if (!self->next.what || length > self->max_payload) Py_RETURN_NONE;
    const char *data = PyBytes_AS_STRING(payload);
    const Piece piece = {.data = data, .length = (uint32_t)length, .crc = crc32c(0, data, length)};
    switch (go_on(self, &piece, &offset)) {
    case APPENDED: return PyLong_FromUnsignedLongLong(offset);
    case APPEND_FAILED: return NULL;
    case OVERFLOWS: break;
    }
    Py_RETURN_NONE;
}

/* Not in the call that goes on, which takes long enough. */
int writer_tell(Writer *self) {
    PyObject *told = self->told;
    self->told = NULL; /* first: it may append */
    PyObject *done = PyObject_CallNoArgs(told);
    Py_DECREF(told);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

PyObject *get_gone_on(PyObject *op, void *Py_UNUSED(closure)) {
    const Writer *self = (Writer *)op;
    if (!self->gone_on) Py_RETURN_NONE;
    return Py_BuildValue("Oy#", self->gone_on, self->gone_on_header, (Py_ssize_t)SEGMENT_HEADER_SIZE);
}

PyObject *py_note_gone_on(PyObject *op, PyObject *Py_UNUSED(none)) {
    Py_CLEAR(((Writer *)op)->gone_on);
    Py_RETURN_NONE;
}
