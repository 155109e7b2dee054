/* Mutexes that an exception raised by a signal handler cannot leave locked. The reference is memory/mutex.py.
 *
 * Python calls signal handlers between two bytecodes of the main thread, and an exception raised by one unwinds from
 * there. So the fact that a lock is held must never be known to Python code only: there are bytecodes between
 * `acquire()` and the `try` after it, between `__enter__` and the body of a `with` (on Python 3.14), and between the
 * body and `__exit__`. Here a lock is held exactly as long as a guard is alive. `held()` locks and creates the guard in
 * one C call, during which no handler runs; the guard exists only on the evaluation stack of the frame that executes
 * the `with`; `__exit__` unlocks; and a frame that is unwound anywhere else drops its stack, and with it the guard,
 * which unlocks when it is deallocated. A traceback keeps the variables of a frame alive, but not its stack: so a guard
 * must never be assigned to a variable, passed to a Python function, or held by a generator-based context manager.
 *
 * A thread may lock a mutex that it has already locked: a signal handler or a finalizer may run in between.
 *
 * A mutex may have a word of a shared map that says which process has the lock (see shared_lock.py). A callback takes
 * it, with the mutex locked, and the outermost guard frees it. A block that was left by an exception that is not one of
 * the package's own, or that was not left through `__exit__` at all, may have left the guarded data in any state. Then
 * the lock word is not freed, but set to a process that is not alive, so that the next holder cleans up as after the
 * death of a process. */
#include "core.h"

#define NO_PROCESS ((uint32_t)1 << LOCK_GENERATION_SHIFT) /* slot 0 is never used */

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner; /* the thread that has locked it */
    Py_ssize_t depth;    /* how often */
    Py_ssize_t shared;   /* how many of its guards need the lock word */
    char spoiled;        /* the next holder of the lock word must clean up */
    char abandoned;      /* the lock word belongs to the parent of this process */
    PyObject *words;     /* the map that has the lock word, or NULL; a strong reference */
    uint64_t position; /* of the lock word; `share` has checked that it lies inside, and a map never shrinks */
    uint32_t process;  /* how the lock word names this process */
    uint64_t flushes;  /* position of the word that counts flushes; UINT64_MAX: there is none */
    StoreCheck check;         /* the last check of the page of the lock word */
} Mutex;

typedef struct {
    PyObject_HEAD
    Mutex *mutex;   /* NULL: it was released, or there never was one */
    PyObject *call; /* what to call instead, and with which arguments; or NULL */
    PyObject *arguments;
    char shared;
} Guard;

static PyTypeObject *MutexType, *GuardType; /* borrowed from the module, which lives as long as the process */
_Thread_local Py_ssize_t locked_here;
static PyObject *own_error; /* FileChannelError */

/* Deallocated guards, with their memory and a reference to their type, for reuse: each locking needs one. */
#define MOST_FREE 8
static Guard *free_list[MOST_FREE];
static int free_count;

static Guard *guard_new(void) {
    Guard *self;
    if (free_count) {
        self = free_list[--free_count];
        Py_SET_REFCNT((PyObject *)self, 1);
    } else if (!(self = PyObject_New(Guard, GuardType)))
        return NULL;
    self->mutex = NULL;
    self->call = self->arguments = NULL;
    self->shared = 0;
    return self;
}

/* --- The lock word ----------------------------------------------------------------------------------------- */

/* If the file system has shut down, a store to the lock word would kill the process. */
static int word_storable(Mutex *self, const uint8_t *words) {
    const uint8_t *at = words + self->position;
    return self->flushes == UINT64_MAX ? can_store(at, 4) : can_store_word(at, words + self->flushes, &self->check);
}

