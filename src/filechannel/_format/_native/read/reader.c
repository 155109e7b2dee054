/* Reading and decoding records in order, with a cursor. The reference is read/reader.py, with read/log_cursor.py.
 *
 * A reader has an offset and may read up to `limit` without loading the shared words again. At `limit` it loads them;
 * at the end of the segment it calls `advance` for the next one.
 *
 * With ack tracking (`unacked` is not NULL) the cursor stores where the oldest unacknowledged message begins. To
 * redeliver a message, the reader moves to it for a moment; `front` is then where it resumes.
 *
 * In a group (`ring` is not NULL) the reader takes a message only if no other member claimed it first. */
#include "read/store_position.h"
#include "read/reader.h"
#include <errno.h>
#include <sched.h>

#define STORES_PER_CLOCK_READ 16
#define SLICE 0.01 /* seconds that a thread may spin without checking anything else */
#define BRIEFLY 5e-6 /* seconds; a sender at full speed needs less time than going to sleep and being woken takes */
#define MISSES 4     /* after so many waits in which that did not help, it is tried once in WAITS_PER_WATCH waits */
#define WAITS_PER_WATCH 16

int reader_enter(Reader *self) {
    const void *me = reader_thread();
    while (self->owner) { /* the GIL orders us: it is released only in decode, in a callback, or right here */
        if (self->owner == me) {
            PyErr_SetString(PyExc_RuntimeError, "the same thread is already reading from this receiver");
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals()) return -1;
    }
    self->owner = me;
    locked_here++;
    return 0;
}

/* The oldest unacknowledged message, or where we resume. */
static void floor_of(const Reader *self, uint64_t *offset, uint64_t *sequence) {
    const UnackedEntry *oldest = unacked_oldest(self->unacked);
    *offset = oldest ? oldest->offset : self->redelivering ? self->front : self->offset;
    *sequence = oldest ? oldest->sequence : self->redelivering ? self->front_sequence : self->sequence;
}

static int raise_pending(void *error) {
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), (PyObject *)error);
    Py_DECREF((PyObject *)error);
    return -1;
}

/* Report the exception that is set, which cannot be raised to a caller. If a signal handler may have raised it, so that
 * it is not one of the package's own, it is raised a little later in the main thread; any other goes to stderr. */
static void report_exception(PyObject *where) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (!is_own_error(type) && !PyErr_GivenExceptionMatches(type, PyExc_RecursionError) && in_main_thread()) {
        if (traceback) PyException_SetTraceback(error, traceback);
        if (!Py_AddPendingCall(raise_pending, Py_NewRef(error))) {
            Py_DECREF(type);
            Py_DECREF(error);
            Py_XDECREF(traceback);
            return;
        }
        Py_DECREF(error); /* there are too many pending calls already */
    }
    PyErr_Restore(type, error, traceback);
    PyErr_WriteUnraisable(where);
}

/* Event loops wait for capacity. The cursor has moved, whatever fails here: the loops also check by themselves. */
static void notify_loops(Reader *self) {
    PyObject *type, *error, *traceback, *notify = Py_XNewRef(self->notify);
    if (!notify) return;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallNoArgs(notify);
    if (!done) report_exception(notify);
    Py_XDECREF(done);
    Py_DECREF(notify);
    PyErr_Restore(type, error, traceback);
}

/* Wake senders that wait for capacity, after the cursor moved. The fence ensures that at least one side sees the other:
 * senders first announce that they wait and then load the cursor. */
static void notify_capacity(Reader *self) {
    uint8_t *words = self->control.buf;
    if (!load_acquire_u32(words + CAPACITY_WATCHED) || self->control.readonly) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load_acquire_u32(words + CAPACITY_WAKE) & (WAKE_THREADS | WAKE_LOOPS) && wake_waiters(words + CAPACITY_WAKE) & WAKE_LOOPS)
        notify_loops(self);
}

