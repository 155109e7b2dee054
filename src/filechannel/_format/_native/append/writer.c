/* Appending to the active segment. The reference, which explains the protocol, is append/writer.py.
 *
 * The common case is one call: take the writer lock, copy after the tail, publish, release the lock, wake waiters. All
 * other cases (the window is used up, the index needs an entry, the channel is sealed, the writer lock is held) go to
 * `overflow`, which is Log.append and may block. */
#include "core.h"
#include <errno.h>
#include <limits.h>

#define APPENDS_PER_CLOCK_READ 16
#define PAGE 4096u
#define FIRST_INDEX_ENTRIES 16
#define SPINS 400 /* some microseconds: less than a call into Python takes */

PyTypeObject *WriterType;

static uint8_t *words(const Writer *self) { return (uint8_t *)self->control.buf; }
static uint8_t *tail(const Writer *self) { return words(self) + (self->deferred ? APPEND_TAIL : WRITE_TAIL); }

int writer_check_open(const Writer *self) {
    if (self->overflow) return 0;
    raise_closed();
    return -1;
}

/* Load the tail, which another writer may have moved. Returns 0 if no slot matches the offset, or it is too large. */
int writer_refresh_tail(Writer *self) {
    uint8_t *at = tail(self);
    uint64_t end = load_acquire_u64(at);
    if (end == self->tail_end && self->tail_slot >= 0) return 1;
    for (int slot = 0; slot < 2; slot++) {
        const uint8_t *from = at + (slot ? TAIL_SLOT_1 : TAIL_SLOT_0);
        if (get_u64(from) != end || crc32c(0, from, 24) != get_u32(from + 24)) continue;
        if (end > LARGEST_OFFSET || get_u64(from + 8) > LARGEST_OFFSET || get_u64(from + 16) > LARGEST_OFFSET) continue;
        if (end != self->tail_end) self->alone = 0;
        self->tail_slot = slot;
        self->tail_end = end;
        self->tail_sequence = get_u64(from + 8);
        return 1;
    }
    return 0;
}

/* Fill the free slot, then move the offset: a reader that sees the offset finds its slot complete. */
static void publish(Writer *self, uint64_t end, uint64_t sequence) {
    uint8_t *at = tail(self);
    int slot = 1 - self->tail_slot;
    uint8_t *to = at + (slot ? TAIL_SLOT_1 : TAIL_SLOT_0);
    put_u64(to, end);
    put_u64(to + 8, sequence);
    put_u64(to + 16, self->begin);
    put_u32(to + 24, crc32c(0, to, 24));
    store_release_u64(at, end);
    self->tail_slot = slot;
    self->tail_end = self->pending = end;
    self->tail_sequence = self->pending_sequence = sequence;
}

