"""Handlers in an event loop: in order or at once, tried again, paused, stopped and drained."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import BusyResourceError, ClosedResourceError
from anyio.lowlevel import checkpoint

from filechannel import (
    ChannelOptions,
    ConsumerBusyError,
    DeadLetter,
    FileChannel,
    HandlerError,
    RetryPolicy,
    Service,
    open_channel,
)
from tests.backends import one_loop
from tests.channel.gates import Gate
from tests.channel.test_ack import SMALL, fill, stored

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(max_attempts=None, delay=0)
NEVER = RetryPolicy(max_attempts=1)
LATER = RetryPolicy(max_attempts=None, delay=1000, max_delay=1000)


class Book:
    """A handler that writes down what it gets, and can be waited for."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self._changed = anyio.Event()

    async def __call__(self, number: int) -> None:
        """Write it down."""
        self.add(number)

    def add(self, number: int) -> None:
        """Write something down."""
        self.got.append(number)
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, count: int) -> list[int]:
        """Wait until there is so much, and return it."""
        with anyio.fail_after(30):
            while len(self.got) < count:
                await self._changed.wait()
        return self.got


async def until(condition: Callable[[], object]) -> None:
    """Let others run until something is so."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 (threads make it so)
            await anyio.sleep(0.001)


# In order


async def test_every_message_is_handled_in_order_and_acked(path: Path) -> None:
    """Also those that come later; each is acknowledged when its handler has returned."""
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
    """All arrive in order, and the failures are counted."""
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


async def test_a_message_that_comes_again_is_a_fresh_one(path: Path) -> None:
    """What a handler has done to a message before it failed is not there the next time."""
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
async def test_whatever_gives_something_to_await_is_awaited(path: Path, kind: Callable[[Book], object]) -> None:
    """Functions, methods, partials, objects with an async call, and what only turns out to be async."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        book = Book()
        async with channel.serve(kind(book)):  # type: ignore[arg-type]
            assert await book.until(5) == [0, 1, 2, 3, 4]


# In threads


async def test_a_plain_function_runs_in_a_thread(path: Path) -> None:
    """The loop goes on while it blocks, the messages are in order, and its errors are those of a handler."""
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


async def test_a_blocked_thread_holds_up_nobody_else(path: Path) -> None:
    """Another service ends while this one drains, and neither takes the threads that others need."""
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
    """A thread cannot be told: what it has done is acknowledged, and the next message is not begun."""
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


# Ending


async def test_leaving_drains_what_is_in_flight(path: Path) -> None:
    """A handler at work goes on to its end and is acknowledged; what is not begun stays."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)
        entered, gate, got = anyio.Event(), anyio.Event(), list[int]()

        async def handle(number: int) -> None:
            entered.set()
            await gate.wait()
            got.append(number)

        async with anyio.create_task_group() as group:
            async with channel.serve(handle):
                await entered.wait()
                group.start_soon(open_later, gate)
            assert got == [0]
        assert stored(channel) == 1


async def open_later(gate: anyio.Event) -> None:
    """Open a gate when everybody has come to it."""
    await anyio.wait_all_tasks_blocked()
    gate.set()


async def test_an_error_of_the_body_drains_too(path: Path) -> None:
    """It is raised as it is when the handler has come to its end."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        entered, gate = anyio.Event(), anyio.Event()

        async def handle(number: int) -> None:
            entered.set()
            await gate.wait()

        async def fail() -> None:
            async with channel.serve(handle):
                await entered.wait()
                group.start_soon(open_later, gate)
                raise KeyError("mine")

        async with anyio.create_task_group() as group:
            with pytest.raises(KeyError, match="mine"):
                await fail()
        assert stored(channel) == 1


async def test_a_message_given_up_ends_the_service(path: Path) -> None:
    """The body is cancelled, the error says which message and why, and the message is what comes next."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)

        async def handle(number: int) -> None:
            if number == 2:
                raise ValueError("two")

        with pytest.raises(HandlerError, match="given up after 3 attempts: ValueError: two") as caught:
            async with channel.serve(handle, retry=RetryPolicy(max_attempts=3, delay=0)):
                await anyio.sleep_forever()
        error = caught.value
        assert (error.name, error.offset, error.attempts) == ("default", await channel.offset_of(2), 3)
        assert isinstance(error.__cause__, ValueError)
        assert stored(channel) == 2
        book = Book()
        async with channel.serve(book):
            assert await book.until(3) == [2, 3, 4]


async def test_both_errors_are_told(path: Path) -> None:
    """If the body fails too, the two come in a group."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            raise ValueError

        async def fail() -> None:
            async with channel.serve(handle, retry=NEVER) as service:
                try:
                    await anyio.sleep_forever()
                finally:
                    assert service.statistics().stopped
                    raise KeyError("mine")

        with pytest.raises(ExceptionGroup) as caught:
            await fail()
        assert [type(error) for error in caught.value.exceptions] == [HandlerError, KeyError]


