/* The coroutine of one send or receive, without a Python frame. The reference is fast_methods.py.
 *
 * Nothing happens before it is awaited, so a task that is cancelled before its first step has done nothing. When
 * awaited, it does its work at once if it can; otherwise it continues as the Python coroutine that `_send_slowly` or
 * `_receive_slowly` returns. asyncio, uvloop, trio and anyio accept it as a coroutine: it has send, throw, close and
 * __await__. */
#include "coroutine.h"

enum state { NEW, RUNNING, DONE };

typedef struct {
    PyObject_HEAD
    Core *core;
    PyObject *item;  /* for a send, the item until it is sent; for a receive, the future that it awaits, if any */
    PyObject *inner; /* what this coroutine awaits: the slow coroutine or, once before it, that future */
    char state;
    char sends;
    char stopped; /* the result is in spare_stop */
    char tracked; /* by the garbage collector: only a coroutine that waits can be part of a cycle */
} Coroutine;

static PyObject *no_arguments;
static PyTypeObject *CoroutineType;
static PyObject *send_slowly, *receive_slowly, *begin_wait, *end_wait; /* names of methods */

#define MOST_FREE 32
static Coroutine *free_list[MOST_FREE];
static int free_count;

PyObject *coroutine_new(Core *core, PyObject *item) {
    Coroutine *self;
    if (free_count) {
        self = free_list[--free_count]; /* it is still initialized, and still has the reference to its type */
        Py_SET_REFCNT((PyObject *)self, 1);
    } else if (!(self = PyObject_GC_New(Coroutine, CoroutineType)))
        return NULL;
    self->core = (Core *)Py_NewRef((PyObject *)core);
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

/* From here on the coroutine may be part of a cycle. */
static void track(Coroutine *self) {
    if (!self->tracked) PyObject_GC_Track(self);
    self->tracked = 1;
}

/* Continue as the Python coroutine, which can wait. */
static int start_slow_path(Coroutine *self) {
    PyObject *core = (PyObject *)self->core;
    self->inner = self->sends ? PyObject_CallMethodOneArg(core, send_slowly, self->item)
                              : PyObject_CallMethodNoArgs(core, receive_slowly);
    if (!self->inner) return -1;
    Py_CLEAR(self->item);
    track(self);
    return 0;
}

/* --- Awaiting a future once, for a message that is likely to arrive: as a Python coroutine does, in a third of the
 * time --- */

static int sleeps(const Coroutine *self) { return !self->sends && self->item; }

/* The wait ended without a wakeup, so the future needs none any more. An exception that is set stays set. */
static void cancel_sleep(Coroutine *self) {
    PyObject *type, *error, *traceback, *future = self->item;
    self->item = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallMethodOneArg((PyObject *)self->core, end_wait, future);
    if (!done) PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(done);
    Py_DECREF(future);
    PyErr_Restore(type, error, traceback);
}

/* Await an asyncio future, if one is available; else inner stays NULL, and the slow coroutine waits. */
static int begin_sleep(Coroutine *self) {
    if (self->sends || !self->core->target || slice_over()) return 0;
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
    cancel_sleep(self);
    return -1;
}

/* Do the work now; NULL without an exception: take the slow path. Python code that runs in here may detach or close
 * us. */
static PyObject *step(Coroutine *self) {
    if (!self->core->target) return NULL;
    PyObject *target = Py_NewRef(self->core->target), *item = Py_XNewRef(self->item);
    PyObject *result = self->sends ? send_path_step(target, item) : reader_step(target);
    Py_DECREF(target);
    Py_XDECREF(item);
    return result;
}

/* Resume the wait. After a wakeup, take the message; if another receiver has taken it, the slow coroutine waits for the
 * next one. */
static PySendResult resume(Coroutine *self, PyObject *value, PyObject **result) {
    PyObject *inner = Py_NewRef(self->inner);
    PySendResult sent = PyIter_Send(inner, value, result);
    Py_DECREF(inner);
    if (!sleeps(self) || sent == PYGEN_NEXT) return sent;
    if (sent == PYGEN_ERROR) {
        cancel_sleep(self);
        return sent;
    }
    Py_CLEAR(*result);
    Py_CLEAR(self->item);
    Py_CLEAR(self->inner);
    slice_start();
    *result = step(self);
    if (*result) return PYGEN_RETURN;
    if (PyErr_Occurred() || start_slow_path(self)) return PYGEN_ERROR;
    return resume(self, Py_None, result);
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
        if (begin_sleep(self) || (!self->inner && start_slow_path(self))) {
            finish(self);
            return PYGEN_ERROR;
        }
    }
    if (!self->inner) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return PYGEN_ERROR;
    }
    PySendResult sent = resume(self, value, result);
    if (sent != PYGEN_NEXT) finish(self);
    return sent;
}

