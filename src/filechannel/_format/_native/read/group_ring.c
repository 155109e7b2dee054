/* The ring that the members of a group share, as one member sees it. The reference is read/group_ring.py.
 *
 * Members create and claim entries under the lock word; the member that has a message acknowledges it or returns it
 * with one compare-and-swap. Nothing in here calls Python except to allocate, so a thread with the GIL sees a
 * consistent list of claims. */
#include "read/store_position.h"

#define SPINS 100
#define FIRST_CAPACITY 16
#define LIVENESS_CHECK_NS 1000000000u /* ns after a message was delivered, a member checks whether its owner is alive */

static uint8_t *at(const Ring *ring, uint64_t number) {
    return (uint8_t *)ring->shared.buf + GROUP_RING + number % GROUP_ENTRIES * GROUP_ENTRY_SIZE;
}
static uint64_t load(const Ring *ring, size_t word) { return load_acquire_u64((uint8_t *)ring->shared.buf + word); }
static void store(const Ring *ring, size_t word, uint64_t value) { store_release_u64((uint8_t *)ring->shared.buf + word, value); }
static uint8_t *lock_of(const Ring *ring) { return (uint8_t *)ring->shared.buf + GROUP_LOCK; }
static int is_done(uint64_t word) { return (word & ENTRY_STATE) == ENTRY_ACKED || (word & ENTRY_STATE) == ENTRY_SKIPPED; }
static uint32_t attempt_of(uint64_t word) { return (uint32_t)(word >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS); }

/* --- Whether the words are plausible --------------------------------------------------------------------------- */

/* The file is mapped by every member, and may be damaged while it is in use. Every loop over the entries relies on
 * this. */
static int bounds(const Ring *ring, uint64_t *head, uint64_t *tail) {
    *head = load(ring, GROUP_HEAD);
    *tail = load(ring, GROUP_TAIL);
    return *head <= *tail && *tail - *head <= GROUP_ENTRIES;
}

/* The newest entry says where the group resumes, and it is not overwritten before the next one is created. Before the
 * first entry, the position says so. */
static int next_follows(const Ring *ring, uint64_t tail) {
    uint64_t offset = load(ring, GROUP_NEXT), sequence = load(ring, GROUP_NEXT_SEQUENCE);
    if (tail) {
        const uint8_t *last = at(ring, tail - 1);
        return get_u64(last + ENTRY_END) == offset && get_u64(last + ENTRY_SEQUENCE) + 1 == sequence;
    }
    const uint8_t *first = (uint8_t *)ring->shared.buf + CURSOR_SLOT_0, *second = (uint8_t *)ring->shared.buf + CURSOR_SLOT_1;
    return (get_u64(first + 8) == offset && get_u64(first + 16) == sequence) ||
           (get_u64(second + 8) == offset && get_u64(second + 16) == sequence);
}

/* The caller has the lock. */
static int is_sound(const Ring *ring) {
    uint64_t head, tail;
    return bounds(ring, &head, &tail) && next_follows(ring, tail);
}

/* Without the lock: words that disagree, twice in the same way, must be checked with the lock held. */
int ring_suspect(const Ring *ring) {
    uint64_t head, tail, head_again, tail_again;
    if (bounds(ring, &head, &tail) && next_follows(ring, tail)) return 0;
    return !bounds(ring, &head_again, &tail_again) || (head == head_again && tail == tail_again && !next_follows(ring, tail));
}

/* --- Moving the position past acknowledged entries ----------------------------------------------------------- */

static void store_position(uint8_t *shared, uint64_t offset, uint64_t sequence) {
    uint64_t first = get_u64(shared + CURSOR_SLOT_0), second = get_u64(shared + CURSOR_SLOT_1);
    cursor_slot_write(shared, (first > second ? first : second) + 1, offset, sequence, wall_clock_ns());
}

static int oldest_is_acknowledged(const Ring *ring) {
    uint64_t head = load(ring, GROUP_HEAD);
    return head != load(ring, GROUP_TAIL) && is_done(load_acquire_u64(at(ring, head)));
}

