/* `await tx.send(item)` and `await rx.receive()` without a Python frame. The reference is cores.py.
 *
 * SendCore and ReceiveCore are the bases of Sender and Receiver. Their methods give a coroutine, as an `async def`
 * would: nothing happens before it is awaited, and a task cancelled before its first step has done nothing. Awaited, it
 * does its work at once if it can; otherwise it becomes the Python coroutine that `_send_slowly` or `_receive_slowly`
 * returns. asyncio, uvloop, trio and anyio take it for what it is: it has send, throw, close and __await__. */
#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *target; /* a SendPath or a Reader; NULL once detached */
} Core;

enum state { NEW, RUNNING, DONE };

typedef struct {
    PyObject_HEAD
    Core *core;
    PyObject *item;  /* of a send, until it is done; of a receive, the future that it sleeps for, while it does */
    PyObject *inner; /* what we wait for, once we do: the slow coroutine, or before it, once, that future */
    char state;
    char sends;
    char stopped; /* our result is in spare_stop */
    char tracked; /* by the garbage collector: only what waits can be part of a cycle */
} Coroutine;

static PyObject *no_arguments;
static PyTypeObject *CoroutineType, *SendCoreType, *ReceiveCoreType, *AckCoreType;
static PyObject *send_slowly, *receive_slowly, *send_nowait_slowly, *receive_nowait_slowly; /* names of methods */
static PyObject *send_here_slowly, *receive_here_slowly, *begin_wait, *end_wait, *ack_slowly, *drained;

#define LONGEST_SLEEP 1.0 /* seconds: whoever should wake us may have died on the way */

#define SPARE 32
static Coroutine *spare[SPARE];
static int spares;

static PyObject *new_coroutine(PyObject *core, PyObject *item) {
    Coroutine *self;
    if (spares) {
        self = spare[--spares]; /* it still is one, and still counts for its type */
        Py_SET_REFCNT((PyObject *)self, 1);
    } else if (!(self = PyObject_GC_New(Coroutine, CoroutineType)))
        return NULL;
    self->core = (Core *)Py_NewRef(core);
    self->item = Py_XNewRef(item);
    self->inner = NULL;
    self->state = NEW;
    self->sends = item != NULL;
    self->stopped = self->tracked = 0;
    return (PyObject *)self;
}

static void finish(Coroutine *self) {
    self->state = DONE;
    Py_CLEAR(self->item);
    Py_CLEAR(self->inner);
}

/* From here on we may be part of a cycle. */
static void track(Coroutine *self) {
    if (!self->tracked) PyObject_GC_Track(self);
    self->tracked = 1;
}

/* Become the Python coroutine that can wait. */
static int go_slow(Coroutine *self) {
    PyObject *core = (PyObject *)self->core;
    self->inner = self->sends ? PyObject_CallMethodOneArg(core, send_slowly, self->item)
                              : PyObject_CallMethodNoArgs(core, receive_slowly);
    if (!self->inner) return -1;
    Py_CLEAR(self->item);
    track(self);
    return 0;
}

/* --- Sleeping once, for a message that most likely comes: what a Python coroutine does, for a third of the time ---- */

static int sleeps(const Coroutine *self) { return !self->sends && self->item; }

/* It was not ended by being woken: nobody has to wake us any more. An exception that is set stays. */
static void give_up_sleep(Coroutine *self) {
    PyObject *type, *error, *traceback, *future = self->item;
    self->item = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallMethodOneArg((PyObject *)self->core, end_wait, future);
    if (!done) PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(done);
    Py_DECREF(future);
    PyErr_Restore(type, error, traceback);
}

/* Sleep for a future of asyncio, if there is one to be had; else inner stays NULL, and the slow coroutine does it. */
static int begin_sleep(Coroutine *self) {
    if (self->sends || !self->core->target || turn_over()) return 0;
    PyObject *future = PyObject_CallMethodNoArgs((PyObject *)self->core, begin_wait);
    if (!future) return -1;
    if (future == Py_None) {
        Py_DECREF(future);
        return 0;
    }
    self->item = future;
    track(self);
    const PyAsyncMethods *methods = Py_TYPE(future)->tp_as_async;
    if (methods && methods->am_await)
        self->inner = methods->am_await(future);
    else
        PyErr_Format(PyExc_TypeError, "expected a future, not %.100s", Py_TYPE(future)->tp_name);
    if (self->inner) return 0;
    give_up_sleep(self);
    return -1;
}

