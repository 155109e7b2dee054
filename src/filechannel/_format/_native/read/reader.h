/* What the files that make up Reader share. reader.c reads and delivers, reader_group_claims.c does so with ack
 * tracking and in groups, reader_acknowledge.c acknowledges, and reader_type.c defines the type. */
#pragma once
#include "core.h"

typedef struct {
    PyObject_HEAD
    Py_buffer control, segment, cursor; /* .obj is NULL where there is none */
    uint64_t begin, limit;
    uint64_t offset, sequence;
    uint64_t most;       /* bytes of a payload: a record that claims more is damaged */
    uint64_t generation; /* of the newest cursor slot */
    uint64_t time;       /* of the cursor: when it was last moved, or a few messages earlier */
    unsigned int stores; /* stores of the cursor until the clock is read again */
    UnackedRing *unacked;          /* NULL: no ack tracking, the cursor follows what is delivered */
    char redelivering;   /* we are at `wanted`, which is redelivered */
    Callee decode;       /* no callable: deliver the payload itself */
    char reuse;          /* decode accepts any buffer and does not keep it */
    Scratch *scratch;
    PyObject *advance, *damaged, *refuse;
    PyObject *notify; /* called when event loops wait for capacity; or NULL */
    const void *owner; /* the thread in a call: decode may run Python code and so let another thread run */
    char released;
    unsigned int waiting; /* threads in reader_wait, which use the control page without being the owner */
    Py_buffer sleepers;  /* how many threads sleep in reader_wait, for the code that wakes them; .obj is NULL if none may */
    double spin;         /* how long to spin before sleeping; 0: briefly, if that helps */
    unsigned int misses; /* waits since spinning briefly helped */
    uint64_t wanted, front, front_sequence; /* while a message is redelivered: its offset, and where we resume */
    Ring *ring;     /* NULL: not a member of a group */
    PyObject *tend; /* called when an entry of the group is due, or its lock was held for too long */
    uint64_t seen, seen_sequence; /* the position of the group when we last moved to it */
    char seen_is_valid;           /* whether that is known */
} Reader;

/* One delivery. */
typedef struct {
    uint64_t offset, sequence, token;
    uint32_t attempt;
} Delivery;

/* An address that is unique to this thread: cheaper than asking for its id. */
static inline const void *reader_thread(void) { return &slice_units; }

static inline int reader_tracks_acks(const Reader *self) { return self->unacked && !self->released; }
static inline int reader_shares(const Reader *self) { return self->ring && !self->released; }

/* reader.c */
int reader_enter(Reader *self);  /* keep other threads out; -1 with an exception if this thread is already in a call */
void reader_leave(Reader *self);
void reader_close(Reader *self); /* release every map, if the reader is released and no thread is in a call */
int reader_notify_if_moved(Reader *self, int done);
void reader_store_cursor(Reader *self);
PyObject *reader_next_payload(Reader *self, int *empty, uint64_t *size);
PyObject *reader_next_item(Reader *self, int *empty, uint64_t *start);
PyObject *reader_undecodable(Reader *self, uint64_t offset, PyObject *payload, uint64_t size);
PyObject *reader_take_method(PyObject *op, PyObject *none);
PyObject *reader_take_or_yield_method(PyObject *op, PyObject *none);
PyObject *reader_take_record_method(PyObject *op, PyObject *none);
PyObject *reader_take_delivery_method(PyObject *op, PyObject *none);
PyObject *reader_take_many_method(PyObject *op, PyObject *most);
PyObject *reader_move_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_move_from_method(PyObject *op, PyObject *const *args, Py_ssize_t count);

/* reader_group_claims.c */
int reader_is_sealed(const Reader *self);
PyObject *reader_next_tracked(Reader *self, int *empty, Delivery *delivery);
PyObject *reader_next_shared(Reader *self, int *empty, Delivery *delivery, int first);

/* reader_acknowledge.c */
int reader_is_drained(const Reader *self);
PyObject *reader_track_acks_method(PyObject *op, PyObject *none);
PyObject *reader_share_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_must_wake_method(PyObject *op, PyObject *none);
PyObject *reader_take_lost_method(PyObject *op, PyObject *none);
PyObject *reader_entry_number_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_refused_method(PyObject *op, PyObject *given);
PyObject *reader_ack_method(PyObject *op, PyObject *given);
PyObject *reader_nack_method(PyObject *op, PyObject *given);
PyObject *reader_acknowledge_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_redeliver_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_outlook_method(PyObject *op, PyObject *none);
PyObject *reader_acknowledge_before_method(PyObject *op, PyObject *given);
PyObject *reader_redeliver_all_method(PyObject *op, PyObject *none);
PyObject *reader_ready_positions_method(PyObject *op, PyObject *most);
PyObject *reader_forget_method(PyObject *op, PyObject *none);