/* Returns what other processes may wait for; DAMAGED, with nothing changed, if the words are not plausible. */
static int move_position(const Ring *ring) {
    uint64_t head, tail, word;
    if (!bounds(ring, &head, &tail) || !next_follows(ring, tail)) return DAMAGED;
    int was_full = tail - head >= GROUP_ENTRIES;
    while (head != tail && is_done(word = load_acquire_u64(at(ring, head)))) {
        if ((word & ENTRY_STATE) == ENTRY_SKIPPED)
            store_release_u64(at(ring, head), word & ~(uint64_t)ENTRY_STATE); /* the member that reuses the entry must find it acknowledged */
        head++;
    }
    const uint8_t *entry = at(ring, head);
    if (head != tail && get_u64(entry + ENTRY_OFFSET) >= load(ring, GROUP_NEXT)) return DAMAGED;
    if (head == tail)
        store_position(ring->shared.buf, load(ring, GROUP_NEXT), load(ring, GROUP_NEXT_SEQUENCE));
    else
        store_position(ring->shared.buf, get_u64(entry + ENTRY_OFFSET), get_u64(entry + ENTRY_SEQUENCE));
    store(ring, GROUP_HEAD, head);
    return MOVED | (was_full ? MADE_SPACE : 0) | (head == tail ? EMPTIED : 0);
}

/* Unless another member has the lock, which then does so: a lock holder checks after it releases. That is safe because
 * releasing is a fence, and so is acknowledging. */
static int advance_position(const Ring *ring) {
    int changes = 0;
    while (!(changes & DAMAGED) && oldest_is_acknowledged(ring) && swap_if_u32(lock_of(ring), 0, ring->owner)) {
        changes |= move_position(ring);
        release_word(lock_of(ring));
    }
    return changes;
}

static int enter(const Ring *ring) {
    for (int i = 0; i < SPINS; i++) {
        if (load_acquire_u32(lock_of(ring)) == 0 && swap_if_u32(lock_of(ring), 0, ring->owner)) return 1;
        relax();
    }
    return 0;
}

static void leave(Ring *ring) {
    release_word(lock_of(ring));
    ring->changes |= advance_position(ring);
}

/* --- Claims of this member ------------------------------------------------------------------------------------- */

static Claim *claim_at(const Ring *ring, uint64_t index) { return &ring->claims[index & ring->mask]; }

int ring_reserve(Ring *ring) {
    uint64_t capacity = ring->mask + 1;
    if (ring->claims && ring->last - ring->first < capacity) return 0;
    uint64_t wanted = ring->claims ? 2 * capacity : FIRST_CAPACITY;
    Claim *claims = PyMem_Calloc(wanted, sizeof(Claim));
    if (!claims) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t index = ring->first; index != ring->last; index++) claims[index & (wanted - 1)] = *claim_at(ring, index);
    PyMem_Free(ring->claims);
    ring->claims = claims;
    ring->mask = wanted - 1;
    return 0;
}

static Claim *keep(Ring *ring, uint64_t offset, uint64_t sequence, uint64_t number, uint64_t word) {
    Claim *claim = claim_at(ring, ring->last++);
    *claim = (Claim){.offset = offset, .sequence = sequence, .number = number, .word = word};
    ring->out++;
    return claim;
}

/* Its element stays empty until it is the first or the last. */
static void drop(Ring *ring, Claim *claim) {
    if (!claim->refused) ring->out--;
    claim->word = 0;
    while (ring->first != ring->last && !claim_at(ring, ring->first)->word) ring->first++;
    while (ring->first != ring->last && !claim_at(ring, ring->last - 1)->word) ring->last--;
}

static Claim *find(const Ring *ring, uint64_t offset, uint64_t token) {
    for (uint64_t index = ring->first; token && index != ring->last; index++) {
        Claim *claim = claim_at(ring, index);
        if (claim->offset == offset && claim->word == token) return claim;
    }
    return NULL;
}

uint64_t ring_out(const Ring *ring) {
    uint64_t out = 0;
    for (uint64_t index = ring->first; index != ring->last; index++) {
        const Claim *claim = claim_at(ring, index);
        out += claim->word && !claim->refused && load_acquire_u64(at(ring, claim->number)) == claim->word;
    }
    return out;
}

int64_t ring_entry_number(const Ring *ring, uint64_t offset, uint64_t token) {
    const Claim *claim = find(ring, offset, token);
    return claim ? (int64_t)claim->number : -1;
}

void ring_refuse(Ring *ring, uint64_t offset, uint64_t token) {
    Claim *claim = find(ring, offset, token);
    if (!claim || claim->refused) return;
    claim->refused = 1;
    ring->out--;
}

const Claim *ring_refused(const Ring *ring, uint64_t offset) {
    for (uint64_t index = ring->last; index != ring->first; index--) {
        const Claim *claim = claim_at(ring, index - 1);
        if (claim->word && claim->refused && claim->offset == offset) return claim;
    }
    return NULL;
}

uint32_t claim_attempt(const Claim *claim) { return attempt_of(claim->word); }

