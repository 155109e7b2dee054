"""`BaseService`: the life of a service, for event loops and threads. `retry_or_dead_letter` decides about messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar, cast

from anyio import BusyResourceError, ClosedResourceError, EndOfStream

from ... import _checks as checks
from ..._errors import CodecError
from ..._format import NOTHING, Nothing
from ..._format.layout import ENTRY_ATTEMPTS
from ..._runtime.thread_wakeup import Sleeper
from ..status.statistics import ServiceStatistics
from ..subscription.delivery import OFFSET, TOKEN, DeliveryFields
from ..subscription.outstanding import Claim, Outstanding
from .dead_letter import EXAMPLE, DeadLetter, error_line
from .retry_or_dead_letter import Outcomes, WorkerStats
from .retry_policy import RetryPolicy
from .sender import BaseSender

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceConfig:
    """The configuration of a service."""

    group: bool
    ordered: bool
    concurrency: int
    retry: RetryPolicy
    grace: float | None

    def __post_init__(self) -> None:
        """Raise `TypeError` or `ValueError` for invalid values and combinations."""
        checks.instance_of(bool, "True or False")("group", self.group)
        checks.instance_of(bool, "True or False")("ordered", self.ordered)
        checks.integer(1)("concurrency", self.concurrency)
        checks.instance_of(RetryPolicy, "a RetryPolicy")("retry", self.retry)
        if self.grace is not None:
            checks.seconds_or_zero("grace", self.grace)
        if self.ordered and self.concurrency > 1:
            what = f"concurrency={self.concurrency}: concurrent handlers do not keep the order"
            raise ValueError(f"{what}; add ordered=False")
        if self.group and (most := self.retry.max_attempts) is not None and most > ENTRY_ATTEMPTS:
            raise ValueError(f"max_attempts={most}: must be at most {ENTRY_ATTEMPTS} in a group, or None for no limit")


def check_handler(handler: Callable[[T], object]) -> Callable[[object], object]:
    """Return the handler, typed to accept any message. Raise `TypeError` if it is not callable."""
    if not callable(handler):
        raise TypeError(f"handler={handler!r}: must be callable with a message")
    return cast("Callable[[object], object]", handler)


def check_dead_letter(dead_letter: BaseSender[DeadLetter] | None, wanted: type, path: str) -> None:
    """Raise `TypeError` for anything that cannot send a dead letter, before there is one to send."""
    if dead_letter is None:
        return
    what = f"a {path} of a channel of DeadLetter"
    checks.instance_of(wanted, what)("dead_letter", dead_letter)
    try:
        dead_letter.check_message(EXAMPLE)
    except CodecError as error:
        raise TypeError(f"dead_letter={dead_letter!r}: must be {what}: {error}") from error


class BaseService:
    """Calls a handler for each message, and acknowledges the message when the handler returns.

    An ordered service has one worker, others may have several that share the position. This class and `Outcomes`
    decide and count. How a worker waits, for a message, for the end of a pause or for a dead letter to be sent, is up
    to the subclasses.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        handler: Callable[[object], object],
        config: ServiceConfig,
        *,
        dead_letters: bool,
    ) -> None:
        subscription = outstanding.subscription
        subscription.acquire(self)
        self._subscription = subscription
        self._claims = outstanding.claims
        self._handler = handler
        self._config = config
        self._outcomes = Outcomes(outstanding, config.retry, ordered=config.ordered, dead_letters=dead_letters)
        # Looked up once, for the hot path. If the subscription is closed, `_take` finds nothing, `_ack` returns False.
        native = subscription.reader.native
        self._take = cast("Callable[[], DeliveryFields[object] | Nothing]", subscription.counting(native.take_delivery))
        is_plain = not subscription.is_counted and not outstanding.claims.has_leases
        self._ack: Callable[[int], bool] | None = None
        """Acknowledges the only outstanding message; None if several workers have one each."""
        if config.concurrency == 1:
            self._ack = native.ack if is_plain else outstanding.ack
        self._most = math.inf if config.retry.max_attempts is None else config.retry.max_attempts
        self._sleepers: set[Sleeper] = set()
        self._has_started = self._paused = self._stopping = self._closed = False
        self._halted = False
        """Paused or stopping: nothing new is started. A single check on the path of every message."""
        self._error: BaseException | None = None
        self._lag = 0

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._subscription.name

    # Control, from any thread

    def pause(self) -> None:
        """Start nothing new until `resume`. Running handlers finish, but are not retried before that."""
        self._paused = self._halted = True
        self._wake()

    def resume(self) -> None:
        """Resume after a pause."""
        self._paused = False
        self._halted = self._stopping or self._closed
        self._wake()

    def stop(self) -> None:
        """Start nothing new, and end when running handlers have finished. The next service gets the other messages."""
        self._stopping = self._halted = True
        self._wake()
        if not self._has_started:
            self.close()

    def _wake(self) -> None:
        for sleeper in list(self._sleepers):
            sleeper.wake()
        self._subscription.waiters.wake_all()

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the service, also after it has ended."""
        workers = list(self._outcomes.workers)
        self._count_lag()
        return ServiceStatistics(
            handled=sum(stats.handled for stats in workers),
            failed=sum(stats.failed for stats in workers),
            retried=sum(stats.retried for stats in workers),
            dead=sum(stats.dead for stats in workers),
            missed=sum(stats.missed for stats in workers),
            in_flight=0 if self._closed else self._subscription.reader.native.outstanding,
            lag=self._lag,
            paused=self._paused,
            stopped=self._stopping,
            last_error=self._outcomes.last_error,
        )

    def _count_lag(self) -> None:
        cursor = self._subscription.cursor
        if not self._closed and cursor is not None and (position := cursor.position) is not None:
            self._lag = self._subscription.end.sequence - position.sequence

    # Lifecycle

    def _begin(self) -> None:
        """Refuse to run twice: the position is released at the end."""
        if self._has_started:
            error = BusyResourceError("running")
            error.args = ("a service runs once, and this one was started before: call serve() again for another one",)
            raise error
        self._check_open()
        self._has_started = True

    def close(self) -> None:
        """Release the name at once. Messages that are being handled are redelivered; `stop` waits for them instead."""
        self._count_lag()
        self.detach()
        self._subscription.release(self)
        self._wake()

    def detach(self) -> None:
        """Refuse all further calls, without releasing anything. For a forked child."""
        self._closed = self._halted = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error. The service ends with the first one."""
        self._error = error if self._error is None else self._error
        self._outcomes.last_error = error_line(error)
        self.stop()

    def _error_at_end(self, failure: BaseException | None) -> BaseException | None:
        """Return the error that the service ends with; *failure* is that of the code that ran beside it."""
        if isinstance(failure, Exception) and isinstance(self._error, Exception):
            return ExceptionGroup("the service and the body of its block failed", [self._error, failure])
        return failure if self._error is None else self._error

    def _has_data(self) -> bool:
        return self._halted or self._subscription.has_data()

    def _take_available(self) -> DeliveryFields[object] | Nothing:
        """Return the next message if it is available, else NOTHING. Raise `EndOfStream` if there will be none."""
        self._check_open()
        found = NOTHING if self._halted else self._take()
        if found is NOTHING and self._subscription.has_ended():
            raise EndOfStream
        return found

    def _renewing(self, stats: WorkerStats) -> AbstractContextManager[object]:
        """Extend the lease of the message that a worker is handling, as often as needed, while the body runs."""

        def current() -> Claim | None:
            found = stats.current
            return None if found is None else (found[OFFSET], found[TOKEN])

        return self._claims.renewing(current)

    def __repr__(self) -> str:
        state = "stopped" if self._stopping else "paused" if self._paused else "running" if self._has_started else "new"
        return f"<Service {str(self._subscription.store.path)!r} name={self.name!r} {state}>"
