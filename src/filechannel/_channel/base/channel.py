"""`BaseChannel`: everything a channel object does without waiting, for event loops and threads."""

from __future__ import annotations

import _thread
import io
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, Self, TypeAlias, TypeVar, cast
from weakref import WeakSet, ref

from anyio import ClosedResourceError
from typing_extensions import TypeForm

from ..._errors import StorageError, storage_errors
from ..._format import Mutex, SendPath
from ..._offset import LogPosition, Offset
from ..._options import UNSET, Capacity, ChannelOptions, UnsetType
from ..._runtime.fork_registry import Phase, reset_in_child
from ..._storage.capacity.limits import disk_of
from ..._storage.consumers.cursor import Cursor
from ..._storage.manifest import Manifest
from ..._storage.reading.log_reader import LogReader
from ..._storage.segments.compression_codecs import require
from ..._storage.store import Store
from ..._storage.system.kernel_locks import UnwantedError
from ..._storage.writable_store import WritableStore, writable
from ..._wakeup.waiters import waiters_of
from ..lifecycle.blocking_calls import BlockingCalls
from ..lifecycle.open_spec import OpenSpec
from ..lifecycle.signal_safe_work import do_undisturbed
from ..lifecycle.store_handle import StoreHandle
from ..schema.codec import JsonCodec, MsgpackCodec, schema_of
from ..status.collect_statistics import take_snapshot
from ..status.consumer_status import Consumer, check_name, list_consumers
from ..status.statistics import ChannelStatistics
from ..subscription.group_member import GroupMember
from ..subscription.outstanding import Outstanding
from ..subscription.start_position import Start, Stop, find_again, find_for_argument
from ..subscription.subscribe import Subscriptions
from ..subscription.subscription import Subscription
from .consumer_catch_up import CatchUpWait
from .sender import Closable

T = TypeVar("T")
R = TypeVar("R")
Encode: TypeAlias = Callable[[object], bytes]
EncodeInto: TypeAlias = Callable[[object, bytearray], object]


