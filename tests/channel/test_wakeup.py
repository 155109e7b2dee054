"""Wakeups: waiters are woken, in the same loop, in another one, and from a plain thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
import pytest
import uvloop
from anyio.to_thread import run_sync

from filechannel import FileChannel, Receiver, open_channel
from filechannel._wakeup import waiters
from filechannel._wakeup.event_loops import Waiter, make_waiter, wake_together
from filechannel._wakeup.waiters import POLL, Waiters, waiters_of
from filechannel._wakeup.watchdog import Watchdog, Watched
from tests.storage.resources import descriptors_under

pytestmark = pytest.mark.anyio


async def test_every_waiter_of_a_loop_is_woken(path: Path) -> None:
    """One message wakes every name that waits for it."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        receivers = [channel.receiver(str(number)) for number in range(20)]
        got = list[int]()

        async def receive(number: int) -> None:
            got.append(await receivers[number].receive())

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(receive, number)
            await anyio.wait_all_tasks_blocked()
            await tx.send(1)
        assert got == [1] * 20


async def test_a_plain_thread_wakes_a_loop(path: Path) -> None:
    """`send_nowait` in a thread without a loop wakes tasks that wait in one, again and again."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        asked, stop = threading.Semaphore(0), threading.Event()

        def answer() -> None:
            number = 0
            while asked.acquire(timeout=60) and not stop.is_set():
                tx.send_nowait(number)
                number += 1

        async with anyio.create_task_group() as group:
            group.start_soon(run_sync, answer)
            for number in range(500):
                asked.release()
                assert await rx.receive() == number
            stop.set()
            asked.release()


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_a_loop_wakes_a_loop_in_another_thread(path: Path, other: str) -> None:
    """Two event loops in two threads play ping-pong over two channels, and no wakeup is lost."""
    rounds = 500
    async with open_channel(path / "ping", int) as ping, open_channel(path / "pong", int) as pong:

        async def play_back() -> None:
            async with ping.receiver() as rx, pong.sender() as tx:
                for _ in range(rounds):
                    await tx.send(await rx.receive() + 1)

        async with anyio.create_task_group() as group, ping.sender() as tx, pong.receiver() as rx:
            group.start_soon(run_sync, lambda: anyio.run(play_back, backend=other))
            for number in range(rounds):
                await tx.send(number)
                assert await rx.receive() == number + 1


async def test_many_threads_wake_many_loops(path: Path) -> None:
    """Loops that fall asleep while threads send miss nothing."""
    async with open_channel(path, int) as channel:
        loops = [threading.Thread(target=count, args=(channel, str(name), 2000)) for name in range(3)]
        senders = [threading.Thread(target=send, args=(channel, 500)) for _ in range(4)]

        def run() -> None:
            for thread in (*loops, *senders):
                thread.start()
            for thread in (*loops, *senders):
                thread.join(100)
                assert not thread.is_alive()

        for name in range(3):
            channel.receiver(str(name)).close()
        await run_sync(run)


def count(channel: FileChannel[int], name: str, total: int) -> None:
    """Receive so many messages in a loop of this thread."""

    async def work() -> None:
        async with channel.receiver(name) as rx:
            for _ in range(total):
                await rx.receive()

    anyio.run(work)


def send(channel: FileChannel[int], total: int) -> None:
    """Send so many messages from this thread."""
    with channel.sender() as tx:
        for number in range(total):
            tx.send_nowait(number)
            threading.Event().wait(0.0001 if number % 100 == 0 else 0)


async def test_a_cancelled_waiter_consumes_no_wakeup(path: Path) -> None:
    """A message that wakes two clones of which one is cancelled at that moment is delivered to the other."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        got = list[int]()

        async def receive(scope: anyio.CancelScope) -> None:
            with scope:
                got.append(await rx.receive())

        for number in range(10):
            scopes = [anyio.CancelScope(), anyio.CancelScope()]
            async with anyio.create_task_group() as group:
                for scope in scopes:
                    group.start_soon(receive, scope)
                await anyio.wait_all_tasks_blocked()
                tx.send_nowait(number)
                scopes[number % 2].cancel()
                await anyio.wait_all_tasks_blocked()
                scopes[1 - number % 2].cancel()
        assert got == list(range(10))