/* Do it now; NULL without an exception: go the slow way. Python code runs in here and may detach or close us. */
static PyObject *step(Coroutine *self) {
    if (!self->core->target) return NULL;
    PyObject *target = Py_NewRef(self->core->target), *item = Py_XNewRef(self->item);
    PyObject *result = self->sends ? send_path_step(target, item) : reader_step(target);
    Py_DECREF(target);
    Py_XDECREF(item);
    return result;
}

/* Go on where we wait. Woken, we take the message; if it is another's by now, the slow coroutine waits for the next. */
static PySendResult go_on(Coroutine *self, PyObject *value, PyObject **result) {
    PyObject *inner = Py_NewRef(self->inner);
    PySendResult sent = PyIter_Send(inner, value, result);
    Py_DECREF(inner);
    if (!sleeps(self) || sent == PYGEN_NEXT) return sent;
    if (sent == PYGEN_ERROR) {
        give_up_sleep(self);
        return sent;
    }
    Py_CLEAR(*result);
    Py_CLEAR(self->item);
    Py_CLEAR(self->inner);
    turn_begin();
    *result = step(self);
    if (*result) return PYGEN_RETURN;
    if (PyErr_Occurred() || go_slow(self)) return PYGEN_ERROR;
    return go_on(self, Py_None, result);
}

static PySendResult coroutine_send(PyObject *op, PyObject *value, PyObject **result) {
    Coroutine *self = (Coroutine *)op;
    *result = NULL;
    if (self->state == DONE) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
        return PYGEN_ERROR;
    }
    if (self->state == NEW) {
        if (value != Py_None) {
            PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
            return PYGEN_ERROR;
        }
        self->state = RUNNING;
        *result = step(self);
        if (*result || PyErr_Occurred()) {
            finish(self);
            return *result ? PYGEN_RETURN : PYGEN_ERROR;
        }
        if (begin_sleep(self) || (!self->inner && go_slow(self))) {
            finish(self);
            return PYGEN_ERROR;
        }
    }
    if (!self->inner) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return PYGEN_ERROR;
    }
    PySendResult sent = go_on(self, value, result);
    if (sent != PYGEN_NEXT) finish(self);
    return sent;
}

/* What `send`, `throw` and `next` answer: a yielded value, or StopIteration with the result. */
static PyObject *answer(PySendResult sent, PyObject *result) {
    if (sent != PYGEN_RETURN) return result;
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
    Py_DECREF(result);
    if (!stop) return NULL;
    PyErr_SetObject(PyExc_StopIteration, stop);
    Py_DECREF(stop);
    return NULL;
}

static PyObject *py_send(PyObject *op, PyObject *value) {
    PyObject *result;
    PySendResult sent = coroutine_send(op, value, &result);
    return answer(sent, result);
}

/* The interpreter awaits us through tp_iternext from 3.12 on, so the way to say "done, with this result" has to be cheap.
 * NULL without an exception means StopIteration(None). Anything else needs the exception, and one is used again and again:
 * whoever awaits takes the result out of it, then drops it, and then us, which is when we take the result out as well. */
static PyObject *spare_stop;

static int stop_is_ours(void) {
    const PyBaseExceptionObject *stop = (PyBaseExceptionObject *)spare_stop;
    return stop && Py_REFCNT(spare_stop) == 1 && !stop->traceback && !stop->context && !stop->cause;
}

static PyObject *stop_with(Coroutine *self, PyObject *result) {
    if (!stop_is_ours()) {
        PyTypeObject *type = (PyTypeObject *)PyExc_StopIteration;
        Py_XSETREF(spare_stop, type->tp_new(type, no_arguments, NULL));
        if (!spare_stop) {
            Py_DECREF(result);
            return NULL;
        }
    }
    Py_XSETREF(((PyStopIterationObject *)spare_stop)->value, result);
    self->stopped = 1;
#if PY_VERSION_HEX >= 0x030c0000
    PyErr_SetRaisedException(Py_NewRef(spare_stop));
#else
    PyErr_SetObject(PyExc_StopIteration, spare_stop);
#endif
    return NULL;
}