/* The same for the position of a group, if we moved it. Returns its argument. */
int reader_notify_if_moved(Reader *self, int done) {
    if (self->ring && self->ring->changes & MOVED) {
        self->ring->changes &= ~MOVED;
        notify_capacity(self);
    }
    return done;
}

void reader_leave(Reader *self) {
    self->owner = NULL;
    locked_here--;
    reader_notify_if_moved(self, 0);
    if (__builtin_expect(self->released, 0)) reader_close(self);
}

/* Store the position, and wake senders that wait for capacity. */
void reader_store_cursor(Reader *self) {
    if (!self->cursor.obj) return;
    self->generation++;
    uint64_t offset = self->offset, sequence = self->sequence;
    if (__builtin_expect(self->unacked != NULL, 0)) floor_of(self, &offset, &sequence);
    if (!self->stores--) {
        self->time = wall_clock_ns();
        self->stores = STORES_PER_CLOCK_READ - 1;
    }
    cursor_slot_write(self->cursor.buf, self->generation, offset, sequence, self->time);
    notify_capacity(self);
}

enum reached { AT_RECORD, AT_LOG_END, AT_SEGMENT_END };

/* Whether there is a record at our offset in the bound segment. Loads `write` before `end`, because `end` is stored
 * first. */
static enum reached check_limit(Reader *self) {
    if (self->offset < self->limit) return AT_RECORD;
    if (self->released) return AT_LOG_END;
    uint64_t write = load_acquire_u64((uint8_t *)self->control.buf + WRITE_TAIL);
    if (self->offset >= write) {
        self->stores = 0; /* we are about to wait: the next message may come much later */
        return AT_LOG_END;
    }
    if (!self->segment.obj || self->offset < self->begin) return AT_SEGMENT_END;
    uint64_t end = load_acquire_u64((uint8_t *)self->segment.buf + SEGMENT_END);
    uint64_t space = (uint64_t)self->segment.len - SEGMENT_HEADER_SIZE;
    uint64_t limit = write - self->begin < space ? write : self->begin + space;
    if (end && end < limit) limit = end;
    self->limit = limit;
    return self->offset < limit ? AT_RECORD : AT_SEGMENT_END;
}

