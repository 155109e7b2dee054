"""Receiving without async."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock

from filechannel import ChannelOptions, ConsumerBusyError, DecodeError, Offset, Record
from filechannel._channel.subscription.subscription import Subscription
from filechannel._offset import LogPosition
from filechannel._storage.reading.log_reader import LogReader
from filechannel._wakeup import waiters
from filechannel.blocking import FanOutReceiver, FileChannel, Receiver, open_channel
from tests.blocking.children import running
from tests.blocking.threads import all_at_once, in_thread, until

WAYS: dict[str, Callable[[Receiver[int]], object]] = {
    "receive": lambda rx: rx.receive(),
    "receive with a timeout": lambda rx: rx.receive(timeout=60),
    "receive_record": lambda rx: rx.receive_record().value,
    "receive_many": lambda rx: rx.receive_many(1)[0],
    "receive_many with linger": lambda rx: rx.receive_many(1, 0.001, timeout=60)[0],
    "next": lambda rx: next(rx),
}
TIMED: dict[str, Callable[[Receiver[int], float], object]] = {
    "receive": lambda rx, timeout: rx.receive(timeout),
    "receive by name": lambda rx, timeout: rx.receive(timeout=timeout),
    "receive_record": lambda rx, timeout: rx.receive_record(timeout),
    "receive_many": lambda rx, timeout: rx.receive_many(5, timeout=timeout),
    "receive_many with linger": lambda rx, timeout: rx.receive_many(5, 60.0, timeout),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
each_timed_way = pytest.mark.parametrize("way", TIMED.values(), ids=TIMED)


@each_way
def test_what_is_there_is_received_at_once(channel: FileChannel[int], way: Callable[[Receiver[int]], object]) -> None:
    """Every way to receive returns stored messages at once, in order."""
    with channel.sender() as tx, channel.receiver() as rx:
        tx.send_many(range(20))
        assert [way(rx) for _ in range(20)] == list(range(20))


@each_way
def test_what_comes_later_is_waited_for(channel: FileChannel[int], way: Callable[[Receiver[int]], object]) -> None:
    """Every way to receive waits, again and again, for a message that another thread sends."""
    with channel.sender() as tx, channel.receiver() as rx:
        for number in range(20):
            with in_thread(partial(way, rx)) as receiving:
                if number % 2:
                    until(lambda: channel.statistics().waiters == 1)
                tx.send(number)
                assert receiving.result(60) == number
        assert channel.statistics().waiters == 0


@each_timed_way
def test_a_timeout_takes_nothing(path: Path, way: Callable[[Receiver[int], float], object]) -> None:
    """A receive that times out raises `TimeoutError`, at once with 0, and the next message is received as usual."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        for timeout in (0, 0.0, 0.02):
            before = time.monotonic()
            with pytest.raises(TimeoutError, match="no message"):
                way(rx, timeout)
            assert timeout <= time.monotonic() - before < 60
        assert channel.statistics().waiters == 0
        tx.send(1)
        assert rx.receive(timeout=0) == 1


@each_timed_way
def test_a_message_that_is_there_is_received_in_no_time(
    path: Path, way: Callable[[Receiver[int], float], object]
) -> None:
    """With a timeout of 0 every way to receive returns stored messages."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many([1, 2, 3, 4, 5])
        way(rx, 0)
        assert rx.statistics().next_sequence in (1, 5)


@each_timed_way
@pytest.mark.parametrize("timeout", ["soon", -1, -0.5, float("nan"), float("inf"), 1e10, 10**30, True, b"1"])
@pytest.mark.parametrize("there", [True, False])
def test_a_wrong_timeout_is_named(
    path: Path, way: Callable[[Receiver[int], float], object], timeout: float, there: bool
) -> None:
    """An invalid timeout raises an error with its name, whether or not a message is stored, and takes nothing."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        if there:
            tx.send(1)
        with pytest.raises((TypeError, ValueError), match="timeout="):
            way(rx, timeout)
        assert rx.statistics().next_sequence == 0


