"""Cancelling: a cancelled send did not happen, a cancelled receive took nothing, and no cancellation is lost."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from filechannel import ChannelOptions, Durability, FanOutReceiver, Sender, open_channel
from tests.channel.gates import Gate

pytestmark = pytest.mark.anyio

ATTEMPTS = 2000
FSYNC = ChannelOptions(durability=Durability.FSYNC)


async def take(rx: FanOutReceiver[int], rng: random.Random) -> list[int]:
    """Receive in one of the ways there are."""
    way = rng.randrange(6)
    if way == 0:
        return [(await rx.receive_record()).value]
    if way == 1:
        return await rx.receive_many(rng.choice((1, 3, 2000)))
    if way == 2:
        return await rx.receive_many(5, linger=rng.choice((0.00001, 0.001)))
    if way == 3:
        return [await anext(rx)]
    return [await rx.receive()]


async def some_steps(rng: random.Random) -> None:
    """Let other tasks run, not always equally long."""
    for _ in range(rng.randrange(4)):
        await checkpoint()


async def cancel_scopes(
    work: Callable[[], Awaitable[None]], rng: random.Random, meanwhile: Callable[[], object]
) -> None:
    """Start work, do something else in between, and cancel it through a cancel scope."""

    async def run() -> None:
        with scope:
            await work()

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await some_steps(rng)
        meanwhile()
        await some_steps(rng)
        scope.cancel()


async def cancel_tasks(
    work: Callable[[], Awaitable[None]], rng: random.Random, meanwhile: Callable[[], object]
) -> None:
    """The same with a plain `Task.cancel()`."""

    async def run() -> None:
        await work()

    task = asyncio.create_task(run())
    await some_steps(rng)
    meanwhile()
    await some_steps(rng)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


@pytest.fixture(params=["scopes", "tasks"])
def cancelling(request: pytest.FixtureRequest, backend_name: str) -> Callable[..., Awaitable[None]]:
    """Both ways to cancel; trio has only the first."""
    if request.param == "scopes":
        return cancel_scopes
    if backend_name != "asyncio":
        pytest.skip("trio has cancel scopes only")
    return cancel_tasks


# At random moments


async def test_a_cancelled_receive_loses_nothing(
    path: Path, rng: random.Random, cancelling: Callable[..., Awaitable[None]]
) -> None:
    """Cancelled 2,000 times at random moments, in every way to receive, nothing is lost, doubled or reordered."""
    sent, got = 0, list[int]()
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

        def send_some() -> None:
            nonlocal sent
            for _ in range(rng.randrange(4)):
                tx.send_nowait(sent)
                sent += 1

        async def work() -> None:
            while True:
                got.extend(await take(rx, rng))

        for _ in range(ATTEMPTS):
            await cancelling(work, rng, send_some)
        await channel.seal()
        got.extend([item async for item in rx])
    assert got == list(range(sent))


async def test_a_cancelled_receive_loses_nothing_to_a_clone(
    path: Path, rng: random.Random, cancelling: Callable[..., Awaitable[None]]
) -> None:
    """Two clones of which one is cancelled again and again get every message between them, once."""
    sent, got = 0, list[int]()
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

        def send_some() -> None:
            nonlocal sent
            for _ in range(rng.randrange(3)):
                tx.send_nowait(sent)
                sent += 1

        async def stay(clone: FanOutReceiver[int]) -> None:
            async with clone:
                got.extend([item async for item in clone])

        async def work() -> None:
            while True:
                got.append(await rx.receive())

        async with anyio.create_task_group() as group:
            group.start_soon(stay, rx.clone())
            for _ in range(ATTEMPTS // 4):
                await cancelling(work, rng, send_some)
            await channel.seal()
    assert sorted(got) == list(range(sent))


async def test_a_cancelled_receive_loses_nothing_from_another_thread(path: Path, rng: random.Random) -> None:
    """While a thread sends at full speed, cancelling at random moments loses nothing."""
    got, total = list[int](), 20_000
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

        def send_all() -> None:
            for number in range(total):
                tx.send_nowait(number)

        async def work() -> None:
            while True:
                got.extend(await take(rx, rng))
                await some_steps(rng)

        async with anyio.create_task_group() as group:
            group.start_soon(run_sync, send_all)
            while len(got) < total // 2:
                await cancel_scopes(work, rng, lambda: None)
        await channel.seal()
        got.extend([item async for item in rx])
    assert got == list(range(total))


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=repr)
async def test_a_cancelled_send_did_not_happen(
    path: Path, rng: random.Random, cancelling: Callable[..., Awaitable[None]], durability: Durability
) -> None:
    """Cancelled 2,000 times at random moments, what is in the channel is what `send` returned for, in that order."""
    returned, number, together = list[int](), 0, 10
    options = ChannelOptions(durability=durability)
    async with open_channel(path, int, options=options) as channel, channel.sender() as tx:

        async def work() -> None:
            nonlocal number
            while True:
                mine, number = number, number + 1
                if rng.randrange(3):
                    await tx.send(mine)
                else:
                    await tx.send_many([mine])
                returned.append(mine)
                if not rng.randrange(4):
                    await checkpoint()
                if not rng.randrange(8):
                    return

        async with anyio.create_task_group() as group:
            for _ in range(together):
                group.start_soon(repeat, ATTEMPTS // together, cancelling, work, rng)
        with channel.replay(stop=None) as rx:
            await channel.seal()
            stored = [item async for item in rx]
    if durability == Durability.OS:
        assert stored == returned
    else:  # one flush publishes many messages, whose senders return in any order
        assert sorted(stored) == sorted(returned)
        assert len(set(stored)) == len(stored)


async def repeat(
    times: int, cancelling: Callable[..., Awaitable[None]], work: Callable[[], Awaitable[None]], rng: random.Random
) -> None:
    """Cancel the same work again and again."""
    for _ in range(times):
        await cancelling(work, rng, lambda: None)


# While a flush is on its way


async def test_a_send_that_took_effect_returns_although_its_scope_is_cancelled(path: Path, gate: Gate) -> None:
    """Under FSYNC a cancellation during the flush waits: the send returns, and the next checkpoint is cancelled."""
    steps = list[str]()
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:

        async def send() -> None:
            with scope:
                await tx.send(1)
                steps.append("sent")
                await anyio.sleep_forever()
            steps.append("cancelled")

        scope = anyio.CancelScope()
        with gate.closed():
            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await run_sync(gate.reached.wait)
                scope.cancel()
                for _ in range(10):
                    await checkpoint()
                assert steps == []
                assert rx.receive_many_nowait(1) == []
                gate.open()
        assert steps == ["sent", "cancelled"]
        assert scope.cancelled_caught
        assert await rx.receive() == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_a_send_that_took_effect_returns_although_its_task_is_cancelled(path: Path, gate: Gate) -> None:
    """A send that took effect returns, however often its task is cancelled with `Task.cancel()`."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        steps = list[str]()

        async def send() -> None:
            await tx.send(1)
            steps.append("sent")
            await asyncio.Event().wait()

        with gate.closed():
            task = asyncio.create_task(send())
            await run_sync(gate.reached.wait)
            for _ in range(5):
                task.cancel()
                await asyncio.sleep(0)
            assert not task.done()
        await asyncio.wait([task])
        assert task.cancelled()
        assert steps == ["sent"]
        assert await rx.receive() == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_a_send_that_took_effect_is_the_result_of_its_task(path: Path, gate: Gate) -> None:
    """A task that is nothing but a send ends normally if it was cancelled too late."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        with gate.closed():
            task = asyncio.create_task(tx.send(1))
            await run_sync(gate.reached.wait)
            task.cancel()
            await asyncio.sleep(0)
        assert await task is None
        assert await rx.receive() == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_a_timeout_that_came_too_late_leaves_nothing_behind(path: Path, gate: Gate) -> None:
    """After a send inside `asyncio.timeout` that returned although time was over, the task is not cancelled."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        task = asyncio.current_task()
        assert task is not None
        with gate.closed():
            async with asyncio.timeout(0.001) as timeout:
                asyncio.get_running_loop().call_later(0.01, gate.open)
                await tx.send(1)
        assert timeout.expired()
        assert task.cancelling() == 0
        for _ in range(10):
            await asyncio.sleep(0)
        assert channel.statistics().messages == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_a_timeout_that_came_too_late_is_noticed_by_the_next_send(path: Path, gate: Gate) -> None:
    """Inside one `asyncio.timeout` the send after the one that was too late raises, and sends nothing."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:

        async def send_two() -> None:
            async with asyncio.timeout(0.001):
                asyncio.get_running_loop().call_later(0.01, gate.open)
                await tx.send(1)
                await tx.send(2)

        with gate.closed(), pytest.raises(TimeoutError):
            await send_two()
        assert channel.statistics().messages == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_a_scope_and_a_task_cancelled_at_once(path: Path, gate: Gate) -> None:
    """Cancelled by a scope and by `Task.cancel()` during one flush, the task ends as cancelled."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        for order in ((0, 1), (1, 0)):
            scope = anyio.CancelScope()

            async def send(scope: anyio.CancelScope) -> None:
                with scope:
                    await tx.send(1)
                    await anyio.sleep_forever()
                await anyio.sleep_forever()

            with gate.closed():
                task = asyncio.create_task(send(scope))
                await run_sync(gate.reached.wait)
                actions = [scope.cancel, task.cancel]
                for which in order:
                    actions[which]()
                    await asyncio.sleep(0)
            async with asyncio.timeout(30):
                await asyncio.wait([task])
            assert task.cancelled()