def test_a_loop_that_was_closed_with_a_waiter_in_it(path: Path) -> None:
    """A loop that was closed while a task waited in it disturbs no sender: sends work, from its thread and others."""
    loop = asyncio.new_event_loop()
    channel = loop.run_until_complete(awaited(path))
    rx = channel.receiver()
    task = loop.create_task(rx.receive())
    loop.run_until_complete(asyncio.sleep(0))
    assert channel.statistics().waiters == 1
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    with channel.sender() as tx:
        tx.send_nowait(1)
        in_thread(lambda: tx.send_nowait(2))
        assert rx.receive_many_nowait(5) == [1, 2]
    channel.close()


def in_thread(work: Callable[[], object]) -> None:
    """Do something in another thread, and wait for it."""
    errors = list[BaseException]()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors


async def awaited(path: Path) -> FileChannel[int]:
    """Open a channel."""
    return await open_channel(path, int)


async def test_a_loop_that_is_not_running_is_woken_when_it_runs_again(path: Path) -> None:
    """A task of a loop that is not running gets its message when the loop runs again."""

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        rx = channel.receiver()
        task = loop.create_task(rx.receive())
        loop.run_until_complete(asyncio.sleep(0))
        with channel.sender() as tx:
            tx.send_nowait(1)
        assert loop.run_until_complete(task) == 1
        loop.close()

    async with open_channel(path, int) as channel:
        await run_sync(elsewhere)


async def test_a_wake_before_the_wait_is_not_lost() -> None:
    """A waiter that was woken before it waits does not wait, however often it was woken and from wherever."""
    waiter = make_waiter()
    waiter.wake()
    waiter.wake()
    await waiter.wait()
    other = make_waiter()
    await run_sync(other.wake)
    with anyio.fail_after(30):
        await other.wait()
    with anyio.move_on_after(0) as scope:
        await make_waiter().wait()
    assert scope.cancelled_caught


async def test_a_waiter_can_wait_again_after_it_was_cancelled() -> None:
    """Cancelling a wait does not use the waiter up."""
    waiter = make_waiter()
    for _ in range(3):
        with anyio.move_on_after(0.001) as scope:
            await waiter.wait()
        assert scope.cancelled_caught
    waiter.wake()
    await waiter.wait()


async def test_no_waiter_is_left(path: Path) -> None:
    """After cancelled and ended waits no task counts as waiting."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        for _ in range(10):
            with anyio.move_on_after(0.0001):
                await rx.receive()
            await tx.send(1)
            await rx.receive()
        assert channel.statistics().waiters == 0


# Failures on the way


async def made_waiter() -> Waiter:
    """Return a waiter of the loop that runs this."""
    return make_waiter()


WAKES: dict[str, Callable[[Waiter], None]] = {
    "alone": lambda waiter: waiter.wake(),
    "together": lambda waiter: wake_together([waiter]),
    "as a future": lambda waiter: wake_together([asyncio.ensure_future(waiter.wait())]),
}


@pytest.mark.parametrize("wake", WAKES.values(), ids=WAKES)
@pytest.mark.parametrize("error", [RuntimeError, RecursionError])
def test_a_loop_that_cannot_be_woken_is_an_error_unless_it_is_closed(
    wake: Callable[[Waiter], None], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher gets an error if a waiter was not woken; a closed loop has no waiters."""
    loop = asyncio.new_event_loop()
    waiter = loop.run_until_complete(made_waiter())

    def fail(*_: object) -> None:
        raise error("not now")

    monkeypatch.setattr(loop, "call_soon_threadsafe", fail)
    with pytest.raises(error, match="not now"):
        wake(waiter)
    loop.close()
    wake(waiter)


wakes = pytest.mark.skipif(POLL, reason="no waiter is woken where all of them poll")


class Asleep(Watchdog):
    """A watchdog that never checks without a call."""

    def watch(self, watched: Watched) -> None:
        """Only say that it is watched."""
        watched.is_watched = True


