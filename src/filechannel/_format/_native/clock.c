/* The two clocks of the hot path: the wall clock for cursors and index entries, and the time until a task yields.
 *
 * A turn is how long a task may run before it yields to its event loop (cooperative yielding). It belongs to the
 * thread, as the loop does: a task that works on a thousand channels has one turn, not a thousand. The clock is read
 * once in TURN_UNITS operations, with large payloads counting as several. */
#include "core.h"
#include <time.h>

#define TURN_NS 1000000u

static _Thread_local uint64_t turn_began;
_Thread_local int64_t turn_units = TURN_UNITS;

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

int turn_over_by_clock(void) {
    if (monotonic_ns() - turn_began >= TURN_NS) return 1;
    turn_units = TURN_UNITS;
    return 0;
}

static PyObject *py_turn_is_over(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return PyBool_FromLong(turn_over());
}

void turn_begin(void) {
    turn_began = monotonic_ns();
    turn_units = TURN_UNITS;
}

static PyObject *py_begin_slice(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    turn_begin();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"slice_is_over", py_turn_is_over, METH_NOARGS,
     "slice_is_over()\n--\n\n"
     "Return whether this thread has worked for about a millisecond since `begin_slice`, and should yield."},
    {"begin_slice", py_begin_slice, METH_NOARGS,
     "begin_slice()\n--\n\nStart a new slice: the event loop of this thread has just run."},
    {NULL, NULL, 0, NULL},
};

int add_clock(PyObject *module) { return PyModule_AddFunctions(module, functions); }
