/* The two clocks of the hot path: the wall clock for cursors and index entries, and the time until a task yields.
 *
 * A slice is how long a task may run before it yields to its event loop (cooperative yielding). It belongs to the
 * thread, as the loop does: a task that works on a thousand channels has one slice, not a thousand. The clock is read
 * once in SLICE_UNITS operations, with large payloads counting as several. */
#include "core.h"
#include <time.h>

#define SLICE_NS 1000000u

static _Thread_local uint64_t slice_started;
_Thread_local int64_t slice_units = SLICE_UNITS;

uint64_t wall_clock_ns(void) {
    struct timespec now;
#ifdef CLOCK_REALTIME_COARSE
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
#else
    clock_gettime(CLOCK_REALTIME, &now);
#endif
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t exact_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int slice_over_by_clock(void) {
    if (monotonic_ns() - slice_started >= SLICE_NS) return 1;
    slice_units = SLICE_UNITS;
    return 0;
}

static PyObject *py_slice_is_over(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return PyBool_FromLong(slice_over());
}

void slice_start(void) {
    slice_started = monotonic_ns();
    slice_units = SLICE_UNITS;
}

static PyObject *py_begin_slice(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    slice_start();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"slice_is_over", py_slice_is_over, METH_NOARGS,
     "slice_is_over()\n--\n\n"
     "Return whether this thread has worked for about a millisecond since `begin_slice`, and should yield."},
    {"begin_slice", py_begin_slice, METH_NOARGS,
     "begin_slice()\n--\n\nStart a new slice: the event loop of this thread has just run."},
    {NULL, NULL, 0, NULL},
};

int add_clock(PyObject *module) { return PyModule_AddFunctions(module, functions); }