/* Wake the receivers that announced that they wait. The caller has issued a full fence after publishing. */
int writer_wake_armed(Writer *self) {
    uint8_t *wake = words(self) + WAKE;
    if (!(load_acquire_u32(wake) & (WAKE_THREADS | WAKE_LOOPS))) return 0;
    uint32_t woken = wake_waiters(wake);
    if (woken) self->appends_until_clock = 0;
    if (!(woken & WAKE_LOOPS)) return 0;
    PyObject *notify = Py_NewRef(self->notify); /* which may close this writer */
    PyObject *done = PyObject_CallNoArgs(notify);
    Py_DECREF(notify);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static uint8_t *record_at(const Writer *self, uint64_t offset) {
    return (uint8_t *)self->segment.buf + SEGMENT_HEADER_SIZE + (offset - self->begin);
}

/* Remember a record for the index. Its time is taken before it is visible, so no record before it is newer. Also called
 * without the GIL, hence the raw memory functions. */
static void add_index_entry(Writer *self, uint64_t offset, uint64_t sequence) {
    self->next_indexed = offset > UINT64_MAX - INDEX_BYTES ? UINT64_MAX : offset + INDEX_BYTES;
    uint64_t now = exact_clock_ns();
    self->latest = now < self->latest ? UINT64_MAX : now;
    if (self->index_count == self->entries_capacity) {
        unsigned int more = self->entries_capacity ? 2 * self->entries_capacity : FIRST_INDEX_ENTRIES;
        PendingEntry *grown = more > MOST_INDEX_ENTRIES ? NULL : PyMem_RawRealloc(self->index_entries, more * sizeof *grown);
        if (!grown) return;
        self->index_entries = grown;
        self->entries_capacity = more;
    }
    self->index_entries[self->index_count++] = (PendingEntry){offset, sequence, now};
}

static void put_record(const Writer *self, uint64_t offset, uint32_t word, uint32_t crc, const char *payload) {
    uint8_t *at = record_at(self, offset);
    put_u32(at, word);
    put_u32(at + 4, record_crc(crc, word, offset));
    copy_payload_bytes(at + RECORD_HEADER_SIZE, payload, word & LENGTH_MASK);
}

/* Whether `size` more bytes after an offset lie inside the window. */
int writer_fits_window(const Writer *self, uint64_t offset, uint64_t size) {
    return offset >= self->begin && offset <= self->window_end && size <= self->window_end - offset;
}

/* Whether `count` more messages are within the limit, and the limit is still valid: a consumer that seeks back takes
 * capacity away. */
static int within_limit(const Writer *self, uint64_t sequence, uint64_t count) {
    return sequence <= self->sequence_end && count <= self->sequence_end - sequence;
}
static int fits_limit(const Writer *self, uint64_t count) {
    return !self->limited || (load_acquire_u32(words(self) + REGISTRATIONS) == self->registrations &&
                              within_limit(self, self->tail_sequence, count));
}

/* The index needs an entry per second. Reading the clock costs as much as a small record, so it is read once in
 * APPENDS_PER_CLOCK_READ appends. If messages are rarer than that, a receiver is waiting for them, and the append that
 * wakes it makes the next one read the clock. */
static int index_is_due(Writer *self) {
    if (self->appends_until_clock--) return 0;
    self->appends_until_clock = APPENDS_PER_CLOCK_READ - 1;
    if (wall_clock_ns() < self->index_due) return 0;
    self->appends_until_clock = 0;
    return 1;
}

/* The lock holder needs it for a fraction of a microsecond, unless it was preempted: then sleeping is better. */
int writer_take_word(Writer *self) {
    uint8_t *at = words(self) + WRITER_LOCK;
    for (int i = 0; i < SPINS; i++) {
        if (swap_if_u32(at, 0, self->owner)) return 1;
        for (; i < SPINS && load_acquire_u32(at); i++) relax();
    }
    return 0;
}

int writer_is_current(const Writer *self) {
    return load_acquire_u32(words(self) + EPOCH) == self->epoch &&
           load_acquire_u32(words(self) + STATE) == (self->deferred ? STATE_DEFERRED : 0);
}

/* Under FSYNC the pages that are written next were flushed a moment ago, which made them read-only. A store then calls
 * the file system, and if the file system has shut down, the store kills the process. So after every flush, while a
 * flush is running, and when the kernel may have written pages back by itself, the pages are made writable first; if
 * that fails, the process survives. This costs a system call per message only while a flush is running. */
/* The control page is checked first, as taking the writer lock is a store. */
static int words_storable(Writer *self) {
    return !self->deferred || can_store_word(words(self) + WRITER_LOCK, words(self) + FLUSHES, &self->words_check);
}
/* The caller has the writer lock, and `size` bytes at `offset` lie inside the window of the bound segment. */
static int segment_storable(Writer *self, uint64_t offset, uint64_t size) {
    if (!self->deferred || !size) return 1;
    uint32_t flushes = load_acquire_u32(words(self) + FLUSHES);
    uint64_t now = wall_clock_ns(), end = offset + size;
    int is_new = flushes != self->segment_check.flushes || (flushes & FLUSHING_SEGMENTS) || end > self->storable_end;
    if (!is_new && store_check_is_valid(&self->segment_check, now)) return 1;
    const uint8_t *at = record_at(self, offset);
    if (!can_store(at, size)) return 0;
    self->segment_check = (StoreCheck){flushes, now + CHECK_VALID_NS};
    self->storable_end = end + (-((uintptr_t)at + size) & (PAGE - 1)); /* the rest of the last page */
    return 1;
}

/* Take the writer lock and check that `count` more records of `size` bytes are the common case; 0: use overflow. */
static int enter(Writer *self, uint64_t size, uint64_t count) {
    if (!words_storable(self) || !writer_take_word(self)) return 0;
    if (self->segment.obj && writer_is_current(self) && writer_refresh_tail(self) && writer_fits_window(self, self->tail_end, size) &&
        fits_limit(self, count) && !index_is_due(self) && segment_storable(self, self->tail_end, size)) {
        /* Stored before the first byte is written: the next lock holder clears up to here if this process dies. */
        store_release_u64(words(self) + RESERVED_END, self->tail_end + size);
        __atomic_thread_fence(__ATOMIC_RELEASE);
        return 1;
    }
    release_word(words(self) + WRITER_LOCK);
    return 0;
}

/* Let another thread populate the next pages, long before the tail reaches them. */
static int populate_next(Writer *self, uint64_t offset) {
    uint64_t start = self->ahead_from > offset ? self->ahead_from : offset;
    uint64_t stop = self->ahead_end;
    if (offset < stop && self->ahead < stop - offset) stop = offset + self->ahead;
    self->ahead_at = stop < self->ahead_end ? stop - self->ahead / 2 : UINT64_MAX;
    if (start >= stop) return 0;
    self->ahead_from = stop;
    return populate_later(self->segment.obj, SEGMENT_HEADER_SIZE + start - self->begin, stop - start);
}

static enum appended leave(Writer *self, uint64_t end, uint64_t sequence) {
    uint64_t start = self->tail_end;
    publish(self, end, sequence);
    release_word(words(self) + WRITER_LOCK);
    slice_charge(end - start);
    if (end >= self->ahead_at && populate_next(self, end)) PyErr_Clear(); /* populating is only an optimization */
    if (!self->deferred && writer_wake_armed(self)) return APPEND_FAILED;
    return self->after_roll && writer_call_after_roll(self) ? APPEND_FAILED : APPENDED;
}

/* The first record of a segment that is bound. The caller wakes waiters, after it has released the writer lock. */
void writer_put_first(Writer *self, const Payload *content) {
    uint64_t end = self->tail_end + RECORD_HEADER_SIZE + content->length;
    store_release_u64(words(self) + RESERVED_END, end);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    add_index_entry(self, self->tail_end, self->tail_sequence);
    put_record(self, self->tail_end, content->length, content->crc, content->data);
    publish(self, end, self->tail_sequence + 1);
}

/* Avoids useless work, as the tail only grows. `enter` checks again with the writer lock held. */
static int may_fit(const Writer *self, uint64_t size) {
    return size && writer_fits_window(self, load_acquire_u64(tail(self)), size);
}

enum appended writer_append(Writer *self, Payload *contents, size_t count, uint64_t *offset) {
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (contents[i].length > self->max_payload) return OVERFLOWS;
        total += RECORD_HEADER_SIZE + contents[i].length;
    }
    if (!may_fit(self, total)) return count == 1 ? writer_fast_roll(self, contents, offset) : OVERFLOWS;
    for (size_t i = 0; i < count; i++) contents[i].crc = crc32c(0, contents[i].data, contents[i].length);
    if (!enter(self, total, count)) return OVERFLOWS;
    uint64_t at = *offset = self->tail_end;
    for (size_t i = 0; i < count; i++) {
        if (at >= self->next_indexed) add_index_entry(self, at, self->tail_sequence + i);
        put_record(self, at, contents[i].length | (i + 1 < count ? BATCH_CONTINUES : 0), contents[i].crc, contents[i].data);
        at += RECORD_HEADER_SIZE + contents[i].length;
    }
    return leave(self, at, self->tail_sequence + count);
}

