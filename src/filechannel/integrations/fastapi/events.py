"""A channel as Server-Sent Events, which a client can leave and come back to without missing one."""

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
from ..._channel.any_receiver import Record
from ..._channel.channel import FileChannel
from ..._channel.receiver import Receiver
from ..._errors import DataExpiredError, DecodeError
from ..._offset import Offset
from ..._storage.index import Mark
from ..._wakeup.loops import run_in_thread

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True, default=object)

FirstStart: TypeAlias = Literal["earliest", "latest"]
"""Where a client begins that has not been there before."""

_STARTS: Mapping[str, FirstStart] = {"earliest": "earliest", "latest": "latest"}
_ID = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_LINE_END = re.compile(rb"\r\n|\r|\n")  # the three that end a line of a stream of events
_LARGEST_CHUNK = 1 << 16  # bytes
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@final
class Streams:
    """The streams that are being sent, to be ended together."""

    def __init__(self) -> None:
        self._receivers: set[Receiver[object]] = set()
        self._is_over = False

    def begin(self) -> None:
        """Allow streams."""
        self._is_over = False

    def end(self) -> None:
        """End them, and those that come later."""
        self._is_over = True
        for receiver in list(self._receivers):
            receiver.close()

    def enter(self, receiver: Receiver[object]) -> None:
        """One more."""
        self._receivers.add(receiver)
        if self._is_over:
            receiver.close()

    def leave(self, receiver: Receiver[object]) -> None:
        """One less."""
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
    ) -> EventStream:  # without what it streams: FastAPI takes only a class for a response
        channel = await open_channel()
        place = await _find(channel, last_event_id or since or start)
        return EventStream(channel, streams, place, heartbeat, event)

    return cast("Events[T]", events)


async def _find(channel: FileChannel[T], text: str) -> Mark:
    """Return the place that an id speaks of; the status 400 if it is no id of this channel."""
    if (start := _STARTS.get(text)) is not None:
        with channel.replay(start) as receiver:
            return _place_of(receiver)
    match = _ID.fullmatch(text)
    asked = None if match is None else Mark(Offset(int(match[1])), int(match[2]), 0)
    place = None if asked is None else await run_in_thread(partial(channel.find_again, asked))
    if place is None:
        raise HTTPException(400, f"{text!r} is not an id of an event of this stream")
    return place


def _place_of(receiver: Receiver[object]) -> Mark:
    statistics = receiver.statistics()
    return Mark(statistics.read_offset, statistics.next_sequence, 0)


