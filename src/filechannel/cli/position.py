"""A place in a channel, as it is typed: `earliest`, `latest`, an offset, `seq:NUMBER`, a time, or how long ago."""

from __future__ import annotations

import re
from collections.abc import Callable
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
        if text.startswith("seq:"):
            return numbered(int(text.removeprefix("seq:")))
        return _moment(text)
    except (ValueError, OverflowError) as error:
        reason = str(error) if text.startswith("seq:") else f"{text!r} is no place in a channel: give {PLACES}"
        raise typer.BadParameter(reason, param_hint=option) from None


def bounds(store: Store, start: str, stop: str) -> tuple[Mark, Mark]:
    """Return the places between which something is to be read; `BadParameter` if they are none, or in wrong order."""
    end = _mark(store, stop, "--to", store.places.until)  # first: what is sent meanwhile does not belong to it
    begin = _mark(store, start, "--from", store.places.since)
    if end.offset < begin.offset:
        raise typer.BadParameter(f"{stop} lies before {start}", param_hint="--to")
    return begin, end


def _mark(store: Store, text: str, option: str, at_moment: Callable[[datetime], Mark]) -> Mark:
    found = place(text, lambda number: store.places.numbered(number).offset, option)
    try:
        return at_moment(found) if isinstance(found, datetime) else find_place(store, found, option)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _moment(text: str) -> datetime:
    """Return a time; one without a zone is meant by the clock of this machine."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.astimezone()
