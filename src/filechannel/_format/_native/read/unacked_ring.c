/* The deliveries that are not acknowledged, in order of offset. The reference is read/unacked_ring.py.
 *
 * A ring: new entries are added at the tail, and acknowledged ones are removed at the head. Indices only increase; masked
 * they are array indices. Nothing in here calls Python, so a thread with the GIL sees a consistent state. */
#include "core.h"

#define FIRST_ROOM 16

static HeldEntry *entry_at(const UnackedRing *held, uint64_t index) { return &held->entries[index & held->mask]; }

UnackedRing *held_new(void) {
    UnackedRing *held = PyMem_Calloc(1, sizeof(UnackedRing));
    if (!held || !(held->entries = PyMem_Calloc(FIRST_ROOM, sizeof(HeldEntry)))) {
        PyMem_Free(held);
        return NULL;
    }
    held->mask = FIRST_ROOM - 1;
    return held;
}

void held_free(UnackedRing *held) {
    if (held) PyMem_Free(held->entries);
    PyMem_Free(held);
}

/* Make sure that the next push fits. */
int held_reserve(UnackedRing *held) {
    uint64_t room = held->mask + 1;
    if (held->tail - held->head < room) return 0;
    HeldEntry *entries = PyMem_Calloc(2 * room, sizeof(HeldEntry));
    if (!entries) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t index = held->head; index != held->tail; index++) entries[index & (2 * room - 1)] = *entry_at(held, index);
    PyMem_Free(held->entries);
    held->entries = entries;
    held->mask = 2 * room - 1;
    return 0;
}

void held_push(UnackedRing *held, uint64_t offset, uint64_t sequence) {
    HeldEntry *entry = entry_at(held, held->tail++);
    *entry = (HeldEntry){.offset = offset, .sequence = sequence, .token = held->token, .attempt = 1, .state = HELD_OUT};
    held->out++;
}

/* The oldest entry that is not acknowledged; NULL if there is none. */
const HeldEntry *held_oldest(const UnackedRing *held) { return held->head == held->tail ? NULL : entry_at(held, held->head); }

static void leave_state(UnackedRing *held, const HeldEntry *entry) {
    if (entry->state == HELD_OUT) held->out--;
    if (entry->state == HELD_READY) held->ready--;
    if (entry->state == HELD_DELAYED) held->delayed--;
}

static void acknowledge(UnackedRing *held, HeldEntry *entry) {
    leave_state(held, entry);
    entry->state = HELD_SETTLED;
}

static void come_again(UnackedRing *held, uint64_t index, uint64_t due, int counted) {
    HeldEntry *entry = entry_at(held, index);
    leave_state(held, entry);
    entry->attempt += (uint32_t)(counted && entry->attempt < UINT32_MAX);
    entry->due = due;
    entry->state = due ? HELD_DELAYED : HELD_READY;
    if (due) {
        if (!held->delayed++ || due < held->next_due) held->next_due = due;
    } else {
        if (!held->ready++ || index < held->first_ready) held->first_ready = index;
    }
}

/* Drop the acknowledged entries before the oldest one that is not acknowledged; returns whether there were any. */
static int trim(UnackedRing *held) {
    uint64_t before = held->head;
    while (held->head != held->tail && entry_at(held, held->head)->state == HELD_SETTLED) held->head++;
    return held->head != before;
}

/* Forget the entries that begin at an offset or behind it. */
void held_drop_from(UnackedRing *held, uint64_t offset) {
    while (held->tail != held->head && entry_at(held, held->tail - 1)->offset >= offset)
        leave_state(held, entry_at(held, --held->tail));
}

/* Drop the messages that wait to be redelivered between two offsets, because they no longer exist. */
void held_drop_waiting(UnackedRing *held, uint64_t begin, uint64_t end) {
    for (uint64_t index = held->head; index != held->tail; index++) {
        HeldEntry *entry = entry_at(held, index);
        if (entry->state != HELD_OUT && begin <= entry->offset && entry->offset < end) acknowledge(held, entry);
    }
    trim(held);
}

int held_ack(UnackedRing *held, uint64_t count, int *moved) {
    *moved = 0;
    if (count > held->out) return 0;
    for (uint64_t index = held->head; count; index++) {
        HeldEntry *entry = entry_at(held, index);
        if (entry->state != HELD_OUT) continue;
        acknowledge(held, entry);
        count--;
    }
    *moved = trim(held);
    return 1;
}

int held_nack(UnackedRing *held, uint64_t count) {
    if (count > held->out) return 0;
    for (uint64_t index = held->tail; count;) {
        if (entry_at(held, --index)->state != HELD_OUT) continue;
        come_again(held, index, 0, 1);
        count--;
    }
    return 1;
}