static void empty_stop(void) {
    if (stop_is_ours())
        Py_CLEAR(((PyStopIterationObject *)spare_stop)->value);
    else
        Py_CLEAR(spare_stop); /* somebody has caught it: it is theirs */
}

static PyObject *py_next(PyObject *op) {
    PyObject *result;
    PySendResult sent = coroutine_send(op, Py_None, &result);
    if (sent != PYGEN_RETURN) return result;
    if (result != Py_None) return stop_with((Coroutine *)op, result);
    Py_DECREF(result);
    return NULL;
}

static PyObject *raise_given(PyObject *type, PyObject *value, PyObject *traceback) {
    if (PyExceptionInstance_Check(type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
    } else if (PyExceptionClass_Check(type)) {
        PyObject *error = value && PyExceptionInstance_Check(value) ? Py_NewRef(value)
                          : value && value != Py_None               ? PyObject_CallOneArg(type, value)
                                                                    : PyObject_CallNoArgs(type);
        if (!error) return NULL;
        if (traceback && traceback != Py_None) PyException_SetTraceback(error, traceback);
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    } else
        PyErr_SetString(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException");
    return NULL;
}

static PyObject *py_throw(PyObject *op, PyObject *const *args, Py_ssize_t count) {
    Coroutine *self = (Coroutine *)op;
    if (count < 1 || count > 3) return check_count("throw", count, 3), NULL;
    if (!self->inner) {
        if (self->state == DONE) {
            PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
            return NULL;
        }
        finish(self); /* never started: nothing was done, and nothing will be */
        return raise_given(args[0], count > 1 ? args[1] : NULL, count > 2 ? args[2] : NULL);
    }
    PyObject *inner = Py_NewRef(self->inner);
    PyObject *throw = PyObject_GetAttrString(inner, "throw");
    PyObject *result = throw ? PyObject_Vectorcall(throw, args, (size_t)count, NULL) : NULL;
    Py_XDECREF(throw);
    Py_DECREF(inner);
    if (!result) {
        if (sleeps(self)) give_up_sleep(self);
        finish(self);
    }
    return result;
}

static PyObject *py_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    Coroutine *self = (Coroutine *)op;
    PyObject *done = self->inner ? PyObject_CallMethod(self->inner, "close", NULL) : Py_NewRef(Py_None);
    if (done) {
        if (sleeps(self)) give_up_sleep(self);
        finish(self);
    }
    return done;
}

/* A forgotten `await` must not go unnoticed. */
static void coroutine_finalize(PyObject *op) {
    Coroutine *self = (Coroutine *)op;
    if (sleeps(self)) {
        give_up_sleep(self);
        finish(self);
    }
    if (self->state != NEW) return;
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    const char *name = self->sends ? "Sender.send" : "Receiver.receive";
    if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "coroutine '%s' was never awaited", name)) PyErr_WriteUnraisable(op);
    PyErr_Restore(type, error, traceback);
}

static int coroutine_traverse(PyObject *op, visitproc visit, void *arg) {
    Coroutine *self = (Coroutine *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->core);
    Py_VISIT(self->item);
    Py_VISIT(self->inner);
    return 0;
}

static int coroutine_clear(PyObject *op) {
    Coroutine *self = (Coroutine *)op;
    finish(self);
    return 0;
}

static void coroutine_dealloc(PyObject *op) {
    Coroutine *self = (Coroutine *)op;
    PyTypeObject *type = Py_TYPE(op);
    int was_simple = self->state == DONE && !self->tracked;
    if ((self->state == NEW || sleeps(self)) && PyObject_CallFinalizerFromDealloc(op)) return;
    if (self->tracked) PyObject_GC_UnTrack(op);
    if (self->stopped) empty_stop();
    finish(self);
    Py_CLEAR(self->core);
    if (was_simple && spares < SPARE) { /* never finalized, which happens once in the life of an object */
        spare[spares++] = self;
        return;
    }
    PyObject_GC_Del(op);
    Py_DECREF(type);
}

static PyObject *get_name(PyObject *op, void *qualified) {
    int sends = ((Coroutine *)op)->sends;
    if (qualified) return PyUnicode_FromString(sends ? "Sender.send" : "Receiver.receive");
    return PyUnicode_FromString(sends ? "send" : "receive");
}

