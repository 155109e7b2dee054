/* Reading one record after the other, decoded, with a cursor. The reference is reader.py.
 *
 * A reader stands at an offset and knows how far it may read without looking again (`limit`). Where that ends it
 * looks at the shared words; where the segment ends it asks `advance` for the next one.
 *
 * One that holds (`held` is not NULL) stores in its cursor where the oldest message begins that was not acknowledged.
 * What comes again is read by standing there for a moment; `front` is then where we go on.
 *
 * One that shares (`ring` is not NULL) takes what it has read only if no other member of its group was faster. */
#include "core.h"
#include <errno.h>
#include <sched.h>

#define STORES_PER_LOOK 16
#define SLICE 0.01 /* seconds that a thread may watch without a look at anything else */
#define BRIEFLY 5e-6 /* seconds; a sender at full speed needs less time than going to sleep does, and waking us */
#define MISSES 4     /* after so many waits in which that was in vain, it is tried once in so many: */
#define WAITS_PER_WATCH 16

PyTypeObject *ReaderType;

typedef struct {
    PyObject_HEAD
    Py_buffer control, segment, cursor; /* .obj is NULL where there is none */
    uint64_t begin, limit;
    uint64_t offset, sequence;
    uint64_t generation; /* of the newest cursor slot */
    uint64_t time;       /* of the cursor: when it was last moved, or a few messages before */
    unsigned int stores; /* of the cursor until the clock is read again */
    Held *held;          /* NULL: the cursor follows what is handed out */
    char again;          /* we stand at `wanted`, which comes again */
    Callee decode;       /* no callable: hand out the payload itself */
    char reuse;          /* decode takes any buffer and is done with it when it returns */
    Scratch *scratch;
    PyObject *advance, *damaged, *refuse;
    PyObject *notify; /* called when event loops wait for room; NULL if nobody said so */
    const void *owner; /* the thread that is inside: decode may run Python code and let another thread in */
    char released;
    Py_buffer sleepers;  /* how many threads sleep in reader_wait, for whoever has to wake them; .obj is NULL where none may */
    double spin;         /* how long to watch before that; 0: briefly, if that helps */
    unsigned int misses; /* waits since watching briefly helped */
    uint64_t wanted, front, front_sequence; /* while we stand where something comes again: there, and where we go on */
    Ring *ring;     /* NULL: we share with nobody */
    PyObject *tend; /* called when something is due in the group, or its lock was taken for longer */
    uint64_t seen, seen_sequence; /* where the group went on when we followed it */
    char follows;                 /* that is known */
} Reader;

/* What was handed out. */
typedef struct {
    uint64_t offset, sequence, token;
    uint32_t attempt;
} Given;

/* Something that this thread has and no other: cheaper than asking for its name. */
static const void *this_thread(void) { return &turn_units; }

static int enter(Reader *self) {
    const void *me = this_thread();
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
    return 0;
}

/* The oldest that is not acknowledged, or where we go on. */
static void floor_of(const Reader *self, uint64_t *offset, uint64_t *sequence) {
    const HeldEntry *oldest = held_oldest(self->held);
    *offset = oldest ? oldest->offset : self->again ? self->front : self->offset;
    *sequence = oldest ? oldest->sequence : self->again ? self->front_sequence : self->sequence;
}