PyObject *payloads_as_bytes(const Payload *contents, PyObject *const *owners, size_t count) {
    PyObject *payloads = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; payloads && i < count; i++) {
        PyObject *payload =
            owners[i] ? Py_NewRef(owners[i]) : PyBytes_FromStringAndSize(contents[i].data, (Py_ssize_t)contents[i].length);
        if (payload)
            PyList_SET_ITEM(payloads, (Py_ssize_t)i, payload);
        else
            Py_CLEAR(payloads);
    }
    return payloads;
}

/* `close` releases the callback, perhaps while it runs: hold a reference. */
static PyObject *call_overflow(Writer *self, PyObject *payloads) {
    if (writer_check_open(self)) return NULL;
    PyObject *overflow = Py_NewRef(self->overflow);
    PyObject *offset = PyObject_CallOneArg(overflow, payloads);
    Py_DECREF(overflow);
    return offset;
}

PyObject *writer_overflow(Writer *self, const Payload *contents, PyObject *const *owners, size_t count) {
    PyObject *payloads = payloads_as_bytes(contents, owners, count);
    PyObject *offset = payloads ? call_overflow(self, payloads) : NULL;
    Py_XDECREF(payloads);
    return offset;
}

static int check_payloads(PyObject *payloads) {
    if (!PyList_CheckExact(payloads)) {
        PyErr_SetString(PyExc_TypeError, "payloads must be a list of bytes");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(payloads); i++)
        if (!PyBytes_Check(PyList_GET_ITEM(payloads, i))) {
            PyErr_Format(PyExc_TypeError, "payload %zd must be bytes", i);
            return -1;
        }
    return 0;
}

static int check_words(PyObject *payloads, uint64_t flags) {
    int fit = !(flags & ~(uint64_t)(BATCH_CONTINUES | CONTROL_RECORD));
    for (Py_ssize_t i = 0; fit && i < PyList_GET_SIZE(payloads); i++)
        fit = PyBytes_GET_SIZE(PyList_GET_ITEM(payloads, i)) <= (Py_ssize_t)LENGTH_MASK;
    if (!fit) PyErr_SetString(PyExc_ValueError, "payload or flags do not fit the word");
    return fit ? 0 : -1;
}

