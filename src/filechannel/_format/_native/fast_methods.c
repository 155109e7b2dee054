/* The bases of Sender and Receiver: `send`, `receive` and `ack`, and the variants that block a thread. The reference is
 * fast_methods.py.
 *
 * `send` and `receive` return a coroutine, as an `async def` would: see coroutine.c. The others do their work at once
 * if they can; otherwise they call the slow method, which can wait or raises the error. */
#include "coroutine.h"

#define LONGEST_SLEEP 1.0 /* seconds: the process that should wake us may have died before that */
#define LONGEST 1e9       /* seconds: the longest timeout */

static PyTypeObject *SendCoreType, *ReceiveCoreType, *AckCoreType;
static PyObject *send_nowait_slowly, *receive_nowait_slowly, *send_here_slowly, *receive_here_slowly; /* names of methods */
static PyObject *ack_slowly, *drained;

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
    return item ? coroutine_new((Core *)op, item) : NULL;
}

static PyObject *py_receive(PyObject *op, PyObject *Py_UNUSED(none)) { return coroutine_new((Core *)op, NULL); }

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

/* --- The same for a thread, which blocks --------------------------------------------------------------------- */

enum { ITEM, TIMEOUT, WHERE };

/* Sort the arguments (item, timeout=None), or those from `first` on, by position or by name, into `given`. */
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

/* Whether it is certainly a valid timeout; anything else takes the slow path, which raises the error. */
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
    if (PyErr_Occurred() && PyErr_ExceptionMatches(busy)) PyErr_Clear(); /* the thread runs an event loop: blocking it is the caller's decision */
    return PyErr_Occurred() ? NULL : PyObject_CallMethodObjArgs(op, send_here_slowly, given[ITEM], given[TIMEOUT], NULL);
}

