/* What only `statx` reports: the unique id of the mount that a file was opened through, which no later mount of the
 * same device has; and the link count of a file, or the inode of a name, without timestamps. From Linux 6.13 on, a file
 * whose timestamps were queried gets an exact new timestamp with the next write. That changes the inode, so the next
 * flush has one more block to write.
 *
 * It uses the bare system call, with the numbers of the kernel's ABI: the C library may be older than the kernel. */
#define _GNU_SOURCE
#include "core.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif
#define MNT_ID_UNIQUE 0x4000u /* STATX_MNT_ID_UNIQUE, Linux 6.8 */
#define NLINK 0x4u            /* STATX_NLINK */
#define INODE 0x100u          /* STATX_INO */
#define STATUS_SIZE 256
#define MNT_ID_POSITION 0x90 /* position of stx_mnt_id; the mask of the fields found comes first */
#define NLINK_POSITION 0x10  /* of stx_nlink */
#define INODE_POSITION 0x20  /* of stx_ino */
#define DEVICE_POSITION 0x88 /* of stx_dev_major, which stx_dev_minor follows */

/* Returns whether the field was found; then `status` is filled. */
static int ask(uint64_t descriptor, const char *name, int flags, uint32_t field, uint8_t status[STATUS_SIZE]) {
    uint32_t found = 0;
#ifdef SYS_statx
    if (!syscall(SYS_statx, (int)descriptor, name, flags, field, status)) memcpy(&found, status, sizeof found);
#else
    (void)descriptor, (void)name, (void)flags, (void)status;
#endif
    return (found & field) != 0;
}

static PyObject *py_mount_id(PyObject *Py_UNUSED(module), PyObject *value) {
    uint64_t descriptor, mount = 0;
    uint8_t status[STATUS_SIZE] = {0};
    if (unsigned_from(value, INT32_MAX, &descriptor)) return NULL;
    if (ask(descriptor, "", AT_EMPTY_PATH, MNT_ID_UNIQUE, status)) memcpy(&mount, status + MNT_ID_POSITION, sizeof mount);
    return PyLong_FromUnsignedLongLong(mount);
}

static PyObject *py_link_count(PyObject *Py_UNUSED(module), PyObject *value) {
    uint64_t descriptor;
    uint32_t links;
    uint8_t status[STATUS_SIZE] = {0};
    struct stat everything;
    if (unsigned_from(value, INT32_MAX, &descriptor)) return NULL;
    if (ask(descriptor, "", AT_EMPTY_PATH, NLINK, status)) {
        memcpy(&links, status + NLINK_POSITION, sizeof links);
        return PyLong_FromUnsignedLong(links);
    }
    if (fstat((int)descriptor, &everything)) return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromUnsignedLongLong(everything.st_nlink);
}

static PyObject *py_named_inode(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    uint64_t directory, inode;
    uint32_t device[2];
    uint8_t status[STATUS_SIZE] = {0};
    struct stat everything;
    char *name;
    if (check_count("named_inode", count, 2) || unsigned_from(args[0], INT32_MAX, &directory) ||
        PyBytes_AsStringAndSize(args[1], &name, NULL))
        return NULL;
    if (ask(directory, name, AT_SYMLINK_NOFOLLOW, INODE, status)) {
        memcpy(&inode, status + INODE_POSITION, sizeof inode);
        memcpy(device, status + DEVICE_POSITION, sizeof device);
        return Py_BuildValue("KK", (unsigned long long)makedev(device[0], device[1]), (unsigned long long)inode);
    }
    if (fstatat((int)directory, name, &everything, AT_SYMLINK_NOFOLLOW))
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, args[1]);
    return Py_BuildValue("KK", (unsigned long long)everything.st_dev, (unsigned long long)everything.st_ino);
}

static PyMethodDef functions[] = {
    {"mount_id", py_mount_id, METH_O,
     "mount_id(descriptor, /)\n--\n\nReturn the unique id of the mount that a file was opened through; 0 if it is unknown."},
    {"link_count", py_link_count, METH_O,
     "link_count(descriptor, /)\n--\n\nReturn how many names an open file has, without querying its timestamps."},
    {"named_inode", (PyCFunction)(void (*)(void))py_named_inode, METH_FASTCALL,
     "named_inode(directory, name, /)\n--\n\n"
     "Return device and inode number of the file that has a name in an open directory, without querying "
     "timestamps. For a symbolic link, those of the link itself. `OSError` if there is no such file."},
    {NULL, NULL, 0, NULL},
};

int add_mount(PyObject *module) { return PyModule_AddFunctions(module, functions); }
