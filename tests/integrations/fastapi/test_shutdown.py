"""Listeners for the signals that stop the process, in the main thread and in any other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import anyio
import pytest

from filechannel.integrations.fastapi import Channels
from filechannel.integrations.fastapi.shutdown import notified_of_stop

pytestmark = pytest.mark.anyio


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The signals that a server gets that handles SIGTERM."""
    numbers: list[int] = []

    def listen(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before = signal.signal(signal.SIGTERM, listen)
    yield numbers
    signal.signal(signal.SIGTERM, before)


async def test_an_earlier_signal_handler_is_called_too(received: list[int]) -> None:
    """A signal handler that was installed before the app is called too, and is restored when the app ends."""
    notified = anyio.Event()
    listener = signal.getsignal(signal.SIGTERM)
    with notified_of_stop(notified.set):
        signal.raise_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            await notified.wait()
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is listener


async def test_two_apps_in_a_process_both_get_the_signal(received: list[int]) -> None:
    """Of two apps in one process both are notified of a signal."""
    first, second = anyio.Event(), anyio.Event()
    with notified_of_stop(first.set), notified_of_stop(second.set):
        signal.raise_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            await first.wait()
            await second.wait()
    assert received == [signal.SIGTERM]


def test_a_loop_that_is_over_does_not_keep_a_signal_from_others(received: list[int]) -> None:
    """A signal listener that outlives its app still calls the earlier handlers."""

    async def be_kept() -> object:
        with notified_of_stop(lambda: None):
            return signal.getsignal(signal.SIGTERM)

    for backend in ("asyncio", "trio"):
        kept = anyio.run(be_kept, backend=backend)
        assert callable(kept)
        kept(signal.SIGTERM, None)
    assert received == [signal.SIGTERM] * 2


def test_an_app_may_run_in_any_thread(tmp_path: Path) -> None:
    """An app in a thread other than the main one does not install a signal handler."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    during = []

    async def run() -> None:
        async with Channels(tmp_path).lifespan():
            during.append({number: signal.getsignal(number) for number in before})

    thread = threading.Thread(target=anyio.run, args=[run])
    thread.start()
    thread.join()
    assert during == [before]
