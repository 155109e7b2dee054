"""The control file: the words that everybody who has the channel open shares through a map.

The word a reader trusts is `write_offset`; the pages are shared memory first and a file second. Only the checkpoint
page is flushed, and only that page is believed after a power cut.
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

from .._errors import ClosedResourceError, DiskFullError, StorageError, repair_command
from .._format import can_store, crc32c, load_u32, load_u64, store_u32, store_u64, swap_if_u32, take_bits
from .._format.layout import (
    ALLOCATED_END,
    APPEND_TAIL,
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
    GIVEN_UP,
    LOCK_FILE,
    MAINTAINER,
    MAINTENANCE_ERRORS,
    OFFSET_JUMP,
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
from .maps import Inode, OpenFile, check_storable

CONTROL = "control"
R = TypeVar("R")
_LARGEST_GENERATION = (1 << 63) - 1  # whatever comes next fits, too


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


class _Identity(NamedTuple):
    """What the words were written for."""

    life: int
    """Random: changes whenever the words are recovered."""
    channel: bytes
    boot: bytes
    device: int
    inode: int
    mount: int
    """0 where the kernel has no unique id of a mount."""


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
        """Where the file is, for error messages; relative where only that is known."""
        if writable and not private and not self.keep_reserve():
            self._allocate(CONTROL_SIZE)
        self.map: mmap.mmap = files.map(descriptor, CONTROL_SIZE, writable=writable, private=private)

    def close(self) -> None:
        """Unmap it or, if another thread is using it in a call, do so when that call returns.

        From now on every word is a `ClosedResourceError`.
        """
        self._opened = -1
        self.map.close()

    @property
    def _descriptor(self) -> int:
        """Of the open file; `ClosedResourceError` after `close`: the number may be that of another file by then."""
        if self._opened < 0:
            raise ClosedResourceError
        return self._opened

    def check_name(self, directory: OpenFile, name: bytes) -> None:
        """Raise `StorageError` if the file was deleted or replaced: no other process can see what is published here.

        *name* is that of the file in a directory.
        """
        if not directory.holds(name, self._descriptor, self._inode):
            raise replaced(CONTROL)

    # Disk space

    def keep_reserve(self) -> bool:
        """Have disk space for the words, and for what has to be stored although the disk is full; tell whether.

        Where there is not enough, as much as there is.
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
        """Whether nobody has spent any of it."""
        return self._files.size(self._descriptor) >= self._full_size

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

    # Damage

    def damaged(self, problem: str) -> StorageError:
        """Return the error that says that the words are damaged, and what to do."""
        return StorageError(
            f"{self.path} is damaged: {problem}; close every process that uses the channel and open it again, "
            f"or run {repair_command(self.path.parent)}"
        )

    # Identity

    @property
    def channel_id(self) -> bytes | None:
        """The channel that the words were written for; None if that is damaged."""
        stored = self._identity()
        return None if stored is None else stored.channel

    def is_foreign(self, channel_id: str) -> bool:
        """Return whether the words were written for another channel, whose checkpoints say nothing about this one."""
        return self.channel_id not in (None, bytes.fromhex(channel_id))

    def check_channel(self, channel_id: str) -> None:
        """Raise `StorageError` if the words were written for another channel: recovery would delete this one's data."""
        if self.is_foreign(channel_id):
            raise StorageError(
                f"{self.path} belongs to another channel, and nothing was changed; put the right file back, or run "
                f"{repair_command(self.path.parent)}, which finds the end of the log without it"
            )

    def belongs_to(self, channel_id: bytes, boot: bytes) -> bool:
        """Return whether the words were written in this boot, by this channel, into this very file.

        That does not prove that they are as recent as the other files: see `staleness`.
        """
        stored = self._identity()
        if stored is None or (stored.channel, stored.boot) != (channel_id, boot):
            return False
        return (stored.device, stored.inode) == self._files.identity(self._descriptor)

    @property
    def is_same_mount(self) -> bool:
        """Whether the file system was not mounted again since the words were written; False where that is unknown."""
        stored, mount = self._identity(), self._files.mount(self._descriptor)
        return stored is not None and mount != 0 and stored.mount == mount

    def is_of_before(self, channel_id: bytes, boot: bytes) -> bool:
        """Return whether the words were written by this channel, into this very file, and before a boot or a mount.

        Words that were disowned count as such.
        """
        stored = self._identity()
        # Not the device: it may have another number in every boot.
        if stored is None or stored.channel != channel_id or stored.inode != self._files.identity(self._descriptor)[1]:
            return False
        return stored.boot != boot or not self.is_same_mount

    def identify(self, channel_id: bytes, boot: bytes) -> None:
        """Declare the words valid for this boot and mount. They have another life unless they were valid before."""
        if not (self.belongs_to(channel_id, boot) and self.is_same_mount):
            mount = self._files.mount(self._descriptor)
            device, inode = self._files.identity(self._descriptor)
            self._store_identity(_Identity(secrets.randbits(32), channel_id, boot, device, inode, mount))

    def disown(self, boot: bytes) -> None:
        """Declare the words of this boot invalid, so that recovery starts over wherever it is interrupted."""
        stored = self._identity()
        if stored is not None and stored.boot == boot:
            self._store_identity(stored._replace(boot=_inverted(stored.boot)))

    def is_of_boot(self, boot: bytes) -> bool:
        """Return whether the words were written in this boot, disowned or not: memory may have more than the disk."""
        stored = self._identity()
        return stored is not None and stored.boot in (boot, _inverted(boot))

    def _identity(self) -> _Identity | None:
        """Return what the words were written for; None if that is damaged, or of another format version."""
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
        """The inode number of the lock file that the processes which have the channel open hold."""
        return load_u64(self.map, LOCK_FILE)

    @lock_file.setter
    def lock_file(self, inode: int) -> None:
        store_u64(self.map, LOCK_FILE, inode)

    # Words

    @property
    def write_offset(self) -> Offset:
        """How far readers may read."""
        return Offset(load_u64(self.map, WRITE_TAIL))

    @property
    def append_offset(self) -> Offset:
        """Where the log ends, whether readers see all of it or not."""
        return Offset(load_u64(self.map, APPEND_TAIL if self.deferred else WRITE_TAIL))

    @property
    def oldest_offset(self) -> Offset:
        """Where the oldest stored message begins, as it is decided; see `registry`.

        `StorageError` if that is beyond the end of the log: everything before it counts as removed, and is removed.
        """
        oldest = self._oldest()
        if oldest > self.write_offset:  # loaded after it, and never smaller
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
        given_up = self.given_up
        if given_up <= self.durable_offset:  # as always unless a flush has failed
            return False
        return max(self.durable_offset, self.oldest_offset) < min(given_up, self.write_offset)

    @property
    def owes_jump(self) -> bool:
        """Whether the log has to resume at `given_up` before another offset is used: it could not when it had to.

        `StorageError` if that is not where a gap of offsets ends.
        """
        given_up, end = self.given_up, self.write_offset
        if given_up > end and (given_up % OFFSET_JUMP or given_up - end > 2 * OFFSET_JUMP):
            raise self.damaged(f"the log is to resume at {given_up}")
        return given_up > end

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
        """Return what readers see or, deferred, what has been appended; `StorageError` if the words are damaged."""
        at = APPEND_TAIL if deferred else WRITE_TAIL
        while True:
            offset = load_u64(self.map, at)
            for distance in TAIL_SLOTS:
                end, sequence, segment, crc = TAIL_SLOT.unpack_from(self.map, at + distance)
                if end == offset and crc == crc32c(TAIL_CHECKED.pack(end, sequence, segment)):
                    return Tail(Offset(end), sequence, Offset(segment))
            if load_u64(self.map, at) == offset:
                raise self.damaged(f"no tail slot agrees with the offset {offset}")

    @property
    def has_tail(self) -> bool:
        """Whether the words say how far readers may read, and where the oldest message begins."""
        try:
            self.tail()
            _ = self.oldest_offset
        except StorageError:
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
        for word in (WRITER_LOCK, FLUSH_LOCK, FLUSHES, WAKE, ROOM, ROOM_TURN):
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
            if 0 < generation <= _LARGEST_GENERATION and crc == crc32c(CHECKPOINT_CHECKED.pack(*fields)):
                found.append((generation, offset, sequence, oldest, state))
        return found

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint and wait until it is on disk. `OSError` if it is not, or the file system has shut down."""
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

    def begin_flush(self, files: int) -> None:
        """Let every writer know that these files are flushed from now on, which makes their pages read-only."""
        seen = load_u32(self.map, FLUSHES)
        while not swap_if_u32(self.map, FLUSHES, seen, seen | files):
            seen = load_u32(self.map, FLUSHES)

    def end_flush(self, files: int) -> None:
        """Let every writer know that these files were flushed, whatever came of it.

        The caller has made sure that this can be stored although the file system may have shut down.
        """
        step = CONTROL_FLUSHES_STEP if files & FLUSHING_CONTROL else FLUSHES_STEP
        seen = load_u32(self.map, FLUSHES)
        while not swap_if_u32(self.map, FLUSHES, seen, (seen & ~files) + step & 0xFFFFFFFF):
            seen = load_u32(self.map, FLUSHES)

    @property
    def is_storable(self) -> bool:
        """Whether a store to the words would not kill the process."""
        return can_store(self.map, 0, PAGE)

    def check_storable(self) -> None:
        """Raise `OSError` if a store to the words would kill the process."""
        check_storable(self.map, 0, PAGE, self.path)


def replaced(what: str) -> StorageError:
    """Return the error that says that a part of the channel is not under its name any more."""
    return StorageError(
        f"{what} was deleted or replaced while the channel was open: processes that open the channel now "
        "cannot receive what is sent here; close it, and open it again"
    )


def _inverted(boot: bytes) -> bytes:
    """Return what stands for words that were written in a boot and disowned: no other boot has that id."""
    return bytes(byte ^ 0xFF for byte in boot)
