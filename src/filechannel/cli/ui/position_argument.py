"""Parses log positions on the command line: `earliest`, `latest`, an offset, `seq:NUMBER`, a time, or how long ago."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from ..._channel.subscription.start_position import Start, resolve_start
from ..._offset import LogPosition, Offset
from ..._storage.store import Store

POSITIONS: Final = (
    "'earliest', 'latest', an offset, 'seq:NUMBER', a time as in ISO 8601, or how long ago: '90s', '15m', '2h', '3d'"
)
"""For help texts."""

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def complete_position(incomplete: str) -> list[str]:
    """Return the named positions that complete the input, for the shell."""
    return [name for name in ("earliest", "latest") if name.startswith(incomplete)]


def parse_position(text: str, numbered: Callable[[int], Offset], option: str) -> Start:
    """Return the position that a text means. Raise `BadParameter`, naming the option, if it is not valid.

    *numbered* returns the offset of the message with a sequence. Whether a message begins at an offset is not checked.
    """
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if text.isascii() and text.isdigit():
            return Offset(int(text))
        number = text.removeprefix("seq:")
        if text == number:
            moment = _moment(text)
            return "latest" if moment > datetime.now(UTC) else moment  # no message was sent at that time yet
        sequence = int(number) if number.isascii() and number.isdigit() else None
    except (ValueError, OverflowError):
        sequence = None
    if sequence is None:
        raise typer.BadParameter(f"{text!r} is not a position in a channel: use {POSITIONS}", param_hint=option)
    with reported_for(option):
        return numbered(sequence)


@contextmanager
def reported_for(option: str) -> Generator[None]:
    """Convert a `ValueError` about a position to one about an option, without the argument name of the library."""
    try:
        yield
    except ValueError as error:
        # The error before `find_for_argument` added the argument and the channel to it.
        shown = error.__context__ if isinstance(error.__context__, ValueError) else error
        raise typer.BadParameter(str(shown), param_hint=option) from None


def bounds(store: Store, start: str, stop: str) -> tuple[LogPosition, LogPosition]:
    """Return the log positions to read between.

    Raise `BadParameter` if one is invalid or they are in the wrong order.
    """
    # The end first, so that messages sent during the call are not included.
    end = _bound(store, stop, "--to", store.lookup.until)
    begin = _bound(store, start, "--from", store.lookup.since)
    if end.offset < begin.offset:
        raise typer.BadParameter(f"{stop} lies before {start}", param_hint="--to")
    return begin, end


def _bound(store: Store, text: str, option: str, at_moment: Callable[[datetime], LogPosition]) -> LogPosition:
    found = parse_position(text, lambda number: store.lookup.numbered(number).offset, option)
    with reported_for(option):
        return at_moment(found) if isinstance(found, datetime) else resolve_start(store, found, option)


def _moment(text: str) -> datetime:
    """Return a time. Without a time zone it is local time."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.astimezone()
