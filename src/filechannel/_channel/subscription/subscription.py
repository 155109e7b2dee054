"""`Subscription`: the log position that receivers share."""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol, final
from weakref import ref

import anyio
from anyio import ClosedResourceError
from anyio.lowlevel import checkpoint

from ..._errors import DataExpiredError, storage_errors
from ..._format import NOTHING, Mutex
from ..._offset import LogPosition, Offset
from ..._options import OpenOptions
from ..._storage.consumers.cursor import Cursor
from ..._storage.consumers.group_cursor import Group
from ..._storage.durability.cursor_flush import PositionFlush
from ..._storage.reading.log_reader import LogReader
from ..._storage.store import Store
from ..._storage.writable_store import writable
from ..._wakeup.waiters import Waiters, waiters_of
from ..lifecycle.blocking_calls import BlockingCalls
from ..lifecycle.signal_safe_work import do_undisturbed
from .start_position import Start, resolve_start

_BRIEFLY = 5e-6  # seconds
_SLICE = 0.01  # seconds between two checks for other events, such as Ctrl-C
_SPIN_SLICE = 0.0005  # seconds that a spinning task takes from other tasks
_PAUSE = 0.001  # seconds
NANOSECOND = 1e-9


class User(Protocol):
    """A receiver or service, as its subscription sees it."""

    def close(self) -> None:
        """Close it."""
        ...

    def detach(self) -> None:
        """Refuse all further calls, without releasing anything."""
        ...


