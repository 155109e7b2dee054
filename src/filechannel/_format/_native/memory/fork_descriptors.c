/* Descriptors that a forked child must close: a kernel lock is held as long as any process has its file open.
 *
 * pthread_atfork closes them, so that this happens for a fork in any library, and before the child runs anything else.
 * A child that unlocked instead would release the lock of its parent. */
#include "core.h"
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

typedef struct {
    int descriptor;
    uint64_t number;
} Entry;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Entry *entries;
static size_t listed, capacity;
static uint64_t last_number; /* never reused, unlike descriptors */

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) {
    for (size_t i = 0; i < listed; i++) close(entries[i].descriptor);
    listed = 0;
    pthread_mutex_unlock(&mutex);
}

/* The number of a new entry, or 0. */
static uint64_t add(int descriptor) {
    if (listed == capacity) {
        size_t more = capacity ? 2 * capacity : 16;
        Entry *moved = PyMem_RawRealloc(entries, more * sizeof *moved);
        if (!moved) return 0;
        entries = moved;
        capacity = more;
    }
    entries[listed++] = (Entry){descriptor, ++last_number};
    return last_number;
}

static int drop(uint64_t number) {
    for (size_t i = 0; i < listed; i++)
        if (entries[i].number == number) {
            entries[i] = entries[--listed];
            return 1;
        }
    return 0;
}

static PyObject *py_close_in_child(PyObject *Py_UNUSED(module), PyObject *descriptor) {
    uint64_t value;
    if (unsigned_from(descriptor, INT_MAX, &value)) return NULL;
    pthread_mutex_lock(&mutex); /* only ever held for a few instructions */
    uint64_t number = add((int)value);
    pthread_mutex_unlock(&mutex);
    return number ? PyLong_FromUnsignedLongLong(number) : PyErr_NoMemory();
}

static PyObject *py_keep_in_child(PyObject *Py_UNUSED(module), PyObject *number) {
    uint64_t value;
    if (unsigned_from(number, UINT64_MAX, &value)) return NULL;
    pthread_mutex_lock(&mutex);
    int found = drop(value);
    pthread_mutex_unlock(&mutex);
    return PyBool_FromLong(found);
}

static PyMethodDef functions[] = {
    {"close_in_child", py_close_in_child, METH_O,
     "close_in_child(descriptor, /)\n--\n\n"
     "Close a descriptor in every process that is forked from now on; return the number for `keep_in_child`."},
    {"keep_in_child", py_keep_in_child, METH_O,
     "keep_in_child(number, /)\n--\n\n"
     "Undo `close_in_child`, before the descriptor is closed here; False if a fork closed it already."},
    {NULL, NULL, 0, NULL},
};

int add_forking(PyObject *module) {
    pthread_atfork(before_fork, in_parent, in_child);
    return PyModule_AddFunctions(module, functions);
}
