/* What was handed out and not acknowledged yet, in order of offset. The reference is held.py.
 *
 * A ring: new ones go in at the tail, and what is settled at the head goes out. Indices count up for ever; masked they
 * are places. Nothing in here calls Python, so whoever has the GIL sees it whole. */
#include "core.h"

#define FIRST_ROOM 16

static HeldEntry *entry_at(const Held *held, uint64_t index) { return &held->entries[index & held->mask]; }

Held *held_new(void) {
    Held *held = PyMem_Calloc(1, sizeof(Held));
    if (!held || !(held->entries = PyMem_Calloc(FIRST_ROOM, sizeof(HeldEntry)))) {
        PyMem_Free(held);
        return NULL;
    }
    held->mask = FIRST_ROOM - 1;
    return held;
}

void held_free(Held *held) {
    if (held) PyMem_Free(held->entries);
    PyMem_Free(held);
}

/* Make sure that the next push has room. */
int held_reserve(Held *held) {
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

void held_push(Held *held, uint64_t offset, uint64_t sequence) {
    HeldEntry *entry = entry_at(held, held->tail++);
    *entry = (HeldEntry){.offset = offset, .sequence = sequence, .token = held->token, .attempt = 1, .state = HELD_OUT};
    held->out++;
}

/* What the oldest one is that is not settled; NULL if there is none. */
const HeldEntry *held_oldest(const Held *held) { return held->head == held->tail ? NULL : entry_at(held, held->head); }

static void leave_state(Held *held, const HeldEntry *entry) {
    if (entry->state == HELD_OUT) held->out--;
    if (entry->state == HELD_READY) held->ready--;
    if (entry->state == HELD_DELAYED) held->delayed--;
}

static void settle(Held *held, HeldEntry *entry) {
    leave_state(held, entry);
    entry->state = HELD_SETTLED;
}

static void come_again(Held *held, uint64_t index, uint64_t due, int counted) {
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

/* Drop what is settled and older than the oldest one that is not; tell whether there was any. */
static int trim(Held *held) {
    uint64_t before = held->head;
    while (held->head != held->tail && entry_at(held, held->head)->state == HELD_SETTLED) held->head++;
    return held->head != before;
}

/* Forget what begins at an offset or behind it. */
void held_drop_from(Held *held, uint64_t offset) {
    while (held->tail != held->head && entry_at(held, held->tail - 1)->offset >= offset)
        leave_state(held, entry_at(held, --held->tail));
}

/* Forget what waits to come again between two offsets: it is gone. */
void held_drop_waiting(Held *held, uint64_t begin, uint64_t end) {
    for (uint64_t index = held->head; index != held->tail; index++) {
        HeldEntry *entry = entry_at(held, index);
        if (entry->state != HELD_OUT && begin <= entry->offset && entry->offset < end) settle(held, entry);
    }
    trim(held);
}

int held_ack(Held *held, uint64_t count, int *moved) {
    *moved = 0;
    if (count > held->out) return 0;
    for (uint64_t index = held->head; count; index++) {
        HeldEntry *entry = entry_at(held, index);
        if (entry->state != HELD_OUT) continue;
        settle(held, entry);
        count--;
    }
    *moved = trim(held);
    return 1;
}

int held_nack(Held *held, uint64_t count) {
    if (count > held->out) return 0;
    for (uint64_t index = held->tail; count;) {
        if (entry_at(held, --index)->state != HELD_OUT) continue;
        come_again(held, index, 0, 1);
        count--;
    }
    return 1;
}

/* Tell whether what somebody has is the oldest there is; *waiting: what comes again behind it, NULL if nothing does. */
int held_in_order(const Held *held, const HeldEntry **waiting) {
    *waiting = NULL;
    for (uint64_t index = held->head; index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state == HELD_OUT && *waiting) return 0;
        if ((entry->state == HELD_READY || entry->state == HELD_DELAYED) && !*waiting) *waiting = entry;
    }
    return 1;
}

/* Settle whatever begins before an offset; tell whether the oldest is another one now. */
int held_settle_before(Held *held, uint64_t offset) {
    for (uint64_t index = held->head; index != held->tail && entry_at(held, index)->offset < offset; index++)
        settle(held, entry_at(held, index));
    return trim(held);
}

/* Let everything come again that somebody has; that attempt does not count. */
void held_give_back_all(Held *held) {
    for (uint64_t index = held->head; index != held->tail; index++)
        if (entry_at(held, index)->state == HELD_OUT) come_again(held, index, 0, 0);
}

static int find(const Held *held, uint64_t offset, uint64_t *found) {
    uint64_t low = held->head, high = held->tail;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (entry_at(held, middle)->offset < offset) low = middle + 1;
        else high = middle;
    }
    *found = low;
    return low < held->tail && entry_at(held, low)->offset == offset;
}

static int find_out(const Held *held, uint64_t offset, uint64_t token, uint64_t *index) {
    return find(held, offset, index) && entry_at(held, *index)->state == HELD_OUT && entry_at(held, *index)->token == token;
}

int held_settle(Held *held, uint64_t offset, uint64_t token, int *moved) {
    uint64_t index;
    *moved = 0;
    if (!find_out(held, offset, token, &index)) return 0;
    settle(held, entry_at(held, index));
    *moved = trim(held);
    return 1;
}

int held_give_back(Held *held, uint64_t offset, uint64_t token, uint64_t due, int counted) {
    uint64_t index;
    if (!find_out(held, offset, token, &index)) return 0;
    come_again(held, index, due, counted);
    return 1;
}

/* Let those come again whose delay is over. */
static void end_delays(Held *held) {
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

uint64_t held_ready(Held *held) {
    if (held->delayed) end_delays(held);
    return held->ready;
}

uint64_t held_next_due(Held *held) {
    held_ready(held);
    uint64_t next = 0;
    for (uint64_t index = held->head; held->delayed && index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state == HELD_DELAYED && (!next || entry->due < next)) next = entry->due;
    }
    return next;
}

/* The first that comes again now; NULL if there is none. */
const HeldEntry *held_first_ready(Held *held) {
    if (!held_ready(held)) return NULL;
    if (held->first_ready < held->head) held->first_ready = held->head;
    while (entry_at(held, held->first_ready)->state != HELD_READY) held->first_ready++;
    return entry_at(held, held->first_ready);
}

/* Those that come again now, from the index on; NULL when there are no more. */
const HeldEntry *held_next_ready(const Held *held, uint64_t *index) {
    if (*index < held->head) *index = held->head;
    for (; *index < held->tail; ++*index)
        if (entry_at(held, *index)->state == HELD_READY) return entry_at(held, (*index)++);
    return NULL;
}

/* It is handed out again; its attempt. */
uint32_t held_hand_out(Held *held, uint64_t offset) {
    uint64_t index;
    if (!find(held, offset, &index)) return 1;
    HeldEntry *entry = entry_at(held, index);
    leave_state(held, entry);
    held->out++;
    entry->state = HELD_OUT;
    entry->token = held->token;
    return entry->attempt;
}

/* Nobody got what was handed out under the newest token: those from an offset on were new, the others come again. */
void held_take_back(Held *held, uint64_t offset) {
    held_drop_from(held, offset);
    for (uint64_t index = held->head; index != held->tail; index++) {
        const HeldEntry *entry = entry_at(held, index);
        if (entry->state == HELD_OUT && entry->token == held->token) come_again(held, index, 0, 0);
    }
}
