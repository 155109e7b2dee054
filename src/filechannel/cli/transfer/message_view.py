"""Formats a message of any content as one line, for a person or for a program."""

from __future__ import annotations

import os
import sys
from typing import Final, final

import msgspec

from ..._channel.base.receiver import Record
from ..._channel.lifecycle.channel_description import Description
from ..._errors import DecodeError
from ..ui.escaping import safe
from .json_messages import Json

_MOST: Final = 200
"""How many bytes of a payload are shown to a person if it is not text."""


@final
class Rendering:
    """Formats the messages of one channel as lines."""

    def __init__(self, description: Description, *, as_json: bool) -> None:
        self._json = Json(description)
        self._is_bytes = description.is_bytes
        self._as_json = as_json
        self._in_color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def line(self, record: Record[object] | DecodeError) -> bytes:
        """Return the line, without a line break."""
        if isinstance(record, DecodeError):
            return self._wrong(record.offset, None, record.reason, record.payload)
        try:
            value = self._json.text(record.value)
        except ValueError as error:
            return self._wrong(record.offset, record.sequence, str(error), repr(record.value).encode())
        if self._as_json:
            return b'{"sequence":%d,"offset":%d,"value":%b}' % (record.sequence, record.offset, value)
        if self._is_bytes and isinstance(record.value, bytes):
            value = _shown(record.value).encode()
        return self._numbered(str(record.sequence), value)

    def _wrong(self, offset: int, sequence: int | None, reason: str, payload: bytes) -> bytes:
        if self._as_json:
            found = {"sequence": sequence, "offset": offset, "error": reason, "payload": payload}
            return msgspec.json.encode(found)
        return self._numbered("-", f"at offset {offset}: {safe(reason)}: {_shown(payload)}".encode(), color=b"31")

    def _numbered(self, number: str, text: bytes, color: bytes = b"0") -> bytes:
        if self._in_color:
            return b"\x1b[2m%b\x1b[0m  \x1b[%bm%b\x1b[0m" % (number.encode(), color, text)
        return b"%b  %b" % (number.encode(), text)


def _shown(payload: bytes) -> str:
    """Return bytes as text if they are text, and otherwise the first ones in hexadecimal."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    if text and (text.isprintable() or all(each.isprintable() or each in "\t\r\n" for each in text)):
        return safe(text)
    more = f" ... ({len(payload):,} bytes)" if len(payload) > _MOST else ""
    return f"<{payload[:_MOST].hex(' ')}>{more}"
