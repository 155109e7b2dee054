"""What every service does without waiting, whether its handlers run in an event loop or in threads."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

from anyio import BusyResourceError, ClosedResourceError, EndOfStream

from .. import _checks as checks
from .._errors import (
    AckError,
    DataExpiredError,
    DecodeError,
    FileChannelError,
    HandlerError,
    LeaseExpiredError,
)
from .._format import NOTHING, Nothing
from .._format.layout import ENTRY_ATTEMPTS
from .._wakeup.loops import Sleeper
from .ack_source import AckSource
from .dead_letter import DeadLetter, in_a_line, stored_payload, write_letter
from .delivery import Delivery, Handed
from .retry import RetryPolicy
from .statistics import ServiceStatistics

T = TypeVar("T")

_logger = logging.getLogger("filechannel")


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """How a service was asked to work."""

    group: bool
    ordered: bool
    concurrency: int
    retry: RetryPolicy
    grace: float | None

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        checks.instance_of(bool, "True or False")("group", self.group)
        checks.instance_of(bool, "True or False")("ordered", self.ordered)
        checks.integer(1)("concurrency", self.concurrency)
        checks.instance_of(RetryPolicy, "a RetryPolicy")("retry", self.retry)
        if self.grace is not None:
            checks.seconds_or_zero("grace", self.grace)
        if self.ordered and self.concurrency > 1:
            what = f"concurrency={self.concurrency}: handlers that run at once keep no order"
            raise ValueError(f"{what}; give ordered=False as well")
        if self.group and (most := self.retry.max_attempts) is not None and most > ENTRY_ATTEMPTS:
            raise ValueError(f"max_attempts={most}: must be at most {ENTRY_ATTEMPTS} in a group, or None for ever")


def check_handler(handler: Callable[[T], object]) -> Callable[[object], object]:
    """Return a handler as one that is given what its channel carries; `TypeError` if it cannot be called."""
    if not callable(handler):
        raise TypeError(f"handler={handler!r}: must be something to call with a message")
    return cast("Callable[[object], object]", handler)


def check_dead_letter(dead_letter: object, wanted: type, path: str) -> None:
    """Refuse what no letter can be sent with: that would be told only when there is one to send."""
    if dead_letter is not None:
        checks.instance_of(wanted, f"a {path} of a channel of DeadLetter")("dead_letter", dead_letter)


class UnfinishedError(Exception):
    """Nobody who had the message has come to an end with it: they died, or their lease was over."""

    def __str__(self) -> str:
        return "it was handed out as often as it may be, and nobody has come to an end with it"


class Tally:
    """What one worker has done. Its own, so that workers in threads need no lock to count."""

    __slots__ = ("current", "dead", "failed", "handled", "missed", "retried")

    def __init__(self) -> None:
        self.handled = self.failed = self.retried = self.dead = self.missed = 0
        self.current: Handed[object] | None = None
        """What it works on, or has worked on last."""


class AnyService:
    """Gives every message to a handler, and acknowledges it when that has returned.

    One worker at a time if it is ordered, several that share the position if not. What follows decides and counts; how
    a worker waits, for a message, for the end of a pause or for a letter to be sent, is up to those who inherit.
    """

    def __init__(self, source: AckSource, handler: Callable[[object], object], terms: Terms) -> None:
        source.acquire(self)
        self._source = source
        self._handler = handler
        self._terms = terms
        # Looked up once: these are the hot path. When the source is closed, the one gives nothing, the other is False.
        self._take = cast("Callable[[], Handed[object] | Nothing]", source.counting(source.reader.native.take_delivery))
        plain = not source.is_counted and not source.has_leases
        self._ack: Callable[[int], bool] = source.reader.native.ack if plain else source.ack
        self._most = math.inf if terms.retry.max_attempts is None else terms.retry.max_attempts
        self._tallies: list[Tally] = []
        self._sleepers: set[Sleeper] = set()
        self._begun = self._paused = self._stopping = self._closed = False
        self._halted = False
        """Paused or stopping: nothing new is begun. One look for the way that every message takes."""
        self._error: BaseException | None = None
        self._last_error: str | None = None
        self._lag = 0

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._source.name

    # What others tell it; any thread may

    def pause(self) -> None:
        """Begin nothing new until `resume`. What is being handled goes on to its end; its next attempt waits."""
        self._paused = self._halted = True
        self._tell()

    def resume(self) -> None:
        """Go on where it paused."""
        self._paused = False
        self._halted = self._stopping or self._closed
        self._tell()

    def stop(self) -> None:
        """Begin nothing new, and end when what is being handled has. The rest comes to whoever serves the name next."""
        self._stopping = self._halted = True
        self._tell()
        if not self._begun:
            self.close()

    def _tell(self) -> None:
        for sleeper in list(self._sleepers):
            sleeper.wake()
        self._source.arrivals.wake_all()

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the service, also when it has ended."""
        tallies = list(self._tallies)
        self._count_lag()
        return ServiceStatistics(
            handled=sum(tally.handled for tally in tallies),
            failed=sum(tally.failed for tally in tallies),
            retried=sum(tally.retried for tally in tallies),
            dead=sum(tally.dead for tally in tallies),
            missed=sum(tally.missed for tally in tallies),
            in_flight=0 if self._closed else self._source.reader.native.outstanding,
            lag=self._lag,
            paused=self._paused,
            stopped=self._stopping,
            last_error=self._last_error,
        )

    def _count_lag(self) -> None:
        cursor = self._source.cursor
        if not self._closed and cursor is not None and (position := cursor.position) is not None:
            self._lag = self._source.end.sequence - position.sequence

    # Life

    def _begin(self) -> None:
        """Refuse to run twice: the position is let go of at the end."""
        if self._begun:
            raise BusyResourceError("running already, or over: serve() makes another one")
        self._check_open()
        self._begun = True

    def close(self) -> None:
        """Let go of the name at once. Messages that are being handled come again; `stop` waits for them instead."""
        self._count_lag()
        self.detach()
        self._source.release(self)
        self._tell()

    def detach(self) -> None:
        """Refuse everything from now on, and let go of nothing. For a forked child."""
        self._closed = self._halted = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedResourceError

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error, which is the first one unless there was another."""
        self._error = self._error or error
        self._last_error = in_a_line(error)
        self.stop()

    def _has_news(self) -> bool:
        return self._halted or self._source.has_news()

    def _look(self) -> Handed[object] | Nothing:
        """Return the next message if it is there, else NOTHING; `EndOfStream` if there will be none."""
        self._check_open()
        found = NOTHING if self._halted else self._take()
        if found is NOTHING and self._source.has_ended():
            raise EndOfStream
        return found

    def _hire(self) -> Tally:
        """Return the tally of a new worker."""
        tally = Tally()
        self._tallies.append(tally)
        return tally

    # What becomes of a message

    def _judge(self, delivery: Delivery[object], error: Exception, tally: Tally) -> float | None:
        """Count a failure, and return how long to wait for the next attempt; None if there is none."""
        tally.failed += 1
        self._last_error = in_a_line(error)
        pause = self._terms.retry.pause_after(delivery.attempt, error)
        tally.retried += pause is not None
        return pause

    def _delivery(self, found: Handed[object]) -> Delivery[object]:
        value, offset, sequence, attempt, token = found
        return Delivery(self._source, value, offset, sequence, attempt, token)

    def _settle(self, found: Handed[object]) -> None:
        """Acknowledge a message; `ConsumerError` if it is not ours any more."""
        _, offset, _, _, token = found
        self._source.settle(offset, token)

    def _lose(self, error: FileChannelError, tally: Tally) -> None:
        """Count a message that was not ours any more when it was done: its lease was over, or it was purged."""
        tally.failed += 1
        self._last_error = in_a_line(error)

    def _miss(self, error: DataExpiredError, tally: Tally) -> None:
        """Count messages that were removed before their turn, and go on with what is there."""
        tally.missed += error.missed
        self._last_error = in_a_line(error)
        told = "%s: %d messages were removed before consumer %r came to them; it goes on at offset %d"
        _logger.warning(told, self._source.store.path, error.missed, self.name, error.oldest)

    def _try_again(self, delivery: Delivery[object], pause: float = 0.0) -> None:
        """Let a message come again after a failure, which counts."""
        with suppress(AckError, LeaseExpiredError, ClosedResourceError):  # it comes again anyway
            delivery.nack(pause)

    def _release(self, found: Handed[object]) -> None:
        """Let a message come again that nothing is known about; that attempt does not count."""
        _, offset, _, _, token = found
        with suppress(AckError, LeaseExpiredError, ClosedResourceError):
            self._source.give_back(offset, token, counted=False)

    def _giving_up(self, delivery: Delivery[object], error: Exception) -> HandlerError:
        """Return what the service ends with if there is nowhere to send a message that was given up."""
        store, attempts = self._source.store, self._attempts(delivery)
        return HandlerError(self.name, delivery.offset, attempts, in_a_line(error), path=store.path)

    def _write_letter(self, delivery: Delivery[object], error: Exception) -> DeadLetter:
        """Return the letter about a message. May touch files."""
        store, offset, sequence = self._source.store, delivery.offset, delivery.sequence
        payload = stored_payload(store, self._source.options, offset, sequence)
        return write_letter(store, self.name, payload, offset, sequence, self._attempts(delivery), error)

    def _attempts(self, delivery: Delivery[object]) -> int:
        return int(min(delivery.attempt, self._most))

    def _write_about_undecodable(self, error: DecodeError) -> DeadLetter:
        """Return the letter about a message that does not decode. May touch files."""
        sequence = self._source.find(error.offset, "offset").sequence
        return write_letter(self._source.store, self.name, error.payload, error.offset, sequence, 0, error)

    def __repr__(self) -> str:
        state = "stopped" if self._stopping else "paused" if self._paused else "running" if self._begun else "new"
        return f"<Service {str(self._source.store.path)!r} name={self.name!r} {state}>"
