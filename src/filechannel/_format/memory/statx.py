"""What only `statx` reports: the unique mount id of a file, and link count or inode without timestamps.

Device, inode and the ordinary mount id may be the same again after a remount; no later mount of the same device has the
kernel's unique id. From Linux 6.13 on, a file whose timestamps were queried gets an exact new timestamp with the next
write. That changes the inode, so the next flush has one more block to write.

Python has no binding for `statx`, so this module calls the C library, if that has it; otherwise, and before Linux 6.8,
the mount is unknown.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Final

from .arguments import unsigned

_MOST_DESCRIPTORS: Final = 0x7FFFFFFF
_AT_EMPTY_PATH: Final = 0x1000
_MNT_ID_UNIQUE: Final = 0x4000  # STATX_MNT_ID_UNIQUE
_NLINK: Final = 0x4  # STATX_NLINK
_INODE: Final = 0x100  # STATX_INO
_NO_FOLLOW: Final = 0x100  # AT_SYMLINK_NOFOLLOW
_STATX_SIZE: Final = 256
_STATX_MNT_ID: Final = 0x90  # position of stx_mnt_id; the mask of the fields found comes first
_STATX_NLINK: Final = 0x10  # of stx_nlink
_STATX_INODE: Final = 0x20  # of stx_ino
_STATX_DEVICE: Final = 0x88  # of stx_dev_major, which stx_dev_minor follows


def _find_statx() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None


_statx: Final = _find_statx()


def mount_id(descriptor: int, /) -> int:
    """Return the unique id of the mount that a file was opened through; 0 if it is unknown."""
    status = _ask(unsigned(descriptor, _MOST_DESCRIPTORS), _MNT_ID_UNIQUE)
    return 0 if status is None else int.from_bytes(status[_STATX_MNT_ID : _STATX_MNT_ID + 8], "little")


def link_count(descriptor: int, /) -> int:
    """Return how many names an open file has, without querying its timestamps."""
    descriptor = unsigned(descriptor, _MOST_DESCRIPTORS)
    status = _ask(descriptor, _NLINK)
    if status is None:
        return os.fstat(descriptor).st_nlink
    return int.from_bytes(status[_STATX_NLINK : _STATX_NLINK + 4], "little")


def named_inode(directory: int, name: bytes, /) -> tuple[int, int]:
    """Return device and inode number of the file that has a name in an open directory, without querying timestamps.

    For a symbolic link, those of the link itself. `OSError` if there is no such file.
    """
    directory = unsigned(directory, _MOST_DESCRIPTORS)
    if not isinstance(name, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - as the C core does
        raise TypeError(f"expected bytes, {type(name).__name__} found")
    if b"\0" in name:
        raise ValueError("embedded null byte")
    status = _ask(directory, _INODE, name, _NO_FOLLOW)
    if status is None:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return found.st_dev, found.st_ino
    major, minor = (int.from_bytes(status[at : at + 4], "little") for at in (_STATX_DEVICE, _STATX_DEVICE + 4))
    return os.makedev(major, minor), int.from_bytes(status[_STATX_INODE : _STATX_INODE + 8], "little")


def _ask(descriptor: int, field: int, name: bytes = b"", flags: int = _AT_EMPTY_PATH) -> bytes | None:
    """Return the status of an open file, or of a name in a directory, with one field; None if it is not available."""
    status = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx is None or _statx(descriptor, name, flags, field, status):
        return None
    return status.raw if int.from_bytes(status.raw[:4], "little") & field else None
