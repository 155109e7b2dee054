"""A channel with a capacity that several processes share: the limit is exact, and no sender waits for ever."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError

from filechannel import (
    Capacity,
    ChannelFullError,
    ChannelOptions,
    Durability,
    blocking,
    open_channel,
)
from filechannel._format import load_u32
from filechannel._format.layout import CAPACITY_TURN
from tests.backends import BACKENDS
from tests.processes.order_checker import OrderChecker
from tests.processes.senders import (
    append_and_stay,
    count_received_and_missed,
    receive_on_request,
    send_in_batches,
    send_numbers,
    send_numbers_from_a_thread,
    send_one_batch,
    send_small_for_ever,
    set_waiting,
    wait_with_a_batch,
)
from tests.processes.workers import Workers, until

SOON = 60.0


def limited(capacity: Capacity, durability: Durability = Durability.OS) -> ChannelOptions:
    """Return options with a capacity and small segments."""
    return ChannelOptions(capacity=capacity, durability=durability, segment_size=4096)


@pytest.mark.parametrize("backend", [*BACKENDS, "thread"])
def test_a_sender_wakes_when_a_consumer_of_another_process_moves_on(workers: Workers, path: Path, backend: str) -> None:
    """Each ack or receive wakes a sender of another process that waits for capacity, in an event loop or a thread."""
    task = send_numbers_from_a_thread if backend == "thread" else send_numbers
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx:
            child = workers.start(task, path, 0, 300, backend="asyncio" if backend == "thread" else backend)
            child.meet()
            child.send("go")
            assert [rx.receive(SOON) for _ in range(300)] == list(range(300))
            child.result()


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_loop_that_takes_wakes_senders_of_other_processes(workers: Workers, path: Path, backend: str) -> None:
    """An event loop that receives wakes senders of other processes, and each message is received once."""
    senders, count = 4, 100

    async def run() -> None:
        async with open_channel(path, int, options=limited(Capacity(max_messages=2))) as channel:
            with channel.receiver() as rx:
                children = [
                    workers.start(
                        send_numbers if number % 2 else send_numbers_from_a_thread, path, number * count, count
                    )
                    for number in range(senders)
                ]
                for child in children:
                    child.meet()
                for child in children:
                    child.send("go")
                with anyio.fail_after(SOON):
                    got = [await rx.receive() for _ in range(senders * count)]
        assert sorted(got) == list(range(senders * count))
        for child in children:
            child.result()

    name, options = BACKENDS[backend]
    anyio.run(run, backend=name, backend_options=options)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
@pytest.mark.parametrize("capacity", [Capacity(max_messages=5), Capacity(max_bytes=16384)])
def test_eight_writers_keep_the_limit(
    workers: Workers, path: Path, capacity: Capacity, durability: Durability, rng: random.Random
) -> None:
    """With eight writers the backlog never exceeds the capacity, and messages arrive whole and in order."""
    writers, total = 8, 60 if capacity.max_messages else 300
    checker = OrderChecker()
    with blocking.open_channel(path, bytes, options=limited(capacity, durability)) as channel:
        with channel.receiver() as rx:
            children = [workers.start(send_in_batches, path, n, total, rng.randrange(1 << 32)) for n in range(writers)]
            for child in children:
                child.meet()
            for child in children:
                child.send("go")
            while checker.total < writers * total:
                room = channel.statistics().room
                assert room is not None
                assert room.messages <= (room.max_messages or room.messages)
                assert room.bytes <= (room.max_bytes or room.bytes)
                for payload in rx.receive_many(rng.choice([1, 1, 2, 100]), timeout=SOON):
                    checker.add(payload)
            for child in children:
                child.result()
    assert checker.counts == dict.fromkeys(range(writers), total)


def test_a_killed_sender_leaves_no_sender_waiting(workers: Workers, path: Path) -> None:
    """If the first sender in the queue, and first process, is killed, senders of other processes continue within
    seconds.
    """
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send(0)
            first = workers.start(set_waiting, path, 1)
            first.meet()
            second = workers.start(set_waiting, path, 2)
            second.meet()
            first.kill()
            assert rx.receive(SOON) == 0
            assert rx.receive(SOON) == 2
            second.result()


def test_senders_killed_at_random_leave_capacity_and_order(workers: Workers, path: Path, rng: random.Random) -> None:
    """Senders that are killed at random leave the others sending within the capacity, in order."""
    checker, alive = OrderChecker(), []
    with blocking.open_channel(path, bytes, options=limited(Capacity(max_messages=6))) as channel:
        with channel.receiver() as rx:
            for writer in range(12):
                child = workers.start(send_in_batches, path, writer, 1 << 30, rng.randrange(1 << 32))
                child.meet()
                child.send("go")
                alive.append(child)
                if len(alive) > 3:
                    alive.pop(rng.randrange(4)).kill()
                for _ in range(rng.randrange(20, 60)):
                    room = channel.statistics().room
                    assert room is not None
                    assert room.messages <= 6
                    checker.add(rx.receive(SOON))
            for child in alive:
                child.kill()
            for payload in rx.receive_many_nowait(10):
                checker.add(payload)
            with channel.sender() as tx:
                tx.send_many([b""] * 6, SOON)
    assert len(checker.counts) > 4  # some are killed before their first send


def test_a_stopped_sender_delays_no_other_for_long(workers: Workers, path: Path) -> None:
    """While the first sender is stopped others are served, and it is served when it resumes."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send(0)
            first = workers.start(set_waiting, path, 1)
            first.meet()
            first.stop()
            second = workers.start(set_waiting, path, 2)
            second.meet()
            assert rx.receive(SOON) == 0
            assert rx.receive(SOON) == 2
            tx.send(3, SOON)
            second.result()
            first.resume()
            assert [rx.receive(SOON), rx.receive(SOON)] == [3, 1]
            first.result()