def test_wrong_arguments(path: Path) -> None:
    """Receive methods refuse an invalid number of messages and an invalid time."""
    with open_channel(path, int) as channel, channel.receiver() as rx:
        for arguments, keywords in (((1, 2), {}), ((), {"timeot": 1}), ((1,), {"timeout": 1}), ((), {"item": 1})):
            with pytest.raises(TypeError):
                rx.receive(*arguments, **keywords)
        for bad in (0, -1):
            with pytest.raises(ValueError, match="max_items"):
                rx.receive_many(bad)
        with pytest.raises(TypeError, match="linger"):
            rx.receive_many(1, "soon")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="linger"):
            rx.receive_many(1, -1)


def test_receive_many_gives_what_is_there(path: Path) -> None:
    """`receive_many` returns at least one and at most *n* messages, and without *linger* waits for no more."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many(range(10))
        assert rx.receive_many(4) == [0, 1, 2, 3]
        assert rx.receive_many(40) == [4, 5, 6, 7, 8, 9]
        with in_thread(partial(rx.receive_many, 40)) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            tx.send_many([10, 11])
            assert receiving.result(60) == [10, 11]


def test_lingering_waits_for_more(path: Path) -> None:
    """With *linger* the batch is complete as soon as there are enough, or when the time is over."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        with in_thread(partial(rx.receive_many, 3, 60.0)) as receiving:
            for number in range(3):
                until(lambda: channel.statistics().waiters == 1)
                assert not receiving.done()
                tx.send(number)
            assert receiving.result(60) == [0, 1, 2]
        tx.send(3)
        before = time.monotonic()
        assert rx.receive_many(3, 0.05, timeout=0) == [3]
        assert time.monotonic() - before >= 0.05


def test_lingering_ends_with_the_stream(path: Path) -> None:
    """A linger ends at once when the channel is sealed or a replay reaches its stop."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send(1)
        with channel.replay() as history:
            assert history.receive_many(9, 60.0) == [1]
        with in_thread(partial(rx.receive_many, 9, 60.0)) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            channel.seal()
            assert receiving.result(60) == [1]
        with pytest.raises(EndOfStream):
            rx.receive_many(9, 60.0)


def test_closing_under_a_thread_that_lingers(path: Path) -> None:
    """A receive that lingers raises when the receiver is closed, and takes nothing."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        rx = channel.receiver()
        tx.send(1)
        with in_thread(partial(rx.receive_many, 9, 60.0)) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            rx.close()
            assert isinstance(receiving.exception(60), ClosedResourceError)
        with channel.receiver() as rx:
            assert rx.receive(timeout=0) == 1


def test_a_record_has_its_position(path: Path) -> None:
    """`receive_record` returns the value with its offset and sequence."""
    with open_channel(path, str) as channel, channel.sender() as tx, channel.receiver() as rx:
        start = tx.send_many(["a", "b"])
        assert rx.receive_record() == Record("a", start, 0)
        assert rx.receive_record(timeout=1) == Record("b", channel.offset_of(1), 1)


def test_a_loop_ends_with_the_stream(channel: FileChannel[int]) -> None:
    """A `for` loop receives every message, waits for more, and ends when the channel is sealed."""
    with channel.sender() as tx, channel.receiver() as rx:
        tx.send_many(range(5))
        with in_thread(lambda: list(rx)) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            tx.send(5)
            channel.seal()
            assert receiving.result(60) == list(range(6))
        with pytest.raises(EndOfStream):
            rx.receive()
        with pytest.raises(EndOfStream):
            rx.receive_record(timeout=0)
        with pytest.raises(EndOfStream):
            rx.receive_nowait()


@each_way
def test_sealing_ends_every_wait(path: Path, way: Callable[[Receiver[int]], object]) -> None:
    """A thread that waits gets the end of the stream when the channel is sealed."""
    with open_channel(path, int) as channel, channel.receiver() as rx, in_thread(partial(way, rx)) as receiving:
        until(lambda: channel.statistics().waiters == 1)
        channel.seal()
        assert isinstance(receiving.exception(60), EndOfStream | StopIteration)