async def test_a_loop_of_sends_under_fsync_can_be_cancelled(path: Path) -> None:
    """A task that does nothing but send under FSYNC ends with the message that was on its way when it was cancelled."""
    sent = list[int]()
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:

        async def send_on() -> None:
            while True:
                await tx.send(len(sent))
                sent.append(len(sent))

        async with anyio.create_task_group() as group:
            group.start_soon(send_on)
            while len(sent) < 5:
                await checkpoint()
            before = len(sent)
            group.cancel_scope.cancel()
        assert before <= len(sent) <= before + 1
        assert channel.statistics().messages == len(sent)


@pytest.mark.usefixtures("asyncio_only")
async def test_a_task_that_sends_on_under_fsync_can_be_cancelled(path: Path) -> None:
    """A task that sends in a loop under FSYNC can be cancelled with `Task.cancel()`."""
    sent = list[int]()
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:

        async def send_on() -> None:
            while True:
                await tx.send_many([len(sent)])
                sent.append(len(sent))

        task = asyncio.create_task(send_on())
        while len(sent) < 5:
            await checkpoint()
        before = len(sent)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert before <= len(sent) <= before + 1
        assert channel.statistics().messages == len(sent)


async def test_a_full_speed_loop_of_sends_can_be_cancelled(path: Path) -> None:
    """A task that does nothing but send or receive notices a deadline."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        with anyio.move_on_after(0.02):
            while True:
                await tx.send(1)
        with anyio.move_on_after(0.02):
            while True:
                await rx.receive()
                tx.send_nowait(2)


@pytest.mark.usefixtures("asyncio_only")
async def test_a_full_speed_loop_of_sends_can_be_timed_out(path: Path) -> None:
    """A task that does nothing but send or receive notices `asyncio.timeout`."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

        async def send_on() -> None:
            async with asyncio.timeout(0.02):
                while True:
                    await tx.send(1)

        async def receive_on() -> None:
            async with asyncio.timeout(0.02):
                while True:
                    await rx.receive()
                    tx.send_nowait(2)

        for forever in (send_on, receive_on):
            with pytest.raises(TimeoutError):
                await forever()