#define FAST(name) (PyCFunction)(void (*)(void)) name
static PyMethodDef coroutine_methods[] = {
    {"send", py_send, METH_O, "send($self, value, /)\n--\n\nGo on; StopIteration carries the result."},
    {"throw", FAST(py_throw), METH_FASTCALL, "Raise an exception where the coroutine waits."},
    {"close", py_close, METH_NOARGS, "close($self, /)\n--\n\nGive up."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef coroutine_getset[] = {
    {"__name__", get_name, NULL, NULL, NULL},
    {"__qualname__", get_name, NULL, NULL, "qualified"},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot coroutine_slots[] = {
    {Py_tp_doc, "The coroutine of one send or receive."},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, coroutine_send},
    {Py_tp_iternext, py_next},
    {Py_tp_finalize, coroutine_finalize},
    {Py_tp_traverse, coroutine_traverse},
    {Py_tp_clear, coroutine_clear},
    {Py_tp_dealloc, coroutine_dealloc},
    {Py_tp_methods, coroutine_methods},
    {Py_tp_getset, coroutine_getset},
    {0, NULL},
};
static PyType_Spec coroutine_spec = {
    .name = "filechannel._format._core.Coroutine",
    .basicsize = sizeof(Coroutine),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = coroutine_slots,
};

/* --- The bases --------------------------------------------------------------------------------------------- */

/* The one argument, by position or by name, as in anyio's interface. */
static PyObject *the_item(PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (count + named == 1 && (!named || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "item") == 0))
        return args[0];
    PyErr_SetString(PyExc_TypeError, "send() takes exactly one argument: item");
    return NULL;
}

static PyObject *py_send_item(PyObject *op, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *item = the_item(args, count, names);
    return item ? new_coroutine(op, item) : NULL;
}

static PyObject *py_receive(PyObject *op, PyObject *Py_UNUSED(none)) { return new_coroutine(op, NULL); }

static PyObject *py_send_nowait(PyObject *op, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *item = the_item(args, count, names);
    if (!item) return NULL;
    PyObject *target = Py_XNewRef(((Core *)op)->target);
    PyObject *offset = target ? send_path_now(target, item) : NULL;
    Py_XDECREF(target);
    return offset || PyErr_Occurred() ? offset : PyObject_CallMethodOneArg(op, send_nowait_slowly, item);
}

static PyObject *py_receive_nowait(PyObject *op, PyObject *Py_UNUSED(none)) {
    PyObject *target = Py_XNewRef(((Core *)op)->target);
    PyObject *item = target ? reader_now(target) : NULL;
    Py_XDECREF(target);
    return item || PyErr_Occurred() ? item : PyObject_CallMethodNoArgs(op, receive_nowait_slowly);
}

#define LONGEST 1e9

/* --- The same for a thread, which waits where it is ---------------------------------------------------------- */

enum { ITEM, TIMEOUT, WHERE };

/* Sort the arguments (item, timeout=None), or those from the first on, by position or by name, into given. */
static int sort_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names, int first, PyObject *given[WHERE]) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    int fine = count <= WHERE - first;
    given[ITEM] = given[TIMEOUT] = NULL;
    for (Py_ssize_t i = 0; fine && i < count; i++) given[first + i] = args[i];
    for (Py_ssize_t i = 0; fine && i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int which = PyUnicode_CompareWithASCIIString(name, "item") == 0 ? ITEM : TIMEOUT;
        fine = which >= first && !given[which] && (which == ITEM || PyUnicode_CompareWithASCIIString(name, "timeout") == 0);
        if (fine) given[which] = args[count + i];
    }
    if (fine && (first == TIMEOUT || given[ITEM])) {
        if (!given[TIMEOUT]) given[TIMEOUT] = Py_None;
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, first == ITEM ? "send() takes an item and a timeout" : "receive() takes a timeout");
    return -1;
}

/* Whether it is a timeout for certain; what is odd goes the slow way, which says so. */
static int is_time(PyObject *timeout) {
    if (timeout == Py_None) return 1;
    if (PyFloat_CheckExact(timeout)) return PyFloat_AS_DOUBLE(timeout) >= 0 && PyFloat_AS_DOUBLE(timeout) <= LONGEST;
    if (!PyLong_CheckExact(timeout)) return 0;
    int overflow;
    long long seconds = PyLong_AsLongLongAndOverflow(timeout, &overflow);
    return !overflow && seconds >= 0 && seconds <= (long long)LONGEST;
}

