/* The roll to the next segment. The reference, which explains the order of the steps, is append/roll.py.
 *
 * The fast roll happens once in thousands of messages, so none of its code is in a cache: in Python it took a third of
 * a millisecond, most of it for loading the interpreter's own structures. Here it is two system calls and two copies.
 * It keeps the GIL meanwhile: a thread that releases the GIL for some microseconds may wait milliseconds to get it
 * back. */
#include "core.h"
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void release(PreparedSegment *next) {
    release_view(&next->map);
    if (next->has_directory) close(next->directory);
    next->has_directory = 0;
    Py_CLEAR(next->source);
    Py_CLEAR(next->target);
    Py_CLEAR(next->after_roll);
    Py_CLEAR(next->watch);
    Py_CLEAR(next->rename);
    Py_CLEAR(next->what);
}

static PreparedSegment take_next(Writer *self) {
    PreparedSegment next = self->next;
    memset(&self->next, 0, sizeof self->next);
    return next;
}

void forget_next(Writer *self) {
    PreparedSegment next = take_next(self); /* first: releasing it may run Python code */
    release(&next);
}

static int check_path(PyObject *path) {
    char *text;
    Py_ssize_t size; /* requested, so that a null byte is not an error here; it is reported below */
    if (PyBytes_AsStringAndSize(path, &text, &size)) return -1;
    if (strlen(text) == (size_t)size) return 0;
    PyErr_SetString(PyExc_ValueError, "embedded null byte");
    return -1;
}

static int get_header(PyObject *from, uint8_t *to) {
    Py_buffer header;
    if (PyObject_GetBuffer(from, &header, PyBUF_SIMPLE)) return -1;
    int fits = header.len == SEGMENT_HEADER_SIZE;
    if (fits) memcpy(to, header.buf, SEGMENT_HEADER_SIZE);
    PyBuffer_Release(&header);
    if (!fits) PyErr_SetString(PyExc_ValueError, "not a segment header");
    return fits ? 0 : -1;
}

static int get_map(PyObject *from, Py_buffer *map) {
    return get_aligned(from, PyBUF_WRITABLE, SEGMENT_HEADER_SIZE, "segment is shorter than its header", map);
}

static uint64_t space_in(const Py_buffer *segment) { return (uint64_t)segment->len - SEGMENT_HEADER_SIZE; }

