/* The deliveries that are not acknowledged, in order of offset. The reference is read/unacked_ring.py.
 *
 * A ring: new entries are added at the tail, and acknowledged ones are removed at the head. Indices only increase;
 * masked they are array indices. Nothing in here calls Python, so a thread with the GIL sees a consistent state. */
#include "core.h"

#define FIRST_CAPACITY 16

static UnackedEntry *entry_at(const UnackedRing *unacked, uint64_t index) { return &unacked->entries[index & unacked->mask]; }

UnackedRing *unacked_new(void) {
    UnackedRing *unacked = PyMem_Calloc(1, sizeof(UnackedRing));
    if (!unacked || !(unacked->entries = PyMem_Calloc(FIRST_CAPACITY, sizeof(UnackedEntry)))) {
        PyMem_Free(unacked);
        return NULL;
    }
    unacked->mask = FIRST_CAPACITY - 1;
    return unacked;
}

void unacked_free(UnackedRing *unacked) {
    if (unacked) PyMem_Free(unacked->entries);
    PyMem_Free(unacked);
}

/* Make sure that the next push fits. */
int unacked_reserve(UnackedRing *unacked) {
    uint64_t capacity = unacked->mask + 1;
    if (unacked->tail - unacked->head < capacity) return 0;
    UnackedEntry *entries = PyMem_Calloc(2 * capacity, sizeof(UnackedEntry));
    if (!entries) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t index = unacked->head; index != unacked->tail; index++) entries[index & (2 * capacity - 1)] = *entry_at(unacked, index);
    PyMem_Free(unacked->entries);
    unacked->entries = entries;
    unacked->mask = 2 * capacity - 1;
    return 0;
}

void unacked_push(UnackedRing *unacked, uint64_t offset, uint64_t sequence) {
    UnackedEntry *entry = entry_at(unacked, unacked->tail++);
    *entry = (UnackedEntry){.offset = offset, .sequence = sequence, .token = unacked->token, .attempt = 1, .state = UNACKED_OUT};
    unacked->out++;
}

/* The oldest entry that is not acknowledged; NULL if there is none. */
const UnackedEntry *unacked_oldest(const UnackedRing *unacked) { return unacked->head == unacked->tail ? NULL : entry_at(unacked, unacked->head); }

static void leave_state(UnackedRing *unacked, const UnackedEntry *entry) {
    if (entry->state == UNACKED_OUT) unacked->out--;
    if (entry->state == UNACKED_READY) unacked->ready--;
    if (entry->state == UNACKED_DELAYED) unacked->delayed--;
}

static void acknowledge(UnackedRing *unacked, UnackedEntry *entry) {
    leave_state(unacked, entry);
    entry->state = UNACKED_ACKED;
}

static void redeliver(UnackedRing *unacked, uint64_t index, uint64_t due, int counted) {
    UnackedEntry *entry = entry_at(unacked, index);
    leave_state(unacked, entry);
    entry->attempt += (uint32_t)(counted && entry->attempt < UINT32_MAX);
    entry->due = due;
    entry->state = due ? UNACKED_DELAYED : UNACKED_READY;
    if (due) {
        if (!unacked->delayed++ || due < unacked->next_due) unacked->next_due = due;
    } else {
        if (!unacked->ready++ || index < unacked->first_ready) unacked->first_ready = index;
    }
}

/* Drop the acknowledged entries before the oldest one that is not acknowledged; returns whether there were any. */
static int trim(UnackedRing *unacked) {
    uint64_t before = unacked->head;
    while (unacked->head != unacked->tail && entry_at(unacked, unacked->head)->state == UNACKED_ACKED) unacked->head++;
    return unacked->head != before;
}

/* Forget the entries that begin at an offset or after it. */
void unacked_drop_from(UnackedRing *unacked, uint64_t offset) {
    while (unacked->tail != unacked->head && entry_at(unacked, unacked->tail - 1)->offset >= offset)
        leave_state(unacked, entry_at(unacked, --unacked->tail));
}

/* Drop the messages that wait to be redelivered between two offsets, because they no longer exist. */
void unacked_drop_waiting(UnackedRing *unacked, uint64_t begin, uint64_t end) {
    for (uint64_t index = unacked->head; index != unacked->tail; index++) {
        UnackedEntry *entry = entry_at(unacked, index);
        if (entry->state != UNACKED_OUT && begin <= entry->offset && entry->offset < end) acknowledge(unacked, entry);
    }
    trim(unacked);
}

int unacked_ack(UnackedRing *unacked, uint64_t count, int *moved) {
    *moved = 0;
    if (count > unacked->out) return 0;
    for (uint64_t index = unacked->head; count; index++) {
        UnackedEntry *entry = entry_at(unacked, index);
        if (entry->state != UNACKED_OUT) continue;
        acknowledge(unacked, entry);
        count--;
    }
    *moved = trim(unacked);
    return 1;
}

int unacked_nack(UnackedRing *unacked, uint64_t count) {
    if (count > unacked->out) return 0;
    for (uint64_t index = unacked->tail; count;) {
        if (entry_at(unacked, --index)->state != UNACKED_OUT) continue;
        redeliver(unacked, index, 0, 1);
        count--;
    }
    return 1;
}

/* Returns whether every outstanding entry is older than all that wait for redelivery; *waiting: the first of these,
 * or NULL. */
