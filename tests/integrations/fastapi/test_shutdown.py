"""Who is told when the process is told to stop: signals, in the main thread and in any other."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import anyio
import pytest

from filechannel.integrations.fastapi import Channels
from filechannel.integrations.fastapi.shutdown import told_to_stop

pytestmark = pytest.mark.anyio


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What a server hears that listens to SIGTERM."""
    numbers: list[int] = []

    def listen(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before = signal.signal(signal.SIGTERM, listen)
    yield numbers
    signal.signal(signal.SIGTERM, before)


async def test_whoever_listened_before_is_told_too(heard: list[int]) -> None:
    """The server goes on hearing what it heard, and does so alone when the app has ended."""
    told = anyio.Event()
    listener = signal.getsignal(signal.SIGTERM)
    with told_to_stop(told.set):
        signal.raise_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            await told.wait()
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is listener


async def test_two_apps_in_a_process_are_both_told(heard: list[int]) -> None:
    """One listens behind the other."""
    first, second = anyio.Event(), anyio.Event()
    with told_to_stop(first.set), told_to_stop(second.set):
        signal.raise_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            await first.wait()
            await second.wait()
    assert heard == [signal.SIGTERM]


def test_a_loop_that_is_over_does_not_keep_a_signal_from_others(heard: list[int]) -> None:
    """Whoever keeps a listener longer than its app, and calls it, comes through to those before."""

    async def be_kept() -> object:
        with told_to_stop(lambda: None):
            return signal.getsignal(signal.SIGTERM)

    for backend in ("asyncio", "trio"):
        kept = anyio.run(be_kept, backend=backend)
        assert callable(kept)
        kept(signal.SIGTERM, None)
    assert heard == [signal.SIGTERM] * 2


def test_an_app_may_run_in_any_thread(tmp_path: Path) -> None:
    """There it does not touch the signals, which only the main thread may."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    during = []

    async def run() -> None:
        async with Channels(tmp_path).lifespan():
            during.append({number: signal.getsignal(number) for number in before})

    thread = threading.Thread(target=anyio.run, args=[run])
    thread.start()
    thread.join()
    assert during == [before]
