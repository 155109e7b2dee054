"""A channel as Server-Sent Events: a client can disconnect and resume without missing an event."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Generic, Literal, Self, TypeAlias, cast, final

import anyio
import msgspec
from anyio import ClosedResourceError, EndOfStream, WouldBlock
from fastapi import Header, HTTPException, Query
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import TypeVar

from ... import _checks as checks
from ..._channel.aio.channel import FileChannel
from ..._channel.aio.receiver import Receiver
from ..._channel.base.receiver import Record
from ..._errors import DataExpiredError, DecodeError
from ..._offset import LogPosition, Offset
from ..._wakeup.event_loops import run_in_thread

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True, default=object)

FirstStart: TypeAlias = Literal["earliest", "latest"]
"""Where a client starts that gives no id."""

_STARTS: Mapping[str, FirstStart] = {"earliest": "earliest", "latest": "latest"}
_ID = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_LINE_END = re.compile(rb"\r\n|\r|\n")  # the three line endings of an event stream
_LARGEST_CHUNK = 1 << 16  # bytes
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@final
class Streams:
    """The streams that are being sent, so that they can be ended together."""

    def __init__(self) -> None:
        self._receivers: set[Receiver[object]] = set()
        self._is_over = False

    def begin(self) -> None:
        """Allow streams."""
        self._is_over = False

    def end(self) -> None:
        """End all streams, and each one that starts later."""
        self._is_over = True
        for receiver in list(self._receivers):
            receiver.close()

    def enter(self, receiver: Receiver[object]) -> None:
        """Add the receiver of a stream. Close it immediately if the streams were ended."""
        self._receivers.add(receiver)
        if self._is_over:
            receiver.close()

    def leave(self, receiver: Receiver[object]) -> None:
        """Close and remove the receiver of a stream."""
        receiver.close()
        self._receivers.discard(receiver)


def events_of(
    open_channel: Callable[[], Awaitable[FileChannel[T]]],
    streams: Streams,
    start: FirstStart,
    heartbeat: float,
    event: str | None,
) -> Events[T]:
    """Return an endpoint, or a dependency of one, that streams a channel."""
    checks.one_of("earliest", "latest")("start", start)
    checks.seconds("heartbeat", heartbeat)
    if event is not None and (not event or not event.isprintable()):
        raise ValueError(f"event={event!r}: must be a name without line breaks")

    async def events(
        last_event_id: Annotated[str | None, Header(description="The id of the last event that was received")] = None,
        since: Annotated[str | None, Query(description="The same, or `earliest` or `latest`, without it")] = None,
    ) -> EventStream:  # not generic: FastAPI accepts only a class as a response
        channel = await open_channel()
        log_position = await _find(channel, last_event_id or since or start)
        return EventStream(channel, streams, log_position, heartbeat, event)

    return cast("Events[T]", events)


async def _find(channel: FileChannel[T], text: str) -> LogPosition:
    """Return the log position of an id. Raise status 400 if the id does not belong to this channel."""
    if (start := _STARTS.get(text)) is not None:
        with channel.replay(start) as receiver:
            return _log_position_of(receiver)
    match = _ID.fullmatch(text)
    asked = None if match is None else LogPosition(Offset(int(match[1])), int(match[2]))
    log_position = None if asked is None else await run_in_thread(partial(channel.find_again, asked))
    if log_position is None:
        raise HTTPException(400, f"{text!r} is not an id of an event of this stream")
    return log_position


def _log_position_of(receiver: Receiver[object]) -> LogPosition:
    statistics = receiver.statistics()
    return LogPosition(statistics.read_offset, statistics.next_sequence)


class _NoFormError(TypeError):
    """A message has a value of a type that JSON cannot express."""


@final
class EventStream(Response, Generic[T_co]):
    """A channel as Server-Sent Events: each message as JSON, with an id at which a client can resume.

    A message is always one JSON value: a `msgspec.Raw` is decoded by the codec of the channel and
    encoded with the rest, never copied into the stream.

    The stream does not hold back data and stores no position: the client stores it. If messages were removed before
    they could be sent, an event `missed` says how many. A message that does not decode, or that JSON cannot express, is
    reported by an event `undecodable`. A comment is sent from time to time while there are no events. The stream ends
    when the client disconnects, when the server stops, and with an event `end` after the last message of a sealed
    channel. A client that reconnects after that gets the status 204, which tells a browser not to reconnect.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        channel: FileChannel[T_co],
        streams: Streams,
        log_position: LogPosition,
        heartbeat: float,
        event: str | None,
        status_code: int = 200,  # FastAPI reads the documented status from this default
    ) -> None:
        self._channel = channel
        self._streams = streams
        self._log_position = log_position
        self._heartbeat = heartbeat
        self._head = b"" if event is None else f"event: {event}\n".encode()
        self._show: Callable[[T_co], object] = _as_it_is
        self._decode_raw: Callable[[msgspec.Raw], object] = (
            msgspec.msgpack.decode if channel.codec_name == "msgpack" else msgspec.json.decode
        )
        statistics = channel.statistics()
        self._has_ended = statistics.sealed and log_position.sequence >= statistics.next_sequence
        self.status_code: int = 204 if self._has_ended else status_code
        self.background: BackgroundTask | None = None
        self.init_headers(_HEADERS)

    def map(self, show: Callable[[T_co], object | None]) -> Self:
        """Send the result of *show* instead of each message, and nothing where it is None. Return the stream itself.

        A `msgspec.Raw` in the result contains a value in the codec of the channel, as in a message.
        """
        self._show = show
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends or the client disconnects."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                await self._stream(send)
            except OSError:
                pass  # some servers report a disconnected client this way
            except Exception as error:  # raised below, outside the exception group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if self.background is not None:
            await self.background()

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if not self._has_ended:
            receiver = self._open()
            chunk: bytes | None = self._begin(receiver)
            self._streams.enter(receiver)
            try:
                while chunk is not None:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    chunk = await self._next(receiver)
            finally:
                self._streams.leave(receiver)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _open(self) -> Receiver[T_co]:
        try:
            return self._channel.replay(self._log_position.offset, stop=None)
        except ValueError:  # the message at this offset is not stored any more
            return self._channel.replay(stop=None)

    def _begin(self, receiver: Receiver[T_co]) -> bytes:
        missed = _log_position_of(receiver).sequence - self._log_position.sequence
        self._log_position = _log_position_of(receiver)
        # An id without data is stored by the client too: if it disconnects before the first event, it resumes here.
        return self._event_bytes("missed", {"missed": missed}) if missed > 0 else self._id()

    async def _next(self, receiver: Receiver[T_co]) -> bytes | None:
        """Wait for the next events and return them as bytes; None if the stream has ended."""
        try:
            with anyio.move_on_after(self._heartbeat):
                return await self._take(receiver)
            return b":\n" + self._id()
        except ClosedResourceError:
            return None
        except EndOfStream:
            if self._has_ended:
                return None
            self._has_ended = True
            return self._event_bytes("end", {})
        except DecodeError as error:
            await receiver.seek(error.next_offset)
            self._log_position = _log_position_of(receiver)
            return self._event_bytes("undecodable", {"offset": error.offset})

    async def _take(self, receiver: Receiver[T_co]) -> bytes:
        """Wait for the first event, and return it with those that are available, up to a size."""
        chunk = bytearray()
        try:
            while not chunk:
                self._add(chunk, await receiver.receive_record(), receiver)
            while len(chunk) < _LARGEST_CHUNK:
                self._add(chunk, receiver.receive_record_nowait(), receiver)
        except DataExpiredError as error:  # raised once
            self._log_position = _log_position_of(receiver)
            chunk += self._event_bytes("missed", {"missed": error.missed})
        except (WouldBlock, ClosedResourceError, EndOfStream, DecodeError):
            if not chunk:
                raise  # otherwise the next call raises it again, after this chunk was sent
        return bytes(chunk)

    def _add(self, chunk: bytearray, record: Record[T_co], receiver: Receiver[T_co]) -> None:
        self._log_position = LogPosition(receiver.read_offset, record.sequence + 1)
        if (shown := self._show(record.value)) is None:
            return
        try:
            text = self._encode(shown)
        except _NoFormError:
            raise  # a type that never fits: a bug in the app, not in this message
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
            # Raising would end the stream here, and again for every client that resumes at this message.
            chunk += self._event_bytes("undecodable", {"offset": record.offset})
        else:
            chunk += b"%b%b%b" % (self._head, _data(text), self._id())

    def _encode(self, shown: object) -> bytes:
        """Return a value as JSON.

        `Raw` values are decoded first, because msgspec copies them into its output unchecked.
        """
        return msgspec.json.encode(msgspec.to_builtins(shown, str_keys=True, enc_hook=self._unwrap))

    def _unwrap(self, value: object) -> object:
        if isinstance(value, msgspec.Raw):
            return self._decode_raw(value)
        if isinstance(value, msgspec.msgpack.Ext):
            raise TypeError("an extension of MessagePack cannot be written as JSON")
        raise _NoFormError(f"{type(value).__name__} cannot be written as JSON: convert it with map()")

    def _event_bytes(self, event: str, data: dict[str, int]) -> bytes:
        return b"event: %b\n%b%b" % (event.encode(), _data(msgspec.json.encode(data)), self._id())

    def _id(self) -> bytes:
        """Return the id line with the log position at which to resume. It ends an event."""
        return b"id: %d-%d\n\n" % (self._log_position.offset, self._log_position.sequence)


def _data(text: bytes) -> bytes:
    """Return the data lines of an event. No line of the text can be mistaken for another field."""
    return b"".join(b"data: %b\n" % line for line in _LINE_END.split(text))


def _as_it_is(message: T) -> T:
    return message


Events: TypeAlias = Callable[[str | None, str | None], Coroutine[object, object, EventStream[T]]]
"""An endpoint, or a dependency of one. FastAPI passes it the header and the query parameter."""
