"""The checks of `doctor` for consumers: those that hold data back, do not move, or are missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from ..._errors import UnexpectedFileError
from ..._format.layout import (
    ENTRY_ATTEMPT_SHIFT,
    ENTRY_ATTEMPTS,
    ENTRY_OUT,
    ENTRY_READY,
    ENTRY_STATE,
    GROUP_ENTRIES,
    GROUP_SIZE,
)
from ..._maintenance.watch_channel import ConsumerFigures
from ..._storage.consumers.cursor_file_format import CONSUMERS, group_file_name
from ..._storage.consumers.group_file_format import entry_at, numbers_in
from ..ui.humanize import counted, size, span
from .suggestion import ExaminedChannel, Suggestion

_IDLE: Final = 3600.0  # seconds
_MANY_ATTEMPTS: Final = 5


def idle_consumers(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Consumers without an owner that hold data back."""
    for consumer in examined.figures.consumers:
        if consumer.owner is None and consumer.lag_messages and consumer.idle >= _IDLE:
            what = f"{held_by(consumer)}, idle for {span(consumer.idle)}"
            if not consumer.knows_owner:
                yield Suggestion(
                    severity="note", kind="idle", what=f"{what}; only users with write permission can see its owner"
                )
                continue
            if consumer.expires is not None:
                yield Suggestion(
                    severity="note", kind="idle", what=f"{what}; it expires after {span(consumer.expires)}"
                )
                continue
            mend = examined.command("consumers", "remove", about=consumer.name)
            yield Suggestion(severity="warning", kind="idle", what=what, mend=mend)


def stuck_consumers(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Consumers with an owner that do not move although there are messages."""
    for consumer in examined.figures.consumers:
        owner = consumer.owner
        if owner is not None and consumer.lag_messages and consumer.idle >= _IDLE:
            what = (
                f"consumer `{consumer.name}`, process {owner.pid} on {owner.host}, has not moved for "
                f"{span(consumer.idle)}, with {_held(consumer)} to read"
            )
            mend = f"check process {owner.pid}: it is blocked, or does not acknowledge what it receives"
            yield Suggestion(severity="warning", kind="stuck", what=what, mend=mend)


def no_consumer_registered(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """No consumer is registered, so nothing counts as consumed."""
    options, figures = examined.watch.manifest.options, examined.figures
    is_bounded = options.retention.max_bytes or options.retention.max_age or options.capacity
    if figures.consumers or is_bounded or options.retention.after_consumed == "keep" or figures.sealed:
        return
    if figures.usage.plain + figures.usage.compressed > 1:
        what = f"{size(figures.usage.bytes)} stored and no consumer registered: nothing is ever deleted"
        mend = "register a receiver, or limit it: channel.configure(retention=Retention(max_bytes=...))"
        yield Suggestion(severity="warning", kind="nobody", what=what, mend=mend)


def groups(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Messages that are redelivered again and again, and expired leases in a group without members."""
    for consumer in examined.figures.consumers:
        if not consumer.is_group:
            continue
        path = examined.watch.path / CONSUMERS / group_file_name(consumer.name)
        try:
            content = examined.watch.files.read(path, GROUP_SIZE)
        except (FileNotFoundError, UnexpectedFileError):
            continue
        expired, worst, where = _ring(content, time.monotonic_ns())
        if worst >= _MANY_ATTEMPTS:
            what = f"group `{consumer.name}`: the message at offset {where} was delivered {worst} times"
            mend = "check the log of its handler, or give serve() a RetryPolicy and a dead-letter channel"
            yield Suggestion(severity="warning", kind="attempts", what=what, mend=mend)
        if expired and consumer.knows_owner and not consumer.members:
            what = f"group `{consumer.name}`: {counted(expired, 'lease')} expired, and the group has no member"
            yield Suggestion(severity="warning", kind="leases", what=what, mend="start a member of the group")


def _ring(content: bytes, now: int) -> tuple[int, int, int]:
    """Return the number of expired leases, the highest attempt of a message, and the offset of that message."""
    expired, worst, where = 0, 0, 0
    head, tail = numbers_in(content)
    for number in range(head, min(tail, head + GROUP_ENTRIES)):
        word, offset, _, _, deadline = entry_at(content, number)
        if word & ENTRY_STATE in (ENTRY_OUT, ENTRY_READY):
            expired += word & ENTRY_STATE == ENTRY_OUT and deadline < now
            worst, where = max((worst, where), (word >> ENTRY_ATTEMPT_SHIFT & ENTRY_ATTEMPTS, offset))
    return expired, worst, where


def held_by(consumer: ConsumerFigures) -> str:
    """Return how much a consumer has not consumed, as text."""
    return f"{_held(consumer)} held by consumer `{consumer.name}`"


def _held(consumer: ConsumerFigures) -> str:
    return f"{size(consumer.lag_bytes)} ({counted(consumer.lag_messages, 'message')})"
