/* Columns that grow by one value at a time, in Arrow's layout. None of this needs the GIL. */
#ifndef FILECHANNEL_COLUMN_H
#define FILECHANNEL_COLUMN_H

#include <stddef.h>
#include <stdint.h>

#include "growing.h"
#include "msgpack.h"

/* In the order of KINDS in _format/columns.py. */
enum column_kind {
    COLUMN_BOOL, COLUMN_INT, COLUMN_FLOAT, COLUMN_STRING, COLUMN_BINARY, COLUMN_TIMESTAMP, COLUMN_DATE, COLUMN_DECIMAL,
    COLUMN_LIST, COLUMN_MAP, COLUMN_STRUCT, COLUMN_KINDS
};

typedef struct Column Column;
typedef struct {
    char *name; /* on the wire; NULL where fields are told by their position */
    size_t name_size;
    uint8_t *key; /* the name as a writer puts it into a message, */
    size_t key_size;
    uint64_t key_start, key_mask; /* and its first eight bytes */
    uint64_t position;
    uint8_t *fallback; /* the value of a message that has none, as MessagePack; NULL if there is none */
    size_t fallback_size;
    uint64_t seen; /* in which value of the parent */
    Column *column;
    const char *label; /* for errors */
} Field;

struct Column {
    enum column_kind kind;
    char nullable, by_position;
    size_t length, nulls;
    Growing validity; /* empty as long as there is no null */
    Growing data;     /* values; of strings their bytes */
    Growing offsets;  /* of strings, lists and maps: where each one begins, and where the last one ends */
    Field *fields;    /* of a list one, of a map two */
    size_t field_count;
    uint64_t values; /* how many were begun, for `seen` */
};

/* Why a value cannot be taken, in words; NULL if it was. `where` names the innermost field. */
typedef const char *Problem;
extern const char column_no_memory[], column_full[];

Problem column_put(Column *column, Input *in, const char **where);
Problem column_put_whole(Column *column, const uint8_t *data, size_t size); /* of binaries: the bytes as they are */
void column_cut(Column *column, size_t length); /* forget what came behind so many values */
void column_clear(Column *column);
void column_free(Column *column); /* and what it contains */

/* column_text.c: values that are texts on the wire */
int is_utf8(const uint8_t *at, size_t size);
int parse_date(const uint8_t *at, size_t size, int32_t *days);
int parse_moment(const uint8_t *at, size_t size, int64_t *microseconds);
int parse_decimal(const uint8_t *at, size_t size, __int128 *scaled);
#define DECIMAL_SCALE 18

#endif