/* Call back into Python, which moves the reader or raises. */
static int ask(PyObject *callback, Reader *self, const char *reason) {
    PyObject *done = reason ? PyObject_CallFunction(callback, "Os", self, reason)
                            : PyObject_CallOneArg(callback, (PyObject *)self);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Copy the payload of the current record: into the scratch buffer if decode allows it, else into bytes. The result is
 * borrowed or new; NULL with state RECORD_OK means an exception. */
static PyObject *copy_payload(Reader *self, uint32_t *word, enum record_state *state, int *borrowed) {
    uint64_t position = SEGMENT_HEADER_SIZE + (self->offset - self->begin);
    uint64_t stop = SEGMENT_HEADER_SIZE + (self->limit - self->begin);
    const uint8_t *at = (const uint8_t *)self->segment.buf + position;
    *borrowed = self->reuse && stop - position >= RECORD_HEADER_SIZE && (get_u32(at) & LENGTH_MASK) <= SCRATCH_LIMIT;
    if (!*borrowed) return record_copy(self->segment.buf, position, stop, self->offset, self->most, word, state);
    *word = get_u32(at);
    uint32_t crc = get_u32(at + 4);
    uint64_t length = *word & LENGTH_MASK;
    *state = RECORD_CUT;
    if (length > SCRATCH_LIMIT || stop - position - RECORD_HEADER_SIZE < length) return NULL;
    *state = RECORD_LONG;
    if (length > self->most) return NULL;
    *state = RECORD_OK;
    if (!scratch_for(&self->scratch, (Py_ssize_t)length)) return NULL;
    memcpy(self->scratch->data, at + RECORD_HEADER_SIZE, length);
    if (record_crc(crc32c(0, self->scratch->data, length), *word, self->offset) == crc) return (PyObject *)self->scratch;
    *state = RECORD_BAD;
    return NULL;
}

/* Whether the message to redeliver no longer exists: a callback has moved the reader. */
static int is_gone(const Reader *self) { return self->redelivering && self->offset != self->wanted; }

/* The payload of the next message, or NULL with *empty set, or NULL with an exception. Skips control records. */
PyObject *reader_next_payload(Reader *self, int *empty, uint64_t *size) {
    *empty = 0;
    for (;;) {
        switch (check_limit(self)) {
        case AT_LOG_END: *empty = 1; return NULL;
        case AT_SEGMENT_END:
            if (ask(self->advance, self, NULL) || (*empty = is_gone(self))) return NULL;
            continue;
        case AT_RECORD: break;
        }
        uint32_t word;
        enum record_state state;
        int borrowed;
        PyObject *payload = copy_payload(self, &word, &state, &borrowed);
        if (!payload) {
            /* The callback loads the header next, and must see it changed if the copied bytes were. */
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            if (state == RECORD_OK || ask(self->damaged, self, record_reason(state)) || (*empty = is_gone(self))) return NULL;
            continue;
        }
        if (borrowed) Py_INCREF(payload);
        *size = word & LENGTH_MASK;
        if (!(word & CONTROL_RECORD)) return payload;
        Py_DECREF(payload);
        self->offset += RECORD_HEADER_SIZE + *size;
        reader_store_cursor(self);
        if ((*empty = is_gone(self))) return NULL;
    }
}

/* An intact record that does not decode: Python raises DecodeError, and the reader stays where it is. */
PyObject *reader_undecodable(Reader *self, uint64_t offset, PyObject *payload, uint64_t size) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (!PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        PyErr_Restore(type, error, traceback);
        return NULL;
    }
    if (traceback) PyException_SetTraceback(error, traceback);
    unsigned long long next = offset + RECORD_HEADER_SIZE + size;
    PyObject *bytes = PyBytes_FromObject(payload);
    PyObject *never = bytes ? PyObject_CallFunction(self->refuse, "KKOO", (unsigned long long)offset, next, bytes, error) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    if (never) {
        Py_DECREF(never);
        PyErr_SetString(PyExc_SystemError, "refuse() must raise");
    }
    return NULL;
}

/* The next item; our offset moves past it, but is not yet stored in the cursor. *start is where its record begins. */
PyObject *reader_next_item(Reader *self, int *empty, uint64_t *start) {
    uint64_t size;
    PyObject *payload = reader_next_payload(self, empty, &size);
    if (!payload) return NULL;
    uint64_t sequence = self->sequence;
    *start = self->offset;
    PyObject *item = payload;
    if (self->decode.callable) {
        item = callee_call(&self->decode, &payload, 1);
        if (!item) reader_undecodable(self, self->offset, payload, size);
        Py_DECREF(payload);
        if (!item) return NULL;
    }
    self->offset = *start + RECORD_HEADER_SIZE + size;
    self->sequence = sequence + 1;
    slice_charge(size);
    return item;
}

static PyObject *deliver_tracked(Reader *self, int *empty, Delivery *delivery) {
    if (self->ring) return reader_next_shared(self, empty, delivery, 1);
    delivery->token = ++self->unacked->token;
    return reader_next_tracked(self, empty, delivery);
}

/* The next item, which must not be redelivered: the cursor is stored, or ack tracking has it. */
static inline PyObject *deliver(Reader *self, int *empty, Delivery *delivery) {
    if (__builtin_expect(self->unacked || self->ring, 0)) return deliver_tracked(self, empty, delivery);
    PyObject *item = reader_next_item(self, empty, &delivery->offset);
    if (!item) return NULL;
    reader_store_cursor(self);
    delivery->sequence = self->sequence - 1;
    delivery->attempt = 1;
    delivery->token = 0;
    return item;
}

