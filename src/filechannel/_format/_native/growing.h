/* Bytes that grow at their end. */
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

/* Whether there is room for so many bytes more. */
static inline int grow(Growing *growing, size_t more) {
    if (growing->capacity - growing->size >= more) return 1;
    size_t capacity = growing->capacity ? growing->capacity : GROWING_FIRST;
    while (capacity - growing->size < more) capacity *= 2;
    uint8_t *data = realloc(growing->data, capacity);
    if (!data) return 0;
    growing->data = data;
    growing->capacity = capacity;
    return 1;
}

#endif
