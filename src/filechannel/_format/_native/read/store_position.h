/* Storing a log position in a cursor file. The reference, with the reason for the order, is store_position.py. */
#pragma once
#include "core.h"

static inline void cursor_slot_write(uint8_t *cursor, uint64_t generation, uint64_t offset, uint64_t sequence, uint64_t time) {
    uint8_t *to = cursor + (generation & 1 ? CURSOR_SLOT_1 : CURSOR_SLOT_0);
    put_u64(to, generation);
    put_u64(to + 8, offset);
    put_u64(to + 16, sequence);
    put_u64(to + 24, time);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* the checksum last */
    put_u32(to + 32, crc32c(0, to, 32));
}