PyObject *reader_take_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    int empty;
    Delivery delivery;
    if (reader_enter(self)) return NULL;
    PyObject *item = deliver(self, &empty, &delivery);
    reader_leave(self);
    return item || !empty ? item : Py_NewRef(nothing);
}

PyObject *reader_take_or_yield_method(PyObject *op, PyObject *none) {
    return slice_over() ? Py_NewRef(nothing) : reader_take_method(op, none);
}

PyObject *reader_now(PyObject *op) {
    PyObject *item = reader_take_method(op, NULL);
    if (item != nothing) return item;
    Py_DECREF(item);
    return NULL;
}

/* Let the thread sleep until there may be data. The caller has found nothing, and has not released the GIL since. */
int reader_wait(PyObject *op, double seconds) {
    Reader *self = (Reader *)op;
    uint8_t *words = self->control.buf;
    if (self->unacked && self->unacked->delayed) return 0; /* a delayed message may be due before the sleep ends */
    if (self->ring) return 0; /* in a group, not only the log can have data available, and the wake word does not cover the rest */
    if (!self->sleepers.obj || self->released || load_acquire_u32(words + STATE) & STATE_SEALED) return 0;
    uint64_t *sleepers = self->sleepers.buf, offset = self->offset;
    self->waiting++; /* the maps stay until we return, even if another thread closes the reader meanwhile */
    /* First increment the count, then load the wake word: a thread that closes or moves the reader after that sees the
     * count, and changes the word. */
    __atomic_add_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = load_acquire_u32(words + WAKE);
    int brief = self->misses < MISSES || self->misses % WAITS_PER_WATCH == 0;
    double watch = self->spin > 0 ? self->spin : brief ? BRIEFLY : 0;
    int longer = watch > SLICE; /* then the caller keeps spinning, and checks signals and the clock in between */
    if (longer) watch = SLICE;
    if (watch > seconds) watch = seconds;
    int found, why = 0;
    Py_BEGIN_ALLOW_THREADS
    found = watch > 0 && watch_for_more(words, offset, watch);
    if (!found && !longer && watch < seconds) why = sleep_for_more(words, offset, seen, seconds - watch);
    Py_END_ALLOW_THREADS
    __atomic_sub_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
    self->waiting--;
    if (self->released) reader_close(self);
    self->misses = found ? 0 : self->misses + 1;
    return why == EINTR && PyErr_CheckSignals() ? -1 : 1;
}

PyObject *reader_step(PyObject *op) { return slice_over() ? NULL : reader_now(op); }

static PyObject *take_tuple(Reader *self, int with_attempt) {
    int empty;
    Delivery delivery;
    if (reader_enter(self)) return NULL;
    PyObject *item = deliver(self, &empty, &delivery), *result = NULL;
    if (item) {
        unsigned long long offset = delivery.offset, sequence = delivery.sequence, token = delivery.token;
        result = with_attempt ? Py_BuildValue("NKKIK", item, offset, sequence, (unsigned int)delivery.attempt, token)
                              : Py_BuildValue("NKK", item, offset, sequence);
    } else if (empty)
        result = Py_NewRef(nothing);
    reader_leave(self);
    return result;
}

PyObject *reader_take_record_method(PyObject *op, PyObject *Py_UNUSED(none)) { return take_tuple((Reader *)op, 0); }
PyObject *reader_take_delivery_method(PyObject *op, PyObject *Py_UNUSED(none)) { return take_tuple((Reader *)op, 1); }

/* The caller does not get the items taken so far, so they are redelivered. */
static void roll_back(Reader *self, PyObject **items, uint64_t offset, uint64_t sequence, uint64_t had) {
    if (self->ring) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        ring_redeliver_from(self->ring, had, 0);
        PyErr_Restore(type, error, traceback);
    } else if (PyList_GET_SIZE(*items)) {
        self->offset = offset;
        self->sequence = sequence;
        self->limit = 0;
        if (self->unacked) unacked_roll_back(self->unacked, offset);
        reader_store_cursor(self);
    }
    Py_CLEAR(*items);
}