static enum appended fast_roll_with(Writer *self, PyObject *payload, uint64_t *offset) {
    Payload content = {.data = PyBytes_AS_STRING(payload), .length = (uint32_t)PyBytes_GET_SIZE(payload)};
    return writer_fast_roll(self, &content, offset);
}

/* The same as writer_append for a list of bytes. Nothing in between runs Python code, so the payloads need no
 * owners. */
static enum appended append_bytes(Writer *self, PyObject *payloads, uint64_t *offset) {
    Py_ssize_t count = PyList_GET_SIZE(payloads);
    uint64_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t length = (uint64_t)PyBytes_GET_SIZE(PyList_GET_ITEM(payloads, i));
        if (length > self->max_payload) return OVERFLOWS;
        total += RECORD_HEADER_SIZE + length;
    }
    if (!may_fit(self, total)) return count == 1 ? fast_roll_with(self, PyList_GET_ITEM(payloads, 0), offset) : OVERFLOWS;
    uint32_t *crcs = PyMem_Malloc((size_t)count * sizeof *crcs);
    if (!crcs) return PyErr_NoMemory(), APPEND_FAILED;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *payload = PyList_GET_ITEM(payloads, i);
        crcs[i] = crc32c(0, PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload));
    }
    enum appended appended = OVERFLOWS;
    if (enter(self, total, (uint64_t)count)) {
        uint64_t at = *offset = self->tail_end;
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *payload = PyList_GET_ITEM(payloads, i);
            uint32_t length = (uint32_t)PyBytes_GET_SIZE(payload);
            if (at >= self->next_indexed) add_index_entry(self, at, self->tail_sequence + (uint64_t)i);
            put_record(self, at, length | (i + 1 < count ? BATCH_CONTINUES : 0), crcs[i], PyBytes_AS_STRING(payload));
            at += RECORD_HEADER_SIZE + length;
        }
        appended = leave(self, at, self->tail_sequence + (uint64_t)count);
    }
    PyMem_Free(crcs);
    return appended;
}

PyObject *writer_append_list(Writer *self, PyObject *payloads) {
    uint64_t offset;
    switch (append_bytes(self, payloads, &offset)) {
    case APPENDED: return PyLong_FromUnsignedLongLong(offset);
    case APPEND_FAILED: return NULL;
    case OVERFLOWS: break;
    }
    PyObject *own = PyList_GetSlice(payloads, 0, PyList_GET_SIZE(payloads)); /* Python code may change the caller's list */
    PyObject *result = own ? call_overflow(self, own) : NULL;
    Py_XDECREF(own);
    return result;
}

static PyObject *append_list(Writer *self, PyObject *payloads) {
    return check_payloads(payloads) ? NULL : writer_append_list(self, payloads);
}

static PyObject *py_append(PyObject *self, PyObject *payload) {
    if (!PyBytes_Check(payload)) return PyErr_Format(PyExc_TypeError, "payload must be bytes, not %.100s", Py_TYPE(payload)->tp_name);
    PyObject *payloads = PyList_New(1);
    if (!payloads) return NULL;
    PyList_SET_ITEM(payloads, 0, Py_NewRef(payload));
    PyObject *offset = append_list((Writer *)self, payloads);
    Py_DECREF(payloads);
    return offset;
}

static PyObject *py_append_all(PyObject *self, PyObject *payloads) { return append_list((Writer *)self, payloads); }

/* --- The steps of Log.append; the caller holds the writer lock -------------------------------------------- */

static PyObject *py_start(PyObject *op, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)op;
    if (writer_check_open(self)) return NULL;
    self->tail_slot = -1;
    if (!writer_refresh_tail(self)) {
        PyErr_SetString(PyExc_ValueError, "no tail slot agrees with the offset");
        return NULL;
    }
    self->pending = self->tail_end;
    self->pending_sequence = self->tail_sequence;
    Py_RETURN_NONE;
}

static PyObject *py_change(PyObject *op, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)op;
    if (writer_check_open(self)) return NULL;
    self->epoch = load_acquire_u32(words(self) + EPOCH) + 1;
    store_release_u32(words(self) + EPOCH, self->epoch);
    Py_RETURN_NONE;
}


