"""A place in a channel, as it is typed: `earliest`, `latest`, an offset, `seq:NUMBER`, a time, or how long ago."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from .._channel.places import Start, find_place
from .._offset import Offset
from .._storage.index import Mark
from .._storage.store import Store

PLACES: Final = (
    "'earliest', 'latest', an offset, 'seq:NUMBER', a time as in ISO 8601, or how long ago: '90s', '15m', '2h', '3d'"
)
"""For help texts."""

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def complete_position(incomplete: str) -> list[str]:
    """Return the places that have names, for the shell to complete one."""
    return [name for name in ("earliest", "latest") if name.startswith(incomplete)]


def place(text: str, numbered: Callable[[int], Offset], option: str) -> Start:
    """Return the place that is meant; `BadParameter`, naming the option, if it is none.

    *numbered* says where the message with a number begins. Whether one begins at an offset is not looked at.
    """
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if text.isascii() and text.isdigit():
            return Offset(int(text))
        number = text.removeprefix("seq:")
        if text == number:
            moment = _moment(text)
            return "latest" if moment > datetime.now(UTC) else moment  # nothing was sent then
        sequence = int(number) if number.isascii() and number.isdigit() else None
    except (ValueError, OverflowError):
        sequence = None
    if sequence is None:
        raise typer.BadParameter(f"{text!r} is not a place in a channel: give {PLACES}", param_hint=option)
    with told_as(option):
        return numbered(sequence)


@contextmanager
def told_as(option: str) -> Generator[None]:
    """Let a `ValueError` of the library about a place be one about an option, without the name of its own argument."""
    try:
        yield
    except ValueError as error:
        # What it was told before it said which argument of which channel that is: see `naming`.
        told = error.__context__ if isinstance(error.__context__, ValueError) else error
        raise typer.BadParameter(str(told), param_hint=option) from None


def bounds(store: Store, start: str, stop: str) -> tuple[Mark, Mark]:
    """Return the places between which something is to be read; `BadParameter` if they are none, or in wrong order."""
    end = _mark(store, stop, "--to", store.places.until)  # first: what is sent meanwhile does not belong to it
    begin = _mark(store, start, "--from", store.places.since)
    if end.offset < begin.offset:
        raise typer.BadParameter(f"{stop} lies before {start}", param_hint="--to")
    return begin, end


def _mark(store: Store, text: str, option: str, at_moment: Callable[[datetime], Mark]) -> Mark:
    found = place(text, lambda number: store.places.numbered(number).offset, option)
    with told_as(option):
        return at_moment(found) if isinstance(found, datetime) else find_place(store, found, option)


def _moment(text: str) -> datetime:
    """Return a time; one without a zone is meant by the clock of this machine."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.astimezone()