async def test_an_error_that_is_not_worth_another_attempt(path: Path) -> None:
    """It ends the service at the first attempt."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            raise KeyError(number)

        with pytest.raises(HandlerError) as caught:
            await channel.serve(handle, retry=RetryPolicy(retry_on=OSError))
        assert caught.value.attempts == 1


async def test_what_is_no_exception_is_raised_as_it_is(path: Path) -> None:
    """It says nothing about the message, which comes again."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            await channel.serve(handle)
        assert stored(channel) == 0


@pytest.mark.usefixtures("asyncio_only")
async def test_a_stray_cancellation_is_a_failure(path: Path) -> None:
    """A handler that awaits something cancelled does not end the service without a word."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            task = asyncio.ensure_future(asyncio.sleep(1000))
            task.cancel()
            await task

        with pytest.raises(HandlerError, match="awaited something that was cancelled"):
            await channel.serve(handle, retry=RetryPolicy(max_attempts=2, delay=0))


async def test_await_runs_until_stopped(path: Path) -> None:
    """Stopped by a handler, it ends when that has returned."""
    async with open_channel(path, int) as channel:
        await fill(channel, 10)

        async def handle(number: int) -> None:
            if number == 4:
                service.stop()
                await checkpoint()

        service = channel.serve(handle)
        await service
        assert stored(channel) == 5


async def test_stopped_from_another_thread_while_it_waits(path: Path) -> None:
    """Any thread may say so; nothing has to arrive for that."""
    async with open_channel(path, int) as channel:
        service = channel.serve(Book())
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, service.stop)
            await service
        assert service.statistics().stopped


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_the_end_of_a_sealed_channel_ends_it(path: Path, concurrency: int) -> None:
    """When everything is acknowledged; a message that failed comes before that."""
    async with open_channel(path, int) as channel:
        await fill(channel, 10)
        await channel.seal()
        got = list[int]()

        async def handle(number: int) -> None:
            await checkpoint()
            got.append(number)
            if got.count(9) == 1 and number == 9:
                raise ValueError

        await channel.serve(handle, ordered=concurrency == 1, concurrency=concurrency, retry=AT_ONCE)
        assert sorted(got) == [*range(10), 9]
        assert stored(channel) == 10


async def test_it_runs_once_and_frees_the_name(path: Path) -> None:
    """The name is taken from `serve` on, and free when the service has ended or was stopped before it ran."""
    async with open_channel(path, int) as channel:
        service = channel.serve(Book())
        with pytest.raises(ConsumerBusyError):
            channel.serve(Book())
        async with service:
            with pytest.raises(BusyResourceError):
                await service
        with pytest.raises(BusyResourceError):
            await service
        unused = channel.serve(Book())
        unused.stop()
        with pytest.raises(ClosedResourceError):
            await unused
        channel.serve(Book()).close()
        assert repr(service) == f"<Service {str(path)!r} name='default' stopped>"


async def test_what_is_sent_after_serve_is_handled(path: Path) -> None:
    """The name is registered when `serve` returns, at the place that was asked for."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        book = Book()
        service = channel.serve(book, start="latest", expires=60)
        await fill(channel, 2)
        async with service:
            assert await book.until(2) == [0, 1]


async def test_closing_the_channel_under_it_is_an_error(path: Path) -> None:
    """The message in flight is not acknowledged."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        entered, gate = anyio.Event(), anyio.Event()

        async def handle(number: int) -> None:
            entered.set()
            await gate.wait()

        async def run() -> None:
            async with channel.serve(handle):
                await entered.wait()
                await channel.aclose()
                gate.set()
                await anyio.sleep_forever()

        with pytest.raises(ClosedResourceError):
            await run()
    async with open_channel(path, int) as channel:
        assert stored(channel) == 0


@pytest.mark.parametrize("threads", [False, True], ids=["async", "thread"])
async def test_grace_ends_the_patience_with_a_handler(path: Path, threads: bool) -> None:
    """One that is still at work then is cancelled, or left alone if it is in a thread; its message comes again."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        entered, gate = threading.Event(), threading.Event()
        ended = list[str]()

        async def handle(number: int) -> None:
            entered.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("cancelled")

        def block(number: int) -> None:
            entered.set()
            assert gate.wait(30)
            ended.append("left alone")

        with anyio.fail_after(20):
            async with channel.serve(block if threads else handle, grace=0.01) as service:
                await until(entered.is_set)
        assert ended == ([] if threads else ["cancelled"])
        assert (stored(channel), service.statistics().lag) == (0, 2)
        gate.set()
        await until(lambda: ended)
        assert stored(channel) == 0


