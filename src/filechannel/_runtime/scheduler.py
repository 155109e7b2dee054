"""Something that is done once, some time after it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from .flush_timer import FLUSH_TIMER


@final
class Delay:
    """Calls a function within so many seconds after `begin`, once for all who asked meanwhile."""

    def __init__(self, work: Callable[[], object], seconds: float) -> None:
        """*work* runs on the timer's thread, which serves everybody: it is brief."""
        self._work = work
        self._seconds = seconds
        self._wanted = self._ended = False

    @property
    def is_closed(self) -> bool:
        """Whether it is not wanted any more."""
        return self._ended

    def begin(self) -> None:
        """Do it in a while, unless that was said already."""
        self._wanted = True
        if not self._ended and not FLUSH_TIMER.knows(self):
            FLUSH_TIMER.register(self, self._seconds)
        else:
            FLUSH_TIMER.begin()

    def flush_if_needed(self) -> None:
        """Do it now if that was asked for. Otherwise leave the timer, whose thread ends then."""
        wanted, self._wanted = self._wanted and not self._ended, False
        if wanted:
            self._work()
            return
        FLUSH_TIMER.forget(self)
        if self._wanted:  # it was asked for in this moment
            self.begin()

    def end(self) -> None:
        """Do it no more."""
        self._ended = True
        FLUSH_TIMER.forget(self)
