"""A parser of Server-Sent Events as the HTML standard defines it, byte for byte: what a browser sees of a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE_END = re.compile("\r\n|\r|\n")


class Event(NamedTuple):
    """An event that a browser dispatches."""

    kind: str
    data: str
    last_id: str


def dispatched(stream: bytes) -> Iterator[Event]:
    """Return the events of a stream; one that is not complete when the stream ends is not dispatched."""
    kind, data, last_id, pending = "", list[str](), "", ""
    lines = _LINE_END.split(stream.decode().removeprefix("\ufeff"))
    for line in lines[:-1]:
        if not line:
            last_id = pending
            if data:
                yield Event(kind or "message", "\n".join(data), last_id)
            kind, data = "", []
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id" and "\0" not in value:
            pending = value
