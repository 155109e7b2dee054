/* Rows that become messages: columns in the Arrow layout, and how a message represents their values. None of this
 * needs the GIL. */
#ifndef FILECHANNEL_ROW_H
#define FILECHANNEL_ROW_H

#include "growing.h"

/* In the order of KINDS in _format/arrow/rows.py. */
enum row_kind {
    ROW_BOOL, ROW_INT, ROW_FLOAT, ROW_STRING, ROW_BINARY, ROW_UUID, ROW_TIMESTAMP, ROW_MOMENT, ROW_DATE, ROW_DECIMAL,
    ROW_LIST, ROW_MAP, ROW_STRUCT, ROW_KINDS
};
enum row_null { NULL_REFUSED, NULL_WRITTEN, NULL_LEFT_OUT, ROW_NULLS };

#define KEY_PADDING 16
typedef struct {
    uint8_t *data; /* KEY_PADDING bytes beyond its end may be read */
    size_t size;
} Text;

typedef struct Shape Shape;
typedef struct {
    Text key; /* what precedes the value, encoded */
    Shape *shape;
} ShapeField;

struct Shape {
    enum row_kind kind;
    enum row_null null;
    uint64_t number; /* bytes of an int or float; scale of a decimal; items of a list, 0 for any; 1: a struct is an array */
    Text *texts;     /* encoded: the only permitted values, if there are such; what a struct begins with */
    size_t text_count;
    ShapeField *fields; /* for a list one, for a map two */
    size_t field_count;
    char may_shrink; /* some fields may be left out */
    /* The column that is being encoded, from `start` on. */
    size_t start, length;
    const uint8_t *validity, *offsets, *data; /* validity: NULL if there is no null */
    size_t data_size;
};

/* Why a row cannot be a message; NULL if it can. */
typedef const char *RowProblem;
extern const char row_no_memory[];
RowProblem row_put(const Shape *shape, size_t index, Growing *out);
RowProblem row_put_whole(const Shape *shape, size_t index, Growing *out); /* for binary columns: the bytes as they are */
size_t row_width(const Shape *shape); /* bytes of a value in `data`; 0 if that varies, or is a bit */
int row_has_offsets(const Shape *shape);

/* row_text.c: values that are strings in a message; each returns the length, or 0 if the value has no such string */
#define LONGEST_TEXT 64
size_t date_text(uint8_t *at, int64_t days);
size_t moment_text(uint8_t *at, int64_t microseconds);
size_t decimal_text(uint8_t *at, const uint8_t *value, unsigned int scale); /* of a value of 16 bytes */
size_t uuid_text(uint8_t *at, const uint8_t *given, size_t size);
int has_moment(int64_t microseconds); /* whether it lies in the years that Python supports */

#endif
