"""The control page: the file `control`, mapped by every process that has the channel open.

Readers trust one word, `write_offset`. The pages are shared memory first and a file second: only the checkpoint page is
flushed, and only that page is trusted after a power cut.
"""

from __future__ import annotations

import mmap
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..._errors import ClosedResourceError, DiskFullError, StorageError, repair_command
from ..._format import can_store, crc32c, load_u32, load_u64, store_u32, store_u64, swap_if_u32, take_bits
from ..._format.layout import (
    ALLOCATED_END,
    APPEND_TAIL,
    CAPACITY_LOOPS,
    CAPACITY_TURN,
    CAPACITY_WAKE,
    CHECKPOINT,
    CHECKPOINT_CHECKED,
    CHECKPOINT_SLOTS,
    COMPRESSED_OFFSET,
    CONTROL_FLUSHES_STEP,
    CONTROL_IDENTITY,
    CONTROL_MAGIC,
    CONTROL_RESERVE,
    CONTROL_SIZE,
    DURABLE_OFFSET,
    EPOCH,
    FAILED_FLUSHES,
    FLUSH_LOCK,
    FLUSHES,
    FLUSHES_STEP,
    FLUSHING_CONTROL,
    FORMAT_VERSION,
    LARGEST_OFFSET,
    LOCK_FILE,
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
from ..system.mapped_files import Inode, OpenFile, check_storable
from ..system.os_calls import Files

CONTROL = "control"
R = TypeVar("R")
_LARGEST_GENERATION = (1 << 63) - 1  # so that the next generation fits, too


@dataclass(frozen=True, slots=True)
class Tail:
    """An end of the log: an offset, the sequence that belongs to it, and the segment they lie in."""

    offset: Offset
    sequence: int
    segment: Offset


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was on disk when a flush ended."""

    offset: Offset
    sequence: int
    oldest: Offset
    sealed: bool = False


class _Identity(NamedTuple):
    """The channel, boot, file and mount that the control page was written for."""

    life: int
    """A random number that changes whenever the control page is recovered."""
    channel: bytes
    boot: bytes
    device: int
    inode: int
    mount: int
    """The unique id of the mount; 0 if the kernel has none."""


class Control:
    """The mapped control file of one channel."""

    def __init__(
        self,
        files: Files,
        descriptor: int,
        *,
        writable: bool = True,
        private: bool = False,
        path: Path = Path(CONTROL),
    ) -> None:
        self._files = files
        self._opened: int = descriptor
        self._inode: Inode = files.inode(descriptor)
        self._full_size = CONTROL_SIZE + CONTROL_RESERVE + files.creation_space(descriptor)
        self.path = path
        """The path of the file, for error messages; relative if the full path is not known."""
        if writable and not private and not self.keep_reserve():
            self._allocate(CONTROL_SIZE)
        self.map: mmap.mmap = files.map(descriptor, CONTROL_SIZE, writable=writable, private=private)

    def close(self) -> None:
        """Unmap the file, or if another thread is using the map in a call, unmap it when that call returns.

        After that, every access to the control page raises `ClosedResourceError`.
        """
        self._opened = -1
        self.map.close()

    @property
    def _descriptor(self) -> int:
        """The open file; raises `ClosedResourceError` after `close`: the number may belong to another file then."""
        if self._opened < 0:
            raise ClosedResourceError
        return self._opened

    def check_name(self, directory: OpenFile, name: bytes) -> None:
        """Raise `StorageError` if the file was deleted or replaced: other processes cannot see what is published here.

        *name* is the name of the file, relative to the directory.
        """
        if not directory.holds(name, self._descriptor, self._inode):
            raise replaced(CONTROL)

    # Disk space

    def keep_reserve(self) -> bool:
        """Reserve disk space for the page, and a reserve for use on a full disk; return whether there was enough.

        If there is not enough disk space, reserve as much as there is.
        """
        try:
            self._allocate(self._full_size)
        except DiskFullError:
            self._keep_what_is_left()
            return False
        return True

    def _keep_what_is_left(self) -> None:
        with suppress(DiskFullError):
            for size in range(CONTROL_SIZE + PAGE, self._full_size, PAGE):
                self._allocate(size)

    def _allocate(self, size: int) -> None:
        self._files.allocate(self.path, self._descriptor, 0, size)

    @property
    def has_reserve(self) -> bool:
        """Whether the reserve is complete: no process has used any of it."""
        return self._files.size(self._descriptor) >= self._full_size

    def using_reserve(self, store: Callable[[], R]) -> R:
        """Store something small that must succeed on a full disk: a consumer's name, the manifest, the next segment.

        If the disk is full, the reserve is freed, and allocated again after the second try.
        """
        try:
            return store()
        except DiskFullError:
            if self._files.size(self._descriptor) <= CONTROL_SIZE:
                raise
            self._files.cut(self._descriptor, CONTROL_SIZE)
        try:
            return store()
        finally:
            self.keep_reserve()

    # Damage

    def damaged(self, problem: str) -> StorageError:
        """Return the error that says that the control page is damaged, and what to do."""
        return StorageError(
            f"{self.path} is damaged: {problem}; close every process that uses the channel and open it again, "
            f"or run {repair_command(self.path.parent)}"
        )

    # Identity

    @property
    def channel_id(self) -> bytes | None:
        """The id of the channel that the control page was written for; None if the identity is damaged."""
        stored = self._identity()
        return None if stored is None else stored.channel

    def is_foreign(self, channel_id: str) -> bool:
        """Return whether the control page belongs to another channel, whose checkpoints say nothing about this one."""
        return self.channel_id not in (None, bytes.fromhex(channel_id))

    def check_channel(self, channel_id: str) -> None:
        """Raise `StorageError` if the page belongs to another channel: recovery would delete this channel's data."""
        if self.is_foreign(channel_id):
            raise StorageError(
                f"{self.path} belongs to another channel, and nothing was changed; put the right file back, or run "
                f"{repair_command(self.path.parent)}, which finds the end of the log without it"
            )

    def belongs_to(self, channel_id: bytes, boot: bytes) -> bool:
        """Return whether the control page was written in this boot, by this channel, into this very file.

        That does not prove that the page is as recent as the other files: see `stale_control`.
        """
        stored = self._identity()
        if stored is None or (stored.channel, stored.boot) != (channel_id, boot):
            return False
        return (stored.device, stored.inode) == self._files.identity(self._descriptor)

    @property
    def is_same_mount(self) -> bool:
        """Whether the file system was not remounted since the page was written; False if that is unknown."""
        stored, mount = self._identity(), self._files.mount(self._descriptor)
        return stored is not None and mount != 0 and stored.mount == mount

    def is_of_before(self, channel_id: bytes, boot: bytes) -> bool:
        """Return whether the page was written by this channel, into this very file, and before the last boot or mount.

        A page that was disowned counts as written before.
        """
        stored = self._identity()
        # The device is not compared: its number may differ in every boot.
        if stored is None or stored.channel != channel_id or stored.inode != self._files.identity(self._descriptor)[1]:
            return False
        return stored.boot != boot or not self.is_same_mount

    def identify(self, channel_id: bytes, boot: bytes) -> None:
        """Declare the page valid for this boot and mount. It gets a new `life` unless it was valid before."""
        if not (self.belongs_to(channel_id, boot) and self.is_same_mount):
            mount = self._files.mount(self._descriptor)
            device, inode = self._files.identity(self._descriptor)
            self._store_identity(_Identity(secrets.randbits(32), channel_id, boot, device, inode, mount))

    def disown(self, boot: bytes) -> None:
        """Declare the page invalid for this boot, so that an interrupted recovery starts again from the beginning."""
        stored = self._identity()
        if stored is not None and stored.boot == boot:
            self._store_identity(stored._replace(boot=_inverted(stored.boot)))

    def is_of_boot(self, boot: bytes) -> bool:
        """Return whether the page was written in this boot, disowned or not: memory may have more than the disk."""
        stored = self._identity()
        return stored is not None and stored.boot in (boot, _inverted(boot))

    def _identity(self) -> _Identity | None:
        """Return the identity that is stored in the page; None if it is damaged, or of another format version."""
        magic, version, life, channel, boot, device, inode, mount, crc = CONTROL_IDENTITY.unpack_from(self.map)
        is_whole = crc == crc32c(self.map[: CONTROL_IDENTITY.size - 4])
        if magic != CONTROL_MAGIC or version != FORMAT_VERSION or not is_whole:
            return None
        return _Identity(life, channel, boot, device, inode, mount)

    def _store_identity(self, identity: _Identity) -> None:
        checked = CONTROL_IDENTITY.pack(CONTROL_MAGIC, FORMAT_VERSION, *identity, 0)[:-4]
        self.map[: CONTROL_IDENTITY.size] = checked + crc32c(checked).to_bytes(4, "little")

    @property
    def lock_file(self) -> int:
        """The inode number of the lock file that is held by the processes that have the channel open."""
        return load_u64(self.map, LOCK_FILE)

    @lock_file.setter
    def lock_file(self, inode: int) -> None:
        store_u64(self.map, LOCK_FILE, inode)

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
        """Whether the log must resume at `poisoned_before` before another offset is used, because it could not at once.

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

    # Checkpoints

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest valid checkpoint; None if there is none."""
        found = self._checkpoints()
        if not found:
            return None
        _, offset, sequence, oldest, state = max(found)
        return Checkpoint(Offset(offset), sequence, Offset(oldest), bool(state & STATE_SEALED))

    def _checkpoints(self) -> list[tuple[int, int, int, int, int]]:
        return [found for slot in CHECKPOINT_SLOTS if (found := self._checkpoint_at(slot)) is not None]

    def _checkpoint_at(self, slot: int) -> tuple[int, int, int, int, int] | None:
        *fields, crc = CHECKPOINT.unpack_from(self.map, slot)
        generation, offset, sequence, oldest, _, state = fields
        fits = 0 < generation <= _LARGEST_GENERATION and max(offset, sequence, oldest) <= LARGEST_OFFSET
        is_whole = fits and crc == crc32c(CHECKPOINT_CHECKED.pack(*fields))
        return (generation, offset, sequence, oldest, state) if is_whole else None

    def damaged_checkpoints(self) -> list[int]:
        """Return the positions of the checkpoint slots that were written to, and do not count."""
        used = [slot for slot in CHECKPOINT_SLOTS if any(self.map[slot : slot + CHECKPOINT_CHECKED.size])]
        return [slot for slot in used if self._checkpoint_at(slot) is None]

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint and wait until it is on disk; raise `OSError` on failure or a file system shutdown."""
        generation = max((found[0] for found in self._checkpoints()), default=0) + 1
        state = STATE_SEALED if checkpoint.sealed else 0
        fields = (generation, checkpoint.offset, checkpoint.sequence, checkpoint.oldest, time.time_ns(), state)
        content = CHECKPOINT.pack(*fields, crc32c(CHECKPOINT_CHECKED.pack(*fields)))
        self._files.write_at(self._descriptor, content, CHECKPOINT_SLOTS[generation % 2])
        self.begin_flush(FLUSHING_CONTROL)
        try:
            self._files.flush(self._descriptor)
        finally:
            self.check_storable()
            self.end_flush(FLUSHING_CONTROL)

    def check_running(self) -> None:
        """Raise `OSError` if the file system of the channel has shut down."""
        self._files.check_running(self._descriptor)

    def begin_flush(self, files: int) -> None:
        """Announce to all writers that these files are being flushed from now on, which makes their pages read-only."""
        seen = load_u32(self.map, FLUSHES)
        while not swap_if_u32(self.map, FLUSHES, seen, seen | files):
            seen = load_u32(self.map, FLUSHES)

    def end_flush(self, files: int) -> None:
        """Announce to all writers that the flush of these files has ended, with or without success.

        The caller has checked that the word can be stored even if the file system has shut down.
        """
        step = CONTROL_FLUSHES_STEP if files & FLUSHING_CONTROL else FLUSHES_STEP
        seen = load_u32(self.map, FLUSHES)
        while not swap_if_u32(self.map, FLUSHES, seen, (seen & ~files) + step & 0xFFFFFFFF):
            seen = load_u32(self.map, FLUSHES)

    @property
    def is_storable(self) -> bool:
        """Whether a store to the page is possible; if not, a store would kill the process."""
        return can_store(self.map, 0, PAGE)

    def check_storable(self) -> None:
        """Raise `OSError` if a store to the page would kill the process."""
        check_storable(self.map, 0, PAGE, self.path)


def replaced(what: str) -> StorageError:
    """Return the error that says that a part of the channel was deleted or replaced."""
    return StorageError(
        f"{what} was deleted or replaced while the channel was open: processes that open the channel now "
        "cannot receive what is sent here; close it, and open it again"
    )


def _inverted(boot: bytes) -> bytes:
    """Return the id that marks a page that was written in a boot and disowned: no boot has that id."""
    return bytes(byte ^ 0xFF for byte in boot)
