/* Declarations that the files of the native core share. Each section names the .c file that it belongs to. */
#ifndef FILECHANNEL_CORE_H
#define FILECHANNEL_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "crc32c.h"
#include "layout.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the native core stores native integers and needs a little-endian machine; the pure-Python implementation does not"
#endif

/* Values inside records are not aligned: access them by memcpy, which compiles to one plain access. */
static inline uint32_t get_u32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return v; }
static inline uint64_t get_u64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return v; }
static inline void put_u32(uint8_t *at, uint32_t v) { memcpy(at, &v, 4); }
static inline void put_u64(uint8_t *at, uint64_t v) { memcpy(at, &v, 8); }

/* Most payloads are small, and calling memcpy for one costs more than the copy. */
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

/* Shared words are aligned, and other processes read them while this one writes. */
static inline uint32_t load_acquire_u32(const uint8_t *at) { return __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE); }
static inline uint64_t load_acquire_u64(const uint8_t *at) { return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE); }
static inline void store_release_u32(uint8_t *at, uint32_t v) { __atomic_store_n((uint32_t *)at, v, __ATOMIC_RELEASE); }
static inline void store_release_u64(uint8_t *at, uint64_t v) { __atomic_store_n((uint64_t *)at, v, __ATOMIC_RELEASE); }
static inline int swap_if_u32(uint8_t *at, uint32_t expected, uint32_t value) {
    return __atomic_compare_exchange_n((uint32_t *)at, &expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Pause between two loads of a word that another core is about to change. */
static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* memory/futex.c */
int futex_wake(uint8_t *at, int count);
/* Clear the bits of a wake word that say what waits, and wake the threads; returns the bits. The caller has issued a
 * full fence. */
uint32_t wake_waiters(uint8_t *word);
/* For a reader that has found nothing to read; called without the GIL. `seen` is the wake word as it was before the
 * caller checked for other reasons not to sleep: if its generation has changed since, data may be available. Returns an
 * errno, or 0. */
int watch_for_more(const uint8_t *words, uint64_t offset, double seconds); /* returns whether there is more */
int sleep_for_more(uint8_t *words, uint64_t offset, uint32_t seen, double seconds);
/* An exchange rather than a store: on x86 it is also the fence between what was published and the load of `wake`. */
static inline void release_word(uint8_t *at) {
    if (__atomic_exchange_n((uint32_t *)at, 0, __ATOMIC_SEQ_CST) & CONTENDED) futex_wake(at, 1);
#if !defined(__x86_64__) && !defined(__i386__)
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* records.c */
enum record_state { RECORD_OK, RECORD_CUT, RECORD_BAD, RECORD_LONG /* longer than a payload may be */ };
/* Never 0: once in 4 GiB there is an offset at which eight zero bytes would be a valid, empty record. */
static inline uint32_t record_crc(uint32_t payload_crc, uint32_t word, uint64_t offset) {
    uint32_t crc;
#ifdef CRC32C_INSTRUCTION
    if (crc32c_has_instruction) { /* from registers: loading bytes that were just stored in other sizes would stall */
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

/* memory/mutex.c: how many mutexes and readers this thread holds; other threads would wait for them */
extern _Thread_local Py_ssize_t locked_here __attribute__((tls_model("initial-exec")));

/* clock.c */
#define SLICE_UNITS 32
#define BYTES_PER_UNIT_SHIFT 9
uint64_t wall_clock_ns(void);  /* up to a few milliseconds late, but cheap */
uint64_t exact_clock_ns(void);
uint64_t monotonic_ns(void);
extern _Thread_local int64_t slice_units __attribute__((tls_model("initial-exec")));
int slice_over_by_clock(void);
void slice_start(void);
static inline void slice_charge(size_t bytes) { slice_units -= 1 + (int64_t)(bytes >> BYTES_PER_UNIT_SHIFT); }
static inline int slice_over(void) { return slice_units <= 0 && slice_over_by_clock(); }

/* append/writer.c */
#define MOST_INDEX_ENTRIES 4096 /* for 256 MiB, which take longer to write than the second that index entries wait; more are dropped */
typedef struct {
    uint64_t offset, sequence, time;
} PendingEntry;
/* A file that is ready to become the next segment, with everything that can be known beforehand. */
typedef struct {
    PyObject *what; /* the caller's object for the file; NULL: there is no prepared segment */
    Py_buffer map;
    uint8_t header[SEGMENT_HEADER_SIZE];
    uint64_t device, inode;
    int directory;             /* of both names; owned and closed by us, if: */
    char has_directory;
    PyObject *source, *target; /* names, as bytes; in the target: */
    Py_ssize_t digits;         /* the position of the digits of the offset */
    PyObject *rename;          /* called instead, if the roll is not a fast one; else NULL */
    uint64_t allocated;        /* how many bytes of records its disk space suffices for */
    uint64_t window;           /* how many bytes of it the fast path may write at first */
    PyObject *after_roll;      /* called by the append after the one that rolls */
    PyObject *watch;           /* for tests; else NULL */
} PreparedSegment;
#define CHECK_VALID_NS 1000000000u /* how long a check is valid: the kernel may write pages back by itself, which makes them read-only */
typedef struct {
    uint32_t flushes; /* the value of FLUSHES when pages were last made writable */
    uint64_t until;   /* wall clock until which the check is valid */
} StoreCheck;
static inline int store_check_is_valid(const StoreCheck *last, uint64_t now) { /* not if the clock went back */
    return now < last->until && now + CHECK_VALID_NS >= last->until;
}
typedef struct {
    PyObject_HEAD
    Py_buffer control, segment; /* .obj is NULL while nothing is bound */
    uint64_t begin;             /* offset of the segment's first record */
    uint64_t window_end;        /* the fast path may write below this offset */
    uint64_t sequence_end;      /* and, if limited, messages below this sequence */
    uint64_t index_due;         /* wall clock at which the index needs an entry */
    uint64_t max_payload;
    uint64_t pending, pending_sequence; /* after what was copied and not yet published */
    uint64_t tail_end, tail_sequence;   /* what the current tail slot says */
    uint64_t next_indexed;           /* the record at or after this offset is put into the index */
    PendingEntry *index_entries;
    unsigned int index_count, entries_capacity; /* how many there are, and how many fit */
    uint64_t latest; /* time of the segment's last index entry; UINT64_MAX: the clock has gone back since */
    uint64_t ahead, ahead_end;       /* how many bytes ahead of the tail to keep present, and up to which offset */
    uint64_t ahead_from, ahead_at;   /* where the next pages to populate begin, and at which tail they are due */
    int tail_slot;
    uint32_t owner, epoch; /* our name in lock words; the value of EPOCH when the segment was bound */
    unsigned int appends_until_clock; /* appends until the wall clock is read again */
    StoreCheck words_check, segment_check; /* segment_check is valid up to: */
    uint64_t storable_end;
    char deferred; /* FSYNC: advance the append tail; the flush publishes */
    char alone;    /* no other process has moved the tail since the segment was created */
    char limited;  /* the window ends where the capacity ends, as it was computed at: */
    uint32_t registrations; /* this value of REGISTRATIONS */
    PreparedSegment next;
    PyObject *pending_roll; /* next.what of the last fast roll, until it is acknowledged; or NULL */
    uint8_t pending_roll_header[SEGMENT_HEADER_SIZE]; /* the header of that segment */
    PyObject *after_roll; /* the callback still to be notified of the roll; or NULL */
    PyObject *overflow, *notify; /* NULL: the writer is closed */
} Writer;
extern PyTypeObject *WriterType;
typedef struct {
    const char *data;
    uint32_t length, crc; /* crc of the payload alone, computed before the writer lock is taken */
} Payload;
static inline uint32_t payload_length(Py_ssize_t size) { return size < UINT32_MAX ? (uint32_t)size : UINT32_MAX; } /* clamped, which is still too long */
enum appended { APPENDED, OVERFLOWS, APPEND_FAILED /* with an exception set */ };
enum appended writer_append(Writer *self, Payload *contents, size_t count, uint64_t *offset);
PyObject *writer_append_list(Writer *self, PyObject *payloads); /* of bytes objects only; returns the offset */
PyObject *writer_overflow(Writer *self, const Payload *contents, PyObject *const *owners, size_t count); /* the slow path */
/* For roll.c. */
int writer_refresh_tail(Writer *self);
int writer_check_open(const Writer *self); /* -1 with ClosedResourceError */
int writer_take_word(Writer *self);
int writer_is_current(const Writer *self);
int writer_fits_window(const Writer *self, uint64_t offset, uint64_t size);
int writer_wake_armed(Writer *self);
void writer_put_first(Writer *self, const Payload *content); /* and publish it */
PyObject *payloads_as_bytes(const Payload *contents, PyObject *const *owners, size_t count); /* owners: bytes objects or NULL */

/* append/roll.c */
void forget_next(Writer *self);
enum appended writer_fast_roll(Writer *self, Payload *content, uint64_t *offset);
int writer_call_after_roll(Writer *self);
PyObject *py_prepare_next(PyObject *writer, PyObject *const *args, Py_ssize_t count);
PyObject *py_forget_next(PyObject *writer, PyObject *what);
PyObject *py_fast_roll(PyObject *writer, PyObject *payload);
PyObject *py_roll(PyObject *writer, PyObject *const *args, Py_ssize_t count);
PyObject *py_acknowledge_roll(PyObject *writer, PyObject *none);
PyObject *get_pending_roll(PyObject *writer, void *closure);

/* fastcall.c: a Python callable, which is called directly if it is a C function */
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

/* memory/prefault.c */
int can_store(const void *at, size_t size); /* 0: a store there would kill the process */
int can_store_word(const uint8_t *at, const uint8_t *flushes, StoreCheck *last); /* the same for a word of the control page */
int populate_later(PyObject *buffer, uint64_t position, uint64_t size); /* -1 with an exception */

/* scratch.c: the private copy of a payload, for a decoder that does not keep it */
typedef struct {
    PyObject_HEAD
    Py_ssize_t exports, size, capacity;
    char *data;
} Scratch;
#define SCRATCH_LIMIT 65536 /* longer payloads get a bytes object of their own */
PyObject *scratch_for(Scratch **scratch, Py_ssize_t size); /* borrowed, of that size, with no exported view */

/* read/unacked_ring.c: the deliveries that are not acknowledged */
enum unacked_state { UNACKED_OUT, UNACKED_ACKED, UNACKED_READY, UNACKED_DELAYED };
typedef struct {
    uint64_t offset, sequence;
    uint64_t token; /* of the call that delivered it last */
    uint64_t due;   /* when it is redelivered, by the monotonic clock */
    uint32_t attempt;
    unsigned char state;
} UnackedEntry;
typedef struct {
    UnackedEntry *entries;
    uint64_t mask, head, tail;
    uint64_t out, ready, delayed; /* how many are in these states */
    uint64_t first_ready;         /* no entry before this index is ready */
    uint64_t next_due;            /* no entry is due before this time */
    uint64_t token;
} UnackedRing;
UnackedRing *unacked_new(void);
void unacked_free(UnackedRing *unacked);
int unacked_reserve(UnackedRing *unacked); /* -1 with an exception */
void unacked_push(UnackedRing *unacked, uint64_t offset, uint64_t sequence);
const UnackedEntry *unacked_oldest(const UnackedRing *unacked);
void unacked_drop_from(UnackedRing *unacked, uint64_t offset);
void unacked_drop_waiting(UnackedRing *unacked, uint64_t begin, uint64_t end);
/* These return whether they did it; *moved: whether the oldest entry changed. */
int unacked_ack(UnackedRing *unacked, uint64_t count, int *moved);
int unacked_acknowledge(UnackedRing *unacked, uint64_t offset, uint64_t token, int *moved);
int unacked_nack(UnackedRing *unacked, uint64_t count);
int unacked_redeliver(UnackedRing *unacked, uint64_t offset, uint64_t token, uint64_t due, int counted);
int unacked_in_order(const UnackedRing *unacked, const UnackedEntry **waiting);
int unacked_acknowledge_before(UnackedRing *unacked, uint64_t offset);
void unacked_redeliver_all(UnackedRing *unacked);
uint64_t unacked_ready(UnackedRing *unacked);
uint64_t unacked_next_due(UnackedRing *unacked); /* 0: none is delayed */
const UnackedEntry *unacked_first_ready(UnackedRing *unacked);
const UnackedEntry *unacked_next_ready(const UnackedRing *unacked, uint64_t *index);
uint32_t unacked_mark_redelivered(UnackedRing *unacked, uint64_t offset);
void unacked_roll_back(UnackedRing *unacked, uint64_t offset);

/* read/group_ring.c: the ring that the members of a group share, and the claims of this member */
typedef struct {
    uint64_t offset, sequence;
    uint64_t number; /* of its entry */
    uint64_t word;   /* the word of the entry while the claim is ours; 0: an empty element */
    char refused;    /* it did not decode, and is acknowledged only by its token */
} Claim;
typedef struct {
    Py_buffer shared;
    uint32_t owner; /* as in a lock word */
    uint64_t lease; /* ns */
    Claim *claims;  /* in the order in which they were delivered */
    uint64_t mask, first, last;
    uint64_t out;   /* how many of them did decode */
    PyObject *lost; /* a list of (offset, token), or NULL */
    int changes;    /* what we changed that other processes may wait for: */
} Ring;
enum { MADE_SPACE = 1, EMPTIED = 2, MOVED = 4 /* the position moved */, DAMAGED = 8 /* the words contradict each other */ };
enum claimed { CLAIMED, CLAIM_MISSED, CLAIM_LOCKED /* held for too long */, CLAIM_DAMAGED };
Ring *ring_new(PyObject *shared, uint32_t owner, uint64_t lease); /* NULL with an exception */
void ring_free(Ring *ring);
void ring_forget(Ring *ring);
void ring_close(Ring *ring); /* release the shared memory: the ring looks empty from now on */
int ring_reserve(Ring *ring); /* -1 with an exception; else the next claim fits */
int ring_full(const Ring *ring);
int ring_empty(const Ring *ring);
int ring_suspect(const Ring *ring); /* whether the words contradict each other, unless that is a race */
uint64_t ring_ready(const Ring *ring);
uint64_t ring_due(const Ring *ring);
int ring_is_due(const Ring *ring); /* compares it with the clock, which is read only once */
void ring_next(const Ring *ring, uint64_t *offset, uint64_t *sequence);
enum claimed ring_claim(Ring *ring, uint64_t seen, uint64_t seen_sequence, uint64_t offset, uint64_t end, uint64_t sequence,
                        const Claim **claim);
enum claimed ring_claim_ready(Ring *ring, const Claim **claim);
uint32_t claim_attempt(const Claim *claim);
uint64_t ring_out(const Ring *ring);
int64_t ring_entry_number(const Ring *ring, uint64_t offset, uint64_t token); /* -1: not ours */
void ring_refuse(Ring *ring, uint64_t offset, uint64_t token);
const Claim *ring_refused(const Ring *ring, uint64_t offset);
/* These return whether they did it; claims that were lost are added to `lost`. */
int ring_ack(Ring *ring, uint64_t count);
int ring_nack(Ring *ring, uint64_t count);
int ring_acknowledge(Ring *ring, uint64_t offset, uint64_t token);
int ring_redeliver(Ring *ring, uint64_t offset, uint64_t token, uint64_t due, int counted);
/* These are for claims that were not delivered yet. */
void ring_drop(Ring *ring, uint64_t offset, uint64_t token);
void ring_return(Ring *ring, uint64_t offset, uint64_t token);
int ring_redeliver_from(Ring *ring, uint64_t from, int refused);
PyObject *ring_ready_positions(const Ring *ring, Py_ssize_t most);

/* append/send_path.c, read/reader.c: one step of a coroutine; NULL without an exception means that it has to wait */
extern PyTypeObject *SendPathType, *ReaderType;
PyObject *send_path_step(PyObject *path, PyObject *item);
PyObject *reader_step(PyObject *reader);
PyObject *send_path_now(PyObject *path, PyObject *item); /* the same without checking whether to yield */
PyObject *reader_now(PyObject *reader);
int reader_ack(PyObject *reader, uint64_t count); /* whether `count` deliveries were outstanding */
int reader_must_wake(PyObject *reader);
int reader_wait(PyObject *reader, double seconds); /* 0: it cannot; 1: try again; -1: an exception */

/* The sentinel `NOTHING` of _format/sentinel.py, and the error `Busy` of _errors.py. */
extern PyObject *nothing, *busy;

/* memory/closable_map.c */
extern PyObject *closed_error; /* anyio.ClosedResourceError */
void raise_closed(void);
/* What a closed writer, reader or ring reads instead of the released map. Nothing is ever stored there. */
extern const uint8_t zeros[GROUP_SIZE];

int add_words(PyObject *module);     /* memory/atomics.c */
uint8_t *word_at(PyObject *const *args, Py_ssize_t width, int writable, Py_buffer *view); /* args: (buffer, position); NULL with an exception */
int add_waiting(PyObject *module);   /* memory/futex.c */
int add_forking(PyObject *module);   /* memory/fork_descriptors.c */
int add_mutex(PyObject *module);     /* memory/mutex.c */
int is_own_error(PyObject *type);    /* whether the package itself raises such an exception, after cleaning up */
int in_main_thread(void);            /* where signal handlers run */
int add_records(PyObject *module);   /* records.c */
int add_clock(PyObject *module);     /* clock.c */
int add_mount(PyObject *module);     /* memory/statx.c */
int add_memory(PyObject *module);    /* memory/prefault.c */
int add_map(PyObject *module);       /* memory/closable_map.c */
int add_writer(PyObject *module);    /* append/writer.c */
int add_send_path(PyObject *module); /* append/send_path.c */
int add_scratch(PyObject *module);   /* scratch.c */
int add_ring(PyObject *module);      /* read/group_ring.c */
int add_cursor_slot(PyObject *module); /* read/store_position.c */
int add_reader(PyObject *module);    /* read/reader_type.c */
int add_cores(PyObject *module);     /* fast_methods.c */
int add_columns(PyObject *module);   /* arrow/columns.c */
int add_rows(PyObject *module);      /* arrow/rows.c */

#define FAST(name) (PyCFunction)(void (*)(void)) name /* a METH_FASTCALL function in a method table */
PyTypeObject *add_type(PyObject *module, PyType_Spec *spec); /* module.c */
int check_count(const char *name, Py_ssize_t given, Py_ssize_t wanted);
int check_no_keywords(const char *name, PyObject *keywords);
int unsigned_from(PyObject *value, uint64_t most, uint64_t *out);
int get_aligned(PyObject *from, int flags, Py_ssize_t least, const char *too_short, Py_buffer *view);
void release_view(Py_buffer *view); /* .obj is NULL afterwards, and may have been before */

#endif
