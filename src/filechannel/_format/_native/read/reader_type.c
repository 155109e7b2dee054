/* The Python type Reader. The reference is read/reader.py. */
#include "read/reader.h"

PyTypeObject *ReaderType;

static void unbind(Reader *self) {
    self->limit = 0;
    release_view(&self->segment);
}

/* Without callbacks there is no reference cycle left either. Whatever can still be called checks `released` first, or
 * loads a control page of zeros: there is nothing to read, and no process to wake. */
void reader_close(Reader *self) {
    if (self->owner || self->waiting || self->control.buf == zeros) return;
    Py_buffer control = self->control;
    self->control.obj = NULL;
    self->control.buf = (void *)zeros;
    self->control.readonly = 1;
    release_view(&control);
    release_view(&self->sleepers);
    if (self->ring) ring_close(self->ring);
    Py_CLEAR(self->advance);
    Py_CLEAR(self->damaged);
    Py_CLEAR(self->refuse);
    Py_CLEAR(self->tend);
    Py_CLEAR(self->notify);
}

static PyObject *py_bind(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Reader *self = (Reader *)op;
    uint64_t begin;
    Py_buffer segment;
    if (check_count("bind", count, 2) || unsigned_from(args[1], UINT64_MAX, &begin) ||
        get_aligned(args[0], PyBUF_SIMPLE, SEGMENT_HEADER_SIZE, "segment is shorter than its header", &segment))
        return NULL;
    unbind(self);
    if (self->released) { /* no later call would release it */
        PyBuffer_Release(&segment);
        Py_RETURN_NONE;
    }
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
    if (self->released) return raise_closed(), NULL;
    if (self->sleepers.obj || self->control.readonly) {
        PyErr_SetString(PyExc_ValueError, self->sleepers.obj ? "already set up" : "control page cannot be written to");
        return NULL;
    }
    if (get_aligned(args[0], PyBUF_WRITABLE, 8, "sleepers is too short", &self->sleepers)) {
        self->sleepers.obj = NULL;
        return NULL;
    }
    self->spin = spin;
    Py_RETURN_NONE;
}

static PyObject *py_notify_capacity(PyObject *op, PyObject *notify) {
    Reader *self = (Reader *)op;
    if (!self->released) Py_XSETREF(self->notify, Py_NewRef(notify));
    Py_RETURN_NONE;
}

/* The current log position; a group member that is not reading has the position of the group. */
static void log_position_in_group(const Reader *self, uint64_t *offset, uint64_t *sequence) {
    ring_next(self->ring, offset, sequence);
    if (!self->seen_is_valid || *offset != self->seen || *sequence != self->seen_sequence) return;
    *offset = self->offset;
    *sequence = self->sequence;
}

static void log_position_of(const Reader *self, uint64_t *offset, uint64_t *sequence) {
    *offset = self->offset;
    *sequence = self->sequence;
    if (self->ring && !self->owner && !self->released) log_position_in_group(self, offset, sequence);
}

static PyObject *py_release(PyObject *op, PyObject *Py_UNUSED(none)) {
    Reader *self = (Reader *)op;
    /* A thread in a call stores the cursor first: what it delivers must not be redelivered. */
    int inside = self->owner == reader_thread();
    if (!inside && reader_enter(self)) return NULL;
    int returned = reader_shares(self) && ring_redeliver_from(self->ring, 0, 1);
    uint64_t offset, sequence;
    if (self->ring && !self->released && !inside) { /* the ring cannot be read later */
        log_position_in_group(self, &offset, &sequence);
        self->offset = offset;
        self->sequence = sequence;
    }
    self->released = 1;
    unbind(self);
    release_view(&self->cursor);
    if (!inside) reader_leave(self);
    return PyBool_FromLong(returned);
}