static PyObject *raise_not_storable(void) {
    errno = EIO;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *py_write(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    uint64_t index, flags;
    /* The list last: converting the other arguments may run Python code that changes it. */
    if (check_count("write", count, 3) || unsigned_from(args[1], UINT64_MAX, &index) ||
        unsigned_from(args[2], UINT64_MAX, &flags) || check_payloads(args[0]) || check_words(args[0], flags))
        return NULL;
    uint64_t total = (uint64_t)PyList_GET_SIZE(args[0]);
    /* Stored before the first byte is written: the next lock holder clears up to here if this process dies. */
    if (self->segment.obj && writer_fits_window(self, self->pending, 0)) {
        uint64_t space = self->window_end - self->pending, need = 0;
        for (uint64_t i = index; i < total && need < space; i++)
            need += RECORD_HEADER_SIZE + (uint64_t)PyBytes_GET_SIZE(PyList_GET_ITEM(args[0], (Py_ssize_t)i));
        if (need > space) need = space;
        if (!words_storable(self) || !segment_storable(self, self->pending, need)) return raise_not_storable();
        store_release_u64(words(self) + RESERVED_END, self->pending + need);
        __atomic_thread_fence(__ATOMIC_RELEASE);
    }
    for (; index < total && self->segment.obj; index++) {
        PyObject *payload = PyList_GET_ITEM(args[0], (Py_ssize_t)index);
        uint64_t length = (uint64_t)PyBytes_GET_SIZE(payload), size = RECORD_HEADER_SIZE + length;
        if (!writer_fits_window(self, self->pending, size)) break;
        if (self->limited && !within_limit(self, self->pending_sequence, !(flags & CONTROL_RECORD))) break;
        uint32_t word = (uint32_t)length | (uint32_t)flags | (index + 1 < total ? BATCH_CONTINUES : 0);
        if (self->pending >= self->next_indexed) add_index_entry(self, self->pending, self->pending_sequence);
        put_record(self, self->pending, word, crc32c(0, PyBytes_AS_STRING(payload), length), PyBytes_AS_STRING(payload));
        self->pending += size;
        self->pending_sequence += !(flags & CONTROL_RECORD);
    }
    return PyLong_FromUnsignedLongLong(index);
}

/* Without the GIL: a thread that holds the writer lock and the log's mutex is alone here. */
static enum record_state copy_records(Writer *self, const uint8_t *base, uint64_t *position, uint64_t stop, uint64_t offset, uint32_t flags) {
    uint64_t first = *position;
    while (*position < stop) {
        const uint8_t *at = base + *position;
        if (stop - *position < RECORD_HEADER_SIZE) return RECORD_CUT;
        uint32_t length = get_u32(at); /* a word without flags: the batch flags are set here */
        uint64_t size = RECORD_HEADER_SIZE + (uint64_t)length, end = *position + size;
        if (length > LENGTH_MASK || stop - *position < size) return RECORD_CUT;
        if (!writer_fits_window(self, self->pending, size)) break;
        if (self->limited && !within_limit(self, self->pending_sequence, 1)) break;
        uint32_t crc = crc32c(0, at + RECORD_HEADER_SIZE, length);
        if (record_crc(crc, length, offset + (*position - first)) != get_u32(at + 4)) return RECORD_BAD;
        if (self->pending >= self->next_indexed) add_index_entry(self, self->pending, self->pending_sequence);
        put_record(self, self->pending, length | (end < stop ? BATCH_CONTINUES : flags), crc, (const char *)at + RECORD_HEADER_SIZE);
        self->pending += size;
        self->pending_sequence++;
        *position = end;
    }
    return RECORD_OK;
}

static PyObject *py_copy(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    uint64_t position, stop, offset, flags;
    Py_buffer view;
    if (check_count("copy", count, 5) || unsigned_from(args[1], UINT64_MAX, &position) || unsigned_from(args[2], UINT64_MAX, &stop) ||
        unsigned_from(args[3], UINT64_MAX, &offset) || unsigned_from(args[4], UINT64_MAX, &flags) ||
        PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE))
        return NULL;
    enum record_state state = RECORD_OK;
    if (position > stop || stop > (uint64_t)view.len)
        PyErr_SetString(PyExc_ValueError, "range is not inside the buffer");
    else if (flags & ~(uint64_t)BATCH_CONTINUES)
        PyErr_SetString(PyExc_ValueError, "payload or flags do not fit the word");
    else if (self->segment.obj) {
        if (writer_fits_window(self, self->pending, 0)) {
            uint64_t space = self->window_end - self->pending, need = stop - position;
            if (!words_storable(self) || !segment_storable(self, self->pending, need < space ? need : space)) {
                PyBuffer_Release(&view);
                return raise_not_storable();
            }
            store_release_u64(words(self) + RESERVED_END, self->window_end);
            __atomic_thread_fence(__ATOMIC_RELEASE);
        }
        Py_BEGIN_ALLOW_THREADS
        state = copy_records(self, view.buf, &position, stop, offset, (uint32_t)flags);
        Py_END_ALLOW_THREADS
        if (state != RECORD_OK) PyErr_SetString(PyExc_ValueError, record_reason(state));
    }
    PyBuffer_Release(&view);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(position);
}

