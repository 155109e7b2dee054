"""Statistics of a channel without opening it: read from the control page and the stored positions.

Nothing is opened for writing, registered or woken, so other processes are not affected.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .._errors import CorruptRecordError
from .._format import load_u32, load_u64
from .._format.layout import (
    CAPACITY_LOOPS,
    CAPACITY_WAKE,
    FAILED_FLUSHES,
    LOCK_SLOT_SHIFT,
    WAITING_LOOPS,
    WAKE,
    WAKE_THREADS,
    WRITER_LOCK,
)
from .._offset import LogPosition, Offset
from .._storage.capacity.backlog import Backlog, Batch
from .._storage.capacity.limits import finite, limits_of
from .._storage.consumers.cursor_file_format import CONSUMERS, StoredPosition
from .._storage.consumers.listing import ConsumerListing, Registration
from .._storage.control.control_file import CONTROL
from .._storage.control.control_page import Control
from .._storage.control.live_processes import Living, holder_at, living_in
from .._storage.control.lock_holder import Holder
from .._storage.control.maintenance_lock import MaintenanceLock
from .._storage.manifest import Manifest
from .._storage.reading.lookup import LogLookup
from .._storage.recovery.create import open_control_file
from .._storage.recovery.read_only import open_control_to_read
from .._storage.recovery.unreachable_records import Unreachable
from .._storage.segments.catalog import Segments, Usage
from .._storage.segments.segment import SegmentLimits
from .._storage.segments.segment_names import SEGMENTS
from .._storage.system.os_calls import Files

_MAPPED = 2  # segments; none is read


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFigures:
    """The state of a consumer at one moment."""

    name: str
    is_group: bool
    next_sequence: int
    offset: Offset
    damaged: bool
    """Whether its position cannot be read; then its lag is counted from the oldest message."""
    lag_messages: int
    lag_bytes: int
    idle: float
    """Seconds since it was opened, received a message or was moved; with a lag, accurate to within 16 messages."""
    owner: Holder | None
    """The live owner; of a group, the process that joined last. None if there is none, or if it is not known."""
    knows_owner: bool
    """False for a user with read permission only, who cannot see the owner."""
    members: int
    """How many processes share it; 0 for a single consumer."""
    expires: float | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The state of a channel at one moment."""

    path: Path
    time: float
    """By the monotonic clock."""
    write_offset: Offset
    oldest_offset: Offset
    durable_offset: Offset
    next_sequence: int
    """How many messages were ever sent."""
    messages: int
    """How many are stored."""
    sealed: bool
    usage: Usage
    consumers: tuple[ConsumerFigures, ...]
    writers: tuple[Holder, ...]
    """The processes that have it open for writing."""
    knows_writers: bool
    """Whether the list is complete. It may not be for a user with read permission only: another reader can hide one."""
    waiting_for_messages: int
    """Processes whose event loops wait for a message, plus one if threads of any process wait."""
    waiting_for_room: int
    """The same for senders that wait for capacity."""
    used: Batch
    """What the slowest consumer has not consumed."""
    max_bytes: int | None
    max_messages: int | None
    failed_flushes: int
    maintenance_errors: int
    maintained: int | None
    """When maintenance last ran (ns since the epoch)."""

    @property
    def fill(self) -> float | None:
        """The used fraction of the capacity; None if the channel has no limit."""
        parts = [
            used / most
            for used, most in ((self.used.size, self.max_bytes), (self.used.messages, self.max_messages))
            if most
        ]
        return max(parts) if parts else None


