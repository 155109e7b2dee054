/* One column: consecutive values of one type, in the Arrow layout.
 *
 * A value that cannot be converted leaves its column, and those inside it, with different lengths: the caller cuts all
 * of them back to the last complete value. */
#include "arrow/column.h"

const char column_no_memory[] = "there is not enough memory", column_full[] = "the batch is full";
static const char broken[] = "it is not MessagePack", unexpected[] = "it is of another type";
#define MOST_BYTES INT32_MAX /* Arrow's offsets have 32 bits */

static inline Problem put_bytes(Growing *growing, const void *data, size_t size) {
    if (!grow(growing, size)) return column_no_memory;
    if (size) memcpy(growing->data + growing->size, data, size); /* memcpy must not be given NULL, not even with size 0 */
    growing->size += size;
    return NULL;
}

/* Append a bit after `length` others. */
static Problem put_bit(Growing *bits, size_t length, int bit) {
    if (length % 8 == 0) {
        if (!grow(bits, 1)) return column_no_memory;
        bits->data[bits->size++] = 0;
    }
    uint8_t mask = (uint8_t)(1u << length % 8), *byte = bits->data + length / 8;
    *byte = bit ? *byte | mask : *byte & (uint8_t)~mask;
    return NULL;
}

/* The last step of a value. Until the first null there is no validity bitmap. */
static inline Problem end_value(Column *column, int valid) {
    Problem problem = NULL;
    if (!valid && !column->nulls)
        for (size_t index = 0; !problem && index < column->length; index++)
            problem = put_bit(&column->validity, index, 1);
    if (!problem && (column->nulls || !valid)) problem = put_bit(&column->validity, column->length, valid);
    if (problem) return problem;
    column->nulls += !valid;
    column->length++;
    return NULL;
}

static Problem put_offset(Growing *offsets, uint64_t offset) {
    if (offset > MOST_BYTES) return column_full;
    int32_t narrow = (int32_t)offset;
    if (!offsets->size) {
        int32_t zero = 0;
        Problem problem = put_bytes(offsets, &zero, sizeof zero);
        if (problem) return problem;
    }
    return put_bytes(offsets, &narrow, sizeof narrow);
}

static uint64_t last_offset(const Growing *offsets) {
    int32_t last = 0;
    if (offsets->size) memcpy(&last, offsets->data + offsets->size - sizeof last, sizeof last);
    return (uint64_t)last;
}

/* How many bytes a value takes in `data`; 0 if that varies, or is a bit. */
static size_t width_of(enum column_kind kind) {
    switch (kind) {
    case COLUMN_INT: case COLUMN_FLOAT: case COLUMN_TIMESTAMP: return 8;
    case COLUMN_DATE: return 4;
    case COLUMN_DECIMAL: return 16;
    default: return 0;
    }
}

/* A missing value: null if the column is nullable, and otherwise arbitrary, since the value that contains it is
 * null. */
static Problem put_empty(Column *column, int valid) {
    static const uint8_t zeros[16] = {0};
    Problem problem = NULL;
    switch (column->kind) {
    case COLUMN_BOOL: problem = put_bit(&column->data, column->length, 0); break;
    case COLUMN_STRING: case COLUMN_BINARY: case COLUMN_LIST: case COLUMN_MAP:
        problem = put_offset(&column->offsets, last_offset(&column->offsets));
        break;
    case COLUMN_STRUCT:
        for (size_t index = 0; !problem && index < column->field_count; index++) {
            Column *inner = column->fields[index].column;
            problem = put_empty(inner, !inner->nullable);
        }
        break;
    default: problem = put_bytes(&column->data, zeros, width_of(column->kind));
    }
    return problem ? problem : end_value(column, valid);
}

static inline Problem put_eight(Column *column, uint64_t bits) {
    if (!grow(&column->data, 8)) return column_no_memory;
    memcpy(column->data.data + column->data.size, &bits, 8);
    column->data.size += 8;
    return end_value(column, 1);
}

static Problem put_fixed(Column *column, const void *value, size_t size) {
    Problem problem = put_bytes(&column->data, value, size);
    return problem ? problem : end_value(column, 1);
}

static Problem put_int(Column *column, const Token *token) {
    if (token->kind == WIRE_UINT) return "it is too large for a signed number of 64 bits";
    return token->kind == WIRE_INT ? put_eight(column, token->number) : unexpected;
}

