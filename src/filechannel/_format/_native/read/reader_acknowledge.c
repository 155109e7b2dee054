/* Acknowledging deliveries. The reference is in read/ack_tracking.py and read/group_claims.py.
 *
 * No need for reader_enter: nothing here calls Python, so the GIL orders the threads. */
#include "read/reader.h"

PyObject *reader_track_acks_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    if (self->unacked || self->ring) {
        PyErr_SetString(PyExc_ValueError, "already set up");
        return NULL;
    }
    if (!(self->unacked = unacked_new())) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject *reader_share_method(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t owner, lease;
    if (check_count("share", count, 4) || unsigned_from(args[1], UINT32_MAX, &owner) || unsigned_from(args[2], UINT64_MAX, &lease)) return NULL;
    if (self->released) return raise_closed(), NULL;
    if (self->unacked || self->ring) {
        PyErr_SetString(PyExc_ValueError, "already set up");
        return NULL;
    }
    if (!(self->ring = ring_new(args[0], (uint32_t)owner, lease))) return NULL;
    self->tend = Py_NewRef(args[3]);
    Py_RETURN_NONE;
}

int reader_ack(PyObject *op, uint64_t count) {
    Reader *self = (Reader *)op;
    if (self->ring) return reader_notify_if_moved(self, reader_shares(self) && ring_ack(self->ring, count));
    int moved, done = reader_tracks_acks(self) && unacked_ack(self->unacked, count, &moved);
    if (done && moved) reader_store_cursor(self);
    return done;
}

/* Whether everything in a sealed channel was delivered: more records than the seal may lie after the last message. */
static int all_delivered(const Reader *self) {
    const uint8_t *tail = (const uint8_t *)self->control.buf + WRITE_TAIL;
    uint64_t offset, sequence, end = load_acquire_u64(tail);
    ring_next(self->ring, &offset, &sequence);
    for (int slot = TAIL_SLOT_0; slot <= TAIL_SLOT_1; slot += TAIL_SLOT_1 - TAIL_SLOT_0)
        if (load_acquire_u64(tail + slot) == end) return sequence >= load_acquire_u64(tail + slot + 8);
    return 1;
}

int reader_is_drained(const Reader *self) {
    if (!reader_is_sealed(self) || (self->unacked && unacked_oldest(self->unacked))) return 0;
    return !self->ring || (ring_empty(self->ring) && all_delivered(self));
}

int reader_must_wake(PyObject *op) {
    const Reader *self = (Reader *)op;
    if (!self->ring) return reader_is_drained(self);
    int changes = self->ring->changes;
    self->ring->changes = 0;
    if (changes & (MADE_SPACE | DAMAGED) || (self->ring->lost && PyList_GET_SIZE(self->ring->lost))) return 1;
    return changes & EMPTIED && reader_is_drained(self);
}

PyObject *reader_must_wake_method(PyObject *op, PyObject *Py_UNUSED(none)) { return PyBool_FromLong(reader_must_wake(op)); }

PyObject *reader_take_lost_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    PyObject *lost = self->ring ? self->ring->lost : NULL;
    if (!lost) return PyList_New(0);
    self->ring->lost = NULL;
    return lost;
}

PyObject *reader_entry_number_method(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, token;
    if (check_count("entry_number", count, 2) || unsigned_from(args[0], UINT64_MAX, &offset) || unsigned_from(args[1], UINT64_MAX, &token))
        return NULL;
    return PyLong_FromLongLong(self->ring ? ring_entry_number(self->ring, offset, token) : -1);
}

PyObject *reader_refused_method(PyObject *op, PyObject *given) {
    Reader *self = (Reader *)op;
    uint64_t offset;
    if (unsigned_from(given, UINT64_MAX, &offset)) return NULL;
    const Claim *claim = self->ring ? ring_refused(self->ring, offset) : NULL;
    if (!claim) Py_RETURN_NONE;
    return Py_BuildValue("KIK", (unsigned long long)claim->sequence, (unsigned int)claim_attempt(claim), (unsigned long long)claim->word);
}

/* A number that is too large becomes the largest, a negative one becomes 0. */
static int number_from(PyObject *given, uint64_t *count) {
    Py_ssize_t number = PyNumber_AsSsize_t(given, NULL);
    *count = number > 0 ? (uint64_t)number : 0;
    return number == -1 && PyErr_Occurred() ? -1 : 0;
}

PyObject *reader_ack_method(PyObject *op, PyObject *given) {
    uint64_t count;
    return number_from(given, &count) ? NULL : PyBool_FromLong(reader_ack(op, count));
}

