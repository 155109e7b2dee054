"""Dead letters: messages that used up their attempts or do not decode, unchanged, with the reason."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Final, NoReturn, cast, final

import msgspec

from ..._errors import CorruptRecordError
from ..._format import Nothing
from ..._offset import LogPosition, Offset
from ..._options import OpenOptions
from ..._storage.store import Store

_LONGEST_LINE, _LONGEST_TRACEBACK = 1000, 8192  # characters


@final
class UnfinishedError(Exception):
    """The members of a group used up the attempts for a message, and the last of them did not report an error.

    The member died, lost its lease or returned the message, so there is no exception of a handler to report.
    """

    def __init__(self, attempts: float) -> None:
        count = "1 attempt" if attempts == 1 else f"{attempts:.0f} attempts"
        super().__init__(f"no member finished it in {count}: the last member died, lost its lease or returned it")


@final
class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that used up its attempts, or did not decode: the message type of a dead-letter channel."""

    payload: bytes
    """The message as it is stored in its channel."""
    reason: str
    """The last error, in one line."""
    attempts: int
    """The number of attempts; 0 if it did not decode."""
    channel: str
    """The directory of its channel."""
    consumer: str
    """The name of the consumer that received it."""
    offset: Offset
    """Its offset in that channel."""
    sequence: int
    """Its number there, counted from 0 since the channel was created."""
    time: datetime
    """When it was dead-lettered."""
    traceback: str = ""
    """The traceback of the last error; only its end if it is long. Empty if no handler raised an error."""


EXAMPLE: Final = DeadLetter(
    payload=b"",
    reason="",
    attempts=0,
    channel="",
    consumer="",
    offset=Offset(0),
    sequence=0,
    time=datetime.fromtimestamp(0, UTC),
)
"""A dead letter to test a channel with: it is encoded, but not sent."""


def write_letter(
    store: Store, consumer: str, payload: bytes, offset: Offset, sequence: int, attempts: int, error: Exception
) -> DeadLetter:
    """Return the dead letter of a message that was dead-lettered because of an error."""
    return DeadLetter(
        payload=payload,
        reason=error_line(error),
        attempts=attempts,
        channel=_encodable(str(store.path)),
        consumer=consumer,
        offset=offset,
        sequence=sequence,
        time=datetime.now(UTC),
        traceback=_traceback_of(error),
    )


def error_line(error: BaseException) -> str:
    """Return an error as the last line of its traceback shows it."""
    try:
        text = str(error).strip()
    except Exception:  # a user's class may raise in `__str__`, and the message must not get stuck because of that
        text = "its text is not available"
    line = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    return _encodable(line[:_LONGEST_LINE])


def _traceback_of(error: Exception) -> str:
    """Return where a handler or a codec raised an error; empty for a member that died, which left no traceback."""
    if isinstance(error, UnfinishedError):
        return ""
    return _encodable("".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:])


def _encodable(text: str) -> str:
    """Return a text that every codec accepts: invalid characters, as in paths that are not UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def stored_payload(store: Store, options: OpenOptions, offset: Offset, sequence: int) -> bytes:
    """Return the payload of a message, which is still stored since it is not acknowledged. May read files."""
    reader = store.reader(None, None, _refuse, options, reuse=False)
    try:
        reader.move(LogPosition(offset, sequence))
        found = reader.native.take_record()
    finally:
        reader.close()
    if not isinstance(found, Nothing):
        payload, found_at, _ = found
        if found_at == offset:
            return cast("bytes", payload)
    raise CorruptRecordError(store.path.name, offset, "it was readable before", path=store.path)


def _refuse(offset: int, next_offset: int, payload: bytes, error: Exception) -> NoReturn:
    raise error  # never called: bytes are not decoded
