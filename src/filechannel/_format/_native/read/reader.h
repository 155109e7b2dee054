/* What the files that make up Reader share: reader.c hands out, reader_sharing.c holds and shares, reader_settling.c
 * acknowledges, and reader_type.c is the type. */
#pragma once
#include "core.h"

typedef struct {
    PyObject_HEAD
    Py_buffer control, segment, cursor; /* .obj is NULL where there is none */
    uint64_t begin, limit;
    uint64_t offset, sequence;
    uint64_t most;       /* bytes of a payload: a record that claims more is damaged */
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
    unsigned int waiting; /* threads in reader_wait, which use the control page without being inside */
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
static inline const void *reader_thread(void) { return &turn_units; }

static inline int reader_holds(const Reader *self) { return self->held && !self->released; }
static inline int reader_shares(const Reader *self) { return self->ring && !self->released; }

/* reader.c */
int reader_enter(Reader *self);  /* let no other thread in; -1 with an exception if this one is inside already */
void reader_leave(Reader *self);
void reader_close(Reader *self); /* release every map, if the reader is released and no thread is inside */
int reader_told(Reader *self, int done);
void reader_store_cursor(Reader *self);
PyObject *reader_next_payload(Reader *self, int *empty, uint64_t *size);
PyObject *reader_next_item(Reader *self, int *empty, uint64_t *start);
PyObject *reader_undecodable(Reader *self, uint64_t offset, PyObject *payload, uint64_t size);
PyObject *reader_take_method(PyObject *op, PyObject *none);
PyObject *reader_take_in_turn_method(PyObject *op, PyObject *none);
PyObject *reader_take_record_method(PyObject *op, PyObject *none);
PyObject *reader_take_delivery_method(PyObject *op, PyObject *none);
PyObject *reader_take_many_method(PyObject *op, PyObject *most);
PyObject *reader_move_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_move_from_method(PyObject *op, PyObject *const *args, Py_ssize_t count);

/* reader_sharing.c */
int reader_is_sealed(const Reader *self);
PyObject *reader_next_held(Reader *self, int *empty, Given *given);
PyObject *reader_next_shared(Reader *self, int *empty, Given *given, int first);

/* reader_settling.c */
int reader_is_drained(const Reader *self);
PyObject *reader_hold_method(PyObject *op, PyObject *none);
PyObject *reader_share_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_must_tell_method(PyObject *op, PyObject *none);
PyObject *reader_take_lost_method(PyObject *op, PyObject *none);
PyObject *reader_place_of_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_refused_method(PyObject *op, PyObject *given);
PyObject *reader_ack_method(PyObject *op, PyObject *given);
PyObject *reader_nack_method(PyObject *op, PyObject *given);
PyObject *reader_settle_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_give_back_method(PyObject *op, PyObject *const *args, Py_ssize_t count);
PyObject *reader_outlook_method(PyObject *op, PyObject *none);
PyObject *reader_settle_before_method(PyObject *op, PyObject *given);
PyObject *reader_give_back_all_method(PyObject *op, PyObject *none);
PyObject *reader_coming_method(PyObject *op, PyObject *most);
PyObject *reader_forget_method(PyObject *op, PyObject *none);