PyObject *reader_nack_method(PyObject *op, PyObject *given) {
    Reader *self = (Reader *)op;
    uint64_t count = self->ring ? self->ring->out : self->unacked ? self->unacked->out : 0;
    if (given != Py_None && number_from(given, &count)) return NULL;
    if (self->ring) return PyBool_FromLong(reader_notify_if_moved(self, reader_shares(self) && ring_nack(self->ring, count)));
    return PyBool_FromLong(reader_tracks_acks(self) && unacked_nack(self->unacked, count));
}

PyObject *reader_acknowledge_method(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, token;
    if (check_count("acknowledge", count, 2) || unsigned_from(args[0], UINT64_MAX, &offset) || unsigned_from(args[1], UINT64_MAX, &token))
        return NULL;
    if (self->ring) return PyBool_FromLong(reader_notify_if_moved(self, reader_shares(self) && ring_acknowledge(self->ring, offset, token)));
    int moved, done = reader_tracks_acks(self) && unacked_acknowledge(self->unacked, offset, token, &moved);
    if (done && moved) reader_store_cursor(self);
    return PyBool_FromLong(done);
}

PyObject *reader_redeliver_method(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t offset, token, due;
    if (check_count("redeliver", count, 4) || unsigned_from(args[0], UINT64_MAX, &offset) ||
        unsigned_from(args[1], UINT64_MAX, &token) || unsigned_from(args[2], UINT64_MAX, &due))
        return NULL;
    int counted = PyObject_IsTrue(args[3]);
    if (counted < 0) return NULL;
    if (self->ring) return PyBool_FromLong(reader_notify_if_moved(self, reader_shares(self) && ring_redeliver(self->ring, offset, token, due, counted)));
    return PyBool_FromLong(reader_tracks_acks(self) && unacked_redeliver(self->unacked, offset, token, due, counted));
}

PyObject *reader_outlook_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    const Reader *self = (Reader *)op;
    const UnackedEntry *waiting;
    if (!reader_tracks_acks(self) || !unacked_in_order(self->unacked, &waiting)) Py_RETURN_NONE;
    uint64_t offset = waiting ? waiting->offset : self->redelivering ? self->front : self->offset;
    uint64_t sequence = waiting ? waiting->sequence : self->redelivering ? self->front_sequence : self->sequence;
    return Py_BuildValue("KKK", (unsigned long long)self->unacked->out, (unsigned long long)offset, (unsigned long long)sequence);
}

PyObject *reader_acknowledge_before_method(PyObject *op, PyObject *given) {
    Reader *self = (Reader *)op;
    uint64_t offset;
    if (unsigned_from(given, UINT64_MAX, &offset)) return NULL;
    if (reader_tracks_acks(self) && unacked_acknowledge_before(self->unacked, offset)) reader_store_cursor(self);
    Py_RETURN_NONE;
}

PyObject *reader_redeliver_all_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    const Reader *self = (Reader *)op;
    if (reader_tracks_acks(self)) unacked_redeliver_all(self->unacked);
    Py_RETURN_NONE;
}

PyObject *reader_ready_positions_method(PyObject *op, PyObject *most) {
    Reader *self = (Reader *)op;
    Py_ssize_t wanted = PyNumber_AsSsize_t(most, NULL);
    if (wanted == -1 && PyErr_Occurred()) return NULL;
    if (self->ring) return ring_ready_positions(self->ring, wanted);
    PyObject *positions = PyList_New(0);
    if (!positions || !self->unacked || !unacked_ready(self->unacked)) return positions;
    const UnackedEntry *entry;
    for (uint64_t index = 0; PyList_GET_SIZE(positions) < wanted && (entry = unacked_next_ready(self->unacked, &index));) {
        PyObject *position = Py_BuildValue("KK", (unsigned long long)entry->offset, (unsigned long long)entry->sequence);
        int failed = !position || PyList_Append(positions, position);
        Py_XDECREF(position);
        if (failed) {
            Py_DECREF(positions);
            return NULL;
        }
    }
    return positions;
}

PyObject *reader_forget_method(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    int inside = self->owner == reader_thread();
    if (!inside && reader_enter(self)) return NULL;
    if (self->ring) ring_forget(self->ring);
    if (self->unacked) {
        unacked_drop_from(self->unacked, 0);
        reader_store_cursor(self);
    }
    if (!inside) reader_leave(self);
    Py_RETURN_NONE;
}
