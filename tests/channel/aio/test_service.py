"""Handlers in an event loop: in order, in threads, and several at once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from filechannel import HandlerError, RetryPolicy, open_channel
from tests.channel.aio.test_ack_receiver import SMALL, fill, stored
from tests.channel.handling import AT_ONCE, LATER, NEVER, Book, until

pytestmark = pytest.mark.anyio


# In order


async def test_every_message_is_handled_in_order_and_acked(path: Path) -> None:
    """Every message is handled in order, also those sent later, and acknowledged when its handler has returned."""
    async with open_channel(path, int, options=SMALL) as channel:
        await fill(channel, 1000)
        book, positions = Book(), list[int]()

        async def handle(number: int) -> None:
            positions.append(channel.consumers()[0].next_sequence)
            await book(number)

        async with channel.serve(handle) as service, channel.sender() as tx:
            await book.until(1000)
            for number in range(1000, 1010):
                await tx.send(number)
                await book.until(number + 1)
            assert service.name == "default"
        assert book.got == positions == list(range(1010))
        assert stored(channel) == 1010


async def test_a_message_that_fails_ten_times_holds_up_the_rest(path: Path) -> None:
    """Messages behind one that fails ten times are handled after it, in order, and the failures are counted."""
    async with open_channel(path, int) as channel:
        await fill(channel, 100)
        book, failures = Book(), 0

        async def handle(number: int) -> None:
            nonlocal failures
            if failures < 10:
                failures += 1
                raise ValueError(f"not yet: {number}")
            await book(number)

        async with channel.serve(handle, retry=RetryPolicy(max_attempts=11, delay=1e-4)) as service:
            await book.until(100)
        found = service.statistics()
        assert book.got == list(range(100))
        assert (found.handled, found.failed, found.retried, found.dead) == (100, 10, 10, 0)
        assert (found.in_flight, found.lag, found.stopped, found.paused) == (0, 0, True, False)
        assert found.last_error == "ValueError: not yet: 0"


async def test_a_redelivered_message_is_a_fresh_object(path: Path) -> None:
    """Changes that a handler made to a message before it failed are not in the next attempt."""
    async with open_channel(path, dict[str, int]) as channel:
        with channel.sender() as tx:
            await tx.send({"tries": 0})
        seen = list[int]()

        async def handle(message: dict[str, int]) -> None:
            message["tries"] += 1
            seen.append(message["tries"])
            if len(seen) < 3:
                raise ValueError
            service.stop()

        service = channel.serve(handle, retry=AT_ONCE)
        await service
        assert seen == [1, 1, 1]


class Clerk:
    """An object to call."""

    def __init__(self, book: Book) -> None:
        self._book = book

    async def __call__(self, number: int) -> None:
        """Write it down, later."""
        await checkpoint()
        self._book.add(number)

    async def method(self, number: int) -> None:
        """Do the same."""
        await self(number)


async def with_prefix(book: Book, number: int) -> None:
    """Write down, in a function with more arguments."""
    await checkpoint()
    book.add(number)


KINDS: dict[str, Callable[[Book], Callable[[int], Awaitable[None]]]] = {
    "object": Clerk,
    "method": lambda book: Clerk(book).method,
    "partial": lambda book: partial(with_prefix, book),
    "partial of a partial": lambda book: partial(partial(with_prefix), book),
    "partial of an object": lambda book: partial(Clerk(book)),
    "lambda": lambda book: lambda number: with_prefix(book, number),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_every_awaitable_result_is_awaited(path: Path, kind: Callable[[Book], object]) -> None:
    """The service awaits the results of functions, methods, partials and async callables, and any awaitable."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        book = Book()
        async with channel.serve(kind(book)):  # type: ignore[arg-type]
            assert await book.until(5) == [0, 1, 2, 3, 4]


# In threads