/* A list with preallocated elements: appending one by one costs a third of a small message. */
#define LIST_CAPACITY 1024
static Py_ssize_t list_capacity(Py_ssize_t wanted) { return wanted < 0 ? 0 : wanted < LIST_CAPACITY ? wanted : LIST_CAPACITY; }

static PyObject *new_list(Py_ssize_t wanted) {
    PyObject *items = PyList_New(list_capacity(wanted));
    if (items) Py_SET_SIZE(items, 0);
    return items;
}

static int list_add(PyObject *items, PyObject *item) {
    Py_ssize_t size = PyList_GET_SIZE(items);
    if (size < ((PyListObject *)items)->allocated) {
        Py_SET_SIZE(items, size + 1);
        PyList_SET_ITEM(items, size, item);
        return 0;
    }
    int failed = PyList_Append(items, item);
    Py_DECREF(item);
    return failed;
}

PyObject *reader_take_many_method(PyObject *op, PyObject *most) {
    Reader *self = (Reader *)op;
    int empty;
    Delivery delivery;
    Py_ssize_t wanted = PyNumber_AsSsize_t(most, NULL); /* a number that is too large means all */
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    PyObject *items = new_list(wanted);
    if (!items || reader_enter(self)) {
        Py_XDECREF(items);
        return NULL;
    }
    uint64_t before = self->offset, sequence = self->sequence, had = self->ring ? self->ring->last : 0;
    if (self->unacked) self->unacked->token++;
    while (PyList_GET_SIZE(items) < wanted) {
        PyObject *item = self->ring   ? reader_next_shared(self, &empty, &delivery, !PyList_GET_SIZE(items))
                         : self->unacked ? reader_next_tracked(self, &empty, &delivery)
                                      : reader_next_item(self, &empty, &delivery.offset);
        if (!item) {
            /* Items before an error are returned; the next call raises the error. */
            if (empty || (PyList_GET_SIZE(items) && PyErr_ExceptionMatches(PyExc_Exception))) PyErr_Clear();
            else roll_back(self, &items, before, sequence, had);
            break;
        }
        if (list_add(items, item)) {
            roll_back(self, &items, before, sequence, had);
            break;
        }
    }
    if (self->offset != before && !self->unacked) reader_store_cursor(self);
    reader_leave(self);
    return items;
}

/* Move to a record boundary. Unacknowledged deliveries from there on are forgotten, as they are read again anyway. */
static void move_to(Reader *self, uint64_t offset, uint64_t sequence) {
    if (self->unacked && !self->redelivering) unacked_drop_from(self->unacked, offset);
    self->offset = offset;
    self->sequence = sequence;
    self->limit = 0;
    reader_store_cursor(self);
}

PyObject *reader_move_method(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, sequence;
    if (check_count("move", count, 2) || unsigned_from(args[0], UINT64_MAX, &offset) ||
        unsigned_from(args[1], UINT64_MAX, &sequence))
        return NULL;
    /* Our own callbacks move the reader while this thread is in a call; any other thread waits for that call to
     * return. */
    int inside = self->owner == reader_thread();
    if (!inside && reader_enter(self)) return NULL;
    move_to(self, offset, sequence);
    if (!inside) reader_leave(self);
    Py_RETURN_NONE;
}

PyObject *reader_move_from_method(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t expected, offset, sequence;
    if (check_count("move_from", count, 3) || unsigned_from(args[0], UINT64_MAX, &expected) ||
        unsigned_from(args[1], UINT64_MAX, &offset) || unsigned_from(args[2], UINT64_MAX, &sequence) || reader_enter(self))
        return NULL;
    int there = self->offset == expected && !self->released;
    if (there) move_to(self, offset, sequence);
    reader_leave(self);
    return PyBool_FromLong(there);
}
