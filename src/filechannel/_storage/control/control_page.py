"""The control page: the file `control`, mapped by every process that has the channel open.

Readers trust one word, `write_offset`. The pages are shared memory first and a file second: only the checkpoint page is
flushed, and only that page is trusted after a power cut.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from ..._errors import StorageError, repair_command
from ..._format import can_store, crc32c, load_u32, load_u64, store_u32, store_u64, swap_if_u32, take_bits
from ..._format.layout import (
    ALLOCATED_END,
    APPEND_TAIL,
    CAPACITY_LOOPS,
    CAPACITY_TURN,
    CAPACITY_WAKE,
    COMPRESSED_OFFSET,
    CONTROL_SIZE,
    DURABLE_OFFSET,
    EPOCH,
    FAILED_FLUSHES,
    FLUSH_LOCK,
    FLUSHES,
    LARGEST_OFFSET,
    MAINTAINER,
    MAINTENANCE_ERRORS,
    OFFSET_GAP,
    OLDEST_OFFSET,
    PAGE,
    POISONED_BEFORE,
    PROCESS_SLOT_COUNT,
    PURGED_OFFSET,
    QUIET_OFFSET,
    QUIET_SINCE,
    RECLAIMING,
    REGISTRATIONS,
    REGISTRY,
    REGISTRY_DECIDED,
    RESERVED_END,
    STATE,
    STATE_DEFERRED,
    STATE_SEALED,
    TAIL_CHECKED,
    TAIL_SLOT,
    TAIL_SLOTS,
    WAITING_LOOPS,
    WAKE,
    WRITE_TAIL,
    WRITER_LOCK,
)
from ..._offset import Offset
from ..system.mapped_files import check_storable
from ..system.os_calls import Files
from .checkpoints import Checkpoints
from .control_file import CONTROL, ControlFile
from .control_identity import ControlIdentity
from .control_reserve import ControlReserve
from .running_flushes import RunningFlushes


@dataclass(frozen=True, slots=True)
class Tail:
    """An end of the log: an offset, the sequence that belongs to it, and the segment they lie in."""

    offset: Offset
    sequence: int
    segment: Offset


class Control:
    """The mapped control file of one channel: its words and tails. The other parts of the page are attributes."""

    def __init__(
        self,
        files: Files,
        descriptor: int,
        *,
        writable: bool = True,
        private: bool = False,
        path: Path = Path(CONTROL),
    ) -> None:
        self.file: ControlFile = ControlFile(files, descriptor, path)
        self.reserve: ControlReserve = ControlReserve(self.file)
        if writable and not private and not self.reserve.allocate():
            self.file.allocate(CONTROL_SIZE)
        self.map: mmap.mmap = self.file.map(CONTROL_SIZE, writable=writable, private=private)
        self.identity: ControlIdentity = ControlIdentity(self.file, self.map)
        self.running_flushes: RunningFlushes = RunningFlushes(self.map)
        self.checkpoints: Checkpoints = Checkpoints(self.file, self.map, self.running_flushes)

    def close(self) -> None:
        """Unmap the file, or if another thread is using the map in a call, unmap it when that call returns.

        After that, every access to the control page raises `ClosedResourceError`.
        """
        self.file.close()
        self.map.close()

    # Damage

    def damaged(self, problem: str) -> StorageError:
        """Return the error that says that the control page is damaged, and what to do."""
        return StorageError(
            f"{self.file.path} is damaged: {problem}; close every process that uses the channel and open it again, "
            f"or run {repair_command(self.file.path.parent)}"
        )

    # Words of the page

    @property
    def write_offset(self) -> Offset:
        """The offset up to which readers may read."""
        return Offset(load_u64(self.map, WRITE_TAIL))

    @property
    def append_offset(self) -> Offset:
        """The end of the log, including records that readers do not see yet."""
        return Offset(load_u64(self.map, APPEND_TAIL if self.deferred else WRITE_TAIL))

    @property
    def oldest_offset(self) -> Offset:
        """The offset of the oldest stored message, as the last decision set it; see `low_watermark`.

        Raises `StorageError` if it is beyond the end of the log: everything before the oldest offset counts as removed,
        and is deleted.
        """
        oldest = self._oldest()
        if oldest > self.write_offset:  # loaded after the oldest offset, and it never decreases
            raise self.damaged(f"the oldest offset, {oldest}, lies beyond the end of the log")
        return oldest

    @oldest_offset.setter
    def oldest_offset(self, offset: int) -> None:
        store_u64(self.map, OLDEST_OFFSET, offset)

    def _oldest(self) -> Offset:
        while True:
            seen = load_u32(self.map, REGISTRY)
            if not seen & REGISTRY_DECIDED:
                return Offset(load_u64(self.map, OLDEST_OFFSET))
            oldest = max(load_u64(self.map, OLDEST_OFFSET), load_u64(self.map, RECLAIMING))
            if load_u32(self.map, REGISTRY) == seen:
                return Offset(oldest)

    def purge(self, offset: int) -> None:
        """Make this the oldest offset, by a purge. The caller holds the writer lock."""
        # The oldest offset first. If the process dies between the two stores, consumers get an error for messages that
        # are gone. In the other order, they could be moved over messages that still exist.
        self.oldest_offset = offset
        store_u64(self.map, PURGED_OFFSET, offset)

    @property
    def is_purged(self) -> bool:
        """Whether the last change of the oldest offset was a purge."""
        return self.oldest_offset == load_u64(self.map, PURGED_OFFSET)

    @property
    def durable_offset(self) -> Offset:
        """The durable offset: everything below it has been flushed."""
        return Offset(load_u64(self.map, DURABLE_OFFSET))

    @durable_offset.setter
    def durable_offset(self, offset: int) -> None:
        store_u64(self.map, DURABLE_OFFSET, offset)

    @property
    def reserved_end(self) -> int:
        """No writer has written at or beyond this offset since the last publish."""
        return load_u64(self.map, RESERVED_END)

    @reserved_end.setter
    def reserved_end(self, offset: int) -> None:
        store_u64(self.map, RESERVED_END, offset)

    @property
    def allocated_end(self) -> int:
        """The offset up to which the active segment has disk space."""
        return load_u64(self.map, ALLOCATED_END)

    @allocated_end.setter
    def allocated_end(self, offset: int) -> None:
        store_u64(self.map, ALLOCATED_END, offset)

    @property
    def compressed_offset(self) -> Offset:
        """Every finished segment before this offset is compressed, or not worth compressing."""
        return Offset(load_u64(self.map, COMPRESSED_OFFSET))

    @compressed_offset.setter
    def compressed_offset(self, offset: int) -> None:
        store_u64(self.map, COMPRESSED_OFFSET, offset)

    @property
    def epoch(self) -> int:
        """A number that changes after segments were created or removed, or after the durability was changed."""
        return load_u32(self.map, EPOCH)

    @property
    def failed_flushes(self) -> int:
        """The number of failed flushes, in all processes."""
        return load_u32(self.map, FAILED_FLUSHES)

    def count_failed_flush(self) -> None:
        """Increment the counter of failed flushes. The caller holds the flush lock."""
        store_u32(self.map, FAILED_FLUSHES, self.failed_flushes + 1 & 0xFFFFFFFF)

    @property
    def poisoned_before(self) -> Offset:
        """Segments that begin below this offset are poisoned: a flush of one of them failed.

        They are never flushed again, and their files are never recycled.
        """
        return Offset(load_u64(self.map, POISONED_BEFORE))

    @poisoned_before.setter
    def poisoned_before(self, offset: int) -> None:
        store_u64(self.map, POISONED_BEFORE, offset)

    @property
    def is_durability_unknown(self) -> bool:
        """Whether the log has messages in poisoned segments that are not on disk: no later flush can write them."""
        poisoned_before = self.poisoned_before
        if poisoned_before <= self.durable_offset:  # always true unless a flush has failed
            return False
        return max(self.durable_offset, self.oldest_offset) < min(poisoned_before, self.write_offset)

    @property
    def is_gap_pending(self) -> bool:
        """Whether the log must resume at `poisoned_before` before another offset is used.

        That is so after a failed flush, until the new segment is created, which may not be possible immediately.

        Raises `StorageError` if `poisoned_before` is not where an offset gap can end.
        """
        poisoned_before, end = self.poisoned_before, self.write_offset
        if poisoned_before > end and (poisoned_before % OFFSET_GAP or poisoned_before - end > 2 * OFFSET_GAP):
            raise self.damaged(f"the log is to resume at {poisoned_before}")
        return poisoned_before > end

    @property
    def registrations(self) -> int:
        """A number that changes after any process registered or removed a consumer, or moved one back."""
        return load_u32(self.map, REGISTRATIONS)

    def count_registration(self) -> None:
        """Increment `registrations`, after the change: a process that read the consumers before it reads them again."""
        seen = self.registrations
        while not swap_if_u32(self.map, REGISTRATIONS, seen, seen + 1 & 0xFFFFFFFF):
            seen = self.registrations

    @property
    def deferred(self) -> bool:
        """Whether writers leave it to a flush to publish what they append."""
        return bool(load_u32(self.map, STATE) & STATE_DEFERRED)

    @deferred.setter
    def deferred(self, deferred: bool) -> None:
        state = load_u32(self.map, STATE)
        store_u32(self.map, STATE, state | STATE_DEFERRED if deferred else state & ~STATE_DEFERRED)

    @property
    def sealed(self) -> bool:
        """Whether the channel is sealed."""
        return bool(load_u32(self.map, STATE) & STATE_SEALED)

    def mark_sealed(self) -> None:
        """Seal the channel: no more messages are accepted."""
        store_u32(self.map, STATE, load_u32(self.map, STATE) | STATE_SEALED)

    # Tails

    def tail(self, *, deferred: bool = False) -> Tail:
        """Return the tail that readers see or, deferred, the append tail; raise `StorageError` if it is damaged."""
        at = APPEND_TAIL if deferred else WRITE_TAIL
        while True:
            offset = load_u64(self.map, at)
            for distance in TAIL_SLOTS:
                end, sequence, segment, crc = TAIL_SLOT.unpack_from(self.map, at + distance)
                if end != offset or crc != crc32c(TAIL_CHECKED.pack(end, sequence, segment)):
                    continue
                if max(end, sequence, segment) <= LARGEST_OFFSET:
                    return Tail(Offset(end), sequence, Offset(segment))
            if load_u64(self.map, at) == offset:
                raise self.damaged(f"no tail slot agrees with the offset {offset}, or its numbers are too large")

    @property
    def has_tail(self) -> bool:
        """Whether the page has a valid write tail, oldest offset and `poisoned_before`."""
        try:
            self.tail()
            _ = self.oldest_offset, self.is_gap_pending
        except StorageError:
            return False
        return True

    def publish(self, tail: Tail, *, deferred: bool = False) -> None:
        """Move a tail. The caller must be the only thread that moves it."""
        at = APPEND_TAIL if deferred else WRITE_TAIL
        current = load_u64(self.map, at)
        ends = [load_u64(self.map, at + distance) for distance in TAIL_SLOTS]
        free = TAIL_SLOTS[1 if ends[0] == current else 0]
        checked = TAIL_CHECKED.pack(tail.offset, tail.sequence, tail.segment)
        TAIL_SLOT.pack_into(self.map, at + free, tail.offset, tail.sequence, tail.segment, crc32c(checked))
        store_u64(self.map, at, tail.offset)

    def start_over(self, tail: Tail, oldest: int, *, sealed: bool) -> None:
        """Reset every word except a valid `poisoned_before`. The caller must be the only process on the channel."""
        for at in (WRITE_TAIL, APPEND_TAIL):
            self._set_tail(at, tail)
        try:
            _ = self.is_gap_pending
        except StorageError:
            self.poisoned_before = 0  # damaged: nothing says any more what the disk has refused
        for word in (REGISTRY, MAINTENANCE_ERRORS, MAINTAINER):
            store_u32(self.map, word, 0)
        for word in (RECLAIMING, QUIET_OFFSET, QUIET_SINCE, PURGED_OFFSET):
            store_u64(self.map, word, 0)
        self.oldest_offset = oldest
        if not self.is_durability_unknown:
            self.durable_offset = tail.offset
        self.allocated_end = tail.offset
        self.reserved_end = tail.offset
        self.compressed_offset = 0
        store_u32(self.map, STATE, STATE_SEALED if sealed else 0)
        self.forget_the_dead()

    def _set_tail(self, at: int, tail: Tail) -> None:
        fields = (tail.offset, tail.sequence, tail.segment)
        for distance in TAIL_SLOTS:
            TAIL_SLOT.pack_into(self.map, at + distance, *fields, crc32c(TAIL_CHECKED.pack(*fields)))
        store_u64(self.map, at, tail.offset)

    def forget_the_dead(self) -> None:
        """Free the locks of dead processes and drop records that were never published. For a process that is alone."""
        for word in (WRITER_LOCK, FLUSH_LOCK, FLUSHES, WAKE, CAPACITY_WAKE, CAPACITY_TURN):
            store_u32(self.map, word, 0)
        if not self.is_durability_unknown:
            store_u32(self.map, FAILED_FLUSHES, 0)
        for waiting in (WAITING_LOOPS, CAPACITY_LOOPS):
            take_bits(self.map, waiting, PROCESS_SLOT_COUNT // 64)
        self._set_tail(APPEND_TAIL, self.tail())

    @property
    def is_storable(self) -> bool:
        """Whether a store to the page is possible; if not, a store would kill the process."""
        return can_store(self.map, 0, PAGE)

    def check_storable(self) -> None:
        """Raise `OSError` if a store to the page would kill the process."""
        check_storable(self.map, 0, PAGE, self.file.path)