@final
class EventStream(Response, Generic[T_co]):
    """A channel as Server-Sent Events: each message as JSON, with an id that says where to go on.

    A message is one JSON value, whatever is in it: a `msgspec.Raw` is decoded by the codec of the channel and encoded
    with the rest, never copied into the stream.

    It holds no data back and stores no position: the client does. What was removed before it could be sent is told by
    an event `missed`, whose data says how many messages that were; a message that does not decode, or that JSON cannot
    express, by an event `undecodable`. While nothing happens there is a comment now and then. Ends when the client
    disconnects, when the server is told to stop, and with an event `end` behind the last message of a sealed channel; a
    client that reconnects after that gets the status 204, which tells a browser to stay away.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        channel: FileChannel[T_co],
        streams: Streams,
        place: Mark,
        heartbeat: float,
        event: str | None,
        status_code: int = 200,  # FastAPI looks here for what to document
    ) -> None:
        self._channel = channel
        self._streams = streams
        self._place = place
        self._heartbeat = heartbeat
        self._head = b"" if event is None else f"event: {event}\n".encode()
        self._show: Callable[[T_co], object] = _as_it_is
        self._decode_raw: Callable[[msgspec.Raw], object] = (
            msgspec.msgpack.decode if channel.codec_name == "msgpack" else msgspec.json.decode
        )
        statistics = channel.statistics()
        self._has_ended = statistics.sealed and place.sequence >= statistics.next_sequence
        self.status_code: int = 204 if self._has_ended else status_code
        self.background: BackgroundTask | None = None
        self.init_headers(_HEADERS)

    def map(self, show: Callable[[T_co], object | None]) -> Self:
        """Send what *show* makes of each message instead of itself, and nothing where that is None. Returns itself.

        A `msgspec.Raw` in what it returns holds a value in the codec of the channel, as in a message.
        """
        self._show = show
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, as long as there is a client."""
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
                pass  # the client is gone, as some servers tell
            except Exception as error:  # as itself, not in the group's
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
            return self._channel.replay(self._place.offset, stop=None)
        except ValueError:  # what was there is not stored any more
            return self._channel.replay(stop=None)

    def _begin(self, receiver: Receiver[T_co]) -> bytes:
        missed = _place_of(receiver).sequence - self._place.sequence
        self._place = _place_of(receiver)
        # The id alone counts as received too: whoever goes before the first event comes back to this place.
        return self._tell("missed", {"missed": missed}) if missed > 0 else self._id()

    async def _next(self, receiver: Receiver[T_co]) -> bytes | None:
        """Return what is to be sent next, when there is something; None if there will be nothing."""
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
            return self._tell("end", {})
        except DecodeError as error:
            await receiver.seek(error.next_offset)
            self._place = _place_of(receiver)
            return self._tell("undecodable", {"offset": error.offset})

    async def _take(self, receiver: Receiver[T_co]) -> bytes:
        """Return the events that are there, up to a size, and wait for the first one."""
        chunk = bytearray()
        try:
            while not chunk:
                self._add(chunk, await receiver.receive_record(), receiver)
            while len(chunk) < _LARGEST_CHUNK:
                self._add(chunk, receiver.receive_record_nowait(), receiver)
        except DataExpiredError as error:  # told once
            self._place = _place_of(receiver)
            chunk += self._tell("missed", {"missed": error.missed})
        except (WouldBlock, ClosedResourceError, EndOfStream, DecodeError):
            if not chunk:
                raise  # else it comes again, when this has been sent
        return bytes(chunk)

    def _add(self, chunk: bytearray, record: Record[T_co], receiver: Receiver[T_co]) -> None:
        self._place = Mark(receiver.read_offset, record.sequence + 1, 0)
        if (shown := self._show(record.value)) is None:
            return
        try:
            text = self._encode(shown)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            # Raising would end the stream here, and again for every client that resumes at this message.
            chunk += self._tell("undecodable", {"offset": record.offset})
        else:
            chunk += b"%b%b%b" % (self._head, _data(text), self._id())

    def _encode(self, shown: object) -> bytes:
        """Return a value as JSON that msgspec wrote from end to end: it copies a `Raw` into its output unseen."""
        return msgspec.json.encode(msgspec.to_builtins(shown, str_keys=True, enc_hook=self._unwrap))

    def _unwrap(self, value: object) -> object:
        if isinstance(value, msgspec.Raw):
            return self._decode_raw(value)
        raise TypeError(f"{type(value).__name__} has no form in JSON: send what has one with map()")

    def _tell(self, event: str, data: dict[str, int]) -> bytes:
        return b"event: %b\n%b%b" % (event.encode(), _data(msgspec.json.encode(data)), self._id())

    def _id(self) -> bytes:
        """Return where to go on, which ends an event."""
        return b"id: %d-%d\n\n" % (self._place.offset, self._place.sequence)


def _data(text: bytes) -> bytes:
    """Return the lines that carry a text as the data of an event: no line of it can be taken for another field."""
    return b"".join(b"data: %b\n" % line for line in _LINE_END.split(text))


def _as_it_is(message: T) -> T:
    return message


Events: TypeAlias = Callable[[str | None, str | None], Coroutine[object, object, EventStream[T]]]
"""An endpoint, or a dependency of one. FastAPI gives it the header and the query parameter."""