@pytest.mark.usefixtures("trio_only")
async def test_a_cancellation_in_a_group_is_one(path: Path) -> None:
    """A nursery of trio's raises its cancellations in a group: the service ends as if there was none."""
    import trio

    async with open_channel(path, int) as channel:
        await fill(channel, 1)
        entered = anyio.Event()

        async def handle(number: int) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                entered.set()
                await trio.sleep_forever()

        async with channel.serve(handle, grace=0.0):
            await entered.wait()
        entered = anyio.Event()
        with anyio.CancelScope() as scope:
            async with channel.serve(handle):
                await entered.wait()
                scope.cancel()
        assert stored(channel) == 0


async def test_a_purge_is_no_error(path: Path) -> None:
    """What is being handled then is not acknowledged, what is given up has no letter, and what is sent later comes."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        async with open_channel(path.with_name("dead"), DeadLetter) as dead, dead.sender() as box:
            await fill(channel, 10)
            book = Book()

            async def handle(number: int) -> None:
                if number in (0, 100):
                    await channel.purge()
                    await tx.send_many([number + 100, number + 101])
                if number == 100:
                    raise ValueError
                await book(number)

            async with channel.serve(handle, retry=NEVER, dead_letter=box) as service:
                assert await book.until(3) == [0, 200, 201]
            statistics = service.statistics()
            assert (statistics.handled, statistics.failed, statistics.dead) == (2, 3, 0)
            assert dead.statistics().messages == 0


# Pausing


async def test_a_paused_service_begins_nothing(path: Path) -> None:
    """What is being handled goes on to its end; after `resume` nothing is missing."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        book = Book()
        async with channel.serve(book) as service:
            await tx.send(0)
            await book.until(1)
            service.pause()
            assert service.statistics().paused
            await tx.send_many([1, 2, 3])
            await anyio.wait_all_tasks_blocked()
            assert (book.got, service.statistics().lag) == ([0], 3)
            service.resume()
            assert await book.until(4) == [0, 1, 2, 3]
            assert not service.statistics().paused


async def test_pause_all_and_resume_one_after_the_other(path: Path) -> None:
    """Whoever goes on later gets everything too: no gap."""
    async with open_channel(path, int) as channel:
        await fill(channel, 10)
        first, second = Book(), Book()
        async with channel.serve(first, name="1") as one, channel.serve(second, name="2") as two:
            await first.until(10)
            await second.until(10)
            for service in (one, two):
                service.pause()
            await fill(channel, 10)
            one.resume()
            assert await first.until(20) == [*range(10), *range(10)]
            assert len(second.got) == 10
            await fill(channel, 10)
            two.resume()
            assert await second.until(30) == [*range(10)] * 3
            await first.until(30)


def failing(channel: FileChannel[int], retry: RetryPolicy) -> tuple[Service, Book, list[int]]:
    """Return a service whose handler fails on its first message once, and what it was called with."""
    book, called = Book(), list[int]()

    async def handle(number: int) -> None:
        called.append(number)
        if len(called) == 1:
            raise ValueError
        await book(number)

    return channel.serve(handle, retry=retry), book, called


async def test_paused_between_two_attempts(path: Path) -> None:
    """The next attempt waits for `resume`, however long that takes, and comes before anything else."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        service, book, called = failing(channel, LATER)
        async with service:
            await until(lambda: service.statistics().failed == 1)
            assert service.statistics().in_flight == 1
            service.pause()
            await anyio.wait_all_tasks_blocked()
            assert called == [0]
            service.resume()
            assert await book.until(3) == [0, 1, 2]


async def test_stopped_between_two_attempts(path: Path) -> None:
    """It ends at once, and the message is what comes next."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        service, _, called = failing(channel, LATER)
        async with service:
            await until(lambda: service.statistics().failed == 1)
        assert (called, stored(channel)) == ([0], 0)


