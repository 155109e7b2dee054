"""A channel at one moment, as `statistics()` returns it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from .._errors import FileChannelError, StorageError
from .._maintenance.retention import Pin, find_plan
from .._storage.room import finite, limits_of
from .._storage.store import Store
from .._wakeup.arrivals import arrivals_of
from .._wakeup.line import line_of
from .consumers import process_of
from .statistics import ChannelStatistics, MaintenanceStatistics, Process, RoomStatistics


def take_snapshot(store: Store, *, senders: int, receivers: int) -> ChannelStatistics:
    """Look at a channel, of which one object has so many of both open."""
    control = store.control
    # What only grows is read from the smaller to the larger: others send, flush and remove meanwhile.
    earliest, durable, tail = store.places.earliest(), control.durable_offset, control.tail()
    messages, usage = max(0, tail.sequence - earliest.sequence), store.segments.usage()
    writers, writers_known = store.writers()
    return ChannelStatistics(
        path=store.path,
        write_offset=tail.offset,
        durable_offset=durable,
        oldest_offset=earliest.offset,
        next_sequence=tail.sequence,
        messages=messages,
        bytes_on_disk=usage.bytes,
        segments=usage.plain + usage.compressed,
        compressed_segments=usage.compressed,
        compressed_bytes=usage.compressed_bytes,
        spare_segments=usage.spare,
        mapped_segments=store.segments.mapped,
        senders=senders,
        receivers=receivers,
        waiters=arrivals_of(store).waiting,
        writers=tuple(map(process_of, writers)),
        writers_known=writers_known,
        busy_writer=_busy_writer(store),
        oldest_age=timedelta(seconds=(time.time_ns() - earliest.time) / 1e9) if earliest.time and messages else None,
        sealed=control.sealed,
        pinned_by=_pin(store),
        maintenance=_maintenance(store),
        room=_room_statistics(store),
    )


def _room_statistics(store: Store) -> RoomStatistics | None:
    try:
        options = store.options()
    except StorageError:  # it was moved away, and goes on with what it knows
        options = store.manifest.options
    limits = limits_of(options.capacity, store.files, store.path)
    if limits is None:
        return None
    used = store.backlog.used()
    return RoomStatistics(
        bytes=used.size,
        messages=used.messages,
        max_bytes=finite(limits.size),
        max_messages=finite(limits.messages),
        waiting_senders=0 if store.readonly else len(line_of(store)),
    )


def _busy_writer(store: Store) -> Process | None:
    holder = None if store.processes is None else store.log.holder
    return None if holder is None else process_of(holder)


def _pin(store: Store) -> Pin | None:
    try:
        return find_plan(store).pin
    except (FileChannelError, OSError):  # the directory was moved, or a file cannot be read: maintenance says so
        return None


def _maintenance(store: Store) -> MaintenanceStatistics:
    upkeep = store.upkeep
    (segments, size), last, runner = upkeep.reclaimed, upkeep.last_turn, upkeep.maintainer
    return MaintenanceStatistics(
        reclaimed_segments=segments,
        reclaimed_bytes=size,
        errors=upkeep.errors,
        last_run=None if last is None else datetime.fromtimestamp(last / 1e9, UTC),
        runner=None if runner is None else process_of(runner),
        running=upkeep.is_running,
    )
