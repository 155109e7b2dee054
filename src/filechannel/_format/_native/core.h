/* What the files of the native core share. Each subject has its own .c file, named in the comments below. */
#ifndef FILECHANNEL_CORE_H
#define FILECHANNEL_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "crc32c.h"
#include "layout.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native core stores native integers and needs a little-endian machine; the pure-Python twin does not"
#endif

/* Values inside records are not aligned: go through memcpy, which compiles to one plain access. */
static inline uint32_t get_u32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static inline uint64_t get_u64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }
static inline void put_u32(uint8_t *at, uint32_t v) { memcpy(at, &v, 4); }
static inline void put_u64(uint8_t *at, uint64_t v) { memcpy(at, &v, 8); }

/* Small payloads are the rule, and calling memcpy for one costs more than the copy. */
static inline void copy_payload_bytes(uint8_t *to, const char *from, size_t size) {
    const uint8_t *at = (const uint8_t *)from;
    if (size > 32) {
        memcpy(to, at, size);
    } else if (size >= 16) {
        memcpy(to, at, 16);
        memcpy(to + size - 16, at + size - 16, 16);
    } else if (size >= 8) {
        put_u64(to, get_u64(at));
        put_u64(to + size - 8, get_u64(at + size - 8));
    } else if (size >= 4) {
        put_u32(to, get_u32(at));
        put_u32(to + size - 4, get_u32(at + size - 4));
    } else
        while (size--) *to++ = *at++;
}