/* The generation of the newest complete slot, which the next store must not overwrite. */
static uint64_t newest_generation(const uint8_t *cursor) {
    uint64_t newest = 0;
    for (int slot = 0; slot < 2; slot++) {
        const uint8_t *at = cursor + (slot ? CURSOR_SLOT_1 : CURSOR_SLOT_0);
        if (crc32c(0, at, 32) == get_u32(at + 32) && get_u64(at) > newest) newest = get_u64(at);
    }
    return newest;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *control, *cursor, *decode, *advance, *damaged, *refuse, *limit = NULL;
    int reuse = 0;
    uint64_t most = LENGTH_MASK;
    Py_buffer words, slots = {.obj = NULL};
    if (check_no_keywords("Reader", keywords) ||
        !PyArg_ParseTuple(args, "OOOOOO|pO:Reader", &control, &cursor, &decode, &advance, &damaged, &refuse, &reuse, &limit) ||
        (limit && unsigned_from(limit, LENGTH_MASK, &most)) ||
        get_aligned(control, PyBUF_SIMPLE, CONTROL_SIZE, "control page is too short", &words))
        return NULL;
    if (cursor != Py_None && get_aligned(cursor, PyBUF_WRITABLE, CURSOR_SLOT_1 + 64, "cursor is too short", &slots)) {
        PyBuffer_Release(&words);
        return NULL;
    }
    Reader *self = (Reader *)type->tp_alloc(type, 0);
    if (!self) {
        release_view(&slots);
        PyBuffer_Release(&words);
        return NULL;
    }
    self->control = words;
    self->cursor = slots;
    self->most = most;
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
    release_view(&self->segment);
    release_view(&self->cursor);
    release_view(&self->control);
    release_view(&self->sleepers);
    unacked_free(self->unacked);
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

static PyObject *get_offset(PyObject *op, void *Py_UNUSED(closure)) {
    uint64_t offset, sequence;
    log_position_of((Reader *)op, &offset, &sequence);
    return PyLong_FromUnsignedLongLong(offset);
}
static PyObject *get_may_have_more(PyObject *op, void *Py_UNUSED(closure)) {
    Reader *self = (Reader *)op;
    const uint8_t *words = self->control.buf;
    uint64_t offset, sequence;
    if ((self->unacked && unacked_ready(self->unacked)) || (self->ring && ring_ready(self->ring))) Py_RETURN_TRUE;
    if (self->released) Py_RETURN_FALSE;
    log_position_of(self, &offset, &sequence);
    return PyBool_FromLong(load_acquire_u64(words + WRITE_TAIL) != offset || load_acquire_u32(words + STATE) & STATE_SEALED);
}
static PyObject *get_sequence(PyObject *op, void *Py_UNUSED(closure)) {
    uint64_t offset, sequence;
    log_position_of((Reader *)op, &offset, &sequence);
    return PyLong_FromUnsignedLongLong(sequence);
}

static PyObject *get_outstanding(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    return PyLong_FromUnsignedLongLong(self->ring ? ring_out(self->ring) : self->unacked ? self->unacked->out : 0);
}
static PyObject *get_ready(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    return PyLong_FromUnsignedLongLong(self->ring ? ring_ready(self->ring) : self->unacked ? unacked_ready(self->unacked) : 0);
}
static PyObject *get_next_due(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    uint64_t due = self->ring ? ring_due(self->ring) : 0;
    if (self->ring) return PyLong_FromUnsignedLongLong(due == UINT64_MAX ? 0 : due);
    return PyLong_FromUnsignedLongLong(self->unacked ? unacked_next_due(self->unacked) : 0);
}
static PyObject *get_full(PyObject *op, void *Py_UNUSED(closure)) {
    const Reader *self = (Reader *)op;
    return PyBool_FromLong(self->ring && ring_full(self->ring) && !ring_suspect(self->ring));
}
static PyObject *get_drained(PyObject *op, void *Py_UNUSED(closure)) { return PyBool_FromLong(reader_is_drained((Reader *)op)); }

static PyMethodDef methods[] = {
    {"take", reader_take_method, METH_NOARGS, "take($self, /)\n--\n\nReturn the next item, decoded, or NOTHING."},
    {"take_or_yield", reader_take_or_yield_method, METH_NOARGS,
     "take_or_yield($self, /)\n--\n\nLike `take`, for a coroutine: NOTHING also if the task has to yield first."},
    {"take_record", reader_take_record_method, METH_NOARGS,
     "take_record($self, /)\n--\n\nReturn (item, offset, sequence), or NOTHING."},
    {"take_delivery", reader_take_delivery_method, METH_NOARGS,
     "take_delivery($self, /)\n--\n\nReturn (item, offset, sequence, attempt, token), or NOTHING."},
    {"take_many", reader_take_many_method, METH_O,
     "take_many($self, most, /)\n--\n\n"
     "Return up to `most` items; an error is raised by the next call if items were taken before it."},
    {"move", FAST(reader_move_method), METH_FASTCALL,
     "move($self, offset, sequence, /)\n--\n\nMove to this record boundary and store it in the cursor."},
    {"move_from", FAST(reader_move_from_method), METH_FASTCALL,
     "move_from($self, expected, offset, sequence, /)\n--\n\n"
     "Move only if still at the expected offset; return whether it moved."},
    {"bind", FAST(py_bind), METH_FASTCALL, "bind($self, segment, begin, /)\n--\n\nRead from this map."},
    {"unbind", py_unbind, METH_NOARGS, "unbind($self, /)\n--\n\n"
     "Release the segment; the next call asks `advance` for another one."},
    {"sleep_with", FAST(py_sleep_with), METH_FASTCALL,
     "sleep_with($self, sleepers, spin, /)\n--\n\n"
     "Let threads that receive sleep in the reader after spinning for *spin* seconds, and count them in "
     "*sleepers*. The C core does that, to save the cost of Python calls; with the pure-Python implementation the "
     "caller sleeps."},
    {"notify_capacity", py_notify_capacity, METH_O,
     "notify_capacity($self, notify, /)\n--\n\n"
     "Call this when the cursor moved and event loops wait for capacity."},
    {"track_acks", reader_track_acks_method, METH_NOARGS,
     "track_acks($self, /)\n--\n\nTrack acknowledgements: from now on the cursor stores the oldest unacknowledged message."},
    {"share", FAST(reader_share_method), METH_FASTCALL,
     "share($self, group, owner, lease, tend, /)\n--\n\n"
     "Take messages that no other member of the group has claimed, each one for *lease* ns. *tend* is called when "
     "an entry is due, or another member has the lock for too long; nothing is taken if it returns False."},
    {"entry_number", FAST(reader_entry_number_method), METH_FASTCALL,
     "entry_number($self, offset, token, /)\n--\n\n"
     "Return the entry number of an outstanding delivery; -1 if it is not outstanding."},
    {"refused", reader_refused_method, METH_O,
     "refused($self, offset, /)\n--\n\n"
     "Return (sequence, attempt, token) of a claim of this member that did not decode; None if there is none."},
    {"take_lost", reader_take_lost_method, METH_NOARGS,
     "take_lost($self, /)\n--\n\n"
     "Return, once, offset and token of the deliveries that were to be acknowledged but whose claim was lost."},
    {"must_wake", reader_must_wake_method, METH_NOARGS,
     "must_wake($self, /)\n--\n\n"
     "Return, once, whether other processes may wait for what was acknowledged here, or a claim was lost."},
    {"ack", reader_ack_method, METH_O, "ack($self, count, /)\n--\n\n"
     "Acknowledge the oldest outstanding deliveries; False, with nothing changed, if there are fewer."},
    {"nack", reader_nack_method, METH_O,
     "nack($self, count, /)\n--\n\n"
     "Redeliver the newest outstanding messages, None: all; False, with nothing changed, if there are fewer."},
    {"acknowledge", FAST(reader_acknowledge_method), METH_FASTCALL,
     "acknowledge($self, offset, token, /)\n--\n\n"
     "Acknowledge one delivery, identified by offset and token; False if it is not outstanding."},
    {"redeliver", FAST(reader_redeliver_method), METH_FASTCALL,
     "redeliver($self, offset, token, due, counted, /)\n--\n\n"
     "Redeliver one message, not before *due*; False if it is not outstanding."},
    {"outlook", reader_outlook_method, METH_NOARGS,
     "outlook($self, /)\n--\n\n"
     "Return (how many are outstanding, offset, sequence of the cursor once they are acknowledged). None if an "
     "older message is to be redelivered: then there is no such log position."},
    {"acknowledge_before", reader_acknowledge_before_method, METH_O,
     "acknowledge_before($self, offset, /)\n--\n\nAcknowledge every delivery that begins before an offset."},
    {"redeliver_all", reader_redeliver_all_method, METH_NOARGS,
     "redeliver_all($self, /)\n--\n\nRedeliver everything outstanding; the attempt is not counted."},
    {"ready_positions", reader_ready_positions_method, METH_O,
     "ready_positions($self, most, /)\n--\n\n"
     "Return (offset, sequence) of at most *most* messages that are ready to be redelivered."},
    {"forget", reader_forget_method, METH_NOARGS, "forget($self, /)\n--\n\nForget all deliveries: the cursor moves to the next new message."},
    {"release", py_release, METH_NOARGS, "release($self, /)\n--\n\n"
     "Release every map now or, if this thread is in a call, when it returns. Nothing can be taken after that. "
     "Returns whether any claim was returned to the ring."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef getset[] = {
    {"offset", get_offset, NULL, "Where the next record begins.", NULL},
    {"may_have_more", get_may_have_more, NULL, "Whether the log does not end at the current offset, or the channel is sealed.", NULL},
    {"sequence", get_sequence, NULL, "Number of the next message: its sequence.", NULL},
    {"outstanding", get_outstanding, NULL, "How many deliveries are outstanding: neither acknowledged nor redelivered.", NULL},
    {"ready", get_ready, NULL, "How many messages are ready to be redelivered before new ones.", NULL},
    {"full", get_full, NULL, "Whether nothing new can be delivered before a delivery is acknowledged.", NULL},
    {"next_due", get_next_due, NULL, "When the next delayed message is redelivered, in ns of the monotonic clock; 0 if none is delayed. For a "
     "group member: when a member must check the claims of the group.", NULL},
    {"drained", get_drained, NULL, "Whether the channel is sealed, and no delivery is unacknowledged.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Reader(control, cursor, decode, advance, damaged, refuse, reuse=False, most=1073741823, /)\n--\n\nReads records in order and decodes them."},
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