static PyObject *py_send_here(PyObject *op, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *given[WHERE];
    if (sort_arguments(args, count, names, ITEM, given)) return NULL;
    PyObject *target = given[TIMEOUT] == Py_None ? Py_XNewRef(((Core *)op)->target) : NULL;
    PyObject *offset = target ? send_path_now(target, given[ITEM]) : NULL;
    Py_XDECREF(target);
    if (offset) {
        Py_DECREF(offset);
        Py_RETURN_NONE;
    }
    if (PyErr_Occurred() && PyErr_ExceptionMatches(busy)) PyErr_Clear(); /* it runs an event loop, which is its own affair */
    return PyErr_Occurred() ? NULL : PyObject_CallMethodObjArgs(op, send_here_slowly, given[ITEM], given[TIMEOUT], NULL);
}

/* Sleep once for a message and take it; NULL without an exception: go the slow way, with what is left of the timeout. */
static PyObject *sleep_and_receive(PyObject *op, PyObject *target, PyObject **timeout) {
    double seconds = LONGEST_SLEEP;
    uint64_t began = 0;
    if (*timeout != Py_None) {
        if (!PyFloat_CheckExact(*timeout) && !PyLong_CheckExact(*timeout)) return NULL;
        seconds = PyFloat_AsDouble(*timeout);
        if (seconds == -1.0 && PyErr_Occurred()) PyErr_Clear();
        if (!(seconds > 0)) return NULL; /* nothing to sleep for, or an error that is told there */
        began = monotonic_ns();
    }
    int waited = reader_wait(target, seconds < LONGEST_SLEEP ? seconds : LONGEST_SLEEP);
    if (waited <= 0) return NULL;
    PyObject *item = ((Core *)op)->target == target ? reader_now(target) : NULL;
    if (item || PyErr_Occurred() || !began) return item;
    double left = seconds - (double)(monotonic_ns() - began) / 1e9;
    Py_SETREF(*timeout, PyFloat_FromDouble(left > 0 ? left : 0));
    return NULL;
}

static PyObject *py_receive_here(PyObject *op, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *given[WHERE];
    if (sort_arguments(args, count, names, TIMEOUT, given)) return NULL;
    PyObject *target = is_time(given[TIMEOUT]) ? Py_XNewRef(((Core *)op)->target) : NULL;
    PyObject *left = Py_NewRef(given[TIMEOUT]);
    PyObject *item = target ? reader_now(target) : NULL;
    if (target && !item && !PyErr_Occurred()) item = sleep_and_receive(op, target, &left);
    Py_XDECREF(target);
    if (!item && !PyErr_Occurred()) item = PyObject_CallMethodOneArg(op, receive_here_slowly, left);
    Py_XDECREF(left);
    return item;
}

/* How many to acknowledge; 0 where that is odd: the slow way says so. */
static uint64_t count_of(PyObject *count) {
    int overflow;
    long long number = PyLong_CheckExact(count) ? PyLong_AsLongLongAndOverflow(count, &overflow) : 0;
    return number > 0 ? (uint64_t)number : 0;
}

static PyObject *py_ack(PyObject *op, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    if (count + named > 1 || (named && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "n") != 0)) {
        PyErr_SetString(PyExc_TypeError, "ack() takes one argument at most: n");
        return NULL;
    }
    PyObject *target = ((Core *)op)->target;
    uint64_t number = count + named ? count_of(args[0]) : 1;
    if (target && number && reader_ack(target, number)) {
        if (!reader_must_tell(target)) Py_RETURN_NONE;
        return PyObject_CallMethodNoArgs(op, drained);
    }
    PyObject *given = count + named ? Py_NewRef(args[0]) : PyLong_FromLong(1);
    PyObject *done = given ? PyObject_CallMethodOneArg(op, ack_slowly, given) : NULL;
    Py_XDECREF(given);
    return done;
}

