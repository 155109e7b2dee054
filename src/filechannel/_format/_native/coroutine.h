/* What coroutine.c and fast_methods.c share. */
#pragma once
#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *target; /* a SendPath or a Reader; NULL once detached */
} Core;

/* coroutine.c */
int coroutine_init(void);                             /* -1 with an exception */
PyObject *coroutine_new(Core *core, PyObject *item); /* with an item: a send; without: a receive */
