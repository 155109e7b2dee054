"""When a message that failed is tried again, and when that is over."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast, final

from .. import _checks as checks

_check_attempts = checks.integer(1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often a handler gets a message that it failed on, and how long it is left alone in between.

    The pause after the first failure is *delay* seconds, after each further one *factor* times as long, but never
    longer than *max_delay*. Raises `TypeError` or `ValueError`, naming the field and what is allowed, for any other
    value.
    """

    max_attempts: int | None = 5
    """How often it is tried in all, the first time included; None: for ever."""
    delay: float = 0.1
    """Seconds between the first attempt and the second."""
    factor: float = 2.0
    """How many times longer each further pause is, at least 1."""
    max_delay: float = 60.0
    """The longest pause, in seconds."""
    jitter: float = 0.1
    """By which part of itself a pause is made shorter or longer at random, 0 to 1, so that many that failed together
    do not come again together."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    """What is worth another attempt; after any other error the message is given up at once."""
    give_up_on: type[Exception] | tuple[type[Exception], ...] = ()
    """What is not, although `retry_on` says so."""

    def __post_init__(self) -> None:
        """Refuse what is no policy."""
        if self.max_attempts is not None:
            _check_attempts("max_attempts", self.max_attempts)
        checks.seconds_or_zero("delay", self.delay)
        checks.seconds_or_zero("max_delay", self.max_delay)
        _check_number("factor", self.factor, 1, 1e9)
        _check_number("jitter", self.jitter, 0, 1)
        _check_kinds("retry_on", self.retry_on)
        _check_kinds("give_up_on", self.give_up_on)

    def pause_after(self, attempt: int, error: Exception) -> float | None:
        """Return how long to wait after an attempt, 1 for the first, that failed; None if it was the last one."""
        is_worth_it = isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)
        if not is_worth_it or self.is_beyond(attempt + 1):
            return None
        try:
            pause = self.delay * self.factor ** (attempt - 1)
        except OverflowError:
            pause = self.max_delay
        return min(min(pause, self.max_delay) * random.uniform(1 - self.jitter, 1 + self.jitter), self.max_delay)

    def is_beyond(self, attempt: int) -> bool:
        """Tell whether there is no such attempt."""
        return self.max_attempts is not None and attempt > self.max_attempts


def _check_kinds(name: str, value: object) -> None:
    for kind in cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,)):
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"{name}={value!r}: must be classes of Exception, not {kind!r}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    allowed = f"a number from {low:g} to {high:g}"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r}: must be {allowed}")