/* Sleep once for a message and take it; NULL without an exception: take the slow path, with the rest of the timeout. */
static PyObject *sleep_and_receive(PyObject *op, PyObject *target, PyObject **timeout) {
    double seconds = LONGEST_SLEEP;
    uint64_t start = 0;
    if (*timeout != Py_None) {
        if (!PyFloat_CheckExact(*timeout) && !PyLong_CheckExact(*timeout)) return NULL;
        seconds = PyFloat_AsDouble(*timeout);
        if (seconds == -1.0 && PyErr_Occurred()) PyErr_Clear();
        if (!(seconds > 0)) return NULL; /* nothing to sleep for, or an invalid value, which the slow path reports */
        start = monotonic_ns();
    }
    int waited = reader_wait(target, seconds < LONGEST_SLEEP ? seconds : LONGEST_SLEEP);
    if (waited <= 0) return NULL;
    PyObject *item = ((Core *)op)->target == target ? reader_now(target) : NULL;
    if (item || PyErr_Occurred() || !start) return item;
    double left = seconds - (double)(monotonic_ns() - start) / 1e9;
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

/* How many to acknowledge; 0 for an invalid value, which the slow path reports. */
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
        if (!reader_must_wake(target)) Py_RETURN_NONE;
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

/* Receiver overrides these with methods that can wait; other classes wait in their slow coroutine. */
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
    {"_detach", py_detach, METH_NOARGS, "_detach($self, /)\n--\n\nTake the slow path from now on, which raises the error."}
static PyMethodDef send_methods[] = {
    {"send", FAST(py_send_item), METH_FASTCALL | METH_KEYWORDS, "send($self, item)\n--\n\nSend one item; a coroutine."},
    {"send_nowait", FAST(py_send_nowait), METH_FASTCALL | METH_KEYWORDS,
     "send_nowait($self, item)\n--\n\nSend one item and return its offset."},
    {"_attach", py_attach_path, METH_O, "_attach($self, path, /)\n--\n\nSend along this path."},
    {"_send_here", FAST(py_send_here), METH_FASTCALL | METH_KEYWORDS,
     "_send_here($self, item, timeout=None)\n--\n\nSend one item; block the thread if necessary."},
    DETACH,
    {NULL, NULL, 0, NULL},
};
static PyMethodDef receive_methods[] = {
    {"receive", py_receive, METH_NOARGS, "receive($self, /)\n--\n\nReceive one item; a coroutine."},
    {"receive_nowait", py_receive_nowait, METH_NOARGS, "receive_nowait($self, /)\n--\n\n"
     "Receive one item that is available now."},
    {"_attach", py_attach_reader, METH_O, "_attach($self, reader, /)\n--\n\nReceive from this reader."},
    {"_receive_here", FAST(py_receive_here), METH_FASTCALL | METH_KEYWORDS,
     "_receive_here($self, timeout=None)\n--\n\nReceive one item; block the thread if necessary."},
    {"_begin_wait", py_begin_wait, METH_NOARGS,
     "_begin_wait($self, /)\n--\n\n"
     "Return an asyncio future that is done when there may be an item to take, or None if it cannot provide one. "
     "The C core awaits it once before it falls back to `_receive_slowly`, which does the same in Python."},
    {"_end_wait", py_end_wait, METH_O, "_end_wait($self, future, /)\n--\n\n"
     "Forget a future that is no longer awaited."},
    DETACH,
    {NULL, NULL, 0, NULL},
};
static PyMethodDef ack_methods[] = {
    {"ack", FAST(py_ack), METH_FASTCALL | METH_KEYWORDS, "ack($self, n=1)\n--\n\n"
     "Acknowledge the oldest outstanding deliveries: acknowledge *n* of them."},
    {NULL, NULL, 0, NULL},
};
/* No tp_new: object's own gives subclasses the attribute layout in which the interpreter finds methods fastest. */
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
static PyType_Slot send_slots[] = CORE_SLOTS("SendCore()\n--\n\nThe base of a sender: a fast `send`.", send_methods);
static PyType_Slot receive_slots[] = CORE_SLOTS("ReceiveCore()\n--\n\nThe base of a receiver: a fast `receive`.", receive_methods);
static PyType_Slot ack_slots[] = CORE_SLOTS("AckCore()\n--\n\n"
     "The base of a receiver that acknowledges: a fast `ack` as well.", ack_methods);
static PyType_Spec send_spec = CORE_SPEC("SendCore", send_slots);
static PyType_Spec receive_spec = CORE_SPEC("ReceiveCore", receive_slots);
static PyType_Spec ack_spec = CORE_SPEC("AckCore", ack_slots);

/* The interpreter calls a method directly only if it belongs to the exact type of the object. */
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
    {"own_send", own_send, METH_O, "own_send(cls, /)\n--\n\n"
     "Give a subclass of SendCore its own copies of the public methods, which are faster to call."},
    {"own_receive", own_receive, METH_O,
     "own_receive(cls, /)\n--\n\n"
     "Give a subclass of ReceiveCore its own copies of the public methods, which are faster to call."},
    {NULL, NULL, 0, NULL},
};

int add_cores(PyObject *module) {
    send_nowait_slowly = PyUnicode_InternFromString("_send_nowait_slowly");
    receive_nowait_slowly = PyUnicode_InternFromString("_receive_nowait_slowly");
    send_here_slowly = PyUnicode_InternFromString("_send_here_slowly");
    receive_here_slowly = PyUnicode_InternFromString("_receive_here_slowly");
    ack_slowly = PyUnicode_InternFromString("_ack_slowly");
    drained = PyUnicode_InternFromString("_drained");
    if (!send_nowait_slowly || !receive_nowait_slowly || !send_here_slowly || !receive_here_slowly) return -1;
    if (!ack_slowly || !drained || coroutine_init() || PyModule_AddFunctions(module, functions)) return -1;
    SendCoreType = add_type(module, &send_spec);
    ReceiveCoreType = add_type(module, &receive_spec);
    PyObject *bases = ReceiveCoreType ? PyTuple_Pack(1, ReceiveCoreType) : NULL;
    AckCoreType = bases ? (PyTypeObject *)PyType_FromSpecWithBases(&ack_spec, bases) : NULL;
    Py_XDECREF(bases);
    if (AckCoreType && PyModule_AddType(module, AckCoreType)) Py_CLEAR(AckCoreType);
    return SendCoreType && AckCoreType ? 0 : -1;
}
