"""What every channel object does without waiting, whether the others wait in an event loop or in a thread."""

from __future__ import annotations

import _thread
import io
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, Self, TypeAlias, TypeVar, cast
from weakref import WeakSet, ref

from anyio import ClosedResourceError
from typing_extensions import TypeForm

from .._errors import StorageError, storage_errors
from .._format import Mutex, SendPath
from .._offset import Offset
from .._options import UNSET, Capacity, ChannelOptions, UnsetType
from .._storage.background import do_undisturbed
from .._storage.codecs import require
from .._storage.cursor import Cursor
from .._storage.index import Mark
from .._storage.kernel_locks import UnwantedError
from .._storage.log_reader import LogReader
from .._storage.manifest import Manifest
from .._storage.room import disk_of
from .._storage.store import Store
from .._wakeup.arrivals import arrivals_of
from .ack_source import AckSource
from .any_sender import Closable
from .codec import JsonCodec, MsgpackCodec, schema_of
from .consumers import Consumer, check_name, list_consumers
from .errands import Errands
from .group_source import GroupSource
from .places import Start, Stop, find_again, naming
from .pursuit import Pursuit
from .recipe import Recipe
from .snapshot import take_snapshot
from .source import Source
from .sources import Sources
from .statistics import ChannelStatistics
from .store_handle import StoreHandle

T = TypeVar("T")
S = TypeVar("S", bound=Source)
Encode: TypeAlias = Callable[[object], bytes]
EncodeInto: TypeAlias = Callable[[object, bytearray], object]


