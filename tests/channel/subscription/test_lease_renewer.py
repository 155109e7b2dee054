"""The thread that extends leases while a handler runs."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

from filechannel import AckError
from filechannel._channel.subscription.lease_renewer import _BUSY_RETRY_SECONDS, LeaseRenewer, _extend
from filechannel._errors import Busy
from filechannel._runtime import scheduler
from filechannel._runtime.scheduler import Lane
from tests.blocking.threads import until

OFTEN = 0.001


NAME = "filechannel-leases-of-a-test"


@pytest.fixture
def renewer(monkeypatch: pytest.MonkeyPatch) -> LeaseRenewer:
    """One with a thread of its own, which ends soon after its work."""
    monkeypatch.setattr(scheduler, "LINGER_SECONDS", 0.02)
    return LeaseRenewer(Lane(NAME))


def threads() -> int:
    """Return how many threads extend leases."""
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_it_calls_as_long_as_the_body_runs(renewer: LeaseRenewer) -> None:
    """The lease renewer calls each function at its own interval, in one thread that ends with the last lease."""
    calls = list[str]()
    before = threads()
    with renewer.renewing(lambda: calls.append("a"), OFTEN), renewer.renewing(lambda: calls.append("b"), 3600):
        until(lambda: len(calls) > 5)
        assert threads() == before + 1
    assert set(calls) == {"a"}
    until(lambda: threads() == before)
    with renewer.renewing(lambda: calls.append("c"), OFTEN):
        until(lambda: "c" in calls)
    until(lambda: threads() == before)


@pytest.mark.parametrize("error", [AckError("g", "lost"), OSError(5, "no")], ids=["lost", "unexpected"])
def test_what_fails_is_not_called_again(
    renewer: LeaseRenewer, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A function that raises is not called again, the others are, and only unexpected errors are logged."""
    failed, calls = list[int](), list[int]()

    def fail() -> None:
        failed.append(1)
        raise error

    with (
        caplog.at_level(logging.ERROR),
        renewer.renewing(fail, OFTEN),
        renewer.renewing(lambda: calls.append(1), OFTEN),
    ):
        until(lambda: len(failed) == 1 and len(calls) > 20)
        assert len(failed) == 1
    assert bool(caplog.records) == isinstance(error, OSError)


def test_a_renewal_that_finds_the_lock_held_is_retried_soon() -> None:
    """A renewal that finds the lock held is retried long before it would be due again, and never later than that."""

    def busy() -> None:
        raise Busy

    assert _extend(busy, 3600.0) == _BUSY_RETRY_SECONDS
    assert _extend(busy, OFTEN) == OFTEN


def test_a_renewal_that_finds_the_lock_held_is_retried_until_it_succeeds(renewer: LeaseRenewer) -> None:
    """The lease renewer does not give up a function that finds the lock held."""
    tried = list[int]()

    def busy() -> None:
        tried.append(1)
        if len(tried) < 3:
            raise Busy

    with renewer.renewing(busy, OFTEN):
        until(lambda: len(tried) > 3)


def test_what_a_lease_refers_to_is_released_when_the_body_ends(renewer: LeaseRenewer) -> None:
    """The lease renewer releases what a lease refers to when the body ends, long before the renewal would be due."""

    class Extending:
        def extend(self) -> None:
            pass

    extending = Extending()
    released = weakref.ref(extending)
    with renewer.renewing(extending.extend, 3600):
        del extending
        gc.collect()
        assert released() is not None
    gc.collect()
    assert released() is None
