"""The compression thread, one for all channels of the process, and the maintenance step that gives it work.

It is a lane of the scheduler with a low priority, and while messages are sent it rests after each block for as long as
the block took. The thread only prepares compressed segments. The step gives them their names and retires the plain
files: that is part of maintenance, which one process at a time does.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple, final
from weakref import WeakKeyDictionary

from ..._errors import Busy
from ..._format import Mutex
from ..._offset import Offset
from ..._policies import Compression
from ..._runtime.fork_registry import Phase, reset_in_child
from ..._runtime.scheduler import COMPRESSION_LANE, TimedCall
from ..._runtime.threads import Flag, NoThreadError
from ..._storage.writable_store import WritableStore
from .compress_segment import Candidate, Prepared, SegmentCompressor, sweep

_LONGEST_REST_SECONDS = 0.1
_PROGRESS_SECONDS = 0.1  # between two steps while segments are being compressed
_FLUSHED_SECONDS = 1.0  # by then finished segments should be on disk
_IDLE_SECONDS = 60.0  # between two steps if there is nothing to compress, and between two sweeps
_SEGMENTS_PER_JOB = 8  # segments that are prepared before the step runs again; there may be many small ones


class _Stopped(Exception):  # noqa: N818 - not an error
    """The channel is being closed."""


class _Result(NamedTuple):
    """The result for one segment; `prepared` is None if the segment was not compressed."""

    compressor: SegmentCompressor
    prepared: Prepared | None
    following: Offset


@final
class _Job:
    """The compression work of one channel."""

    def __init__(self, store: WritableStore) -> None:
        self._store = store
        self._results: deque[_Result] = deque()
        self._error: Exception | None = None
        self._stopping = Flag()
        self.abandon()
        self._work: list[tuple[SegmentCompressor, Candidate]] = []
        self._written = Offset(0)
        self._since = 0.0
        self._swept = -math.inf

    # In the maintenance thread

    def attend(self, policy: Compression) -> float:
        """Finish what is prepared, start what is due, and return after how many seconds to call this again."""
        is_idle = self.idle.is_set()  # first: results that come after this check have to wait
        self._finish()
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not is_idle:
            return _PROGRESS_SECONDS
        compressor = SegmentCompressor(self._store, policy)
        due, seconds = self._due(compressor, policy.after)
        if not due or self._stopping.is_set():
            return seconds
        self._work = [(compressor, candidate) for candidate in due]
        self._start()
        return _PROGRESS_SECONDS

    def _start(self) -> None:
        self.idle.clear()
        self._waiting = True
        try:
            self._timed_run.request(0.0)
        except NoThreadError:  # no thread can be started: the next step tries again
            self._withdraw()

    def _withdraw(self) -> None:
        """Mark the job as idle unless the compression thread has started it."""
        with self._lock.held():
            if self._waiting:
                self._waiting = False
                self.idle.set()

    def sweep_if_due(self) -> None:
        """Remove the files that dead processes left, once a minute at most, even if there is nothing to compress."""
        if time.monotonic() >= self._swept + _IDLE_SECONDS:
            self._swept = time.monotonic()
            sweep(self._store)

    def _finish(self) -> None:
        control = self._store.control
        while self._results:
            compressor, prepared, following = self._results.popleft()
            try:
                if prepared is not None:
                    compressor.finish(prepared)
            except BaseException:
                # All from here on, in order: segments before `compressed_offset` are not considered again.
                self._discard()
                raise
            control.compressed_offset = max(following, control.compressed_offset)

    def _discard(self) -> None:
        while self._results:
            compressor, prepared, _ = self._results.popleft()
            if prepared is not None:
                compressor.discard(prepared)

    def _due(self, compressor: SegmentCompressor, after: float) -> tuple[list[Candidate], float]:
        """Return the segments that are old enough, and after how many seconds there will be others."""
        due: list[Candidate] = []
        control = self._store.control
        for candidate in compressor.candidates(control.compressed_offset):
            wait = after - (time.time_ns() - candidate.finished) / 1e9
            if wait > 0 or len(due) == _SEGMENTS_PER_JOB:
                return due, min(max(wait, _PROGRESS_SECONDS), _IDLE_SECONDS)
            due.append(candidate)
        is_finished = self._store.segments.following(max(control.compressed_offset, control.oldest_offset)) is not None
        return due, min(max(after, _FLUSHED_SECONDS), _IDLE_SECONDS) if is_finished else _IDLE_SECONDS

    # In the compression thread

    def run(self) -> None:
        """Prepare what is due. The next step raises an error that happens here."""
        with self._lock.held():
            if not self._waiting:
                return  # withdrawn
            self._waiting = False
        try:
            for compressor, candidate in self._work:
                self._since = time.monotonic()
                prepared = compressor.prepare(candidate, self._throttle)
                self._results.append(_Result(compressor, prepared, candidate.following))
        except (_Stopped, Busy):
            pass
        except Exception as error:
            self._error = error
        finally:
            self._work = []
            self.idle.set()

    def _throttle(self) -> None:
        """Rest if messages are being sent: compression should take at most half of a processor from the senders."""
        written, now = self._store.control.write_offset, time.monotonic()
        rest = min(now - self._since, _LONGEST_REST_SECONDS) if written != self._written else 0.0
        if self._stopping.wait(rest) if rest else self._stopping.is_set():
            raise _Stopped
        self._written, self._since = written, time.monotonic()

    def abandon(self) -> None:
        """Mark the job as idle: it has not started, or this is a forked child, which does not have the thread."""
        self.idle = Flag()
        """Set while the compression thread has nothing to do for the channel."""
        self.idle.set()
        self._lock = Mutex()
        self._waiting = False
        """Whether a run is requested and has not started."""
        self._timed_run = TimedCall(COMPRESSION_LANE, self.run)

    # When the channel is closed

    def stop(self) -> None:
        """Stop compressing. When this returns, no thread works on the channel, and no incomplete file is left."""
        self._stopping.set()
        self._withdraw()
        self._timed_run.cancel()
        self.idle.wait()
        self._discard()
        JOBS.forget(self._store)


@final
class CompressionJobs:
    """The compression work of all channels of the process."""

    def __init__(self) -> None:
        self._jobs: WeakKeyDictionary[WritableStore, _Job] = WeakKeyDictionary()
        self.start_over()

    def start_over(self) -> None:
        """Reset in a forked child, which does not have the thread, and whose channels are the parent's."""
        for job in list(self._jobs.values()):
            job.abandon()
        self._lock = Mutex()
        self._jobs = WeakKeyDictionary()

    def of(self, store: WritableStore) -> _Job:
        """Return the job of a channel, until it is closed."""
        with self._lock.held():
            job = self._jobs.get(store)
            if job is None:
                job = self._jobs[store] = _Job(store)
                store.events.closing.attach(job.stop)
            return job

    def forget(self, store: WritableStore) -> None:
        """Remove the job of a closed channel: it would keep the store alive."""
        with self._lock.held():
            self._jobs.pop(store, None)


JOBS = CompressionJobs()
reset_in_child(Phase.STORES, JOBS.start_over)


def compress_step(store: WritableStore) -> float:
    """Compress what is old enough, in the background; return after how many seconds to call this again."""
    job, policy = JOBS.of(store), store.options().compression
    job.sweep_if_due()
    return _IDLE_SECONDS if policy.method == "none" else job.attend(policy)