/* The result of `send`, `throw` and `next`: a yielded value, or StopIteration with the result. */
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

/* From 3.12 on the interpreter awaits through tp_iternext, so returning a result has to be cheap. NULL without an
 * exception means StopIteration(None). Any other result needs the exception, and one instance is reused: the awaiting
 * code takes the result out of it, then drops it, and then drops this coroutine, which is when the result is removed
 * from the instance. */
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
        Py_CLEAR(spare_stop); /* other code has caught it and still has a reference */
}

static PyObject *py_next(PyObject *op) {
    PyObject *result;
    PySendResult sent = coroutine_send(op, Py_None, &result);
    if (sent != PYGEN_RETURN) return result;
    if (result != Py_None) return stop_with((Coroutine *)op, result);
    Py_DECREF(result);
    return NULL;
}

static PyObject *raise_thrown(PyObject *type, PyObject *value, PyObject *traceback) {
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
        return raise_thrown(args[0], count > 1 ? args[1] : NULL, count > 2 ? args[2] : NULL);
    }
    PyObject *inner = Py_NewRef(self->inner);
    PyObject *throw = PyObject_GetAttrString(inner, "throw");
    PyObject *result = throw ? PyObject_Vectorcall(throw, args, (size_t)count, NULL) : NULL;
    Py_XDECREF(throw);
    Py_DECREF(inner);
    if (!result) {
        if (sleeps(self)) cancel_sleep(self);
        finish(self);
    }
    return result;
}

static PyObject *py_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    Coroutine *self = (Coroutine *)op;
    PyObject *done = self->inner ? PyObject_CallMethod(self->inner, "close", NULL) : Py_NewRef(Py_None);
    if (done) {
        if (sleeps(self)) cancel_sleep(self);
        finish(self);
    }
    return done;
}

/* Warn about a forgotten `await`. */
static void coroutine_finalize(PyObject *op) {
    Coroutine *self = (Coroutine *)op;
    if (sleeps(self)) {
        cancel_sleep(self);
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
    if (was_simple && free_count < MOST_FREE) { /* never finalized: an object is finalized only once in its life */
        free_list[free_count++] = self;
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

static PyMethodDef coroutine_methods[] = {
    {"send", py_send, METH_O, "send($self, value, /)\n--\n\nResume; StopIteration carries the result."},
    {"throw", FAST(py_throw), METH_FASTCALL, "Raise an exception where the coroutine waits."},
    {"close", py_close, METH_NOARGS, "close($self, /)\n--\n\nClose the coroutine."},
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

int coroutine_init(void) {
    no_arguments = PyTuple_New(0);
    send_slowly = PyUnicode_InternFromString("_send_slowly");
    receive_slowly = PyUnicode_InternFromString("_receive_slowly");
    begin_wait = PyUnicode_InternFromString("_begin_wait");
    end_wait = PyUnicode_InternFromString("_end_wait");
    if (!no_arguments || !send_slowly || !receive_slowly || !begin_wait || !end_wait) return -1;
    CoroutineType = (PyTypeObject *)PyType_FromSpec(&coroutine_spec);
    return CoroutineType ? 0 : -1;
}
