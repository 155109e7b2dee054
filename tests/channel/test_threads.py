"""Threads: any of them may send, receive and close, at the same time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock

from filechannel import ChannelOptions, Durability, FanOutReceiver, FileChannel, Retention, Sender, open_channel

THREADS = 50


def opened(path: Path, options: ChannelOptions | None = None) -> FileChannel[tuple[int, int]]:
    """Open a channel without staying in an event loop."""

    async def open_() -> FileChannel[tuple[int, int]]:
        return await open_channel(path, tuple[int, int], options=options)

    return anyio.run(open_)


def all_at_once(*work: Callable[[], object]) -> None:
    """Run each in its own thread, started together; raise the first error."""
    together = threading.Barrier(len(work))

    def run(task: Callable[[], object]) -> None:
        together.wait()
        task()

    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(run, task) for task in work]:
            future.result()


def take_until_the_end(rx: FanOutReceiver[tuple[int, int]], into: list[tuple[int, int]]) -> None:
    """Receive without an event loop until the channel is sealed."""
    while True:
        try:
            into.append(rx.receive_nowait())
        except WouldBlock:
            time.sleep(0.0001)
        except EndOfStream:
            return


def check_order(items: list[tuple[int, int]]) -> None:
    """What one thread sent comes in the order in which it was sent."""
    last: dict[int, int] = defaultdict(lambda: -1)
    for who, number in items:
        assert number > last[who]
        last[who] = number


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=repr)
def test_fifty_threads_send_and_receive_at_once(path: Path, durability: Durability) -> None:
    """Senders and clones in fifty threads: each message arrives once, and each sender's in order."""
    options = ChannelOptions(segment_size=65536, durability=durability)
    each, half = 200, THREADS // 2
    with opened(path, options) as channel, channel.receiver() as rx, channel.receiver("other") as other:
        sent = threading.Barrier(half, action=lambda: anyio.run(channel.seal))

        def send(who: int) -> None:
            with channel.sender() as tx:
                for number in range(each):
                    tx.send_nowait((who, number))
            sent.wait()

        got: list[list[tuple[int, int]]] = [[] for _ in range(half)]
        work: list[Callable[[], object]] = [lambda who=who: send(who) for who in range(half)]
        work += [lambda into=into: take_until_the_end(rx, into) for into in got]
        all_at_once(*work)
        everything = sorted(item for items in got for item in items)
        assert everything == [(who, number) for who in range(half) for number in range(each)]
        for items in got:
            check_order(items)
        check_order(other.receive_many_nowait(10**6))


def test_threads_and_large_batches(path: Path) -> None:
    """Batches are not torn apart by other threads, and clones that take many at once take nothing twice."""
    options = ChannelOptions(segment_size=65536, retention=Retention(after_consumed="keep"))
    with opened(path, options) as channel, channel.receiver() as rx:
        sent = threading.Barrier(4, action=lambda: anyio.run(channel.seal))

        def send(who: int) -> None:
            with channel.sender() as tx:
                for batch in range(20):
                    tx.send_many_nowait([(who, batch * 300 + number) for number in range(300)])
            sent.wait()

        def receive(into: list[tuple[int, int]], many: int) -> None:
            async def work() -> None:
                with rx.clone() as clone:
                    try:
                        while True:
                            into.extend(await clone.receive_many(many))
                    except EndOfStream:
                        pass

            anyio.run(work)

        got: list[list[tuple[int, int]]] = [[] for _ in range(4)]
        work: list[Callable[[], object]] = [lambda who=who: send(who) for who in range(4)]
        sizes = (1, 100, 5000, 3000)
        work += [lambda into=into, many=many: receive(into, many) for into, many in zip(got, sizes, strict=True)]
        all_at_once(*work)
        assert sorted(item for items in got for item in items) == [
            (who, number) for who in range(4) for number in range(20 * 300)
        ]
        with channel.replay() as history:
            items = history.receive_many_nowait(10**6)
        batches = [items[first : first + 300] for first in range(0, len(items), 300)]
        assert all(len({who for who, _ in batch}) == 1 for batch in batches)


def test_event_loops_in_many_threads(path: Path) -> None:
    """Ten event loops in ten threads, each with its own name, all get everything in the same order."""
    with opened(path) as channel:
        ready = threading.Barrier(11)
        got: list[list[tuple[int, int]]] = [[] for _ in range(10)]

        def loop(name: int) -> None:
            async def work() -> None:
                async with channel.receiver(str(name)) as rx:
                    ready.wait()
                    got[name].extend([item async for item in rx])

            (anyio.run if name % 2 else trio_run)(work)

        def send() -> None:
            ready.wait()
            with channel.sender() as tx:
                for number in range(500):
                    tx.send_nowait((0, number))
                    if number % 50 == 0:
                        time.sleep(0.0005)  # let them fall asleep, to be woken again
            anyio.run(channel.seal)

        all_at_once(*[lambda name=name: loop(name) for name in range(10)], send)
        assert got == [[(0, number) for number in range(500)]] * 10


def trio_run(work: Callable[[], object]) -> None:
    """Run on trio."""
    anyio.run(work, backend="trio")  # type: ignore[arg-type]


