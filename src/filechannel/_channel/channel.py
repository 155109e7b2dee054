"""The channel itself: what makes senders and receivers, and closes them."""

from __future__ import annotations

import _thread
import io
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Generic, Protocol, TypeAlias, TypeVar, cast, final
from weakref import WeakSet

from anyio import ClosedResourceError
from anyio.abc import AsyncResource
from typing_extensions import TypeForm

from .._format import SendPath
from .._offset import Offset
from .._options import UNSET, ChannelOptions, Durability, OpenOptions, UnsetType
from .._storage.cursors import Cursor
from .._storage.index import Mark
from .._storage.log_reader import LogReader
from .._storage.store import Store
from .._storage.stores import STORES
from .._wakeup.local import arrivals_of
from .._wakeup.loops import run_through_cancellation
from .codec import JsonCodec, MsgpackCodec, Payloads, schema_of
from .errands import Errands
from .receiver import FanOutReceiver, Receiver
from .sender import Closable, Sender
from .source import Source, Start, Stop, find_place, find_stop
from .statistics import ChannelStatistics

T = TypeVar("T")
Encode: TypeAlias = Callable[[object], bytes]
EncodeInto: TypeAlias = Callable[[object, bytearray], object]


@final
class FileChannel(AsyncResource, Generic[T]):
    """A durable, typed channel in a directory. Made by `open_channel`; closing it closes what it created."""

    def __init__(
        self, store: Store, message_type: TypeForm[T], payloads: Payloads[T], options: OpenOptions, *, readonly: bool
    ) -> None:
        self._store = store
        self._readonly = readonly
        self._message_type = message_type
        self._payloads = payloads
        self._options = options
        self._lock = Lock()
        self._senders: set[Closable] = set()
        self._sources: set[Source] = set()
        self._errands = Errands()
        self._closed = False
        self._send_path: SendPath | None = None
        if not store.readonly:
            store.log.on_closed = _refuse_closed
        _open_channels.add(self)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._store.path

    @property
    def message_type(self) -> TypeForm[T]:
        """The type of the messages, as it was given."""
        return self._message_type

    # Senders and receivers

    def sender(self) -> Sender[T]:
        """Return a new sender."""
        self._check_writable()
        if self._send_path is None:
            self._send_path = _send_path(self._store, self._payloads)
        return Sender(self, self._store, self._send_path)

    def receiver(self, name: str = "default", *, start: Start = "earliest") -> FanOutReceiver[T]:
        """Return the receiver of a durable name: every name gets every message.

        *start* counts only the first time a name appears. The name is registered when this returns, so everything
        sent afterwards is received. Raises `ConsumerBusyError` if the name has a live owner, and `ValueError` for an
        offset at which no message begins or a datetime without a time zone.
        """
        self._check_writable("use replay(), or open it without readonly=True")
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name={name!r}: a consumer's name must be a text, not {type(name).__name__}")
        cursor = self._store.cursors.open(name)
        try:
            position = cursor.position
            if position is None:
                place = find_place(self._store, start)
            else:
                place = Mark(position.offset, position.sequence, position.time)
            return FanOutReceiver(self._source(cursor, place))
        except BaseException:
            if cursor.position is None:
                self._store.cursors.remove(cursor)
            else:
                self._store.cursors.close(cursor)
            raise

    def replay(self, start: Start = "earliest", stop: Stop = "latest") -> Receiver[T]:
        """Return a receiver of history without a name: it stores no position and holds no data back.

        It gives what was published when this was called, from *start* on, and then `EndOfStream`. With an offset as
        *stop* it ends before the message there; with None it goes on live, with what is sent afterwards. Raises
        `ValueError` for an offset at which no message begins or a datetime without a time zone.
        """
        self._check_open()
        # The end first: what is published while the beginning is looked for does not belong to it.
        end = find_stop(self._store, stop)
        return Receiver(self._source(None, find_place(self._store, start), end))

    def _source(self, cursor: Cursor | None, place: Mark, stop: Mark | None = None) -> Source:
        source = Source(self._store, self._errands, self._open_reader, cursor, place, stop, self._sources.discard)
        with self._lock:
            self._check_open()
            self._sources.add(source)
        return source

    def _open_reader(self, cursor: Cursor | None, stop: Mark | None) -> LogReader:
        decode = None if self._payloads.is_raw else self._payloads.decode
        # msgspec takes any buffer, and keeps a view of it only where it says so.
        reuse = isinstance(self._payloads.codec, MsgpackCodec | JsonCodec)
        refuse = self._payloads.refuse_payload
        return self._store.reader(cursor, decode, refuse, self._options, reuse=reuse, stop=stop)

    def adopt_sender(self, sender: Closable, /) -> None:
        """Close this sender too when the channel closes."""
        with self._lock:
            self._check_open()
            self._senders.add(sender)

    def forget_sender(self, sender: Closable, /) -> None:
        """It was closed."""
        self._senders.discard(sender)

    # The channel as a whole

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot of the channel."""
        self._check_open()
        store, control = self._store, self._store.control
        tail, earliest = control.tail(), store.places.earliest()
        messages = tail.sequence - earliest.sequence
        return ChannelStatistics(
            path=store.path,
            write_offset=tail.offset,
            durable_offset=control.durable_offset,
            oldest_offset=control.oldest_offset,
            next_sequence=tail.sequence,
            messages=messages,
            bytes_on_disk=store.segments.bytes_on_disk(),
            segments=len(store.segments.begins),
            mapped_segments=store.segments.mapped,
            senders=len(self._senders),
            receivers=sum(len(source.users) for source in list(self._sources)),
            waiters=arrivals_of(store).waiting,
            oldest_age=timedelta(seconds=(time.time_ns() - earliest.time) / 1e9) if messages else None,
            sealed=control.sealed,
        )

    async def offset_of(self, sequence: int) -> Offset:
        """Return where the message with this number begins; `ValueError` if it is not stored.

        The number of the next message that will be sent counts as stored: it begins at the end.
        """
        self._check_open()
        if type(sequence) is not int:
            raise TypeError(f"sequence={sequence!r}: must be the number of a message, not {type(sequence).__name__}")
        return (await self._errands.run(partial(self._store.places.numbered, sequence))).offset

    async def flush(self) -> None:
        """Wait until everything sent so far is on disk, under any durability; `StorageError` if it cannot be."""
        self._check_writable()
        await self._errands.run(self._store.flusher.flush)

    async def seal(self) -> None:
        """End the channel for good, durably: sends raise `ChannelSealedError`, receivers get `EndOfStream`."""
        self._check_writable()
        await self._errands.run(self._seal)

    def _seal(self) -> None:
        self._store.log.seal()
        self._store.flusher.flush()
        arrivals_of(self._store).wake_all()

    async def purge(self) -> None:
        """Remove every message stored now; consumers go on with what is sent afterwards."""
        self._check_writable()
        await self._errands.run(self._store.purge)

    async def configure(
        self, *, schema: TypeForm[object] | UnsetType = UNSET, durability: Durability | UnsetType = UNSET
    ) -> None:
        """Change what the channel has stored: its schema, or options that are not fixed at creation.

        A new *schema* is for those who open the channel afterwards; this object keeps its type. Messages of the old
        schema stay as they are, and raise `DecodeError` where the new type cannot read them.
        """
        self._check_writable()
        if self._payloads.is_raw and schema is not UNSET and schema is not bytes:
            raise TypeError(f"schema={schema!r}: a raw channel carries bytes; the codec is fixed at creation")
        if schema is bytes and not self._payloads.is_raw:
            raise TypeError("schema=bytes: the channel carries typed messages; the codec is fixed at creation")
        tree = UNSET if schema is UNSET else schema_of(schema, self._payloads.codec).to_json()
        changes = ChannelOptions(durability=durability)
        await self._errands.run(lambda: self._configure(tree, changes))

    def _configure(self, tree: object, changes: ChannelOptions) -> None:
        with _configuring:
            stored = self._store.manifest
            schema = stored.schema if tree is UNSET else tree
            self._store.configure(schema, stored.options.changed_by(changes, self.path))

    # Life

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError

    def _check_writable(self, advice: str = "open it without readonly=True") -> None:
        self._check_open()
        if self._readonly:
            raise io.UnsupportedOperation(f"{self.path} is open read-only; {advice}")

    def _close_handles(self) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        for sender in list(self._senders):
            sender.close()
        for source in list(self._sources):
            source.close()
        return True

    def _close_store(self) -> None:
        self._errands.finish()
        STORES.close(self._store)

    def abandon(self) -> None:
        """Close everything in a forked child, and leave what is shared to the parent: it goes on using it."""
        self._closed = True
        for sender in list(self._senders):
            sender.close()
        for source in list(self._sources):
            source.abandon()

    def close(self) -> None:
        """Close the channel and everything it created. Blocks under `FSYNC` and `interval` until all is on disk."""
        if self._close_handles():
            self._close_store()

    async def aclose(self) -> None:
        """Close the channel and everything it created. Cancelled or not, it is closed when this ends."""
        if self._close_handles():
            await run_through_cancellation(self._close_store)

    def __enter__(self) -> FileChannel[T]:
        """Use the channel in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the channel."""
        self.close()

    def __repr__(self) -> str:
        readonly, closed = " read-only" if self._readonly else "", " closed" if self._closed else ""
        return f"<FileChannel {str(self.path)!r}{readonly}{closed}>"

    def __del__(self) -> None:
        """Say so if nobody closed it."""
        if getattr(self, "_closed", True) or sys.is_finalizing():
            return
        # Not in this thread: the collector may run while it holds any of our locks, or an event loop.
        try:
            _thread.start_new_thread(self.close, ())
        finally:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self)


_configuring = Lock()


class _Abandonable(Protocol):
    def abandon(self) -> None: ...


_open_channels: WeakSet[_Abandonable] = WeakSet()


def _abandon_all() -> None:
    for channel in list(_open_channels):
        channel.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _refuse_closed() -> None:
    raise ClosedResourceError


def _send_path(store: Store, payloads: Payloads[T]) -> SendPath:
    """Take the shortest way from a message to bytes that checks what has to be checked."""
    encode = None if payloads.is_raw else cast("Encode", payloads.encode)
    into = payloads.codec.encode_into if isinstance(payloads.codec, MsgpackCodec | JsonCodec) else None
    exact = tuple(payloads.exact_types)
    return SendPath(store.log.writer, encode, payloads.refuse, cast("EncodeInto | None", into), exact)