static PyObject *py_longest(PyObject *Py_UNUSED(op), PyObject *payloads) {
    if (check_payloads(payloads)) return NULL;
    Py_ssize_t longest = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(payloads); i++) {
        Py_ssize_t length = PyBytes_GET_SIZE(PyList_GET_ITEM(payloads, i));
        if (length > longest) longest = length;
    }
    return PyLong_FromSsize_t(longest);
}

static PyObject *py_publish(PyObject *op, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)op;
    if (writer_check_open(self)) return NULL;
    if (self->tail_slot < 0) {
        PyErr_SetString(PyExc_RuntimeError, "publish() without start()");
        return NULL;
    }
    if (!words_storable(self)) return raise_not_storable();
    publish(self, self->pending, self->pending_sequence);
    store_release_u64(words(self) + RESERVED_END, self->pending);
    Py_RETURN_NONE;
}

static PyObject *py_wake_receivers(PyObject *op, PyObject *Py_UNUSED(none)) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (writer_wake_armed((Writer *)op)) return NULL;
    Py_RETURN_NONE;
}

static void unbind(Writer *self) {
    self->window_end = 0;
    self->index_count = 0;
    self->ahead_at = UINT64_MAX;
    forget_next(self);
    Py_CLEAR(self->pending_roll);
    Py_CLEAR(self->after_roll);
    release_view(&self->segment);
}

static PyObject *py_bind(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    uint64_t begin;
    Py_buffer segment;
    if (writer_check_open(self) || check_count("bind", count, 2) || unsigned_from(args[1], UINT64_MAX, &begin) ||
        get_aligned(args[0], PyBUF_WRITABLE, SEGMENT_HEADER_SIZE, "segment is shorter than its header", &segment))
        return NULL;
    unbind(self);
    self->segment = segment;
    self->begin = begin;
    self->epoch = load_acquire_u32(words(self) + EPOCH);
    self->next_indexed = 0;
    self->latest = 0;
    self->alone = begin == self->pending;
    self->storable_end = 0;
    self->ahead_from = 0;
    Py_RETURN_NONE;
}

static PyObject *py_open_window(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    uint64_t end, due;
    if (check_count("open_window", count, 2) || unsigned_from(args[0], UINT64_MAX, &end) ||
        unsigned_from(args[1], UINT64_MAX, &due))
        return NULL;
    if (!self->segment.obj || end < self->begin ||
        end - self->begin > (uint64_t)self->segment.len - SEGMENT_HEADER_SIZE) {
        PyErr_SetString(PyExc_ValueError, "window is not inside the segment");
        return NULL;
    }
    self->window_end = end;
    self->index_due = due;
    self->appends_until_clock = 0;
    self->limited = 0;
    Py_RETURN_NONE;
}

static PyObject *py_limit_window(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    uint64_t sequence_end, registrations;
    if (check_count("limit_window", count, 2) || unsigned_from(args[0], UINT64_MAX, &sequence_end) ||
        unsigned_from(args[1], UINT32_MAX, &registrations))
        return NULL;
    self->sequence_end = sequence_end;
    self->registrations = (uint32_t)registrations;
    self->limited = 1;
    Py_RETURN_NONE;
}

static PyObject *py_populate_ahead(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Writer *self = (Writer *)op;
    uint64_t end, distance;
    if (check_count("populate_ahead", count, 2) || unsigned_from(args[0], UINT64_MAX, &end) ||
        unsigned_from(args[1], UINT64_MAX, &distance))
        return NULL;
    if (!self->segment.obj || self->pending < self->begin || end < self->pending ||
        end - self->begin > (uint64_t)self->segment.len - SEGMENT_HEADER_SIZE) {
        PyErr_SetString(PyExc_ValueError, "end is not inside the segment, or before what is written");
        return NULL;
    }
    self->ahead = distance;
    self->ahead_end = end;
    if (self->ahead_from > self->pending && self->ahead_from - self->pending > distance / 2) {
        self->ahead_at = self->ahead_from - distance / 2; /* enough pages are present for now */
        Py_RETURN_NONE;
    }
    if (populate_next(self, self->pending)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_index_next(PyObject *op, PyObject *Py_UNUSED(none)) {
    ((Writer *)op)->next_indexed = 0;
    Py_RETURN_NONE;
}

static PyObject *py_take_index_entries(PyObject *op, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)op;
    PyObject *taken = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(self->index_count * sizeof(PendingEntry)));
    if (!taken) return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(taken);
    for (const PendingEntry *from = self->index_entries; from < self->index_entries + self->index_count; from++, to += sizeof *from) {
        put_u64(to, from->offset);
        put_u64(to + 8, from->sequence);
        put_u64(to + 16, from->time);
    }
    self->index_count = 0;
    return taken;
}