/* Event loops wait for room. Whatever goes wrong there, we have moved on: they look again by themselves. */
static void notify_room(Reader *self) {
    PyObject *type, *error, *traceback, *notify = Py_XNewRef(self->notify);
    if (!notify) return;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallNoArgs(notify);
    if (!done && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        PyErr_SetInterrupt(); /* it comes again, a little later */
    } else if (!done)
        PyErr_WriteUnraisable(notify);
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
static int told(Reader *self, int done) {
    if (self->ring && self->ring->tells & MOVED) {
        self->ring->tells &= ~MOVED;
        tell_room(self);
    }
    return done;
}

static void leave(Reader *self) {
    self->owner = NULL;
    told(self, 0);
}

/* Two slots in turn, so that one of them is whole whenever we are killed. */
static void store_cursor(Reader *self) {
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
    if (!*borrowed) return record_copy(self->segment.buf, position, stop, self->offset, word, state);
    *word = get_u32(at);
    uint32_t crc = get_u32(at + 4);
    uint64_t length = *word & LENGTH_MASK;
    *state = RECORD_CUT;
    if (length > SCRATCH_LIMIT || stop - position - RECORD_HEADER_SIZE < length) return NULL;
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
static PyObject *next_payload(Reader *self, int *empty, uint64_t *size) {
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
        store_cursor(self);
        if ((*empty = is_gone(self))) return NULL;
    }
}

/* An intact record that does not decode: Python raises DecodeError, and we stay where we are. */
static PyObject *undecodable(Reader *self, uint64_t offset, PyObject *payload, uint64_t size) {
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
static PyObject *next_item(Reader *self, int *empty, uint64_t *start) {
    uint64_t size;
    PyObject *payload = next_payload(self, empty, &size);
    if (!payload) return NULL;
    uint64_t sequence = self->sequence;
    *start = self->offset;
    PyObject *item = payload;
    if (self->decode.callable) {
        item = callee_call(&self->decode, &payload, 1);
        if (!item) undecodable(self, self->offset, payload, size);
        Py_DECREF(payload);
        if (!item) return NULL;
    }
    self->offset = *start + RECORD_HEADER_SIZE + size;
    self->sequence = sequence + 1;
    turn_charge(size);
    return item;
}

/* --- Holding: what is handed out stays ours until it is acknowledged ------------------------------------------ */

/* Stand where the next one begins that comes again. */
static void step_back(Reader *self, const HeldEntry *entry) {
    self->front = self->offset;
    self->front_sequence = self->sequence;
    self->wanted = self->offset = entry->offset;
    self->sequence = entry->sequence;
    self->limit = 0;
    self->again = 1;
}

/* Stand where we go on; if a callback has moved us, what waited in between is gone. */
static void step_forward(Reader *self, int taken) {
    uint64_t offset = self->offset, sequence = self->sequence;
    self->again = 0;
    self->limit = 0;
    self->offset = self->front;
    self->sequence = self->front_sequence;
    if (taken || offset == self->wanted) return;
    held_drop_waiting(self->held, self->wanted, offset > self->wanted ? offset : self->wanted + 1);
    if (offset > self->front) {
        self->offset = offset;
        self->sequence = sequence;
    }
    store_cursor(self);
}

/* The next item, held: what comes again, and then what is new. */
static PyObject *next_held(Reader *self, int *empty, Given *given) {
    Held *held = self->held;
    const HeldEntry *entry;
    while ((entry = held_first_ready(held))) {
        step_back(self, entry);
        PyObject *item = next_item(self, empty, &given->offset);
        int gone = !item && *empty && self->offset != self->wanted;
        given->sequence = self->sequence - 1;
        step_forward(self, item != NULL);
        if (item) given->attempt = held_hand_out(held, given->offset);
        if (!gone) return item;
    }
    if (held_reserve(held)) {
        *empty = 0;
        return NULL;
    }
    PyObject *item = next_item(self, empty, &given->offset);
    if (!item) return NULL;
    given->sequence = self->sequence - 1;
    given->attempt = 1;
    held_push(held, given->offset, given->sequence);
    return item;
}

/* --- Sharing: what is handed out is ours until we settle it, or the lease ends -------------------------------- */

static int is_sealed(const Reader *self) {
    return (load_acquire_u32((uint8_t *)self->control.buf + STATE) & STATE_SEALED) != 0;
}

/* Let Python do what is due. 1: go on; 0: there is nothing to be had now; -1: an exception. */
static int tend(Reader *self) {
    PyObject *done = PyObject_CallOneArg(self->tend, (PyObject *)self);
    if (!done) return -1;
    int goes_on = done != Py_False;
    Py_DECREF(done);
    return goes_on;
}

/* Stand where the group does, if that is elsewhere by now. What lies in between and is no message stays passed. */
static void follow_group(Reader *self) {
    uint64_t offset, sequence;
    ring_next(self->ring, &offset, &sequence);
    if (self->follows && offset == self->seen && sequence == self->seen_sequence) return;
    self->offset = self->seen = offset;
    self->sequence = self->seen_sequence = sequence;
    self->follows = 1;
    if (offset < self->begin) self->limit = 0;
}

/* The payload of what comes again; NULL with *empty: it is gone; NULL otherwise: an exception, and it is not ours. */
static PyObject *read_again(Reader *self, Claim claim, int *empty, uint64_t *size) {
    self->follows = 0;
    self->wanted = self->offset = claim.offset;
    self->sequence = claim.sequence;
    self->limit = 0;
    self->again = 1;
    PyObject *payload = next_payload(self, empty, size);
    self->again = 0;
    if (payload) return payload;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (*empty && !self->released)
        ring_drop(self->ring, claim.offset, claim.word);
    else
        ring_return(self->ring, claim.offset, claim.word);
    PyErr_Restore(type, error, traceback);
    return NULL;
}

/* Have the next message: one that comes again, or a new one that no other member has taken since we read it. */
static PyObject *claim_next(Reader *self, int *empty, Claim *claimed, uint64_t *size) {
    Ring *ring = self->ring;
    const Claim *claim = NULL;
    int goes_on = 1;
    *empty = 0;
    if (ring_due(ring) != UINT64_MAX && monotonic_ns() >= ring_due(ring)) goes_on = tend(self);
    while (goes_on > 0 && !self->released) {
        if (ring_reserve(ring)) return NULL;
        enum claimed outcome;
        PyObject *payload = NULL;
        if (ring_ready(ring)) {
            outcome = ring_claim_again(ring, &claim);
            if (outcome == CLAIMED) {
                *claimed = *claim;
                payload = read_again(self, *claimed, empty, size);
                if (payload || !*empty) return payload;
                *empty = 0;
                continue;
            }
        } else {
            if (ring_full(ring)) break;
            follow_group(self);
            payload = next_payload(self, empty, size);
            if (!payload) return NULL;
            /* Python may have run, and taken the room. */
            if (ring_reserve(ring)) {
                Py_DECREF(payload);
                return NULL;
            }
            uint64_t end = self->offset + RECORD_HEADER_SIZE + *size;
            outcome = ring_claim(ring, self->seen, self->seen_sequence, self->offset, end, self->sequence, &claim);
            if (outcome == CLAIMED) {
                *claimed = *claim;
                self->offset = self->seen = end;
                self->sequence = self->seen_sequence = self->sequence + 1;
                return payload;
            }
            Py_DECREF(payload);
        }
        if (outcome == CLAIM_LOCKED) goes_on = tend(self);
    }
    *empty = goes_on >= 0;
    return NULL;
}

/* The next item that no other member has. One that does not decode stays ours, apart from the others; unless others
 * come with it, in the same call. */
static PyObject *next_shared(Reader *self, int *empty, Given *given, int first) {
    Claim claim;
    uint64_t size;
    PyObject *payload = claim_next(self, empty, &claim, &size);
    if (!payload) {
        /* Whoever had settled the last one found the lock taken by us, and left it to us to tell. */
        int tells = self->ring->tells & (is_sealed(self) ? MADE_ROOM | EMPTIED : MADE_ROOM);
        if (*empty && tells && tend(self) < 0) *empty = 0;
        return NULL;
    }
    *given = (Given){.offset = claim.offset, .sequence = claim.sequence, .token = claim.word, .attempt = claim_attempt(&claim)};
    turn_charge(size);
    if (!self->decode.callable) return payload;
    PyObject *item = callee_call(&self->decode, &payload, 1);
    if (!item) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        if (first && PyErr_GivenExceptionMatches(type, PyExc_Exception))
            ring_refuse(self->ring, claim.offset, claim.word);
        else
            ring_return(self->ring, claim.offset, claim.word);
        PyErr_Restore(type, error, traceback);
        undecodable(self, claim.offset, payload, size);
    }
    Py_DECREF(payload);
    return item;
}

static PyObject *hand_out_held(Reader *self, int *empty, Given *given) {
    if (self->ring) return next_shared(self, empty, given, 1);
    given->token = ++self->held->token;
    return next_held(self, empty, given);
}

/* The next item, which is not to come again: the cursor says so, or we hold it. */
static inline PyObject *hand_out(Reader *self, int *empty, Given *given) {
    if (__builtin_expect(self->held || self->ring, 0)) return hand_out_held(self, empty, given);
    PyObject *item = next_item(self, empty, &given->offset);
    if (!item) return NULL;
    store_cursor(self);
    given->sequence = self->sequence - 1;
    given->attempt = 1;
    given->token = 0;
    return item;
}

static PyObject *py_take(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    int empty;
    Given given;
    if (enter(self)) return NULL;
    PyObject *item = hand_out(self, &empty, &given);
    leave(self);
    return item || !empty ? item : Py_NewRef(nothing);
}

static PyObject *py_take_in_turn(PyObject *op, PyObject *none) {
    return turn_over() ? Py_NewRef(nothing) : py_take(op, none);
}

PyObject *reader_now(PyObject *op) {
    PyObject *item = py_take(op, NULL);
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
    self->misses = found ? 0 : self->misses + 1;
    return why == EINTR && PyErr_CheckSignals() ? -1 : 1;
}

PyObject *reader_step(PyObject *op) { return turn_over() ? NULL : reader_now(op); }

static PyObject *take_tuple(Reader *self, int with_attempt) {
    int empty;
    Given given;
    if (enter(self)) return NULL;
    PyObject *item = hand_out(self, &empty, &given), *result = NULL;
    if (item) {
        unsigned long long offset = given.offset, sequence = given.sequence, token = given.token;
        result = with_attempt ? Py_BuildValue("NKKIK", item, offset, sequence, (unsigned int)given.attempt, token)
                              : Py_BuildValue("NKK", item, offset, sequence);
    } else if (empty)
        result = Py_NewRef(nothing);
    leave(self);
    return result;
}

static PyObject *py_take_record(PyObject *op, PyObject *Py_UNUSED(none)) { return take_tuple((Reader *)op, 0); }
static PyObject *py_take_delivery(PyObject *op, PyObject *Py_UNUSED(none)) { return take_tuple((Reader *)op, 1); }

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
        store_cursor(self);
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

static PyObject *py_take_many(PyObject *op, PyObject *most) {
    Reader *self = (Reader *)op;
    int empty;
    Given given;
    Py_ssize_t wanted = PyNumber_AsSsize_t(most, NULL); /* more than there can be means all */
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    PyObject *items = new_list(wanted);
    if (!items || enter(self)) {
        Py_XDECREF(items);
        return NULL;
    }
    uint64_t before = self->offset, sequence = self->sequence, had = self->ring ? self->ring->last : 0;
    if (self->held) self->held->token++;
    while (PyList_GET_SIZE(items) < wanted) {
        PyObject *item = self->ring   ? next_shared(self, &empty, &given, !PyList_GET_SIZE(items))
                         : self->held ? next_held(self, &empty, &given)
                                      : next_item(self, &empty, &given.offset);
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
    if (self->offset != before && !self->held) store_cursor(self);
    leave(self);
    return items;
}

/* Stand at a record boundary. What we hold from there on is forgotten: it comes anyway. */
static void stand_at(Reader *self, uint64_t offset, uint64_t sequence) {
    if (self->held && !self->again) held_drop_from(self->held, offset);
    self->offset = offset;
    self->sequence = sequence;
    self->limit = 0;
    store_cursor(self);
}

static PyObject *py_move(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, sequence;
    if (check_count("move", count, 2) || unsigned_from(args[0], UINT64_MAX, &offset) ||
        unsigned_from(args[1], UINT64_MAX, &sequence))
        return NULL;
    /* Our own callbacks move us while the thread is inside; anybody else waits for it to come out. */
    int inside = self->owner == this_thread();
    if (!inside && enter(self)) return NULL;
    stand_at(self, offset, sequence);
    if (!inside) leave(self);
    Py_RETURN_NONE;
}

static PyObject *py_move_from(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t expected, offset, sequence;
    if (check_count("move_from", count, 3) || unsigned_from(args[0], UINT64_MAX, &expected) ||
        unsigned_from(args[1], UINT64_MAX, &offset) || unsigned_from(args[2], UINT64_MAX, &sequence) || enter(self))
        return NULL;
    int there = self->offset == expected && !self->released;
    if (there) stand_at(self, offset, sequence);
    leave(self);
    return PyBool_FromLong(there);
}

/* --- Acknowledging. No need to come in: nothing here calls Python, so the GIL orders us ---------------------- */

static PyObject *py_hold(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    if (self->held || self->ring) {
        PyErr_SetString(PyExc_ValueError, "said before");
        return NULL;
    }
    if (!(self->held = held_new())) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_share(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t owner, lease;
    if (check_count("share", count, 4) || unsigned_from(args[1], UINT32_MAX, &owner) || unsigned_from(args[2], UINT64_MAX, &lease)) return NULL;
    if (self->held || self->ring) {
        PyErr_SetString(PyExc_ValueError, "said before");
        return NULL;
    }
    if (!(self->ring = ring_new(args[0], (uint32_t)owner, lease))) return NULL;
    self->tend = Py_NewRef(args[3]);
    Py_RETURN_NONE;
}

static int holds(const Reader *self) { return self->held && !self->released; }
static int shares(const Reader *self) { return self->ring && !self->released; }

int reader_ack(PyObject *op, uint64_t count) {
    Reader *self = (Reader *)op;
    if (self->ring) return told(self, shares(self) && ring_ack(self->ring, count));
    int moved, done = holds(self) && held_ack(self->held, count, &moved);
    if (done && moved) store_cursor(self);
    return done;
}

/* Whether everything in a sealed channel was handed out: more than the seal may lie behind the last message. */
static int all_handed_out(const Reader *self) {
    const uint8_t *tail = (const uint8_t *)self->control.buf + WRITE_TAIL;
    uint64_t offset, sequence, end = load_acquire_u64(tail);
    ring_next(self->ring, &offset, &sequence);
    for (int slot = TAIL_SLOT_0; slot <= TAIL_SLOT_1; slot += TAIL_SLOT_1 - TAIL_SLOT_0)
        if (load_acquire_u64(tail + slot) == end) return sequence >= load_acquire_u64(tail + slot + 8);
    return 1;
}

static int is_drained(const Reader *self) {
    if (!is_sealed(self) || (self->held && held_oldest(self->held))) return 0;
    return !self->ring || (ring_empty(self->ring) && all_handed_out(self));
}

int reader_must_tell(PyObject *op) {
    const Reader *self = (Reader *)op;
    if (!self->ring) return is_drained(self);
    int tells = self->ring->tells;
    self->ring->tells = 0;
    if (tells & MADE_ROOM || (self->ring->lost && PyList_GET_SIZE(self->ring->lost))) return 1;
    return tells & EMPTIED && is_drained(self);
}

static PyObject *py_must_tell(PyObject *op, PyObject *Py_UNUSED(none)) { return PyBool_FromLong(reader_must_tell(op)); }

static PyObject *py_take_lost(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    PyObject *lost = self->ring ? self->ring->lost : NULL;
    if (!lost) return PyList_New(0);
    self->ring->lost = NULL;
    return lost;
}

static PyObject *py_place_of(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, token;
    if (check_count("place_of", count, 2) || unsigned_from(args[0], UINT64_MAX, &offset) || unsigned_from(args[1], UINT64_MAX, &token))
        return NULL;
    return PyLong_FromLongLong(self->ring ? ring_place_of(self->ring, offset, token) : -1);
}

static PyObject *py_refused(PyObject *op, PyObject *given) {
    Reader *self = (Reader *)op;
    uint64_t offset;
    if (unsigned_from(given, UINT64_MAX, &offset)) return NULL;
    const Claim *claim = self->ring ? ring_refused(self->ring, offset) : NULL;
    if (!claim) Py_RETURN_NONE;
    return Py_BuildValue("KIK", (unsigned long long)claim->sequence, (unsigned int)claim_attempt(claim), (unsigned long long)claim->word);
}

/* More than there can be is too many, less than none is none. */
static int number_from(PyObject *given, uint64_t *count) {
    Py_ssize_t number = PyNumber_AsSsize_t(given, NULL);
    *count = number > 0 ? (uint64_t)number : 0;
    return number == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *py_ack(PyObject *op, PyObject *given) {
    uint64_t count;
    return number_from(given, &count) ? NULL : PyBool_FromLong(reader_ack(op, count));
}

static PyObject *py_nack(PyObject *op, PyObject *given) {
    Reader *self = (Reader *)op;
    uint64_t count = self->ring ? self->ring->out : self->held ? self->held->out : 0;
    if (given != Py_None && number_from(given, &count)) return NULL;
    if (self->ring) return PyBool_FromLong(told(self, shares(self) && ring_nack(self->ring, count)));
    return PyBool_FromLong(holds(self) && held_nack(self->held, count));
}

static PyObject *py_settle(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, token;
    if (check_count("settle", count, 2) || unsigned_from(args[0], UINT64_MAX, &offset) || unsigned_from(args[1], UINT64_MAX, &token))
        return NULL;
    if (self->ring) return PyBool_FromLong(told(self, shares(self) && ring_settle(self->ring, offset, token)));
    int moved, done = holds(self) && held_settle(self->held, offset, token, &moved);
    if (done && moved) store_cursor(self);
    return PyBool_FromLong(done);
}

static PyObject *py_give_back(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, token, due;
    if (check_count("give_back", count, 4) || unsigned_from(args[0], UINT64_MAX, &offset) ||
        unsigned_from(args[1], UINT64_MAX, &token) || unsigned_from(args[2], UINT64_MAX, &due))
        return NULL;
    int counted = PyObject_IsTrue(args[3]);
    if (counted < 0) return NULL;
    if (self->ring) return PyBool_FromLong(told(self, shares(self) && ring_give_back(self->ring, offset, token, due, counted)));
    return PyBool_FromLong(holds(self) && held_give_back(self->held, offset, token, due, counted));
}

static PyObject *py_outlook(PyObject *op, PyObject *Py_UNUSED(none)) {
    const Reader *self = (Reader *)op;
    const HeldEntry *waiting;
    if (!holds(self) || !held_in_order(self->held, &waiting)) Py_RETURN_NONE;
    uint64_t offset = waiting ? waiting->offset : self->again ? self->front : self->offset;
    uint64_t sequence = waiting ? waiting->sequence : self->again ? self->front_sequence : self->sequence;
    return Py_BuildValue("KKK", (unsigned long long)self->held->out, (unsigned long long)offset, (unsigned long long)sequence);
}

static PyObject *py_settle_before(PyObject *op, PyObject *given) {
    Reader *self = (Reader *)op;
    uint64_t offset;
    if (unsigned_from(given, UINT64_MAX, &offset)) return NULL;
    if (holds(self) && held_settle_before(self->held, offset)) store_cursor(self);
    Py_RETURN_NONE;
}

static PyObject *py_give_back_all(PyObject *op, PyObject *Py_UNUSED(none)) {
    const Reader *self = (Reader *)op;
    if (holds(self)) held_give_back_all(self->held);
    Py_RETURN_NONE;
}

static PyObject *py_coming(PyObject *op, PyObject *most) {
    Reader *self = (Reader *)op;
    Py_ssize_t wanted = PyNumber_AsSsize_t(most, NULL);
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    if (self->ring) return ring_coming(self->ring, wanted);
    PyObject *places = PyList_New(0);
    if (!places || !self->held || !held_ready(self->held)) return places;
    const HeldEntry *entry;
    for (uint64_t index = 0; PyList_GET_SIZE(places) < wanted && (entry = held_next_ready(self->held, &index));) {
        PyObject *place = Py_BuildValue("KK", (unsigned long long)entry->offset, (unsigned long long)entry->sequence);
        int failed = !place || PyList_Append(places, place);
        Py_XDECREF(place);
        if (failed) {
            Py_DECREF(places);
            return NULL;
        }
    }
    return places;
}

static PyObject *py_forget(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    int inside = self->owner == this_thread();
    if (!inside && enter(self)) return NULL;
    if (self->ring) ring_forget(self->ring);
    if (self->held) {
        held_drop_from(self->held, 0);
        store_cursor(self);
    }
    if (!inside) leave(self);
    Py_RETURN_NONE;
}

static void unbind(Reader *self) {
    self->limit = 0;
    let_go(&self->segment);
}

static PyObject *py_bind(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t begin;
    Py_buffer segment;
    if (check_count("bind", count, 2) || unsigned_from(args[1], UINT64_MAX, &begin) ||
        get_aligned(args[0], PyBUF_SIMPLE, SEGMENT_HEADER_SIZE, "segment is shorter than its header", &segment))
        return NULL;
    unbind(self);
    self->segment = segment;
    self->begin = begin;
    Py_RETURN_NONE;
}

static PyObject *py_unbind(PyObject *op, PyObject *Py_UNUSED(none)) {
    unbind((Reader *)op);
    Py_RETURN_NONE;
}

static PyObject *py_sleep_with(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    if (check_count("sleep_with", count, 2)) return NULL;
    double spin = PyFloat_AsDouble(args[1]);
    if (spin == -1.0 && PyErr_Occurred()) return NULL;
    if (self->sleepers.obj || self->control.readonly) {
        PyErr_SetString(PyExc_ValueError, self->sleepers.obj ? "said before" : "control page cannot be written to");
        return NULL;
    }
    if (get_aligned(args[0], PyBUF_WRITABLE, 8, "sleepers is too short", &self->sleepers)) {
        self->sleepers.obj = NULL;
        return NULL;
    }
    self->spin = spin;
    Py_RETURN_NONE;
}

static PyObject *py_tell_room(PyObject *op, PyObject *notify) {
    Reader *self = (Reader *)op;
    Py_XSETREF(self->notify, Py_NewRef(notify));
    Py_RETURN_NONE;
}

static PyObject *py_release(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    /* Whoever is inside stores the cursor first: what it hands out must not come again. */
    int inside = self->owner == this_thread();
    if (!inside && enter(self)) return NULL;
    int gave = shares(self) && ring_give_back_from(self->ring, 0, 1);
    self->released = 1;
    unbind(self);
    let_go(&self->cursor);
    if (!inside) leave(self);
    return PyBool_FromLong(gave);
}

/* The generation of the newest whole slot: the next one must not go over it. */
static uint64_t newest_generation(const uint8_t *cursor) {
    uint64_t newest = 0;
    for (int slot = 0; slot < 2; slot++) {
        const uint8_t *at = cursor + (slot ? CURSOR_SLOT_1 : CURSOR_SLOT_0);
        if (crc32c(0, at, 32) == get_u32(at + 32) && get_u64(at) > newest) newest = get_u64(at);
    }
    return newest;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *control, *cursor, *decode, *advance, *damaged, *refuse;
    int reuse = 0;
    Py_buffer words, slots = {.obj = NULL};
    if (check_no_keywords("Reader", keywords) ||
        !PyArg_ParseTuple(args, "OOOOOO|p:Reader", &control, &cursor, &decode, &advance, &damaged, &refuse, &reuse) ||
        get_aligned(control, PyBUF_SIMPLE, CONTROL_SIZE, "control page is too short", &words))
        return NULL;
    if (cursor != Py_None && get_aligned(cursor, PyBUF_WRITABLE, CURSOR_SLOT_1 + 64, "cursor is too short", &slots)) {
        PyBuffer_Release(&words);
        return NULL;
    }
    Reader *self = (Reader *)type->tp_alloc(type, 0);
    if (!self) {
        let_go(&slots);
        PyBuffer_Release(&words);
        return NULL;
    }
    self->control = words;
    self->cursor = slots;
    if (slots.obj) self->generation = newest_generation(slots.buf);
    callee_init(&self->decode, decode);
    self->reuse = reuse && decode != Py_None;
    self->advance = Py_NewRef(advance);
    self->damaged = Py_NewRef(damaged);
    self->refuse = Py_NewRef(refuse);
    return (PyObject *)self;
}

static int reader_traverse(PyObject *op, visitproc visit, void *arg) {
    Reader *self = (Reader *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->decode.callable);
    Py_VISIT(self->advance);
    Py_VISIT(self->damaged);
    Py_VISIT(self->refuse);
    Py_VISIT(self->tend);
    Py_VISIT(self->notify);
    /* Not the buffers: see writer.c. */
    return 0;
}

static void reader_dealloc(PyObject *op) {
    Reader *self = (Reader *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    let_go(&self->segment);
    let_go(&self->cursor);
    let_go(&self->control);
    let_go(&self->sleepers);
    held_free(self->held);
    ring_free(self->ring);
    Py_XDECREF(self->tend);
    Py_XDECREF(self->decode.callable);
    Py_XDECREF(self->scratch);
    Py_XDECREF(self->advance);
    Py_XDECREF(self->damaged);
    Py_XDECREF(self->refuse);
    Py_XDECREF(self->notify);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Where we stand; one that shares and reads nothing now stands where the group does. */
static void place_of(const Reader *self, uint64_t *offset, uint64_t *sequence) {
    if (self->ring && !self->owner) {
        ring_next(self->ring, offset, sequence);
        if (!self->follows || *offset != self->seen || *sequence != self->seen_sequence) return;
    }
    *offset = self->offset;
    *sequence = self->sequence;
}

static PyObject *get_offset(PyObject *op, void *Py_UNUSED(closure)) {
    uint64_t offset, sequence;
    place_of((Reader *)op, &offset, &sequence);
    return PyLong_FromUnsignedLongLong(offset);
}
static PyObject *get_may_have_more(PyObject *op, void *Py_UNUSED(closure)) {
    Reader *self = (Reader *)op;
    const uint8_t *words = self->control.buf;
    uint64_t offset, sequence;
    if ((self->held && held_ready(self->held)) || (self->ring && ring_ready(self->ring))) Py_RETURN_TRUE;
    place_of(self, &offset, &sequence);
    return PyBool_FromLong(load_acquire_u64(words + WRITE_TAIL) > offset || load_acquire_u32(words + STATE) & STATE_SEALED);
}
static PyObject *get_sequence(PyObject *op, void *Py_UNUSED(closure)) {
    uint64_t offset, sequence;
    place_of((Reader *)op, &offset, &sequence);
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyObject *get_outstanding(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    return PyLong_FromUnsignedLongLong(self->ring ? ring_out(self->ring) : self->held ? self->held->out : 0);
}
static PyObject *get_ready(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    return PyLong_FromUnsignedLongLong(self->ring ? ring_ready(self->ring) : self->held ? held_ready(self->held) : 0);
}
static PyObject *get_next_due(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    uint64_t due = self->ring ? ring_due(self->ring) : 0;
    if (self->ring) return PyLong_FromUnsignedLongLong(due == UINT64_MAX ? 0 : due);
    return PyLong_FromUnsignedLongLong(self->held ? held_next_due(self->held) : 0);
}
static PyObject *get_full(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    return PyBool_FromLong(self->ring && ring_full(self->ring));
}
static PyObject *get_drained(PyObject *op, void *Py_UNUSED(closure)) { return PyBool_FromLong(is_drained((Reader *)op)); }

#define FAST(name) (PyCFunction)(void (*)(void)) name
static PyMethodDef methods[] = {
    {"take", py_take, METH_NOARGS, "take($self, /)\n--\n\nReturn the next item, decoded, or NOTHING."},
    {"take_in_turn", py_take_in_turn, METH_NOARGS,
     "take_in_turn($self, /)\n--\n\nThe same for a coroutine: NOTHING also when it has to give way first."},
    {"take_record", py_take_record, METH_NOARGS,
     "take_record($self, /)\n--\n\nReturn (item, offset, sequence), or NOTHING."},
    {"take_delivery", py_take_delivery, METH_NOARGS,
     "take_delivery($self, /)\n--\n\nReturn (item, offset, sequence, attempt, token), or NOTHING."},
    {"take_many", py_take_many, METH_O,
     "take_many($self, most, /)\n--\n\nReturn up to `most` items; an error waits until what came before it is taken."},
    {"move", FAST(py_move), METH_FASTCALL,
     "move($self, offset, sequence, /)\n--\n\nStand at this record boundary and store it in the cursor."},
    {"move_from", FAST(py_move_from), METH_FASTCALL,
     "move_from($self, expected, offset, sequence, /)\n--\n\nMove only if still at the expected offset; tell whether."},
    {"bind", FAST(py_bind), METH_FASTCALL, "bind($self, segment, begin, /)\n--\n\nRead from this map."},
    {"unbind", py_unbind, METH_NOARGS, "unbind($self, /)\n--\n\nLet go of the segment; advance is asked for another."},
    {"sleep_with", FAST(py_sleep_with), METH_FASTCALL,
     "sleep_with($self, sleepers, spin, /)\n--\n\n"
     "Let threads sleep for more where they receive, having watched for so long, and count them."},
    {"tell_room", py_tell_room, METH_O,
     "tell_room($self, notify, /)\n--\n\nCall this when the cursor moved and event loops wait for room."},
    {"hold", py_hold, METH_NOARGS,
     "hold($self, /)\n--\n\nKeep what is handed out until it is acknowledged; the cursor follows the oldest."},
    {"share", FAST(py_share), METH_FASTCALL,
     "share($self, group, owner, lease, tend, /)\n--\n\nTake what no other member of a group has, each message for so many ns."},
    {"place_of", FAST(py_place_of), METH_FASTCALL,
     "place_of($self, offset, token, /)\n--\n\nReturn the number of the entry of one that is outstanding since that call; -1 if it is not."},
    {"refused", py_refused, METH_O,
     "refused($self, offset, /)\n--\n\nReturn (sequence, attempt, token) of one that did not decode, and is ours; None if there is none."},
    {"take_lost", py_take_lost, METH_NOARGS,
     "take_lost($self, /)\n--\n\nReturn, once, offset and token of what was to be settled and is not ours any more."},
    {"must_tell", py_must_tell, METH_NOARGS,
     "must_tell($self, /)\n--\n\nTell, once, whether others may wait for what was settled here, or something was lost."},
    {"ack", py_ack, METH_O, "ack($self, count, /)\n--\n\nSettle the oldest ones outstanding; False, and nothing changed, if there are fewer."},
    {"nack", py_nack, METH_O,
     "nack($self, count, /)\n--\n\nLet the newest ones outstanding come again, None: all; False, and nothing changed, if there are fewer."},
    {"settle", FAST(py_settle), METH_FASTCALL,
     "settle($self, offset, token, /)\n--\n\nSettle one that is outstanding since that call; False if it is not."},
    {"give_back", FAST(py_give_back), METH_FASTCALL,
     "give_back($self, offset, token, due, counted, /)\n--\n\nLet one come again, not before *due*; False if it is not outstanding since that call."},
    {"outlook", py_outlook, METH_NOARGS,
     "outlook($self, /)\n--\n\n"
     "Return (how many are outstanding, offset, sequence of the cursor if they are settled); None if older ones come again."},
    {"settle_before", py_settle_before, METH_O,
     "settle_before($self, offset, /)\n--\n\nSettle whatever is held and begins before an offset."},
    {"give_back_all", py_give_back_all, METH_NOARGS,
     "give_back_all($self, /)\n--\n\nLet everything come again that is outstanding; that attempt does not count."},
    {"coming", py_coming, METH_O,
     "coming($self, most, /)\n--\n\nReturn (offset, sequence) of what comes again now, up to so many."},
    {"forget", py_forget, METH_NOARGS, "forget($self, /)\n--\n\nForget what is held: the cursor goes where the next new one begins."},
    {"release", py_release, METH_NOARGS, "release($self, /)\n--\n\nLet go of segment and cursor; there is nothing to take any more. Tell whether something was given back."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef getset[] = {
    {"offset", get_offset, NULL, "Where the next record begins.", NULL},
    {"may_have_more", get_may_have_more, NULL, "Whether there is something behind our offset, or the channel is sealed.", NULL},
    {"sequence", get_sequence, NULL, "Number of the next message.", NULL},
    {"outstanding", get_outstanding, NULL, "How many are held and neither settled nor given back.", NULL},
    {"ready", get_ready, NULL, "How many come again now, before anything new.", NULL},
    {"full", get_full, NULL, "Whether nothing new can be handed out before something is settled.", NULL},
    {"next_due", get_next_due, NULL, "When the next delayed one comes again, in ns of the monotonic clock; 0 if none is delayed.", NULL},
    {"drained", get_drained, NULL, "Whether the channel is sealed, and nothing is held.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Reader(control, cursor, decode, advance, damaged, refuse, reuse=False, /)\n--\n\nReads records in order and decodes them."},
    {Py_tp_new, reader_new},  {Py_tp_traverse, reader_traverse}, {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, methods}, {Py_tp_getset, getset},            {0, NULL},
};
static PyType_Spec spec = {
    .name = "filechannel._format._core.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_reader(PyObject *module) { return (ReaderType = add_type(module, &spec)) ? 0 : -1; }
