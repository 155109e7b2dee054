/* Columns in the Arrow layout, to which one value at a time is appended. None of this needs the GIL. */
#ifndef FILECHANNEL_COLUMN_H
#define FILECHANNEL_COLUMN_H

#include <stddef.h>
#include <stdint.h>

#include "growing.h"
#include "arrow/msgpack.h"

/* In the order of KINDS in _format/arrow/columns.py. */
enum column_kind {
    COLUMN_BOOL, COLUMN_INT, COLUMN_FLOAT, COLUMN_STRING, COLUMN_BINARY, COLUMN_TIMESTAMP, COLUMN_DATE, COLUMN_DECIMAL,
    COLUMN_LIST, COLUMN_MAP, COLUMN_STRUCT, COLUMN_KINDS
};

typedef struct Column Column;
typedef struct {
    char *name; /* in the message; NULL where fields are identified by position */
    size_t name_size;
    uint8_t *key; /* the encoded name, as a writer puts it into a message, */
    size_t key_size;
    uint64_t key_start, key_mask; /* and its first eight bytes */
    uint64_t position;
    uint8_t *fallback; /* the value for a message that lacks the field, as MessagePack; or NULL */
    size_t fallback_size;
    uint64_t seen; /* in which value of the parent it was last seen */
    Column *column;
    const char *label; /* for errors */
} Field;

struct Column {
    enum column_kind kind;
    char nullable, by_position;
    size_t length, nulls;
    Growing validity; /* empty as long as there is no null */
    Growing data;     /* values; for strings their bytes */
    Growing offsets;  /* for strings, lists and maps: where each one begins, and where the last one ends */
    Field *fields;    /* for a list one, for a map two */
    size_t field_count;
    uint64_t values; /* how many were started, for `seen` */
};

/* Why a value cannot be converted; NULL if it was. `where` names the innermost field. */
typedef const char *Problem;
extern const char column_no_memory[], column_full[];

Problem column_put(Column *column, Input *in, const char **where);
Problem column_put_whole(Column *column, const uint8_t *data, size_t size); /* for binary columns: the bytes as they are */
void column_cut(Column *column, size_t length); /* drop the values after the first `length` */
void column_clear(Column *column);
void column_free(Column *column); /* and the columns inside */

/* column_text.c: values that are strings in a message */
int is_utf8(const uint8_t *at, size_t size);
int parse_date(const uint8_t *at, size_t size, int32_t *days);
int parse_moment(const uint8_t *at, size_t size, int64_t *microseconds);
int parse_decimal(const uint8_t *at, size_t size, __int128 *scaled);
#define DECIMAL_SCALE 18

#endif