static PyObject *py_unbind(PyObject *op, PyObject *Py_UNUSED(none)) {
    unbind((Writer *)op);
    Py_RETURN_NONE;
}

/* Appending overflows from now on: nothing fits a window that begins after everything. */
static PyObject *py_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    Writer *self = (Writer *)op;
    if (!self->overflow) Py_RETURN_NONE;
    unbind(self);
    self->begin = UINT64_MAX;
    Py_buffer control = self->control;
    self->control.obj = NULL;
    self->control.buf = (void *)zeros;
    release_view(&control);
    Py_CLEAR(self->overflow);
    Py_CLEAR(self->notify);
    Py_RETURN_NONE;
}

static PyObject *py_defer(PyObject *op, PyObject *value) {
    Writer *self = (Writer *)op;
    int deferred = PyObject_IsTrue(value);
    if (deferred < 0) return NULL;
    self->deferred = (char)deferred;
    self->tail_slot = -1;
    Py_RETURN_NONE;
}

/* tp_new sets all fields, and they are never removed: no method sees an object without them. */
static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *control, *owner, *most, *overflow, *notify;
    uint64_t owner_word, max_payload;
    Py_buffer view;
    if (check_no_keywords("Writer", keywords) ||
        !PyArg_ParseTuple(args, "OOOOO:Writer", &control, &owner, &most, &overflow, &notify) ||
        unsigned_from(owner, UINT32_MAX, &owner_word) || unsigned_from(most, UINT64_MAX, &max_payload) ||
        get_aligned(control, PyBUF_WRITABLE, CONTROL_SIZE, "control page is too short", &view))
        return NULL;
    Writer *self = (Writer *)type->tp_alloc(type, 0);
    if (!self) {
        PyBuffer_Release(&view);
        return NULL;
    }
    self->control = view;
    self->owner = (uint32_t)owner_word;
    self->max_payload = max_payload < LENGTH_MASK ? max_payload : LENGTH_MASK;
    self->tail_slot = -1;
    self->ahead_at = UINT64_MAX;
    self->overflow = Py_NewRef(overflow);
    self->notify = Py_NewRef(notify);
    return (PyObject *)self;
}

/* There is no tp_clear: as with a tuple, a cycle through a Writer also goes through an object that was created
 * later. */
static int writer_traverse(PyObject *op, visitproc visit, void *arg) {
    Writer *self = (Writer *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->overflow);
    Py_VISIT(self->notify);
    Py_VISIT(self->next.what);
    Py_VISIT(self->next.after_roll);
    Py_VISIT(self->next.watch);
    Py_VISIT(self->pending_roll);
    Py_VISIT(self->after_roll);
    /* Not the buffers: the collector would clear a memoryview that still exports to us, and releasing it would
     * crash. */
    return 0;
}

static void writer_dealloc(PyObject *op) {
    Writer *self = (Writer *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    unbind(self);
    release_view(&self->control);
    PyMem_RawFree(self->index_entries);
    Py_XDECREF(self->overflow);
    Py_XDECREF(self->notify);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *get_current(PyObject *op, void *Py_UNUSED(closure)) {
    const Writer *self = (Writer *)op;
    return PyBool_FromLong(self->segment.obj && writer_is_current(self));
}
static PyObject *get_pending(PyObject *op, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((Writer *)op)->pending);
}
static PyObject *get_pending_sequence(PyObject *op, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(((Writer *)op)->pending_sequence);
}
static PyObject *get_deferred(PyObject *op, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((Writer *)op)->deferred);
}
static PyObject *get_alone(PyObject *op, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((Writer *)op)->alone);
}