/* Returns whether every outstanding entry is older than all that wait for redelivery; *waiting: the first of these,
 * or NULL. */
int held_in_order(const UnackedRing *held, const HeldEntry **waiting) {
    *waiting = NULL;
    for (uint64_t index = held->head; index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state == HELD_OUT && *waiting) return 0;
        if ((entry->state == HELD_READY || entry->state == HELD_DELAYED) && !*waiting) *waiting = entry;
    }
    return 1;
}

/* Acknowledge everything that begins before an offset; returns whether the oldest entry changed. */
int held_acknowledge_before(UnackedRing *held, uint64_t offset) {
    for (uint64_t index = held->head; index != held->tail && entry_at(held, index)->offset < offset; index++)
        acknowledge(held, entry_at(held, index));
    return trim(held);
}

/* Redeliver everything that is outstanding; the attempt is not counted. */
void held_give_back_all(UnackedRing *held) {
    for (uint64_t index = held->head; index != held->tail; index++)
        if (entry_at(held, index)->state == HELD_OUT) come_again(held, index, 0, 0);
}

static int find(const UnackedRing *held, uint64_t offset, uint64_t *found) {
    uint64_t low = held->head, high = held->tail;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (entry_at(held, middle)->offset < offset) low = middle + 1;
        else high = middle;
    }
    *found = low;
    return low < held->tail && entry_at(held, low)->offset == offset;
}

static int find_out(const UnackedRing *held, uint64_t offset, uint64_t token, uint64_t *index) {
    return find(held, offset, index) && entry_at(held, *index)->state == HELD_OUT && entry_at(held, *index)->token == token;
}

int held_acknowledge(UnackedRing *held, uint64_t offset, uint64_t token, int *moved) {
    uint64_t index;
    *moved = 0;
    if (!find_out(held, offset, token, &index)) return 0;
    acknowledge(held, entry_at(held, index));
    *moved = trim(held);
    return 1;
}

int held_give_back(UnackedRing *held, uint64_t offset, uint64_t token, uint64_t due, int counted) {
    uint64_t index;
    if (!find_out(held, offset, token, &index)) return 0;
    come_again(held, index, due, counted);
    return 1;
}

/* Make messages ready whose delay is over. */
static void end_delays(UnackedRing *held) {
    uint64_t now = monotonic_ns(), next = UINT64_MAX;
    if (held->next_due > now) return;
    for (uint64_t index = held->head; index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state != HELD_DELAYED) continue;
        if (entry->due <= now) come_again(held, index, 0, 0);
        else if (entry->due < next) next = entry->due;
    }
    held->next_due = next;
}

uint64_t held_ready(UnackedRing *held) {
    if (held->delayed) end_delays(held);
    return held->ready;
}

uint64_t held_next_due(UnackedRing *held) {
    held_ready(held);
    uint64_t next = 0;
    for (uint64_t index = held->head; held->delayed && index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state == HELD_DELAYED && (!next || entry->due < next)) next = entry->due;
    }
    return next;
}

/* The first message that is ready to be redelivered; NULL if there is none. */
const HeldEntry *held_first_ready(UnackedRing *held) {
    if (!held_ready(held)) return NULL;
    if (held->first_ready < held->head) held->first_ready = held->head;
    while (entry_at(held, held->first_ready)->state != HELD_READY) held->first_ready++;
    return entry_at(held, held->first_ready);
}

/* The next message that is ready to be redelivered, from the index on; NULL if there are no more. */
const HeldEntry *held_next_ready(const UnackedRing *held, uint64_t *index) {
    if (*index < held->head) *index = held->head;
    for (; *index < held->tail; ++*index)
        if (entry_at(held, *index)->state == HELD_READY) return entry_at(held, (*index)++);
    return NULL;
}

/* Mark a message as handed out again; returns its attempt. */
uint32_t held_hand_out(UnackedRing *held, uint64_t offset) {
    uint64_t index;
    if (!find(held, offset, &index)) return 1;
    HeldEntry *entry = entry_at(held, index);
    leave_state(held, entry);
    held->out++;
    entry->state = HELD_OUT;
    entry->token = held->token;
    return entry->attempt;
}

/* Undo the call with the newest token, whose caller did not get its items: new ones, from `offset` on, are dropped, and
 * the others are redelivered. */
void held_take_back(UnackedRing *held, uint64_t offset) {
    held_drop_from(held, offset);
    for (uint64_t index = held->head; index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state == HELD_OUT && entry->token == held->token) come_again(held, index, 0, 0);
    }
}
