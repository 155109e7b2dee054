"""Acknowledging without async: the same receiver, with threads that wait."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock

from filechannel import AckError, ChannelOptions, ConsumerBusyError
from filechannel._wakeup import waiters
from filechannel.blocking import Acknowledgable, AckReceiver, FileChannel, open_channel
from tests.blocking.children import running
from tests.blocking.threads import all_at_once, in_thread, until

WAYS: dict[str, Callable[[AckReceiver[int]], object]] = {
    "receive": lambda rx: rx.receive(),
    "receive with a timeout": lambda rx: rx.receive(timeout=60),
    "receive_record": lambda rx: rx.receive_record().value,
    "receive_many": lambda rx: rx.receive_many(1)[0],
    "receive_many with linger": lambda rx: rx.receive_many(1, 0.001, timeout=60)[0],
    "next": lambda rx: next(rx),
    "receive_delivery": lambda rx: rx.receive_delivery().value,
    "receive_delivery with a timeout": lambda rx: rx.receive_delivery(timeout=60).value,
    "deliveries": lambda rx: next(rx.deliveries()).value,
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
each_waiting = pytest.mark.parametrize("polls", [False, True], ids=["futex", "polling"])


def test_acks_and_nacks_are_those_of_the_async_receiver(channel: FileChannel[int]) -> None:
    """An `AckReceiver` for threads has the order, counts, errors and redeliveries of the async one, also after
    reopening.
    """
    with channel.sender() as tx:
        tx.send_many(range(10))
    with channel.ack_receiver() as rx:
        acks: Acknowledgable = rx
        assert acks.unack_count == 0
        assert [way(rx) for way in WAYS.values()] == list(range(9))
        rx.ack(3)
        rx.nack(2)
        assert (rx.unack_count, rx.peek(3)) == (4, [7, 8, 9])
        with pytest.raises(AckError):
            rx.ack(5)
        with pytest.raises(ConsumerBusyError):
            channel.receiver()
    with channel.ack_receiver() as rx:
        assert rx.receive_many(10) == list(range(3, 10))
        rx.seek(channel.offset_of(5))
        assert (rx.unack_count, rx.receive()) == (2, 5)
        rx.unsubscribe()
        with pytest.raises(ClosedResourceError):
            rx.ack()


@each_way
@each_waiting
def test_a_thread_that_waits_is_woken_by_a_nack(
    path: Path, way: Callable[[AckReceiver[int]], object], polls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nack wakes a waiting thread at once, and a delayed nack wakes it when the delay is over."""
    monkeypatch.setattr(waiters, "POLL", polls)
    with open_channel(path, int) as channel, channel.sender() as tx, channel.ack_receiver() as rx:
        tx.send(7)
        for delay in (0, 0.01):
            delivery = rx.receive_delivery()
            with in_thread(partial(way, rx)) as receiving:
                until(lambda: channel.statistics().waiters == 1)
                delivery.nack(delay)
                assert receiving.result(60) == 7
            rx.nack()


@each_way
def test_a_delay_that_was_said_before_ends_too(path: Path, way: Callable[[AckReceiver[int]], object]) -> None:
    """A thread that begins to wait after a delayed nack gets the message when it is due."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.ack_receiver() as rx:
        tx.send_many([7, 8])
        rx.receive_delivery().nack(0.01)
        assert rx.receive() == 8
        assert way(rx) == 7


def test_a_thread_that_waits_for_a_long_delay_is_woken_for_a_short_one(path: Path) -> None:
    """A nack with a short delay, or a new message, wakes a thread that waits for a message with a long delay."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.ack_receiver() as rx:
        tx.send_many([1, 2])
        first, second = rx.receive_delivery(), rx.receive_delivery()
        first.nack(1000)
        with in_thread(rx.receive) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            second.nack(0.001)
            assert receiving.result(60) == 2
        with in_thread(rx.receive) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            tx.send(3)
            assert receiving.result(60) == 3