static PyMethodDef methods[] = {
    {"append", py_append, METH_O, "append($self, payload, /)\n--\n\n"
     "Append one record and return its offset; it is published unless `deferred`."},
    {"append_all", py_append_all, METH_O,
     "append_all($self, payloads, /)\n--\n\nAppend a list of payloads as one batch and return the first offset."},
    {"start", py_start, METH_NOARGS, "start($self, /)\n--\n\n"
     "Continue at the tail; `ValueError` if no tail slot matches. The caller has the writer lock."},
    {"change", py_change, METH_NOARGS,
     "change($self, /)\n--\n\n"
     "Make every other writer check again which segment is active, and how it is written to."},
    {"write", FAST(py_write), METH_FASTCALL,
     "write($self, payloads, index, flags, /)\n--\n\n"
     "Copy payloads from index on while they fit the window, unpublished; return the first index left."},
    {"copy", FAST(py_copy), METH_FASTCALL,
     "copy($self, buffer, position, stop, offset, flags, /)\n--\n\n"
     "Copy the records in a range as messages of a batch; the first record of the range has the offset *offset*. "
     "Copies while they fit the window, and does not publish them. Returns the position of the first record left. "
     "`ValueError` if a record does not validate."},
    {"longest", py_longest, METH_O, "longest($self, payloads, /)\n--\n\nReturn the length of the longest payload."},
    {"publish", py_publish, METH_NOARGS, "publish($self, /)\n--\n\n"
     "Move the tail past everything written, which makes it visible."},
    {"wake_receivers", py_wake_receivers, METH_NOARGS,
     "wake_receivers($self, /)\n--\n\n"
     "Wake threads that wait, and call notify if event loops wait. Do not call it with the writer lock held."},
    {"bind", FAST(py_bind), METH_FASTCALL,
     "bind($self, segment, begin, /)\n--\n\n"
     "Write into this map from now on; the window is closed until `open_window`."},
    {"open_window", FAST(py_open_window), METH_FASTCALL,
     "open_window($self, end, index_due, /)\n--\n\n"
     "Let the fast path write below *end* until the wall clock reaches *index_due*."},
    {"limit_window", FAST(py_limit_window), METH_FASTCALL,
     "limit_window($self, sequence_end, registrations, /)\n--\n\n"
     "Let the open window take only messages below a sequence, and none once `REGISTRATIONS` has changed."},
    {"index_next", py_index_next, METH_NOARGS, "index_next($self, /)\n--\n\nRemember the next record for the index."},
    {"take_index_entries", py_take_index_entries, METH_NOARGS,
     "take_index_entries($self, /)\n--\n\n"
     "Return the pending index entries and clear them: one record per 64 KiB. Each entry has the layout of the "
     "index, without checksum."},
    {"populate_ahead", FAST(py_populate_ahead), METH_FASTCALL,
     "populate_ahead($self, end, distance, /)\n--\n\n"
     "Have *distance* bytes ahead of the tail populated by another thread. Up to the offset *end*, "
     "until another segment is bound."},
    {"prepare_next", FAST(py_prepare_next), METH_FASTCALL,
     "prepare_next($self, what, map, header, device, inode, source, target, digits, window, after_roll, watch, directory, /)\n--\n\n"
     "Have a file ready for `fast_roll`, unless the last roll is not acknowledged yet."},
    {"forget_next", py_forget_next, METH_O, "forget_next($self, what, /)\n--\n\nRelease a prepared file."},
    {"fast_roll", py_fast_roll, METH_O,
     "fast_roll($self, payload, /)\n--\n\n"
     "Append the first record of the next segment, if the current one is full, and return its offset. Returns "
     "None, with nothing done, in any case that needs the slow path. The caller wakes waiters."},
    {"roll", FAST(py_roll), METH_FASTCALL,
     "roll($self, what, map, header, allocated, rename, /)\n--\n\n"
     "Roll to a file that *rename* gives its name; the window is closed. The caller holds the writer lock. "
     "*header* is complete, and says where the segment begins; the bound segment ends there, unless it is empty. "
     "If this raises, the caller rolls back."},
    {"acknowledge_roll", py_acknowledge_roll, METH_NOARGS, "acknowledge_roll($self, /)\n--\n\n"
     "Acknowledge the roll that `pending_roll` describes."},
    {"unbind", py_unbind, METH_NOARGS, "unbind($self, /)\n--\n\n"
     "Release the segment and forget its index entries; every append overflows from now on."},
    {"close", py_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "Release every map now or, if a thread is appending, when it is done. The caller has made sure that no "
     "thread is in any call other than `append`."},
    {"defer", py_defer, METH_O,
     "defer($self, deferred, /)\n--\n\n"
     "Move the append tail instead of the write tail, which readers see, or stop doing so."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef getset[] = {
    {"pending", get_pending, NULL, "Offset after everything written, published or not.", NULL},
    {"pending_sequence", get_pending_sequence, NULL, "Sequence that belongs to pending.", NULL},
    {"current", get_current, NULL, "Whether no process called `change` or sealed the channel since the segment was bound.", NULL},
    {"alone", get_alone, NULL, "Whether no other process has written to the segment since it was bound empty.", NULL},
    {"pending_roll", get_pending_roll, NULL, "The file of the last fast roll and its header, until that roll is acknowledged; else None.", NULL},
    {"deferred", get_deferred, NULL, "Whether publishing is left to the flush.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Writer(control, owner, max_payload, overflow, notify, /)\n--\n\nAppends records to the active segment."},
    {Py_tp_new, writer_new},         {Py_tp_traverse, writer_traverse}, {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, methods},        {Py_tp_getset, getset},            {0, NULL},
};
static PyType_Spec spec = {
    .name = "filechannel._format._core.Writer",
    .basicsize = sizeof(Writer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_writer(PyObject *module) { return (WriterType = add_type(module, &spec)) ? 0 : -1; }