# Batches


async def test_a_cancelled_batch_did_not_happen(path: Path) -> None:
    """A large `send_many` that is cancelled in the middle of encoding sends nothing of its batch."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await tx.send_many(range(100_000))
        assert scope.cancelled_caught
        assert channel.statistics().messages == 0


async def test_a_cancelled_receive_many_took_nothing(path: Path) -> None:
    """A large `receive_many` that is cancelled in the middle takes nothing."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many_nowait(range(20_000))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await rx.receive_many(20_000)
        assert scope.cancelled_caught
        assert rx.read_offset == 0
        assert await rx.receive() == 0


# What starts a send or a receive


@pytest.mark.usefixtures("asyncio_only")
async def test_a_task_cancelled_before_its_first_step_did_nothing(path: Path) -> None:
    """`create_task(tx.send(x))` that is cancelled at once sends nothing, and the same for receive."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        task = asyncio.create_task(tx.send(1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert channel.statistics().messages == 0
        await tx.send(2)
        other = asyncio.create_task(rx.receive())
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        assert await rx.receive() == 2


async def test_start_soon_takes_the_methods(path: Path) -> None:
    """Anyio's `start_soon(tx.send, x)` and `start_soon(rx.receive)` work."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        async with anyio.create_task_group() as group:
            group.start_soon(rx.receive)
            group.start_soon(tx.send, 1)
            group.start_soon(tx.send_many, [2, 3])
        assert len(rx.receive_many_nowait(5)) == 2
        assert channel.statistics().messages == 3


