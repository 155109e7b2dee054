"""The scheduler: functions that are called at given times, on threads that run only while calls are scheduled.

A *timed call* is a function and the time when it is called next. It belongs to a *lane*: a thread that makes its timed
calls one after the other, in the order of their times. Different lanes never wait for each other, so each kind of work
that another kind must not delay has a lane of its own; the lanes of the process are at the end of this module. There is
no thread above the lanes that distributes the work: it would wake up only to wake another thread.

Threads that run user code request calls, among them the main thread, on which a signal handler may raise an exception
between any two bytecodes. So these threads share no lock with the lane (see `threads`). A request is one append to a
deque, and if it is interrupted at any point, the next request works nevertheless. The heap of timed calls belongs to
the lane's thread.

Waking a thread takes longer than many messages, and the caller would pay for it. A lane says until when it sleeps, and
a request wakes it only if it is due before that.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from threading import Lock, get_native_id
from typing import TypeAlias, final
from weakref import WeakSet

from .fork_registry import Phase, reset_in_child
from .thread_wakeup import ThreadWakeup
from .threads import start_thread

TimedFunction: TypeAlias = Callable[[], float | None]
"""Does what is due. Returns after how many seconds to call it again, or None to be called on request only."""

LINGER_SECONDS = 1.0
"""How long a thread without timed calls waits before it ends: starting a thread takes longer than waking one."""
_POLL_SECONDS = 0.02
_UNSEEN_REQUESTS = 256  # from which on the thread is woken, to remove those that were cancelled since
_SMALL_HEAP = 64  # entries; not worth removing cancelled ones before they are due
_logger = logging.getLogger("filechannel")


@final
class TimedCall:
    """A function that a lane calls on request, and again as long as it returns a number of seconds.

    At most one call is in progress. Between calls the lane refers to the function only if another one is scheduled.
    """

    __slots__ = ("_calls", "_function", "_lane", "_requested", "cancel", "due")

    def __init__(self, lane: Lane, function: TimedFunction) -> None:
        self._lane = lane
        self._function = [function]
        self._calls = object()
        self._requested: object = None
        self.cancel: Callable[[], None] = self._function.clear
        """Cancel it, for good, and release the function; a call may be in progress.

        It is a C function, so a signal handler cannot interrupt it, and a `Guard` may call it.
        """
        self.due = math.inf
        """The time of the next call on the monotonic clock. Only the lane changes it."""

    @property
    def is_requested(self) -> bool:
        """Whether a call was requested that has not started."""
        return self._requested is self._calls

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return not self._function

    def request(self, seconds: float) -> None:
        """Call the function within *seconds*, once for all requests until the call starts.

        Raises `NoThreadError` if the lane has no thread and none can be started. The request is not lost: the next one
        of any timed call of the lane tries again, and serves both.
        """
        lane, due = self._lane, time.monotonic() + seconds
        calls = self._calls  # read first: a call that starts after this replaces it, and the request counts
        if self._requested is not calls:
            lane.requests.append((due, self))
            self._requested = calls
        # After the append: the lane publishes when it will wake up, and then checks for requests a last time. Repeated
        # by every request, because an earlier one may have been interrupted here, or may have found no thread.
        if due < lane.wakes_at or len(lane.requests) > _UNSEEN_REQUESTS:
            lane.wake()

    # In the thread of the lane

    def run(self) -> float | None:
        """Call the function. Return after how many seconds to call it again, or None."""
        self.due = math.inf
        self._calls = object()  # before the call: what is requested from here on needs another one
        try:
            (function,) = self._function
        except ValueError:  # cancelled
            return None
        try:
            seconds = function()
        except BaseException:  # no signal handler runs on this thread, and the other timed calls need it
            _logger.exception("timed work failed")
            return None
        return None if self.is_cancelled else seconds


@final
class Lane:
    """A thread that makes timed calls. It is started by the first request, and ends when no call is scheduled."""

    def __init__(self, name: str, *, polls_for: float = 0.0, niceness: int = 0) -> None:
        """*polls_for*: for this many seconds after a request, the thread polls for further requests.

        Then a busy channel, which makes many requests that are due immediately, wakes it only for the first one.
        *niceness*: how much lower the priority of the thread is than that of the process.
        """
        self.name = name
        self.polls_for = polls_for
        self._niceness = niceness
        self.start_over()
        _lanes.add(self)

    def start_over(self) -> None:
        """Reset in a forked child, which does not have the thread. Objects that survive make new timed calls."""
        self.requests: deque[tuple[float, TimedCall]] = deque()
        """Requests that the thread has not seen, with the times of their calls. Any thread appends."""
        self.wakes_at = math.inf
        """When the thread next checks the requests; -inf while it is awake, inf if there is none."""
        self._heap: list[tuple[float, int, TimedCall]] = []
        """What is scheduled, by time. An entry whose time is not that of its timed call any more is ignored."""
        self._heap_limit = _SMALL_HEAP
        self._numbers = count()  # orders entries of the same time
        self._wakeup = ThreadWakeup()
        self._only_thread = Lock()  # acquired by threads of the lane only
        self._polls_until = self._ends_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the thread exists."""
        return self.wakes_at != math.inf

    def wake(self) -> None:
        """Let the thread check the requests; start it if there is none. Raise `NoThreadError` if that fails."""
        self._wakeup.wake()
        if not self.is_running:
            start_thread(self._run, self.name)

    def wake_to_end(self) -> None:
        """Wake the thread if it would sleep for long: after a cancellation there may be nothing left to wait for."""
        if time.monotonic() + LINGER_SECONDS < self.wakes_at < math.inf:
            self._wakeup.wake()

    # In the thread

    def _run(self) -> None:
        if self._niceness:
            with suppress(OSError):  # best effort
                thread = get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + self._niceness)
        # If another thread is running, this one ends. The other one may be about to end too; but before that it checks
        # `_wakeup`, which was set before this thread was started.
        while self._only_thread.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self.wakes_at = math.inf
                self._only_thread.release()
            if not self._wakeup.is_pending:
                return

    def _serve(self) -> None:
        """Make the calls that are due until none is scheduled."""
        self._ends_at = time.monotonic() + LINGER_SECONDS
        while True:
            self.wakes_at = -math.inf
            self._wakeup.clear()
            self._take_requests()
            self._call_due()
            now = time.monotonic()
            wakes_at = self._next_wake(now)
            self.wakes_at = wakes_at
            if self.requests:  # of a caller that saw the thread awake, and did not wake it
                continue
            if wakes_at == math.inf:
                return
            self._wakeup.wait(wakes_at - now)

    def _take_requests(self) -> None:
        if not self.requests:
            return
        self._polls_until = time.monotonic() + self.polls_for
        while self.requests:
            due, timed = self.requests.popleft()
            if due < timed.due and not timed.is_cancelled:
                self._push(due, timed)
        if len(self._heap) > self._heap_limit:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapify(self._heap)
            self._heap_limit = max(2 * len(self._heap), _SMALL_HEAP)

    def _push(self, due: float, timed: TimedCall) -> None:
        timed.due = due
        heappush(self._heap, (due, next(self._numbers), timed))

    @staticmethod
    def _is_valid(entry: tuple[float, int, TimedCall]) -> bool:
        due, _, timed = entry
        return due == timed.due and not timed.is_cancelled

    def _call_due(self) -> None:
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            self._call(heappop(self._heap))  # not bound to a name: that would keep a closed channel alive

    def _call(self, entry: tuple[float, int, TimedCall]) -> None:
        if self._is_valid(entry):
            timed = entry[2]
            seconds = timed.run()
            now = time.monotonic()
            self._ends_at = now + LINGER_SECONDS
            if seconds is not None:
                self._push(now + seconds, timed)

    def _next_wake(self, now: float) -> float:
        """Return when to wake up; inf if no call was scheduled for `LINGER_SECONDS`."""
        while self._heap and not self._is_valid(self._heap[0]):
            heappop(self._heap)
        if self._heap:
            self._ends_at = now + LINGER_SECONDS
            wakes_at = self._heap[0][0]
        elif now < self._ends_at:
            wakes_at = self._ends_at
        else:
            return math.inf
        return min(wakes_at, now + _POLL_SECONDS) if now < self._polls_until else wakes_at


_lanes: WeakSet[Lane] = WeakSet()


def _start_over() -> None:
    for lane in list(_lanes):
        lane.start_over()


reset_in_child(Phase.THREADS, _start_over)

# The lanes of the process

LEASE_LANE = Lane("filechannel-lease-renewer")
"""Extends leases. Each call waits a few hundredths of a second at most, so that no lease expires meanwhile."""
WATCHDOG_LANE = Lane("filechannel-watchdog")
"""Wakes tasks of event loops that a process did not wake because it died."""
FLUSH_LANE = Lane("filechannel-interval-flush")
"""Flushes data and positions at intervals: waits for the disk, and briefly for other processes."""
MAINTENANCE_LANE = Lane("filechannel-maintenance", polls_for=1.0)
"""Maintains channels: works on files, and waits briefly for other processes."""
COMPRESSION_LANE = Lane("filechannel-compression", niceness=10)
"""Compresses segments. Its priority is low, but not the lowest possible (`SCHED_IDLE`): between two blocks the thread
briefly holds the interpreter lock, and a thread that waits for that would wait for an idle processor."""