@final
class Watch:
    """A channel that is watched. Close it."""

    def __init__(self, files: Files, path: Path, descriptor: int, control: Control, manifest: Manifest) -> None:
        self.files = files
        self.path = path
        self.control: Control = control
        self.manifest: Manifest = manifest
        self._descriptor = descriptor
        self.unreachable: Unreachable | None = None
        """What the next open for writing would quarantine."""
        self._known = control.epoch
        self.segments: Segments = Segments(
            files,
            path / SEGMENTS,
            writable=False,
            most_mapped=_MAPPED,
            epoch=lambda: control.epoch,
            limits=SegmentLimits.of(manifest.options),
        )
        self.lookup: LogLookup = LogLookup(files, control, self.segments)
        self.consumer_listing: ConsumerListing = ConsumerListing(
            files, path / CONSUMERS, lambda: control.registrations, locks=None, check_directory=_unchecked
        )
        self.backlog: Backlog = Backlog(control, self.segments, self.lookup, self.consumer_listing)
        self.maintenance_lock: MaintenanceLock = MaintenanceLock(control, None)

    @classmethod
    def open(cls, path: Path, files: Files | None = None) -> Watch:
        """Start watching; raises what opening a channel read-only raises, and `OSError`."""
        files = files or Files()
        files.confine(path)
        manifest = Manifest.read(files, path)
        descriptor = open_control_file(files, path, True, 0)
        try:
            control, unreachable = open_control_to_read(files, path, descriptor, manifest)
            watch = cls(files, path, descriptor, control, manifest)
            watch.unreachable = unreachable
            return watch
        except BaseException:
            files.close(descriptor)
            raise

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to the channel."""
        return self.files.leads_to(self.path / CONTROL, self._descriptor)

    @property
    def living(self) -> Living:
        """The processes that have the channel open for writing."""
        return living_in(self.files, self.path, self._descriptor)

    @property
    def busy_writer(self) -> int:
        """The slot of the process that holds the writer lock; 0 if none does."""
        return load_u32(self.control.map, WRITER_LOCK) >> LOCK_SLOT_SHIFT

    def figures(self) -> Figures:
        """Return the current state."""
        control, living = self.control, self.living
        slots = living.slots
        if control.epoch != self._known:
            self._known, self.manifest = control.epoch, Manifest.read(self.files, self.path)
        # Values that only grow are read from the smaller to the larger: other processes send, flush and
        # remove at the same time.
        earliest, durable, tail, now = self.lookup.earliest(), control.durable_offset, control.tail(), time.time_ns()
        limits = limits_of(self.manifest.options.capacity, self.files, self.path)
        return Figures(
            path=self.path,
            time=time.monotonic(),
            write_offset=tail.offset,
            oldest_offset=earliest.offset,
            durable_offset=durable,
            next_sequence=tail.sequence,
            messages=max(0, tail.sequence - earliest.sequence),
            sealed=control.sealed,
            usage=self.segments.usage(),
            consumers=tuple(
                self._consumer(each, LogPosition(tail.offset, tail.sequence), earliest, now)
                for each in self.consumer_listing.registrations()
            ),
            writers=tuple(holder_at(control.map, slot) for slot in slots),
            knows_writers=living.is_complete,
            waiting_for_messages=self._waiting(slots, WAKE, WAITING_LOOPS),
            waiting_for_room=self._waiting(slots, CAPACITY_WAKE, CAPACITY_LOOPS),
            used=self._used(),
            max_bytes=None if limits is None else finite(limits.size),
            max_messages=None if limits is None else finite(limits.messages),
            failed_flushes=load_u32(control.map, FAILED_FLUSHES),
            maintenance_errors=self.maintenance_lock.errors,
            maintained=self.maintenance_lock.last_run,
        )

    def _used(self) -> Batch:
        try:
            return self.backlog.used()
        except (CorruptRecordError, ValueError):  # damage is reported elsewhere
            return Batch(0, 0)

    def _consumer(
        self, registration: Registration, end: LogPosition, earliest: LogPosition, now: int
    ) -> ConsumerFigures:
        position = registration.position or StoredPosition(earliest.offset, earliest.sequence, now)
        log_position = max(position.log_position, earliest, key=lambda start: start.offset)
        size, lag = self.backlog.between(log_position, end)
        return ConsumerFigures(
            name=registration.name,
            is_group=registration.members is not None,
            next_sequence=position.sequence,
            offset=position.offset,
            damaged=registration.position is None,
            lag_messages=lag,
            lag_bytes=size if lag else 0,
            idle=max(0, now - position.time) / 1e9,
            owner=registration.owner,
            knows_owner=registration.is_owner_known,
            members=len(registration.members or ()),
            expires=None if registration.expires is None else registration.expires / 1e9,
        )

    def _waiting(self, slots: Sequence[int], word: int, loops: int) -> int:
        """Count the live waiters: a process that was killed leaves its bits behind."""
        threads = load_u32(self.control.map, word) & WAKE_THREADS if slots else 0
        return threads + sum(load_u64(self.control.map, loops + slot // 64 * 8) >> slot % 64 & 1 for slot in slots)

    def close(self) -> None:
        """Stop watching."""
        self.segments.close()
        self.files.close(self._descriptor)

    def __enter__(self) -> Watch:
        """Use it in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _unchecked() -> None:
    """Accept a directory that was replaced: `Watch.is_there` reports that."""