async def test_a_plain_function_runs_in_a_thread(path: Path) -> None:
    """A plain function runs in a thread: the loop keeps running, messages stay in order, and its errors are handled."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        got, here, gate, entered = list[int](), threading.get_ident(), threading.Event(), threading.Event()

        def handle(number: int) -> None:
            assert threading.get_ident() != here
            entered.set()
            assert gate.wait(30)
            if not got and service.statistics().failed < 3:
                raise OSError("not yet")
            got.append(number)

        service = channel.serve(handle, retry=AT_ONCE)
        async with service:
            await until(entered.is_set)
            assert service.statistics().in_flight == 1
            gate.set()
            await until(lambda: len(got) == 5)
        assert got == list(range(5))
        assert service.statistics().failed == 3


async def test_a_blocked_thread_delays_no_other_service(path: Path) -> None:
    """A service ends while another one drains a blocked thread, and neither uses the threads that others need."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        gate, entered, book = threading.Event(), threading.Event(), Book()

        def handle(number: int) -> None:
            entered.set()
            assert gate.wait(30)

        async with channel.serve(handle, name="slow") as slow:
            await until(entered.is_set)
            slow.stop()
            async with channel.serve(book, name="quick"):
                await book.until(1)
            assert slow.statistics().in_flight == 1
            gate.set()
        assert slow.statistics().handled == 1


async def test_cancellation_waits_for_a_thread(path: Path) -> None:
    """A cancelled service waits for a running thread and acknowledges its message, and starts no other message."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        gate, entered, got = threading.Event(), threading.Event(), list[int]()

        def handle(number: int) -> None:
            entered.set()
            assert gate.wait(30)
            got.append(number)

        with anyio.CancelScope() as scope:
            async with channel.serve(handle):
                await until(entered.is_set)
                scope.cancel()
                gate.set()
        assert got == list(range(stored(channel)))
        assert got[0] == 0


# At once


async def test_no_more_than_so_many_at_once(path: Path) -> None:
    """The number of running handlers reaches *concurrency* and never exceeds it; later messages stay in the channel."""
    async with open_channel(path, int) as channel:
        await fill(channel, 100)
        running, most, done, gate = 0, 0, list[int](), anyio.Event()

        async def handle(number: int) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1
            done.append(number)

        async with channel.serve(handle, ordered=False, concurrency=7) as service:
            await until(lambda: running == 7)
            await anyio.wait_all_tasks_blocked()
            assert service.statistics().in_flight == 7
            gate.set()
            await until(lambda: len(done) == 100)
        assert (most, sorted(done), stored(channel)) == (7, list(range(100)), 100)


async def test_other_messages_are_processed_while_one_waits_for_its_next_attempt(path: Path) -> None:
    """While a message waits for its next attempt even a single worker continues; the stored position stays at it."""
    async with open_channel(path, int) as channel:
        await fill(channel, 50)
        book, called = Book(), list[int]()

        async def handle(number: int) -> None:
            if number == 0:
                called.append(number)
                raise ValueError
            await book(number)

        async with channel.serve(handle, ordered=False, retry=LATER) as service:
            assert await book.until(49) == list(range(1, 50))
            await until(lambda: service.statistics().handled == 49)
            assert (called, stored(channel), service.statistics().lag) == ([0], 0, 50)


async def test_a_failed_message_is_redelivered_without_a_wakeup(path: Path) -> None:
    """A failed message is redelivered after its pause, also while the service waits for messages."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        book, attempts = Book(), list[int]()

        async def handle(number: int) -> None:
            attempts.append(number)
            if len(attempts) < 4:
                raise ValueError
            await book(number)

        async with channel.serve(handle, ordered=False, concurrency=3, retry=RetryPolicy(delay=0.01)):
            await book.until(1)
        assert attempts == [0] * 4


async def test_idle_workers_process_one_message_each(path: Path) -> None:
    """An idle worker handles a message that arrives while other workers are busy."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        book, gate = Book(), anyio.Event()

        async def handle(number: int) -> None:
            await book(number)
            await gate.wait()

        async with channel.serve(handle, ordered=False, concurrency=5):
            for number in range(5):
                await tx.send(number)
                await book.until(number + 1)
            gate.set()


async def test_one_failure_lets_the_others_drain(path: Path) -> None:
    """After one failure the body is cancelled at once, and running handlers complete."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        gate, fails, done = anyio.Event(), anyio.Event(), list[int]()

        async def handle(number: int) -> None:
            if number == 0:
                await fails.wait()
                raise ValueError
            fails.set()
            await gate.wait()
            done.append(number)

        async def run() -> None:
            async with channel.serve(handle, ordered=False, concurrency=2, retry=NEVER):
                try:
                    await anyio.sleep_forever()
                finally:
                    gate.set()

        with pytest.raises(HandlerError):
            await run()
        assert (done, stored(channel)) == ([1], 0)