static Problem put_float(Column *column, const Token *token) {
    double real = token->kind == WIRE_INT ? (double)token->integer : token->kind == WIRE_UINT ? (double)token->number : token->real;
    return token->kind == WIRE_FLOAT || token->kind == WIRE_INT || token->kind == WIRE_UINT ? put_fixed(column, &real, 8) : unexpected;
}

Problem column_put_whole(Column *column, const uint8_t *data, size_t size) {
    uint64_t end = last_offset(&column->offsets) + size;
    if (end > MOST_BYTES) return column_full;
    Problem problem = put_bytes(&column->data, data, size);
    if (!problem) problem = put_offset(&column->offsets, end);
    return problem ? problem : end_value(column, 1);
}

static Problem put_text(Column *column, const Token *token, Input *in) {
    if (token->kind != (column->kind == COLUMN_STRING ? WIRE_STR : WIRE_BIN)) return unexpected;
    const uint8_t *body = in->at;
    in->at += token->number;
    if (column->kind == COLUMN_STRING && !is_utf8(body, token->number)) return "it is not UTF-8";
    return column_put_whole(column, body, token->number);
}

/* MessagePack's timestamp extension: seconds in the low bits, nanoseconds above them. */
static int read_timestamp(const uint8_t *body, uint64_t size, int64_t *microseconds) {
    uint64_t nanoseconds = 0;
    int64_t seconds;
    if (size == 4) {
        seconds = (int64_t)big_endian(body, 4);
    } else if (size == 8) {
        uint64_t both = big_endian(body, 8);
        nanoseconds = both >> 34;
        seconds = (int64_t)(both & 0x3ffffffffu);
    } else if (size == 12) {
        nanoseconds = big_endian(body, 4);
        seconds = (int64_t)big_endian(body + 4, 8);
    } else
        return 0;
    return nanoseconds < 1000000000u && !__builtin_mul_overflow(seconds, (int64_t)1000000, microseconds) &&
           !__builtin_add_overflow(*microseconds, (int64_t)(nanoseconds / 1000), microseconds);
}

static Problem put_timestamp(Column *column, const Token *token, Input *in) {
    int64_t microseconds;
    int good = 0;
    if (token->kind == WIRE_EXT && token->extension == -1)
        good = read_timestamp(in->at, token->number, &microseconds);
    else if (token->kind == WIRE_STR)
        good = parse_moment(in->at, token->number, &microseconds);
    if (!good) return token->kind == WIRE_EXT || token->kind == WIRE_STR ? "it is not a date and time" : unexpected;
    in->at += token->number;
    return put_fixed(column, &microseconds, 8);
}

static Problem put_date(Column *column, const Token *token, Input *in) {
    int32_t days;
    if (token->kind != WIRE_STR) return unexpected;
    if (!parse_date(in->at, token->number, &days)) return "it is not a date";
    in->at += token->number;
    return put_fixed(column, &days, 4);
}

static Problem put_decimal(Column *column, const Token *token, Input *in) {
    __int128 scaled;
    if (token->kind == WIRE_STR) {
        if (!parse_decimal(in->at, token->number, &scaled)) return "it is not a decimal of at most 20 digits before the point and 18 after";
        in->at += token->number;
    } else if (token->kind == WIRE_INT)
        scaled = (__int128)token->integer * 1000000000000000000;
    else
        return unexpected;
    return put_fixed(column, &scaled, 16);
}

static Problem put_inside(Field *field, Input *in, const char **where) {
    const char *inner = NULL;
    Problem problem = column_put(field->column, in, &inner);
    if (problem) *where = inner ? inner : field->label;
    return problem;
}

/* Items of a list; pairs of a map. */
static Problem put_items(Column *column, const Token *token, Input *in, const char **where) {
    if (token->kind != (column->kind == COLUMN_LIST ? WIRE_ARRAY : WIRE_MAP)) return unexpected;
    Problem problem = NULL;
    for (uint64_t left = token->number; left && !problem; left--)
        for (size_t index = 0; index < column->field_count && !problem; index++)
            problem = put_inside(&column->fields[index], in, where);
    if (!problem) problem = put_offset(&column->offsets, column->fields[0].column->length);
    return problem ? problem : end_value(column, 1);
}

