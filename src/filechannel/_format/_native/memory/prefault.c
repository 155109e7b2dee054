/* Pages that are populated before they are written, and maps that keep no descriptor. The first touch of a page costs
 * more than a small message.
 *
 * `populate_soon` leaves the work to a native thread, which never touches Python: a Python thread would have to take
 * the GIL from the very thread that it works for. A job keeps its buffer, and with it the map; the next call, or
 * `populate_wait`, releases it. */
#include "core.h"
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older kernels return EINVAL */
#endif
#ifndef EHWPOISON
#define EHWPOISON 133
#endif
#define PAGE 4096u

typedef struct Job {
    struct Job *next;
    Py_buffer view;
    void *first;
    size_t size;
} Job;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Job *waiting, *finished; /* waiting: oldest first */
static int running, working;    /* whether there is a thread; whether it works on a job */

static void *work(void *Py_UNUSED(unused)) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!waiting) pthread_cond_wait(&changed, &mutex);
        Job *job = waiting;
        waiting = job->next;
        working = 1;
        pthread_mutex_unlock(&mutex);
        (void)madvise(job->first, job->size, MADV_POPULATE_WRITE);
        pthread_mutex_lock(&mutex);
        working = 0;
        job->next = finished;
        finished = job;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

/* The caller has the mutex. Signals are for Python's threads. */
static int start_thread(void) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(thread);
    return running = !failed;
}

/* A forked child has the variables, but not the thread; the waiting jobs belong to the parent. */
static void start_over(void) {
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&changed, NULL);
    waiting = finished = NULL;
    running = working = 0;
}

static void free_jobs(Job *jobs) {
    while (jobs) {
        Job *job = jobs;
        jobs = job->next;
        PyBuffer_Release(&job->view);
        PyMem_RawFree(job);
    }
}

/* The bytes of a buffer as whole pages of a view. */
static int pages_of(PyObject *buffer, uint64_t position, uint64_t length, Py_buffer *view, void **first, size_t *size) {
    if (PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)) return -1;
    if (position > (uint64_t)view->len || length > (uint64_t)view->len - position) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_ValueError, "range is not inside the buffer");
        return -1;
    }
    uintptr_t start = (uintptr_t)view->buf + position, page = start & ~(uintptr_t)(PAGE - 1);
    *first = (void *)page;
    *size = length ? (size_t)(start + length - page) : 0;
    return 0;
}

static PyObject *py_populate(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, length;
    Py_buffer view;
    void *first;
    size_t size;
    if (check_count("populate", count, 3) || unsigned_from(args[1], UINT64_MAX, &position) ||
        unsigned_from(args[2], UINT64_MAX, &length) || pages_of(args[0], position, length, &view, &first, &size))
        return NULL;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = size && madvise(first, size, MADV_POPULATE_WRITE);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyBool_FromLong(!failed);
}

/* A store to a page that the kernel cannot make writable kills the process: the file system has shut down, or the file
 * was truncated. MADV_POPULATE_WRITE does first what the store would do, and reports the error. Other errors mean that
 * the kernel cannot check. */
int can_store(const void *at, size_t size) {
    uintptr_t start = (uintptr_t)at, page = start & ~(uintptr_t)(PAGE - 1);
    return !size || !madvise((void *)page, start + size - page, MADV_POPULATE_WRITE) || (errno != EFAULT && errno != EHWPOISON);
}

/* The page of these words becomes read-only when any process flushes the control file, or when the kernel writes it
 * back by itself. So a check is valid until the next flush, and for one second because of the kernel. */
int can_store_word(const uint8_t *at, const uint8_t *flushes, StoreCheck *last) {
    uint32_t seen = load_acquire_u32(flushes); /* before the check: a flush that ends meanwhile is noticed the next time */
    uint64_t now = wall_clock_ns();
    int is_new = (seen ^ last->flushes) >= CONTROL_FLUSHES_STEP || (seen & FLUSHING_CONTROL);
    if (!is_new && store_check_is_valid(last, now)) return 1;
    if (!can_store(at, 4)) return 0;
    *last = (StoreCheck){seen, now + CHECK_VALID_NS};
    return 1;
}

