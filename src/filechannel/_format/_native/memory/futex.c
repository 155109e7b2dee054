/* Lock words and sleeping on a word of a shared map: the futex calls. The reference is memory/futex.py.
 *
 * Never FUTEX_PRIVATE, because the other side is another process. Sleeping and spinning release the GIL. */
#include "core.h"
#include <limits.h>
#include <time.h>

#ifdef __linux__
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static int futex_wait(uint8_t *at, uint32_t expected, const struct timespec *most) {
    return syscall(SYS_futex, at, FUTEX_WAIT, expected, most, NULL, 0) ? errno : 0;
}

int futex_wake(uint8_t *at, int count) { return (int)syscall(SYS_futex, at, FUTEX_WAKE, count, NULL, NULL, 0); }
#else
#include <errno.h>

/* Without a futex: load again after a short sleep. */
static int futex_wait(uint8_t *at, uint32_t expected, const struct timespec *most) {
    const struct timespec nap = {0, 1000000};
    if (load_acquire_u32(at) != expected) return EAGAIN;
    int shorter = most->tv_sec == 0 && most->tv_nsec < nap.tv_nsec;
    return nanosleep(shorter ? most : &nap, NULL) ? EINTR : shorter ? ETIMEDOUT : 0;
}

int futex_wake(uint8_t *Py_UNUSED(at), int Py_UNUSED(count)) { return 0; }
#endif

static int seconds_from(PyObject *value, double *seconds) {
    *seconds = PyFloat_AsDouble(value);
    if (*seconds == -1.0 && PyErr_Occurred()) return -1;
    if (*seconds >= 0 && *seconds <= 1e6) return 0;
    PyErr_SetString(PyExc_ValueError, "seconds must be between 0 and a million");
    return -1;
}

/* --- Lock words -------------------------------------------------------------------------------------------- */

#define SPINS_PER_CLOCK_READ 32

/* The clock is read once in SPINS_PER_CLOCK_READ tries. */
static int spin_for_word(uint8_t *at, uint32_t owner, double seconds) {
    uint64_t until = 0;
    for (;;) {
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            if (load_acquire_u32(at) == 0 && swap_if_u32(at, 0, owner)) return 1;
            relax();
        }
        uint64_t now = monotonic_ns();
        if (!until) until = now + (uint64_t)(seconds * 1e9);
        if (now >= until) return 0;
    }
}

static PyObject *py_take_word(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t owner;
    double seconds;
    if (check_count("take_word", count, 4) || unsigned_from(args[2], UINT32_MAX, &owner) || seconds_from(args[3], &seconds) ||
        !(at = word_at(args, 4, 1, &view)))
        return NULL;
    int taken;
    Py_BEGIN_ALLOW_THREADS
    taken = spin_for_word(at, (uint32_t)owner, seconds);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyBool_FromLong(taken);
}

static PyObject *py_release_word(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    if (check_count("release_word", count, 2) || !(at = word_at(args, 4, 1, &view))) return NULL;
    release_word(at);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

uint32_t wake_waiters(uint8_t *word) {
    const uint32_t waits = WAKE_THREADS | WAKE_LOOPS;
    for (uint32_t seen = load_acquire_u32(word); seen & waits; seen = load_acquire_u32(word)) {
        if (!swap_if_u32(word, seen, (seen + WAKE_GENERATION) & ~waits)) continue;
        if (seen & WAKE_THREADS) futex_wake(word, INT_MAX);
        return seen & waits;
    }
    return 0;
}

/* --- Sleeping ---------------------------------------------------------------------------------------------- */

static PyObject *py_wait_word(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t expected;
    double seconds;
    if (check_count("wait_word", count, 4) || unsigned_from(args[2], UINT32_MAX, &expected) || seconds_from(args[3], &seconds) ||
        !(at = word_at(args, 4, 1, &view)))
        return NULL;
    struct timespec most = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    int why;
    Py_BEGIN_ALLOW_THREADS
    why = futex_wait(at, (uint32_t)expected, &most);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    if (why == EINTR && PyErr_CheckSignals()) return NULL;
    return PyBool_FromLong(why != ETIMEDOUT);
}

static PyObject *py_wake_word(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t most;
    if (check_count("wake_word", count, 3) || unsigned_from(args[2], INT_MAX, &most) || !(at = word_at(args, 4, 1, &view)))
        return NULL;
    int woken = most ? futex_wake(at, (int)most) : 0; /* the kernel treats 0 as 1 */
    PyBuffer_Release(&view);
    return PyLong_FromLong(woken < 0 ? 0 : woken);
}

static PyObject *py_wake_waiters(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    if (check_count("wake_waiters", count, 2) || !(at = word_at(args, 4, 1, &view))) return NULL;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    uint32_t woken = wake_waiters(at);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(woken);
}

static int spin_above(const uint8_t *at, uint64_t value, double seconds) {
    uint64_t until = monotonic_ns() + (uint64_t)(seconds * 1e9);
    do
        for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
            if (load_acquire_u64(at) > value) return 1;
            for (int pause = 0; pause < 4; pause++) relax(); /* each load takes the cache line away from the core that writes it */
        }
    while (monotonic_ns() < until);
    return 0;
}

