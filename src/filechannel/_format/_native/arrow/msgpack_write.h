/* Writing MessagePack, each value in its shortest encoding. The caller has reserved LONGEST_HEAD bytes, and the
 * body. */
#ifndef FILECHANNEL_MSGPACK_WRITE_H
#define FILECHANNEL_MSGPACK_WRITE_H

#include <stdint.h>
#include <string.h>

#define LONGEST_HEAD 9 /* an integer of 64 bits */
#define MSGPACK_NIL 0xc0
#define MSGPACK_FALSE 0xc2

/* Always writes eight bytes: those after the value are overwritten later, or are not part of the message. */
static inline uint8_t *put_number(uint8_t *at, uint64_t value, unsigned int size) {
    value = __builtin_bswap64(value << (64 - 8 * size));
    memcpy(at, &value, 8);
    return at + size;
}

static inline uint8_t *put_big_endian(uint8_t *at, uint8_t first, uint64_t value, unsigned int size) {
    *at = first;
    return put_number(at + 1, value, size);
}

static inline uint8_t *put_unsigned(uint8_t *at, uint64_t value) {
    if (value < 0x80) return *at = (uint8_t)value, at + 1;
    if (value <= UINT8_MAX) return put_big_endian(at, 0xcc, value, 1);
    if (value <= UINT16_MAX) return put_big_endian(at, 0xcd, value, 2);
    return value <= UINT32_MAX ? put_big_endian(at, 0xce, value, 4) : put_big_endian(at, 0xcf, value, 8);
}

static inline uint8_t *put_integer(uint8_t *at, int64_t value) {
    if (value >= 0) return put_unsigned(at, (uint64_t)value);
    if (value >= -32) return *at = (uint8_t)value, at + 1;
    if (value >= INT8_MIN) return put_big_endian(at, 0xd0, (uint64_t)value, 1);
    if (value >= INT16_MIN) return put_big_endian(at, 0xd1, (uint64_t)value, 2);
    return value >= INT32_MIN ? put_big_endian(at, 0xd2, (uint64_t)value, 4) : put_big_endian(at, 0xd3, (uint64_t)value, 8);
}

static inline uint8_t *put_real(uint8_t *at, double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return put_big_endian(at, 0xcb, bits, 8);
}

/* The head of a value with a length below 2^32: `few` is the one-byte encoding for less than `most`, `many` the
 * longer one. */
static inline uint8_t *put_head(uint8_t *at, uint64_t length, uint8_t few, uint64_t most, uint8_t many) {
    if (length < most) return *at = (uint8_t)(few | length), at + 1;
    return length <= UINT16_MAX ? put_big_endian(at, many, length, 2) : put_big_endian(at, (uint8_t)(many + 1), length, 4);
}
static inline uint8_t *put_array(uint8_t *at, uint64_t count) { return put_head(at, count, 0x90, 16, 0xdc); }
static inline uint8_t *put_map(uint8_t *at, uint64_t count) { return put_head(at, count, 0x80, 16, 0xde); }
static inline uint8_t *put_str(uint8_t *at, uint64_t size) {
    return size >= 32 && size <= UINT8_MAX ? put_big_endian(at, 0xd9, size, 1) : put_head(at, size, 0xa0, 32, 0xda);
}
static inline uint8_t *put_bin(uint8_t *at, uint64_t size) {
    return size <= UINT8_MAX ? put_big_endian(at, 0xc4, size, 1) : put_head(at, size, 0, 0, 0xc5);
}

#endif
