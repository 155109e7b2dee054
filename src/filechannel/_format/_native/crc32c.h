/* CRC-32C of a few bytes, inline: records, slots and cursors are mostly small.
 *
 * The instruction is written as assembly, so that the rest of the core needs no compiler flags for it. Whether the CPU
 * has it is checked once, at import. */
#ifndef FILECHANNEL_CRC32C_H
#define FILECHANNEL_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32C_INSTRUCTION "sse4.2"
static inline uint32_t crc32c_step_8(uint32_t crc, uint8_t v) { __asm__("crc32b %1, %0" : "+r"(crc) : "rm"(v)); return crc; }
static inline uint32_t crc32c_step_32(uint32_t crc, uint32_t v) { __asm__("crc32l %1, %0" : "+r"(crc) : "rm"(v)); return crc; }
static inline uint32_t crc32c_step_64(uint32_t crc, uint64_t v) {
    uint64_t wide = crc;
    __asm__("crc32q %1, %0" : "+r"(wide) : "rm"(v));
    return (uint32_t)wide;
}
#elif defined(__aarch64__) && defined(__GNUC__)
#define CRC32C_INSTRUCTION "armv8"
#define CRC32C_STEP(instruction, value)                                                                                \
    __asm__(".arch_extension crc\n\t" instruction : "=r"(crc) : "r"(crc), "r"(value));                                 \
    return crc
static inline uint32_t crc32c_step_8(uint32_t crc, uint8_t v) { CRC32C_STEP("crc32cb %w0, %w1, %w2", (uint32_t)v); }
static inline uint32_t crc32c_step_32(uint32_t crc, uint32_t v) { CRC32C_STEP("crc32cw %w0, %w1, %w2", v); }
static inline uint32_t crc32c_step_64(uint32_t crc, uint64_t v) { CRC32C_STEP("crc32cx %w0, %w1, %x2", v); }
#endif

#define CRC32C_INLINE 256 /* longer data goes to crc32c_long, which works on three lanes */

extern int crc32c_has_instruction;
void crc32c_init(void);
uint32_t crc32c_long(uint32_t value, const uint8_t *data, size_t size);
const char *crc32c_method(void);

static inline uint32_t crc32c(uint32_t value, const void *data, size_t size) {
    const uint8_t *at = (const uint8_t *)data;
#ifdef CRC32C_INSTRUCTION
    if (size <= CRC32C_INLINE && crc32c_has_instruction) {
        uint32_t crc = ~value;
        for (; size >= 8; at += 8, size -= 8) {
            uint64_t v;
            memcpy(&v, at, 8);
            crc = crc32c_step_64(crc, v);
        }
        if (size >= 4) {
            uint32_t v;
            memcpy(&v, at, 4);
            crc = crc32c_step_32(crc, v);
            at += 4;
            size -= 4;
        }
        for (; size; size--) crc = crc32c_step_8(crc, *at++);
        return ~crc;
    }
#endif
    return crc32c_long(value, at, size);
}

#endif
