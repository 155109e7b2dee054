"""The thread that compresses, one for all channels of the process, and the step of maintenance that gives it work.

It has a low priority, and while messages are sent it rests after each block for as long as that took. It is not as low
as can be (`SCHED_IDLE`): between two blocks it holds the interpreter's lock for moments, and whoever waits for that
would wait for an idle processor.

The thread only prepares. That a segment gets its name, and its plain form goes, is done by the step: that is part of
maintenance, which one process at a time does.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from contextlib import suppress
from threading import get_native_id
from typing import NamedTuple, final
from weakref import WeakKeyDictionary

from .._errors import Busy
from .._format import Mutex
from .._offset import Offset
from .._policies import Compression
from .._storage.background import Flag, NoThreadError, start_thread
from .._storage.store import Store
from .compression import Candidate, Prepared, SegmentCompressor, sweep

_NICENESS = 10  # more than the rest of the process
_LONGEST_REST = 0.1  # seconds
_SOON = 0.1
_FLUSHED = 1.0  # by then what was finished should be on disk
_RARELY = 60.0
_AT_ONCE = 8  # segments that are prepared before the step looks again; there may be many small ones


class _Stopped(Exception):  # noqa: N818 - not an error
    """The channel is being closed."""


class _Result(NamedTuple):
    """What came of one segment; nothing is prepared if it stays as it is."""

    compressor: SegmentCompressor
    prepared: Prepared | None
    following: Offset


@final
class _Job:
    """What there is to compress in one channel."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: deque[_Result] = deque()
        self.idle: Flag
        self._error: Exception | None = None
        self._stopping = Flag()
        self.abandon()
        self._work: list[tuple[SegmentCompressor, Candidate]] = []
        self._written = Offset(0)
        self._since = 0.0
        self._swept = -math.inf

    # In the thread of maintenance

    def attend(self, policy: Compression) -> float:
        """Finish what is prepared, begin with what is due, and return after how many seconds to come again."""
        is_idle = self.idle.is_set()  # first: what comes after the look has to wait
        self._finish()
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not is_idle:
            return _SOON
        compressor = SegmentCompressor(self._store, policy)
        due, seconds = self._due(compressor, policy.after)
        if not due or self._stopping.is_set():
            return seconds
        self._work = [(compressor, candidate) for candidate in due]
        COMPRESSOR.start(self)
        return _SOON

    def sweep_if_due(self) -> None:
        """Remove now and then what the dead have left, whatever is to be compressed."""
        if time.monotonic() >= self._swept + _RARELY:
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
                self._discard()  # all from here on, in order: before what is passed nobody looks again
                raise
            control.compressed_offset = max(following, control.compressed_offset)

    def _discard(self) -> None:
        while self._results:
            compressor, prepared, _ = self._results.popleft()
            if prepared is not None:
                compressor.discard(prepared)

    def _due(self, compressor: SegmentCompressor, after: float) -> tuple[list[Candidate], float]:
        """Return what is old enough, and else after how many seconds something will be."""
        due: list[Candidate] = []
        control = self._store.control
        for candidate in compressor.candidates(control.compressed_offset):
            wait = after - (time.time_ns() - candidate.finished) / 1e9
            if wait > 0 or len(due) == _AT_ONCE:
                return due, min(max(wait, _SOON), _RARELY)
            due.append(candidate)
        is_finished = self._store.segments.following(max(control.compressed_offset, control.oldest_offset)) is not None
        return due, min(max(after, _FLUSHED), _RARELY) if is_finished else _RARELY

    # In the thread that compresses

    def run(self) -> None:
        """Prepare what is due. An error is for the next step to tell."""
        try:
            for compressor, candidate in self._work:
                self._since = time.monotonic()
                prepared = compressor.prepare(candidate, self._give_way)
                self._results.append(_Result(compressor, prepared, candidate.following))
        except (_Stopped, Busy):
            pass
        except Exception as error:
            self._error = error
        finally:
            self._work = []
            self.idle.set()

    def _give_way(self) -> None:
        """Rest, if somebody sends: this much work should take at most half of a processor from them."""
        written, now = self._store.control.write_offset, time.monotonic()
        rest = min(now - self._since, _LONGEST_REST) if written != self._written else 0.0
        if self._stopping.wait(rest) if rest else self._stopping.is_set():
            raise _Stopped
        self._written, self._since = written, time.monotonic()

    def abandon(self) -> None:
        """There is nobody to wait for: it has not begun, or a forked child has not got the thread."""
        self.idle = Flag()
        self.idle.set()

    # When the channel is closed

    def stop(self) -> None:
        """Compress no more: when this returns nobody works on the channel, and nothing half-made is left."""
        self._stopping.set()
        COMPRESSOR.withdraw(self)
        self.idle.wait()
        self._discard()
        COMPRESSOR.forget(self._store)


@final
class Compressor:
    """The thread. It exists while there is something to compress, and keeps no process from ending."""

    def __init__(self) -> None:
        self._jobs: WeakKeyDictionary[Store, _Job] = WeakKeyDictionary()
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and its channels are the parent's."""
        for job in list(self._jobs.values()):
            job.abandon()
        self._lock = Mutex()
        self._jobs = WeakKeyDictionary()
        self._waiting: deque[_Job] = deque()
        self._running = False

    def job_of(self, store: Store) -> _Job:
        """Return what there is to do for a channel, until it is closed."""
        with self._lock.held():
            job = self._jobs.get(store)
            if job is None:
                job = self._jobs[store] = _Job(store)
                store.on_closing.append(job.stop)
            return job

    def start(self, job: _Job) -> None:
        """Do the work of a job, after that of others."""
        with self._lock.held():
            job.idle.clear()
            self._waiting.append(job)
            if not self._running:
                try:
                    start_thread(self._run, "filechannel-compression")
                    self._running = True
                except NoThreadError:  # no more threads: the next step tries again
                    self._waiting.clear()
                    job.idle.set()

    def withdraw(self, job: _Job) -> None:
        """Take back a job that has not begun."""
        with self._lock.held(), suppress(ValueError):
            self._waiting.remove(job)
            job.idle.set()

    def forget(self, store: Store) -> None:
        """It was closed: its job would keep it for ever."""
        with self._lock.held():
            self._jobs.pop(store, None)

    def _run(self) -> None:
        with suppress(OSError):  # as good as it gets
            thread = get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)
        while (job := self._next()) is not None:
            job.run()

    def _next(self) -> _Job | None:
        with self._lock.held():
            if self._waiting:
                return self._waiting.popleft()
            self._running = False
            return None


COMPRESSOR = Compressor()
os.register_at_fork(after_in_child=COMPRESSOR.start_over)


def compress_step(store: Store) -> float:
    """Compress what is old enough, in the background; return after how many seconds to call this again."""
    job, policy = COMPRESSOR.job_of(store), store.options().compression
    job.sweep_if_due()
    return _RARELY if policy.method == "none" else job.attend(policy)
