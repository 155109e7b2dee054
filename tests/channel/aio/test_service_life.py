"""The life of a service: its end, its errors, its pauses, and what may interrupt it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
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
from tests.channel.aio.test_ack_receiver import fill, stored
from tests.channel.gates import Gate
from tests.channel.handling import AT_ONCE, LATER, NEVER, Book, until

pytestmark = pytest.mark.anyio


# Ending


async def test_leaving_drains_running_handlers(path: Path) -> None:
    """A running handler completes and its message is acknowledged; messages that were not started stay."""
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
    """Open a gate when every task waits at it."""
    await anyio.wait_all_tasks_blocked()
    gate.set()


async def test_an_error_of_the_body_drains_too(path: Path) -> None:
    """An error of the body is raised as it is after the running handler has returned."""
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


async def test_a_message_without_attempts_left_ends_the_service(path: Path) -> None:
    """A message without attempts left cancels the body, is named with the reason, and stays the next one."""
    async with open_channel(path, int) as channel:
        await fill(channel, 5)

        async def handle(number: int) -> None:
            if number == 2:
                raise ValueError("two")

        with pytest.raises(HandlerError, match="failed after 3 attempts: ValueError: two") as caught:
            async with channel.serve(handle, retry=RetryPolicy(max_attempts=3, delay=0)):
                await anyio.sleep_forever()
        error = caught.value
        assert (error.name, error.offset, error.attempts) == ("default", await channel.offset_of(2), 3)
        assert isinstance(error.__cause__, ValueError)
        assert stored(channel) == 2
        book = Book()
        async with channel.serve(book):
            assert await book.until(3) == [2, 3, 4]


async def test_both_errors_are_raised(path: Path) -> None:
    """If body and handler both fail, both errors are raised in a group."""
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
    """An error that is not retried ends the service at the first attempt."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            raise KeyError(number)

        with pytest.raises(HandlerError) as caught:
            await channel.serve(handle, retry=RetryPolicy(retry_on=OSError))
        assert caught.value.attempts == 1


async def test_a_base_exception_is_raised_as_it_is(path: Path) -> None:
    """A base exception is raised as it is and counts no attempt: the message is redelivered."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            await channel.serve(handle)
        assert stored(channel) == 0


@pytest.mark.usefixtures("asyncio_only")
async def test_a_stray_cancellation_is_a_failure(path: Path) -> None:
    """A handler that awaits something cancelled does not end the service silently."""
    async with open_channel(path, int) as channel:
        await fill(channel, 1)

        async def handle(number: int) -> None:
            task = asyncio.ensure_future(asyncio.sleep(1000))
            task.cancel()
            await task

        with pytest.raises(HandlerError, match="awaited something that was cancelled"):
            await channel.serve(handle, retry=RetryPolicy(max_attempts=2, delay=0))


@pytest.mark.usefixtures("asyncio_only")
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("options", [{}, {"group": True}, {"ordered": False, "concurrency": 2}])
async def test_a_handler_that_cancels_its_task(path: Path, returns: bool, options: dict[str, bool]) -> None:
    """A handler that cancels its own task ends the service with an error, so that no task waits for it for ever."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)

        async def handle(number: int) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if not returns:
                await checkpoint()

        service = channel.serve(handle, name="self", **options)
        with pytest.raises(RuntimeError, match="cancelled directly"):
            async with service:
                await anyio.sleep(30)
        [consumer] = channel.consumers()
        assert consumer.next_sequence == service.statistics().handled
        assert (consumer.owner, service.statistics().failed) == (None, 0)


