/* Deliveries with ack tracking and in groups. The reference is in read/ack_tracking.py and read/group_claims.py. */
#include "read/reader.h"

/* --- Ack tracking: a delivery stays ours until it is acknowledged ----------------------------------------------- */

/* Move to the next message to redeliver. */
static void step_back(Reader *self, const UnackedEntry *entry) {
    self->front = self->offset;
    self->front_sequence = self->sequence;
    self->wanted = self->offset = entry->offset;
    self->sequence = entry->sequence;
    self->limit = 0;
    self->again = 1;
}

/* Return to where the reader resumes; if a callback moved it, the messages that waited in between no longer exist. */
static void step_forward(Reader *self, int taken) {
    uint64_t offset = self->offset, sequence = self->sequence;
    self->again = 0;
    self->limit = 0;
    self->offset = self->front;
    self->sequence = self->front_sequence;
    if (taken || offset == self->wanted) return;
    unacked_drop_waiting(self->unacked, self->wanted, offset > self->wanted ? offset : self->wanted + 1);
    if (offset > self->front) {
        self->offset = offset;
        self->sequence = sequence;
    }
    reader_store_cursor(self);
}

/* The next item with ack tracking: redelivered messages first, then new ones. */
PyObject *reader_next_tracked(Reader *self, int *empty, Given *given) {
    UnackedRing *unacked = self->unacked;
    const UnackedEntry *entry;
    while ((entry = unacked_first_ready(unacked))) {
        step_back(self, entry);
        PyObject *item = reader_next_item(self, empty, &given->offset);
        int gone = !item && *empty && self->offset != self->wanted;
        given->sequence = self->sequence - 1;
        step_forward(self, item != NULL);
        if (item) given->attempt = unacked_hand_out(unacked, given->offset);
        if (!gone) return item;
    }
    if (unacked_reserve(unacked)) {
        *empty = 0;
        return NULL;
    }
    PyObject *item = reader_next_item(self, empty, &given->offset);
    if (!item) return NULL;
    given->sequence = self->sequence - 1;
    given->attempt = 1;
    unacked_push(unacked, given->offset, given->sequence);
    return item;
}

/* --- Group claims: a delivery is ours until it is acknowledged, or the lease expires --------------------------------- */

int reader_is_sealed(const Reader *self) {
    return (load_acquire_u32((uint8_t *)self->control.buf + STATE) & STATE_SEALED) != 0;
}

/* Let Python do what is due. 1: continue; 0: nothing is available now; -1: an exception. */
static int tend(Reader *self) {
    PyObject *done = PyObject_CallOneArg(self->tend, (PyObject *)self);
    if (!done) return -1;
    int goes_on = done != Py_False;
    Py_DECREF(done);
    return goes_on;
}

/* The words of the group contradict each other: Python checks them with the lock unacked, and raises unless it was a
 * race. */
#define MOST_RACES 1000
static int check_damage(Reader *self, int *races) {
    if (++*races <= MOST_RACES) return tend(self);
    PyErr_SetString(PyExc_ValueError, "the words of the group contradict each other");
    return -1;
}

/* Move to the position of the group; return whether that changed it. Control records in between stay consumed. */
static int follow_group(Reader *self) {
    uint64_t offset, sequence;
    ring_next(self->ring, &offset, &sequence);
    if (self->follows && offset == self->seen && sequence == self->seen_sequence) return 0;
    self->offset = self->seen = offset;
    self->sequence = self->seen_sequence = sequence;
    self->follows = 1;
    if (offset < self->begin) self->limit = 0;
    return 1;
}

/* The payload of a redelivered message; NULL with *empty: it no longer exists; NULL otherwise: an exception, and the
 * claim was returned to the ring. */
static PyObject *read_again(Reader *self, Claim claim, int *empty, uint64_t *size) {
    self->follows = 0;
    self->wanted = self->offset = claim.offset;
    self->sequence = claim.sequence;
    self->limit = 0;
    self->again = 1;
    PyObject *payload = reader_next_payload(self, empty, size);
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

/* Claim the next message: one to be redelivered, or a new one that no other member claimed meanwhile. */
static PyObject *claim_next(Reader *self, int *empty, Claim *claimed, uint64_t *size) {
    Ring *ring = self->ring;
    const Claim *claim = NULL;
    int goes_on = 1, races = 0;
    *empty = 0;
    if (self->released) return *empty = 1, NULL;
    if (ring_is_due(ring)) goes_on = tend(self);
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
            if (ring_full(ring)) {
                if (!ring_suspect(ring)) break;
                goes_on = check_damage(self, &races);
                continue;
            }
            if (follow_group(self) && ring_suspect(ring)) {
                self->follows = 0;
                goes_on = check_damage(self, &races);
                continue;
            }
            payload = reader_next_payload(self, empty, size);
            if (!payload) return NULL;
            /* Python may have run, and used the reserved element. */
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
        if (outcome == CLAIM_DAMAGED) goes_on = check_damage(self, &races);
    }
    *empty = goes_on >= 0;
    return NULL;
}

/* The next item that no other member has. An item that does not decode stays claimed and is set apart, unless items
 * were taken before it in the same call: then it is returned to the ring. */
PyObject *reader_next_shared(Reader *self, int *empty, Given *given, int first) {
    Claim claim;
    uint64_t size;
    PyObject *payload = claim_next(self, empty, &claim, &size);
    if (!payload) {
        /* The member that acknowledged the last entry found the lock held by us, and left it to us to notify. */
        int changes = self->ring->changes & (reader_is_sealed(self) ? MADE_SPACE | EMPTIED : MADE_SPACE);
        if (*empty && changes && !self->released && tend(self) < 0) *empty = 0;
        return NULL;
    }
    *given = (Given){.offset = claim.offset, .sequence = claim.sequence, .token = claim.word, .attempt = claim_attempt(&claim)};
    slice_charge(size);
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
        reader_undecodable(self, claim.offset, payload, size);
    }
    Py_DECREF(payload);
    return item;
}
