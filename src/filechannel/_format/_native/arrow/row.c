/* One row, or a part of it, as MessagePack: what msgspec would write, byte for byte. */
#include "core.h"

#include "arrow/column.h"
#include "arrow/msgpack_write.h"
#include "arrow/row.h"

const char row_no_memory[] = "there is not enough memory";
static const char outside[] = "it reaches beyond its column", no_moment[] = "it is beyond the years 1 to 9999",
                  unexpected_null[] = "it is null, which is not allowed";
#define MOST_KEYS 64 /* in a map: each key is compared with all others */

size_t row_width(const Shape *shape) {
    switch (shape->kind) {
    case ROW_INT: case ROW_FLOAT: return shape->number;
    case ROW_TIMESTAMP: case ROW_MOMENT: return 8;
    case ROW_DATE: return 4;
    case ROW_DECIMAL: return 16;
    default: return 0;
    }
}

int row_has_offsets(const Shape *shape) {
    switch (shape->kind) {
    case ROW_STRING: case ROW_BINARY: case ROW_UUID: case ROW_LIST: case ROW_MAP: return 1;
    default: return 0;
    }
}

static inline int bit_at(const uint8_t *bits, size_t index) { return bits[index / 8] >> index % 8 & 1; }

static inline int is_null(const Shape *shape, size_t index) {
    return shape->validity && !bit_at(shape->validity, shape->start + index);
}

static inline const uint8_t *value_at(const Shape *shape, size_t index, size_t width) {
    return shape->data + (shape->start + index) * width;
}

static inline int64_t int_at(const Shape *shape, size_t index) {
    const uint8_t *at = value_at(shape, index, shape->number);
    switch (shape->number) {
    case 1: return (int8_t)*at;
    case 2: { int16_t v; memcpy(&v, at, 2); return v; }
    case 4: return (int32_t)get_u32(at);
    default: return (int64_t)get_u64(at);
    }
}

static inline double real_at(const Shape *shape, size_t index) {
    const uint8_t *at = value_at(shape, index, shape->number);
    if (shape->number == 8) { double v; memcpy(&v, at, 8); return v; }
    float narrow;
    memcpy(&narrow, at, 4);
    return (double)narrow;
}

static inline void move_to(Growing *out, const uint8_t *at) { out->size = (size_t)(at - out->data); }
static inline uint8_t *end_of(const Growing *out) { return out->data + out->size; }

/* Where a string or list begins and ends; returns whether that is possible. */
static inline int range_at(const Shape *shape, size_t index, size_t limit, size_t *begin, size_t *end) {
    const uint8_t *at = shape->offsets + (shape->start + index) * 4;
    int32_t first = (int32_t)get_u32(at), last = (int32_t)get_u32(at + 4);
    *begin = (size_t)first;
    *end = (size_t)last;
    return first >= 0 && first <= last && *end <= limit;
}

/* Most are short: KEY_PADDING bytes can be read, and as many fit. */
static inline void put_padded(Growing *out, const uint8_t *body, size_t size) {
    if (size <= KEY_PADDING)
        memcpy(end_of(out), body, KEY_PADDING);
    else
        memcpy(end_of(out), body, size);
    out->size += size;
}

static inline void put_body(Growing *out, const uint8_t *body, size_t size) {
    copy_payload_bytes(out->data + out->size, (const char *)body, size);
    out->size += size;
}

/* Most strings are, and need no check of each byte. */
static inline int is_short_ascii(const Shape *shape, size_t begin, size_t end) {
    size_t size = end - begin;
    if (size > 8 || shape->data_size - begin < 8) return 0;
    uint64_t high = get_u64(shape->data + begin) & 0x8080808080808080u;
    return !size || !(high << 8 * (8 - size));
}

static RowProblem put_text(const Shape *shape, size_t index, Growing *out) {
    size_t begin, end;
    if (!range_at(shape, index, shape->data_size, &begin, &end)) return outside;
    if (!grow(out, LONGEST_HEAD + LONGEST_TEXT + (end - begin))) return row_no_memory;
    const uint8_t *body = shape->data + begin;
    if (shape->kind == ROW_UUID) {
        uint8_t *at = put_str(end_of(out), 36);
        if (!uuid_text(at, body, end - begin)) return "it is not a UUID in the usual form";
        move_to(out, at + 36);
        return NULL;
    }
    if (shape->kind == ROW_STRING && !is_short_ascii(shape, begin, end) && !is_utf8(body, end - begin)) return "it is not UTF-8";
    move_to(out, shape->kind == ROW_STRING ? put_str(end_of(out), end - begin) : put_bin(end_of(out), end - begin));
    put_body(out, body, end - begin);
    return NULL;
}

RowProblem row_put_whole(const Shape *shape, size_t index, Growing *out) {
    size_t begin, end;
    if (is_null(shape, index)) return unexpected_null;
    if (!range_at(shape, index, shape->data_size, &begin, &end)) return outside;
    if (!grow(out, end - begin)) return row_no_memory;
    put_body(out, shape->data + begin, end - begin);
    return NULL;
}

/* MessagePack's timestamp extension, in the shortest of its three formats. */
static RowProblem put_timestamp(int64_t microseconds, Growing *out) {
    if (!has_moment(microseconds)) return no_moment;
    int64_t seconds = microseconds / 1000000 - (microseconds % 1000000 < 0);
    uint64_t nanoseconds = (uint64_t)(microseconds - seconds * 1000000) * 1000;
    uint8_t *at = end_of(out);
    if (seconds < 0 || seconds >> 34) {
        *at++ = 0xc7;
        *at++ = 12;
        at = put_big_endian(at, 0xff, nanoseconds, 4);
        at = put_number(at, (uint64_t)seconds, 8);
    } else if (nanoseconds || seconds > UINT32_MAX) {
        *at++ = 0xd7;
        at = put_big_endian(at, 0xff, nanoseconds << 34 | (uint64_t)seconds, 8);
    } else {
        *at++ = 0xd6;
        at = put_big_endian(at, 0xff, (uint64_t)seconds, 4);
    }
    move_to(out, at);
    return NULL;
}