PyObject *py_prepare_next(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    PreparedSegment next = {0};
    uint64_t digits, directory;
    if (writer_check_open(self) || check_count("prepare_next", count, 12) || unsigned_from(args[3], UINT64_MAX, &next.device) ||
        unsigned_from(args[4], UINT64_MAX, &next.inode) || unsigned_from(args[7], UINT64_MAX, &digits) ||
        unsigned_from(args[8], UINT64_MAX, &next.window) || unsigned_from(args[11], INT_MAX, &directory) || check_path(args[5]) || check_path(args[6]))
        return NULL;
    uint64_t length = (uint64_t)PyBytes_GET_SIZE(args[6]);
    if (length < SEGMENT_DIGITS || digits > length - SEGMENT_DIGITS) {
        PyErr_SetString(PyExc_ValueError, "digits are not inside the path");
        return NULL;
    }
    if (get_header(args[2], next.header) || get_map(args[1], &next.map)) return NULL;
    next.allocated = space_in(&next.map);
    next.digits = (Py_ssize_t)digits;
    next.source = Py_NewRef(args[5]);
    next.target = PyBytes_FromStringAndSize(PyBytes_AS_STRING(args[6]), (Py_ssize_t)length); /* a private copy, which is written to */
    next.after_roll = Py_NewRef(args[9]);
    next.watch = args[10] == Py_None ? NULL : Py_NewRef(args[10]);
    /* A duplicate, which this object owns: closing the channel closes the original, and its number may be reused. */
    next.directory = next.target && !self->pending_roll ? fcntl((int)directory, F_DUPFD_CLOEXEC, 0) : -1;
    if (next.directory < 0) { /* no descriptors left: the roll takes the slow path */
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

/* Call Python code in the middle of a roll. It may run anything, so check that the same segment is still bound. */
static int call_inside(const Writer *self, PyObject *callable, const char *argument) {
    const void *owner = self->segment.obj, *segment = self->segment.buf;
    PyObject *done = argument ? PyObject_CallFunction(callable, "s", argument) : PyObject_CallNoArgs(callable);
    if (!done) return -1;
    Py_DECREF(done);
    if (self->overflow && self->segment.obj == owner && self->segment.buf == segment) return 0;
    PyErr_SetString(PyExc_RuntimeError, "the writer was changed meanwhile");
    return -1;
}

/* For tests, which raise or exit at a step. */
static int watched(const Writer *self, const PreparedSegment *next, const char *step) {
    return next->watch ? call_inside(self, next->watch, step) : 0;
}

/* Whether a record of this size is the first of the next segment, and a fast roll is possible. */
static int is_simple(Writer *self, const PreparedSegment *next, uint64_t size, uint64_t now) {
    if (!self->segment.obj || self->deferred || self->limited || !writer_is_current(self) || !writer_refresh_tail(self) ||
        !self->alone || self->tail_end <= self->begin)
        return 0;
    /* A closed window means that capacity must be reserved first. */
    if (!writer_fits_window(self, self->tail_end, 0)) return 0;
    uint64_t used = self->tail_end - self->begin, space = space_in(&self->segment), next_space = space_in(&next->map);
    if (used > space || size <= space - used || size > next_space) return 0;
    /* No offset or sequence in it may pass the largest one; a message takes more than a byte. */
    if (next_space > LARGEST_OFFSET - self->tail_end || next_space > LARGEST_OFFSET - self->tail_sequence) return 0;
    /* If the clock went back, the slow path computes the creation time: times in the log never go back. */
    return now >= self->latest && now >= get_u64((uint8_t *)self->segment.buf + SEGMENT_CREATED);
}

static void fill_header(const Writer *self, PreparedSegment *next, uint64_t now) {
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

static int is_there(const PreparedSegment *next) {
    struct stat found;
    return !fstatat(next->directory, PyBytes_AS_STRING(next->source), &found, AT_SYMLINK_NOFOLLOW) &&
           (uint64_t)found.st_dev == next->device && (uint64_t)found.st_ino == next->inode;
}

static void change(Writer *self) {
    uint8_t *at = (uint8_t *)self->control.buf + EPOCH;
    self->epoch = load_acquire_u32(at) + 1;
    store_release_u32(at, self->epoch);
}

/* 1: renamed; 0: certainly not renamed; -1: an exception, after which that is unknown. */
static int rename_next(const Writer *self, const PreparedSegment *next) {
    if (next->rename) return call_inside(self, next->rename, NULL) ? -1 : 1;
    return !renameat(next->directory, PyBytes_AS_STRING(next->source), next->directory, PyBytes_AS_STRING(next->target));
}

/* Exchange what belongs to the old segment and to the renamed one; the caller releases `next`, which runs Python code. */
static void bind_next(Writer *self, PreparedSegment *next) {
    Py_buffer before = self->segment;
    PyObject *after_roll = self->after_roll, *acknowledged = self->pending_roll;
    self->segment = next->map;
    self->begin = get_u64(next->header + SEGMENT_BEGIN);
    self->pending_roll = next->what;
    memcpy(self->pending_roll_header, next->header, SEGMENT_HEADER_SIZE);
    self->after_roll = next->after_roll;
    next->map = before;
    next->what = acknowledged;
    next->after_roll = after_roll;
    self->window_end = 0;
    self->next_indexed = self->latest = 0;
    self->storable_end = 0;
    self->ahead_from = 0;
    self->ahead_at = UINT64_MAX;
    store_release_u64((uint8_t *)self->control.buf + ALLOCATED_END, self->begin + next->allocated);
}

/* The roll: end of the old segment, header, rename, epoch. append/roll.py gives the reasons for this order. The caller
 * holds the writer lock, has filled the header, and publishes afterwards.
 * 1: the next segment is bound; 0: the rename failed, and nothing is changed; -1: an exception, and the caller rolls
 * back what was done. */
static int roll(Writer *self, PreparedSegment *next) {
    uint64_t begin = get_u64(next->header + SEGMENT_BEGIN);
    int finishes = self->segment.obj && self->begin < begin;
    if (watched(self, next, "end")) return -1;
    if (finishes) store_end(self, begin);
    int failed = watched(self, next, "header");
    if (!failed) {
        memcpy(next->map.buf, next->header, SEGMENT_HEADER_SIZE);
        failed = watched(self, next, "replace");
    }
    int renamed = failed ? 0 : rename_next(self, next);
    if (!renamed && finishes && self->segment.obj) store_end(self, 0);
    if (failed || renamed <= 0) return failed ? -1 : renamed;
    if (watched(self, next, "publish")) {
        if (self->overflow) change(self); /* so that the rollback finds the new name */
        return -1;
    }
    bind_next(self, next);
    change(self);
    return 1;
}

/* Append the first record of the next segment; the CRC of its payload is already computed. */
static enum appended fast_roll(Writer *self, const Payload *content, uint64_t *offset) {
    uint64_t size = RECORD_HEADER_SIZE + (uint64_t)content->length, now = exact_clock_ns();
    if (!writer_take_word(self)) return OVERFLOWS;
    if (!is_simple(self, &self->next, size, now)) {
        release_word((uint8_t *)self->control.buf + WRITER_LOCK);
        return OVERFLOWS;
    }
    PreparedSegment next = take_next(self);
    uint64_t space = space_in(&next.map), window = next.window < space ? next.window : space;
    int was_ahead = self->ahead_end > self->begin;
    *offset = self->tail_end;
    int rolled = watched(self, &next, "check") ? -1 : is_there(&next);
    if (rolled > 0) {
        fill_header(self, &next, now);
        rolled = roll(self, &next);
    }
    if (rolled > 0) {
        self->window_end = self->begin + (window > size ? window : size);
        self->ahead_end = was_ahead ? self->begin + space : 0;
        self->ahead_from = self->begin; /* its first pages were populated when it was prepared */
        if (was_ahead && self->ahead / 2 < space) self->ahead_at = self->begin + self->ahead / 2;
        writer_put_first(self, content);
    }
    release_word((uint8_t *)self->control.buf + WRITER_LOCK);
    release(&next);
    if (rolled <= 0) return rolled < 0 ? APPEND_FAILED : OVERFLOWS;
    slice_charge(size);
    return APPENDED;
}

PyObject *py_roll(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    PreparedSegment next = {0};
    if (writer_check_open(self) || check_count("roll", count, 5) || unsigned_from(args[3], UINT64_MAX, &next.allocated) ||
        get_header(args[2], next.header) || get_map(args[1], &next.map))
        return NULL;
    uint64_t begin = get_u64(next.header + SEGMENT_BEGIN), space = space_in(&next.map);
    if (next.allocated > space || begin > LARGEST_OFFSET || space > LARGEST_OFFSET - begin) {
        release_view(&next.map);
        PyErr_SetString(PyExc_ValueError, "segment is smaller than its disk space, or reaches beyond the largest offset");
        return NULL;
    }
    if (!PyCallable_Check(args[4])) {
        release_view(&next.map);
        PyErr_SetString(PyExc_TypeError, "rename must be callable");
        return NULL;
    }
    next.what = Py_NewRef(args[0]);
    next.rename = Py_NewRef(args[4]);
    int rolled = roll(self, &next);
    if (rolled > 0) self->alone = self->begin == self->pending;
    release(&next);
    if (rolled < 0) return NULL;
    forget_next(self);
    Py_RETURN_NONE;
}

/* If a test watches, use Python's slow path: the roll may end with an exception that requires a cleanup. */
enum appended writer_fast_roll(Writer *self, Payload *content, uint64_t *offset) {
    if (!self->next.what || self->next.watch) return OVERFLOWS;
    content->crc = crc32c(0, content->data, content->length);
    enum appended appended = fast_roll(self, content, offset);
    return appended == APPENDED && writer_wake_armed(self) ? APPEND_FAILED : appended;
}

PyObject *py_fast_roll(PyObject *op, PyObject *payload) {
    Writer *self = (Writer *)op;
    if (!PyBytes_Check(payload)) return PyErr_Format(PyExc_TypeError, "payload must be bytes, not %.100s", Py_TYPE(payload)->tp_name);
    uint64_t length = (uint64_t)PyBytes_GET_SIZE(payload), offset;
    if (!self->next.what || length > self->max_payload) Py_RETURN_NONE;
    const char *data = PyBytes_AS_STRING(payload);
    const Payload content = {.data = data, .length = (uint32_t)length, .crc = crc32c(0, data, length)};
    switch (fast_roll(self, &content, &offset)) {
    case APPENDED: return PyLong_FromUnsignedLongLong(offset);
    case APPEND_FAILED: return NULL;
    case OVERFLOWS: break;
    }
    Py_RETURN_NONE;
}

/* Not in the call that rolls, which takes long enough. */
int writer_call_after_roll(Writer *self) {
    PyObject *after_roll = self->after_roll;
    self->after_roll = NULL; /* first: the callback may append */
    PyObject *done = PyObject_CallNoArgs(after_roll);
    Py_DECREF(after_roll);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

PyObject *get_pending_roll(PyObject *op, void *Py_UNUSED(closure)) {
    const Writer *self = (Writer *)op;
    if (!self->pending_roll) Py_RETURN_NONE;
    return Py_BuildValue("Oy#", self->pending_roll, self->pending_roll_header, (Py_ssize_t)SEGMENT_HEADER_SIZE);
}

PyObject *py_acknowledge_roll(PyObject *op, PyObject *Py_UNUSED(none)) {
    Py_CLEAR(((Writer *)op)->pending_roll);
    Py_RETURN_NONE;
}
