"""A channel with a capacity that several processes share: the limit is exact, and nobody is left waiting."""

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
from filechannel._format.layout import ROOM_TURN
from tests.backends import BACKENDS
from tests.processes.crew import Crew, until
from tests.processes.ledger import Ledger
from tests.processes.senders import (
    append_and_stay,
    count_received_and_missed,
    send_in_batches,
    send_numbers,
    send_numbers_from_a_thread,
    send_one_batch,
    send_small_for_ever,
    stand_in_line,
    stand_in_line_with_a_batch,
    take_when_told,
)

SOON = 60.0


def limited(capacity: Capacity, durability: Durability = Durability.OS) -> ChannelOptions:
    """Return options with a capacity and small segments."""
    return ChannelOptions(capacity=capacity, durability=durability, segment_size=4096)


@pytest.mark.parametrize("backend", [*BACKENDS, "thread"])
def test_a_sender_wakes_when_a_consumer_of_another_process_moves_on(crew: Crew, path: Path, backend: str) -> None:
    """Every time, although nobody looks again who was not woken; from an event loop and from a thread."""
    task = send_numbers_from_a_thread if backend == "thread" else send_numbers
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx:
            child = crew.start(task, path, 0, 300, backend="asyncio" if backend == "thread" else backend)
            child.meet()
            child.tell("go")
            assert [rx.receive(SOON) for _ in range(300)] == list(range(300))
            child.result()


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_loop_that_takes_wakes_senders_of_other_processes(crew: Crew, path: Path, backend: str) -> None:
    """Some in event loops, some in threads; each message is taken once."""
    senders, count = 4, 100

    async def run() -> None:
        async with open_channel(path, int, options=limited(Capacity(max_messages=2))) as channel:
            with channel.receiver() as rx:
                children = [
                    crew.start(send_numbers if number % 2 else send_numbers_from_a_thread, path, number * count, count)
                    for number in range(senders)
                ]
                for child in children:
                    child.meet()
                for child in children:
                    child.tell("go")
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
    crew: Crew, path: Path, capacity: Capacity, durability: Durability, rng: random.Random
) -> None:
    """At no moment is more unconsumed than the capacity says, and every message arrives whole and in order."""
    writers, total = 8, 60 if capacity.max_messages else 300
    ledger = Ledger()
    with blocking.open_channel(path, bytes, options=limited(capacity, durability)) as channel:
        with channel.receiver() as rx:
            children = [crew.start(send_in_batches, path, n, total, rng.randrange(1 << 32)) for n in range(writers)]
            for child in children:
                child.meet()
            for child in children:
                child.tell("go")
            while ledger.total < writers * total:
                room = channel.statistics().room
                assert room is not None
                assert room.messages <= (room.max_messages or room.messages)
                assert room.bytes <= (room.max_bytes or room.bytes)
                for payload in rx.receive_many(rng.choice([1, 1, 2, 100]), timeout=SOON):
                    ledger.add(payload)
            for child in children:
                child.result()
    assert ledger.counts == dict.fromkeys(range(writers), total)


def test_a_killed_sender_leaves_nobody_waiting(crew: Crew, path: Path) -> None:
    """It stood first in line, with the turn; those behind it in other processes are served within seconds."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send(0)
            first = crew.start(stand_in_line, path, 1)
            first.meet()
            second = crew.start(stand_in_line, path, 2)
            second.meet()
            first.kill()
            assert rx.receive(SOON) == 0
            assert rx.receive(SOON) == 2
            second.result()


def test_senders_killed_at_random_leave_room_and_order(crew: Crew, path: Path, rng: random.Random) -> None:
    """Each of them is killed somewhere between two sends, in one, or in line; the others go on within the limit."""
    ledger, alive = Ledger(), []
    with blocking.open_channel(path, bytes, options=limited(Capacity(max_messages=6))) as channel:
        with channel.receiver() as rx:
            for writer in range(12):
                child = crew.start(send_in_batches, path, writer, 1 << 30, rng.randrange(1 << 32))
                child.meet()
                child.tell("go")
                alive.append(child)
                if len(alive) > 3:
                    alive.pop(rng.randrange(4)).kill()
                for _ in range(rng.randrange(20, 60)):
                    room = channel.statistics().room
                    assert room is not None
                    assert room.messages <= 6
                    ledger.add(rx.receive(SOON))
            for child in alive:
                child.kill()
            for payload in rx.receive_many_nowait(10):
                ledger.add(payload)
            with channel.sender() as tx:
                tx.send_many([b""] * 6, SOON)
    assert len(ledger.counts) > 4  # some are killed before their first turn


def test_a_stopped_sender_holds_nobody_up_for_long(crew: Crew, path: Path) -> None:
    """It stood first in line; when there is room and it does not come, others are served, and later it is."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send(0)
            first = crew.start(stand_in_line, path, 1)
            first.meet()
            first.stop()
            second = crew.start(stand_in_line, path, 2)
            second.meet()
            assert rx.receive(SOON) == 0
            assert rx.receive(SOON) == 2
            tx.send(3, SOON)
            second.result()
            first.go_on()
            assert [rx.receive(SOON), rx.receive(SOON)] == [3, 1]
            first.result()