@pytest.mark.usefixtures("trio_only")
async def test_a_nursery_takes_the_methods(path: Path) -> None:
    """Trio's `nursery.start_soon(tx.send, x)` and `start_soon(rx.receive)` work."""
    import trio

    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rx.receive)
            nursery.start_soon(tx.send, 1)
            nursery.start_soon(tx.send, 2)
        assert len(rx.receive_many_nowait(5)) == 1
        assert channel.statistics().messages == 2
        with trio.move_on_after(0.001) as scope:
            await rx.receive()
        assert scope.cancelled_caught


@pytest.mark.usefixtures("asyncio_only")
async def test_asyncio_takes_the_coroutines(path: Path) -> None:
    """Tasks, task groups, `wait_for`, `gather`, `wait`, `shield` and `as_completed` work with send and receive."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        receiving = asyncio.create_task(rx.receive())
        await asyncio.create_task(tx.send(1))
        assert await receiving == 1
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(rx.receive())
            group.create_task(tx.send(2))
        assert receiving.result() == 2
        await asyncio.wait_for(tx.send(3), 60)
        assert await asyncio.wait_for(rx.receive(), 60) == 3
        assert await asyncio.gather(tx.send(4), rx.receive(), rx.receive(), tx.send(5)) == [None, 4, 5, None]
        await asyncio.shield(tx.send(6))
        for future in asyncio.as_completed([rx.receive()]):
            assert await future == 6
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rx.receive(), 0.001)
        await tx.send(7)
        assert await asyncio.ensure_future(rx.receive()) == 7


@pytest.mark.usefixtures("asyncio_only")
@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks since 3.12")
async def test_eager_tasks_take_the_coroutines(path: Path) -> None:
    """An eager task sends at once, and a receive that has to wait continues as an ordinary task."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        loop = asyncio.get_running_loop()
        receiving = asyncio.Task(rx.receive(), loop=loop, eager_start=True)
        sending = asyncio.Task(tx.send(1), loop=loop, eager_start=True)
        assert sending.done()
        assert await receiving == 1


@pytest.mark.usefixtures("asyncio_only")
async def test_run_coroutine_threadsafe_takes_the_coroutines(path: Path) -> None:
    """Another thread may hand a send and a receive to the loop."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        loop = asyncio.get_running_loop()

        def elsewhere() -> int:
            asyncio.run_coroutine_threadsafe(tx.send(1), loop).result(60)
            return asyncio.run_coroutine_threadsafe(rx.receive(), loop).result(60)

        assert await run_sync(elsewhere) == 1


async def test_a_waiting_coroutine_can_be_closed(path: Path) -> None:
    """A coroutine that was never started can be closed without a warning, and has done nothing."""
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        sending, receiving = tx.send(1), rx.receive()
        sending.close()
        receiving.close()
        assert channel.statistics().messages == 0


async def test_many_waiting_receives_of_one_receiver(path: Path) -> None:
    """Several tasks may wait in one receiver; each message is delivered to one of them, and cancelling one stops no
    other.
    """
    got = list[int]()
    async with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:

        async def receive() -> None:
            got.append(await rx.receive())

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.001):
                await rx.receive()
            for number in range(10):
                await tx.send(number)
    assert sorted(got) == list(range(10))


async def test_a_send_waits_for_the_flush_of_another_thread(path: Path, gate: Gate) -> None:
    """Cancelling one of many senders that share a flush changes nothing for the others."""
    async with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        ended = list[int]()

        async def send(number: int, sender: Sender[int], scope: anyio.CancelScope) -> None:
            with scope:
                await sender.send(number)
            ended.append(number)

        scopes = [anyio.CancelScope() for _ in range(10)]
        with gate.closed():
            async with anyio.create_task_group() as group:
                for number, scope in enumerate(scopes):
                    group.start_soon(send, number, tx, scope)
                await run_sync(gate.reached.wait)
                for scope in scopes[::2]:
                    scope.cancel()
                await checkpoint()
                assert ended == []
                gate.open()
        assert sorted(ended) == list(range(10))
        assert channel.statistics().messages == 10
        assert threading.active_count() < 200