static inline uint64_t eight_bytes(const uint8_t *at) { uint64_t eight; memcpy(&eight, at, 8); return eight; }

/* A string of at most eight bytes, if eight bytes may be read: most are like that. 0 for any other case. */
static inline int put_short_text(Column *column, const uint8_t *body, size_t size, const Input *in, Problem *problem) {
    if (size > 8 || in->end - body < 8) return 0;
    uint64_t eight = eight_bytes(body), high = 0x8080808080808080u;
    if (size && eight & high << 8 * (8 - size) >> 8 * (8 - size)) return 0;
    if (!grow(&column->data, 8)) return 0;
    memcpy(column->data.data + column->data.size, &eight, 8);
    *problem = put_offset(&column->offsets, last_offset(&column->offsets) + size);
    if (*problem) return 1;
    column->data.size += size;
    *problem = end_value(column, 1);
    return 1;
}

/* The most frequent encodings, without a token. 0 for any other one. */
static inline int put_common(Column *column, Input *in, Problem *problem) {
    if (in->at >= in->end) return 0;
    uint8_t first = *in->at;
    switch (column->kind) {
    case COLUMN_INT:
        if (first >= 0x80 && first < 0xe0) return 0;
        in->at++;
        *problem = put_eight(column, (uint64_t)(int64_t)(int8_t)first);
        return 1;
    case COLUMN_FLOAT:
        if (first != 0xcb || in->end - in->at < 9) return 0;
        *problem = put_eight(column, __builtin_bswap64(eight_bytes(in->at + 1)));
        in->at += 9;
        return 1;
    case COLUMN_STRING: {
        size_t size = first & 0x1f;
        if (first < 0xa0 || first >= 0xc0 || (size_t)(in->end - in->at) <= size) return 0;
        if (!put_short_text(column, in->at + 1, size, in, problem)) return 0;
        in->at += 1 + size;
        return 1;
    }
    default: return 0;
    }
}

/* Writers use one order of fields, and one encoding of a name: most often the bytes are the expected ones. */
static inline Field *expected_field(Column *column, Input *in, size_t *expected) {
    if (*expected >= column->field_count) return NULL;
    Field *field = &column->fields[*expected];
    size_t size = field->key_size;
    if (input_left(in) < 8 ? input_left(in) < size || memcmp(in->at, field->key, size)
                           : (eight_bytes(in->at) ^ field->key_start) & field->key_mask ||
                                 (size > 8 && (input_left(in) < size || memcmp(in->at + 8, field->key + 8, size - 8))))
        return NULL;
    in->at += size;
    *expected = *expected + 1 < column->field_count ? *expected + 1 : 0;
    return field;
}

static Field *find_field(Column *column, const uint8_t *name, uint64_t size, size_t *expected) {
    for (size_t tries = 0; tries < column->field_count; tries++) {
        size_t index = *expected + tries < column->field_count ? *expected + tries : *expected + tries - column->field_count;
        Field *field = &column->fields[index];
        if (field->name_size == size && !memcmp(field->name, name, size)) {
            *expected = index + 1 < column->field_count ? index + 1 : 0;
            return field;
        }
    }
    return NULL;
}

static Problem put_by_name(Column *column, uint64_t pairs, Input *in, const char **where) {
    size_t expected = 0;
    while (pairs--) {
        Field *field = expected_field(column, in, &expected);
        if (!field) {
            Token key;
            next_token(in, &key);
            if (key.kind != WIRE_STR) return key.kind == WIRE_BAD ? broken : "a name in it is not text";
            const uint8_t *name = in->at;
            in->at += key.number;
            field = find_field(column, name, key.number, &expected);
        }
        if (!field) {
            if (!skip_value(in)) return broken;
            continue;
        }
        if (field->seen == column->values) {
            *where = field->label;
            return "it occurs twice";
        }
        field->seen = column->values;
        Problem problem = put_inside(field, in, where);
        if (problem) return problem;
    }
    return NULL;
}

static Problem put_by_position(Column *column, uint64_t items, Input *in, const char **where) {
    size_t next = 0;
    for (uint64_t position = 0; position < items; position++) {
        Field *field = next < column->field_count && column->fields[next].position == position ? &column->fields[next++] : NULL;
        if (!field) {
            if (!skip_value(in)) return broken;
            continue;
        }
        field->seen = column->values;
        Problem problem = put_inside(field, in, where);
        if (problem) return problem;
    }
    return NULL;
}

