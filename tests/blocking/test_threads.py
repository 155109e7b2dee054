"""Threads: fifty of them use async and blocking handles of one channel at once, and any method is for any thread."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
from anyio import EndOfStream, WouldBlock
from anyio.lowlevel import checkpoint

import filechannel
from filechannel import ChannelOptions, Durability
from filechannel.blocking import FileChannel, Receiver, open_channel
from tests.blocking.threads import all_at_once, until

Pair = tuple[int, int]
PAIR = tuple[int, int]


def check(got: list[list[Pair]], senders: int, each: int) -> None:
    """Everything came to one of the receivers, once, and what one sender sent came to each in order."""
    assert sorted(item for items in got for item in items) == [
        (who, number) for who in range(senders) for number in range(each)
    ]
    for items in got:
        last: dict[int, int] = defaultdict(lambda: -1)
        for who, number in items:
            assert number > last[who]
            last[who] = number


def receive_all(rx: Receiver[Pair], into: list[Pair], way: int) -> None:
    """Receive until the end, in one of several ways."""
    try:
        while True:
            if way == 0:
                into.append(rx.receive())
            elif way == 1:
                into.append(rx.receive_record().value)
            elif way == 2:
                into.extend(rx.receive_many(7))
            elif way == 3:
                into.extend(rx.receive_many(7, 0.001))
            else:
                into.extend(receive_or_none(partial(rx.receive, 0.001)))
    except EndOfStream:
        pass


def receive_or_none(receive: Callable[[], Pair]) -> list[Pair]:
    """Receive one message or nothing."""
    try:
        return [receive()]
    except TimeoutError:
        return []


def send_all(channel: FileChannel[Pair] | filechannel.FileChannel[Pair], who: int, each: int) -> None:
    """Send from this thread, in one of several ways."""
    if isinstance(channel, filechannel.FileChannel):
        anyio.run(send_all_in_a_loop, channel, who, each)
        return
    with channel.sender() as tx:
        for number in range(0, each, 2):
            if who % 3 == 0:
                tx.send((who, number))
                tx.send((who, number + 1), timeout=60)
            elif who % 3 == 1:
                tx.send_many([(who, number), (who, number + 1)])
            else:
                tx.send_nowait((who, number))
                tx.send_many_nowait([(who, number + 1)])


async def send_all_in_a_loop(channel: filechannel.FileChannel[Pair], who: int, each: int) -> None:
    """Send from an event loop of this thread."""
    async with channel.sender() as tx:
        for number in range(0, each, 2):
            await tx.send((who, number))
            await tx.send_many([(who, number + 1)])


async def receive_in_a_loop(rx: filechannel.FanOutReceiver[Pair], into: list[Pair]) -> None:
    """Receive in an event loop of this thread until the end."""
    with rx.clone() as clone:
        into.extend([item async for item in clone])


async def opened(path: Path) -> filechannel.FileChannel[Pair]:
    """Open a channel of the async kind."""
    return await filechannel.open_channel(path, PAIR)


def test_fifty_threads_with_handles_of_both_kinds(path: Path, durability: Durability) -> None:
    """Async and blocking senders and receivers in fifty threads lose, duplicate and reorder nothing."""
    each, senders = 100, 25
    options = ChannelOptions(durability=durability, segment_size=16384)
    with open_channel(path, PAIR, options=options) as channel, anyio.run(opened, path) as other:
        rx, async_rx, all_rx = channel.receiver("blocking"), other.receiver("async"), channel.receiver("all")
        sent = threading.Barrier(senders, action=channel.seal)
        got: list[list[Pair]] = [[] for _ in range(15)]
        in_loops: list[list[Pair]] = [[] for _ in range(10)]

        def send(who: int) -> None:
            send_all(other if who % 5 == 0 else channel, who, each)
            channel.flush()
            sent.wait(60)

        work: list[Callable[[], object]] = [partial(send, who) for who in range(senders)]
        work += [partial(receive_all, rx, into, way % 5) for way, into in enumerate(got)]
        work += [partial(anyio.run, receive_in_a_loop, async_rx, into) for into in in_loops]
        all_at_once(*work)
        check(got, senders, each)
        check(in_loops, senders, each)
        check([all_rx.receive_many(10**6)], senders, each)
        assert channel.statistics().waiters == 0


def test_clones_are_opened_and_closed_while_others_wait(path: Path) -> None:
    """Threads that clone, use and close receivers take no wakeup from threads that wait."""
    total = 2000
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        got: list[list[int]] = [[] for _ in range(8)]

        def receive(into: list[int]) -> None:
            try:
                while True:
                    with rx.clone() as clone:
                        into += clone.receive_many(3)
            except EndOfStream:
                pass

        def send() -> None:
            for number in range(total):
                tx.send(number)
            channel.seal()

        all_at_once(*[partial(receive, into) for into in got], send)
        assert sorted(number for items in got for number in items) == list(range(total))


def test_ping_pong_between_threads(path: Path) -> None:
    """Two threads wake each other thousands of times, and no wakeup is lost."""
    rounds = 3000
    with open_channel(path / "ping", int) as ping, open_channel(path / "pong", int) as pong:

        def play() -> None:
            with ping.sender() as tx, pong.receiver() as rx:
                for number in range(rounds):
                    tx.send(number)
                    assert rx.receive(timeout=60) == number + 1

        def play_back() -> None:
            with ping.receiver() as rx, pong.sender() as tx:
                for _ in range(rounds):
                    tx.send(rx.receive(timeout=60) + 1)

        all_at_once(play, play_back)


def test_closing_while_threads_wait_and_send(path: Path) -> None:
    """Closing channels ends every thread that waits, sends or receives with `ClosedResourceError`."""
    for attempt in range(20):
        channel = open_channel(path / str(attempt), int)
        tx, rx = channel.sender(), channel.receiver()
        sent: list[int] = []
        got: list[int] = []

        def send(tx: object = tx, sent: list[int] = sent) -> None:
            try:
                for number in range(10**9):
                    tx.send(number)  # type: ignore[attr-defined]
                    sent.append(number)
            except anyio.ClosedResourceError:
                pass

        def receive(rx: object = rx, got: list[int] = got) -> None:
            try:
                while True:
                    got.append(rx.receive())  # type: ignore[attr-defined]
            except anyio.ClosedResourceError:
                pass

        def close(channel: FileChannel[int] = channel, got: list[int] = got) -> None:
            until(lambda: len(got) > 20)
            channel.close()

        all_at_once(send, receive, receive, close)
        with open_channel(path / str(attempt), int) as channel, channel.replay() as history:
            stored = list(history)
        assert stored == sent or stored[:-1] == sent
        assert sorted(got) == stored[: len(got)]


def test_a_loop_is_not_kept_waiting_by_threads(path: Path) -> None:
    """`send_nowait` in an event loop beside sending threads either sends or raises."""
    with open_channel(path, PAIR, options=ChannelOptions(segment_size=4096)) as channel:
        done = threading.Event()

        def send(who: int) -> None:
            with channel.sender() as tx:
                number = 0
                while not done.is_set():
                    tx.send((who, number))
                    number += 1

        async def in_a_loop() -> None:
            async with await filechannel.open_channel(path, PAIR) as same, same.sender() as tx:
                sent = 0
                while sent < 500:
                    try:
                        tx.send_nowait((-1, sent))
                        sent += 1
                    except WouldBlock:
                        await checkpoint()
                done.set()

        all_at_once(partial(send, 0), partial(send, 1), partial(anyio.run, in_a_loop))
        with channel.replay() as history:
            assert [number for who, number in history if who == -1] == list(range(500))
