"""The roll from the active segment to the next: the pure-Python implementation of roll.c.

There is one roll, `Writer._roll`, with the writer lock held:

    end of the old segment -> header of the new one -> rename -> epoch; then the caller writes and publishes

Each step has to be visible before the next one:

- The end comes before anything that is published beyond it: a reader that sees later records must see where the old
  segment ends, because only there does it continue in the next segment.
- The header comes before the rename: a process that finds the name finds a segment.
- The rename comes before the epoch: a process that sees the new epoch lists the directory, and must find the name.
- The epoch comes before publishing: a reader that sees records beyond its list of segments must list them again.

If the process dies in between, or the roll raises, the tail has not moved, and the next holder of the writer lock
rolls back (`Appender.roll_back`). Before the rename, only the end is stored, in the segment that covers the tail: it is
removed. After the rename, the new segment begins at the tail or after it: at the tail it stays, empty and active;
after the tail it follows uncommitted records, and is deleted. After an exception in the rename, for example from a
signal handler, it is unknown whether the file has its name: so the end stays, and the rollback lists the directory.
Only the rename of the fast roll fails for certain. Then the end is removed at once, because the writer lock is released
before the slow path begins.

Whatever else can fail is done before, and that is where the two ways to get here differ:

- The *fast roll* has a file of the free list that another thread prepared, with its disk space, its map, the encoded
  names, and a header that is complete except for what is known only at the roll. It checks that the name still belongs
  to that file, rolls, and publishes one record.
- The *slow path* (`Appender.roll`) creates a file or takes one, fills the header, and calls `Writer.roll`. It also
  rolls in the middle of a batch, after an offset gap, and for the first segment of a log, where nothing has to end.

In-process bookkeeping follows in `Appender.update_after_roll`: at once on the slow path, later after a fast roll, so
that the append that rolls takes no longer than necessary. `Writer.pending_roll` holds the new segment until it is
acknowledged, and no other segment can be prepared before that. The next append calls the notification.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, final

from ..checksum import crc32c
from ..layout import (
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
from ..memory.atomics import load_u64, store_u64

Watch: TypeAlias = Callable[[str], object] | None
"""Called with the name of each step before it: check, end, header, replace, publish. An exception ends the roll."""
Names: TypeAlias = tuple[bytes, bytes, int]
"""The name of a file; the name it gets, in which the digits of the offset are still wrong; and their position."""


@final
class _Directory:
    """A duplicate of the directory descriptor: the channel may close its own, and its number may be reused."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int = os.dup(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


@final
@dataclass(slots=True)
class PreparedSegment:
    """A file that is ready to become the next segment."""

    what: object
    """The object that the code that prepared the file uses for it."""
    map: memoryview
    header: bytes
    allocated: int
    """How many bytes of records its disk space suffices for."""
    rename: Callable[[], object] | None = None
    """Gives the file its name; None if this is prepared for a fast roll, with the fields that follow."""
    device: int = 0
    inode: int = 0
    names: Names = b"", b"", 0
    window: int = 0
    """How many bytes of its records the fast path may write before the next overflow."""
    after_roll: Callable[[], object] | None = None
    """Called by the append after the one that rolls."""
    watch: Watch = None
    """For tests."""
    _directory: _Directory | None = None
    """The directory that both names are in."""

    def keep(self, directory: int) -> bool:
        """Keep a duplicate of the directory descriptor; return whether one was available."""
        with suppress(OSError):  # no descriptors left: the roll takes the slow path
            self._directory = _Directory(directory)
        return self._directory is not None

    def __post_init__(self) -> None:
        """Raise `ValueError` for inconsistent arguments."""
        source, target, digits = self.names
        if b"\0" in source + target:
            raise ValueError("embedded null byte")
        if self.rename is None and digits + SEGMENT_DIGITS > len(target):
            raise ValueError("digits are not inside the path")
        if len(self.header) != SEGMENT_HEADER_SIZE:
            raise ValueError("not a segment header")
        if self.map.nbytes < SEGMENT_HEADER_SIZE:
            raise ValueError("segment is shorter than its header")

    @property
    def space(self) -> int:
        """How many bytes of records fit into it."""
        return self.map.nbytes - SEGMENT_HEADER_SIZE

    @property
    def begin(self) -> int:
        """The offset at which the segment begins, according to its header."""
        return load_u64(self.header, SEGMENT_BEGIN)

    def before(self, step: str) -> None:
        """Notify the test that watches."""
        if self.watch is not None:
            self.watch(step)

    def is_there(self) -> bool:
        """Return whether the name still belongs to the prepared file."""
        with suppress(OSError):
            assert self._directory is not None
            found = os.stat(self.names[0], dir_fd=self._directory.descriptor, follow_symlinks=False)
            return (found.st_dev, found.st_ino) == (self.device, self.inode)
        return False

    def fill_header(self, begin: int, sequence: int, now: int) -> None:
        """Complete the header of a segment that begins here and now, at the end of the one before."""
        header = bytearray(self.header)
        store_u64(header, SEGMENT_BEGIN, begin)
        store_u64(header, SEGMENT_END, 0)
        store_u64(header, SEGMENT_FIRST_SEQUENCE, sequence)
        store_u64(header, SEGMENT_PREVIOUS_END, begin)
        store_u64(header, SEGMENT_CREATED, now)
        crc = crc32c(header[SEGMENT_END + 8 : SEGMENT_CRC], crc32c(header[:SEGMENT_END]))
        header[SEGMENT_CRC:] = crc.to_bytes(4, "little") + bytes(4)
        self.header = bytes(header)

    def become_segment(self, finished: memoryview | None, finished_begin: int) -> bool:
        """Store the end of the segment before, if one is *finished*, and rename this file; False if that fails."""
        self.before("end")
        if finished is not None:
            _store_end(finished, finished_begin, self.begin)
        is_nameless = True
        try:
            self.before("header")
            self.map[:SEGMENT_HEADER_SIZE] = self.header
            self.before("replace")
            is_nameless = False  # assume it is renamed: after an exception in the call it is unknown
            is_nameless = not self._rename()
        finally:
            if is_nameless and finished is not None:
                store_u64(finished, SEGMENT_END, 0)
        return not is_nameless

    def _rename(self) -> bool:
        if self.rename is not None:
            self.rename()
            return True
        source, target, digits = self.names
        after = digits + SEGMENT_DIGITS
        target = target[:digits] + b"%0*d" % (SEGMENT_DIGITS, self.begin) + target[after:]
        with suppress(OSError):
            assert self._directory is not None
            at = self._directory.descriptor
            os.rename(source, target, src_dir_fd=at, dst_dir_fd=at)
            return True
        return False


def created(segment: memoryview) -> int:
    """Return when a segment was created."""
    return load_u64(segment, SEGMENT_CREATED)


def _store_end(segment: memoryview, begin: int, end: int) -> None:
    segment[SEGMENT_END_CRC:SEGMENT_HEADER_SIZE] = crc32c(SEGMENT_EXTENT.pack(begin, end)).to_bytes(4, "little")
    store_u64(segment, SEGMENT_END, end)
