"""All operating system calls, behind one interface, which tests replace to make any call fail or tear.

`confined_paths` says which links are followed: none inside a channel.

Files are opened without following a link and without waiting for the other end of a FIFO, and must be regular. A file
that is written in place must have all its names inside the channel: otherwise the write would change a file elsewhere.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import final

from ..._errors import DiskFullError, UnexpectedFileError
from ..._format import Guard, Map, ensured, link_count, mount_id, named_inode, show_file
from ..._format.layout import PAGE
from .confined_paths import DIRECTORY, KINDS, ChannelRoot, ParentDirectory, channel_of, kind_of
from .missing_blocks import missing_blocks

_FLOCK = struct.Struct("hhqqi")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
REPLACING = ".new"
"""The suffix of the temporary name of a file that is to replace another one."""
_FIFO_SIZE = 65536
_XFS_GEOMETRY = 0x8070587C  # XFS_IOC_FSGEOMETRY_V4, which every version of XFS supports, and no other file system
_XFS_CREATION_SPACE = 192 << 10
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOT_A_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)
"""The errors of opening something other than a regular file: a link, a directory, a socket, a missing device."""
QUARANTINE = "quarantine"
"""The directory of a channel in which files may be kept under another name."""
_IN_MEMORY = ("tmpfs", "ramfs")
_LARGEST_FOLIO = 2 << 20


@final
class _needing_space:  # noqa: N801 - it is used like a function
    """Raises `DiskFullError` in place of an `OSError` about disk space; *where* is a path or a descriptor."""

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
    """Return the permission bits of a directory whose files have *mode*: users who may read the files may enter it."""
    return mode | (mode & 0o444) >> 2


_MOUNTS = Path("/proc/self/mountinfo")


class Files:
    """The real file system. Calls that need disk space raise `DiskFullError` if there is none; else `OSError`.

    A file of another kind than expected raises `UnexpectedFileError`, which is an `OSError` too.
    """

    _roots: frozenset[str] = frozenset()
    _pinned: Mapping[str, ChannelRoot] = MappingProxyType({})

    def confine(self, channel: Path) -> None:
        """From now on, follow no link below the directory of a channel; links on the way to it are followed."""
        text = os.fspath(channel)
        if text not in self._roots:
            self._roots |= {text}

    def pin(self, channel: Path) -> None:
        """From now on, look up every name below the directory of a channel in the directory that is there now.

        Otherwise, if another channel replaces the directory while the channel is opened, files of both would be mixed.
        """
        text = os.fspath(channel)
        self._pinned = {**self._pinned, text: ChannelRoot(text)}

    def unpin(self, channel: Path) -> None:
        """Look names up by their paths again."""
        text = os.fspath(channel)
        self._pinned = {root: pinned for root, pinned in self._pinned.items() if root != text}

    def _parent(self, path: Path) -> ParentDirectory:
        return ParentDirectory(path, self._roots, self._pinned)

    def _status(self, path: Path) -> os.stat_result:
        with self._parent(path) as (name, directory):
            return os.stat(name, dir_fd=directory, follow_symlinks=not self._is_inside(path))

    def _is_inside(self, path: Path) -> bool:
        """Return whether a path lies below that of a channel."""
        return channel_of(os.fspath(path).rpartition("/")[0], self._roots) is not None

    def _unexpected(
        self, path: Path, found: str, wanted: str = "a regular file", *, linked: bool = False
    ) -> UnexpectedFileError:
        channel = channel_of(os.fspath(path), self._roots)
        return UnexpectedFileError(path, found, wanted, channel=channel, linked=linked)

    def exists(self, path: Path) -> bool:
        """Return whether anything exists at the path, even a dangling link."""
        try:
            self._status(path)
        except (FileNotFoundError, NotADirectoryError, UnexpectedFileError):
            return False
        return True

    def is_file(self, path: Path) -> bool:
        """Return whether there is a regular file at the path."""
        return stat.S_ISREG(self.mode_of(path))

    def other_kind(self, path: Path) -> str | None:
        """Return what kind of file is at a path, in words, unless it is a regular file or does not exist."""
        mode = self.mode_of(path)
        return None if not mode or stat.S_ISREG(mode) else KINDS[stat.S_IFMT(mode)]

    def other_directory(self, path: Path) -> str | None:
        """Return what kind of file is at a path, in words, unless it is a directory or does not exist."""
        mode = self.mode_of(path)
        return None if not mode or stat.S_ISDIR(mode) else KINDS[stat.S_IFMT(mode)]

    def mode_of(self, path: Path) -> int:
        """Return the `st_mode` of a path, which has the file type and the permissions; 0 if it does not exist."""
        try:
            return self._status(path).st_mode
        except (FileNotFoundError, NotADirectoryError, UnexpectedFileError):
            return 0

    def size_of(self, path: Path) -> int:
        """Return the size of a file; 0 if it does not exist."""
        try:
            return self._status(path).st_size
        except FileNotFoundError:
            return 0

    def changed_at(self, path: Path) -> float:
        """Return when a file or a directory was last written to (seconds since the epoch)."""
        return self._status(path).st_mtime

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; an empty list if it does not exist."""
        try:
            descriptor = self.open_directory(directory)
        except FileNotFoundError:
            return []
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)

    def open_directory(self, path: Path) -> int:
        """Return a descriptor of a directory, to list it or to flush its names."""
        flags = os.O_RDONLY | (DIRECTORY if self._is_inside(path) else os.O_DIRECTORY | os.O_CLOEXEC)
        with self._parent(path) as (name, directory):
            try:
                return os.open(name, flags, dir_fd=directory)
            except NotADirectoryError:
                found = kind_of(name, directory)
                if not self._is_inside(path) or found == "nothing":
                    raise
                raise self._unexpected(path, found, "a directory") from None

    def make_directory(self, path: Path, mode: int) -> None:
        """Create a directory and its parents unless it exists; *mode* is for the last one.

        The new names are on disk when this returns, so that a file that is flushed inside can be found again.
        """
        missing = list(takewhile(lambda each: not self.exists(each), (path, *path.parents)))
        for directory in reversed(missing):
            with _needing_space(directory, 0), suppress(FileExistsError), self._parent(directory) as (name, parent):
                os.mkdir(name, mode if directory == path else 0o777, dir_fd=parent)
                if directory == path:
                    self._set_directory_mode(name, parent, mode, self._owner_of_channel(path))
            self.flush_directory(directory.parent)

    @staticmethod
    def _set_directory_mode(name: str, parent: int | None, mode: int, owner: tuple[int, int] | None) -> None:
        """Set the permissions of a new directory, whatever the umask is, and give it to an owner.

        Unlike a file, a directory is opened after it was created, and the name may be that of another directory by
        then. So only an empty directory of this user is given away. It lies in a directory that the new owner can
        change anyway.
        """
        descriptor = os.open(name, os.O_PATH | DIRECTORY, dir_fd=parent)
        try:
            # The set-group-ID bit, which makes files inside belong to the group of the parent, stays as it was
            # inherited. The mode is not set by fchmod: the umask may keep us from opening the directory for reading.
            # The path in /proc stands for the directory itself.
            inherited = os.fstat(descriptor).st_mode & stat.S_ISGID
            os.chmod(f"/proc/self/fd/{descriptor}", mode | inherited)
            if owner is not None and os.fstat(descriptor).st_uid == os.geteuid():
                with suppress(OSError):
                    if not os.listdir(f"/proc/self/fd/{descriptor}"):
                        os.chown(f"/proc/self/fd/{descriptor}", *owner)
        finally:
            os.close(descriptor)

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Return a descriptor of a regular file; with *create*, create it if it does not exist."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | _FILE
        with _needing_space(path, 0), self._parent(path) as (name, directory):
            while True:
                try:
                    return self._checked(path, os.open(name, flags, dir_fd=directory), writable)
                except FileNotFoundError:
                    if not create:
                        raise
                except OSError as error:
                    explained = self._explained(path, name, directory, error)
                    if explained is error:
                        raise
                    raise explained from None
                with suppress(FileExistsError):  # another process has created it in this moment
                    descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
                    self._give_to_owner(path, descriptor, mode)
                    return descriptor

    def open_for_locks(self, path: Path) -> int:
        """Return a descriptor of a regular file, whatever other names it has.

        It is open for writing, because an exclusive lock needs that, but nothing may be written through it.
        """
        with self._parent(path) as (name, directory):
            return self._checked(path, os.open(name, os.O_RDWR | _FILE, dir_fd=directory), writable=False)

    def _give_to_owner(self, path: Path, descriptor: int, mode: int) -> None:
        """Set the permissions of a file that was just created, whatever the umask is, and give it to an owner.

        What root creates belongs to the owner of the channel's directory, who could not open it otherwise. The
        descriptor must be of a file that this process has created (`O_EXCL`, `O_TMPFILE`): anything else may be a link
        to a file that must not be given away.
        """
        os.fchmod(descriptor, mode)
        owner = self._owner_of_channel(path)
        if owner is not None:
            with suppress(OSError):  # that user does not exist in this user namespace or file system
                os.fchown(descriptor, *owner)

    def _owner_of_channel(self, path: Path) -> tuple[int, int] | None:
        """Return user and group of the channel's directory if this process is root and the channel is not root's."""
        if os.geteuid() or (channel := channel_of(os.fspath(path).rpartition("/")[0], self._roots)) is None:
            return None
        status = os.stat(channel)
        return (status.st_uid, status.st_gid) if status.st_uid else None

    def _explained(self, path: Path, name: str, directory: int | None, error: OSError) -> OSError:
        """Return an error that names the kind of a file that could not be opened, if it is not a regular one."""
        if error.errno in _NOT_A_FILE and (found := kind_of(name, directory)) not in ("a regular file", "nothing"):
            return self._unexpected(path, found)
        return error

    def _checked(self, path: Path, descriptor: int, writable: bool) -> int:
        """Return the descriptor if it is of a regular file that may be used so; otherwise close it and raise."""
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._unexpected(path, KINDS[stat.S_IFMT(status.st_mode)])
            if writable and (found := self._with_names_elsewhere(path, status)) is not None:
                raise self._unexpected(path, found, "one of its own", linked=True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def link_problem(self, path: Path) -> str | None:
        """Return why `open` refuses to write to a regular file because of its names; None if it does not refuse."""
        try:
            status = self._status(path)
        except (FileNotFoundError, NotADirectoryError, UnexpectedFileError):
            return None
        return self._with_names_elsewhere(path, status) if stat.S_ISREG(status.st_mode) else None

    def _with_names_elsewhere(self, path: Path, status: os.stat_result) -> str | None:
        """Describe a file that has names other than in its own directory and the quarantine; None if it has none."""
        channel = channel_of(os.fspath(path.parent), self._roots)
        if status.st_nlink <= 1 or channel is None:
            return None
        found = 0
        for directory in {path.parent, Path(channel, QUARANTINE)}:
            with suppress(UnexpectedFileError):  # the quarantine is a link, so it has no name of ours
                for name in self.list(directory):
                    with suppress(OSError):
                        found += os.path.samestat(self._status(directory / name), status)
        return (
            f"a file with {status.st_nlink} hard links, some of them outside of the channel"
            if status.st_nlink > found
            else None
        )

    def create(self, path: Path, mode: int, *, replace: bool = True) -> int:
        """Return a descriptor of a new file, which no other process has open.

        The new file replaces an existing one; without *replace*, an existing one raises `FileExistsError`.
        """
        while True:
            try:
                with _needing_space(path, 0), self._parent(path) as (name, directory):
                    descriptor = os.open(name, os.O_RDWR | _FILE | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
                    self._give_to_owner(path, descriptor, mode)
                    return descriptor
            except FileExistsError:
                if not replace:
                    raise
            self.unlink(path)

    def set_mode(self, descriptor: int, mode: int) -> None:
        """Set the permissions of an open file, unless it has them already."""
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)

    def share_like(self, descriptor: int, other: int, permissions: Callable[[int], int]) -> None:
        """Give an empty file of ours the owner and group of another file, and permission bits derived from that file's.

        As far as this process may: only root can give files away. A file of a third user is not changed. Neither is a
        file that has content or a second name, which may be anywhere: root must not be tricked into giving that away.
        """
        status, wanted, user = os.fstat(descriptor), os.fstat(other), os.geteuid()
        is_ours = status.st_uid == user or (user == 0 and status.st_uid == wanted.st_uid)
        if not is_ours or status.st_nlink != 1 or status.st_size or not stat.S_ISREG(status.st_mode):
            return
        mode = permissions(stat.S_IMODE(wanted.st_mode))
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(descriptor, mode)
        if (status.st_uid, status.st_gid) != (wanted.st_uid, wanted.st_gid):
            try:
                os.fchown(descriptor, wanted.st_uid, wanted.st_gid)
            except PermissionError:
                with suppress(PermissionError):
                    os.fchown(descriptor, -1, wanted.st_gid)

    def make(self, path: Path, size: int, content: bytes, position: int, mode: int) -> None:
        """Create a file of a size, with some content, unless it exists. It gets its name when it is complete.

        If the file system has no unnamed files, a process that is killed here may leave a file with a random name.
        """
        with _needing_space(path, size), self._parent(path) as (name, directory):
            with _needing_space(path, 0):
                descriptor, other = self._open_unnamed(name, directory, mode)
            try:
                self._give_to_owner(path, descriptor, mode)
                os.posix_fallocate(descriptor, 0, size)
                os.pwrite(descriptor, content, position)
                with suppress(FileExistsError):
                    if other is not None:
                        os.link(other, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
                    else:
                        # With `src_dir_fd`, which an absolute path does not need: without it, Python links the entry in
                        # /proc itself.
                        source = f"/proc/self/fd/{descriptor}"
                        os.link(source, name, src_dir_fd=descriptor, dst_dir_fd=directory, follow_symlinks=True)
            finally:
                os.close(descriptor)
                if other is not None:
                    os.unlink(other, dir_fd=directory)

    @staticmethod
    def _open_unnamed(name: str, directory: int | None, mode: int) -> tuple[int, str | None]:
        """Return a descriptor of a new file, and None if it is unnamed, or else its random name."""
        parent = "." if directory is not None else os.path.dirname(name)
        try:
            return os.open(parent, os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE, mode, dir_fd=directory), None
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
        other = f"{name}.{secrets.token_hex(8)}{REPLACING}"
        return os.open(other, os.O_RDWR | _FILE | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory), other

    def make_fifo(self, path: Path, mode: int) -> None:
        """Create a FIFO unless it exists."""
        with suppress(FileExistsError), _needing_space(path, 0), self._parent(path) as (name, directory):
            os.mkfifo(name, mode, dir_fd=directory)
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                made = os.fstat(descriptor).st_mode
                if stat.S_ISFIFO(made) and stat.S_IMODE(made) != mode:  # the umask must not count
                    os.chmod(f"/proc/self/fd/{descriptor}", mode)
            finally:
                os.close(descriptor)

    def open_fifo(self, path: Path) -> int:
        """Return a descriptor of an existing FIFO, open in both directions, so that neither end waits for the other."""
        with self._parent(path) as (name, directory):
            descriptor = os.open(name, os.O_RDWR | _FILE, dir_fd=directory)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a FIFO", str(path))
        return descriptor

    def unlink_fifo(self, path: Path, identity: tuple[int, int] | None = None) -> None:
        """Delete a FIFO, if it exists; anything else with that name is not deleted.

        With an *identity*, (device, inode), another FIFO is not deleted either.
        """
        with suppress(FileNotFoundError, NotADirectoryError, UnexpectedFileError):
            status = self._status(path)
            is_same = identity is None or identity == (status.st_dev, status.st_ino)
            if stat.S_ISFIFO(status.st_mode) and is_same:
                self.unlink(path)

    def write_fifo(self, descriptor: int) -> None:
        """Write one byte to a FIFO; raise `BlockingIOError` if it is full."""
        os.write(descriptor, b"!")

    def read_fifo(self, descriptor: int) -> None:
        """Read all bytes from a FIFO."""
        try:
            while len(os.read(descriptor, _FIFO_SIZE)) == _FIFO_SIZE:
                pass
        except BlockingIOError:
            pass

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def closing(self, descriptor: int) -> Guard:
        """Return a guard that closes a descriptor when it is deleted.

        The guard calls a C function: an exception that a signal handler raises in a finalizer written in Python is
        lost.
        """
        return ensured(os.close if type(self).close is Files.close else self.close, descriptor)

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""
        return os.fstat(descriptor).st_size

    def data_end(self, descriptor: int) -> int:
        """Return the position after which a file has only a hole, or nothing."""
        end = 0
        try:
            while True:
                end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else self.size(descriptor)

    def disk_space(self, path: Path) -> int:
        """Return the disk space that a file takes; 0 if it does not exist."""
        try:
            return self._status(path).st_blocks * 512
        except FileNotFoundError:
            return 0

    def total_space(self, path: Path) -> int:
        """Return the size of the file system that holds a path."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def mount(self, descriptor: int) -> int:
        """Return the id of the mount that a file was opened through, which is never reused; 0 if it is unknown.

        After a remount, device, inode and the ordinary mount id are the same as before. A bind mount or another mount
        namespace has other ids for the same file system.
        """
        return mount_id(descriptor)

    def identity(self, descriptor: int) -> tuple[int, int]:
        """Return (device, inode) of an open file, as they are stored. Tests simulate others."""
        return self.inode(descriptor)

    def inode(self, descriptor: int) -> tuple[int, int]:
        """Return (device, inode) of an open file, to tell apart files that are open now."""
        status = os.fstat(descriptor)
        return status.st_dev, status.st_ino

    def ownership(self, path: Path) -> tuple[int, int]:
        """Return the user that owns a file or a directory, and its mode."""
        status = self._status(path)
        return status.st_uid, status.st_mode

    def links(self, descriptor: int) -> int:
        """Return how many names an open file has. Queries no timestamps, unlike `fstat`: that slows the next flush."""
        if descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # it was closed
        return link_count(descriptor)

    def has_name(self, directory: int, name: bytes, descriptor: int, inode: tuple[int, int]) -> bool:
        """Return whether a name in an open directory is that of an open file, whose inode is given; follows no link.

        This is one call, which queries no timestamps: see `links`. The number of names is not enough: a file that was
        deleted here may still have a name in a backup. A process that has dropped rights and may not search the
        directory any more only learns whether the file has a name anywhere. Raises `OSError` if the file system has
        shut down.
        """
        if directory < 0 or descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # it was closed
        try:
            if named_inode(directory, name) == inode:
                return True
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)  # a layered file system may renumber files
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            return self.links(descriptor) > 0
        return os.path.samestat(status, os.fstat(descriptor))

    def identity_of(self, path: Path) -> tuple[int, int] | None:
        """Return (device, inode) of a file; None if it does not exist."""
        try:
            status = self._status(path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def leads_to(self, path: Path, descriptor: int) -> bool:
        """Return whether a path is the name of an open file."""
        try:
            return os.path.samestat(self._status(path), os.fstat(descriptor))
        except OSError:
            return False

    @staticmethod
    def is_found_at(path: Path, descriptor: int) -> bool:
        """Return whether a path leads to an open file now. It is resolved from the start, not in a pinned directory."""
        try:
            return os.path.samestat(os.lstat(path), os.fstat(descriptor))
        except OSError:
            return False

    def read(self, path: Path, most: int) -> bytes:
        """Return the content of a file, at most *most* bytes: the caller decides how much it may have."""
        descriptor = Files.open(self, path, writable=False)
        try:
            return os.pread(descriptor, min(most, os.fstat(descriptor).st_size), 0)
        finally:
            os.close(descriptor)

    def read_part(self, path: Path, size: int, position: int) -> bytes:
        """Return up to *size* bytes of a file, from a position."""
        descriptor = Files.open(self, path, writable=False)
        try:
            return os.pread(descriptor, size, position)
        finally:
            os.close(descriptor)

    def read_at(self, descriptor: int, size: int, position: int) -> bytes:
        """Return up to *size* bytes from a position."""
        return os.pread(descriptor, size, position)

    def read_into(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Fill a buffer from a position, and return how many bytes were read."""
        return os.preadv(descriptor, [buffer], position)

    def write_at(self, descriptor: int, data: bytes, position: int) -> None:
        """Write all of *data* at a position."""
        done = 0
        with _needing_space(descriptor, len(data)):
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], position + done)

    def grow(self, descriptor: int, size: int) -> None:
        """Extend a file to at least this size, with a hole. Never shortens it: it may be mapped."""
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)

    def cut(self, descriptor: int, size: int) -> None:
        """Truncate a file, to free disk space. No process may have that part mapped."""
        os.ftruncate(descriptor, size)

    def allocation_unit(self, directory: Path) -> int:
        """Return the unit in which disk space must be allocated so that stores through a map cannot fail.

        On disk, the kernel keeps a file in folios of up to two megabytes. To store one byte it needs the blocks of a
        whole folio, up to the end of the file. If one is missing and the disk is full, the process is killed. A file
        system in memory allocates pages.
        """
        return PAGE if self.file_system(directory) in _IN_MEMORY else _LARGEST_FOLIO

    def allocate(self, path: Path, descriptor: int, position: int, size: int) -> None:
        """Allocate disk space where there is none yet; see `allocation_unit` for what a map needs.

        A full disk is an error only if blocks are missing. XFS refuses a range unless there are as many free blocks as
        the range has, allocated or not. So after an error we query which blocks are missing, and allocate only those.
        """
        with _needing_space(path, size):
            try:
                os.posix_fallocate(descriptor, position, size)
            except OSError as error:
                if error.errno not in _NO_SPACE or (missing := missing_blocks(descriptor, position, size)) is None:
                    raise
                for start, stop in missing:
                    os.posix_fallocate(descriptor, start, stop - start)
                self.grow(descriptor, position + size)

    def creation_space(self, descriptor: int) -> int:
        """Return how much free space the file system of an open file requires to create a file, but does not use.

        XFS reserves the worst case of every structure that may change, 47 blocks with its usual geometry, and frees
        what was not needed.
        """
        try:
            fcntl.ioctl(descriptor, _XFS_GEOMETRY, bytes(112))
        except OSError:
            return 0
        return _XFS_CREATION_SPACE

    def map(self, descriptor: int, size: int, *, writable: bool = True, private: bool = False) -> Map:
        """Map the first *size* bytes of a file, shared unless *private*."""
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        if sys.version_info >= (3, 13):
            return Map(descriptor, size, access=access, trackfd=False)
        # Without `trackfd`, a map keeps a descriptor of its own as long as it is referenced, even if the channel is
        # closed.
        if not private and size:
            with suppress(OSError):
                map_ = Map(-1, size, access=access)
                if show_file(map_, descriptor):
                    return map_
                map_.close()
        return Map(descriptor, size, access=access)

    def forget_pages(self, map_: mmap.mmap) -> None:
        """Drop the pages of a shared map from this process's memory; the kernel may keep them in the page cache."""
        with suppress(OSError, AttributeError):  # only memory is at stake, and not every system supports it
            map_.madvise(mmap.MADV_DONTNEED)

    def flush(self, descriptor: int) -> None:
        """Wait until the data of a file is on disk."""
        os.fdatasync(descriptor)
        self.check_running(descriptor)

    def check_running(self, descriptor: int) -> None:
        """Raise `OSError` if the file system of an open file has shut down.

        A flush that runs while ext4 or XFS shuts down can return success although its blocks were never recorded as
        written, so that they read as zeros after the next mount. On ext4, neither `stat` nor a page fault notices a
        shutdown; on both, a read does, even of a cached page.
        """
        os.pread(descriptor, 0, 0)  # no bytes: reading some would update the access time, a journal entry

    def flush_directory(self, directory: Path) -> None:
        """Wait until the names in a directory are on disk."""
        descriptor = self.open_directory(directory)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def flush_names(self, descriptor: int) -> None:
        """Wait until the names in an open directory are on disk."""
        os.fsync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, and replace an existing one."""
        with _needing_space(target, 0), self._parent(source) as (name, directory):
            if source.parent == target.parent and directory is not None:
                os.replace(name, target.name, src_dir_fd=directory, dst_dir_fd=directory)
                return
            with self._parent(target) as (new_name, new_directory):
                os.replace(name, new_name, src_dir_fd=directory, dst_dir_fd=new_directory)

    @property
    def watch_roll(self) -> Callable[[str], object] | None:
        """Called with each step of a fast roll, which does not use this interface; None except in tests."""
        return None

    def link(self, source: Path, target: Path) -> None:
        """Give a file another name, which must be free. A link is not followed, but gets the name itself."""
        with (
            _needing_space(target, 0),
            self._parent(source) as (name, directory),
            self._parent(target) as (new_name, new_directory),
        ):
            os.link(name, new_name, src_dir_fd=directory, dst_dir_fd=new_directory, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        """Delete a name, if it exists."""
        with suppress(FileNotFoundError), self._parent(path) as (name, directory):
            os.unlink(name, dir_fd=directory)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with its content, as far as possible. A link is not followed, but deleted itself.

        Directories that are nested deeper than Python can recurse are not deleted.
        """
        with suppress(OSError, RecursionError), self._parent(path) as (name, directory):
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)

    def remove_if_empty(self, path: Path) -> None:
        """Delete a directory, if it exists and is empty."""
        with suppress(OSError), self._parent(path) as (name, directory):
            os.rmdir(name, dir_fd=directory)

    def write_atomically(self, path: Path, data: bytes, mode: int) -> None:
        """Replace a whole file: a reader sees the old or the new content, even after a power cut.

        The new content is on disk when this returns. If it fails, the disk space of the new file is freed.
        """
        temporary = path.with_name(path.name + REPLACING)
        descriptor = self.create(temporary, mode)
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
        """Lock one byte until it is unlocked or the process dies, however it dies; return whether that succeeded."""
        kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, position, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock(self, descriptor: int, position: int, size: int = 1) -> None:
        """Unlock bytes."""
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, position, size, 0))

    def locked_range(self, descriptor: int, position: int, size: int, *, shared: bool = True) -> tuple[int, int] | None:
        """Return (position, size) of any lock in a range that was taken through another descriptor.

        Without *shared*, only exclusive locks count: those need the right to write, which a reader's locks do not.
        """
        kind = fcntl.F_WRLCK if shared else fcntl.F_RDLCK
        question = _FLOCK.pack(kind, os.SEEK_SET, position, size, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question))
        return None if kind == fcntl.F_UNLCK else (start, length)

    def file_system(self, path: Path) -> str:
        """Return the type of the file system that holds an existing path, such as "ext4"; "" if unknown."""
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        try:
            with _MOUNTS.open("rb", buffering=0) as file:  # half the time of `read_text`, at each open
                mounts = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        for mount in mounts:
            fields, _, rest = mount.partition(" - ")
            if fields.split(" ", 3)[2] == wanted:
                return rest.split(" ", 1)[0]
        return ""


def _path_of(descriptor: int) -> Path:
    """Return the path that a descriptor was opened with, for an error message."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return Path(f"descriptor {descriptor}")
