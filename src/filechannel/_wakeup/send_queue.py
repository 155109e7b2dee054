"""The send queue: senders of this process that wait for capacity in a channel, first come, first served.

Only the first entry checks for capacity and tries to append; the others wait until it has appended or has left. A new
sender joins the queue even if there is capacity for its message: otherwise small messages would overtake a large batch
forever. The order between processes is decided by the storage layer (`CapacityLimit`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import final

import anyio

from .._errors import CapacityReachedError
from .._format import Guard, Mutex, ensured
from .._runtime.thread_wakeup import Sleeper, ThreadWakeup
from .._storage.capacity.backlog import SMALLEST, Batch
from .._storage.writable_store import WritableStore
from .event_loops import make_waiter, wake_together
from .per_store import PerStore
from .waiters import CAPACITY, POLL, Waiters, waiters_of

_LONGEST_SLEEP = 1.0
_PAUSE = 0.02  # seconds between two checks for capacity if no process can wake this one


@final
class QueueEntry:
    """One waiting sender in the send queue."""

    __slots__ = ("batch", "is_sender_closed", "sleeper", "was_first")

    def __init__(self, is_sender_closed: Callable[[], bool]) -> None:
        self.batch = SMALLEST
        """The size of its batch; the smallest possible one until an append was refused."""
        self.is_sender_closed = is_sender_closed
        """Returns whether its sender was closed: then the entry stops waiting."""
        self.sleeper: Sleeper | None = None
        """Wakes its task or thread, once that waits to become the first entry."""
        self.was_first = False
        """Whether it was first at the last check. Then the next entry has to be woken when this one leaves."""


class SendQueue:
    """The send queue of one channel in this process."""

    def __init__(self, store: WritableStore, capacity_waiters: Waiters) -> None:
        self._capacity = store.capacity
        self._capacity_waiters = capacity_waiters
        self._lock = Mutex()  # a signal handler may send
        self._entries: dict[QueueEntry, None] = {}
        """The entries, in order."""
        self._served: set[int] = set()
        """The thread of the first entry, while it tries to append."""

    def __len__(self) -> int:
        """The number of waiting entries."""
        return len(self._entries)

    def is_needed(self) -> bool:
        """Return whether a sender should join the queue before it tries to append."""
        return self._capacity.is_full()

    def may_pass(self) -> bool:
        """Return whether this thread may reserve capacity: no entry waits, or it appends for the first one."""
        return not self._entries or get_ident() in self._served

    def joined(self, entry: QueueEntry) -> Guard:
        """Join the queue for the body of a `with` statement. The caller must call `serve_next` afterwards."""
        # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
        return (ensured(self._entries.pop, entry, None), self._join(entry))[0]  # type: ignore[func-returns-value]

    def _join(self, entry: QueueEntry) -> None:
        with self._lock.held():
            self._entries[entry] = None
            self._capacity.set_waiting(True)

    def serve_next(self, entry: QueueEntry) -> None:
        """Let the next entry try to append, after *entry* has left the queue.

        If an exception interrupts this, the waiting entries notice within a second.
        """
        with self._lock.held():
            self._capacity.set_waiting(bool(self._entries))
        if entry.was_first:
            self._wake_first()
            self._capacity.pass_on()

    def _is_first(self, entry: QueueEntry) -> bool:
        entry.was_first = self._first_entry() is entry
        return entry.was_first

    def _first_entry(self) -> QueueEntry | None:
        with self._lock.held():
            return next(iter(self._entries), None)

    def _wake_first(self) -> None:
        first = self._first_entry()
        if first is not None and first.sleeper is not None:
            first.sleeper.wake()

    def wake_all(self) -> None:
        """Let all entries check again, for example because a sender was closed. Any thread may call this."""
        if not self._entries:
            return
        with self._lock.held():
            sleepers = [entry.sleeper for entry in self._entries if entry.sleeper is not None]
        wake_together(sleepers)
        self._capacity_waiters.wake_all()

    def serving(self) -> Guard:
        """Allow this thread, whose entry is first, to reserve capacity in the body of a `with` statement."""
        # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
        return (ensured(self._served.discard, get_ident()), self._served.add(get_ident()))[0]  # type: ignore[func-returns-value]

    def _may_append(self, entry: QueueEntry) -> bool:
        return entry.is_sender_closed() or self._capacity.fits_now(entry.batch)

    # Waiting

    async def wait(self, entry: QueueEntry, longest_pause: float) -> None:
        """Sleep until the entry is first and there may be capacity, or its sender is closed. Safe to cancel."""
        while not self._is_first(entry) and not entry.is_sender_closed():
            waiter = entry.sleeper = make_waiter()
            if self._is_first(entry) or entry.is_sender_closed():  # changed since the last check: no wakeup follows
                break
            with anyio.move_on_after(_LONGEST_SLEEP):
                await waiter.wait()
        if not entry.is_sender_closed():
            await self._capacity_waiters.wait(lambda: self._may_append(entry), longest_pause)

    def sleep(self, entry: QueueEntry, until: float | None, longest_pause: float) -> bool:
        """Block the thread like `wait`, at most until *until* (monotonic clock). Return False if that was reached."""
        while not self._is_first(entry) and not entry.is_sender_closed():
            remaining = _LONGEST_SLEEP if until is None else min(until - time.monotonic(), _LONGEST_SLEEP)
            if remaining <= 0:
                return False
            wakeup = entry.sleeper = ThreadWakeup()
            if not self._is_first(entry) and not entry.is_sender_closed():
                wakeup.wait(remaining)
        return entry.is_sender_closed() or self._capacity_waiters.sleep(
            lambda: self._may_append(entry), until, longest_pause
        )


def _make_send_queue(store: WritableStore) -> SendQueue:
    capacity_waiters = Waiters(store, poll=POLL, word=CAPACITY, share_fifo_of=waiters_of(store))
    queue = SendQueue(store, capacity_waiters)
    store.events.capacity_freed.attach(capacity_waiters.published)
    store.capacity.may_pass = queue.may_pass
    store.group_commit.wake_together = wake_together
    return queue


_queues = PerStore(_make_send_queue)


def send_queue_of(store: WritableStore) -> SendQueue:
    """Return the send queue of a store; there is one object per store."""
    return _queues.of(store)


def append_with_capacity(store: WritableStore, append: Callable[[], object], timeout: float | None = None) -> None:
    """Append in order with the other senders. Raise `CapacityReachedError` if it has to wait longer than *timeout*."""
    try:
        append()
        return
    except CapacityReachedError as full:
        refusal: CapacityReachedError = full
    until = None if timeout is None else time.monotonic() + timeout
    queue = send_queue_of(store)
    entry = QueueEntry(lambda: False)
    try:
        with queue.joined(entry):
            while until is None or time.monotonic() < until:
                entry.batch = Batch(refusal.size, refusal.messages)
                queue.sleep(entry, until, _PAUSE)
                try:
                    with queue.serving():
                        append()
                    return
                except CapacityReachedError as full:
                    refusal = full
    finally:
        queue.serve_next(entry)
    raise refusal