static void free_word(Mutex *self) {
    Py_buffer view;
    int spoiled = self->spoiled;
    self->spoiled = 0;
    if (self->abandoned || !self->words) return;
    if (PyObject_GetBuffer(self->words, &view, PyBUF_WRITABLE)) { /* it is no longer mapped */
        PyErr_Clear();
        return;
    }
    uint8_t *at = (uint8_t *)view.buf + self->position;
    /* This thread has the mutex and the GIL: nothing else in this process can have taken the lock word. If it cannot be
     * stored to, no process can take or free it any more. */
    int is_storable = word_storable(self, view.buf);
    for (uint32_t word; is_storable && ((word = load_acquire_u32(at)) & ~CONTENDED) == self->process;) {
        if (spoiled && !swap_if_u32(at, word, NO_PROCESS)) continue; /* another process has marked it as contended */
        if (spoiled)
            futex_wake(at, 1);
        else
            release_word(at);
        break;
    }
    PyBuffer_Release(&view);
}

/* --- Locking and unlocking --------------------------------------------------------------------------------- */

/* 1: locked; 0: timeout; -1: a signal handler raised, and it is not locked. Negative seconds: no limit. */
static int lock_mutex(Mutex *self, double seconds) {
    unsigned long me = PyThread_get_thread_ident();
    if (self->depth && self->owner == me) {
        self->depth++;
        return 1;
    }
    if (PyThread_acquire_lock_timed(self->lock, 0, 0) != PY_LOCK_ACQUIRED) {
        uint64_t until = seconds < 0 ? 0 : monotonic_ns() + (uint64_t)(seconds * 1e9);
        for (PyLockStatus got = PY_LOCK_FAILURE; got != PY_LOCK_ACQUIRED;) {
            PY_TIMEOUT_T most = -1;
            if (until) {
                uint64_t now = monotonic_ns();
                if (now >= until) return 0;
                most = (PY_TIMEOUT_T)((until - now + 999) / 1000);
            }
            Py_BEGIN_ALLOW_THREADS
            got = PyThread_acquire_lock_timed(self->lock, most, 1);
            Py_END_ALLOW_THREADS
            if (got == PY_LOCK_INTR && PyErr_CheckSignals()) return -1;
        }
    }
    self->owner = me;
    self->depth = 1;
    locked_here++;
    return 1;
}

static void unlock_mutex(Mutex *self) {
    if (--self->depth) return;
    self->owner = 0;
    locked_here--;
    PyThread_release_lock(self->lock);
}

static void leave(Mutex *self, int shared, int spoils) {
    if (shared) {
        if (spoils) self->spoiled = 1;
        if (!--self->shared) free_word(self);
    }
    unlock_mutex(self);
}

/* Whether an exception does not indicate half-done work: the package raises it after cleaning up. */
int is_own_error(PyObject *type) {
    return PyErr_GivenExceptionMatches(type, own_error) || PyErr_GivenExceptionMatches(type, busy) ||
           PyErr_GivenExceptionMatches(type, closed_error) ||
           PyErr_GivenExceptionMatches(type, PyExc_OSError);
}

int in_main_thread(void) {
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *main = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = main ? PyObject_GetAttrString(main, "ident") : NULL;
    int is_main = ident && PyLong_Check(ident) && PyLong_AsUnsignedLongMask(ident) == PyThread_get_thread_ident();
    Py_XDECREF(threading);
    Py_XDECREF(main);
    Py_XDECREF(ident);
    PyErr_Clear();
    return is_main;
}

/* --- The guard --------------------------------------------------------------------------------------------- */

