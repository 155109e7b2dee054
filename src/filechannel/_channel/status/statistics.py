"""The results of the `statistics()` methods: frozen snapshots, taken without waiting for other processes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import final

from ..._maintenance.background.plan_reclaim import Pin
from ..._offset import Offset


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as it described itself when it opened the channel; None for what cannot be read."""

    pid: int | None
    """The process id, as seen in its own container."""
    host: str | None
    """The name of its host."""
    since: datetime | None
    """When it opened the channel, or acquired what it holds."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStatistics:
    """The maintenance of a channel, done in the background by any of its processes."""

    reclaimed_segments: int
    """The number of segments removed because no consumer needed them any more, or because of the retention."""
    reclaimed_bytes: int
    """The bytes of records in them."""
    errors: int
    """The number of errors. The log of the process in which they occurred has the details. Failed work is retried."""
    last_run: datetime | None
    """When a process last checked whether there is maintenance to do. An idle channel is checked less often."""
    runner: Process | None
    """The process that checked; None if it has ended, or if the channel is open read-only here."""
    running: bool
    """Whether a process was doing maintenance at this moment; False if the channel is open read-only here.

    A process that gets stuck there, because it was stopped or its disk does not respond, keeps other processes from
    maintaining the channel.
    """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoomStatistics:
    """The capacity of a channel at one moment."""

    bytes: int
    """Bytes of records that the slowest consumer has not consumed; without consumers, of all stored records."""
    messages: int
    """The number of messages in them."""
    max_bytes: int | None
    """The limit in bytes; None if only messages are limited. A fraction of the file system uses its current size."""
    max_messages: int | None
    """The limit in messages; None if only bytes are limited."""
    waiting_senders: int
    """Tasks and threads of this process that wait for capacity."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """A channel at one moment."""

    path: Path
    write_offset: Offset
    """The offset of the next message; everything before it is visible."""
    durable_offset: Offset
    """Everything before this offset is known to be on disk."""
    oldest_offset: Offset
    """The offset of the oldest stored message."""
    next_sequence: int
    """The number of messages ever sent."""
    messages: int
    """The number of stored messages."""
    bytes_on_disk: int
    """Disk space of the segments and of the files in the free list, including space allocated in advance."""
    segments: int
    """The number of segments."""
    compressed_segments: int
    """The number of compressed segments."""
    compressed_bytes: int
    """Disk space of the compressed segments."""
    spare_segments: int
    """The number of files in the free list: of reclaimed segments, or prepared in advance."""
    mapped_segments: int
    """The number of segments and free-list files mapped by this process, readers included: at most
    ``max_mapped_segments``."""
    senders: int
    """Open senders of this channel object."""
    receivers: int
    """Open receivers of this channel object."""
    waiters: int
    """Tasks and threads of this process that wait for a message."""
    writers: tuple[Process, ...]
    """The processes that have the channel open for writing, including this one unless it is open read-only here."""
    writers_known: bool
    """Whether those are all. False for a user with read access only: another such user can hide a process."""
    busy_writer: Process | None
    """The one of them that held the writer lock at this moment. If it gets stuck, the other writers have to wait."""
    oldest_age: timedelta | None
    """How long ago the oldest segment was started; None if nothing is stored."""
    sealed: bool
    """Whether the channel is sealed and accepts no more messages."""
    pinned_by: Pin | None
    """What keeps the oldest segment from being reclaimed; None if nothing does, or nothing is stored. `str()` gives one
    line of text."""
    maintenance: MaintenanceStatistics
    """The maintenance of the channel."""
    room: RoomStatistics | None
    """How much of the capacity is used; None if it is not limited."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatistics:
    """A sender at one moment."""

    write_offset: Offset
    """The offset of the next message."""
    durable_offset: Offset
    """Everything before this offset is known to be on disk."""
    next_sequence: int
    """The number of messages ever sent to the channel."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverStatistics:
    """A receiver at one moment."""

    read_offset: Offset
    """The offset of the next message."""
    next_sequence: int
    """The sequence of the next new message."""
    lag_messages: int
    """The number of messages available to be received."""
    lag_bytes: int
    """The bytes of their records, including control records between them."""
    unacked: int
    """The number of messages that an `AckReceiver` has delivered and that are neither acked nor nacked; 0 for other
    receivers."""
    clones: int
    """The number of receivers that share the position, including this one."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatistics:
    """A service at one moment."""

    handled: int
    """The number of messages that were handled and acknowledged."""
    failed: int
    """The number of failed attempts."""
    retried: int
    """The number of failed attempts that were or will be followed by another one."""
    dead: int
    """The number of messages sent to the dead-letter channel."""
    missed: int
    """The number of messages that were removed, by a purge or a limit, before they were handled."""
    in_flight: int
    """The number of messages that are being handled, or wait in order for another attempt."""
    lag: int
    """The number of messages from the oldest one on that is not acknowledged. For an ended service: at its end."""
    paused: bool
    """Whether nothing new is started until `resume()`."""
    stopped: bool
    """Whether nothing new is started any more. The service has ended when nothing is in flight."""
    last_error: str | None
    """The error of the last failed attempt, or the error that ended the service; None if there was none."""