static Problem put_missing(Column *column, const char **where) {
    for (size_t index = 0; index < column->field_count; index++) {
        Field *field = &column->fields[index];
        if (field->seen == column->values) continue;
        Problem problem;
        if (field->fallback) {
            Input in = {field->fallback, field->fallback + field->fallback_size};
            problem = put_inside(field, &in, where);
        } else {
            problem = field->column->nullable ? put_empty(field->column, 0) : "it is missing";
            if (problem) *where = field->label;
        }
        if (problem) return problem;
    }
    return NULL;
}

static Problem put_struct(Column *column, const Token *token, Input *in, const char **where) {
    if (token->kind != (column->by_position ? WIRE_ARRAY : WIRE_MAP)) return unexpected;
    column->values++;
    Problem problem = column->by_position ? put_by_position(column, token->number, in, where)
                                          : put_by_name(column, token->number, in, where);
    if (!problem) problem = put_missing(column, where);
    return problem ? problem : end_value(column, 1);
}

Problem column_put(Column *column, Input *in, const char **where) {
    Problem common;
    if (put_common(column, in, &common)) return common;
    Token token;
    next_token(in, &token);
    if (token.kind == WIRE_BAD) return broken;
    if (token.kind == WIRE_NIL) return column->nullable ? put_empty(column, 0) : "it is null, which is not allowed";
    switch (column->kind) {
    case COLUMN_BOOL: {
        if (token.kind != WIRE_BOOL) return unexpected;
        Problem problem = put_bit(&column->data, column->length, (int)token.number);
        return problem ? problem : end_value(column, 1);
    }
    case COLUMN_INT: return put_int(column, &token);
    case COLUMN_FLOAT: return put_float(column, &token);
    case COLUMN_STRING: case COLUMN_BINARY: return put_text(column, &token, in);
    case COLUMN_TIMESTAMP: return put_timestamp(column, &token, in);
    case COLUMN_DATE: return put_date(column, &token, in);
    case COLUMN_DECIMAL: return put_decimal(column, &token, in);
    case COLUMN_LIST: case COLUMN_MAP: return put_items(column, &token, in, where);
    default: return put_struct(column, &token, in, where);
    }
}

static size_t bits_in(size_t length) { return (length + 7) / 8; }

static void count_nulls(Column *column) {
    column->nulls = 0;
    for (size_t index = 0; index < column->length; index++)
        column->nulls += !(column->validity.data[index / 8] >> index % 8 & 1);
    if (!column->nulls) column->validity.size = 0;
}

/* Clear the bits beyond `length`: they belong to a row that was rolled back, and the last byte is exported whole. */
static void cut_bits(Growing *bits, size_t length) {
    bits->size = bits_in(length);
    if (length % 8) bits->data[length / 8] &= (uint8_t)((1u << length % 8) - 1);
}

void column_cut(Column *column, size_t length) {
    int had_nulls = column->validity.size > 0;
    column->length = length;
    if (had_nulls) {
        cut_bits(&column->validity, length);
        count_nulls(column);
    }
    if (column->kind == COLUMN_BOOL) cut_bits(&column->data, length);
    else if (width_of(column->kind)) column->data.size = length * width_of(column->kind);
    if (column->offsets.size > (length + 1) * sizeof(int32_t)) column->offsets.size = (length + 1) * sizeof(int32_t);
    if (column->kind == COLUMN_STRING || column->kind == COLUMN_BINARY) column->data.size = last_offset(&column->offsets);
    size_t inner = column->kind == COLUMN_STRUCT ? length : last_offset(&column->offsets);
    for (size_t index = 0; index < column->field_count; index++) column_cut(column->fields[index].column, inner);
}

void column_clear(Column *column) { column_cut(column, 0); }

void column_free(Column *column) {
    if (!column) return;
    for (size_t index = 0; index < column->field_count; index++) {
        Field *field = &column->fields[index];
        column_free(field->column);
        free(field->name);
        free(field->key);
        free(field->fallback);
        free((char *)field->label);
    }
    free(column->fields);
    free(column->validity.data);
    free(column->data.data);
    free(column->offsets.data);
    free(column);
}