static PyObject *py_can_store(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, length;
    Py_buffer view;
    void *first;
    size_t size;
    if (check_count("can_store", count, 3) || unsigned_from(args[1], UINT64_MAX, &position) ||
        unsigned_from(args[2], UINT64_MAX, &length) || pages_of(args[0], position, length, &view, &first, &size))
        return NULL;
    int can = can_store(first, size); /* with the GIL, as the store itself: releasing and taking it again would cost far more */
    PyBuffer_Release(&view);
    return PyBool_FromLong(can);
}

int populate_later(PyObject *buffer, uint64_t position, uint64_t size) {
    Job *job = PyMem_RawCalloc(1, sizeof *job);
    if (!job) return PyErr_NoMemory(), -1;
    if (pages_of(buffer, position, size, &job->view, &job->first, &job->size)) {
        PyMem_RawFree(job);
        return -1;
    }
    pthread_mutex_lock(&mutex); /* only ever held for a few instructions */
    Job *done = finished, **last = &waiting;
    finished = NULL;
    if (running || start_thread()) {
        while (*last) last = &(*last)->next;
        *last = job;
        pthread_cond_broadcast(&changed);
    } else {
        job->next = done;
        done = job;
    }
    pthread_mutex_unlock(&mutex);
    free_jobs(done);
    return 0;
}

static PyObject *py_populate_soon(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t position, size;
    if (check_count("populate_soon", count, 3) || unsigned_from(args[1], UINT64_MAX, &position) ||
        unsigned_from(args[2], UINT64_MAX, &size) || populate_later(args[0], position, size))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *py_populate_wait(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    Job *done;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&mutex);
    while (waiting || working) pthread_cond_wait(&changed, &mutex);
    done = finished;
    finished = NULL;
    pthread_mutex_unlock(&mutex);
    Py_END_ALLOW_THREADS
    free_jobs(done);
    Py_RETURN_NONE;
}

/* Only Python's mmap objects: the memory of any other object must not be replaced. */
static int check_is_map(PyObject *object) {
    PyObject *module = PyImport_ImportModule("mmap"), *type = module ? PyObject_GetAttrString(module, "mmap") : NULL;
    int is_map = type ? PyObject_IsInstance(object, type) : -1;
    Py_XDECREF(module);
    Py_XDECREF(type);
    if (!is_map) PyErr_Format(PyExc_TypeError, "a map is needed, not %.100s", Py_TYPE(object)->tp_name);
    return is_map > 0 ? 0 : -1;
}

static PyObject *py_show_file(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t descriptor;
    Py_buffer view;
    if (check_count("show_file", count, 2) || check_is_map(args[0]) || unsigned_from(args[1], UINT64_MAX, &descriptor) ||
        PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE))
        return NULL;
    int access = view.readonly ? PROT_READ : PROT_READ | PROT_WRITE;
    struct stat file; /* no page may lie beyond its end */
    int shown = descriptor <= INT_MAX && !fstat((int)descriptor, &file) && file.st_size >= view.len &&
                mmap(view.buf, (size_t)view.len, access, MAP_SHARED | MAP_FIXED, (int)descriptor, 0) != MAP_FAILED;
    PyBuffer_Release(&view);
    return PyBool_FromLong(shown);
}

static PyMethodDef functions[] = {
    {"show_file", FAST(py_show_file), METH_FASTCALL,
     "show_file(pages, descriptor, /)\n--\n\n"
     "Let a map without a file show this one, without keeping its descriptor; return whether that is possible."},
    {"populate", FAST(py_populate), METH_FASTCALL,
     "populate(buffer, position, size, /)\n--\n\n"
     "Make the pages of a map present and writable; return whether the system can. Their content stays as it is."},
    {"can_store", FAST(py_can_store), METH_FASTCALL,
     "can_store(buffer, position, size, /)\n--\n\n"
     "Make the pages of a map writable, and return False if a store to them would kill the process with SIGBUS."},
    {"populate_soon", FAST(py_populate_soon), METH_FASTCALL,
     "populate_soon(buffer, position, size, /)\n--\n\n"
     "Populate pages in the background, if possible; the buffer is kept until `populate_wait` or the next call."},
    {"populate_wait", py_populate_wait, METH_NOARGS,
     "populate_wait()\n--\n\nWait until nothing is left to populate, and release the buffers."},
    {NULL, NULL, 0, NULL},
};

int add_memory(PyObject *module) {
    pthread_atfork(NULL, NULL, start_over);
    return PyModule_AddFunctions(module, functions);
}