async def test_await_runs_until_stopped(path: Path) -> None:
    """An awaited service that a handler stops ends when that handler has returned."""
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
    """Any thread can stop a service that waits, without a message having to arrive."""
    async with open_channel(path, int) as channel:
        service = channel.serve(Book())
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, service.stop)
            await service
        assert service.statistics().stopped


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_the_end_of_a_sealed_channel_ends_it(path: Path, concurrency: int) -> None:
    """A service of a sealed channel ends when everything is acknowledged; an error of a message comes before that."""
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
    """A service runs once; its name is free after it has ended, or was stopped before it ran."""
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
    """The name is registered at the requested position when `serve` returns, so later messages are handled."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        book = Book()
        service = channel.serve(book, start="latest", expires=60)
        await fill(channel, 2)
        async with service:
            assert await book.until(2) == [0, 1]


async def test_closing_the_channel_under_it_is_an_error(path: Path) -> None:
    """Closing the channel under a service raises an error, and the message in flight is not acknowledged."""
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
async def test_grace_bounds_the_wait_for_a_handler(path: Path, threads: bool) -> None:
    """A handler that exceeds the grace is cancelled, or abandoned in its thread, and its message is redelivered."""
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

        with anyio.fail_after(60):
            async with channel.serve(block if threads else handle, grace=0.01) as service:
                await until(entered.is_set)
        assert ended == ([] if threads else ["cancelled"])
        assert (stored(channel), service.statistics().lag) == (0, 2)
        gate.set()
        await until(lambda: ended)
        assert stored(channel) == 0


@pytest.mark.usefixtures("trio_only")
async def test_a_cancellation_in_a_group_is_one(path: Path) -> None:
    """A cancellation that a trio nursery raises in a group ends the service like a plain one."""
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


async def test_a_purge_is_not_an_error(path: Path) -> None:
    """Messages in handlers are not acknowledged, those without attempts left get no letter, and
    later ones are handled.
    """
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


async def test_a_paused_service_starts_no_message(path: Path) -> None:
    """A paused service completes running handlers and starts no message; after `resume` none is missing."""
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


async def test_pause_all_and_resume_one_by_one(path: Path) -> None:
    """Services that are paused together and resumed one by one each get every message."""
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
    """The next attempt of a message waits for `resume`, and comes before any other message."""
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
    """A service that is stopped between two attempts ends at once, and the message stays the next one."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        service, _, called = failing(channel, LATER)
        async with service:
            await until(lambda: service.statistics().failed == 1)
        assert (called, stored(channel)) == ([0], 0)


async def test_stopped_while_paused(path: Path) -> None:
    """A paused service that is stopped ends without being resumed."""
    async with open_channel(path, int) as channel:
        await fill(channel, 3)
        service = channel.serve(Book())
        service.pause()
        async with service:
            await anyio.wait_all_tasks_blocked()
        service.resume()
        assert (stored(channel), service.statistics().stopped) == (0, True)


# Cancelling, and what others notice


async def test_cancelled_in_a_handler(path: Path) -> None:
    """Cancelling a service cancels its handler, and the message is redelivered."""
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


async def test_a_handler_that_never_waits_lets_other_tasks_run(path: Path) -> None:
    """While a handler never waits, other tasks run between messages, and a cancellation is noticed."""
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
    """With `cursor_flush="fsync"` the next message is started when the last position is on disk."""
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
        ({"group": "workers"}, TypeError, "group='workers': must be True or False"),
        ({"group": True, "retry": RetryPolicy(max_attempts=1024)}, ValueError, "max_attempts=1024: .* at most 1023"),
        ({"dead_letter": 3}, TypeError, "dead_letter=3: must be a filechannel.Sender"),
    ],
)
async def test_wrong_arguments_take_no_name(
    path: Path, options: dict[str, object], error: type[Exception], says: str
) -> None:
    """`serve` names wrong arguments and registers nothing."""
    async with open_channel(path, int) as channel:
        with pytest.raises(error, match=says):
            channel.serve(**{"handler": Book(), **options})  # type: ignore[arg-type]
        assert channel.consumers() == ()


class Grave(msgspec.Struct):
    """A message type that is not `DeadLetter`."""

    id: int


@pytest.mark.parametrize("message_type", [Grave, int, bytes, dict[str, int]], ids=repr)
async def test_a_dead_letter_channel_of_another_type_is_refused_at_once(path: Path, message_type: Any) -> None:
    """`serve` names the type, and registers nothing, although no message has failed yet."""
    async with open_channel(path / "in", int) as channel, open_channel(path / "dead", message_type) as dead:
        what = "must be a filechannel.Sender of a channel of DeadLetter: the channel accepts .*, not DeadLetter"
        with pytest.raises(TypeError, match=what):
            channel.serve(Book(), dead_letter=dead.sender())
        assert channel.consumers() == ()


@pytest.mark.parametrize("message_type", [DeadLetter, DeadLetter | None, Any], ids=repr)
async def test_every_channel_that_takes_dead_letters_is_accepted(path: Path, message_type: Any) -> None:
    """`serve` refuses no sender that can send one."""
    async with open_channel(path / "in", int) as channel, open_channel(path / "dead", message_type) as dead:
        channel.serve(Book(), dead_letter=dead.sender()).close()