class AnyChannel(Generic[T]):
    """A durable, typed channel in a directory. One that was unpickled opens the directory when it is first used."""

    def __init__(self, recipe: Recipe[T], handle: StoreHandle | None = None) -> None:
        """Use the store that *handle* has opened, and close it."""
        self._recipe = recipe
        self._payloads = recipe.payloads()
        self._options = recipe.options.per_open()
        self._lock = Mutex()
        self._ending = Mutex()
        self._senders: set[Closable] = set()
        self._sources: dict[int, ref[Source]] = {}
        """By identity, and weakly: a source that is not referred to any more releases its name."""
        self._errands = Errands()
        self._closed = False
        self._is_over = False
        """Whether the store was given up, too."""
        self._send_path: SendPath | None = None
        self._open_store: Store | None = None
        self._handle: StoreHandle | None = None
        """Closes the store; set before `_open_store`."""
        _channels.add(self)
        if handle is not None:
            self._use(handle)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as absolute path, type and options; what comes out opens the directory when it is first used."""
        return self.copy()

    def copy(self) -> tuple[object, ...]:
        """Return what makes another channel object like this one, which is not open yet, and its arguments."""
        self._check_open()
        return type(self), (self._recipe,)

    @property
    def is_used(self) -> bool:
        """Whether there are senders that have not been closed."""
        return bool(self._senders)

    @property
    def _store(self) -> Store:
        store = self._open_store
        return self._open() if store is None else store

    def _open(self) -> Store:
        handle = StoreHandle(self._recipe.open_store)
        try:
            handle.open()
            return self._use(handle)
        except BaseException:
            if handle is not self._handle:
                handle.close_soon()
            raise

    def _use(self, handle: StoreHandle) -> Store:
        store = handle.store
        with self._lock.held():
            if self._open_store is None and not self._closed:
                recipe = self._recipe.for_reopening()
                self._handle = handle
                self._open_store = store
                self._recipe = recipe
                return store
            used = self._open_store
        handle.close()  # another thread was faster
        if used is None:
            raise ClosedResourceError
        return used

    @property
    def path(self) -> Path:
        """The directory."""
        return self._recipe.path

    @property
    def message_type(self) -> TypeForm[T]:
        """The type of the messages, as it was given."""
        return self._recipe.message_type

    @property
    def codec_name(self) -> str:
        """The name of the codec: `msgpack`, `json`, `raw` or one of the user's."""
        return self._payloads.codec.name

    # Senders and receivers

    def send_path(self) -> tuple[Store, SendPath]:
        """Return the open store and the way from a message into it."""
        self._check_writable()
        store = self._store
        if self._send_path is None:
            self._send_path = self._make_send_path(store)
        return store, self._send_path

    def _make_send_path(self, store: Store) -> SendPath:
        """Take the shortest way from a message to bytes that checks what has to be checked."""
        payloads = self._payloads
        encode = None if payloads.is_raw else cast("Encode", payloads.encode)
        into = payloads.codec.encode_into if isinstance(payloads.codec, MsgpackCodec | JsonCodec) else None
        exact = tuple(payloads.exact_types)
        return SendPath(store.log.writer, encode, payloads.refuse, cast("EncodeInto | None", into), exact)

    def _named_source(self, name: str, start: Start, expires: float | None) -> Source:
        self._check_can_register()
        return self._registered(name, lambda: self._new_sources().named(name, start, expires))

    def _ack_source(self, name: str, start: Start, expires: float | None) -> AckSource:
        self._check_can_register()
        return self._registered(name, lambda: self._new_sources().acknowledged(name, start, expires))

    def _group_source(self, name: str, lease: float, start: Start, expires: float | None) -> GroupSource:
        self._check_can_register()
        return self._registered(name, lambda: self._new_sources().shared(name, lease, start, expires))

    def _replay_source(self, start: Start, stop: Stop) -> Source:
        self._check_open()
        with storage_errors(self.path, "it cannot be replayed"):
            return self._new_sources().replayed(start, stop)

    def _registered(self, name: str, register: Callable[[], S]) -> S:
        """Own a name or join a group where no signal handler can raise: it takes locks of the kernel.

        If a handler raises while this thread waits, nothing refers to what was registered, and the name is free again.
        """
        made: list[S] = []
        with storage_errors(self.path, f"consumer {name!r} cannot be opened"):
            do_undisturbed(lambda: made.append(register()))
        return made.pop()

    def _check_can_register(self) -> None:
        self._check_writable("use replay(), or open it without readonly=True")

    def _new_sources(self) -> Sources:
        sources = self._sources

        def forget(source: Source) -> None:
            sources.pop(id(source), None)

        return Sources(self._store, self._options, self._errands, self._open_reader, self._keep_source, forget)

    def _keep_source(self, source: Source) -> None:
        with self._lock.held():
            self._check_open()
            self._sources[id(source)] = ref(source)

    def _live_sources(self) -> list[Source]:
        return [source for reference in list(self._sources.values()) if (source := reference()) is not None]

    def _open_reader(self, cursor: Cursor | None, stop: Mark | None) -> LogReader:
        decode = None if self._payloads.is_raw else self._payloads.decode
        # msgspec takes any buffer, and keeps a view of it only where it says so.
        reuse = isinstance(self._payloads.codec, MsgpackCodec | JsonCodec)
        refuse = self._payloads.refuse_payload
        return self._store.reader(cursor, decode, refuse, self._options, reuse=reuse, stop=stop)

    def find_again(self, place: Mark) -> Mark | None:
        """Return where whoever remembers a place goes on, or None if there was no such place. Touches files."""
        with storage_errors(self.path, "the place cannot be looked up"):
            return self._errands.do(lambda: find_again(self._store, place))

    def check_payload(self, payload: bytes, /) -> None:
        """Raise `CodecError` if these bytes are no message of this channel."""
        self._payloads.check(payload)

    def adopt_sender(self, sender: Closable, /) -> None:
        """Close this sender too when the channel closes."""
        with self._lock.held():
            self._check_open()
            self._senders.add(sender)

    def forget_sender(self, sender: Closable, /) -> None:
        """It was closed."""
        self._senders.discard(sender)

    # The channel as a whole; what begins with an underscore blocks

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot of the channel."""
        self._check_open()
        try:
            with storage_errors(self.path, "the statistics cannot be had"):
                return self._statistics()
        except StorageError:
            self._check_open()  # another thread may have closed it meanwhile, and its descriptors
            raise

    def _statistics(self) -> ChannelStatistics:
        receivers = sum(len(source.users) for source in self._live_sources())
        return take_snapshot(self._store, senders=len(self._senders), receivers=receivers)

    def consumers(self) -> tuple[Consumer, ...]:
        """Return every registered consumer, in order of their names; those that have expired are removed first."""
        self._check_open()
        try:
            with storage_errors(self.path, "the consumers cannot be listed"):
                store, found = self._store, list[Consumer]()
                do_undisturbed(lambda: found.extend(list_consumers(store)))  # it may hold names, to remove them
                return tuple(found)
        except StorageError:
            self._check_open()
            raise

    def _removal(self, name: str) -> Callable[[], None]:
        """Check a name that is to be removed, and return what does it."""
        self._check_writable()
        check_name(name)

        def remove() -> None:
            with storage_errors(self.path, f"consumer {name!r} cannot be removed"):
                self._store.cursors.remove_unowned(name)

        return remove

    def _pursuit(self, name: str) -> Callable[[], Pursuit]:
        """Check a name that is to catch up with what is published now, and return what finds it."""
        self._check_open()
        check_name(name)
        goal = None if self._open_store is None else self._open_store.places.latest()

        def begin() -> Pursuit:
            store = self._store
            pursuit = Pursuit(store, name, goal or store.places.latest(), self._options.poll_interval)
            with storage_errors(self.path, f"consumer {name!r} cannot be opened"):
                pursuit.look_up()
            return pursuit

        return begin

    def _offset_of(self, sequence: int) -> Offset:
        with storage_errors(self.path, f"message {sequence} cannot be looked up"):
            return naming("sequence", sequence, self._store, self._store.places.numbered).offset

    def _flush(self) -> None:
        with storage_errors(self.path, "it cannot be flushed"):
            self._store.flusher.flush()

    def _seal(self) -> None:
        with storage_errors(self.path, "it cannot be sealed"):
            self._store.seal()
        arrivals_of(self._store).wake_all()

    def _purge(self) -> None:
        with storage_errors(self.path, "it cannot be purged"):
            self._store.purge()

    def _configuration(self, schema: TypeForm[object] | UnsetType, changes: ChannelOptions) -> Callable[[], None]:
        """Check what is to be configured, and return what does it."""
        if self._payloads.is_raw and schema is not UNSET and schema is not bytes:
            raise TypeError(f"schema={schema!r}: a raw channel carries bytes; the codec is fixed at creation")
        if schema is bytes and not self._payloads.is_raw:
            raise TypeError("schema=bytes: the channel carries typed messages; the codec is fixed at creation")
        if not isinstance(changes.compression, UnsetType):
            require(changes.compression.method)
        tree = UNSET if schema is UNSET else schema_of(schema, self._payloads.codec).to_json()
        return partial(self._change_manifest, tree, changes)

    def _change_manifest(self, tree: object, changes: ChannelOptions) -> None:
        def changed(stored: Manifest) -> Manifest:
            schema = stored.schema if tree is UNSET else tree
            options = stored.options.changed_by(changes, self.path)
            if isinstance(changes.capacity, Capacity):
                options.check_disk(disk_of(changes.capacity, self._store.files, self.path))
            return stored.with_changes(schema=schema, options=options)

        try:
            with storage_errors(self.path, "the options cannot be changed"):
                self._store.configure(changed, lambda: not self._closed)
        except UnwantedError:
            raise ClosedResourceError from None

    # Life

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError

    def _check_writable(self, advice: str = "open it without readonly=True") -> None:
        self._check_open()
        if self._recipe.readonly:
            raise io.UnsupportedOperation(f"{self.path} is open read-only; {advice}")

    def _close_handles(self) -> None:
        with self._lock.held():
            self._closed = True
        for sender in list(self._senders):
            sender.close()
        for source in self._live_sources():
            source.close()

    def _close_store(self) -> None:
        """Give the store up, once; return when that was done."""
        self._errands.finish()
        with self._ending.held():
            if self._is_over:
                return
            try:
                if self._handle is not None:
                    with storage_errors(self.path, "it cannot be closed"):
                        self._handle.close()
            finally:
                self._is_over = True

    def _close_all(self) -> None:
        self._close_handles()
        self._close_store()

    def abandon(self) -> None:
        """Start over in a forked child: what is open is the parent's, which goes on using it.

        The channel and its senders open the directory anew when they are used; receivers are closed, since their
        position is the parent's too. No lock is taken: a thread that the child has not got may have been inside.
        """
        sources, self._senders = self._live_sources(), set(self._senders)
        self._lock, self._ending, self._errands = Mutex(), Mutex(), Errands()
        self._open_store = self._handle = self._send_path = None
        self._sources = {}
        for sender in self._senders:
            sender.disconnect()
        for source in sources:
            source.abandon()

    def close(self) -> None:
        """Close the channel and everything it created. Blocks under `FSYNC` and `interval` until all is on disk.

        If a signal handler raises meanwhile, closing it again completes it, or waits until it is closed.
        """
        if not self._is_over:
            do_undisturbed(self._close_all)

    def __enter__(self) -> Self:
        """Use the channel in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the channel."""
        self.close()

    def __repr__(self) -> str:
        readonly, closed = " read-only" if self._recipe.readonly else "", " closed" if self._closed else ""
        return f"<{type(self).__name__} {str(self.path)!r}{readonly}{closed}>"

    def __del__(self) -> None:
        """Say so if nobody closed it. One that was never used, in this process, has nothing to close."""
        if getattr(self, "_is_over", True) or getattr(self, "_open_store", None) is None or sys.is_finalizing():
            return
        # Not in this thread: the collector may run while it holds any of our locks, or an event loop.
        try:
            _thread.start_new_thread(self.close, ())
        finally:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self)


class _Abandonable(Protocol):
    def abandon(self) -> None: ...


_channels: WeakSet[_Abandonable] = WeakSet()


def _abandon_all() -> None:
    for channel in list(_channels):
        channel.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def check_sequence(sequence: int) -> None:
    """Refuse what cannot be the number of a message."""
    if type(sequence) is not int:
        raise TypeError(f"sequence={sequence!r}: must be the number of a message, not {type(sequence).__name__}")
