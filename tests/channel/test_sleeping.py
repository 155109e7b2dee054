"""Sleeping inside the native core: threads on the wake word, tasks on a future. And the watchdog."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from anyio import ClosedResourceError, EndOfStream
from anyio.lowlevel import checkpoint

from filechannel import ChannelOptions, blocking, open_channel
from filechannel._runtime.scheduler import Lane
from filechannel._wakeup import waiters, watchdog

SOON = 0.5
"""Seconds: a sleep that is not ended takes one. The best of many tries of an ended one takes less."""
TRIES = 20


def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def outcome_of(
    rx: blocking.Receiver[int], channel: blocking.FileChannel[int], change: Callable[[], object]
) -> tuple[object, float]:
    """Let a thread sleep in `receive`, change something, and return what came of it and after how many seconds."""
    found: list[object] = []

    def receive() -> None:
        try:
            found.append(rx.receive())
        except Exception as error:
            found.append(type(error))

    thread = threading.Thread(target=receive)
    thread.start()
    until(lambda: channel.statistics().waiters == 1)
    began = time.monotonic()
    change()
    thread.join(30)
    assert channel.statistics().waiters == 0
    return found[0], time.monotonic() - began


@pytest.mark.parametrize("spin", [0.0, 0.0001])
def test_a_sleeping_thread_notices_everything(path: Path, spin: float) -> None:
    """A message, a seek, a seal and a close wake a sleeping thread, and afterwards no thread waits."""
    options, seconds = ChannelOptions(spin=spin), list[list[float]]()
    for number in range(TRIES):
        with blocking.open_channel(path / str(number), int, options=options) as channel, channel.sender() as tx:
            rx, other = channel.receiver(), channel.receiver("other")
            message = outcome_of(rx, channel, lambda: tx.send(1))
            again = outcome_of(rx, channel, lambda: rx.seek("earliest"))  # noqa: B023
            assert other.receive() == 1
            closed = outcome_of(other, channel, other.close)
            end = outcome_of(rx, channel, channel.seal)
        found = [message, again, closed, end]
        assert [what for what, _ in found] == [1, 1, ClosedResourceError, EndOfStream]
        seconds.append([after for _, after in found])
        if all(min(tries) < SOON for tries in zip(*seconds, strict=True)):
            return
    pytest.fail(f"no thread is woken soon: {seconds}")


@pytest.mark.parametrize("timeout", [0, 0.05, 1.2])
def test_a_timeout_is_kept(path: Path, timeout: float) -> None:
    """A receive keeps its timeout, shorter or longer than one sleep, or none."""
    seconds = []
    with blocking.open_channel(path, int) as channel, channel.receiver() as rx:
        for _ in range(TRIES):
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                rx.receive(timeout)
            seconds.append(time.monotonic() - began)
            assert seconds[-1] >= timeout
            if seconds[-1] < timeout + SOON:
                return
    pytest.fail(f"it ends too late: {seconds}")


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_a_bad_timeout_is_refused(path: Path, timeout: float) -> None:
    """An invalid timeout is refused before a thread sleeps."""
    with blocking.open_channel(path, int) as channel, channel.receiver() as rx:
        with pytest.raises((ValueError, TypeError)):
            rx.receive(timeout)


@pytest.mark.parametrize("end", ["dropped", "closed", "cancelled"])
def test_a_receive_that_timed_out_waits_no_more(path: Path, end: str) -> None:
    """A receive that timed out leaves no waiter, and the next receive gets what is sent afterwards."""

    async def run() -> None:
        async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
            coroutine = rx.receive()
            if end == "cancelled":
                task = asyncio.ensure_future(coroutine)
                while not channel.statistics().waiters:
                    await checkpoint()
                task.cancel()
                await asyncio.wait([task])
            else:
                while not channel.statistics().waiters:  # it may have to give way first
                    coroutine.send(None)
                if end == "closed":
                    coroutine.close()
            del coroutine
            gc.collect()
            assert channel.statistics().waiters == 0
            await tx.send(1)
            assert await rx.receive() == 1

    asyncio.run(run())


def test_what_begins_to_wait_while_the_watchdog_looks_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog watches a waiter that begins to wait during a check that found no waiter."""
    monkeypatch.setattr(watchdog, "_RESCAN_SECONDS", 0.01)
    dog, looks = watchdog.Watchdog(), list[int]()

    class Late:
        is_watched = False

        def rescan(self) -> bool:
            looks.append(1)
            if len(looks) == 1:
                dog.watch(self)  # as a waiter does that comes now
                return False
            return len(looks) < 4

    late = Late()
    dog.watch(late)
    until(lambda: len(looks) == 4 and not late.is_watched)


def test_a_watchdog_that_cannot_be_started_is_started_by_the_next_waiter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that can start no thread receives as usual, and is watched as soon as it can."""

    def refuse(*_: object) -> None:
        refused.append(1)
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

            async def receive(number: int) -> None:
                task = asyncio.ensure_future(rx.receive())
                while not channel.statistics().waiters and not task.done():
                    await checkpoint()
                tx.send_nowait(number)
                assert await task == number

            with monkeypatch.context() as patch:
                patch.setattr("filechannel._runtime.threads.start_new_thread", refuse)
                await receive(1)
                await receive(2)
            assert len(refused) == 2
            assert not lane.is_running
            await receive(3)
            until(lambda: lane.is_running)

    lane, refused = Lane("filechannel-watchdog-of-a-test"), list[int]()
    monkeypatch.setattr(watchdog, "_RESCAN_SECONDS", 3600.0)  # until the test cancels it
    dog = watchdog.Watchdog(lane)
    monkeypatch.setattr(waiters, "WATCHDOG", dog)
    asyncio.run(run())
    dog._rescans.cancel()
    until(lambda: (lane.wake_to_end(), not lane.is_running)[1])
