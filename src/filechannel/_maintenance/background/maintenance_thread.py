"""The maintenance thread: one thread per process maintains all channels that the process has open.

Every process has one, and any of them may maintain a channel: the one that first notices that there is work. That is
the process in which a segment was finished, a consumer moved to the next segment or a name was removed. For everything
else every process checks from time to time, the less often the longer a channel is idle. One process at a time holds
the maintenance lock, a kernel lock on a byte (see `maintenance_lock`). So no process has to be elected, and if one
dies, the others continue.

The thread is a lane of the scheduler, and each channel a timed call of it. A request wakes the thread only if there was
none for a second; otherwise the thread looks for requests by itself (see `scheduler`).

The thread works on storage alone. An error is logged, counted where every process sees it, and the work is tried again
at increasing intervals. Senders and receivers are never affected.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, final

from ..._errors import Busy, FileChannelError
from ..._format import Mutex
from ..._runtime.fork_registry import Phase, reset_in_child
from ..._runtime.may_sleep import may_sleep
from ..._runtime.scheduler import MAINTENANCE_LANE, Lane, TimedCall
from ..._runtime.threads import NoThreadError
from ..._storage.writable_store import WritableStore
from .compression_thread import compress_step
from .plan_reclaim import pause_while_empty, reclaim

Step: TypeAlias = Callable[[WritableStore], float]
"""Does what is due for one channel, and returns the seconds until the next call.

It is called with the maintenance lock. `Busy` means that another process holds a lock; it is not an error.
"""

STEPS: list[Step] = [reclaim, compress_step]
"""The steps of maintaining a channel, in this order."""

_MANY_SEGMENTS = 8  # a sender that fills more than that before maintenance ran reclaims them itself
_SENDER_WAIT_SECONDS = 1.0  # how long that sender waits for the maintenance thread
_REQUEST_SECONDS = 0.02  # from a request to the pass; many small segments that are filled quickly are handled together
_BUSY_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 60.0
_TOGETHER_SECONDS = 1.0  # channels that are due within this time are handled together
_logger = logging.getLogger("filechannel")


@final
class _MaintainedChannel:
    """One channel that is maintained."""

    def __init__(self, store: WritableStore, passes: TimedCall) -> None:
        self.store = store
        self.passes = passes
        self.working = Mutex()
        """Held while a thread works on the channel."""
        self.filled = 0
        """Segments that were filled since the channel was last handled."""
        self.failures = 0
        self.retry_at = 0.0
        """After a failure: requests are ignored before this time on the monotonic clock."""


@final
class Maintenance:
    """Maintains the channels of the process, in a lane of the scheduler.

    Its thread ends within a second without a channel to maintain, and never keeps a process alive.
    """

    def __init__(self, lane: Lane = MAINTENANCE_LANE) -> None:
        self._lane = lane
        self.start_over()

    def start_over(self) -> None:
        """Reset in a forked child, whose channels are the parent's."""
        self._lock = Mutex()
        self._channels: dict[WritableStore, _MaintainedChannel] = {}

    def register(self, store: WritableStore) -> None:
        """Maintain a channel until it is closed. A second call has no effect."""
        with self._lock.held():
            if store in self._channels:
                return
            self._channels[store] = _MaintainedChannel(store, TimedCall(self._lane, partial(self._attend, store)))
            store.events.maintenance_due.attach(partial(self.request, store))
            store.events.segment_finished.attach(partial(self.keep_up, store))
            store.events.closing.attach(partial(self.forget, store))
        self.request(store)

    def request(self, store: WritableStore) -> None:
        """Handle a channel soon. Any thread may call this, at any time; it does not wait."""
        channel = self._channels.get(store)
        if channel is None:
            return
        try:
            channel.passes.request(_REQUEST_SECONDS)
        except NoThreadError as error:  # no thread can be started: the next request tries again
            _logger.error("maintenance could not be started: %s", error)

    def keep_up(self, store: WritableStore) -> None:
        """Handle a channel soon after a segment was filled; right now, in this thread, if many were filled since.

        On a busy machine the maintenance thread may get no CPU time while another thread sends without a pause, and
        consumed segments would pile up. An event loop is not blocked: it has pauses.
        """
        self.request(store)
        channel = self._channels.get(store)
        if channel is None:
            return
        channel.filled += 1
        if channel.filled > _MANY_SEGMENTS and may_sleep():
            try:
                with channel.working.held(_SENDER_WAIT_SECONDS):
                    if (
                        channel.filled > _MANY_SEGMENTS
                    ):  # otherwise the maintenance thread handled it while this thread waited
                        self._reclaim_now(channel)
            except Busy:
                pass  # the thread, or another process, is maintaining it

    def _reclaim_now(self, channel: _MaintainedChannel) -> None:
        channel.filled = 0
        try:
            channel.store.maintenance_lock.run_locked(lambda: reclaim(channel.store))
        except (FileChannelError, OSError) as error:  # not an error of the sender
            self._failed(channel, error)

    def forget(self, store: WritableStore) -> None:
        """Stop maintaining a channel. When this returns, no thread of this process maintains it."""
        with self._lock.held():
            channel = self._channels.pop(store, None)
        if channel is None:
            return
        channel.passes.cancel()
        self._lane.wake_to_end()
        with channel.working.held():
            pass  # from here on no thread works on it

    # In the thread of the lane

    def _attend(self, store: WritableStore) -> float | None:
        """Handle a channel, and return after how many seconds to do so again; None if it was closed."""
        channel = self._channels.get(store)
        if channel is None:
            return None
        with channel.working.held():
            if store not in self._channels:
                return None  # it was closed while this thread waited
            if (left := channel.retry_at - time.monotonic()) > 0:
                return left
            channel.filled = 0
            seconds = self._maintain(channel)
            if channel.failures:
                channel.retry_at = time.monotonic() + seconds
            return _together(seconds)

    def _maintain(self, channel: _MaintainedChannel) -> float:
        """Do every step, and return after how many seconds to repeat them."""
        store, failures = channel.store, channel.failures
        try:
            seconds = pause_while_empty(store) if store.is_empty else self._run_steps(channel)
            store.release_removed()
        except Busy:
            return _BUSY_RETRY_SECONDS
        except Exception as error:
            return self._failed(channel, error)
        if channel.failures == failures:
            channel.failures = 0
        return seconds

    def _run_steps(self, channel: _MaintainedChannel) -> float:
        try:
            with channel.store.maintenance_lock.held():
                return min(self._do(step, channel) for step in STEPS)
        except Busy:
            return _BUSY_RETRY_SECONDS

    def _do(self, step: Step, channel: _MaintainedChannel) -> float:
        try:
            return step(channel.store)
        except Busy:
            return _BUSY_RETRY_SECONDS
        except Exception as error:  # the other steps are independent of it
            return self._failed(channel, error)

    @staticmethod
    def _failed(channel: _MaintainedChannel, error: Exception) -> float:
        channel.failures += 1
        channel.store.maintenance_lock.count_error()
        _logger.error("%s: maintenance failed, and will be retried: %s", channel.store.path, error)
        return min(2.0**channel.failures, _LONGEST_RETRY_SECONDS)


def _together(seconds: float) -> float:
    """Return the seconds until a full second, if that is not soon: then the thread wakes once for many channels."""
    if seconds < _TOGETHER_SECONDS:
        return seconds
    now = time.monotonic()
    return math.ceil((now + seconds) / _TOGETHER_SECONDS) * _TOGETHER_SECONDS - now


MAINTENANCE = Maintenance()
reset_in_child(Phase.STORES, MAINTENANCE.start_over)
