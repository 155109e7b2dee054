"""Every call to the operating system, behind one door.

Tests put a subclass of `Files` there and make any of these calls fail, tear or vanish.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import shutil
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

from .._errors import DiskFullError
from .._format import show_file
from .._format.layout import PAGE

_FLOCK = struct.Struct("hhqqi")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
REPLACING = ".new"
"""What the name of a file ends with that is to replace another."""
_FIFO_SIZE = 65536
_IN_MEMORY = ("tmpfs", "ramfs")
_LARGEST_FOLIO = 2 << 20


@final
class _needing_room:  # noqa: N801 - it is used like a function
    """Says in our own words that the disk is full; where is a path or a descriptor."""

    __slots__ = ("_size", "_where")

    def __init__(self, where: Path | int, size: int) -> None:
        self._where = where
        self._size = size

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            where = self._where if isinstance(self._where, Path) else _path_of(self._where)
            raise DiskFullError(where, self._size) from error


def directory_mode(mode: int) -> int:
    """Return the permission bits of a directory whose files have these: who may read files may look into it."""
    return mode | (mode & 0o444) >> 2


class Files:
    """The real file system. Whatever needs room raises `DiskFullError` if there is none, else `OSError`."""

    def exists(self, path: Path) -> bool:
        """Tell whether there is anything at the path."""
        return path.exists()

    def is_file(self, path: Path) -> bool:
        """Tell whether there is an ordinary file at the path."""
        return path.is_file()

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path, mode: int) -> None:
        """Create a directory and its parents unless it is there; the mode is for the last one.

        The names that are new are on disk when this returns: a file that is flushed inside can be found again.
        """
        missing = [directory for directory in (path, *path.parents) if not self.exists(directory)]
        for directory in reversed(missing):
            with _needing_room(directory, 0), suppress(FileExistsError):
                directory.mkdir(mode=mode if directory == path else 0o777)
                if directory == path:
                    # What makes files inside belong to the group of the parent stays as it was inherited.
                    directory.chmod(mode | directory.stat().st_mode & stat.S_ISGID)
            self.flush_directory(directory.parent)

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Return a descriptor; with create, the file is made if it is not there."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        with _needing_room(path, 0):
            while True:
                try:
                    return os.open(path, flags)
                except FileNotFoundError:
                    if not create:
                        raise
                with suppress(FileExistsError):  # made by somebody else in this moment
                    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
                    os.fchmod(descriptor, mode)  # whatever the umask is: the channel says who may use it
                    return descriptor

    def set_mode(self, descriptor: int, mode: int) -> None:
        """Let those use an open file whom the mode says, unless it says so already."""
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)

    def make(self, path: Path, size: int, content: bytes, position: int, mode: int) -> None:
        """Make a file of a size, with something in it, unless there is one: it has its name when it is whole.

        Where there are no files without names, whoever is killed in here may leave one of a name that means nothing.
        """
        descriptor, other = self._open_unnamed(path, mode)
        with _needing_room(path, size), suppress(FileExistsError):
            try:
                os.fchmod(descriptor, mode)  # whatever the umask is: the channel says who may use it
                os.posix_fallocate(descriptor, 0, size)
                os.pwrite(descriptor, content, position)
                if other is not None:
                    os.link(other, path)
                else:
                    # With a directory, which an absolute path does not need: else Python links what lies in /proc.
                    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
            finally:
                os.close(descriptor)
                if other is not None:
                    self.unlink(other)

    @staticmethod
    def _open_unnamed(path: Path, mode: int) -> tuple[int, Path | None]:
        """Return a descriptor of a new file, which is to get a name, and the one it has till then, if it needs one."""
        with _needing_room(path, 0):
            try:
                return os.open(path.parent, os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE, mode), None
            except OSError as error:
                if error.errno not in _NO_UNNAMED:
                    raise
            other = path.with_name(f"{path.name}.{secrets.token_hex(8)}{REPLACING}")
            return os.open(other, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, mode), other

    def make_fifo(self, path: Path, mode: int) -> None:
        """Make a FIFO unless there is one."""
        with suppress(FileExistsError), _needing_room(path, 0):
            os.mkfifo(path, mode)
            path.chmod(mode)

    def open_fifo(self, path: Path) -> int:
        """Return a descriptor of a FIFO, which is there: for both directions, so that neither waits for the other."""
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a FIFO", str(path))
        return descriptor

    def write_fifo(self, descriptor: int) -> None:
        """Put one byte into a FIFO; `BlockingIOError` if it is full."""
        os.write(descriptor, b"!")

    def read_fifo(self, descriptor: int) -> None:
        """Take every byte out of a FIFO."""
        try:
            while len(os.read(descriptor, _FIFO_SIZE)) == _FIFO_SIZE:
                pass
        except BlockingIOError:
            pass

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""
        return os.fstat(descriptor).st_size

    def data_end(self, descriptor: int) -> int:
        """Return the position behind which a file has only a hole, or nothing."""
        end = 0
        try:
            while True:
                end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else self.size(descriptor)

    def disk_space(self, path: Path) -> int:
        """Return the disk space a file takes; none if it is gone."""
        try:
            return os.stat(path).st_blocks * 512
        except FileNotFoundError:
            return 0

    def total_space(self, path: Path) -> int:
        """Return the size of the file system that holds a path."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return (device, inode) of an open file."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def inode(self, descriptor: int) -> tuple[int, int]:
        """Return the same, to tell files apart that are open now."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def links(self, descriptor: int) -> int:
        """Return how many names an open file has."""
        return os.fstat(descriptor).st_nlink

    def identity_of(self, path: Path) -> tuple[int, int] | None:
        """Return (device, inode) of a file; None if there is none."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def leads_to(self, path: Path, descriptor: int) -> bool:
        """Tell whether a path is the name of an open file."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(descriptor))
        except OSError:
            return False

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return path.read_bytes()

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        """Return up to size bytes from a position."""
        return os.pread(descriptor, size, position)

    def read_into(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Fill a buffer from a position, and return how many bytes there were."""
        return os.preadv(descriptor, [buffer], position)

    def write_at(self, descriptor: int, data: bytes, position: int) -> None:
        """Write all of data at a position."""
        done = 0
        with _needing_room(descriptor, len(data)):
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], position + done)

    def grow(self, descriptor: int, size: int) -> None:
        """Make a file at least this long, with a hole behind what it has. Never shortens: it may be mapped."""
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)

    def cut(self, descriptor: int, size: int) -> None:
        """Give the disk space behind a position back. Nobody has that part mapped."""
        os.ftruncate(descriptor, size)

    def allocation_unit(self, directory: Path) -> int:
        """Return of what disk space has to be a multiple, so that stores through a map cannot fail.

        On a disk the kernel keeps a file in folios, of up to two megabytes, and to store one byte it needs the blocks
        of a whole folio, as far as the file goes. Where one is missing and the disk is full, the process is killed.
        In memory, pages are what is reserved.
        """
        return PAGE if self.file_system(directory) in _IN_MEMORY else _LARGEST_FOLIO

    def allocate(self, path: Path, descriptor: int, position: int, size: int) -> None:
        """Reserve disk space; see `allocation_unit` for what a map needs."""
        with _needing_room(path, size):
            os.posix_fallocate(descriptor, position, size)

    def map(self, descriptor: int, size: int, *, writable: bool = True, private: bool = False) -> mmap.mmap:
        """Map the first size bytes of a file, shared unless private."""
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        if sys.version_info >= (3, 13):
            return mmap.mmap(descriptor, size, access=access, trackfd=False)
        # Otherwise it keeps a descriptor of its own for as long as anybody refers to it, closed channel or not.
        if not private and size:
            with suppress(OSError):
                map_ = mmap.mmap(-1, size, access=access)
                if show_file(map_, descriptor):
                    return map_
                map_.close()
        return mmap.mmap(descriptor, size, access=access)

    def forget_pages(self, map_: mmap.mmap) -> None:
        """Take the pages of a shared map out of this process's memory; the kernel keeps what it wants to."""
        with suppress(OSError, AttributeError):  # only memory is at stake, and not every system can
            map_.madvise(mmap.MADV_DONTNEED)

    def flush(self, descriptor: int) -> None:
        """Wait until the data of a file is on disk."""
        os.fdatasync(descriptor)

    def flush_directory(self, directory: Path) -> None:
        """Wait until the names in a directory are on disk."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def flush_names(self, descriptor: int) -> None:
        """Wait until the names in an open directory are on disk."""
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, over what may be there."""
        with _needing_room(target, 0):
            os.replace(source, target)

    @property
    def watch_going_on(self) -> Callable[[str], object] | None:
        """Called with each step of `Writer.go_on`, which does not come through this door; None but for tests."""
        return None

    def link(self, source: Path, target: Path) -> None:
        """Give a file another name, which is free."""
        with _needing_room(target, 0):
            target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        """Remove a name unless it is gone already."""
        path.unlink(missing_ok=True)

    def remove_tree(self, directory: Path) -> None:
        """Remove a directory and all that is in it, as far as that is possible."""
        shutil.rmtree(directory, ignore_errors=True)

    def remove_if_empty(self, directory: Path) -> None:
        """Remove a directory unless it is in use or gone."""
        with suppress(OSError):
            directory.rmdir()

    def write_atomically(self, path: Path, data: bytes, mode: int) -> None:
        """Replace a whole file: whoever reads it, even after a power cut, sees the old or the new content.

        If it fails, the room that it took is free again.
        """
        temporary = path.with_name(path.name + REPLACING)
        self.unlink(temporary)
        descriptor = self.open(temporary, create=True, mode=mode)
        try:
            try:
                self.write_at(descriptor, data, 0)
                self.flush(descriptor)
            finally:
                self.close(descriptor)
            self.replace(temporary, path)
        except BaseException:
            self.unlink(temporary)
            raise
        self.flush_directory(path.parent)

    def lock(self, descriptor: int, position: int, *, shared: bool = False) -> bool:
        """Lock one byte until it is unlocked or the process dies, however it dies; tell whether that succeeded."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, position, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock(self, descriptor: int, position: int, size: int = 1) -> None:
        """Release bytes."""
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, position, size, 0))

    def locked_range(self, descriptor: int, position: int, size: int) -> tuple[int, int] | None:
        """Return (position, size) of any lock in a range that was taken through another descriptor."""
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, position, size, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question))
        return None if kind == fcntl.F_UNLCK else (start, length)

    def file_system(self, path: Path) -> str:
        """Return the type of the file system that holds an existing path, such as "ext4"; "" if unknown."""
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        for mount in mounts:
            fields, _, rest = mount.partition(" - ")
            if fields.split(" ", 3)[2] == wanted:
                return rest.split(" ", 1)[0]
        return ""


def _path_of(descriptor: int) -> Path:
    """Return what a descriptor was opened as, for an error message."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return Path(f"descriptor {descriptor}")
