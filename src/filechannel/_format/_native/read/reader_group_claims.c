/* Deliveries with ack tracking and in groups. The reference is in read/ack_tracking.py and read/group_claims.py. */
#include "read/reader.h"

/* --- Ack tracking: a delivery stays ours until it is acknowledged ----------------------------------------------- */

/* Move to the next message to redeliver. */
static void begin_redelivery(Reader *self, const UnackedEntry *entry) {
    self->front = self->offset;
    self->front_sequence = self->sequence;
    self->wanted = self->offset = entry->offset;
    self->sequence = entry->sequence;
    self->limit = 0;
    self->redelivering = 1;
}

/* Return to where the reader resumes; if a callback moved it, the messages that waited in between no longer exist. */
static void end_redelivery(Reader *self, int taken) {
    uint64_t offset = self->offset, sequence = self->sequence;
    self->redelivering = 0;
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
PyObject *reader_next_tracked(Reader *self, int *empty, Delivery *delivery) {
    UnackedRing *unacked = self->unacked;
    const UnackedEntry *entry;
    while ((entry = unacked_first_ready(unacked))) {
        begin_redelivery(self, entry);
        PyObject *item = reader_next_item(self, empty, &delivery->offset);
        int gone = !item && *empty && self->offset != self->wanted;
        delivery->sequence = self->sequence - 1;
        end_redelivery(self, item != NULL);
        if (item) delivery->attempt = unacked_mark_redelivered(unacked, delivery->offset);
        if (!gone) return item;
    }
    if (unacked_reserve(unacked)) {
        *empty = 0;
        return NULL;
    }
    PyObject *item = reader_next_item(self, empty, &delivery->offset);
    if (!item) return NULL;
    delivery->sequence = self->sequence - 1;
    delivery->attempt = 1;
    unacked_push(unacked, delivery->offset, delivery->sequence);
    return item;
}

/* --- Group claims: a delivery is ours until it is acknowledged, or the lease expires ---------------------------- */

int reader_is_sealed(const Reader *self) {
    return (load_acquire_u32((uint8_t *)self->control.buf + STATE) & STATE_SEALED) != 0;
}

/* Let Python do what is due. 1: continue; 0: nothing is available now; -1: an exception. */
static int tend(Reader *self) {
    PyObject *done = PyObject_CallOneArg(self->tend, (PyObject *)self);
    if (!done) return -1;
    int may_continue = done != Py_False;
    Py_DECREF(done);
    return may_continue;
}

/* The words of the group contradict each other: Python checks them with the lock held, and raises unless it was a
 * race. */
#define MOST_RACES 1000
static int check_damage(Reader *self, int *races) {
    if (++*races <= MOST_RACES) return tend(self);
    PyErr_SetString(PyExc_ValueError, "the words of the group contradict each other");
    return -1;
}

/* Move to the position of the group; return whether that changed it. Control records in between stay consumed. */
static int update_position(Reader *self) {
    uint64_t offset, sequence;
    ring_next(self->ring, &offset, &sequence);
    if (self->seen_is_valid && offset == self->seen && sequence == self->seen_sequence) return 0;
    self->offset = self->seen = offset;
    self->sequence = self->seen_sequence = sequence;
    self->seen_is_valid = 1;
    if (offset < self->begin) self->limit = 0;
    return 1;
}

/* The payload of a redelivered message; NULL with *empty: it no longer exists; NULL otherwise: an exception, and the
 * claim was returned to the ring. */
static PyObject *read_redelivered(Reader *self, Claim claim, int *empty, uint64_t *size) {
    self->seen_is_valid = 0;
    self->wanted = self->offset = claim.offset;
    self->sequence = claim.sequence;
    self->limit = 0;
    self->redelivering = 1;
    PyObject *payload = reader_next_payload(self, empty, size);
    self->redelivering = 0;
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
    int may_continue = 1, races = 0;
    *empty = 0;
    if (self->released) return *empty = 1, NULL;
    if (ring_is_due(ring)) may_continue = tend(self);
    while (may_continue > 0 && !self->released) {
        if (ring_reserve(ring)) return NULL;
        enum claimed outcome;
        PyObject *payload = NULL;
        if (ring_ready(ring)) {
            outcome = ring_claim_ready(ring, &claim);
            if (outcome == CLAIMED) {
                *claimed = *claim;
                payload = read_redelivered(self, *claimed, empty, size);
                if (payload || !*empty) return payload;
                *empty = 0;
                continue;
            }
        } else {
            if (ring_full(ring)) {
                if (!ring_suspect(ring)) break;
                may_continue = check_damage(self, &races);
                continue;
            }
            if (update_position(self) && ring_suspect(ring)) {
                self->seen_is_valid = 0;
                may_continue = check_damage(self, &races);
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
        if (outcome == CLAIM_LOCKED) may_continue = tend(self);
        if (outcome == CLAIM_DAMAGED) may_continue = check_damage(self, &races);
    }
    *empty = may_continue >= 0;
    return NULL;
}

/* The next item that no other member has. An item that does not decode stays claimed and is set apart, unless items
 * were taken before it in the same call: then it is returned to the ring. */
PyObject *reader_next_shared(Reader *self, int *empty, Delivery *delivery, int first) {
    Claim claim;
    uint64_t size;
    PyObject *payload = claim_next(self, empty, &claim, &size);
    if (!payload) {
        /* The member that acknowledged the last entry found the lock held by us, and left it to us to notify. */
        int changes = self->ring->changes & (reader_is_sealed(self) ? MADE_SPACE | EMPTIED : MADE_SPACE);
        if (*empty && changes && !self->released && tend(self) < 0) *empty = 0;
        return NULL;
    }
    *delivery = (Delivery){.offset = claim.offset, .sequence = claim.sequence, .token = claim.word, .attempt = claim_attempt(&claim)};
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
