"""The consumers of a channel, as `consumers()` lists them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from ..._offset import LogPosition, Offset
from ..._storage.consumers.cursor_file_format import StoredPosition
from ..._storage.consumers.listing import Registration
from ..._storage.control.live_processes import holder_at
from ..._storage.control.lock_holder import Holder
from ..._storage.segments.segment_index import IndexEntry
from ..._storage.store import Store
from ..._storage.writable_store import WritableStore
from .statistics import Process

ConsumerKind: TypeAlias = Literal["single", "group"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A registered consumer at one moment."""

    name: str
    """The name under which it is registered."""
    kind: ConsumerKind
    """``"single"``: one receiver owns it at a time; ``"group"``: the members of a group share it."""
    offset: Offset
    """The offset of its next message; with acknowledgement, of the oldest message that is not acknowledged."""
    next_sequence: int
    """The sequence of that message."""
    damaged: bool
    """Whether its position cannot be read. Then it counts as being at the oldest message, and no data is reclaimed.

    A repair moves it there. Until then, no receiver can use the name.
    """
    lag_messages: int
    """The number of stored messages that it has not consumed."""
    lag_bytes: int
    """The bytes of their records, including control records between them."""
    lag_seconds: float
    """The age in seconds of the oldest message that it has not consumed; 0 if there is none.

    Taken from the segment index, so it may be about a second too high, and more for messages that another process has
    just started to send after a pause.
    """
    idle: float
    """Seconds since it was opened, consumed a message or was moved. If it is behind, precise to 16 messages.

    0 if its file is damaged.
    """
    owner: Process | None
    """The process that owns it; None if no live process does, or if it is not known. For a group: the last to join."""
    owner_known: bool
    """Whether owner and members are known: a user with read access only cannot see the locks of the channel."""
    members: tuple[Process, ...]
    """The processes that have a live member of the group, in no particular order; empty for a single consumer."""
    expires: float | None
    """It is removed after this many seconds without a live owner; None if it never expires."""


def list_consumers(store: Store) -> tuple[Consumer, ...]:
    """Return all registered consumers, sorted by name. Expired consumers are removed first."""
    if isinstance(store, WritableStore):
        store.remove_expired()
    now, end = time.time_ns(), store.lookup.latest()
    known: dict[Offset, list[IndexEntry]] = {}
    return tuple(_describe(each, store, end, now, known) for each in store.consumer_listing.registrations())


def _describe(
    registration: Registration, store: Store, end: LogPosition, now: int, known: dict[Offset, list[IndexEntry]]
) -> Consumer:
    position = registration.position
    if position is None:
        earliest = store.lookup.earliest()
        position = StoredPosition(earliest.offset, earliest.sequence, now)
    start, written = position.log_position, position.time
    if start.offset < store.control.oldest_offset:
        oldest = store.lookup.earliest_entry()
        start, written = oldest.log_position, oldest.time
    lag = max(0, end.sequence - start.sequence)
    return Consumer(
        name=registration.name,
        kind="single" if registration.members is None else "group",
        offset=position.offset,
        next_sequence=position.sequence,
        damaged=registration.position is None,
        lag_messages=lag,
        lag_bytes=store.backlog.between(start, end).size if lag else 0,
        lag_seconds=max(0, now - store.lookup.written_at(start.offset, known, written)) / 1e9 if lag else 0.0,
        idle=max(0, now - position.time) / 1e9,
        owner=None if registration.owner is None else process_of(registration.owner),
        owner_known=registration.is_owner_known,
        members=tuple(process_of(holder_at(store.control.map, slot)) for slot in registration.members or ()),
        expires=None if registration.expires is None else registration.expires / 1e9,
    )


def process_of(holder: Holder) -> Process:
    """Return a process as it described itself."""
    return Process(pid=holder.pid, host=holder.host, since=holder.since)


def check_name(name: str) -> None:
    """Raise `TypeError` if a consumer name is not a str."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name={name!r}: a consumer's name must be a str, not {type(name).__name__}")