int unacked_in_order(const UnackedRing *unacked, const UnackedEntry **waiting) {
    *waiting = NULL;
    for (uint64_t index = unacked->head; index != unacked->tail; index++) {
        const UnackedEntry *entry = entry_at(unacked, index);
        if (entry->state == UNACKED_OUT && *waiting) return 0;
        if ((entry->state == UNACKED_READY || entry->state == UNACKED_DELAYED) && !*waiting) *waiting = entry;
    }
    return 1;
}

/* Acknowledge everything that begins before an offset; returns whether the oldest entry changed. */
int unacked_acknowledge_before(UnackedRing *unacked, uint64_t offset) {
    for (uint64_t index = unacked->head; index != unacked->tail && entry_at(unacked, index)->offset < offset; index++)
        acknowledge(unacked, entry_at(unacked, index));
    return trim(unacked);
}

/* Redeliver everything that is outstanding; the attempt is not counted. */
void unacked_redeliver_all(UnackedRing *unacked) {
    for (uint64_t index = unacked->head; index != unacked->tail; index++)
        if (entry_at(unacked, index)->state == UNACKED_OUT) redeliver(unacked, index, 0, 0);
}

static int find(const UnackedRing *unacked, uint64_t offset, uint64_t *found) {
    uint64_t low = unacked->head, high = unacked->tail;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (entry_at(unacked, middle)->offset < offset) low = middle + 1;
        else high = middle;
    }
    *found = low;
    return low < unacked->tail && entry_at(unacked, low)->offset == offset;
}

static int find_outstanding(const UnackedRing *unacked, uint64_t offset, uint64_t token, uint64_t *index) {
    return find(unacked, offset, index) && entry_at(unacked, *index)->state == UNACKED_OUT && entry_at(unacked, *index)->token == token;
}

int unacked_acknowledge(UnackedRing *unacked, uint64_t offset, uint64_t token, int *moved) {
    uint64_t index;
    *moved = 0;
    if (!find_outstanding(unacked, offset, token, &index)) return 0;
    acknowledge(unacked, entry_at(unacked, index));
    *moved = trim(unacked);
    return 1;
}

int unacked_redeliver(UnackedRing *unacked, uint64_t offset, uint64_t token, uint64_t due, int counted) {
    uint64_t index;
    if (!find_outstanding(unacked, offset, token, &index)) return 0;
    redeliver(unacked, index, due, counted);
    return 1;
}

/* Make messages ready whose delay is over. */
static void end_delays(UnackedRing *unacked) {
    uint64_t now = monotonic_ns(), next = UINT64_MAX;
    if (unacked->next_due > now) return;
    for (uint64_t index = unacked->head; index != unacked->tail; index++) {
        const UnackedEntry *entry = entry_at(unacked, index);
        if (entry->state != UNACKED_DELAYED) continue;
        if (entry->due <= now) redeliver(unacked, index, 0, 0);
        else if (entry->due < next) next = entry->due;
    }
    unacked->next_due = next;
}

uint64_t unacked_ready(UnackedRing *unacked) {
    if (unacked->delayed) end_delays(unacked);
    return unacked->ready;
}

uint64_t unacked_next_due(UnackedRing *unacked) {
    unacked_ready(unacked);
    uint64_t next = 0;
    for (uint64_t index = unacked->head; unacked->delayed && index != unacked->tail; index++) {
        const UnackedEntry *entry = entry_at(unacked, index);
        if (entry->state == UNACKED_DELAYED && (!next || entry->due < next)) next = entry->due;
    }
    return next;
}

/* The first message that is ready to be redelivered; NULL if there is none. */
const UnackedEntry *unacked_first_ready(UnackedRing *unacked) {
    if (!unacked_ready(unacked)) return NULL;
    if (unacked->first_ready < unacked->head) unacked->first_ready = unacked->head;
    while (entry_at(unacked, unacked->first_ready)->state != UNACKED_READY) unacked->first_ready++;
    return entry_at(unacked, unacked->first_ready);
}

/* The next message that is ready to be redelivered, from the index on; NULL if there are no more. */
const UnackedEntry *unacked_next_ready(const UnackedRing *unacked, uint64_t *index) {
    if (*index < unacked->head) *index = unacked->head;
    for (; *index < unacked->tail; ++*index)
        if (entry_at(unacked, *index)->state == UNACKED_READY) return entry_at(unacked, (*index)++);
    return NULL;
}

/* Mark a message as delivered again; returns its attempt. */
uint32_t unacked_mark_redelivered(UnackedRing *unacked, uint64_t offset) {
    uint64_t index;
    if (!find(unacked, offset, &index)) return 1;
    UnackedEntry *entry = entry_at(unacked, index);
    leave_state(unacked, entry);
    unacked->out++;
    entry->state = UNACKED_OUT;
    entry->token = unacked->token;
    return entry->attempt;
}

/* Undo the call with the newest token, whose caller did not get its items: new ones, from `offset` on, are dropped, and
 * the others are redelivered. */
void unacked_roll_back(UnackedRing *unacked, uint64_t offset) {
    unacked_drop_from(unacked, offset);
    for (uint64_t index = unacked->head; index != unacked->tail; index++) {
        const UnackedEntry *entry = entry_at(unacked, index);
        if (entry->state == UNACKED_OUT && entry->token == unacked->token) redeliver(unacked, index, 0, 0);
    }
}
