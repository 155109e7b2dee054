/* Reading one record after the other, decoded, with a cursor. The reference is reader.py, with reading.py.
 *
 * A reader stands at an offset and knows how far it may read without looking again (`limit`). Where that ends it
 * looks at the shared words; where the segment ends it asks `advance` for the next one.
 *
 * One that holds (`held` is not NULL) stores in its cursor where the oldest message begins that was not acknowledged.
 * What comes again is read by standing there for a moment; `front` is then where we go on.
 *
 * One that shares (`ring` is not NULL) takes what it has read only if no other member of its group was faster. */
#include "reader.h"
#include <errno.h>
#include <sched.h>

#define STORES_PER_LOOK 16
#define SLICE 0.01 /* seconds that a thread may watch without a look at anything else */
#define BRIEFLY 5e-6 /* seconds; a sender at full speed needs less time than going to sleep does, and waking us */
#define MISSES 4     /* after so many waits in which that was in vain, it is tried once in so many: */
#define WAITS_PER_WATCH 16

int reader_enter(Reader *self) {
    const void *me = reader_thread();
    while (self->owner) { /* the GIL orders us: it is given up only inside decode, a callback, or right here */
        if (self->owner == me) {
            PyErr_SetString(PyExc_RuntimeError, "this receiver is being read by the same thread already");
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

/* The oldest that is not acknowledged, or where we go on. */
static void floor_of(const Reader *self, uint64_t *offset, uint64_t *sequence) {
    const HeldEntry *oldest = held_oldest(self->held);
    *offset = oldest ? oldest->offset : self->again ? self->front : self->offset;
    *sequence = oldest ? oldest->sequence : self->again ? self->front_sequence : self->sequence;
}

static int raise_now(void *error) {
    PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)error), (PyObject *)error);
    Py_DECREF((PyObject *)error);
    return -1;
}

/* Raise the exception that is set a little later, in the main thread, if a signal handler may have raised it there: not
 * one of the package's own. All others are written to stderr, as no caller can be told. */
static void raise_later(PyObject *where) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (!is_own_error(type) && !PyErr_GivenExceptionMatches(type, PyExc_RecursionError) && in_main_thread()) {
        if (traceback) PyException_SetTraceback(error, traceback);
        if (!Py_AddPendingCall(raise_now, Py_NewRef(error))) {
            Py_DECREF(type);
            Py_DECREF(error);
            Py_XDECREF(traceback);
            return;
        }
        Py_DECREF(error); /* there are too many already */
    }
    PyErr_Restore(type, error, traceback);
    PyErr_WriteUnraisable(where);
}

/* Event loops wait for room. Whatever goes wrong there, we have moved on: they look again by themselves. */
static void notify_room(Reader *self) {
    PyObject *type, *error, *traceback, *notify = Py_XNewRef(self->notify);
    if (!notify) return;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallNoArgs(notify);
    if (!done) raise_later(notify);
    Py_XDECREF(done);
    Py_DECREF(notify);
    PyErr_Restore(type, error, traceback);
}

/* Senders that wait for room must hear that we moved on. The fence makes sure that not both miss each other: they say
 * that they wait and then look where we are. */
static void tell_room(Reader *self) {
    uint8_t *words = self->control.buf;
    if (!load_acquire_u32(words + ROOM_WATCHED) || self->control.readonly) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load_acquire_u32(words + ROOM) & (WAKE_THREADS | WAKE_LOOPS) && wake_waiters(words + ROOM) & WAKE_LOOPS)
        notify_room(self);
}

/* The same for the position of a group, if we let it follow what is settled. Returns what it is given. */
int reader_told(Reader *self, int done) {
    if (self->ring && self->ring->tells & MOVED) {
        self->ring->tells &= ~MOVED;
        tell_room(self);
    }
    return done;
}

void reader_leave(Reader *self) {
    self->owner = NULL;
    locked_here--;
    reader_told(self, 0);
    if (__builtin_expect(self->released, 0)) reader_close(self);
}

/* Two slots in turn, so that one of them is whole whenever we are killed. */
void reader_store_cursor(Reader *self) {
    if (!self->cursor.obj) return;
    self->generation++;
    uint8_t *to = (uint8_t *)self->cursor.buf + (self->generation & 1 ? CURSOR_SLOT_1 : CURSOR_SLOT_0);
    uint64_t offset = self->offset, sequence = self->sequence;
    if (__builtin_expect(self->held != NULL, 0)) floor_of(self, &offset, &sequence);
    put_u64(to, self->generation);
    put_u64(to + 8, offset);
    put_u64(to + 16, sequence);
    if (!self->stores--) {
        self->time = wall_clock_ns();
        self->stores = STORES_PER_LOOK - 1;
    }
    put_u64(to + 24, self->time);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    put_u32(to + 32, crc32c(0, to, 32));
    tell_room(self);
}