@each_way
@pytest.mark.parametrize("what", ["receiver", "channel"])
def test_closing_ends_every_wait_at_once(path: Path, way: Callable[[Receiver[int]], object], what: str) -> None:
    """A waiting thread gets `ClosedResourceError` when another thread closes the receiver or the channel."""
    delays = []
    for _ in range(3):
        with open_channel(path, int) as channel:
            rx = channel.receiver()
            with in_thread(partial(way, rx)) as receiving:
                until(lambda: channel.statistics().waiters == 1)
                before = time.monotonic()
                (rx if what == "receiver" else channel).close()
                assert isinstance(receiving.exception(60), ClosedResourceError)
                delays.append(time.monotonic() - before)
            for call in (rx.receive, partial(rx.receive, 1), rx.peek, rx.clone, rx.receive_nowait, rx.statistics):
                with pytest.raises(ClosedResourceError):
                    call()
    assert min(delays) < 0.5, "noticed only because no sleep is longer than a second"


def test_closing_one_clone_leaves_the_wait_of_another(path: Path) -> None:
    """Only the waiter of the closed clone gets an error."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        clone = rx.clone()
        with in_thread(rx.receive) as receiving, in_thread(clone.receive) as closed_one:
            until(lambda: channel.statistics().waiters == 2)
            clone.close()
            assert isinstance(closed_one.exception(60), ClosedResourceError)
            assert not receiving.done()
            tx.send(1)
            assert receiving.result(60) == 1


def test_seeking_wakes_a_waiting_thread(path: Path) -> None:
    """A waiting thread resumes where another thread has moved the receiver to."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many([1, 2, 3])
        rx.seek("latest")
        with in_thread(rx.receive) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            rx.seek(channel.offset_of(1))
            assert receiving.result(60) == 2
        rx.seek("earliest")
        assert rx.read_offset == 0
        with pytest.raises(ValueError, match="to="):
            rx.seek("somewhere")  # type: ignore[arg-type]


def test_peek_takes_nothing(path: Path) -> None:
    """`peek` returns the next messages and consumes none."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        assert rx.peek() == []
        tx.send_many([1, 2, 3])
        assert rx.peek(2) == [1, 2]
        assert rx.receive() == 1


def test_clones_share_the_position(path: Path) -> None:
    """Each message is delivered to one of the clones; the last close releases the name."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        rx = channel.receiver()
        clone = rx.clone()
        assert isinstance(clone, FanOutReceiver)
        tx.send_many(range(1000))
        got: list[int] = []
        all_at_once(*[lambda rx=rx: got.extend(rx.receive() for _ in range(250)) for rx in (rx, clone) * 2])
        assert sorted(got) == list(range(1000))
        rx.close()
        with pytest.raises(ConsumerBusyError):
            channel.receiver()
        clone.close()
        channel.receiver().close()


def test_a_name_resumes_where_it_stopped(path: Path) -> None:
    """Every name receives every message once, across reopening; `unsubscribe` forgets its position."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        channel.receiver("a").close()
        tx.send_many(range(4))
        with channel.receiver("a") as rx:
            assert (rx.name, rx.id) == ("a", f"{path}#a")
            assert [rx.receive(), rx.receive()] == [0, 1]
    with open_channel(path, int) as channel:
        rx = channel.receiver("a")
        assert rx.receive() == 2
        rx.unsubscribe()
        for call in (rx.unsubscribe, rx.receive):
            with pytest.raises(ClosedResourceError):
                call()
        with channel.receiver("a") as rx:
            assert rx.receive() == 0


def test_unsubscribing_under_a_thread_that_waits(path: Path) -> None:
    """A waiting thread gets `ClosedResourceError` when the receiver is unsubscribed."""
    with open_channel(path, int) as channel, channel.receiver() as rx, in_thread(rx.receive) as receiving:
        until(lambda: channel.statistics().waiters == 1)
        rx.unsubscribe()
        assert isinstance(receiving.exception(60), ClosedResourceError)


def test_a_replay_stops(path: Path) -> None:
    """A replay ends at its stop, and without a stop it waits for new messages."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many(range(5))
        with channel.replay() as history, channel.replay(stop=None) as live:
            tx.send(5)
            assert list(history) == list(range(5))
            assert live.receive_many(9) == list(range(6))
            with pytest.raises(TimeoutError):
                live.receive(timeout=0)
        with channel.replay(channel.offset_of(1), channel.offset_of(3)) as part:
            assert list(part) == [1, 2]


