"""What a service decides about a message, without an event loop and without threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import AckError, DataExpiredError, HandlerError, RetryPolicy
from filechannel._channel.base.retry_or_dead_letter import Outcomes, RetryInOrder, SendDeadLetter
from filechannel._channel.subscription.delivery import DeliveryFields
from filechannel._format import Nothing
from filechannel.blocking import AckReceiver, open_channel

TWICE = RetryPolicy(max_attempts=2, delay=0.5, jitter=0)
ERROR = ValueError("no")


@pytest.fixture
def receiver(path: Path) -> Iterator[AckReceiver[int]]:
    """Have a receiver with one message to receive."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.ack_receiver() as rx:
        tx.send(7)
        yield rx


def outcomes_of(rx: AckReceiver[int], *, ordered: bool = True, dead_letters: bool = False) -> Outcomes:
    """Return what decides about the messages of a receiver."""
    return Outcomes(rx._outstanding, TWICE, ordered=ordered, dead_letters=dead_letters)


def take(rx: AckReceiver[int]) -> DeliveryFields[object]:
    """Take the next message, as a service does."""
    found = rx._take_delivery()
    assert not isinstance(found, Nothing)
    return found  # type: ignore[return-value]


def test_an_ordered_service_waits_before_the_next_attempt(receiver: AckReceiver[int]) -> None:
    """An ordered service keeps the message outstanding during the pause, and redelivers it afterwards."""
    outcomes = outcomes_of(receiver)
    stats, found = outcomes.add_worker(), take(receiver)
    assert outcomes.failed(found, ERROR, stats) == RetryInOrder(0.5)
    with outcomes.retrying(found):
        assert receiver.unack_count == 1
    assert receiver.unack_count == 0
    assert take(receiver)[3] == 2
    assert (stats.failed, stats.retried, outcomes.last_error) == (1, 1, "ValueError: no")


def test_an_unordered_service_handles_others_during_the_pause(receiver: AckReceiver[int]) -> None:
    """An unordered service nacks the message with the pause as its delay, and handles others."""
    outcomes = outcomes_of(receiver, ordered=False)
    assert outcomes.failed(take(receiver), ERROR, outcomes.add_worker()) is None
    assert receiver.unack_count == 0
    assert receiver.receive_delivery(timeout=10).attempt == 2


def failed_twice(rx: AckReceiver[int], outcomes: Outcomes) -> DeliveryFields[object]:
    """Let a message fail once, and return its second and last delivery."""
    found = take(rx)
    with outcomes.retrying(found):
        pass
    return take(rx)


def test_the_last_attempt_ends_a_service_without_dead_letters(receiver: AckReceiver[int]) -> None:
    """Without dead letters the last attempt raises an error with the attempts, and the message is redelivered
    uncounted.
    """
    outcomes = outcomes_of(receiver)
    found = failed_twice(receiver, outcomes)
    with pytest.raises(HandlerError, match="2 attempts"):
        outcomes.failed(found, ERROR, outcomes.add_worker())
    assert take(receiver)[3] == 2


def test_a_message_is_acknowledged_after_its_letter(receiver: AckReceiver[int]) -> None:
    """A message is outstanding until its dead letter is sent, and acknowledged afterwards."""
    outcomes = outcomes_of(receiver, dead_letters=True)
    stats, found = outcomes.add_worker(), failed_twice(receiver, outcomes)
    decision = outcomes.failed(found, ERROR, stats)
    assert decision == SendDeadLetter(ERROR)
    with outcomes.dead_lettering(found, stats):
        letter = outcomes.letter(found, ERROR)
        assert receiver.unack_count == 1
    assert (letter.attempts, letter.sequence, stats.dead, receiver.unack_count) == (2, 0, 1, 0)
    with pytest.raises(AckError):
        outcomes.acknowledge(found)


def test_a_letter_that_cannot_be_sent_leaves_its_message(receiver: AckReceiver[int]) -> None:
    """If the dead letter cannot be sent the error is raised, and the message is redelivered without counting the
    attempt.
    """
    outcomes = outcomes_of(receiver, dead_letters=True)
    stats, found = outcomes.add_worker(), failed_twice(receiver, outcomes)
    with pytest.raises(OSError, match="full"), outcomes.dead_lettering(found, stats):
        raise OSError("full")
    assert (stats.dead, take(receiver)[3]) == (0, 2)


def test_a_message_that_was_removed_has_no_letter(receiver: AckReceiver[int]) -> None:
    """A purged message that failed is counted, becomes no dead letter and ends nothing."""
    outcomes = outcomes_of(receiver, dead_letters=True)
    stats, found = outcomes.add_worker(), take(receiver)
    with outcomes.dead_lettering(found, stats):
        raise DataExpiredError(1, found[1])
    assert (stats.dead, stats.failed) == (0, 1)
