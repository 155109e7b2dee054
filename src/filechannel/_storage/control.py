"""The control file: the words that everybody who has the channel open shares through a map.

The word a reader trusts is `write_offset`; the pages are shared memory first and a file second. Only the checkpoint
page is flushed, and only that page is believed after a power cut.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .._errors import DiskFullError
from .._format import crc32c, load_u32, load_u64, store_u32, store_u64, swap_if_u32, take_bits
from .._format.layout import (
    ALLOCATED_END,
    APPEND_TAIL,
    CHECKPOINT,
    CHECKPOINT_CHECKED,
    CHECKPOINT_SLOTS,
    COMPRESSED_OFFSET,
    CONTROL_IDENTITY,
    CONTROL_MAGIC,
    CONTROL_RESERVE,
    CONTROL_SIZE,
    DURABLE_OFFSET,
    EPOCH,
    FAILED_FLUSHES,
    FLUSH_LOCK,
    FORMAT_VERSION,
    GIVEN_UP,
    MAINTAINER,
    MAINTENANCE_ERRORS,
    OLDEST_OFFSET,
    PAGE,
    PROCESS_SLOT_COUNT,
    PURGED_OFFSET,
    QUIET_OFFSET,
    QUIET_SINCE,
    RECLAIMING,
    REGISTRATIONS,
    REGISTRY,
    REGISTRY_DECIDED,
    RESERVED_END,
    ROOM,
    ROOM_LOOPS,
    ROOM_TURN,
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
from .._offset import Offset
from .files import Files

CONTROL = "control"
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Tail:
    """An end of the log: offset and sequence that belong together, and the segment they lie in."""

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


class Control:
    """The mapped control file of one channel."""

    def __init__(self, files: Files, descriptor: int, *, writable: bool = True, private: bool = False) -> None:
        self._files = files
        self._descriptor = descriptor
        if writable and not private and not self.keep_reserve():
            self._allocate(CONTROL_SIZE)
        self.map: mmap.mmap = files.map(descriptor, CONTROL_SIZE, writable=writable, private=private)

    # Disk space

    def keep_reserve(self) -> bool:
        """Have disk space for the words, and for what has to be stored although the disk is full; tell whether.

        Where there is not enough, as much as there is.
        """
        try:
            self._allocate(CONTROL_SIZE + CONTROL_RESERVE)
        except DiskFullError:
            self._keep_what_is_left()
            return False
        return True

    def _keep_what_is_left(self) -> None:
        with suppress(DiskFullError):
            for size in range(PAGE, CONTROL_RESERVE, PAGE):
                self._allocate(CONTROL_SIZE + size)

    def _allocate(self, size: int) -> None:
        self._files.allocate(Path(CONTROL), self._descriptor, 0, size)

    @property
    def has_reserve(self) -> bool:
        """Whether nobody has spent any of it."""
        return self._files.size(self._descriptor) >= CONTROL_SIZE + CONTROL_RESERVE

    def spending_reserve(self, store: Callable[[], R]) -> R:
        """Store something small for which there must be room: a consumer's name, the manifest, the way on."""
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

    # Identity

    @property
    def channel_id(self) -> bytes | None:
        """The channel that the words were written for; None if that is damaged."""
        magic, _, _, channel_id, *_, crc = CONTROL_IDENTITY.unpack_from(self.map)
        is_whole = magic == CONTROL_MAGIC and crc == crc32c(self.map[: CONTROL_IDENTITY.size - 4])
        return channel_id if is_whole else None

    def belongs_to(self, channel_id: bytes, boot: bytes) -> bool:
        """Tell whether the words were written in this boot, by this channel, into this very file."""
        return bytes(self.map[: CONTROL_IDENTITY.size]) == self._identity(channel_id, boot)

    def is_of_before(self, channel_id: bytes, boot: bytes) -> bool:
        """Tell whether the words were written by this channel, into this very file, and in an earlier boot."""
        before, device, inode = CONTROL_IDENTITY.unpack_from(self.map)[4:7]
        is_whole = bytes(self.map[: CONTROL_IDENTITY.size]) == _pack_identity(channel_id, before, device, inode)
        # Not the device: it may have another number in every boot.
        return is_whole and before != boot and inode == self._files.identity(self._descriptor)[1]

    def identify(self, channel_id: bytes, boot: bytes) -> None:
        """Declare the words valid for this boot."""
        self.map[: CONTROL_IDENTITY.size] = self._identity(channel_id, boot)

    def _identity(self, channel_id: bytes, boot: bytes) -> bytes:
        return _pack_identity(channel_id, boot, *self._files.identity(self._descriptor))

    # Words

    @property
    def write_offset(self) -> Offset:
        """How far readers may read."""
        return Offset(load_u64(self.map, WRITE_TAIL))

    @property
    def oldest_offset(self) -> Offset:
        """Where the oldest stored message begins, as it is decided; see `registry`."""
        while True:
            seen = load_u32(self.map, REGISTRY)
            if not seen & REGISTRY_DECIDED:
                return Offset(load_u64(self.map, OLDEST_OFFSET))
            oldest = max(load_u64(self.map, OLDEST_OFFSET), load_u64(self.map, RECLAIMING))
            if load_u32(self.map, REGISTRY) == seen:
                return Offset(oldest)

    @oldest_offset.setter
    def oldest_offset(self, offset: int) -> None:
        store_u64(self.map, OLDEST_OFFSET, offset)

    def purge(self, offset: int) -> None:
        """Let this be the oldest, by a purge. The caller holds the writer word."""
        # In this order: dying in between, consumers are told of what is gone, and never moved over what is there.
        self.oldest_offset = offset
        store_u64(self.map, PURGED_OFFSET, offset)

    @property
    def is_purged(self) -> bool:
        """Whether it was a purge that moved the oldest offset last."""
        return self.oldest_offset == load_u64(self.map, PURGED_OFFSET)

    @property
    def durable_offset(self) -> Offset:
        """Everything below it has been flushed."""
        return Offset(load_u64(self.map, DURABLE_OFFSET))

    @durable_offset.setter
    def durable_offset(self, offset: int) -> None:
        store_u64(self.map, DURABLE_OFFSET, offset)

    @property
    def reserved_end(self) -> int:
        """No writer has touched anything at or beyond this offset since the last publish."""
        return load_u64(self.map, RESERVED_END)

    @reserved_end.setter
    def reserved_end(self, offset: int) -> None:
        store_u64(self.map, RESERVED_END, offset)

    @property
    def allocated_end(self) -> int:
        """Up to here the active segment has disk space."""
        return load_u64(self.map, ALLOCATED_END)

    @allocated_end.setter
    def allocated_end(self, offset: int) -> None:
        store_u64(self.map, ALLOCATED_END, offset)

    @property
    def compressed_offset(self) -> Offset:
        """Before it every finished segment is compressed, or not worth it."""
        return Offset(load_u64(self.map, COMPRESSED_OFFSET))

    @compressed_offset.setter
    def compressed_offset(self, offset: int) -> None:
        store_u64(self.map, COMPRESSED_OFFSET, offset)

    @property
    def epoch(self) -> int:
        """Changes whenever segments come or go, or are written to in another way."""
        return load_u32(self.map, EPOCH)

    @property
    def failed_flushes(self) -> int:
        """How many flushes the disk has refused, in any process."""
        return load_u32(self.map, FAILED_FLUSHES)

    def count_failed_flush(self) -> None:
        """One more. The caller holds the flush word."""
        store_u32(self.map, FAILED_FLUSHES, self.failed_flushes + 1 & 0xFFFFFFFF)

    @property
    def given_up(self) -> Offset:
        """No segment that begins below it is flushed or its file used again: the disk has refused one of them."""
        return Offset(load_u64(self.map, GIVEN_UP))

    @given_up.setter
    def given_up(self, offset: int) -> None:
        store_u64(self.map, GIVEN_UP, offset)

    @property
    def is_in_doubt(self) -> bool:
        """Whether something is stored that was given up before it was on disk: no flush can bring it there any more."""
        return max(self.durable_offset, self.oldest_offset) < min(self.given_up, self.write_offset)

    @property
    def owes_jump(self) -> bool:
        """Whether the log has to go on at `given_up` before another offset is used: it could not when it had to."""
        return self.given_up > self.write_offset

    @property
    def registrations(self) -> int:
        """Changes whenever a consumer's name was registered or removed, or went back, by any process."""
        return load_u32(self.map, REGISTRATIONS)

    def count_registration(self) -> None:
        """One more name, or one less, or one that went back. After it is so: whoever looked before looks again."""
        seen = self.registrations
        while not swap_if_u32(self.map, REGISTRATIONS, seen, seen + 1 & 0xFFFFFFFF):
            seen = self.registrations

    @property
    def deferred(self) -> bool:
        """Whether writers leave it to a flush to move what readers see."""
        return bool(load_u32(self.map, STATE) & STATE_DEFERRED)

    @deferred.setter
    def deferred(self, deferred: bool) -> None:
        state = load_u32(self.map, STATE)
        store_u32(self.map, STATE, state | STATE_DEFERRED if deferred else state & ~STATE_DEFERRED)

    @property
    def sealed(self) -> bool:
        """Whether the channel takes no more messages."""
        return bool(load_u32(self.map, STATE) & STATE_SEALED)

    def mark_sealed(self) -> None:
        """Refuse messages from now on."""
        store_u32(self.map, STATE, load_u32(self.map, STATE) | STATE_SEALED)

    # Tails

    def tail(self, *, deferred: bool = False) -> Tail:
        """Return what readers see or, deferred, what has been appended."""
        at = APPEND_TAIL if deferred else WRITE_TAIL
        while True:
            offset = load_u64(self.map, at)
            for distance in TAIL_SLOTS:
                end, sequence, segment, crc = TAIL_SLOT.unpack_from(self.map, at + distance)
                if end == offset and crc == crc32c(TAIL_CHECKED.pack(end, sequence, segment)):
                    return Tail(Offset(end), sequence, Offset(segment))
            if load_u64(self.map, at) == offset:
                raise ValueError("no tail slot agrees with the offset")

    @property
    def has_tail(self) -> bool:
        """Whether it can be told how far readers may read."""
        try:
            self.tail()
        except ValueError:
            return False
        return True

    def publish(self, tail: Tail, *, deferred: bool = False) -> None:
        """Move a tail. The caller is the only one who does."""
        at = APPEND_TAIL if deferred else WRITE_TAIL
        current = load_u64(self.map, at)
        ends = [load_u64(self.map, at + distance) for distance in TAIL_SLOTS]
        free = TAIL_SLOTS[1 if ends[0] == current else 0]
        checked = TAIL_CHECKED.pack(tail.offset, tail.sequence, tail.segment)
        TAIL_SLOT.pack_into(self.map, at + free, tail.offset, tail.sequence, tail.segment, crc32c(checked))
        store_u64(self.map, at, tail.offset)

    def start_over(self, tail: Tail, oldest: int, *, sealed: bool) -> None:
        """Write every word anew, but for what is given up. Only for whoever has the channel to itself."""
        for at in (WRITE_TAIL, APPEND_TAIL):
            self._set_tail(at, tail)
        for word in (REGISTRY, MAINTENANCE_ERRORS, MAINTAINER):
            store_u32(self.map, word, 0)
        for word in (RECLAIMING, QUIET_OFFSET, QUIET_SINCE, PURGED_OFFSET):
            store_u64(self.map, word, 0)
        self.oldest_offset = oldest
        if not self.is_in_doubt:
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
        """Free the lock words, and drop what was appended but never shown. Only for a lone process."""
        for word in (WRITER_LOCK, FLUSH_LOCK, WAKE, ROOM, ROOM_TURN):
            store_u32(self.map, word, 0)
        if not self.is_in_doubt:
            store_u32(self.map, FAILED_FLUSHES, 0)
        for waiting in (WAITING_LOOPS, ROOM_LOOPS):
            take_bits(self.map, waiting, PROCESS_SLOT_COUNT // 64)
        self._set_tail(APPEND_TAIL, self.tail())

    # Checkpoints

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest whole checkpoint."""
        found = self._checkpoints()
        if not found:
            return None
        _, offset, sequence, oldest, state = max(found)
        return Checkpoint(Offset(offset), sequence, Offset(oldest), bool(state & STATE_SEALED))

    def _checkpoints(self) -> list[tuple[int, int, int, int, int]]:
        found: list[tuple[int, int, int, int, int]] = []
        for slot in CHECKPOINT_SLOTS:
            *fields, crc = CHECKPOINT.unpack_from(self.map, slot)
            generation, offset, sequence, oldest, _, state = fields
            if generation and crc == crc32c(CHECKPOINT_CHECKED.pack(*fields)):
                found.append((generation, offset, sequence, oldest, state))
        return found

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint and wait until it is on disk."""
        generation = max((found[0] for found in self._checkpoints()), default=0) + 1
        state = STATE_SEALED if checkpoint.sealed else 0
        fields = (generation, checkpoint.offset, checkpoint.sequence, checkpoint.oldest, time.time_ns(), state)
        content = CHECKPOINT.pack(*fields, crc32c(CHECKPOINT_CHECKED.pack(*fields)))
        self._files.write_at(self._descriptor, content, CHECKPOINT_SLOTS[generation % 2])
        self._files.flush(self._descriptor)


def _pack_identity(channel_id: bytes, boot: bytes, device: int, inode: int) -> bytes:
    fields = CONTROL_IDENTITY.pack(CONTROL_MAGIC, FORMAT_VERSION, 0, channel_id, boot, device, inode, 0)
    checked = fields[:-4]
    return checked + crc32c(checked).to_bytes(4, "little")