def test_a_message_that_does_not_decode(path: Path) -> None:
    """`DecodeError` does not move the position, and `seek` skips the message."""
    with open_channel(path, str) as channel, channel.sender() as tx:
        tx.send("one")
        tx.send("two")
        channel.configure(schema=int)
    with open_channel(path, int) as channel, channel.sender() as numbers, channel.receiver() as rx:
        numbers.send(3)
        for _ in range(2):
            with pytest.raises(DecodeError) as failure:
                rx.receive(timeout=1)
            rx.seek(failure.value.next_offset)
        assert rx.receive() == 3


# Waiting


def test_waiting_threads_leave_the_others_alone(path: Path) -> None:
    """While ten threads wait, spinning or not, this thread can run Python, and wakes them."""
    options = ChannelOptions(spin=0.5)
    with open_channel(path, int) as channel, open_channel(path, int, options=options) as spinning:
        receivers = [channel.receiver(str(number)) for number in range(9)] + [spinning.receiver("spinning")]
        progress, got = 0, list[int]()
        threads = [threading.Thread(target=lambda rx=rx: got.append(rx.receive(timeout=60))) for rx in receivers]
        for thread in threads:
            thread.start()
        until(lambda: channel.statistics().waiters >= 9)
        started = time.monotonic()
        while progress < 1_000_000:
            progress += 1
        assert time.monotonic() - started < 30
        with channel.sender() as tx:
            tx.send(7)
        for thread in threads:
            thread.join(60)
        assert got == [7] * 10


def test_every_thread_that_waits_is_woken(path: Path) -> None:
    """One message wakes every name that waits for it, and threads of one name share a batch."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        receivers = [channel.receiver(str(number)) for number in range(20)]
        got: list[int] = []
        with in_thread(lambda: all_at_once(*[lambda rx=rx: got.append(rx.receive()) for rx in receivers])):
            until(lambda: channel.statistics().waiters == 20)
            tx.send(1)
        assert got == [1] * 20


def test_spinning_is_bounded_by_the_timeout(path: Path) -> None:
    """With a long *spin* a timeout, a close and a message are still noticed in time."""
    with open_channel(path, int, options=ChannelOptions(spin=60.0)) as channel, channel.sender() as tx:
        rx = channel.receiver()
        started = time.monotonic()
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError):
                rx.receive(timeout)
            with pytest.raises(TimeoutError):
                rx.receive_many(5, timeout=timeout)
        reading = threading.Event()

        def receive_two() -> list[int]:
            first = rx.receive()
            reading.set()
            return [first, rx.receive()]

        with in_thread(receive_two) as receiving:
            tx.send(1)
            assert reading.wait(30)
            tx.send(2)
            assert receiving.result(30) == [1, 2]
        with in_thread(rx.receive) as receiving:
            rx.close()
            assert isinstance(receiving.exception(30), ClosedResourceError)
        assert time.monotonic() - started < 30


def test_a_timeout_is_not_doubled_by_spinning(path: Path) -> None:
    """A long *spin* is part of the timeout: the best of three tries takes far less than twice the timeout."""
    with open_channel(path, int, options=ChannelOptions(spin=60.0)) as channel, channel.receiver() as rx:
        seconds = list[float]()
        while not seconds or (seconds[-1] >= 1.4 and len(seconds) < 3):
            before = time.monotonic()
            with pytest.raises(TimeoutError):
                rx.receive(0.8)
            seconds.append(time.monotonic() - before)
        assert 0.8 <= min(seconds) < 1.4


def test_spinning_notices_a_close_soon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spinning thread notices within a second that the receiver was closed."""
    watch, watching = Subscription.watch, threading.Event()

    def watched(self: Subscription[int], seconds: float) -> bool:
        watching.set()
        return watch(self, seconds)

    monkeypatch.setattr(Subscription, "watch", watched)
    with open_channel(path, int, options=ChannelOptions(spin=60.0)) as channel:
        seconds = list[float]()
        while not seconds or (seconds[-1] >= 0.5 and len(seconds) < 3):
            watching.clear()
            rx = channel.receiver()
            with in_thread(rx.receive) as receiving:
                until(lambda: channel.statistics().waiters == 1 or watching.is_set())
                before = time.monotonic()
                rx.close()
                assert isinstance(receiving.exception(30), ClosedResourceError)
                seconds.append(time.monotonic() - before)
        assert min(seconds) < 0.5