static PyObject *attach(PyObject *op, PyObject *target, PyTypeObject *type) {
    if (!PyObject_TypeCheck(target, type))
        return PyErr_Format(PyExc_TypeError, "expected %.100s, not %.100s", type->tp_name, Py_TYPE(target)->tp_name);
    Py_XSETREF(((Core *)op)->target, Py_NewRef(target));
    Py_RETURN_NONE;
}

/* What Receiver has instead knows how to wait; other classes wait in their slow coroutine. */
static PyObject *py_begin_wait(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(none)) { Py_RETURN_NONE; }
static PyObject *py_end_wait(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(future)) { Py_RETURN_NONE; }

static PyObject *py_attach_path(PyObject *op, PyObject *path) { return attach(op, path, SendPathType); }
static PyObject *py_attach_reader(PyObject *op, PyObject *reader) { return attach(op, reader, ReaderType); }

static PyObject *py_detach(PyObject *op, PyObject *Py_UNUSED(none)) {
    Py_CLEAR(((Core *)op)->target);
    Py_RETURN_NONE;
}

static int core_traverse(PyObject *op, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((Core *)op)->target);
    return 0;
}

static int core_clear(PyObject *op) {
    Py_CLEAR(((Core *)op)->target);
    return 0;
}

static void core_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    core_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

#define DETACH                                                                                                         \
    {"_detach", py_detach, METH_NOARGS, "_detach($self, /)\n--\n\nGo the slow way from now on, which says what is wrong."}
static PyMethodDef send_methods[] = {
    {"send", FAST(py_send_item), METH_FASTCALL | METH_KEYWORDS, "send($self, item)\n--\n\nSend one item; a coroutine."},
    {"send_nowait", FAST(py_send_nowait), METH_FASTCALL | METH_KEYWORDS,
     "send_nowait($self, item)\n--\n\nSend one item and return its offset."},
    {"_attach", py_attach_path, METH_O, "_attach($self, path, /)\n--\n\nSend along this path."},
    {"_send_here", FAST(py_send_here), METH_FASTCALL | METH_KEYWORDS,
     "_send_here($self, item, timeout=None)\n--\n\nSend one item, and let the thread wait if need be."},
    DETACH,
    {NULL, NULL, 0, NULL},
};
static PyMethodDef receive_methods[] = {
    {"receive", py_receive, METH_NOARGS, "receive($self, /)\n--\n\nReceive one item; a coroutine."},
    {"receive_nowait", py_receive_nowait, METH_NOARGS, "receive_nowait($self, /)\n--\n\nReceive one item that is there."},
    {"_attach", py_attach_reader, METH_O, "_attach($self, reader, /)\n--\n\nReceive from this reader."},
    {"_receive_here", FAST(py_receive_here), METH_FASTCALL | METH_KEYWORDS,
     "_receive_here($self, timeout=None)\n--\n\nReceive one item, and let the thread wait if need be."},
    {"_begin_wait", py_begin_wait, METH_NOARGS,
     "_begin_wait($self, /)\n--\n\nReturn a future of asyncio that is done when there is something to take, if that can be had."},
    {"_end_wait", py_end_wait, METH_O, "_end_wait($self, future, /)\n--\n\nForget a future that nobody waits for any more."},
    DETACH,
    {NULL, NULL, 0, NULL},
};
static PyMethodDef ack_methods[] = {
    {"ack", FAST(py_ack), METH_FASTCALL | METH_KEYWORDS, "ack($self, n=1)\n--\n\nSettle the oldest ones outstanding."},
    {NULL, NULL, 0, NULL},
};
/* No tp_new: object's own gives subclasses the attribute layout that the interpreter finds methods fastest in. */
#define CORE_SLOTS(doc, its_methods)                                                                                   \
    {                                                                                                                  \
        {Py_tp_doc, doc}, {Py_tp_traverse, core_traverse}, {Py_tp_clear, core_clear},  \
            {Py_tp_dealloc, core_dealloc}, {Py_tp_methods, its_methods}, {0, NULL},                                    \
    }
#define CORE_SPEC(its_name, its_slots)                                                                                 \
    {                                                                                                                  \
        .name = "filechannel._format._core." its_name, .basicsize = sizeof(Core),                                      \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, .slots = its_slots,                    \
    }
