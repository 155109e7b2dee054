"""The consumers of a channel, as `consumers()` lists them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from .._offset import Offset
from .._storage.cursor_file import Position
from .._storage.holder import Holder
from .._storage.index import Mark
from .._storage.processes import holder_at
from .._storage.roster import Registration
from .._storage.store import Store
from .statistics import Process

ConsumerKind: TypeAlias = Literal["single", "group"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A registered consumer at one moment."""

    name: str
    kind: ConsumerKind
    """Whether one receiver owns it at a time, or the members of a group share it."""
    offset: Offset
    """Where the next message for it begins; for those that acknowledge, the oldest one that is not acknowledged."""
    next_sequence: int
    """The number of that message."""
    damaged: bool
    """Whether its position cannot be read: then it counts as standing at the oldest message, and holds back everything.

    A repair lets it begin again there; until then nobody can receive under the name.
    """
    lag_messages: int
    """How many messages are stored that it has not taken."""
    lag_bytes: int
    """How many bytes their records have, with what lies between them."""
    lag_seconds: float
    """How old the oldest message is that it has not taken; 0 if there is none.

    Taken from the index, so it may be about a second more than that, and more than that for messages that another
    process has just begun to send after a pause.
    """
    idle: float
    """Seconds since it was opened, took a message or was moved; of one that is behind, to within 16 messages.

    0 if its file is damaged.
    """
    owner: Process | None
    """The process that owns it; None if no live process does, or that is not known. Of a group: which joined last."""
    owner_known: bool
    """Whether owner and members are known: not to a user who may only read the channel, and cannot see its locks."""
    members: tuple[Process, ...]
    """The processes that have a live member of the group, in no order; none for a single consumer."""
    expires: float | None
    """After so many seconds without a live owner it is removed; None if it stays."""


def list_consumers(store: Store) -> tuple[Consumer, ...]:
    """Return everybody who is registered, in order of their names; those whose time is over are removed first."""
    if not store.readonly:
        store.remove_expired()
    now, end = time.time_ns(), store.places.latest()
    known: dict[Offset, list[Mark]] = {}
    return tuple(_describe(each, store, end, now, known) for each in store.roster.registrations())


def _describe(
    registration: Registration, store: Store, end: Mark, now: int, known: dict[Offset, list[Mark]]
) -> Consumer:
    position = registration.position
    if position is None:
        earliest = store.places.earliest()
        position = Position(earliest.offset, earliest.sequence, now)
    place = Mark(position.offset, position.sequence, position.time)
    if place.offset < store.control.oldest_offset:
        place = store.places.earliest()
    lag = max(0, end.sequence - place.sequence)
    return Consumer(
        name=registration.name,
        kind="single" if registration.members is None else "group",
        offset=position.offset,
        next_sequence=position.sequence,
        damaged=registration.position is None,
        lag_messages=lag,
        lag_bytes=store.backlog.between(place, end).size if lag else 0,
        lag_seconds=max(0, now - store.places.written_at(place, known)) / 1e9 if lag else 0.0,
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
    """Refuse what cannot be a consumer's name because it is not a str."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name={name!r}: a consumer's name must be a str, not {type(name).__name__}")
