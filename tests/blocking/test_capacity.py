"""Waiting for capacity in threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from anyio import ClosedResourceError, WouldBlock

from filechannel import Capacity, ChannelFullError, ChannelOptions, Durability
from filechannel.blocking import FileChannel, open_channel
from tests.processes.workers import until

SOON = 60.0


@pytest.fixture(params=[Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def channel(path: Path, request: pytest.FixtureRequest) -> Iterator[FileChannel[int]]:
    """A channel for four messages, which has four."""
    options = ChannelOptions(capacity=Capacity(max_messages=4), durability=request.param, segment_size=4096)
    with open_channel(path, int, options=options) as channel:
        with channel.receiver(), channel.sender() as tx:
            tx.send_many([0, 1, 2, 3])
        yield channel


def waiting(channel: FileChannel[int]) -> int:
    """Return how many senders wait for capacity."""
    room = channel.statistics().room
    assert room is not None
    return room.waiting_senders


def test_a_timeout_sends_nothing(channel: FileChannel[int]) -> None:
    """A send that times out sends neither a message nor a batch, and leaves no sender in the send queue."""
    with channel.sender() as tx, channel.receiver() as rx:
        with pytest.raises(TimeoutError, match="full"):
            tx.send(4, 0.01)
        with pytest.raises(TimeoutError, match="full"):
            tx.send_many([4, 5], 0)
        assert waiting(channel) == 0
        assert rx.receive_many(10) == [0, 1, 2, 3]
        tx.send(4, 0)
        assert rx.receive_many(10) == [4]


def test_nowait_never_waits(channel: FileChannel[int]) -> None:
    """`send_nowait` to a full channel raises at once."""
    with channel.sender() as tx:
        with pytest.raises(WouldBlock):
            tx.send_nowait(4)
        with pytest.raises(ChannelFullError):
            tx.send_many_nowait([4])


def test_threads_are_served_in_order(channel: FileChannel[int]) -> None:
    """Each thread waits until it is the first in the send queue, the last one with a timeout that does not expire."""
    with channel.sender() as tx, channel.receiver() as rx, ThreadPoolExecutor(8) as threads:
        for number in range(8):
            threads.submit(tx.send, 4 + number, SOON if number == 7 else None)
            until(lambda number=number: waiting(channel) == number + 1)
        assert [rx.receive(SOON) for _ in range(12)] == list(range(12))


def test_a_sender_that_timed_out_lets_the_next_one_send(channel: FileChannel[int]) -> None:
    """When the first sender in the queue times out with a batch that did not fit, the next one sends."""
    with channel.sender() as tx, channel.receiver() as rx, ThreadPoolExecutor(2) as threads:
        batch = threads.submit(tx.send_many, [10, 11], 0.3)
        until(lambda: waiting(channel) == 1)
        single = threads.submit(tx.send, 4)
        until(lambda: waiting(channel) == 2)
        assert rx.receive(SOON) == 0
        with pytest.raises(TimeoutError):
            batch.result(SOON)
        single.result(SOON)
        assert rx.receive_many(10) == [1, 2, 3, 4]


def test_a_sender_that_is_closed_waits_no_longer(channel: FileChannel[int]) -> None:
    """Closing ends the wait of the first sender in the queue and of the one behind it."""
    tx = channel.sender()
    with ThreadPoolExecutor(2) as threads:
        sends = [threads.submit(tx.send, 4), threads.submit(tx.send, 5)]
        until(lambda: waiting(channel) == 2)
        tx.close()
        for send in sends:
            with pytest.raises(ClosedResourceError):
                send.result(SOON)


def test_many_threads_share_a_small_capacity(channel: FileChannel[int]) -> None:
    """Senders and receivers in many threads lose, duplicate and reorder nothing, and the backlog never exceeds the
    capacity.
    """
    threads, each = 6, 60
    with channel.sender() as tx, channel.receiver() as rx:
        assert rx.receive_many(10) == [0, 1, 2, 3]

        def send(first: int) -> None:
            for number in range(first, first + each):
                tx.send(number)

        senders = [threading.Thread(target=send, args=(1000 * (n + 1),)) for n in range(threads)]
        for sender in senders:
            sender.start()
        got = list[int]()
        while len(got) < threads * each:
            room = channel.statistics().room
            assert room is not None
            assert room.messages <= 4
            got.append(rx.receive(SOON))
        for sender in senders:
            sender.join(SOON)
    for n in range(1, threads + 1):
        assert [number for number in got if number // 1000 == n] == list(range(1000 * n, 1000 * n + each))
