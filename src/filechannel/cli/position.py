"""A place in a channel, as it is typed: `earliest`, `latest`, an offset, `seq:NUMBER`, a time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from .. import blocking
from .._channel.source import Start
from .._offset import Offset

PLACES: Final = (
    "'earliest', 'latest', an offset, 'seq:NUMBER', a time as in ISO 8601, or how long ago: '90s', '15m', '2h', '3d'"
)
"""For help texts."""

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def place(text: str, channel: blocking.FileChannel[object], option: str) -> Start:
    """Return the place that is meant; `BadParameter`, naming the option, if it is none of this channel."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if text.isascii() and text.isdigit():
            return Offset(int(text))
        if text.startswith("seq:"):
            return channel.offset_of(int(text.removeprefix("seq:")))
        return _moment(text)
    except (ValueError, OverflowError) as error:
        reason = str(error) if text.startswith("seq:") else f"{text!r} is no place in a channel: give {PLACES}"
        raise typer.BadParameter(reason, param_hint=option) from None


def _moment(text: str) -> datetime:
    """Return a time; one without a zone is meant by the clock of this machine."""
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.astimezone()