/* --- Claiming --------------------------------------------------------------------------------------------------- */

static void lower_due(const Ring *ring, uint64_t when) {
    uint64_t *word = (uint64_t *)((uint8_t *)ring->shared.buf + GROUP_DUE), due = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    while (when < due && !__atomic_compare_exchange_n(word, &due, when, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {}
}

static uint64_t later(uint64_t now, uint64_t by) { return now + by < now ? UINT64_MAX - 1 : now + by; }

static void lower_due_after(const Ring *ring, uint64_t now) {
    lower_due(ring, later(now, ring->lease < LIVENESS_CHECK_NS ? ring->lease : LIVENESS_CHECK_NS));
}

static uint64_t word_after(const Ring *ring, uint64_t old, uint32_t attempt) {
    uint64_t token = ((old >> ENTRY_TOKEN_SHIFT) + 1) & ENTRY_TOKENS, owner = ring->owner >> LOCK_GENERATION_SHIFT;
    return owner << ENTRY_OWNER_SHIFT | token << ENTRY_TOKEN_SHIFT | (uint64_t)attempt << ENTRY_ATTEMPT_SHIFT | ENTRY_OUT;
}

int ring_full(const Ring *ring) { return load(ring, GROUP_TAIL) - load(ring, GROUP_HEAD) >= GROUP_ENTRIES; }
int ring_empty(const Ring *ring) { return load(ring, GROUP_TAIL) == load(ring, GROUP_HEAD); }
uint64_t ring_ready(const Ring *ring) { return load(ring, GROUP_READY); }
/* When the entries must be checked; while there are any, that is never further away than LIVENESS_CHECK_NS. */
uint64_t ring_due(const Ring *ring) {
    uint64_t due = load(ring, GROUP_DUE), now;
    if (due == UINT64_MAX && ring_empty(ring)) return due;
    return due > (now = monotonic_ns()) + LIVENESS_CHECK_NS && !ring_empty(ring) ? now : due;
}

int ring_is_due(const Ring *ring) {
    uint64_t due = load(ring, GROUP_DUE);
    if (due == UINT64_MAX && ring_empty(ring)) return 0;
    uint64_t now = monotonic_ns();
    return now >= due || (due - now > LIVENESS_CHECK_NS && !ring_empty(ring));
}
void ring_next(const Ring *ring, uint64_t *offset, uint64_t *sequence) {
    *offset = load(ring, GROUP_NEXT);
    *sequence = load(ring, GROUP_NEXT_SEQUENCE);
}

enum claimed ring_claim(Ring *ring, uint64_t seen, uint64_t seen_sequence, uint64_t offset, uint64_t end, uint64_t sequence,
                        const Claim **claim) {
    uint64_t now = monotonic_ns();
    if (!enter(ring)) return CLAIM_LOCKED;
    if (!is_sound(ring)) return leave(ring), CLAIM_DAMAGED;
    if (load(ring, GROUP_NEXT) != seen || load(ring, GROUP_NEXT_SEQUENCE) != seen_sequence || load(ring, GROUP_READY) || ring_full(ring)) {
        leave(ring);
        return CLAIM_MISSED;
    }
    uint64_t number = load(ring, GROUP_TAIL);
    uint8_t *entry = at(ring, number);
    uint64_t word = word_after(ring, load_acquire_u64(entry), 1);
    put_u64(entry + ENTRY_OFFSET, offset);
    put_u64(entry + ENTRY_END, end);
    put_u64(entry + ENTRY_SEQUENCE, sequence);
    store_release_u64(entry + ENTRY_DEADLINE, later(now, ring->lease));
    store_release_u64(entry, word); /* claimed from here on, even if this process is killed */
    store(ring, GROUP_NEXT, end);
    store(ring, GROUP_NEXT_SEQUENCE, sequence + 1);
    store(ring, GROUP_TAIL, number + 1);
    lower_due_after(ring, now);
    *claim = keep(ring, offset, sequence, number, word);
    leave(ring);
    return CLAIMED;
}

enum claimed ring_claim_ready(Ring *ring, const Claim **claim) {
    uint64_t now = monotonic_ns();
    if (!enter(ring)) return CLAIM_LOCKED;
    uint64_t count = load(ring, GROUP_READY), tail, number, old = 0;
    if (!bounds(ring, &number, &tail)) return leave(ring), CLAIM_DAMAGED;
    while (number != tail && ((old = load_acquire_u64(at(ring, number))) & ENTRY_STATE) != ENTRY_READY) number++;
    uint64_t *ready = (uint64_t *)((uint8_t *)ring->shared.buf + GROUP_READY);
    if (number == tail) {
        __atomic_compare_exchange_n(ready, &count, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
        leave(ring);
        return CLAIM_MISSED;
    }
    uint8_t *entry = at(ring, number);
    uint64_t word = word_after(ring, old, attempt_of(old));
    store_release_u64(entry + ENTRY_DEADLINE, later(now, ring->lease));
    store_release_u64(entry, word);
    __atomic_sub_fetch(ready, 1, __ATOMIC_SEQ_CST);
    lower_due_after(ring, now);
    *claim = keep(ring, get_u64(entry + ENTRY_OFFSET), get_u64(entry + ENTRY_SEQUENCE), number, word);
    leave(ring);
    return CLAIMED;
}

/* --- Acknowledging --------------------------------------------------------------------------------------------- */

static void remember_lost(Ring *ring, Claim claim) {
    PyObject *lost = Py_BuildValue("KK", (unsigned long long)claim.offset, (unsigned long long)claim.word);
    if (!ring->lost) ring->lost = PyList_New(0);
    if (!lost || !ring->lost || PyList_Append(ring->lost, lost)) PyErr_Clear();
    Py_XDECREF(lost);
}

/* The claim is not ours afterwards, whether the swap succeeds or not. If it was already lost, the caller is notified
 * through `lost`. */
static int swap_claim_word(Ring *ring, Claim *claim, uint64_t word, int report_lost) {
    uint64_t expected = claim->word, *entry = (uint64_t *)at(ring, claim->number);
    int ours = __atomic_compare_exchange_n(entry, &expected, word, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
    Claim before = *claim;
    drop(ring, claim);
    if (!ours && report_lost) remember_lost(ring, before); /* which allocates, and so may run any code */
    return ours;
}

static int acknowledge(Ring *ring, Claim *claim, int report_lost) {
    uint64_t number = claim->number;
    if (!swap_claim_word(ring, claim, claim->word & ~(uint64_t)ENTRY_STATE, report_lost)) return 0;
    if (load(ring, GROUP_HEAD) == number) ring->changes |= advance_position(ring);
    return 1;
}

int ring_acknowledge(Ring *ring, uint64_t offset, uint64_t token) {
    Claim *claim = find(ring, offset, token);
    return claim && acknowledge(ring, claim, 1);
}

/* The claimed message no longer exists, and was not delivered. */
void ring_drop(Ring *ring, uint64_t offset, uint64_t token) {
    Claim *claim = find(ring, offset, token);
    if (claim) acknowledge(ring, claim, 0);
}

int ring_ack(Ring *ring, uint64_t count) {
    if (count > ring->out) return 0;
    for (uint64_t index = ring->first; count && index < ring->last; index++) {
        Claim *claim = claim_at(ring, index);
        if (!claim->word || claim->refused) continue;
        acknowledge(ring, claim, 1);
        count--;
    }
    return 1;
}

static void swap_deadline(uint8_t *entry, uint64_t deadline, uint64_t due) {
    uint64_t *at = (uint64_t *)(entry + ENTRY_DEADLINE);
    __atomic_compare_exchange_n(at, &deadline, due, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}

/* Return a claim to the ring with another deadline. While the message is out, an earlier deadline would end its lease,
 * so an earlier one is stored after the state. */
static int delay(Ring *ring, Claim *claim, uint64_t word, uint64_t due, int report_lost) {
    uint8_t *entry = at(ring, claim->number);
    uint64_t deadline = load_acquire_u64(entry + ENTRY_DEADLINE);
    /* If the claim was lost, the new holder has another deadline, so the swap fails. The order of the two loads
     * matters: a deadline that was read while the word is still ours is ours. */
    if (due >= deadline && load_acquire_u64(entry) == claim->word) swap_deadline(entry, deadline, due);
    int done = swap_claim_word(ring, claim, word, report_lost);
    if (done && due < deadline) swap_deadline(entry, deadline, due); /* fails if another member claimed it meanwhile */
    lower_due(ring, due);
    return done;
}

static int redeliver(Ring *ring, Claim *claim, uint64_t due, int counted, int report_lost) {
    uint64_t word = (claim->word & ~(uint64_t)ENTRY_STATE) | (due ? ENTRY_DELAYED : ENTRY_READY);
    if (counted && attempt_of(word) < ENTRY_ATTEMPTS) word += 1 << ENTRY_ATTEMPT_SHIFT;
    if (due) return delay(ring, claim, word, due, report_lost);
    if (!swap_claim_word(ring, claim, word, report_lost)) return 0;
    __atomic_add_fetch((uint64_t *)((uint8_t *)ring->shared.buf + GROUP_READY), 1, __ATOMIC_SEQ_CST);
    return 1;
}

int ring_redeliver(Ring *ring, uint64_t offset, uint64_t token, uint64_t due, int counted) {
    Claim *claim = find(ring, offset, token);
    return claim && redeliver(ring, claim, due, counted, 1);
}

/* Redeliver a claimed message that was not delivered. */
void ring_return(Ring *ring, uint64_t offset, uint64_t token) {
    Claim *claim = find(ring, offset, token);
    if (claim) redeliver(ring, claim, 0, 0, 0);
}

int ring_nack(Ring *ring, uint64_t count) {
    if (count > ring->out) return 0;
    for (uint64_t index = ring->last; count && index > ring->first; index--) {
        Claim *claim = claim_at(ring, index - 1);
        if (!claim->word || claim->refused) continue;
        redeliver(ring, claim, 0, 1, 1);
        count--;
    }
    return 1;
}

/* From an index of our list on; with `refused`, also those that did not decode. Returns whether there were any. */
int ring_redeliver_from(Ring *ring, uint64_t from, int refused) {
    int any = 0;
    for (uint64_t index = from > ring->first ? from : ring->first; index < ring->last; index++) {
        Claim *claim = claim_at(ring, index);
        if (claim->word && (refused || !claim->refused)) any |= redeliver(ring, claim, 0, 0, 0);
    }
    return any;
}

/* --- Creating and freeing --------------------------------------------------------------------------------------- */

Ring *ring_new(PyObject *shared, uint32_t owner, uint64_t lease) {
    Ring *ring = PyMem_Calloc(1, sizeof(Ring));
    if (!ring) return (Ring *)PyErr_NoMemory();
    if (get_aligned(shared, PyBUF_WRITABLE, GROUP_SIZE, "group is too short", &ring->shared)) {
        PyMem_Free(ring);
        return NULL;
    }
    ring->owner = owner;
    ring->lease = lease;
    return ring;
}

void ring_forget(Ring *ring) { ring->first = ring->last = ring->out = 0; }

void ring_close(Ring *ring) {
    Py_buffer shared = ring->shared;
    ring->shared.obj = NULL;
    ring->shared.buf = (void *)zeros;
    release_view(&shared);
}

void ring_free(Ring *ring) {
    if (!ring) return;
    release_view(&ring->shared);
    Py_XDECREF(ring->lost);
    PyMem_Free(ring->claims);
    PyMem_Free(ring);
}

/* (offset, sequence) of at most `most` messages that are ready to be redelivered. */
PyObject *ring_ready_positions(const Ring *ring, Py_ssize_t most) {
    PyObject *positions = PyList_New(0);
    uint64_t number, tail;
    int plausible = bounds(ring, &number, &tail);
    for (; positions && plausible && ring_ready(ring) && number != tail && PyList_GET_SIZE(positions) < most; number++) {
        const uint8_t *entry = at(ring, number);
        if ((load_acquire_u64(entry) & ENTRY_STATE) != ENTRY_READY) continue;
        unsigned long long offset = get_u64(entry + ENTRY_OFFSET), sequence = get_u64(entry + ENTRY_SEQUENCE);
        PyObject *position = Py_BuildValue("KK", offset, sequence);
        if (!position || PyList_Append(positions, position)) Py_CLEAR(positions);
        Py_XDECREF(position);
    }
    return positions;
}

static PyObject *py_advance_position(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t owner;
    Ring ring = {.claims = NULL};
    if (check_count("advance_position", count, 2) || get_aligned(args[0], PyBUF_WRITABLE, GROUP_SIZE, "group is too short", &ring.shared)) return NULL;
    if (unsigned_from(args[1], UINT32_MAX, &owner)) {
        PyBuffer_Release(&ring.shared);
        return NULL;
    }
    ring.owner = (uint32_t)owner;
    int changes = advance_position(&ring);
    PyBuffer_Release(&ring.shared);
    return PyBool_FromLong(changes & MADE_SPACE);
}

static PyMethodDef functions[] = {
    {"advance_position", FAST(py_advance_position), METH_FASTCALL,
     "advance_position(group, owner, /)\n--\n\n"
     "Advance the position past the acknowledged messages, unless another member has the lock, which then "
     "does so. Returns whether other processes may wait for that, because the ring was full before."},
    {NULL, NULL, 0, NULL},
};

int add_ring(PyObject *module) { return PyModule_AddFunctions(module, functions); }
