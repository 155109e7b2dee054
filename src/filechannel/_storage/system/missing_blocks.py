"""Which parts of a file have no disk space yet, as the file system reports it (`FS_IOC_FIEMAP`)."""

from __future__ import annotations

import fcntl
import struct

_FIEMAP = 0xC020660B  # FS_IOC_FIEMAP, _IOWR('f', 11, struct fiemap)
_FIEMAP_HEAD = struct.Struct("QQIIII")  # start, length, flags, extents found, extents requested, zero
_FIEMAP_EXTENT = struct.Struct("Q8xQ16xI12x")  # start, length, flags
_FIEMAP_LAST, _FIEMAP_SHARED = 0x1, 0x2000
_FIEMAP_COUNT = 16  # extents per call


def missing_blocks(descriptor: int, position: int, size: int) -> list[tuple[int, int]] | None:
    """Return the parts of a range without disk space, as (start, stop); None if the file system cannot report them.

    Blocks that were reserved and never written count as allocated; `SEEK_HOLE` would report them as a hole. Blocks that
    are shared with another file (`cp --reflink`) count as missing: a store needs a block of its own.
    """
    missing: list[tuple[int, int]] = []
    stop = position + size
    while position < stop:
        try:
            extents = _extents(descriptor, position, stop)
        except OSError:
            return None
        for start, length, flags in extents:
            if start > position:
                missing.append((position, min(start, stop)))
            if flags & _FIEMAP_SHARED:
                missing.append((max(start, position), min(start + length, stop)))
            position = max(position, start + length)
        if not extents or extents[-1][2] & _FIEMAP_LAST:
            break
    if position < stop:
        missing.append((position, stop))
    return missing


def _extents(descriptor: int, start: int, stop: int) -> list[tuple[int, int, int]]:
    """Return the first extents in a range of a file, each as (start, length, flags)."""
    answer = bytearray(_FIEMAP_HEAD.pack(start, stop - start, 0, 0, _FIEMAP_COUNT, 0))
    answer += bytes(_FIEMAP_COUNT * _FIEMAP_EXTENT.size)
    fcntl.ioctl(descriptor, _FIEMAP, answer)
    count = _FIEMAP_HEAD.unpack_from(answer)[3]
    positions = range(_FIEMAP_HEAD.size, _FIEMAP_HEAD.size + count * _FIEMAP_EXTENT.size, _FIEMAP_EXTENT.size)
    return [_FIEMAP_EXTENT.unpack_from(answer, position) for position in positions]
