/* The two clocks of the hot path: the wall clock stamped on cursors and index entries, and the turn.
 *
 * A turn is how long a task may go on without giving way to its event loop. It belongs to the thread, since a
 * loop does: a task that works on a thousand channels has one turn, not a thousand. The clock is read once in
 * TURN_UNITS operations, with large payloads counting as several. */
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

static PyObject *py_begin_turn(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    turn_begin();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"turn_is_over", py_turn_is_over, METH_NOARGS,
     "turn_is_over()\n--\n\nTell whether this thread has worked for about a millisecond since `begin_turn`."},
    {"begin_turn", py_begin_turn, METH_NOARGS,
     "begin_turn()\n--\n\nStart a new turn: the event loop of this thread has just had its say."},
    {NULL, NULL, 0, NULL},
};

int add_clock(PyObject *module) { return PyModule_AddFunctions(module, functions); }