/* Shared words are aligned, and other processes read them while we write. */
static inline uint32_t load_acquire_u32(const uint8_t *at) { return __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE); }
static inline uint64_t load_acquire_u64(const uint8_t *at) { return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE); }
static inline void store_release_u32(uint8_t *at, uint32_t v) { __atomic_store_n((uint32_t *)at, v, __ATOMIC_RELEASE); }
static inline void store_release_u64(uint8_t *at, uint64_t v) { __atomic_store_n((uint64_t *)at, v, __ATOMIC_RELEASE); }
static inline int swap_if_u32(uint8_t *at, uint32_t expected, uint32_t value) {
    return __atomic_compare_exchange_n((uint32_t *)at, &expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Between two looks at a word that another core is about to change. */
static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* waiting.c */
int futex_wake(uint8_t *at, int count);
/* Clear the bits of a word that say who waits, and wake the threads; returns the bits. A full fence lies before it. */
uint32_t wake_waiters(uint8_t *word);
/* For a reader that has nothing behind its offset, without the GIL. `seen` is the wake word as it was before the caller
 * looked for other reasons not to sleep: if its generation has changed since, there may be one. Returns an errno, or 0. */
int watch_for_more(const uint8_t *words, uint64_t offset, double seconds); /* whether there is */
int sleep_for_more(uint8_t *words, uint64_t offset, uint32_t seen, double seconds);
/* An exchange rather than a store: on x86 it is also the fence between what was published and the look at `wake`. */
static inline void release_word(uint8_t *at) {
    if (__atomic_exchange_n((uint32_t *)at, 0, __ATOMIC_SEQ_CST) & CONTENDED) futex_wake(at, 1);
#if !defined(__x86_64__) && !defined(__i386__)
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* records.c */
enum record_state { RECORD_OK, RECORD_CUT, RECORD_BAD, RECORD_LONG /* more than a payload may have */ };
/* Never 0: once in 4 GiB there is an offset at which eight zero bytes would be a valid, empty record. */
static inline uint32_t record_crc(uint32_t payload_crc, uint32_t word, uint64_t offset) {
    uint32_t crc;
#ifdef CRC32C_INSTRUCTION
    if (crc32c_has_instruction) { /* from registers: bytes just stored could not be loaded at once in other sizes */
        crc = crc32c_step_64(~payload_crc, (uint64_t)word | offset << 32);
        crc = ~crc32c_step_32(crc, (uint32_t)(offset >> 32));
        return crc ? crc : UINT32_MAX;
    }
#endif
    uint8_t tail[12];
    put_u32(tail, word);
    put_u64(tail + 4, offset);
    crc = crc32c(payload_crc, tail, sizeof tail);
    return crc ? crc : UINT32_MAX;
}
enum record_state record_check(const uint8_t *base, uint64_t position, uint64_t stop, uint64_t offset, uint32_t *word);
PyObject *record_copy(const uint8_t *base, uint64_t position, uint64_t stop, uint64_t offset, uint64_t most, uint32_t *word,
                      enum record_state *state); /* NULL with state RECORD_OK: an exception is set */
const char *record_reason(enum record_state state);

/* mutex.c: how many mutexes and readers this thread has for itself; another thread would wait for them */
extern _Thread_local Py_ssize_t locked_here __attribute__((tls_model("initial-exec")));

/* clock.c */
#define TURN_UNITS 32
#define BYTES_PER_UNIT_SHIFT 9
uint64_t wall_clock_ns(void);  /* a few milliseconds late, but cheap */
uint64_t exact_clock_ns(void);
uint64_t monotonic_ns(void);
extern _Thread_local int64_t turn_units __attribute__((tls_model("initial-exec")));
int turn_over_by_clock(void);
void turn_begin(void);
static inline void turn_charge(size_t bytes) { turn_units -= 1 + (int64_t)(bytes >> BYTES_PER_UNIT_SHIFT); }
static inline int turn_over(void) { return turn_units <= 0 && turn_over_by_clock(); }

/* writer.c */
#define MOST_MARKS 4096 /* of 256 MiB, which takes longer than the second for which they wait; more are left out */
typedef struct {
    uint64_t offset, sequence, time;
} Mark;
/* A file that waits to become the next segment, with everything that can be known beforehand. */
typedef struct {
    PyObject *what; /* as others know it; NULL: there is none */
    Py_buffer map;
    uint8_t header[SEGMENT_HEADER_SIZE];
    uint64_t device, inode;
    int directory;             /* in which both names are; ours to close, if: */
    char has_directory;
    PyObject *source, *target; /* names, as bytes; in the latter: */
    Py_ssize_t digits;         /* the position of the digits of an offset */
    uint64_t window;           /* how many bytes of it to open */
    PyObject *told;            /* called by the append after the one that goes on */
    PyObject *watch;           /* for tests; else NULL */
} Successor;
#define BELIEVED_NS 1000000000u /* so long: the kernel may write pages out by itself, which makes them read-only */
typedef struct {
    uint32_t flushes; /* what FLUSHES was when pages were last made writable */
    uint64_t until;   /* wall clock until which they are believed to be */
} Look;
static inline int look_counts(const Look *last, uint64_t now) { /* unless the clock went back */
    return now < last->until && now + BELIEVED_NS >= last->until;
}
typedef struct {
    PyObject_HEAD
    Py_buffer control, segment; /* .obj is NULL while nothing is bound */
    uint64_t begin;             /* offset of the segment's first record */
    uint64_t window_end;        /* the fast path may write below this offset */
    uint64_t sequence_end;      /* and, if limited, messages below this number */
    uint64_t index_due;         /* wall clock at which the index wants an entry */
    uint64_t max_payload;
    uint64_t pending, pending_sequence; /* behind what was copied and not yet published */
    uint64_t tail_end, tail_sequence;   /* what the newest tail slot says */
    uint64_t next_mark; /* the record at or behind this offset goes into the index */
    Mark *marks;
    unsigned int marked, mark_room; /* how many there are, and have room */
    uint64_t latest; /* time of the segment's last mark; UINT64_MAX: the clock has gone back since */
    uint64_t ahead, ahead_end;       /* make so many bytes before the tail present, up to this offset */
    uint64_t ahead_from, ahead_at;   /* where the next ones begin, and at which tail they are due */
    int tail_slot;
    uint32_t owner, epoch; /* who we are; what EPOCH was when the segment was bound */
    unsigned int looks; /* appends until the wall clock is read again */
    Look words_look, segment_look; /* the latter up to: */
    uint64_t storable_end;
    char deferred; /* FSYNC: advance the append tail, somebody else publishes */
    char alone;    /* nobody else has moved the tail since the segment was begun */
    char limited;  /* the window ends where there is no more room, as it was: */
    uint32_t registrations; /* what REGISTRATIONS was when that was looked at */
    Successor next;
    PyObject *gone_on; /* what `next` was when we went on to it, until somebody takes note; or NULL */
    uint8_t gone_on_header[SEGMENT_HEADER_SIZE]; /* what it was given then */
    PyObject *told; /* who is yet to be told of it; or NULL */
    PyObject *overflow, *notify; /* NULL: it is closed */
} Writer;
extern PyTypeObject *WriterType;
typedef struct {
    const char *data;
    uint32_t length, crc; /* of the payload alone, computed before the word is taken */
} Piece;
static inline uint32_t piece_length(Py_ssize_t size) { return size < UINT32_MAX ? (uint32_t)size : UINT32_MAX; } /* too long either way */
enum appended { APPENDED, OVERFLOWS, APPEND_FAILED /* with an exception */ };
enum appended writer_append(Writer *self, Piece *pieces, size_t count, uint64_t *offset);
PyObject *writer_append_list(Writer *self, PyObject *payloads); /* of bytes, all of them; the offset */
PyObject *writer_overflow(Writer *self, const Piece *pieces, PyObject *const *owners, size_t count); /* the slow way */
/* For going_on.c. */
int writer_refresh_tail(Writer *self);
int writer_check_open(const Writer *self); /* -1 with ClosedResourceError */
int writer_take_word(Writer *self);
int writer_is_current(const Writer *self);
int writer_fits_window(const Writer *self, uint64_t offset, uint64_t size);
int writer_wake_armed(Writer *self);
void writer_put_first(Writer *self, const Piece *piece); /* and publish it */
PyObject *pieces_as_bytes(const Piece *pieces, PyObject *const *owners, size_t count); /* owners: bytes objects or NULL */

/* going_on.c: from one segment to the next */
void forget_next(Writer *self);
enum appended writer_go_on(Writer *self, Piece *piece, uint64_t *offset);
int writer_tell(Writer *self);
PyObject *py_prepare_next(PyObject *writer, PyObject *const *args, Py_ssize_t count);
PyObject *py_forget_next(PyObject *writer, PyObject *what);
PyObject *py_go_on(PyObject *writer, PyObject *payload);
PyObject *py_note_gone_on(PyObject *writer, PyObject *none);
PyObject *get_gone_on(PyObject *writer, void *closure);

/* callee.c: a Python callable, called without detours where it is a C function */
typedef struct {
    PyObject *callable; /* owned; NULL if there is none */
    PyObject *(*direct)(PyObject *self, PyObject *const *args, Py_ssize_t count);
    PyObject *self; /* borrowed from callable */
} Callee;
void callee_init(Callee *callee, PyObject *callable); /* None becomes NULL */
static inline PyObject *callee_call(const Callee *callee, PyObject *const *args, Py_ssize_t count) {
    if (callee->direct) return callee->direct(callee->self, args, count);
    return PyObject_Vectorcall(callee->callable, args, (size_t)count, NULL);
}

/* memory.c */
int can_store(const void *at, size_t size); /* 0: a store there would kill the process */
int can_store_word(const uint8_t *at, const uint8_t *flushes, Look *last); /* the same for a word of the control page */
int populate_later(PyObject *buffer, uint64_t position, uint64_t size); /* -1 with an exception */

/* scratch.c: the private copy of a payload, for a decoder that does not keep it */
typedef struct {
    PyObject_HEAD
    Py_ssize_t exports, size, capacity;
    char *data;
} Scratch;
#define SCRATCH_LIMIT 65536 /* longer payloads get bytes of their own */
PyObject *scratch_for(Scratch **scratch, Py_ssize_t size); /* borrowed, of that size, nobody looking at it */

/* held.c: what was handed out and not acknowledged yet */
enum held_state { HELD_OUT, HELD_SETTLED, HELD_READY, HELD_DELAYED };
typedef struct {
    uint64_t offset, sequence;
    uint64_t token; /* of the call that handed it out last */
    uint64_t due;   /* when it comes again, by the monotonic clock */
    uint32_t attempt;
    unsigned char state;
} HeldEntry;
typedef struct {
    HeldEntry *entries;
    uint64_t mask, head, tail;
    uint64_t out, ready, delayed; /* how many are in these states */
    uint64_t first_ready;         /* none before this index is */
    uint64_t next_due;            /* none is due before */
    uint64_t token;
} Held;
Held *held_new(void);
void held_free(Held *held);
int held_reserve(Held *held); /* -1 with an exception */
void held_push(Held *held, uint64_t offset, uint64_t sequence);
const HeldEntry *held_oldest(const Held *held);
void held_drop_from(Held *held, uint64_t offset);
void held_drop_waiting(Held *held, uint64_t begin, uint64_t end);
/* These tell whether they did it; *moved: whether the oldest is another one now. */
int held_ack(Held *held, uint64_t count, int *moved);
int held_settle(Held *held, uint64_t offset, uint64_t token, int *moved);
int held_nack(Held *held, uint64_t count);
int held_give_back(Held *held, uint64_t offset, uint64_t token, uint64_t due, int counted);
int held_in_order(const Held *held, const HeldEntry **waiting);
int held_settle_before(Held *held, uint64_t offset);
void held_give_back_all(Held *held);
uint64_t held_ready(Held *held);
uint64_t held_next_due(Held *held); /* 0: none is delayed */
const HeldEntry *held_first_ready(Held *held);
const HeldEntry *held_next_ready(const Held *held, uint64_t *index);
uint32_t held_hand_out(Held *held, uint64_t offset);
void held_take_back(Held *held, uint64_t offset);

/* ring.c: what the members of a group share, and what this one has of it */
typedef struct {
    uint64_t offset, sequence;
    uint64_t number; /* of its entry */
    uint64_t word;   /* what the entry says as long as it is ours; 0: an empty place */
    char refused;    /* it did not decode, and is settled only by itself */
} Claim;
typedef struct {
    Py_buffer shared;
    uint32_t owner; /* as in a lock word */
    uint64_t lease; /* ns */
    Claim *claims;  /* in the order in which they were handed out */
    uint64_t mask, first, last;
    uint64_t out;   /* how many of them did decode */
    PyObject *lost; /* a list of (offset, token), or NULL */
    int tells;      /* what we did that others may wait for: */
} Ring;
enum { MADE_ROOM = 1, EMPTIED = 2, MOVED = 4 /* the position */, DAMAGED = 8 /* the words contradict each other */ };
enum claimed { CLAIMED, CLAIM_MISSED, CLAIM_LOCKED /* for longer */, CLAIM_DAMAGED };
Ring *ring_new(PyObject *shared, uint32_t owner, uint64_t lease); /* NULL with an exception */
void ring_free(Ring *ring);
void ring_forget(Ring *ring);
void ring_close(Ring *ring); /* release what is shared: it looks empty from now on */
int ring_reserve(Ring *ring); /* -1 with an exception; the next claim has room */
int ring_full(const Ring *ring);
int ring_empty(const Ring *ring);
int ring_suspect(const Ring *ring); /* whether the words contradict each other, if it is not a race */
uint64_t ring_ready(const Ring *ring);
uint64_t ring_due(const Ring *ring);
int ring_is_due(const Ring *ring); /* the same as to compare it with the clock, which is read once */
void ring_next(const Ring *ring, uint64_t *offset, uint64_t *sequence);
enum claimed ring_claim(Ring *ring, uint64_t seen, uint64_t seen_sequence, uint64_t offset, uint64_t end, uint64_t sequence,
                        const Claim **claim);
enum claimed ring_claim_again(Ring *ring, const Claim **claim);
uint32_t claim_attempt(const Claim *claim);
uint64_t ring_out(const Ring *ring);
int64_t ring_place_of(const Ring *ring, uint64_t offset, uint64_t token); /* -1: not ours */
void ring_refuse(Ring *ring, uint64_t offset, uint64_t token);
const Claim *ring_refused(const Ring *ring, uint64_t offset);
/* These tell whether they did it; what was not ours any more is in `lost`. */
int ring_ack(Ring *ring, uint64_t count);
int ring_nack(Ring *ring, uint64_t count);
int ring_settle(Ring *ring, uint64_t offset, uint64_t token);
int ring_give_back(Ring *ring, uint64_t offset, uint64_t token, uint64_t due, int counted);
/* These are about what nobody has got yet. */
void ring_drop(Ring *ring, uint64_t offset, uint64_t token);
void ring_return(Ring *ring, uint64_t offset, uint64_t token);
int ring_give_back_from(Ring *ring, uint64_t from, int refused);
PyObject *ring_coming(const Ring *ring, Py_ssize_t most);

/* send_path.c, reader.c: one step of a coroutine; NULL without an exception means that it has to wait */
extern PyTypeObject *SendPathType, *ReaderType;
PyObject *send_path_step(PyObject *path, PyObject *item);
PyObject *reader_step(PyObject *reader);
PyObject *send_path_now(PyObject *path, PyObject *item); /* the same without a look at the turn */
PyObject *reader_now(PyObject *reader);
int reader_ack(PyObject *reader, uint64_t count); /* whether so many were outstanding */
int reader_must_tell(PyObject *reader);
int reader_wait(PyObject *reader, double seconds); /* 0: it cannot; 1: look again; -1: an exception */

/* The sentinel `NOTHING` of _format/nothing.py, and the error `Busy` of _errors.py. */
extern PyObject *nothing, *busy;

/* map.c */
extern PyObject *closed_error; /* anyio.ClosedResourceError */
void raise_closed(void);
/* What a closed writer, reader or ring looks at instead of a map that is gone. Nothing is ever stored there. */
extern const uint8_t zeros[GROUP_SIZE];

int add_words(PyObject *module);     /* words.c */
uint8_t *word_at(PyObject *const *args, Py_ssize_t width, int writable, Py_buffer *view); /* (buffer, position), or NULL */
int add_waiting(PyObject *module);   /* waiting.c */
int add_forking(PyObject *module);   /* forking.c */
int add_mutex(PyObject *module);     /* mutex.c */
int is_own_error(PyObject *type);    /* whether the package raises such an exception, having cleaned up */
int in_main_thread(void);            /* where signal handlers run */
int add_records(PyObject *module);   /* records.c */
int add_clock(PyObject *module);     /* clock.c */
int add_mount(PyObject *module);     /* mount.c */
int add_memory(PyObject *module);    /* memory.c */
int add_map(PyObject *module);       /* map.c */
int add_writer(PyObject *module);    /* writer.c */
int add_send_path(PyObject *module); /* send_path.c */
int add_scratch(PyObject *module);   /* scratch.c */
int add_ring(PyObject *module);      /* ring.c */
int add_reader(PyObject *module);    /* reader_type.c */
int add_cores(PyObject *module);     /* cores.c */
int add_columns(PyObject *module);   /* columns.c */
int add_rows(PyObject *module);      /* rows.c */

#define FAST(name) (PyCFunction)(void (*)(void)) name /* in a table of methods, what METH_FASTCALL calls */
PyTypeObject *add_type(PyObject *module, PyType_Spec *spec); /* module.c */
int check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted);
int check_no_keywords(const char *name, PyObject *keywords);
int unsigned_from(PyObject *value, uint64_t most, uint64_t *out);
int get_aligned(PyObject *from, int flags, Py_ssize_t least, const char *too_short, Py_buffer *view);
void let_go(Py_buffer *view); /* .obj is NULL afterwards, as it may have been before */

#endif