def test_a_timeout_counts_while_something_is_delayed(path: Path) -> None:
    """A receive that times out while a message is delayed takes nothing."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.ack_receiver() as rx:
        tx.send(1)
        rx.receive_delivery().nack(1000)
        for way in (rx.receive, rx.receive_delivery, rx.receive_record, partial(rx.receive_many, 5)):
            for timeout in (0, 0.01):
                with pytest.raises(TimeoutError):
                    way(timeout=timeout)
        with pytest.raises(TimeoutError), rx.processing(timeout=0):
            raise AssertionError
        assert rx.unack_count == 0


def test_the_end_comes_when_everything_is_acked(path: Path) -> None:
    """The last ack of a sealed channel ends the stream for a thread that waits."""
    with open_channel(path, int) as channel, channel.ack_receiver() as rx:
        with channel.sender() as tx:
            tx.send_many([1, 2])
        channel.seal()
        assert rx.receive_many(5) == [1, 2]
        with pytest.raises(WouldBlock):
            rx.receive_nowait()
        with in_thread(rx.receive) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            rx.ack(2)
            with pytest.raises(EndOfStream):
                receiving.result(60)
        assert list(rx) == list(rx.deliveries()) == []


def test_processing_acks_or_nacks(path: Path) -> None:
    """Success acks, an error nacks, and Ctrl-C does not count as an attempt."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.ack_receiver() as rx:
        tx.send_many([1, 2])
        with rx.processing() as item:
            assert item == 1
        for error in (LookupError, KeyboardInterrupt):
            with pytest.raises(error), rx.processing(timeout=1):
                raise error
        delivery = rx.receive_delivery()
        assert (delivery.value, delivery.attempt) == (2, 2)


def test_threads_share_what_is_outstanding(path: Path) -> None:
    """Clones in threads that receive, nack and ack process each message once."""
    count, threads = 2000, 4
    with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel:
        done: list[int] = []

        def work(rx: AckReceiver[int]) -> None:
            with rx:
                for delivery in rx.deliveries():
                    if delivery.attempt < 2 and delivery.value % 3 == 0:
                        delivery.nack(delivery.value % 2 * 1e-4)
                    else:
                        done.append(delivery.value)
                        delivery.ack()

        def send() -> None:
            with channel.sender() as tx:
                for number in range(count):
                    tx.send(number)
            channel.seal()

        with channel.ack_receiver() as rx:
            all_at_once(send, *(partial(work, rx.clone()) for _ in range(threads)))
            assert sorted(done) == list(range(count))
            with pytest.raises(EndOfStream):
                rx.receive()


CONSUMER = """
with open_channel(path, int) as channel, channel.ack_receiver() as rx:
    deliveries = [rx.receive_delivery() for _ in range(600)]
    rx.ack(200)
    for delivery in reversed(deliveries[300:500]):
        delivery.ack()
    deliveries[550].nack()
    deliveries[250].nack(1000)
    say("ready")
    sys.stdin.readline()
"""


def test_a_killed_consumer_gets_everything_again_from_the_oldest_unacked_on(path: Path) -> None:
    """After SIGKILL with acks out of order, nacks and delays, only the contiguous acked prefix is not redelivered."""
    options = ChannelOptions(segment_size=4096)
    with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        tx.send_many(range(1000))
    with running(CONSUMER, path) as child:
        child.expect("ready")
        child.process.send_signal(signal.SIGKILL)
        assert child.process.wait(60) == -signal.SIGKILL
    with open_channel(path, int) as channel, channel.ack_receiver() as rx:
        assert rx.receive_many(1000) == list(range(200, 1000))
        assert rx.unack_count == 800


BUSY = """
import random
rng = random.Random(int(sys.argv[1].rpartition("-")[2]))
with open_channel(path, int) as channel, channel.ack_receiver() as rx:
    kept = []
    while True:
        way = rng.randrange(4)
        if way == 0 and kept:
            delivery = kept.pop(rng.randrange(len(kept)))
            delivery.ack()
            say(str(delivery.value))
        elif way == 1 and kept:
            kept.pop(rng.randrange(len(kept))).nack()
        elif len(kept) < 20:
            kept.append(rx.receive_delivery(timeout=60))
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_killed_at_any_moment_loses_nothing(tmp_path: Path, seed: int) -> None:
    """After SIGKILL every message that the consumer did not report as acked is redelivered, starting at a message
    boundary.
    """
    path = tmp_path / f"channel-{seed}"
    with open_channel(path, int, options=ChannelOptions(segment_size=4096)) as channel, channel.sender() as tx:
        tx.send_many(range(20_000))
    acked: set[int] = set()
    with running(BUSY, path) as child:
        assert child.process.stdout is not None
        for _ in range(500 + 37 * seed):
            acked.add(int(child.process.stdout.readline()))
        child.process.send_signal(signal.SIGKILL)
        acked.update(int(line) for line in child.process.stdout if line.endswith("\n"))
    with open_channel(path, int) as channel, channel.ack_receiver() as rx:
        first = rx.peek()[0]
        assert len(set(range(first)) - acked) <= 1  # any of them, which it was killed before saying
        assert rx.receive_many(40_000) == list(range(first, 20_000))