SPINNING = """
from filechannel._channel.subscription.subscription import Subscription

watch, watching = Subscription.watch, threading.Event()

def watched(self, seconds):
    watching.set()
    return watch(self, seconds)

def interrupt():
    global before
    until(lambda: channel.statistics().waiters == 1 or watching.is_set())
    before = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

Subscription.watch = watched
with open_channel(path, int, options=ChannelOptions(spin=60.0)) as channel, channel.receiver() as rx:
    seconds = []
    while not seconds or (seconds[-1] >= 0.5 and len(seconds) < 3):
        watching.clear()
        threading.Thread(target=interrupt).start()
        try:
            rx.receive()
        except KeyboardInterrupt:
            seconds.append(time.monotonic() - before)
assert min(seconds) < 0.5, seconds
say("fine")
"""


def test_spinning_notices_ctrl_c_soon(path: Path) -> None:
    """A spinning thread raises `KeyboardInterrupt` within a second."""
    with running(SPINNING, path) as child:
        child.expect("fine")
        child.end()


def test_a_reader_without_rights_to_say_that_it_waits(path: Path) -> None:
    """A receiver that cannot announce that it waits polls, and *poll_interval* bounds the delay."""
    with open_channel(path, int) as channel, channel.sender() as tx, running_readonly(path) as copy:
        with copy.replay("latest", stop=None) as rx:
            with pytest.raises(TimeoutError):
                rx.receive(timeout=0.01)
            for number in range(3):
                with in_thread(partial(rx.receive, 60)) as receiving:
                    tx.send(number)
                    assert receiving.result(60) == number


def running_readonly(path: Path) -> FileChannel[int]:
    """Open a channel read-only and apart from the one that this process writes to."""
    return open_channel(path, int, readonly=True, options=ChannelOptions(poll_interval=0.002))


def test_polling_notices_a_close_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing and seeking end a polling wait at once, however long the pauses between two checks are."""
    monkeypatch.setattr(waiters, "POLL", True)
    options = ChannelOptions(poll_interval=3600.0)
    with open_channel(path, int, options=options) as channel, channel.sender() as tx:
        rx = channel.receiver()
        tx.send(1)
        rx.seek("latest")
        with in_thread(rx.receive) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            rx.seek("earliest")
            assert receiving.result(30) == 1
        with in_thread(rx.receive) as receiving:
            until(lambda: channel.statistics().waiters == 1)
            rx.close()
            assert isinstance(receiving.exception(30), ClosedResourceError)


def test_nothing_there(channel: FileChannel[int]) -> None:
    """With nothing stored `receive_nowait` raises `WouldBlock`, and `receive_many_nowait` returns an empty list."""
    with channel.receiver() as rx:
        with pytest.raises(WouldBlock):
            rx.receive_nowait()
        assert rx.receive_many_nowait(5) == []
        assert rx.statistics().lag_messages == 0


@pytest.mark.parametrize("kind", ["receiver", "ack_receiver"])
def test_peek_while_another_thread_purges(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A purge between the moves of a receiver and of its look-ahead reader is not reported as lost messages."""
    with open_channel(path, bytes) as channel, channel.sender() as tx, getattr(channel, kind)("name") as rx:
        tx.send_many([b"1", b"2"])
        original = LogReader.copy_position_of

        def sleep_beside(look_ahead_reader: LogReader, other: LogReader) -> None:
            monkeypatch.undo()
            original(look_ahead_reader, other)
            before = LogPosition(Offset(look_ahead_reader.native.offset), look_ahead_reader.native.sequence)
            channel.purge()
            tx.send(b"3")
            look_ahead_reader.move(before)

        monkeypatch.setattr(LogReader, "copy_position_of", sleep_beside)
        assert rx.peek(2) == [b"3"]