@final
class Subscription:
    """A log position and its lifetime; clones of a receiver share one.

    It is the same for all kinds of receivers. What they do with a message once they have it is up to other objects:
    `Outstanding` tracks acknowledgements, and `GroupMember` the claims of a group.

    Its receivers reference it, and so do the deliveries that they returned, but it references none of them: when the
    last of them is deleted, so is this object, and its name is released.
    """

    _is_over = True  # a subscription whose constructor failed has nothing to release

    def __init__(
        self,
        store: Store,
        options: OpenOptions,
        blocking_calls: BlockingCalls,
        open_reader: Callable[[Cursor | None, LogPosition | None], LogReader],
        cursor: Cursor | None,
        target: LogPosition,
        stop: LogPosition | None,
        on_close: Callable[[Subscription], object],
        *,
        acknowledged: bool = False,
    ) -> None:
        """With *acknowledged*, the stored position moves when messages are acknowledged, not when they are taken."""
        self.store = store
        self.options = options
        self.blocking_calls = blocking_calls
        self.cursor = cursor
        self.waiters: Waiters = waiters_of(store)
        self._is_acknowledged = acknowledged
        self.lock_is_busy: bool = False
        """Set by a reader that needs a lock which another process holds: the next wait is a short pause."""
        self._open_reader = open_reader
        self._on_close = on_close
        self._lock = Mutex()
        self._ending = Mutex()
        self._users: dict[int, ref[User]] = {}
        """By identity, and weakly: a deleted receiver counts as closed."""
        self._owns_name = False
        self._closed = False
        self._is_over = False
        """Whether everything that has to be released was released."""
        self._forgotten = False
        self._flush: PositionFlush | None = None
        if cursor is not None and options.cursor_flush is not None:
            self._flush = PositionFlush(writable(store).cursors, cursor, options.cursor_flush)
        # The members of a group share its position, so their readers do not store one.
        self.reader: LogReader = self._new_reader(None if isinstance(cursor, Group) else cursor, stop)
        self.reader.move(target)
        if stop is None:
            self.waiters.let_sleep(self.reader.native, options.spin)

    @property
    def name(self) -> str:
        """The consumer's name."""
        assert self.cursor is not None
        return self.cursor.name

    @property
    def is_closed(self) -> bool:
        """Whether it has no users any more: the name may have another owner."""
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedResourceError` if it is closed."""
        if self._closed:
            raise ClosedResourceError

    @property
    def users(self) -> list[User]:
        """The receivers that share it."""
        with self._lock.held():
            return self._live_users()

    def _live_users(self) -> list[User]:
        """Return the receivers that exist. The caller holds the lock, or runs in a forked child."""
        return [user for reference in list(self._users.values()) if (user := reference()) is not None]

    def own(self) -> None:
        """Release the name when this object is deleted, unless it was closed before. Called when it is complete."""
        self._owns_name = True

    def acquire(self, user: User) -> None:
        """Add a receiver. Raise `ClosedResourceError` if the subscription is closed."""
        with self._lock.held():
            if self._closed:
                raise ClosedResourceError
            self._users[id(user)] = ref(user)

    def release(self, user: User) -> None:
        """Remove a receiver. The last one closes the subscription; the stored position does not move.

        If a signal handler raised meanwhile, call it again: it completes what was started, or waits for it.
        """
        if id(user) in self._users or (self._closed and not self._is_over):
            do_undisturbed(partial(self._release, user))

    def _release(self, user: User) -> None:
        with self._lock.held():
            is_last = not any(other is not user for other in self._live_users())
            self._closed |= is_last  # first: a thread that finds the user removed waits for the release
            self._users.pop(id(user), None)
        if is_last:
            self._end()

    def _end(self) -> None:
        """Release everything, once. Return when that is done."""
        with self._ending.held():
            if not self._is_over:
                try:
                    self._release_all()
                finally:
                    self._is_over = True

    def close(self) -> None:
        """Close every receiver that shares it, and accept no more of them."""
        self._closed = True
        for user in self.users:
            user.close()
        if not self._is_over:
            do_undisturbed(self._end)

    def forget(self) -> None:
        """Remove the name for good, and close every receiver that shares it. Accesses files.

        Raises `ClosedResourceError`, and removes nothing, if they were closed meanwhile: the name may have another
        owner.
        """
        assert self.cursor is not None
        with self._lock.held():
            if self._closed:
                raise ClosedResourceError
            with storage_errors(self.store.path, f"consumer {self.name!r} cannot be removed"):
                writable(self.store).cursors.remove(self.cursor)
            self._closed = self._forgotten = True
        self.close()

    # How often the position is flushed

    @property
    def is_counted(self) -> bool:
        """Whether every message that moves the position has to be counted."""
        return self._flush is not None and self._flush.counts

    @property
    def must_flush_position(self) -> bool:
        """Whether a receive that may wait calls `flush_position` before it returns a message."""
        return not self._is_acknowledged and self.must_flush_acks

    @property
    def must_flush_acks(self) -> bool:
        """Whether an ack that may wait calls `flush_position` before it returns."""
        return self._flush is not None and self._flush.waits

    def counting(self, take: Callable[[], object]) -> Callable[[], object]:
        """Return a function that takes a message, or a record, and counts it."""
        flush = self._flush
        if flush is None or not flush.counts:
            return take

        def take_and_count() -> object:
            flush.check()
            item = take()
            if item is not NOTHING:
                self.took(1)
            return item

        return take_and_count

    def take_many(self, most: int) -> list[object]:
        """Take up to *most* messages."""
        self.check_position()
        items = self.reader.take_many(most)
        self.took(len(items))
        return items

    def check_position(self) -> None:
        """Raise, once, that the position could not be flushed."""
        if self._flush is not None:
            self._flush.check()

    def took(self, messages: int) -> None:
        """Count messages that were taken, if that moves the position."""
        if not self._is_acknowledged:
            self._count(messages)

    def acked(self, messages: int) -> None:
        """Count messages that were acknowledged, and start a flush if one is due."""
        if self.is_counted:
            self._count(messages)
            self._flush_soon()

    def _count(self, messages: int) -> None:
        if self._flush is not None and self._flush.counts and messages:
            self._flush.took(messages)

    def flush_position(self) -> None:
        """Wait until the position is on disk. The next take raises an error that occurs here."""
        if self._flush is not None:
            self._flush.wait_until_flushed()

    def flush_position_soon(self) -> None:
        """Start a flush in another thread, if necessary: a receive that may not wait has taken a message."""
        if not self._is_acknowledged:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush is not None and self._flush.waits:
            self._flush.flush_soon()

    def _release_all(self) -> None:
        has_redelivered = self.reader.native.release()
        self.reader.close()
        if self._flush is not None:
            self._flush.close()
        if self.cursor is not None and not self._forgotten:
            writable(self.store).cursors.close(self.cursor)
        self._on_close(self)
        if has_redelivered:
            self.wake_group()

    def wake_group(self) -> None:
        """Let all receivers of the channel rescan, in this process and in the others."""
        self.waiters.wake_all()
        writable(self.store).log.writer.wake_receivers()

    def abandon(self) -> None:
        """Close the receivers in a forked child; cursor and kernel lock belong to the parent."""
        # The reader stays open: a thread that does not exist in the child may have been using it.
        self._closed = self._is_over = True
        users, self._users = self._live_users(), {}
        for user in users:
            user.detach()

    def __del__(self) -> None:
        """Release the name: all receivers and deliveries that used it were deleted, and none of them was closed."""
        if self._is_over or not self._owns_name or sys.is_finalizing():
            return
        self._closed = True
        if self.cursor is None or not writable(self.store).cursors.is_locked:
            self._end()
        else:  # perhaps by this thread, which the garbage collector has interrupted
            _thread.start_new_thread(self._end, ())

    def move(self, target: LogPosition) -> bool:
        """Seek. Return False, and do not move, if the target was reclaimed.

        After a seek, positions in transaction records do not apply to this consumer any more.
        """
        if target.offset < self.store.control.oldest_offset:
            return False  # reclaimed since it was looked up
        before = None if self.cursor is None else self.cursor.position
        self.reader.move(target)
        # If the target was reclaimed just now, the old position is still stored: data that a consumer still needs is
        # not reclaimed.
        if not self.is_retained():
            if before is not None:
                self.reader.move(before.log_position)
            return False
        if self.cursor is not None and self.cursor.origin is not None:
            self.cursor.origin = None  # only after the move: if killed in between, the transaction's position applies
        return True

    def peek(self, most: int) -> list[object]:
        """Return up to *most* of the next messages, without consuming them."""
        while True:
            start = self.reader.native.offset
            try:
                return self._peek(most)
            except DataExpiredError:
                # A purge that moved the position in between may have missed the look-ahead reader.
                if self.reader.native.offset == start:
                    raise

    def _peek(self, most: int) -> list[object]:
        """Return messages to redeliver first. An error is raised only if it concerns the next message."""
        look_ahead_reader, items = self.look_ahead_reader(), list[object]()
        try:
            for offset, sequence in self.reader.native.ready_positions(most):
                look_ahead_reader.move(LogPosition(Offset(offset), sequence))
                items += look_ahead_reader.take_many(1)
            if len(items) < most:
                look_ahead_reader.copy_position(self.reader)
                items += look_ahead_reader.take_many(most - len(items))
        except Exception:
            if not items:
                raise
        finally:
            look_ahead_reader.close()
        return items

    def look_ahead_reader(self) -> LogReader:
        """Return a reader at the same position that does not move the cursor."""
        look_ahead_reader = self._new_reader(None, self.reader.stop)
        look_ahead_reader.copy_position(self.reader)
        return look_ahead_reader

    def _new_reader(self, cursor: Cursor | None, stop: LogPosition | None) -> LogReader:
        reader = self._open_reader(cursor, stop)
        if self.cursor is not None:
            self.store.adopt(reader)
        return reader

    def has_data(self) -> bool:
        """Return whether a rescan would find something: a message, the end of a delay or lease, or of the stream."""
        native = self.reader.native
        due = native.next_due
        if self.reader.stop is None and not due and not native.may_have_more:
            return False  # checked before and after every sleep
        if native.ready or (due and due <= time.monotonic_ns()):
            return True
        if native.offset != self.store.control.write_offset:  # beyond the write offset: damage, which a read detects
            return not native.full
        return self.has_ended()

    def has_ended(self) -> bool:
        """Return whether every message there will ever be was taken and, if that is required, acknowledged.

        Raises `StorageError` if the log ends before the last message taken: the control page is damaged.
        """
        offset, stop = self.reader.native.offset, self.reader.stop
        if offset > (end := self.store.control.write_offset):  # loaded after the read offset, and never smaller
            raise self.store.control.damaged(f"the log ends at {end}, but was read up to offset {offset}")
        is_at_end = self.store.has_ended(offset) if stop is None else offset >= stop.offset
        return is_at_end and (not self._is_acknowledged or self.reader.native.drained)

    @property
    def is_complete(self) -> bool:
        """Whether no more messages will be added."""
        return self.reader.stop is not None or self.store.control.sealed

    @property
    def end(self) -> LogPosition:
        """The log position after the last available message."""
        return self.reader.stop or self.store.lookup.latest()

    # Waiting: for a message, for the end of a delay or lease, and for the end of the stream

    def wait(self, has_data: Callable[[], bool]) -> Coroutine[object, object, None]:
        """Sleep until data may be available."""
        if self.lock_is_busy:
            self.lock_is_busy = False
            return anyio.sleep(_PAUSE)
        due = self.reader.native.next_due
        return self._wait_until(due, has_data) if due else self._wait(has_data)

    async def _wait_until(self, due: int, has_data: Callable[[], bool]) -> None:
        with anyio.move_on_after((due - time.monotonic_ns()) * NANOSECOND):
            await self._wait(lambda: has_data() or self.reader.native.next_due != due)

    def _wait(self, has_data: Callable[[], bool]) -> Coroutine[object, object, None]:
        if self.options.spin:
            return self._watch_and_wait(has_data)
        return self.waiters.wait(has_data, self.options.poll_interval)

    async def _watch_and_wait(self, has_data: Callable[[], bool]) -> None:
        if not await self._watch_and_yield(has_data):
            await self.waiters.wait(has_data, self.options.poll_interval)

    async def _watch_and_yield(self, has_data: Callable[[], bool]) -> bool:
        """Spin for as long as the options say, and let other tasks run in between. Return whether data is available."""
        until = time.monotonic() + self.options.spin
        while (left := until - time.monotonic()) > 0:
            if self.watch(min(left, _SPIN_SLICE)) or has_data():
                return has_data()
            await checkpoint()
        return False

    def sleep(self, has_data: Callable[[], bool], until: float | None) -> bool:
        """Block the thread until data is available, at most until *until* (monotonic clock). Return whether it is."""
        if self.lock_is_busy:
            self.lock_is_busy = False
            time.sleep(_PAUSE)
        if not self._is_acknowledged:  # no message has a delay or a lease
            return self.waiters.sleep(has_data, until, self.options.poll_interval)
        while not has_data():
            if until is not None and time.monotonic() >= until:
                return False
            due = self.reader.native.next_due
            end = min((end for end in (until, due * NANOSECOND) if end), default=None)
            self.waiters.sleep(partial(self._has_data_or_other_due, has_data, due), end, self.options.poll_interval)
        return True

    def _has_data_or_other_due(self, has_data: Callable[[], bool], due: int) -> bool:
        return has_data() or self.reader.native.next_due != due

    def watch(self, seconds: float) -> bool:
        """Spin for a message, at most this long. Return whether there is one."""
        return self.waiters.watch(self.reader.native.offset, seconds)

    def watch_until(self, has_data: Callable[[], bool], until: float | None) -> bool:
        """Spin as long as the options say, at least briefly, but not past *until*. Return whether a message arrived."""
        # A sender at full speed needs less time for a message than it takes to fall asleep and be woken.
        if not self.options.spin:
            return self.watch(_BRIEFLY)
        end = time.monotonic() + self.options.spin
        end = end if until is None else min(end, until)
        while (left := end - time.monotonic()) > 0 and not has_data():
            if self.watch(min(left, _SLICE)):
                return True
        return False

    def retain_start(self, start: Start) -> None:
        """Retain the data at the start position of a new name. If it was reclaimed meanwhile, resolve it again."""
        try:
            while not self.is_retained():
                self.reader.move(self.find(start, "start"))
        except BaseException:
            self.forget()
            raise

    def is_retained(self) -> bool:
        """Return whether the data at this new position is retained until consumed; False if it was reclaimed."""
        return self.cursor is None or writable(self.store).retain_from(self.reader.native.offset)

    def find(self, start: Start, argument: str) -> LogPosition:
        """Resolve a start position. May read a segment index."""
        with self._read_errors():
            return resolve_start(self.store, start, argument)

    def _read_errors(self) -> storage_errors:
        return storage_errors(self.store.path, "it cannot be read")
