"""Taking a `ChannelStatistics` snapshot."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from ..._errors import FileChannelError, StorageError
from ..._maintenance.background.plan_reclaim import Pin, find_plan
from ..._storage.capacity.limits import finite, limits_of
from ..._storage.store import Store
from ..._storage.writable_store import WritableStore
from ..._wakeup.send_queue import send_queue_of
from ..._wakeup.waiters import waiters_of
from .consumer_status import process_of
from .statistics import ChannelStatistics, MaintenanceStatistics, Process, RoomStatistics


def take_snapshot(store: Store, *, senders: int, receivers: int) -> ChannelStatistics:
    """Take a snapshot of a channel; *senders* and *receivers* are those of one channel object."""
    control = store.control
    # Values that only grow are read from the smallest to the largest: other processes send, flush and reclaim
    # meanwhile.
    earliest, durable, tail = store.lookup.earliest_entry(), control.durable_offset, control.tail()
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
        waiters=waiters_of(store).waiting,
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
    except StorageError:  # the directory was moved away, and the store keeps using what it knows
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
        waiting_senders=len(send_queue_of(store)) if isinstance(store, WritableStore) else 0,
    )


def _busy_writer(store: Store) -> Process | None:
    holder = store.log.holder if isinstance(store, WritableStore) else None
    return None if holder is None else process_of(holder)


def _pin(store: Store) -> Pin | None:
    try:
        return find_plan(store).pin
    except (FileChannelError, OSError):  # the directory was moved, or a file cannot be read: maintenance reports that
        return None


def _maintenance(store: Store) -> MaintenanceStatistics:
    maintenance_lock = store.maintenance_lock
    (segments, size), last, runner = maintenance_lock.reclaimed, maintenance_lock.last_run, maintenance_lock.maintainer
    return MaintenanceStatistics(
        reclaimed_segments=segments,
        reclaimed_bytes=size,
        errors=maintenance_lock.errors,
        last_run=None if last is None else datetime.fromtimestamp(last / 1e9, UTC),
        runner=None if runner is None else process_of(runner),
        running=maintenance_lock.is_running,
    )