int watch_for_more(const uint8_t *words, uint64_t offset, double seconds) {
    return spin_above(words + WRITE_TAIL, offset, seconds);
}

/* Announce, fence, check once more, sleep: see waiters.py. */
int sleep_for_more(uint8_t *words, uint64_t offset, uint32_t seen, double seconds) {
    const struct timespec most = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    uint8_t *wake = words + WAKE;
    for (;;) {
        uint32_t now = load_acquire_u32(wake);
        if ((now ^ seen) & ~(WAKE_THREADS | WAKE_LOOPS)) return 0;
        if (now & WAKE_THREADS || swap_if_u32(wake, now, now | WAKE_THREADS)) {
            seen = now | WAKE_THREADS;
            break;
        }
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (load_acquire_u64(words + WRITE_TAIL) > offset || load_acquire_u32(words + STATE) & STATE_SEALED) return 0;
    return futex_wait(wake, seen, &most);
}

static PyObject *py_spin_above(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t value;
    double seconds;
    if (check_count("spin_above", count, 4) || unsigned_from(args[2], UINT64_MAX, &value) || seconds_from(args[3], &seconds) ||
        !(at = word_at(args, 8, 0, &view)))
        return NULL;
    int above;
    Py_BEGIN_ALLOW_THREADS
    above = spin_above(at, value, seconds);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyBool_FromLong(above);
}

/* --- Sets of processes ------------------------------------------------------------------------------------- */

static PyObject *py_set_bit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t bit;
    if (check_count("set_bit", count, 3) || unsigned_from(args[2], 63, &bit) || !(at = word_at(args, 8, 1, &view))) return NULL;
    __atomic_fetch_or((uint64_t *)at, (uint64_t)1 << bit, __ATOMIC_SEQ_CST);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static int add_bits(PyObject *found, uint64_t bits, uint64_t first) {
    for (; bits; bits &= bits - 1) {
        PyObject *number = PyLong_FromUnsignedLongLong(first + (uint64_t)__builtin_ctzll(bits));
        int failed = !number || PyList_Append(found, number);
        Py_XDECREF(number);
        if (failed) return -1;
    }
    return 0;
}

static PyObject *py_take_bits(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    uint8_t *at;
    uint64_t words;
    if (check_count("take_bits", count, 3) || unsigned_from(args[2], UINT64_MAX, &words) || !(at = word_at(args, 8, 1, &view)))
        return NULL;
    PyObject *found = NULL;
    if (words > (uint64_t)((uint8_t *)view.buf + view.len - at) / 8)
        PyErr_SetString(PyExc_ValueError, "range is not inside the buffer");
    else
        found = PyList_New(0);
    for (uint64_t i = 0; found && i < words; i++, at += 8) {
        if (!load_acquire_u64(at)) continue;
        if (add_bits(found, __atomic_exchange_n((uint64_t *)at, 0, __ATOMIC_SEQ_CST), 64 * i)) Py_CLEAR(found);
    }
    PyBuffer_Release(&view);
    return found;
}

static PyMethodDef functions[] = {
    {"take_word", FAST(py_take_word), METH_FASTCALL,
     "take_word(buffer, position, owner, seconds, /)\n--\n\n"
     "Put owner into a free lock word, trying for *seconds*; return whether that succeeded."},
    {"release_word", FAST(py_release_word), METH_FASTCALL,
     "release_word(buffer, position, /)\n--\n\nFree a lock word, and wake one thread that sleeps on it."},
    {"wait_word", FAST(py_wait_word), METH_FASTCALL,
     "wait_word(buffer, position, expected, seconds, /)\n--\n\n"
     "Sleep while a shared word is as expected, until woken; False after a timeout."},
    {"wake_word", FAST(py_wake_word), METH_FASTCALL,
     "wake_word(buffer, position, count, /)\n--\n\n"
     "Wake at most *count* threads that sleep on a word; return how many were woken."},
    {"wake_waiters", FAST(py_wake_waiters), METH_FASTCALL,
     "wake_waiters(buffer, position, /)\n--\n\n"
     "Clear the bits of a wake word that say what waits, and wake the threads; return the bits."},
    {"spin_above", FAST(py_spin_above), METH_FASTCALL,
     "spin_above(buffer, position, value, seconds, /)\n--\n\n"
     "Watch a double word for *seconds* without sleeping; return whether it rose above a value."},
    {"set_bit", FAST(py_set_bit), METH_FASTCALL,
     "set_bit(buffer, position, bit, /)\n--\n\nSet one bit of a shared double word."},
    {"take_bits", FAST(py_take_bits), METH_FASTCALL,
     "take_bits(buffer, position, words, /)\n--\n\n"
     "Clear *words* shared double words; return which bits were set."},
    {NULL, NULL, 0, NULL},
};

int add_waiting(PyObject *module) { return PyModule_AddFunctions(module, functions); }