def test_a_stopped_sender_that_wants_more_than_there_can_be_is_passed_over(crew: Crew, path: Path) -> None:
    """It has the turn, with a batch that never fits since the capacity is another one."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=8))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send_many([0] * 4)
            first = crew.start(stand_in_line_with_a_batch, path, 8)
            first.meet()
            first.stop()
            channel.configure(capacity=Capacity(max_messages=4))
            assert rx.receive(SOON) == 0
            tx.send(1, SOON)
            assert [rx.receive(SOON) for _ in range(4)] == [0, 0, 0, 1]
            first.go_on()
            first.result()


def test_a_stopped_sender_does_not_inherit_what_another_has_waited_for(crew: Crew, path: Path) -> None:
    """Its turn comes when the one before it, which wanted much, has left; it wants little, and is passed over soon."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=4))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send_many([0] * 4)
            with ThreadPoolExecutor(1) as threads, channel.sender() as other:
                large = threads.submit(other.send_many, [-1] * 4)
                until(lambda: load_u32(channel._store.control.map, ROOM_TURN))
                small = crew.start(stand_in_line, path, 1)
                small.meet()
                small.stop()
                other.close()
                with pytest.raises(ClosedResourceError):
                    large.result()
            assert rx.receive(SOON) == 0
            tx.send(2, SOON)
            small.go_on()
            assert [rx.receive(SOON) for _ in range(5)] == [0, 0, 0, 2, 1]
            small.result()


@pytest.mark.parametrize("kind", ["wait", "raise"])
def test_what_a_killed_sender_has_not_flushed_keeps_nobody_out(crew: Crew, path: Path, kind: str) -> None:
    """It takes the room, and nobody can consume it before it is flushed: whoever finds no room sees to that."""
    options = limited(Capacity(max_messages=4, on_full=kind), Durability.FSYNC)  # type: ignore[arg-type]
    with blocking.open_channel(path, int, options=options) as channel, channel.receiver() as rx:
        child = crew.start(append_and_stay, path, 4)
        child.meet()
        child.kill()
        with channel.sender() as tx:
            with pytest.raises(ChannelFullError):
                tx.send_nowait(4)
            assert [rx.receive(SOON) for _ in range(4)] == [0, 1, 2, 3]
            tx.send(4, SOON)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_killed_sender_has_not_flushed_can_be_dropped(crew: Crew, path: Path, backend: str) -> None:
    """Not before it is flushed; an event loop, which may not wait for that, has it done elsewhere."""
    options = limited(Capacity(max_messages=4, on_full="drop_oldest"), Durability.FSYNC)
    with blocking.open_channel(path, int, options=options) as channel:
        child = crew.start(append_and_stay, path, 4)
        child.meet()
        child.kill()
        sender = crew.start(send_numbers, path, 4, 1, backend=backend)
        sender.meet()
        sender.tell("go")
        sender.result()
        with channel.replay() as replay:
            assert replay.receive_many_nowait(9)[-1] == 4


def test_a_killed_consumer_keeps_its_place_and_its_successor_makes_room(crew: Crew, path: Path) -> None:
    """What it had taken is taken, and senders wait for whoever takes the name over."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=3))) as channel:
        consumer = crew.start(take_when_told, path, "default")
        consumer.meet()
        with channel.sender() as tx:
            tx.send_many([0, 1, 2])
            consumer.tell(2)
            assert consumer.hear() == [0, 1]
            tx.send_many([3, 4], SOON)
            consumer.kill()
            with pytest.raises(TimeoutError, match="full"):
                tx.send(5, 0.05)
            sender = crew.start(stand_in_line, path, 5)
            sender.meet()
            with channel.receiver() as rx:
                assert [rx.receive(SOON) for _ in range(4)] == [2, 3, 4, 5]
            sender.result()


def test_a_large_batch_is_not_starved_by_another_process(crew: Crew, path: Path) -> None:
    """Others send small messages as fast as there is room; the batch gets its turn after a few of them."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=40))) as channel:
        with channel.receiver() as rx:
            small = [crew.start(send_small_for_ever, path) for _ in range(2)]
            batch = crew.start(send_one_batch, path, 40)
            for child in (*small, batch):
                child.meet()
            for child in small:
                child.tell("go")
            while channel.statistics().room.messages < 40:  # type: ignore[union-attr]
                pass
            batch.tell("go")
            got = list[int]()
            while -1 not in got:
                got.append(rx.receive(SOON))
                assert len(got) < 100_000  # it takes the other process a while to get there
            assert [rx.receive(SOON) for _ in range(39)] == [-1] * 39
            batch.result()


@pytest.mark.parametrize("meanwhile", [False, True])
def test_consumers_of_other_processes_are_told_what_they_missed(crew: Crew, path: Path, meanwhile: bool) -> None:
    """Whatever is dropped under them by whoever sends: what came and what was missed is all there was."""
    senders, count = 2, 2000
    capacity = Capacity(max_messages=50, on_full="drop_oldest")
    with blocking.open_channel(path, int, options=limited(capacity)) as channel:
        consumers = [crew.start(count_received_and_missed, path, name) for name in ("a", "b")]
        children = [crew.start(send_numbers, path, number * count, count) for number in range(senders)]
        for child in (*consumers, *children):
            child.meet()
        for child in (*consumers, *children) if meanwhile else children:
            child.tell("go")
        for child in children:
            child.result()
        for child in () if meanwhile else consumers:
            child.tell("go")
        channel.seal()
        for child in consumers:
            received, missed = child.result()
            assert received + missed == senders * count
            assert missed > 0 or meanwhile
        room = channel.statistics().room
        assert room is not None
        assert room.messages <= 50


def test_another_capacity_takes_effect_everywhere(crew: Crew, path: Path) -> None:
    """A sender of another process that waits goes on by what the channel says now."""
    with blocking.open_channel(path, int, options=limited(Capacity(max_messages=1))) as channel:
        with channel.receiver() as rx, channel.sender() as tx:
            tx.send(0)
            child = crew.start(send_numbers, path, 1, 3)
            child.meet()
            child.tell("go")
            channel.configure(capacity=Capacity(max_messages=4))
            child.result()
            with pytest.raises(TimeoutError):
                tx.send(9, 0.01)
            assert rx.receive_many(10) == [0, 1, 2, 3]
