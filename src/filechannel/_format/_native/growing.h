/* A byte buffer that grows at its end. */
#ifndef FILECHANNEL_GROWING_H
#define FILECHANNEL_GROWING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    uint8_t *data;
    size_t size, capacity;
} Growing;

#define GROWING_FIRST 256

static __attribute__((noinline, unused)) int grow_slowly(Growing *growing, size_t more) {
    size_t capacity = growing->capacity ? growing->capacity : GROWING_FIRST;
    while (capacity - growing->size < more) capacity *= 2;
    uint8_t *data = realloc(growing->data, capacity);
    if (!data) return 0;
    growing->data = data;
    growing->capacity = capacity;
    return 1;
}

/* Make sure that `more` bytes fit; 0 if there is no memory. */
static inline int grow(Growing *growing, size_t more) {
    return growing->capacity - growing->size >= more || grow_slowly(growing, more);
}

#endif
