"""When a message that failed is tried again: pauses that grow, within bounds."""

from __future__ import annotations

import pickle
import random

import pytest

from filechannel import RetryPolicy


def pauses(policy: RetryPolicy, error: Exception | None = None) -> list[float | None]:
    """Return the pause after each of the first attempts, up to the last."""
    found: list[float | None] = []
    for attempt in range(1, 100):
        found.append(policy.pause_after(attempt, error or ValueError()))
        if found[-1] is None:
            break
    return found


def test_pauses_grow_up_to_the_longest() -> None:
    """Each pause is a multiple of the one before, up to the longest, and after the last attempt there is none."""
    policy = RetryPolicy(max_attempts=6, delay=1, factor=3, max_delay=20, jitter=0)
    assert pauses(policy) == [1, 3, 9, 20, 20, None]


def test_one_attempt_is_one_attempt() -> None:
    """With one attempt a message is not retried."""
    assert pauses(RetryPolicy(max_attempts=1)) == [None]


def test_for_ever_does_not_overflow() -> None:
    """Without a last attempt the pause stays at the longest, however many attempts there are."""
    policy = RetryPolicy(max_attempts=None, delay=0.5, factor=1e9, max_delay=7, jitter=0)
    assert policy.pause_after(10**6, ValueError()) == 7
    assert not policy.is_beyond(10**9)


def test_jitter_stays_within_its_bounds(rng: random.Random) -> None:
    """A pause differs by that part at most, is not always the same, and never longer than the longest."""
    random.seed(rng.getrandbits(32))
    policy = RetryPolicy(max_attempts=None, delay=1, factor=2, max_delay=2, jitter=0.25)
    first = [policy.pause_after(1, ValueError()) or 0 for _ in range(1000)]
    assert 0.75 <= min(first) < 0.9 < 1.1 < max(first) <= 1.25
    last = [policy.pause_after(9, ValueError()) or 0 for _ in range(1000)]
    assert 1.5 <= min(last) < max(last) == 2


def test_only_some_errors_are_worth_another_attempt() -> None:
    """An error that `retry_on` does not list is not retried."""
    policy = RetryPolicy(max_attempts=2, retry_on=(OSError, KeyError), jitter=0)
    assert pauses(policy, ConnectionError()) == [0.1, None]
    assert pauses(policy, KeyError()) == [0.1, None]
    assert pauses(policy, ValueError()) == [None]


def test_some_errors_are_not_worth_another_attempt() -> None:
    """An error that is excluded, or derived from an excluded one, is not retried although its base is listed."""
    policy = RetryPolicy(max_attempts=2, retry_on=(OSError, LookupError), give_up_on=ConnectionError, jitter=0)
    assert pauses(policy, OSError()) == [0.1, None]
    assert pauses(policy, ConnectionError()) == [None]
    assert pauses(policy, ConnectionResetError()) == [None]
    assert pauses(RetryPolicy(give_up_on=(KeyError, TypeError)), KeyError()) == [None]
    assert pauses(policy, ValueError()) == [None]


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("max_attempts", 0, ValueError),
        ("max_attempts", True, TypeError),
        ("max_attempts", 1.5, TypeError),
        ("delay", -1, ValueError),
        ("delay", float("nan"), ValueError),
        ("delay", "1", TypeError),
        ("max_delay", float("inf"), ValueError),
        ("factor", 0.5, ValueError),
        ("factor", None, TypeError),
        ("jitter", 1.1, ValueError),
        ("jitter", False, TypeError),
        ("retry_on", BaseException, TypeError),
        ("retry_on", (ValueError, "KeyError"), TypeError),
        ("retry_on", ValueError(), TypeError),
        ("give_up_on", KeyboardInterrupt, TypeError),
        ("give_up_on", (ValueError, None), TypeError),
        ("give_up_on", None, TypeError),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, error: type[Exception]) -> None:
    """Creating a policy with a wrong field raises an error with the field, the value and what is allowed."""
    with pytest.raises(error, match=rf"^{field}=.*: must be ") as caught:
        RetryPolicy(**{field: value})  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


def test_a_policy_is_a_value() -> None:
    """Policies with equal fields are equal, frozen and can be pickled."""
    policy = RetryPolicy(max_attempts=3, retry_on=(OSError,))
    assert pickle.loads(pickle.dumps(policy)) == policy == RetryPolicy(max_attempts=3, retry_on=(OSError,))
    with pytest.raises(AttributeError):
        policy.delay = 3  # type: ignore[misc]
