/* Reading MessagePack: one token at a time, never beyond the end. */
#ifndef FILECHANNEL_MSGPACK_H
#define FILECHANNEL_MSGPACK_H

#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *at, *end;
} Input;

enum wire { WIRE_NIL, WIRE_BOOL, WIRE_INT, WIRE_UINT, WIRE_FLOAT, WIRE_STR, WIRE_BIN, WIRE_ARRAY, WIRE_MAP, WIRE_EXT, WIRE_BAD };
typedef struct {
    enum wire kind;
    int8_t extension;
    union {
        uint64_t number; /* also: how many bytes, items or pairs follow; WIRE_UINT: too large for a signed integer */
        int64_t integer;
        double real;
    };
} Token;

static inline uint64_t big_endian(const uint8_t *at, unsigned int size) {
    uint64_t value = 0;
    switch (size) {
    case 1: return *at;
    case 2: { uint16_t v; memcpy(&v, at, 2); return __builtin_bswap16(v); }
    case 4: { uint32_t v; memcpy(&v, at, 4); return __builtin_bswap32(v); }
    case 8: memcpy(&value, at, 8); return __builtin_bswap64(value);
    default: return value;
    }
}

static inline uint64_t input_left(const Input *in) { return (uint64_t)(in->end - in->at); }

static inline int number_follows(Input *in, unsigned int size, uint64_t *number) {
    if (input_left(in) < size) return 0;
    *number = big_endian(in->at, size);
    in->at += size;
    return 1;
}

/* The body of such a token is known to lie inside the input; it comes next. */
static inline void token_with_body(Input *in, Token *token, enum wire kind, unsigned int size) {
    token->kind = number_follows(in, size, &token->number) && token->number <= input_left(in) ? kind : WIRE_BAD;
}

/* Every item takes at least one byte, so a larger count cannot be true. */
static inline void token_with_items(Input *in, Token *token, enum wire kind, unsigned int size) {
    token_with_body(in, token, kind, size);
}

static inline void token_extension(Input *in, Token *token, uint64_t size) {
    if (!input_left(in) || size > input_left(in) - 1) {
        token->kind = WIRE_BAD;
        return;
    }
    token->kind = WIRE_EXT;
    token->extension = (int8_t)*in->at++;
    token->number = size;
}

static inline void token_signed(Input *in, Token *token, unsigned int size) {
    uint64_t number;
    if (!number_follows(in, size, &number)) {
        token->kind = WIRE_BAD;
        return;
    }
    token->kind = WIRE_INT;
    unsigned int unused = 64 - 8 * size;
    token->integer = (int64_t)(number << unused) >> unused;
}

static inline void token_real(Input *in, Token *token, unsigned int size) {
    uint64_t bits;
    if (!number_follows(in, size, &bits)) {
        token->kind = WIRE_BAD;
        return;
    }
    token->kind = WIRE_FLOAT;
    if (size == 8) {
        memcpy(&token->real, &bits, 8);
    } else {
        uint32_t narrow = (uint32_t)bits;
        float real;
        memcpy(&real, &narrow, 4);
        token->real = (double)real;
    }
}

static inline void token_short(Input *in, Token *token, enum wire kind, uint64_t number) {
    token->number = number;
    token->kind = number <= input_left(in) ? kind : WIRE_BAD;
}

static inline void next_token(Input *in, Token *token) {
    if (in->at >= in->end) {
        token->kind = WIRE_BAD;
        return;
    }
    uint8_t first = *in->at++;
    if (first < 0x80 || first >= 0xe0) {
        token->kind = WIRE_INT;
        token->integer = (int8_t)first;
        return;
    }
    if (first < 0x90) return token_short(in, token, WIRE_MAP, first & 0x0f);
    if (first < 0xa0) return token_short(in, token, WIRE_ARRAY, first & 0x0f);
    if (first < 0xc0) return token_short(in, token, WIRE_STR, first & 0x1f);
    switch (first) {
    case 0xc0: token->kind = WIRE_NIL; return;
    case 0xc2: case 0xc3: token->kind = WIRE_BOOL; token->number = first & 1; return;
    case 0xc4: case 0xc5: case 0xc6: return token_with_body(in, token, WIRE_BIN, 1u << (first - 0xc4));
    case 0xc7: case 0xc8: case 0xc9: {
        uint64_t size;
        if (!number_follows(in, 1u << (first - 0xc7), &size)) size = UINT64_MAX;
        return token_extension(in, token, size);
    }
    case 0xca: return token_real(in, token, 4);
    case 0xcb: return token_real(in, token, 8);
    case 0xcc: case 0xcd: case 0xce: case 0xcf:
        token->kind = number_follows(in, 1u << (first - 0xcc), &token->number) ? WIRE_INT : WIRE_BAD;
        if (token->kind == WIRE_INT && token->number > INT64_MAX) token->kind = WIRE_UINT;
        return;
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return token_signed(in, token, 1u << (first - 0xd0));
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return token_extension(in, token, 1u << (first - 0xd4));
    case 0xd9: case 0xda: case 0xdb: return token_with_body(in, token, WIRE_STR, 1u << (first - 0xd9));
    case 0xdc: case 0xdd: return token_with_items(in, token, WIRE_ARRAY, 2u << (first - 0xdc));
    case 0xde: case 0xdf: return token_with_items(in, token, WIRE_MAP, 2u << (first - 0xde));
    default: token->kind = WIRE_BAD; return;
    }
}

/* Skip one value of any type; returns whether that was possible. Not recursive: the sender controls the nesting
 * depth. */
static inline int skip_value(Input *in) {
    uint64_t values = 1;
    while (values--) {
        Token token;
        next_token(in, &token);
        switch (token.kind) {
        case WIRE_BAD: return 0;
        case WIRE_STR: case WIRE_BIN: case WIRE_EXT: in->at += token.number; break;
        case WIRE_ARRAY: values += token.number; break;
        case WIRE_MAP: values += 2 * token.number; break;
        default: break;
        }
        if (values > input_left(in)) return 0; /* each takes at least one byte */
    }
    return 1;
}

#endif
