/* CRC-32C (Castagnoli): with the CPU instruction where there is one, with a table elsewhere. */
#include "crc32c.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define LANE 256               /* bytes per lane; three lanes hide the latency of the instruction */

int crc32c_has_instruction;
static uint32_t byte_table[256];
static uint32_t lane_table[4][256]; /* the effect of LANE zero bytes on each byte of a running value */

static uint32_t by_table(uint32_t crc, const uint8_t *at, size_t size) {
    while (size--) crc = (crc >> 8) ^ byte_table[(crc ^ *at++) & 0xff];
    return crc;
}

#ifdef CRC32C_INSTRUCTION
static uint64_t load(const uint8_t *at) {
    uint64_t v;
    memcpy(&v, at, 8);
    return v;
}

static uint32_t past_lane(uint32_t crc) {
    return lane_table[0][crc & 0xff] ^ lane_table[1][(crc >> 8) & 0xff] ^ lane_table[2][(crc >> 16) & 0xff] ^
           lane_table[3][crc >> 24];
}

static uint32_t by_lanes(uint32_t crc, const uint8_t **data, size_t *size) {
    const uint8_t *at = *data;
    for (; *size >= 3 * LANE; at += 3 * LANE, *size -= 3 * LANE) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < LANE; i += 8) {
            crc = crc32c_step_64(crc, load(at + i));
            second = crc32c_step_64(second, load(at + LANE + i));
            third = crc32c_step_64(third, load(at + 2 * LANE + i));
        }
        crc = past_lane(past_lane(crc) ^ second) ^ third;
    }
    *data = at;
    return crc;
}
#endif

uint32_t crc32c_long(uint32_t value, const uint8_t *at, size_t size) {
    uint32_t crc = ~value;
#ifdef CRC32C_INSTRUCTION
    if (crc32c_has_instruction) {
        crc = by_lanes(crc, &at, &size);
        for (; size >= 8; at += 8, size -= 8) crc = crc32c_step_64(crc, load(at));
        for (; size; size--) crc = crc32c_step_8(crc, *at++);
        return ~crc;
    }
#endif
    return ~by_table(crc, at, size);
}

void crc32c_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        byte_table[i] = crc;
    }
    static const uint8_t zeros[LANE];
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++)
            lane_table[byte][value] = by_table(value << (8 * byte), zeros, LANE);
#if defined(__x86_64__) && defined(CRC32C_INSTRUCTION)
    crc32c_has_instruction = !!__builtin_cpu_supports("sse4.2");
#elif defined(__aarch64__) && defined(CRC32C_INSTRUCTION)
    crc32c_has_instruction = !!(getauxval(AT_HWCAP) & HWCAP_CRC32);
#endif
}

const char *crc32c_method(void) {
#ifdef CRC32C_INSTRUCTION
    if (crc32c_has_instruction) return CRC32C_INSTRUCTION;
#endif
    return "table";
}