class BaseChannel(Generic[T]):
    """A durable, typed channel in a directory. An unpickled channel opens the directory when it is first used."""

    def __init__(self, open_spec: OpenSpec[T], handle: StoreHandle | None = None) -> None:
        """Use the store that *handle* has opened, and close it."""
        self._open_spec = open_spec
        self._payloads = open_spec.payloads()
        self._options = open_spec.options.per_open()
        self._lock = Mutex()
        self._ending = Mutex()
        self._senders: set[Closable] = set()
        self._subscriptions: dict[int, ref[Subscription]] = {}
        """By identity, and weakly: a subscription without references releases its name."""
        self._blocking_calls = BlockingCalls()
        self._closed = False
        self._is_over = False
        """Whether the store was closed as well."""
        self._send_path: SendPath | None = None
        self._open_store: Store | None = None
        self._handle: StoreHandle | None = None
        """Closes the store; set before `_open_store`."""
        _channels.add(self)
        if handle is not None:
            self._use(handle)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle absolute path, type and options. The unpickled channel opens the directory when it is first used."""
        return self.copy()

    def copy(self) -> tuple[object, ...]:
        """Return the class and the arguments that create another channel object like this one, not opened yet."""
        self._check_open()
        return type(self), (self._open_spec,)

    @property
    def is_used(self) -> bool:
        """Whether there are senders that are not closed."""
        return bool(self._senders)

    @property
    def _store(self) -> Store:
        store = self._open_store
        return self._open() if store is None else store

    def _open(self) -> Store:
        handle = StoreHandle(self._open_spec.open_store)
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
                open_spec = self._open_spec.for_reopening()
                self._handle = handle
                self._open_store = store
                self._open_spec = open_spec
                return store
            used = self._open_store
        handle.close()  # another thread was faster
        if used is None:
            raise ClosedResourceError
        return used

    @property
    def path(self) -> Path:
        """The directory."""
        return self._open_spec.path

    @property
    def message_type(self) -> TypeForm[T]:
        """The type of the messages, as given."""
        return self._open_spec.message_type

    @property
    def codec_name(self) -> str:
        """The name of the codec: `msgpack`, `json`, `raw`, or that of a custom codec."""
        return self._payloads.codec.name

    # Senders and receivers

    def send_path(self) -> tuple[WritableStore, SendPath]:
        """Return the open store and the `SendPath` that appends messages to it."""
        self._check_writable()
        store = writable(self._store)
        if self._send_path is None:
            self._send_path = self._make_send_path(store)
        return store, self._send_path

    def _make_send_path(self, store: WritableStore) -> SendPath:
        """Choose the fastest way to encode a message that still performs all required checks."""
        payloads = self._payloads
        encode = None if payloads.is_raw else cast("Encode", payloads.encode)
        into = payloads.codec.encode_into if isinstance(payloads.codec, MsgpackCodec | JsonCodec) else None
        exact = tuple(payloads.exact_types)
        return SendPath(store.log.writer, encode, payloads.refuse, cast("EncodeInto | None", into), exact)

    def _named_subscription(self, name: str, start: Start, expires: float | None) -> Subscription:
        self._check_can_register()
        return self._registered(name, lambda: self._new_subscriptions().named(name, start, expires))

    def _outstanding(self, name: str, start: Start, expires: float | None) -> Outstanding:
        self._check_can_register()
        return self._registered(name, lambda: self._new_subscriptions().acknowledged(name, start, expires))

    def _join_group(
        self, name: str, lease: float, start: Start, expires: float | None
    ) -> tuple[Outstanding, GroupMember]:
        self._check_can_register()
        return self._registered(
            name, lambda: self._new_subscriptions(in_group=True).shared(name, lease, start, expires)
        )

    def _served(self, name: str, start: Start, expires: float | None, *, group: bool, lease: float) -> Outstanding:
        """Register the consumer of a service."""
        if group:
            return self._join_group(name, lease, start, expires)[0]
        return self._outstanding(name, start, expires)

    def _replay_subscription(self, start: Start, stop: Stop) -> Subscription:
        self._check_open()
        with storage_errors(self.path, "it cannot be replayed"):
            return self._new_subscriptions().replayed(start, stop)

    def _registered(self, name: str, register: Callable[[], R]) -> R:
        """Own a name or join a group where no signal handler can raise, since kernel locks are acquired.

        If a handler raises while this thread waits, nothing references the new registration, and the name is released
        again.
        """
        made: list[R] = []
        with storage_errors(self.path, f"consumer {name!r} cannot be opened"):
            do_undisturbed(lambda: made.append(register()))
        return made.pop()

    def _check_can_register(self) -> None:
        self._check_writable("use replay(), or open it without readonly=True")

    def _new_subscriptions(self, *, in_group: bool = False) -> Subscriptions:
        subscriptions, open_reader = self._subscriptions, partial(self._open_reader, in_group=in_group)

        def forget(subscription: Subscription) -> None:
            subscriptions.pop(id(subscription), None)

        return Subscriptions(
            self._store, self._options, self._blocking_calls, open_reader, self._keep_subscription, forget
        )

    def _keep_subscription(self, subscription: Subscription) -> None:
        with self._lock.held():
            self._check_open()
            self._subscriptions[id(subscription)] = ref(subscription)

    def _live_subscriptions(self) -> list[Subscription]:
        return [
            subscription
            for reference in list(self._subscriptions.values())
            if (subscription := reference()) is not None
        ]

    def _open_reader(self, cursor: Cursor | None, stop: LogPosition | None, *, in_group: bool) -> LogReader:
        decode = None if self._payloads.is_raw else self._payloads.decode
        # msgspec accepts any buffer, and keeps a view of it only where its documentation says so.
        reuse = isinstance(self._payloads.codec, MsgpackCodec | JsonCodec)
        refuse = self._payloads.refuse_payload_in_group if in_group else self._payloads.refuse_payload
        return self._store.reader(cursor, decode, refuse, self._options, reuse=reuse, stop=stop)

    def find_again(self, log_position: LogPosition) -> LogPosition | None:
        """Return where a reader that remembers a log position resumes; None if it never existed. Reads files."""
        with storage_errors(self.path, "the position cannot be looked up"):
            return self._blocking_calls.do(lambda: find_again(self._store, log_position))

    def check_payload(self, payload: bytes, /) -> None:
        """Raise `CodecError` if these bytes are not a message of this channel."""
        self._payloads.check(payload)

    def check_message(self, message: object, /) -> None:
        """Raise `CodecError` if this value is not a message of this channel."""
        self._payloads.encode(cast("T", message))

    def adopt_sender(self, sender: Closable, /) -> None:
        """Close this sender when the channel closes."""
        with self._lock.held():
            self._check_open()
            self._senders.add(sender)

    def forget_sender(self, sender: Closable, /) -> None:
        """Remove a sender that was closed."""
        self._senders.discard(sender)

    # The channel as a whole; methods with an underscore block

    def statistics(self) -> ChannelStatistics:
        """Return a snapshot of the channel."""
        self._check_open()
        try:
            with storage_errors(self.path, "the statistics cannot be read"):
                return self._statistics()
        except StorageError:
            self._check_open()  # another thread may have closed the channel, and its descriptors, meanwhile
            raise

    def _statistics(self) -> ChannelStatistics:
        receivers = sum(len(subscription.users) for subscription in self._live_subscriptions())
        return take_snapshot(self._store, senders=len(self._senders), receivers=receivers)

    def consumers(self) -> tuple[Consumer, ...]:
        """Return all registered consumers, sorted by name. Expired consumers are removed first."""
        self._check_open()
        try:
            with storage_errors(self.path, "the consumers cannot be listed"):
                store, found = self._store, list[Consumer]()
                # May acquire name locks, to expire consumers.
                do_undisturbed(lambda: found.extend(list_consumers(store)))
                return tuple(found)
        except StorageError:
            self._check_open()
            raise

    def _removal(self, name: str) -> Callable[[], None]:
        """Check the name of a consumer to remove, and return the function that removes it."""
        self._check_writable()
        check_name(name)

        def remove() -> None:
            with storage_errors(self.path, f"consumer {name!r} cannot be removed"):
                writable(self._store).cursors.remove_unowned(name)

        return remove

    def _catch_up_wait(self, name: str) -> Callable[[], CatchUpWait]:
        """Check the name of a consumer that is to catch up, and return the function that starts the wait."""
        self._check_open()
        check_name(name)
        goal = None if self._open_store is None else self._open_store.lookup.latest()

        def begin() -> CatchUpWait:
            store = self._store
            catch_up_wait = CatchUpWait(store, name, goal or store.lookup.latest(), self._options.poll_interval)
            with storage_errors(self.path, f"consumer {name!r} cannot be opened"):
                catch_up_wait.look_up()
            return catch_up_wait

        return begin

    def _offset_of(self, sequence: int) -> Offset:
        with storage_errors(self.path, f"message {sequence} cannot be looked up"):
            return find_for_argument("sequence", sequence, self._store, self._store.lookup.numbered).offset

    def _flush(self) -> None:
        with storage_errors(self.path, "it cannot be flushed"):
            writable(self._store).flusher.flush()

    def _seal(self) -> None:
        with storage_errors(self.path, "it cannot be sealed"):
            writable(self._store).seal()
        waiters_of(self._store).wake_all()

    def _purge(self) -> None:
        with storage_errors(self.path, "it cannot be purged"):
            writable(self._store).purge()

    def _configuration(self, schema: TypeForm[object] | UnsetType, changes: ChannelOptions) -> Callable[[], None]:
        """Check the changes, and return the function that applies them."""
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
                writable(self._store).configure(changed, lambda: not self._closed)
        except UnwantedError:
            raise ClosedResourceError from None

    # Lifecycle

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError

    def _check_writable(self, hint: str = "open it without readonly=True") -> None:
        self._check_open()
        if self._open_spec.readonly:
            raise io.UnsupportedOperation(f"{self.path} is open read-only; {hint}")

    def _close_handles(self) -> None:
        with self._lock.held():
            self._closed = True
        for sender in list(self._senders):
            sender.close()
        for subscription in self._live_subscriptions():
            subscription.close()

    def _close_store(self) -> None:
        """Close the store, once. Return when it is closed."""
        self._blocking_calls.finish()
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
        """Reset this object in a forked child: what is open belongs to the parent, which keeps using it.

        The channel and its senders open the directory again when they are used. Receivers are closed, since their
        position belongs to the parent too. No lock is acquired: a thread that does not exist in the child may have held
        it.
        """
        subscriptions, self._senders = self._live_subscriptions(), set(self._senders)
        self._lock, self._ending, self._blocking_calls = Mutex(), Mutex(), BlockingCalls()
        self._open_store = self._handle = self._send_path = None
        self._subscriptions = {}
        for sender in self._senders:
            sender.disconnect()
        for subscription in subscriptions:
            subscription.abandon()

    def close(self) -> None:
        """Close the channel and everything it created. Blocks with `FSYNC` and `interval` until everything is on disk.

        If a signal handler raises meanwhile, call it again: it completes the close, or waits for it.
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
        readonly, closed = " read-only" if self._open_spec.readonly else "", " closed" if self._closed else ""
        return f"<{type(self).__name__} {str(self.path)!r}{readonly}{closed}>"

    def __del__(self) -> None:
        """Emit a ResourceWarning if the channel was not closed, unless it was never opened in this process."""
        if getattr(self, "_is_over", True) or getattr(self, "_open_store", None) is None or sys.is_finalizing():
            return
        # In another thread: the garbage collector may run while this one holds a lock of ours, or runs an event loop.
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


reset_in_child(Phase.CHANNELS, _abandon_all)


def check_sequence(sequence: int) -> None:
    """Raise `TypeError` for anything that cannot be a sequence."""
    if type(sequence) is not int:
        raise TypeError(f"sequence={sequence!r}: must be the number of a message, not {type(sequence).__name__}")