static int guard_end(Guard *self, int spoils) {
    Mutex *mutex = self->mutex;
    if (mutex) {
        self->mutex = NULL;
        leave(mutex, self->shared, spoils);
        Py_DECREF(mutex);
        return 0;
    }
    PyObject *call = self->call, *arguments = self->arguments;
    self->call = self->arguments = NULL;
    if (!call) return 0;
    PyObject *result = PyObject_CallObject(call, arguments);
    Py_DECREF(call);
    Py_DECREF(arguments);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static void guard_dealloc(PyObject *op) {
    Guard *self = (Guard *)op;
    if (self->mutex || self->call) { /* it was dropped by an exception, which stays set */
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        if (guard_end(self, 1)) PyErr_WriteUnraisable(NULL);
        PyErr_Restore(type, error, traceback);
    }
    if (free_count < MOST_FREE) {
        free_list[free_count++] = self;
        return;
    }
    PyTypeObject *type = Py_TYPE(op);
    PyObject_Free(op);
    Py_DECREF(type);
}

static PyObject *guard_enter(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }

static PyObject *guard_exit(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    if (check_count("__exit__", count, 3)) return NULL;
    if (guard_end((Guard *)op, args[0] != Py_None && !is_own_error(args[0]))) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef guard_methods[] = {
    {"__enter__", guard_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(guard_exit), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot guard_slots[] = {
    {Py_tp_doc, "Holds a mutex, or makes a call at the end, for the body of a `with` statement."},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_methods, guard_methods},
    {0, NULL},
};
static PyType_Spec guard_spec = {
    .name = "filechannel._format._core.Guard",
    .basicsize = sizeof(Guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = guard_slots,
};

static PyObject *py_ensured(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    if (count < 1) return check_count("ensured", count, 1), NULL;
    Guard *guard = guard_new();
    if (!guard) return NULL;
    if (!(guard->arguments = PyTuple_New(count - 1))) {
        Py_DECREF(guard);
        return NULL;
    }
    for (Py_ssize_t i = 1; i < count; i++) PyTuple_SET_ITEM(guard->arguments, i - 1, Py_NewRef(args[i]));
    guard->call = Py_NewRef(args[0]);
    return (PyObject *)guard;
}

/* --- The mutex --------------------------------------------------------------------------------------------- */

static PyObject *mutex_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    if (check_no_keywords("Mutex", keywords) || check_count("Mutex", PyTuple_GET_SIZE(args), 0)) return NULL;
    Mutex *self = (Mutex *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if (!(self->lock = PyThread_allocate_lock())) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void mutex_dealloc(PyObject *op) {
    Mutex *self = (Mutex *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (self->lock) {
        if (self->depth) {
            if (self->owner == PyThread_get_thread_ident()) locked_here--;
            PyThread_release_lock(self->lock);
        }
        PyThread_free_lock(self->lock);
    }
    Py_CLEAR(self->words);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Return the guard of a mutex that this thread has locked. */
static PyObject *guarded(Mutex *self, int shared) {
    Guard *guard = guard_new();
    if (!guard) {
        leave(self, shared, 1);
        return NULL;
    }
    guard->mutex = (Mutex *)Py_NewRef((PyObject *)self);
    guard->shared = (char)shared;
    return (PyObject *)guard;
}

static PyObject *mutex_held(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Mutex *self = (Mutex *)op;
    double seconds = -1;
    if (count > 1) return check_count("held", count, 1), NULL;
    if (count) {
        seconds = PyFloat_AsDouble(args[0]);
        if (seconds == -1.0 && PyErr_Occurred()) return NULL;
        if (!(seconds >= 0 && seconds <= 1e6)) {
            PyErr_SetString(PyExc_ValueError, "seconds must be between 0 and a million");
            return NULL;
        }
    }
    int got = lock_mutex(self, seconds);
    if (!got) PyErr_SetNone(busy);
    return got > 0 ? guarded(self, 0) : NULL;
}

static PyObject *mutex_lock(PyObject *op, PyObject *Py_UNUSED(none)) {
    if (lock_mutex((Mutex *)op, -1) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *mutex_unlock(PyObject *op, PyObject *Py_UNUSED(none)) {
    Mutex *self = (Mutex *)op;
    if (!self->depth || self->owner != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "this thread has not locked it");
        return NULL;
    }
    unlock_mutex(self);
    Py_RETURN_NONE;
}

static PyObject *mutex_share(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Mutex *self = (Mutex *)op;
    Py_buffer view;
    uint64_t process;
    uint64_t flushes = UINT64_MAX;
    if (check_count("share", count, 4) || unsigned_from(args[2], UINT32_MAX, &process)) return NULL;
    if (args[3] != Py_None) {
        PyObject *const counter[] = {args[0], args[3]};
        uint8_t *at = word_at(counter, 4, 1, &view);
        if (!at) return NULL;
        flushes = (uint64_t)(at - (uint8_t *)view.buf);
        PyBuffer_Release(&view);
    }
    uint8_t *at = word_at(args, 4, 1, &view);
    if (!at) return NULL;
    self->position = (uint64_t)(at - (uint8_t *)view.buf);
    PyBuffer_Release(&view);
    self->process = (uint32_t)process;
    self->flushes = flushes;
    self->check = (StoreCheck){0, 0};
    Py_XSETREF(self->words, Py_NewRef(args[0]));
    Py_RETURN_NONE;
}

static PyObject *mutex_can_store(PyObject *op, PyObject *Py_UNUSED(none)) {
    Mutex *self = (Mutex *)op;
    Py_buffer view;
    if (!self->words) Py_RETURN_TRUE;
    if (PyObject_GetBuffer(self->words, &view, PyBUF_WRITABLE)) return NULL;
    int can = word_storable(self, view.buf);
    PyBuffer_Release(&view);
    return PyBool_FromLong(can);
}

/* The truth value of a callback's result; -1 with an exception. */
static int ask(PyObject *callback) {
    PyObject *answer = PyObject_CallNoArgs(callback);
    int is_true = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_true;
}

/* Take the lock word, with the mutex locked: 1; 0 with a new reference in *seen if it is taken; -1 with an exception.
 * Unless the result is 1, the mutex is unlocked. */
static int take_shared(Mutex *self, PyObject *take, int slept, PyObject **seen) {
    if (self->shared++) return 1;
    PyObject *taken_by = PyObject_CallOneArg(take, slept ? Py_True : Py_False);
    int is_taken = taken_by ? PyObject_IsTrue(taken_by) : -1;
    if (!is_taken) {
        Py_DECREF(taken_by);
        return 1;
    }
    if (is_taken > 0) {
        self->shared--;
        unlock_mutex(self);
        *seen = taken_by;
        return 0;
    }
    Py_XDECREF(taken_by);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    leave(self, 1, !is_own_error(type));
    PyErr_Restore(type, error, traceback);
    return -1;
}

/* No thread sleeps on the lock word with the mutex locked: a thread that must not block may need the mutex. */
static PyObject *mutex_held_shared(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Mutex *self = (Mutex *)op;
    if (check_count("held_shared", count, 4)) return NULL;
    PyObject *take = args[0], *may_sleep = args[1], *check_owner = args[2], *sleep = args[3];
    for (int slept = 0;; slept = 1) {
        int may = ask(may_sleep);
        if (may < 0) return NULL;
        if (!may) {
            PyObject *checked = PyObject_CallNoArgs(check_owner);
            if (!checked) return NULL;
            Py_DECREF(checked);
        }
        if (lock_mutex(self, -1) < 0) return NULL;
        PyObject *seen = NULL;
        int taken = take_shared(self, take, slept, &seen);
        if (taken > 0) return guarded(self, 1);
        if (taken < 0) return NULL;
        may = ask(may_sleep);
        PyObject *woken = may > 0 ? PyObject_CallOneArg(sleep, seen) : NULL;
        Py_DECREF(seen);
        if (!may) PyErr_SetNone(busy);
        if (!woken) return NULL;
        Py_DECREF(woken);
    }
}

static PyObject *mutex_spoil(PyObject *op, PyObject *Py_UNUSED(none)) {
    ((Mutex *)op)->spoiled = 1;
    Py_RETURN_NONE;
}

static PyObject *mutex_abandon(PyObject *op, PyObject *Py_UNUSED(none)) {
    ((Mutex *)op)->abandoned = 1;
    Py_RETURN_NONE;
}

static PyObject *get_owner(PyObject *op, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLong(((Mutex *)op)->owner);
}

static PyObject *get_user(PyObject *op, void *Py_UNUSED(closure)) {
    Mutex *self = (Mutex *)op;
    return PyLong_FromUnsignedLong(self->shared ? self->owner : 0);
}

static PyMethodDef mutex_methods[] = {
    {"held", FAST(mutex_held), METH_FASTCALL,
     "held($self, seconds=..., /)\n--\n\n"
     "Lock it and return a guard for a `with` statement; `Busy` after *seconds*."},
    {"lock", mutex_lock, METH_NOARGS, "lock($self, /)\n--\n\n"
     "Lock it, for a caller that cannot use a `with` statement and runs no Python code before it unlocks it."},
    {"unlock", mutex_unlock, METH_NOARGS, "unlock($self, /)\n--\n\nUnlock it again."},
    {"share", FAST(mutex_share), METH_FASTCALL,
     "share($self, words, position, process, flushes, /)\n--\n\n"
     "Free this lock word with the last shared guard, if it names this process then. *flushes* is the position of "
     "the word that counts the flushes of its file; None if there is no such word."},
    {"can_store", mutex_can_store, METH_NOARGS,
     "can_store($self, /)\n--\n\n"
     "Make the page of the lock word writable, unless it is known to be; False if a store would be fatal."},
    {"held_shared", FAST(mutex_held_shared), METH_FASTCALL,
     "held_shared($self, take, may_sleep, check_owner, sleep, /)\n--\n\n"
     "Lock it, take the lock word, and return a guard; `Busy` if the word is taken and the thread may not sleep."},
    {"spoil", mutex_spoil, METH_NOARGS, "spoil($self, /)\n--\n\nLet the next holder of the lock word clean up."},
    {"abandon", mutex_abandon, METH_NOARGS, "abandon($self, /)\n--\n\nNever store to the lock word from now on."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef mutex_getset[] = {
    {"owner", get_owner, NULL, "The thread that has locked it; 0 if none has.", NULL},
    {"user", get_user, NULL, "The thread that has locked it and holds the lock word, or is about to take it; 0 if there is none.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot mutex_slots[] = {
    {Py_tp_doc, "Mutex()\n--\n\nA re-entrant lock, which processes share if it has a lock word in a map. With "
     "the C core, an exception raised by a signal handler cannot leave it locked."},
    {Py_tp_new, mutex_new},         {Py_tp_dealloc, mutex_dealloc}, {Py_tp_methods, mutex_methods},
    {Py_tp_getset, mutex_getset},   {0, NULL},
};
static PyType_Spec mutex_spec = {
    .name = "filechannel._format._core.Mutex",
    .basicsize = sizeof(Mutex),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = mutex_slots,
};

static PyObject *py_holds_mutex(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) { return PyBool_FromLong(locked_here > 0); }

/* No bytecode runs here for asyncio's own futures, so no signal handler can raise before the last one is done. */
static PyObject *py_resolve(PyObject *Py_UNUSED(module), PyObject *const *futures, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *done = PyObject_CallMethod(futures[i], "done", NULL);
        int is_done = done ? PyObject_IsTrue(done) : -1;
        Py_XDECREF(done);
        if (is_done < 0) return NULL;
        if (is_done) continue;
        PyObject *set = PyObject_CallMethod(futures[i], "set_result", "O", Py_None);
        if (!set) return NULL;
        Py_DECREF(set);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"resolve", FAST(py_resolve), METH_FASTCALL,
     "resolve(*futures)\n--\n\nSet the result of every asyncio future that is not done to None. With the "
     "C core, no signal handler can prevent it."},
    {"ensured", FAST(py_ensured), METH_FASTCALL,
     "ensured(call, /, *arguments)\n--\n\n"
     "Return a guard that makes a call at the end of a `with` statement, however that is left. "
     "With the C core, and if the call is of a C function, no signal handler can prevent it."},
    {"holds_mutex", py_holds_mutex, METH_NOARGS,
     "holds_mutex()\n--\n\nReturn whether the calling thread has locked any mutex, or is inside a reader."},
    {NULL, NULL, 0, NULL},
};

int add_mutex(PyObject *module) {
    PyObject *errors = PyImport_ImportModule("filechannel._errors");
    own_error = errors ? PyObject_GetAttrString(errors, "FileChannelError") : NULL;
    Py_XDECREF(errors);
    if (!own_error || !(MutexType = add_type(module, &mutex_spec))) return -1;
    if (!(GuardType = add_type(module, &guard_spec))) return -1;
    return PyModule_AddFunctions(module, functions);
}