static PyType_Slot send_slots[] = CORE_SLOTS("SendCore()\n--\n\nThe base of a sender: `send`, fast.", send_methods);
static PyType_Slot receive_slots[] = CORE_SLOTS("ReceiveCore()\n--\n\nThe base of a receiver: `receive`, fast.", receive_methods);
static PyType_Slot ack_slots[] = CORE_SLOTS("AckCore()\n--\n\nThe base of a receiver that acknowledges: `ack` too, fast.", ack_methods);
static PyType_Spec send_spec = CORE_SPEC("SendCore", send_slots);
static PyType_Spec receive_spec = CORE_SPEC("ReceiveCore", receive_slots);
static PyType_Spec ack_spec = CORE_SPEC("AckCore", ack_slots);

/* The interpreter calls a method without detours only if it belongs to the very type of the object. */
static int add_own(PyObject *cls, PyMethodDef *methods) {
    for (PyMethodDef *method = methods; method->ml_name && method->ml_name[0] != '_'; method++) {
        PyObject *own = PyDescr_NewMethod((PyTypeObject *)cls, method);
        int failed = !own || PyObject_SetAttrString(cls, method->ml_name, own);
        Py_XDECREF(own);
        if (failed) return -1;
    }
    return 0;
}

static PyObject *make_own(PyObject *cls, PyTypeObject *base, PyMethodDef *methods) {
    if (!PyType_Check(cls) || !PyType_IsSubtype((PyTypeObject *)cls, base))
        return PyErr_Format(PyExc_TypeError, "expected a subclass of %.100s", base->tp_name);
    if (add_own(cls, methods)) return NULL;
    if (PyType_IsSubtype((PyTypeObject *)cls, AckCoreType) && add_own(cls, ack_methods)) return NULL;
    return Py_NewRef(cls);
}

static PyObject *own_send(PyObject *Py_UNUSED(module), PyObject *cls) { return make_own(cls, SendCoreType, send_methods); }
static PyObject *own_receive(PyObject *Py_UNUSED(module), PyObject *cls) { return make_own(cls, ReceiveCoreType, receive_methods); }
static PyMethodDef functions[] = {
    {"own_send", own_send, METH_O, "own_send(cls, /)\n--\n\nGive a subclass of SendCore public methods of its own, which are called faster."},
    {"own_receive", own_receive, METH_O,
     "own_receive(cls, /)\n--\n\nGive a subclass of ReceiveCore public methods of its own, which are called faster."},
    {NULL, NULL, 0, NULL},
};

int add_coroutine(PyObject *module) {
    no_arguments = PyTuple_New(0);
    send_slowly = PyUnicode_InternFromString("_send_slowly");
    receive_slowly = PyUnicode_InternFromString("_receive_slowly");
    send_nowait_slowly = PyUnicode_InternFromString("_send_nowait_slowly");
    receive_nowait_slowly = PyUnicode_InternFromString("_receive_nowait_slowly");
    send_here_slowly = PyUnicode_InternFromString("_send_here_slowly");
    receive_here_slowly = PyUnicode_InternFromString("_receive_here_slowly");
    begin_wait = PyUnicode_InternFromString("_begin_wait");
    end_wait = PyUnicode_InternFromString("_end_wait");
    ack_slowly = PyUnicode_InternFromString("_ack_slowly");
    drained = PyUnicode_InternFromString("_drained");
    if (!ack_slowly || !drained) return -1;
    if (!send_here_slowly || !receive_here_slowly || !begin_wait || !end_wait) return -1;
    if (!no_arguments || !send_slowly || !receive_slowly || !send_nowait_slowly || !receive_nowait_slowly || PyModule_AddFunctions(module, functions)) return -1;
    CoroutineType = (PyTypeObject *)PyType_FromSpec(&coroutine_spec);
    SendCoreType = add_type(module, &send_spec);
    ReceiveCoreType = add_type(module, &receive_spec);
    PyObject *bases = ReceiveCoreType ? PyTuple_Pack(1, ReceiveCoreType) : NULL;
    AckCoreType = bases ? (PyTypeObject *)PyType_FromSpecWithBases(&ack_spec, bases) : NULL;
    Py_XDECREF(bases);
    if (AckCoreType && PyModule_AddType(module, AckCoreType)) Py_CLEAR(AckCoreType);
    return CoroutineType && SendCoreType && AckCoreType ? 0 : -1;
}
