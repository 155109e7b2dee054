"""`RetryPolicy`: when a failed message is tried again, and how often."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast, final

from ... import _checks as checks

_check_attempts = checks.integer(1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often a handler is called for a message on which it failed, and how long it pauses in between.

    The pause after the first failure is *delay* seconds. Each further pause is *factor* times as long, but never longer
    than *max_delay*. An invalid value raises `TypeError` or `ValueError`; the message names the field and what is
    allowed.
    """

    max_attempts: int | None = 5
    """The maximum number of attempts, including the first; None: no limit."""
    delay: float = 0.1
    """Seconds between the first attempt and the second."""
    factor: float = 2.0
    """How many times longer each further pause is, at least 1."""
    max_delay: float = 60.0
    """The longest pause, in seconds."""
    jitter: float = 0.1
    """The fraction by which a pause is randomly made shorter or longer, 0 to 1, so that messages that failed together
    are not all retried at the same time."""
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    """The errors that are retried. After any other error, the message is dead-lettered at once."""
    give_up_on: type[Exception] | tuple[type[Exception], ...] = ()
    """Errors that are not retried, even if `retry_on` includes them."""

    def __post_init__(self) -> None:
        """Raise `TypeError` or `ValueError` for invalid values."""
        if self.max_attempts is not None:
            _check_attempts("max_attempts", self.max_attempts)
        checks.seconds_or_zero("delay", self.delay)
        checks.seconds_or_zero("max_delay", self.max_delay)
        _check_number("factor", self.factor, 1, 1e9)
        _check_number("jitter", self.jitter, 0, 1)
        _check_kinds("retry_on", self.retry_on)
        _check_kinds("give_up_on", self.give_up_on)

    def pause_after(self, attempt: int, error: Exception) -> float | None:
        """Return the pause after a failed attempt, 1 for the first; None if it was the last one."""
        is_worth_it = isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)
        if not is_worth_it or self.is_beyond(attempt + 1):
            return None
        try:
            pause = self.delay * self.factor ** (attempt - 1)
        except OverflowError:
            pause = self.max_delay
        return min(min(pause, self.max_delay) * random.uniform(1 - self.jitter, 1 + self.jitter), self.max_delay)

    def is_beyond(self, attempt: int) -> bool:
        """Return whether this attempt exceeds the maximum."""
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
