"""A thread that sleeps until it is woken, or until a time limit."""

from __future__ import annotations

import threading

import pytest

from filechannel._runtime.thread_wakeup import ThreadWakeup


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e-6])
def test_a_wait_ends_even_if_its_time_is_over_before_it_sleeps(seconds: float) -> None:
    """A wait ends although its time is over before it sleeps, where `SimpleQueue.get` would block for ever."""
    assert not any(ThreadWakeup().wait(seconds) for _ in range(10_000))


def test_a_wakeup_ends_the_wait_of_another_thread() -> None:
    """A wakeup ends the wait of another thread with True, and the next wait sleeps again."""
    wakeup, woken = ThreadWakeup(), list[bool]()
    thread = threading.Thread(target=lambda: woken.append(wakeup.wait()))
    thread.start()
    wakeup.wake()
    thread.join(60)
    assert woken == [True]
    assert not wakeup.wait(0.0)


def test_a_wakeup_before_the_wait_is_not_lost() -> None:
    """After a wakeup the next wait returns at once, and several wakeups count as one."""
    wakeup = ThreadWakeup()
    wakeup.wake()
    wakeup.wake()
    assert wakeup.is_pending
    assert wakeup.wait(3600)
    assert not wakeup.is_pending
    assert not wakeup.wait(0.0)


def test_a_cleared_wakeup_is_forgotten() -> None:
    """A wakeup that was cleared does not end the next wait."""
    wakeup = ThreadWakeup()
    wakeup.clear()
    wakeup.wake()
    wakeup.clear()
    assert not wakeup.wait(0.0)


def test_a_time_limit_may_be_as_long_as_you_like() -> None:
    """A time limit that is longer than the system supports does not raise."""
    wakeup = ThreadWakeup()
    wakeup.wake()
    assert wakeup.wait(float("1e300"))


def test_what_a_signal_handler_raises_while_a_thread_is_woken_reaches_the_caller() -> None:
    """The handler may raise a `RuntimeError` too, which is not the one of a thread that was woken twice."""

    class Interrupted:
        def release(self) -> None:
            raise RecursionError("by a signal handler")

    wakeup = ThreadWakeup()
    wakeup._lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(RecursionError):
        wakeup.wake()