async def test_stopped_while_paused(path: Path) -> None:
    """It ends although nobody says `resume`."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        service = channel.serve(Book())
        service.pause()
        async with service:
            await anyio.wait_all_tasks_blocked()
        service.resume()
        assert (stored(channel), service.statistics().stopped) == (0, True)


# At once


async def test_no_more_than_so_many_at_once(path: Path) -> None:
    """The bound is reached and never passed; what comes meanwhile waits in the channel."""
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


async def test_others_go_on_while_one_waits_for_its_next_attempt(path: Path) -> None:
    """Even one worker goes on; the stored position waits for what has failed."""
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


async def test_a_message_comes_again_by_itself(path: Path) -> None:
    """After its pause, while the service waits for others."""
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


async def test_idle_workers_take_one_message_each(path: Path) -> None:
    """Messages that come one by one find somebody, while others are at work."""
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
    """The body is cancelled at once, and those at work come to their end."""
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


# Cancelling, and what others notice


async def test_cancelled_in_a_handler(path: Path) -> None:
    """The handler is cancelled, and its message comes again."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        entered, cancelled = anyio.Event(), list[int]()

        async def handle(number: int) -> None:
            if number == 1:
                entered.set()
                try:
                    await anyio.sleep_forever()
                finally:
                    cancelled.append(number)

        with anyio.CancelScope() as scope:
            async with channel.serve(handle):
                await entered.wait()
                scope.cancel()
                await anyio.sleep_forever()
        assert (cancelled, stored(channel)) == ([1], 1)


@pytest.mark.usefixtures("asyncio_only")
@pytest.mark.parametrize("threads", [False, True], ids=["async", "thread"])
async def test_a_plain_task_is_cancelled(path: Path, threads: bool) -> None:
    """`Task.cancel()` does what a scope does: a handler is cancelled, a thread is waited for, and nothing is lost."""
    async with open_channel(path, int) as channel:
        await fill(channel, 2)
        entered, gate, ended = threading.Event(), threading.Event(), list[int]()

        async def handle(number: int) -> None:
            entered.set()
            await anyio.sleep_forever()

        def block(number: int) -> None:
            entered.set()
            assert gate.wait(30)
            ended.append(number)

        async def run() -> None:
            await channel.serve(block if threads else handle)

        task = asyncio.ensure_future(run())
        await until(entered.is_set)
        task.cancel()
        await checkpoint()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == list(range(stored(channel)))
        assert len(ended) == threads


async def test_a_handler_that_never_waits_leaves_room_for_others(path: Path) -> None:
    """Other tasks run meanwhile, and a cancellation is noticed."""
    async with open_channel(path, int) as channel:
        await fill(channel, 200_000)
        turns = 0

        async def handle(number: int) -> None:
            pass

        async with anyio.create_task_group() as group:

            async def count() -> None:
                nonlocal turns
                for _ in range(10):
                    await checkpoint()
                    turns += 1
                group.cancel_scope.cancel()

            group.start_soon(count)
            await channel.serve(handle)
        assert turns == 10
        assert stored(channel) < 200_000


async def test_acks_reach_the_disk_as_the_options_say(path: Path, gate: Gate) -> None:
    """With `cursor_flush="fsync"` the next message is begun when the last position is on disk."""
    async with open_channel(path, int, options=ChannelOptions(cursor_flush="fsync")) as channel:
        await fill(channel, 5)
        book, flushes = Book(), list[int]()

        async def handle(number: int) -> None:
            flushes.append(gate.flushes)
            await book(number)

        async with channel.serve(handle) as service:
            await book.until(5)
        assert len(set(flushes)) == 5
        assert service.statistics().handled == stored(channel) == 5


@one_loop
@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"concurrency": 2}, ValueError, "ordered=False"),
        ({"concurrency": 0, "ordered": False}, ValueError, "concurrency=0: must be"),
        ({"concurrency": True}, TypeError, "concurrency=True: must be"),
        ({"ordered": 1}, TypeError, "ordered=1: must be"),
        ({"retry": 3}, TypeError, "retry=3: must be a RetryPolicy"),
        ({"grace": -1}, ValueError, "grace=-1: must be"),
        ({"grace": "long"}, TypeError, "grace='long': must be"),
        ({"name": 3}, TypeError, "name=3"),
        ({"handler": 3}, TypeError, "handler=3: must be"),
    ],
)
async def test_wrong_arguments_take_no_name(
    path: Path, options: dict[str, object], error: type[Exception], says: str
) -> None:
    """They are named, and nothing is registered."""
    async with open_channel(path, int) as channel:
        with pytest.raises(error, match=says):
            channel.serve(**{"handler": Book(), **options})  # type: ignore[arg-type]
        assert channel.consumers() == ()
