"""Something that is done once, some time after it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from .flush_timer import FLUSH_TIMER


@final
class Delay:
    """Calls a function once, so many seconds after the first `begin`; then again after the next one."""

    def __init__(self, work: Callable[[], object], seconds: float) -> None:
        """*work* runs on the timer's thread, which serves everybody: it is brief."""
        self._work = work
        self._seconds = seconds
        self._begun = self._ended = False

    @property
    def is_closed(self) -> bool:
        """Whether it is not wanted any more."""
        return self._ended

    def begin(self) -> None:
        """Do it in a while, unless that was said already."""
        if not self._begun and not self._ended:
            self._begun = True
            FLUSH_TIMER.register(self, self._seconds)

    def flush_if_needed(self) -> None:
        """Do it now."""
        FLUSH_TIMER.forget(self)
        self._begun = False  # from here on somebody may ask again
        if not self._ended:
            self._work()

    def end(self) -> None:
        """Do it no more."""
        self._ended = True
        FLUSH_TIMER.forget(self)