static RowProblem put_number_as_text(const Shape *shape, size_t index, Growing *out) {
    uint8_t text[LONGEST_TEXT];
    size_t size;
    if (shape->kind == ROW_DATE)
        size = date_text(text, (int32_t)get_u32(value_at(shape, index, 4)));
    else if (shape->kind == ROW_MOMENT)
        size = moment_text(text, (int64_t)get_u64(value_at(shape, index, 8)));
    else
        size = decimal_text(text, value_at(shape, index, 16), (unsigned int)shape->number);
    if (!size) return no_moment;
    move_to(out, put_str(end_of(out), size));
    put_body(out, text, size);
    return NULL;
}

static RowProblem put_list(const Shape *shape, size_t index, Growing *out) {
    const Shape *item = shape->fields[0].shape;
    size_t begin, end;
    if (!range_at(shape, index, item->length, &begin, &end)) return outside;
    if (shape->number && end - begin != shape->number) return "it has another number of items";
    move_to(out, put_array(end_of(out), end - begin));
    RowProblem problem = NULL;
    for (; begin < end && !problem; begin++) problem = row_put(item, begin, out);
    return problem;
}

/* A duplicate key is an error: in a dict it would appear once, which is left to the caller's slow path, which builds
 * a dict. */
static RowProblem put_pairs(const Shape *shape, size_t index, Growing *out) {
    const Shape *key = shape->fields[0].shape, *value = shape->fields[1].shape;
    size_t begin, end, starts[MOST_KEYS], sizes[MOST_KEYS], count = 0;
    if (!range_at(shape, index, key->length < value->length ? key->length : value->length, &begin, &end)) return outside;
    if (end - begin > MOST_KEYS) return "it has too many keys to compare them";
    move_to(out, put_map(end_of(out), end - begin));
    for (; begin < end; begin++, count++) {
        starts[count] = out->size;
        RowProblem problem = row_put(key, begin, out);
        if (problem) return problem;
        sizes[count] = out->size - starts[count];
        for (size_t other = 0; other < count; other++)
            if (sizes[other] == sizes[count] && !memcmp(out->data + starts[other], out->data + starts[count], sizes[count]))
                return "it has a key twice";
        if ((problem = row_put(value, begin, out))) return problem;
    }
    return NULL;
}

static RowProblem put_fields(const Shape *shape, size_t index, Growing *out) {
    size_t count = shape->text_count + shape->field_count;
    for (size_t number = 0; shape->may_shrink && number < shape->field_count; number++) {
        const Shape *inner = shape->fields[number].shape;
        count -= inner->null == NULL_LEFT_OUT && is_null(inner, index);
    }
    move_to(out, shape->number ? put_array(end_of(out), count) : put_map(end_of(out), count));
    for (size_t number = 0; number < shape->text_count; number++) {
        if (!grow(out, shape->texts[number].size + KEY_PADDING)) return row_no_memory;
        put_padded(out, shape->texts[number].data, shape->texts[number].size);
    }
    for (size_t number = 0; number < shape->field_count; number++) {
        const ShapeField *field = &shape->fields[number];
        if (field->shape->null == NULL_LEFT_OUT && is_null(field->shape, index)) continue;
        if (!grow(out, field->key.size + KEY_PADDING)) return row_no_memory;
        put_padded(out, field->key.data, field->key.size);
        RowProblem problem = row_put(field->shape, index, out);
        if (problem) return problem;
    }
    return NULL;
}

static int is_one_of(const Shape *shape, const uint8_t *encoded, size_t size) {
    for (size_t number = 0; number < shape->text_count; number++)
        if (shape->texts[number].size == size && !memcmp(shape->texts[number].data, encoded, size)) return 1;
    return 0;
}

static inline RowProblem put_some(const Shape *shape, size_t index, Growing *out) {
    switch (shape->kind) {
    case ROW_BOOL: out->data[out->size++] = (uint8_t)(MSGPACK_FALSE + bit_at(shape->data, shape->start + index)); return NULL;
    case ROW_INT: move_to(out, put_integer(end_of(out), int_at(shape, index))); return NULL;
    case ROW_FLOAT: move_to(out, put_real(end_of(out), real_at(shape, index))); return NULL;
    case ROW_STRING: case ROW_BINARY: case ROW_UUID: return put_text(shape, index, out);
    case ROW_TIMESTAMP: return put_timestamp((int64_t)get_u64(value_at(shape, index, 8)), out);
    case ROW_LIST: return put_list(shape, index, out);
    case ROW_MAP: return put_pairs(shape, index, out);
    case ROW_STRUCT: return put_fields(shape, index, out);
    default: return put_number_as_text(shape, index, out);
    }
}

RowProblem row_put(const Shape *shape, size_t index, Growing *out) {
    if (!grow(out, 2 * LONGEST_HEAD + LONGEST_TEXT)) return row_no_memory;
    if (is_null(shape, index)) {
        if (shape->null != NULL_WRITTEN) return unexpected_null;
        out->data[out->size++] = MSGPACK_NIL;
        return NULL;
    }
    size_t before = out->size;
    RowProblem problem = put_some(shape, index, out);
    if (problem || !shape->text_count || shape->kind == ROW_STRUCT) return problem;
    return is_one_of(shape, out->data + before, out->size - before) ? NULL : "it is not one of the allowed values";
}