def test_one_receiver_in_many_threads(path: Path) -> None:
    """One receiver object may be used by several threads at once."""
    with opened(path) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many_nowait([(0, number) for number in range(20_000)])
        anyio.run(channel.seal)
        got: list[list[tuple[int, int]]] = [[] for _ in range(8)]

        def take(into: list[tuple[int, int]]) -> None:
            while True:
                try:
                    into.extend(rx.receive_many_nowait(7))
                except EndOfStream:
                    return

        all_at_once(*[lambda into=into: take(into) for into in got])
        assert sorted(item for items in got for item in items) == [(0, number) for number in range(20_000)]


def send_until_closed(tx: Sender[tuple[int, int]], who: int, sent: list[tuple[int, int]]) -> None:
    """Send, and remember what was sent, until the sender is closed."""
    try:
        for number in range(10**9):
            tx.send_nowait((who, number))
            sent.append((who, number))
    except ClosedResourceError:
        pass


def receive_until_closed(rx: FanOutReceiver[tuple[int, int]], got: list[tuple[int, int]]) -> None:
    """Receive what is there until the receiver is closed."""
    try:
        while True:
            got.append(rx.receive_nowait())
    except (ClosedResourceError, WouldBlock):
        pass


def after(seconds: float, action: Callable[[], object]) -> Callable[[], object]:
    """Do something a little later, in the middle of what others do."""

    def later() -> None:
        time.sleep(seconds)
        action()

    return later


def test_closing_while_threads_send(path: Path) -> None:
    """Threads that send while the channel closes get `ClosedResourceError`, and messages that they reported as sent are
    stored.
    """
    for attempt in range(20):
        sent: list[tuple[int, int]] = []
        channel = opened(path / str(attempt))
        senders = [channel.sender() for _ in range(4)]
        sending = [partial(send_until_closed, tx, who, sent) for who, tx in enumerate(senders)]
        all_at_once(*sending, after(0.002, channel.close))
        with opened(path / str(attempt)) as channel, channel.replay(stop=None) as rx:
            assert sorted(rx.receive_many_nowait(10**9)) == sorted(sent)


def test_closing_while_threads_receive(path: Path) -> None:
    """Threads that receive while their receiver closes lose nothing, and nothing is received again afterwards."""
    total, got = 50_000, list[tuple[int, int]]()
    with opened(path) as channel, channel.sender() as tx:
        tx.send_many_nowait([(0, number) for number in range(total)])
        for attempt in range(30):
            rx = channel.receiver()
            receiving = partial(receive_until_closed, rx, got)
            all_at_once(receiving, receiving, receiving, after(0.0002 * (attempt % 3), rx.close))
        with channel.receiver() as rx:
            got.extend(rx.receive_many_nowait(total))
    assert sorted(got) == [(0, number) for number in range(total)]


def test_two_threads_close_the_same_things(path: Path) -> None:
    """Closing the same sender, receiver or channel in several threads at once is closing it once."""
    for attempt in range(20):
        channel = opened(path / str(attempt))
        tx, rx = channel.sender(), channel.receiver()
        clone = rx.clone()
        all_at_once(tx.close, tx.close, rx.close, rx.close, clone.close, clone.close, channel.close, channel.close)
        opened(path / str(attempt)).close()


def test_everything_at_once(path: Path) -> None:
    """Threads that send, receive, flush, look and clone while another one purges: no error, and order holds."""
    with opened(path, ChannelOptions(segment_size=16384)) as channel, channel.receiver("slow") as slow:
        done = threading.Event()

        def send() -> None:
            with channel.sender() as tx:
                for number in range(5000):
                    tx.send_nowait((0, number))
            done.set()

        def receive() -> None:
            items = list[tuple[int, int]]()
            with channel.receiver("fast") as rx:
                while not done.is_set():
                    items.extend(rx.receive_many_nowait(100))
                    time.sleep(0)
            check_order(items)

        def look() -> None:
            while not done.is_set():
                with slow.clone() as clone:
                    clone.peek(3)
                    clone.statistics()
                channel.statistics()

        def purge() -> None:
            while not done.is_set():
                anyio.run(channel.purge)
                anyio.run(channel.flush)

        all_at_once(send, receive, look, purge)
        check_order(slow.receive_many_nowait(10**6))


def test_a_loop_that_sends_beside_a_thread_that_purges(path: Path) -> None:
    """Purging in one thread never lets a send in an event loop fail."""
    with opened(path) as channel:

        async def send() -> None:
            async with channel.sender() as tx:
                for number in range(2000):
                    await tx.send((0, number))
                    await asyncio.sleep(0)

        stop = threading.Event()

        def purge() -> None:
            while not stop.is_set():
                anyio.run(channel.purge)

        def run() -> None:
            try:
                anyio.run(send)
            finally:
                stop.set()

        all_at_once(run, purge)
        assert channel.statistics().next_sequence == 2000


def test_purging_while_readers_are_opened_and_closed(path: Path) -> None:
    """A purge moves every consumer, however many readers other threads open and close at the same time."""
    channel = opened(path)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with channel:
            done = threading.Event()
            replays = [channel.replay(stop=None) for _ in range(500)]

            def open_and_close() -> None:
                while not done.is_set():
                    with replays[0].clone() as rx:
                        rx.peek()

            def purge() -> None:
                try:
                    for _ in range(50):
                        channel._purge()
                finally:
                    done.set()

            all_at_once(open_and_close, open_and_close, purge)
    finally:
        sys.setswitchinterval(before)
