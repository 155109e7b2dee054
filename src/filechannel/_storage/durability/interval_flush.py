"""Flushes at intervals, in the background: data under `Durability.interval`, and positions of consumers."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol, final
from weakref import ref

from ..._errors import Busy
from ..._format import Mutex
from ..._runtime.scheduler import FLUSH_LANE, Lane, TimedCall
from ..._runtime.threads import NoThreadError

_logger = logging.getLogger("filechannel")


class Flushable(Protocol):
    """An object that is flushed at intervals."""

    @property
    def is_closed(self) -> bool:
        """Whether it is closed: nothing is flushed any more."""
        ...

    def flush_if_needed(self) -> None:
        """Flush unless everything is on disk already."""
        ...


@final
class IntervalFlush:
    """Calls `flush_if_needed` of one object at an interval. Does not keep the object alive."""

    def __init__(self, flushable: Flushable, lane: Lane = FLUSH_LANE) -> None:
        self._flushable = ref(flushable)
        self._lane = lane
        self._flushes: TimedCall | None = None
        self._replacing = Mutex()

    def start(self, seconds: float) -> None:
        """Flush every *seconds* from now on, instead of at the interval so far."""
        flushes = TimedCall(self._lane, partial(_flush, self._flushable, seconds))
        self._replace(flushes)
        try:
            flushes.request(seconds)
        except NoThreadError as error:  # the next request of any channel starts the thread, which serves this one too
            _logger.error("the flush thread could not be started: %s", error)

    def stop(self) -> None:
        """Stop flushing at intervals; a flush may be in progress."""
        self._replace(None)

    def _replace(self, flushes: TimedCall | None) -> None:
        # Two threads may start at once: each must cancel what the other one has started.
        with self._replacing.held():
            before, self._flushes = self._flushes, flushes
        if before is not None:
            before.cancel()


def _flush(reference: ref[Flushable], seconds: float) -> float | None:
    """Flush, and return the interval; None if the object is closed or gone."""
    flushable = reference()
    if flushable is None or flushable.is_closed:
        return None
    try:
        flushable.flush_if_needed()
    except Busy:
        pass  # another process is flushing, or was stopped while flushing: other channels must not wait for that
    except Exception as error:  # the next flush is due after the interval
        if not flushable.is_closed:  # closing does a flush of its own
            _logger.error("a background flush failed: %s", error)
    return seconds