def test_a_stopped_sender_whose_batch_can_never_fit_is_skipped(workers: Workers, path: Path) -> None:
    """A stopped sender whose batch never fits after a change of the capacity is skipped."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=8))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send_many([0] * 4)
            first = workers.start(wait_with_a_batch, path, 8)
            first.meet()
            first.stop()
            channel.configure(capacity=Capacity(max_messages=4))
            assert rx.receive(SOON) == 0
            tx.send(1, SOON)
            assert [rx.receive(SOON) for _ in range(4)] == [0, 0, 0, 1]
            first.resume()
            first.result()


def test_a_stopped_sender_does_not_inherit_what_another_has_waited_for(workers: Workers, path: Path) -> None:
    """A stopped sender that becomes the first is skipped soon, whatever the sender before it waited for."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=4))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send_many([0] * 4)
            with ThreadPoolExecutor(1) as threads, channel.sender() as other:
                large = threads.submit(other.send_many, [-1] * 4)
                until(lambda: load_u32(channel._store.control.map, CAPACITY_TURN))
                small = workers.start(set_waiting, path, 1)
                small.meet()
                small.stop()
                other.close()
                with pytest.raises(ClosedResourceError):
                    large.result()
            assert rx.receive(SOON) == 0
            tx.send(2, SOON)
            small.resume()
            assert [rx.receive(SOON) for _ in range(5)] == [0, 0, 0, 2, 1]
            small.result()