@pytest.fixture
def _watchdog_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog wakes no waiter, unless the test calls it."""
    monkeypatch.setattr(waiters, "WATCHDOG", Asleep())


AGAIN: dict[str, Callable[[Waiters], object]] = {
    "the watchdog": lambda waiting: waiting.rescan(),
    "the next publisher": lambda waiting: waiting.published(),
}


@wakes
@pytest.mark.usefixtures("_watchdog_sleeps")
@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
@pytest.mark.parametrize("woken", [0, 1], ids=["none was", "some were"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RecursionError])
async def test_a_wake_that_is_broken_off_is_made_up_for(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    woken: int,
    again: Callable[[Waiters], object],
) -> None:
    """A waiter that was not woken keeps waiting, is watched and announced, and is woken by the next publisher."""

    def break_off(waiters: Iterable[Waiter | asyncio.Future[None]]) -> None:
        wake_together(list(waiters)[:woken])
        waiting.is_watched = False  # as if the watchdog had checked now, and seen no waiter
        raise error

    async def receive(rx: Receiver[int]) -> None:
        got.append(await rx.receive())

    async with open_channel(path, int) as channel, channel.sender() as tx:
        waiting, got = waiters_of(channel._store), list[int]()
        receivers = [channel.receiver(str(number)) for number in range(3)]
        async with anyio.create_task_group() as group:
            for rx in receivers:
                group.start_soon(receive, rx)
            await anyio.wait_all_tasks_blocked()
            assert channel.statistics().waiters == 3
            with monkeypatch.context() as patch:
                patch.setattr(waiters, "wake_together", break_off)
                with pytest.raises(error):
                    tx.send_nowait(1)
            await anyio.wait_all_tasks_blocked()
            assert len(got) == woken
            assert channel.statistics().waiters == 3 - woken
            assert waiting.is_watched
            again(waiting)
        assert got == [1, 1, 1]
        assert channel.statistics().waiters == 0


@wakes
@pytest.mark.usefixtures("_watchdog_sleeps")
async def test_the_next_message_wakes_a_waiter_that_missed_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiter depends on the watchdog when a wake was broken off and another message is sent."""

    def break_off(_: object) -> None:
        raise KeyboardInterrupt

    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        got = list[int]()

        async def receive() -> None:
            got.append(await rx.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            with monkeypatch.context() as patch:
                patch.setattr(waiters, "wake_together", break_off)
                with pytest.raises(KeyboardInterrupt):
                    tx.send_nowait(1)
            await anyio.wait_all_tasks_blocked()
            assert got == []
            tx.send_nowait(2)
            await anyio.wait_all_tasks_blocked()
            assert got == [1]


@wakes
@pytest.mark.parametrize("step", ["the loop watches", "it is watched", "it is announced", "it looks"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
async def test_a_wait_that_fails_at_its_start_leaves_no_waiter(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    """Whatever fails then is raised, no task counts as waiting, and the next receive waits as usual."""

    def fail(*_: object) -> bool:
        raise error

    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        waiting = waiters_of(channel._store)
        patches: dict[str, tuple[object, str]] = {
            "the loop watches": (waiting._wake_pipe, "watch"),
            "it is watched": (waiters.WATCHDOG, "watch"),
            "it is announced": (waiting, "_announce_task"),
        }
        with monkeypatch.context() as patch:
            if step in patches:
                patch.setattr(*patches[step], fail)
            has_data = rx._has_data if step in patches else fail
            for begin in (lambda: waiting.start_waiting(has_data), lambda: waiting.wait(has_data, 60)):
                with pytest.raises(error):
                    await (begin() or waiting.wait(has_data, 60))  # asyncio's futures do not exist in trio
                assert channel.statistics().waiters == 0
            if step in patches:
                with pytest.raises(error):
                    await rx.receive()
            assert channel.statistics().waiters == 0
        async with anyio.create_task_group() as group:
            group.start_soon(tx.send, 1)
            assert await rx.receive() == 1


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@wakes
@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("then", ["is closed", "runs again"])
def test_a_channel_that_is_closed_while_its_loop_is_stopped(
    path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop], then: str
) -> None:
    """No FIFO stays open, whether the loop runs again or is closed without."""
    loop = make_loop()
    channel = loop.run_until_complete(awaited(path))
    rx = channel.receiver()
    task = loop.create_task(rx.receive())
    loop.run_until_complete(asyncio.sleep(0))
    assert channel.statistics().waiters == 1
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))
    channel.close()
    if then == "runs again":
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert descriptors_under(path / "wake") == 0
