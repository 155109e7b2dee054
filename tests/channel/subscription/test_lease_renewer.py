"""The thread that extends leases while somebody works."""

from __future__ import annotations

import logging
import threading

import pytest

from filechannel import AckError
from filechannel._channel.keeper import Keeper
from filechannel._errors import Busy
from tests.blocking.threads import until

OFTEN = 0.001


def threads() -> int:
    """Return how many keepers there are."""
    return sum(thread.name == "filechannel-keeper" for thread in threading.enumerate())


def test_it_calls_as_long_as_the_body_runs() -> None:
    """Each at its own pace, in one thread, which ends when there is nothing left to keep."""
    keeper, calls = Keeper(), list[str]()
    before = threads()
    with keeper.keeping(lambda: calls.append("a"), OFTEN), keeper.keeping(lambda: calls.append("b"), 3600):
        until(lambda: len(calls) > 5)
        assert threads() == before + 1
    assert set(calls) == {"a"}
    until(lambda: threads() == before)
    with keeper.keeping(lambda: calls.append("c"), OFTEN):
        until(lambda: "c" in calls)
    until(lambda: threads() == before)


@pytest.mark.parametrize("error", [AckError("g", "lost"), OSError(5, "no")], ids=["lost", "unexpected"])
def test_what_fails_is_not_called_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The others go on; only what nobody expected is logged."""
    keeper, failed, calls = Keeper(), list[int](), list[int]()

    def fail() -> None:
        failed.append(1)
        raise error

    with caplog.at_level(logging.ERROR), keeper.keeping(fail, OFTEN), keeper.keeping(lambda: calls.append(1), OFTEN):
        until(lambda: len(failed) == 1 and len(calls) > 20)
        assert len(failed) == 1
    assert bool(caplog.records) == isinstance(error, OSError)


def test_who_is_kept_out_is_tried_again_soon() -> None:
    """Long before the next time it would be due."""
    keeper, tried = Keeper(), list[int]()

    def busy() -> None:
        tried.append(1)
        if len(tried) < 3:
            raise Busy

    with keeper.keeping(busy, OFTEN):
        until(lambda: len(tried) > 3)