@pytest.mark.parametrize("kind", ["wait", "raise"])
def test_what_a_killed_sender_has_not_flushed_blocks_no_sender(workers: Workers, path: Path, kind: str) -> None:
    """A sender without capacity flushes what a killed sender left, so that consumers can read it."""
    options = limited(Capacity(max_messages=4, on_full=kind), Durability.FSYNC)  # type: ignore[arg-type]
    with blocking.open_channel(path, int, options=options) as channel, channel.receiver() as rx:
        child = workers.start(append_and_stay, path, 4)
        child.meet()
        child.kill()
        with channel.sender() as tx:
            with pytest.raises(ChannelFullError):
                tx.send_nowait(4)
            assert [rx.receive(SOON) for _ in range(4)] == [0, 1, 2, 3]
            tx.send(4, SOON)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_killed_sender_has_not_flushed_can_be_dropped(workers: Workers, path: Path, backend: str) -> None:
    """What a killed sender left is flushed before it is dropped, in a thread if the sender runs in an event loop."""
    options = limited(Capacity(max_messages=4, on_full="drop_oldest"), Durability.FSYNC)
    with blocking.open_channel(path, int, options=options) as channel:
        child = workers.start(append_and_stay, path, 4)
        child.meet()
        child.kill()
        sender = workers.start(send_numbers, path, 4, 1, backend=backend)
        sender.meet()
        sender.send("go")
        sender.result()
        with channel.replay() as replay:
            assert replay.receive_many_nowait(9)[-1] == 4


def test_a_killed_consumer_keeps_its_position_and_its_successor_frees_capacity(workers: Workers, path: Path) -> None:
    """What a killed consumer received stays consumed, and senders wait for the next owner of its name."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=3))) as channel:
        consumer = workers.start(receive_on_request, path, "default")
        consumer.meet()
        with channel.sender() as tx:
            tx.send_many([0, 1, 2])
            consumer.send(2)
            assert consumer.receive() == [0, 1]
            tx.send_many([3, 4], SOON)
            consumer.kill()
            with pytest.raises(TimeoutError, match="full"):
                tx.send(5, 0.05)
            sender = workers.start(set_waiting, path, 5)
            sender.meet()
            with channel.receiver() as rx:
                assert [rx.receive(SOON) for _ in range(4)] == [2, 3, 4, 5]
            sender.result()


def test_a_large_batch_is_not_starved_by_another_process(workers: Workers, path: Path) -> None:
    """A large batch is sent after a few of the small messages that another process sends without pause."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=40))) as channel:
        with channel.receiver() as rx:
            small = [workers.start(send_small_for_ever, path) for _ in range(2)]
            batch = workers.start(send_one_batch, path, 40)
            for child in (*small, batch):
                child.meet()
            for child in small:
                child.send("go")
            while channel.statistics().room.messages < 40:  # type: ignore[union-attr]
                pass
            batch.send("go")
            got = list[int]()
            while -1 not in got:
                got.append(rx.receive(SOON))
                assert len(got) < 100_000  # it takes the other process a while to get there
            assert [rx.receive(SOON) for _ in range(39)] == [-1] * 39
            batch.result()


@pytest.mark.parametrize("meanwhile", [False, True])
def test_consumers_of_other_processes_learn_what_they_missed(workers: Workers, path: Path, meanwhile: bool) -> None:
    """Whichever sender drops messages, received and missed ones add up for consumers of other processes."""
    senders, count = 2, 2000
    capacity = Capacity(max_messages=50, on_full="drop_oldest")
    with blocking.open_channel(path, int, options=limited(capacity)) as channel:
        consumers = [workers.start(count_received_and_missed, path, name) for name in ("a", "b")]
        children = [workers.start(send_numbers, path, number * count, count) for number in range(senders)]
        for child in (*consumers, *children):
            child.meet()
        for child in (*consumers, *children) if meanwhile else children:
            child.send("go")
        for child in children:
            child.result()
        for child in () if meanwhile else consumers:
            child.send("go")
        channel.seal()
        for child in consumers:
            received, missed = child.result()
            assert received + missed == senders * count
            assert missed > 0 or meanwhile
        room = channel.statistics().room
        assert room is not None
        assert room.messages <= 50


def test_another_capacity_takes_effect_everywhere(workers: Workers, path: Path) -> None:
    """A new capacity takes effect in a waiting sender of another process."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send(0)
            child = workers.start(send_numbers, path, 1, 3)
            child.meet()
            child.send("go")
            channel.configure(capacity=Capacity(max_messages=4))
            child.result()
            with pytest.raises(TimeoutError):
                tx.send(9, 0.01)
            assert rx.receive_many(10) == [0, 1, 2, 3]
