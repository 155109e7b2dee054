"""From one segment to the next, where everything is prepared: the readable reference of going_on.c.

The file has a spare's name, its disk space and a map; the names are encoded, the header is filled but for what is known
only now. Then `Writer.go_on` does what `Log` would do, in the same order and with the writer word taken:

    is the name still that file? -> end of the one before -> header -> rename -> epoch -> record -> publish

Whoever dies in between leaves what any writer may leave that dies while it rolls. What only this process has to know
comes later: `Writer.gone_on` says so until somebody has taken note, and until then nothing can be prepared. The next
append tells who is to be told: the one that goes on takes long enough.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, final

from .checksum import crc32c
from .layout import (
    SEGMENT_BEGIN,
    SEGMENT_CRC,
    SEGMENT_CREATED,
    SEGMENT_DIGITS,
    SEGMENT_END,
    SEGMENT_END_CRC,
    SEGMENT_EXTENT,
    SEGMENT_FIRST_SEQUENCE,
    SEGMENT_HEADER_SIZE,
    SEGMENT_PREVIOUS_END,
)
from .words import load_u64, store_u64

Watch: TypeAlias = Callable[[str], object] | None
"""Called with the name of each step before it is done: look, end, header, replace, publish. What it raises ends it."""


@final
class _Directory:
    """A descriptor of our own: the channel's may be closed, and its number given to another file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int = os.dup(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


@final
@dataclass(slots=True)
class Successor:
    """A file that waits to become the next segment, with everything that can be known beforehand."""

    what: object
    """As others know it."""
    map: memoryview
    header: bytes
    device: int
    inode: int
    source: bytes
    target: bytes
    """Its name then, in which the digits of the offset are wrong,"""
    digits: int
    """from this position on."""
    window: int
    """How many bytes of it to open."""
    told: Callable[[], object]
    """Called by the append after the one that goes on to it."""
    watch: Watch
    """For tests."""
    _directory: _Directory | None = None
    """In which both names are."""

    def keep(self, directory: int) -> bool:
        """Keep a descriptor of the directory; return whether there is one for us."""
        with suppress(OSError):  # there are no descriptors left: rolling takes the slow way
            self._directory = _Directory(directory)
        return self._directory is not None

    def __post_init__(self) -> None:
        """Refuse what cannot be one."""
        if b"\0" in self.source + self.target:
            raise ValueError("embedded null byte")
        if self.digits + SEGMENT_DIGITS > len(self.target):
            raise ValueError("digits are not inside the path")
        if len(self.header) != SEGMENT_HEADER_SIZE:
            raise ValueError("not a segment header")
        if self.map.nbytes < SEGMENT_HEADER_SIZE:
            raise ValueError("segment is shorter than its header")

    @property
    def room(self) -> int:
        """How many bytes of records it takes."""
        return self.map.nbytes - SEGMENT_HEADER_SIZE

    def is_there(self) -> bool:
        """Tell whether the name is still that of the file."""
        with suppress(OSError):
            assert self._directory is not None
            found = os.stat(self.source, dir_fd=self._directory.descriptor, follow_symlinks=False)
            return (found.st_dev, found.st_ino) == (self.device, self.inode)
        return False

    def full_header(self, begin: int, sequence: int, now: int) -> bytes:
        """Return the header of a segment that begins here and now, where the one before ends."""
        header = bytearray(self.header)
        store_u64(header, SEGMENT_BEGIN, begin)
        store_u64(header, SEGMENT_END, 0)
        store_u64(header, SEGMENT_FIRST_SEQUENCE, sequence)
        store_u64(header, SEGMENT_PREVIOUS_END, begin)
        store_u64(header, SEGMENT_CREATED, now)
        crc = crc32c(header[SEGMENT_END + 8 : SEGMENT_CRC], crc32c(header[:SEGMENT_END]))
        header[SEGMENT_CRC:] = crc.to_bytes(4, "little") + bytes(4)
        return bytes(header)

    def begin(self, before: memoryview, before_begin: int, begin: int, header: bytes) -> bool:
        """Finish the segment before and give this one its name; tell whether that was possible."""
        step = self.watch or _nobody
        step("look")
        if not self.is_there():
            return False
        step("end")
        # Before anything is published beyond it: a reader that sees more must see where this one ends.
        _store_end(before, before_begin, begin)
        is_nameless = True
        try:
            step("header")
            self.map[:SEGMENT_HEADER_SIZE] = header
            step("replace")
            is_nameless = False  # or not for long: after Ctrl-C nobody knows
            is_nameless = not self._rename(begin)
        finally:
            if is_nameless:
                store_u64(before, SEGMENT_END, 0)
        return not is_nameless

    def _rename(self, begin: int) -> bool:
        after = self.digits + SEGMENT_DIGITS
        target = self.target[: self.digits] + b"%0*d" % (SEGMENT_DIGITS, begin) + self.target[after:]
        with suppress(OSError):
            assert self._directory is not None
            at = self._directory.descriptor
            os.rename(self.source, target, src_dir_fd=at, dst_dir_fd=at)
            return True
        return False


def created(segment: memoryview) -> int:
    """Return when a segment was begun."""
    return load_u64(segment, SEGMENT_CREATED)


def _store_end(segment: memoryview, begin: int, end: int) -> None:
    segment[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE] = crc32c(SEGMENT_EXTENT.pack(begin, end)).to_bytes(4, "little")
    store_u64(segment, SEGMENT_END, end)


def _nobody(_: str) -> None:
    pass
