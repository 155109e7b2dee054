"""`Outcomes` decides what happens to each message of a service, and counts. It never waits and does no I/O.

The services for event loops and threads take a message, call the handler, and report the outcome to this object. They
then execute the decision: wait before a retry, or send a dead letter. Around that they enter a context manager of this
object, which acknowledges or redelivers the message at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias, final

from anyio import ClosedResourceError

from ..._errors import (
    AckError,
    ConsumerError,
    DataExpiredError,
    DecodeError,
    FileChannelError,
    HandlerError,
    LeaseExpiredError,
)
from ..subscription.delivery import ATTEMPT, OFFSET, TOKEN, DeliveryFields
from ..subscription.outstanding import Outstanding
from .dead_letter import DeadLetter, error_line, stored_payload, write_letter
from .retry_policy import RetryPolicy

_logger = logging.getLogger("filechannel")


@final
@dataclass(frozen=True, slots=True)
class RetryInOrder:
    """Wait this many seconds, inside `Outcomes.retrying`: the message is retried before the next one is started."""

    pause: float


@final
@dataclass(frozen=True, slots=True)
class SendDeadLetter:
    """Send the letter that `Outcomes.letter` returns, inside `Outcomes.dead_lettering`."""

    error: Exception


Decision: TypeAlias = RetryInOrder | SendDeadLetter | None
"""What to do with a message whose handler failed. None: it is redelivered later, and nothing else is to be done."""


@final
class WorkerStats:
    """The counters of one worker. Workers in threads do not share them, so counting needs no lock."""

    __slots__ = ("current", "dead", "failed", "handled", "missed", "retried")

    def __init__(self) -> None:
        self.handled = self.failed = self.retried = self.dead = self.missed = 0
        self.current: DeliveryFields[object] | None = None
        """The message it is handling, or handled last."""


@final
class Outcomes:
    """Decides what happens to the messages of one service, and counts them."""

    def __init__(self, outstanding: Outstanding, retry: RetryPolicy, *, ordered: bool, dead_letters: bool) -> None:
        """With *dead_letters*, there is a channel for messages that cannot be handled; without it, they are errors."""
        self._outstanding = outstanding
        self._retry = retry
        self._ordered = ordered
        self._has_dead_letters = dead_letters
        self.workers: list[WorkerStats] = []
        self.last_error: str | None = None

    def add_worker(self) -> WorkerStats:
        """Return the stats of a new worker."""
        stats = WorkerStats()
        self.workers.append(stats)
        return stats

    # A handler returned, raised, or was interrupted

    def acknowledge(self, found: DeliveryFields[object]) -> None:
        """Acknowledge a message. Raise `ConsumerError` if this consumer does not have it any more."""
        self._outstanding.acknowledge(found[OFFSET], found[TOKEN])

    def lost(self, error: FileChannelError, stats: WorkerStats) -> None:
        """Count a message that this consumer lost before it was done: its lease expired, or it was purged."""
        stats.failed += 1
        self.last_error = error_line(error)

    def failed(self, found: DeliveryFields[object], error: Exception, stats: WorkerStats) -> Decision:
        """Count a failed attempt, and decide what follows.

        Raises `HandlerError`, which ends the service, if there is no other attempt and no channel for dead letters.
        """
        stats.failed += 1
        self.last_error = error_line(error)
        pause = self._retry.pause_after(found[ATTEMPT], error)
        if pause is None:
            if self._has_dead_letters:
                return SendDeadLetter(error)
            self.release(found)
            subscription = self._outstanding.subscription
            raise HandlerError(
                subscription.name, found[OFFSET], self._attempts(found), error_line(error), path=subscription.store.path
            ) from error
        stats.retried += 1
        if self._ordered:
            return RetryInOrder(pause)
        self._redeliver(found, pause)
        return None

    @contextmanager
    def retrying(self, found: DeliveryFields[object]) -> Generator[None]:
        """Wait in the body for the next attempt. Redeliver the message at its end, however it ends."""
        try:
            yield
        finally:
            self._redeliver(found)

    def _redeliver(self, found: DeliveryFields[object], pause: float = 0.0) -> None:
        """Redeliver a message after a failed attempt, which counts."""
        with suppress(AckError, LeaseExpiredError, ClosedResourceError):  # it is redelivered in any case
            self._outstanding.redeliver(found[OFFSET], found[TOKEN], pause)

    def release(self, found: DeliveryFields[object]) -> None:
        """Redeliver a message whose outcome is unknown; the attempt does not count."""
        with suppress(AckError, LeaseExpiredError, ClosedResourceError):
            self._outstanding.redeliver(found[OFFSET], found[TOKEN], counted=False)

    # Dead letters

    @contextmanager
    def dead_lettering(self, found: DeliveryFields[object], stats: WorkerStats) -> Generator[None]:
        """Send a dead letter in the body, and only then acknowledge its message."""
        try:
            yield
        except DataExpiredError as error:
            self.lost(error, stats)
            return
        except BaseException:
            self.release(found)
            raise
        try:
            self.acknowledge(found)
            stats.dead += 1
        except ConsumerError as error:
            self.lost(error, stats)

    def letter(self, found: DeliveryFields[object], error: Exception) -> DeadLetter:
        """Return the dead letter of a message. Reads files."""
        subscription, (_, offset, sequence, _, _) = self._outstanding.subscription, found
        payload = stored_payload(subscription.store, subscription.options, offset, sequence)
        attempts = self._attempts(found)
        return write_letter(subscription.store, subscription.name, payload, offset, sequence, attempts, error)

    def _attempts(self, found: DeliveryFields[object]) -> int:
        most = self._retry.max_attempts
        return found[ATTEMPT] if most is None else min(found[ATTEMPT], most)

    # Messages that never reach a handler

    def undecodable_letter(self, error: DecodeError) -> DeadLetter | None:
        """Return the dead letter of a message that does not decode. May read files.

        Returns None if there is nothing to do: another worker has skipped the message, or it was removed. Raises
        *error*, which ends the service, if there is no channel for dead letters.
        """
        sequence = self._outstanding.claims.undecodable_sequence(error)
        if sequence is None:
            return None
        if not self._has_dead_letters:
            raise error
        subscription = self._outstanding.subscription
        return write_letter(subscription.store, subscription.name, error.payload, error.offset, sequence, 0, error)

    def skip_undecodable(self, error: DecodeError, letter: DeadLetter, stats: WorkerStats) -> None:
        """Skip a message that does not decode, after its letter was sent."""
        self._outstanding.claims.skip_undecodable(error, letter.sequence)
        stats.dead += 1

    def missed(self, error: DataExpiredError, stats: WorkerStats) -> None:
        """Count messages that were removed before they were received. The service continues with the oldest stored."""
        stats.missed += error.missed
        self.last_error = error_line(error)
        text = "%s: %d messages were deleted before consumer %r read them; it resumes at offset %d"
        subscription = self._outstanding.subscription
        _logger.warning(text, subscription.store.path, error.missed, subscription.name, error.oldest)
