"""Formats sizes, numbers, times and processes for people."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from ..._channel.status.statistics import Process

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS: Final = (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0), ("second", 1.0))


def size(count: int) -> str:
    """Return a number of bytes in a suitable unit: `512 B`, `2.1 GB`."""
    amount, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if amount < 999.95 or unit == _UNITS[-1]:  # 999.95 would be rounded to 1000.0
            break
        amount /= 1000
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def number(count: int) -> str:
    """Return a number with thousands separators."""
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(seconds: float) -> str:
    """Return a duration in a suitable unit: `0.2 seconds`, `3 days`."""
    for noun, length in _SPANS:
        if seconds >= length * (1 if noun == "second" else 2):  # 90 minutes is more precise than 1 hour
            return counted(int(seconds / length), noun)
    return f"{max(seconds, 0.0):.1f} seconds"


def moment(when: datetime) -> str:
    """Return a time in the local time zone, and how long ago it was."""
    ago = time.time() - when.timestamp()
    text = f"{when.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"{text} ({span(ago)} ago)" if ago >= 0 else text


def process(found: Process) -> str:
    """Return a process by its id and host."""
    return "an unknown process" if found.pid is None else f"process {found.pid} on {found.host}"