enum look { LOOK_RECORD, LOOK_NOTHING, LOOK_ADVANCE };

/* Is there a record at our offset in the bound segment? Loads `write` before `end`: end is stored first. */
static enum look look(Reader *self) {
    if (self->offset < self->limit) return LOOK_RECORD;
    if (self->released) return LOOK_NOTHING;
    uint64_t write = load_acquire_u64((uint8_t *)self->control.buf + WRITE_TAIL);
    if (self->offset >= write) {
        self->stores = 0; /* we are about to wait: the next message may come much later */
        return LOOK_NOTHING;
    }
    if (!self->segment.obj || self->offset < self->begin) return LOOK_ADVANCE;
    uint64_t end = load_acquire_u64((uint8_t *)self->segment.buf + SEGMENT_END);
    uint64_t room = (uint64_t)self->segment.len - SEGMENT_HEADER_SIZE;
    uint64_t limit = write - self->begin < room ? write : self->begin + room;
    if (end && end < limit) limit = end;
    self->limit = limit;
    return self->offset < limit ? LOOK_RECORD : LOOK_ADVANCE;
}

/* Call back into Python; it moves us, or raises. */
static int ask(PyObject *callback, Reader *self, const char *reason) {
    PyObject *done = reason ? PyObject_CallFunction(callback, "Os", self, reason)
                            : PyObject_CallOneArg(callback, (PyObject *)self);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Copy the payload of the record we stand at: into the scratch where decode allows it, else into bytes. Borrowed from
 * us, or new; NULL with state RECORD_OK means an exception. */
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

/* Whether what comes again is not where it was: a callback has moved us. */
static int is_gone(const Reader *self) { return self->again && self->offset != self->wanted; }

/* The payload of the next message, or NULL with *empty set, or NULL with an exception. Moves over control records. */
PyObject *reader_next_payload(Reader *self, int *empty, uint64_t *size) {
    *empty = 0;
    for (;;) {
        switch (look(self)) {
        case LOOK_NOTHING: *empty = 1; return NULL;
        case LOOK_ADVANCE:
            if (ask(self->advance, self, NULL) || (*empty = is_gone(self))) return NULL;
            continue;
        case LOOK_RECORD: break;
        }
        uint32_t word;
        enum record_state state;
        int borrowed;
        PyObject *payload = copy_payload(self, &word, &state, &borrowed);
        if (!payload) {
            /* Who asks looks at the header next, and must find it changed if what we copied was. */
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

/* An intact record that does not decode: Python raises DecodeError, and we stay where we are. */
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

/* The next item, our offset moved behind it but not yet stored in the cursor; *start is where its record begins. */
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
    turn_charge(size);
    return item;
}

static PyObject *hand_out_held(Reader *self, int *empty, Given *given) {
    if (self->ring) return reader_next_shared(self, empty, given, 1);
    given->token = ++self->held->token;
    return reader_next_held(self, empty, given);
}

/* The next item, which is not to come again: the cursor says so, or we hold it. */
static inline PyObject *hand_out(Reader *self, int *empty, Given *given) {
    if (__builtin_expect(self->held || self->ring, 0)) return hand_out_held(self, empty, given);
    PyObject *item = reader_next_item(self, empty, &given->offset);
    if (!item) return NULL;
    reader_store_cursor(self);
    given->sequence = self->sequence - 1;
    given->attempt = 1;
    given->token = 0;
    return item;
}

PyObject *reader_take_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    int empty;
    Given given;
    if (reader_enter(self)) return NULL;
    PyObject *item = hand_out(self, &empty, &given);
    reader_leave(self);
    return item || !empty ? item : Py_NewRef(nothing);
}

PyObject *reader_take_in_turn_method(PyObject *op, PyObject *none) {
    return turn_over() ? Py_NewRef(nothing) : reader_take_method(op, none);
}

PyObject *reader_now(PyObject *op) {
    PyObject *item = reader_take_method(op, NULL);
    if (item != nothing) return item;
    Py_DECREF(item);
    return NULL;
}

/* Let the thread sleep until there may be something for us. The caller has found nothing, and the GIL was not given up since. */
int reader_wait(PyObject *op, double seconds) {
    Reader *self = (Reader *)op;
    uint8_t *words = self->control.buf;
    if (self->held && self->held->delayed) return 0; /* what is delayed may come before the sleep would end */
    if (self->ring) return 0; /* more than the log may have news, and the word says nothing about that */
    if (!self->sleepers.obj || self->released || load_acquire_u32(words + STATE) & STATE_SEALED) return 0;
    uint64_t *sleepers = self->sleepers.buf, offset = self->offset;
    self->waiting++; /* the maps stay until we are back, even if another thread closes us meanwhile */
    /* First be counted, then look at the word: who closes or moves us after that sees the count, and changes the word. */
    __atomic_add_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = load_acquire_u32(words + WAKE);
    int brief = self->misses < MISSES || self->misses % WAITS_PER_WATCH == 0;
    double watch = self->spin > 0 ? self->spin : brief ? BRIEFLY : 0;
    int longer = watch > SLICE; /* then whoever called goes on watching, and looks at signals and the clock in between */
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

PyObject *reader_step(PyObject *op) { return turn_over() ? NULL : reader_now(op); }

static PyObject *take_tuple(Reader *self, int with_attempt) {
    int empty;
    Given given;
    if (reader_enter(self)) return NULL;
    PyObject *item = hand_out(self, &empty, &given), *result = NULL;
    if (item) {
        unsigned long long offset = given.offset, sequence = given.sequence, token = given.token;
        result = with_attempt ? Py_BuildValue("NKKIK", item, offset, sequence, (unsigned int)given.attempt, token)
                              : Py_BuildValue("NKK", item, offset, sequence);
    } else if (empty)
        result = Py_NewRef(nothing);
    reader_leave(self);
    return result;
}

PyObject *reader_take_record_method(PyObject *op, PyObject *Py_UNUSED(none)) { return take_tuple((Reader *)op, 0); }
PyObject *reader_take_delivery_method(PyObject *op, PyObject *Py_UNUSED(none)) { return take_tuple((Reader *)op, 1); }

/* Nobody gets what was taken so far: it comes again. */
static void take_back(Reader *self, PyObject **items, uint64_t offset, uint64_t sequence, uint64_t had) {
    if (self->ring) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        ring_give_back_from(self->ring, had, 0);
        PyErr_Restore(type, error, traceback);
    } else if (PyList_GET_SIZE(*items)) {
        self->offset = offset;
        self->sequence = sequence;
        self->limit = 0;
        if (self->held) held_take_back(self->held, offset);
        reader_store_cursor(self);
    }
    Py_CLEAR(*items);
}

/* A list that has its first places already: appending one by one costs a third of a small message. */
#define LIST_ROOM 1024
static Py_ssize_t list_room(Py_ssize_t wanted) { return wanted < 0 ? 0 : wanted < LIST_ROOM ? wanted : LIST_ROOM; }

static PyObject *new_list(Py_ssize_t wanted) {
    PyObject *items = PyList_New(list_room(wanted));
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
    Given given;
    Py_ssize_t wanted = PyNumber_AsSsize_t(most, NULL); /* more than there can be means all */
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    PyObject *items = new_list(wanted);
    if (!items || reader_enter(self)) {
        Py_XDECREF(items);
        return NULL;
    }
    uint64_t before = self->offset, sequence = self->sequence, had = self->ring ? self->ring->last : 0;
    if (self->held) self->held->token++;
    while (PyList_GET_SIZE(items) < wanted) {
        PyObject *item = self->ring   ? reader_next_shared(self, &empty, &given, !PyList_GET_SIZE(items))
                         : self->held ? reader_next_held(self, &empty, &given)
                                      : reader_next_item(self, &empty, &given.offset);
        if (!item) {
            /* What came before an error is handed out; the error comes again with the next call. */
            if (empty || (PyList_GET_SIZE(items) && PyErr_ExceptionMatches(PyExc_Exception))) PyErr_Clear();
            else take_back(self, &items, before, sequence, had);
            break;
        }
        if (list_add(items, item)) {
            take_back(self, &items, before, sequence, had);
            break;
        }
    }
    if (self->offset != before && !self->held) reader_store_cursor(self);
    reader_leave(self);
    return items;
}

/* Stand at a record boundary. What we hold from there on is forgotten: it comes anyway. */
static void stand_at(Reader *self, uint64_t offset, uint64_t sequence) {
    if (self->held && !self->again) held_drop_from(self->held, offset);
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
    /* Our own callbacks move us while the thread is inside; anybody else waits for it to come out. */
    int inside = self->owner == reader_thread();
    if (!inside && reader_enter(self)) return NULL;
    stand_at(self, offset, sequence);
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
    if (there) stand_at(self, offset, sequence);
    reader_leave(self);
    return PyBool_FromLong(there);
}
