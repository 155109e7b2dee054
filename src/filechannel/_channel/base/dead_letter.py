"""Dead letters: messages that were given up, as they were, with what is known about why."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import NoReturn, cast, final

import msgspec

from .._errors import CorruptRecordError
from .._format import Nothing
from .._offset import Offset
from .._options import OpenOptions
from .._storage.index import Mark
from .._storage.store import Store

_LONGEST_LINE, _LONGEST_TRACEBACK = 1000, 8192  # characters


@final
class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that used up its attempts, or did not decode: what a dead-letter channel carries."""

    payload: bytes
    """The message as it is stored in its channel."""
    reason: str
    """The last error, in one line."""
    attempts: int
    """How often it was tried; 0 if it did not decode."""
    channel: str
    """The directory of the channel it was in."""
    consumer: str
    """The name it was received under."""
    offset: Offset
    """Where it begins in that channel."""
    sequence: int
    """Its number there, counted from 0 at the birth of the channel."""
    time: datetime
    """When it was given up."""
    traceback: str = ""
    """Where the last error was raised: the end of it, if that is long."""


def write_letter(
    store: Store, consumer: str, payload: bytes, offset: Offset, sequence: int, attempts: int, error: Exception
) -> DeadLetter:
    """Return the letter about a message that was given up because of an error."""
    return DeadLetter(
        payload=payload,
        reason=in_a_line(error),
        attempts=attempts,
        channel=_encodable(str(store.path)),
        consumer=consumer,
        offset=offset,
        sequence=sequence,
        time=datetime.now(UTC),
        traceback=_encodable("".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:]),
    )


def in_a_line(error: BaseException) -> str:
    """Return an error as the last line of its traceback shows it."""
    try:
        text = str(error).strip()
    except Exception:  # it is somebody else's class, and the message must not get stuck because of it
        text = "its text cannot be had"
    line = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    return _encodable(line[:_LONGEST_LINE])


def _encodable(text: str) -> str:
    """Return a text that every codec takes: what is no character, as in paths that are no UTF-8, is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def stored_payload(store: Store, options: OpenOptions, offset: Offset, sequence: int) -> bytes:
    """Return the bytes of a message, which is still there since nobody has acknowledged it. May touch files."""
    reader = store.reader(None, None, _refuse, options, reuse=False)
    try:
        reader.move(Mark(offset, sequence, 0))
        found = reader.native.take_record()
    finally:
        reader.close()
    if isinstance(found, Nothing) or found[1] != offset:
        raise CorruptRecordError(store.path.name, offset, "it was readable before", path=store.path)
    return cast("bytes", found[0])


def _refuse(offset: int, next_offset: int, payload: bytes, error: Exception) -> NoReturn:
    raise error  # never: bytes are not decoded
