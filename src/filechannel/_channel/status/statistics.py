"""What the `statistics()` methods return: frozen snapshots, taken without waiting for anybody."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import final

from .._maintenance.retention import Pin
from .._offset import Offset


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as it described itself when it opened the channel; None where that cannot be read."""

    pid: int | None
    """Its number, as it is known in its own container."""
    host: str | None
    since: datetime | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStatistics:
    """What was done for a channel in the background, by whichever process."""

    reclaimed_segments: int
    """How many segments were removed because nobody needed them any more, or the retention said so."""
    reclaimed_bytes: int
    """How many bytes of records were in them."""
    errors: int
    """How often something went wrong; the log of the process in which it did says what. It is tried again."""
    last_run: datetime | None
    """When a process looked last what is to be done; one that is quiet is looked at less often."""
    runner: Process | None
    """Which process that was; None if it has ended, or the channel is open read-only here."""
    running: bool
    """Whether a process was in the middle of it at this moment; False if the channel is open read-only here.

    One that stays there, because it was stopped or its disk does not answer, keeps others from maintaining the channel.
    """


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RoomStatistics:
    """The capacity of a channel at one moment."""

    bytes: int
    """Bytes of records that the slowest consumer has not passed; with no consumer, all that are stored."""
    messages: int
    """How many messages that are."""
    max_bytes: int | None
    """How many bytes may be; None if only messages are limited. A part of the file system is counted as it is now."""
    max_messages: int | None
    """How many messages may be; None if only bytes are limited."""
    waiting_senders: int
    """Tasks and threads of this process that wait for room."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatistics:
    """A channel at one moment."""

    path: Path
    write_offset: Offset
    """Where the next message will begin; everything before it is visible."""
    durable_offset: Offset
    """Everything before it is known to be on disk."""
    oldest_offset: Offset
    """Where the oldest stored message begins."""
    next_sequence: int
    """How many messages were ever sent."""
    messages: int
    """How many messages are stored."""
    bytes_on_disk: int
    """Disk space of the segments and spare files, with what is allocated ahead."""
    segments: int
    """How many segments there are."""
    compressed_segments: int
    """How many of them are compressed."""
    compressed_bytes: int
    """Disk space of those."""
    spare_segments: int
    """How many files wait to become segments, having been consumed or made ahead of time."""
    mapped_segments: int
    """How many of both this process has mapped, its readers included: at most ``max_mapped_segments``."""
    senders: int
    """Open senders of this channel object."""
    receivers: int
    """Open receivers of this channel object."""
    waiters: int
    """Tasks and threads of this process that wait for a message."""
    writers: tuple[Process, ...]
    """The processes that have the channel open for writing, this one included unless it is open read-only here."""
    writers_known: bool
    """Whether those are all. False for a user who may only read the channel: another such user can hide a process."""
    busy_writer: Process | None
    """The one of them that was in the middle of sending at this moment; one that stays there holds up the others."""
    oldest_age: timedelta | None
    """How long ago the oldest segment was begun; None if nothing was stored when it was looked for."""
    sealed: bool
    """Whether the channel takes no more messages."""
    pinned_by: Pin | None
    """What holds back the oldest segment; None if nothing does, or nothing is stored. `str()` says it in one line."""
    maintenance: MaintenanceStatistics
    """What was done in the background."""
    room: RoomStatistics | None
    """How much of its capacity is used; None if it has none."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStatistics:
    """A sender at one moment."""

    write_offset: Offset
    """Where the next message will begin."""
    durable_offset: Offset
    """Everything before it is known to be on disk."""
    next_sequence: int
    """How many messages were ever sent to the channel."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverStatistics:
    """A receiver at one moment."""

    read_offset: Offset
    """Where the next message begins."""
    next_sequence: int
    """The number of the next message that is new."""
    lag_messages: int
    """How many messages are there to be received."""
    lag_bytes: int
    """How many bytes their records have, with what lies between them."""
    unacked: int
    """How many messages an `AckReceiver` has handed out that are neither acked nor nacked; 0 for others."""
    clones: int
    """How many receivers share the position, this one included."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatistics:
    """A service at one moment."""

    handled: int
    """How many messages were handled and acknowledged."""
    failed: int
    """How many attempts have failed."""
    retried: int
    """How many of them were followed by another one, or will be."""
    dead: int
    """How many messages were sent to the dead-letter channel."""
    missed: int
    """How many messages were removed, by a purge or a limit, before their turn."""
    in_flight: int
    """How many messages are being handled, or wait in order for another attempt."""
    lag: int
    """How many messages there are from the oldest on that is not acknowledged; when it has ended, as it was then."""
    paused: bool
    """Whether nothing new is begun until `resume()`."""
    stopped: bool
    """Whether nothing new is begun any more; it has ended when nothing is in flight."""
    last_error: str | None
    """What the last attempt that failed has failed with, or what has ended the service; None if nothing went wrong."""
