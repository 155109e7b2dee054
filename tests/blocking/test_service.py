"""Handlers in threads: the same service, without async."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from anyio import BusyResourceError, ClosedResourceError

from filechannel import (
    Capacity,
    ChannelOptions,
    CodecError,
    ConsumerBusyError,
    DeadLetter,
    DecodeError,
    HandlerError,
    RetryPolicy,
)
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE
from filechannel._wakeup import waiters
from filechannel.blocking import FileChannel, open_channel, redrive
from tests.blocking.children import running
from tests.blocking.threads import in_thread, until

AT_ONCE = RetryPolicy(max_attempts=None, delay=0)
NEVER = RetryPolicy(max_attempts=1)
LATER = RetryPolicy(max_attempts=None, delay=1000, max_delay=1000)
each_waiting = pytest.mark.parametrize("polls", [False, True], ids=["futex", "polling"])


def fill(channel: FileChannel[int], count: int) -> None:
    """Send so many numbers."""
    with channel.sender() as tx:
        tx.send_many(range(count))


def position(channel: FileChannel[int], name: str = "default") -> int:
    """Return the sequence of the message at which a consumer resumes."""
    return next(consumer.next_sequence for consumer in channel.consumers() if consumer.name == name)


def failing_once() -> tuple[Callable[[int], None], list[int]]:
    """Return a handler that fails the first time, and what it is called with."""
    called = list[int]()

    def handle(number: int) -> None:
        called.append(number)
        if len(called) == 1:
            raise ValueError("not yet")

    return handle, called


@each_waiting
def test_threads_handle_what_comes_beside_the_body(path: Path, polls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the service handle messages in order and acknowledge them; at the end no thread is left."""
    monkeypatch.setattr(waiters, "POLL", polls)
    with open_channel(path, int) as channel, channel.sender() as tx:
        fill(channel, 100)
        got, threads = list[int](), set[int]()

        def handle(number: int) -> None:
            threads.add(threading.get_ident())
            got.append(number)

        with channel.serve(handle) as service:
            until(lambda: len(got) == 100)
            for number in range(100, 110):
                tx.send(number)
                until(lambda: len(got) == number + 1)  # noqa: B023
        assert got == list(range(110))
        assert len(threads) == 1
        assert threading.get_ident() not in threads
        assert (position(channel), service.statistics().handled, service.statistics().lag) == (110, 110, 0)
        assert not [thread for thread in threading.enumerate() if thread.name == "serve default"]


def test_run_calls_the_handler_here(channel: FileChannel[int]) -> None:
    """`run` calls the handler in the calling thread, under every durability, until a handler stops the service."""
    fill(channel, 10)
    here = threading.get_ident()

    def handle(number: int) -> None:
        assert threading.get_ident() == here
        if number == 4:
            service.stop()

    service = channel.serve(handle)
    service.run()
    assert position(channel) == 5
    for again in (service.run, service.__enter__):
        with pytest.raises(BusyResourceError):
            again()


def test_a_message_that_fails_ten_times_holds_up_the_rest(path: Path) -> None:
    """Messages behind one that fails ten times are handled after it, in order."""
    with open_channel(path, int) as channel:
        fill(channel, 20)
        channel.seal()
        got, failures = list[int](), 0

        def handle(number: int) -> None:
            nonlocal failures
            if failures < 10:
                failures += 1
                raise ValueError
            got.append(number)

        service = channel.serve(handle, retry=RetryPolicy(max_attempts=11, delay=1e-4))
        service.run()
        statistics = service.statistics()
        assert got == list(range(20))
        assert (statistics.failed, statistics.retried, statistics.handled) == (10, 10, 20)


@pytest.mark.parametrize("beside", [False, True], ids=["run", "with"])
def test_a_message_without_attempts_left_ends_the_service(path: Path, beside: bool) -> None:
    """A message without attempts left raises its error from `run` or at the end of the body, and stays the next one."""

    def handle(number: int) -> None:
        if number == 2:
            raise ValueError("two")

    with open_channel(path, int) as channel:
        fill(channel, 5)
        service = channel.serve(handle, retry=RetryPolicy(max_attempts=3, delay=0))

        def work() -> None:
            if not beside:
                service.run()
            with service:
                until(lambda: service.statistics().stopped)

        with pytest.raises(HandlerError, match="failed after 3 attempts") as caught:
            work()
        assert isinstance(caught.value.__cause__, ValueError)
        assert position(channel) == 2


def test_both_errors_are_raised(path: Path) -> None:
    """If the body fails too, both errors are raised in a group; an error of the body alone is raised as it is."""

    def handle(number: int) -> None:
        raise ValueError

    def work() -> None:
        with channel.serve(handle, retry=NEVER) as service:
            until(lambda: service.statistics().stopped)
            raise KeyError("mine")

    with open_channel(path, int) as channel:
        fill(channel, 1)
        with pytest.raises(ExceptionGroup) as caught:
            work()
        assert [type(error) for error in caught.value.exceptions] == [HandlerError, KeyError]
        with pytest.raises(KeyError), channel.serve(lambda number: None):
            raise KeyError


def test_no_more_than_so_many_at_once(path: Path) -> None:
    """No more than *concurrency* handlers run at once, also with `run`, and each message is handled once."""
    with open_channel(path, int) as channel:
        fill(channel, 200)
        channel.seal()
        together, done, lock = threading.Barrier(4), list[int](), threading.Lock()

        def handle(number: int) -> None:
            if 0 < number < 5:
                together.wait(30)  # only four at once get past it
            with lock:
                done.append(number)
            if number % 10 == 0 and done.count(number) < 3:
                raise ValueError

        channel.serve(handle, ordered=False, concurrency=4, retry=AT_ONCE).run()
        assert sorted(set(done)) == list(range(200))
        assert len(done) == 240
        assert position(channel) == 200
        with pytest.raises(ValueError, match="ordered=False"):
            channel.serve(handle, concurrency=4)


def test_other_messages_are_processed_while_one_waits_for_its_next_attempt(path: Path) -> None:
    """While a failed message waits for its next attempt others are processed; the stored position stays at it."""
    with open_channel(path, int) as channel:
        fill(channel, 20)
        handle, called = failing_once()
        with channel.serve(handle, ordered=False, retry=LATER) as service:
            until(lambda: service.statistics().handled == 19)
            assert called == list(range(20))
            assert (position(channel), service.statistics().lag) == (0, 20)


def test_paused_and_stopped_between_two_attempts(path: Path) -> None:
    """The next attempt waits for `resume`; if the service is stopped instead, the message stays the next one."""
    with open_channel(path, int) as channel:
        fill(channel, 3)
        handle, called = failing_once()
        with channel.serve(handle, retry=LATER) as service:
            until(lambda: service.statistics().failed == 1)
            service.pause()
            until(lambda: service.statistics().in_flight == 0)
            assert called == [0]
            service.resume()
            until(lambda: service.statistics().handled == 3)
            assert called == [0, 0, 1, 2]
        fill(channel, 1)
        handle, called = failing_once()
        with channel.serve(handle, retry=LATER) as service:
            until(lambda: service.statistics().failed == 1)
        assert (called, position(channel)) == ([0], 3)


@each_waiting
def test_paused_and_stopped_while_it_waits(path: Path, polls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused service starts no message and misses none afterwards, and any thread may stop it."""
    monkeypatch.setattr(waiters, "POLL", polls)
    with open_channel(path, int) as channel:
        got = list[int]()
        service = channel.serve(got.append, ordered=False, concurrency=3)
        with in_thread(service.run) as running:
            service.pause()
            fill(channel, 5)
            until(lambda: service.statistics().lag == 5)
            assert not got
            service.resume()
            until(lambda: sorted(got) == [0, 1, 2, 3, 4])
            until(lambda: service.statistics().in_flight == 0)
            service.pause()
            service.stop()
            assert running.result(30) is None


def test_grace_bounds_the_wait_for_a_handler(path: Path) -> None:
    """A handler thread that exceeds the grace period is abandoned, and its message is redelivered."""
    with open_channel(path, int) as channel:
        fill(channel, 2)
        entered, gate, ended = threading.Event(), threading.Event(), threading.Event()

        def handle(number: int) -> None:
            entered.set()
            assert gate.wait(30)
            ended.set()

        with channel.serve(handle, grace=0.01) as service:
            assert entered.wait(30)
        gate.set()
        assert ended.wait(30)
        until(lambda: not any(thread.name == "serve default" for thread in threading.enumerate()))
        assert (position(channel), service.statistics().last_error) == (0, None)


def test_a_base_exception_does_not_count_as_a_failed_attempt(path: Path) -> None:
    """Ctrl-C in a handler is raised by `run`, and the message is redelivered."""

    def handle(number: int) -> None:
        raise KeyboardInterrupt

    with open_channel(path, int) as channel:
        fill(channel, 1)
        with pytest.raises(KeyboardInterrupt):
            channel.serve(handle).run()
        assert position(channel) == 0
        channel.serve(handle).stop()
        channel.receiver().close()


INTERRUPTED = """
def handle(number):
    if number:
        say("works")
        time.sleep(60)

def look():
    until(lambda: channel.statistics().waiters == 1)
    say("waits")

with open_channel(path, int) as channel, channel.sender() as tx:
    tx.send(0)
    threading.Thread(target=look).start()
    for number in (0, 1):
        try:
            channel.serve(handle).run()
        except KeyboardInterrupt:
            tx.send(1)
    [consumer] = channel.consumers()
    assert (consumer.next_sequence, consumer.owner) == (1, None)
"""


@pytest.mark.parametrize("poll", ["", "1"], ids=["futex", "polling"])
def test_ctrl_c_ends_it(path: Path, poll: str) -> None:
    """Ctrl-C ends a service that waits for messages or runs a handler, whose message is redelivered."""
    with running(INTERRUPTED, path, FILECHANNEL_POLL=poll) as child:
        for state in ("waits", "works"):
            child.expect(state)
            child.process.send_signal(signal.SIGINT)
        child.end()


async def promise(number: int) -> None:
    """Be async."""


def test_a_coroutine_handler_is_refused(path: Path) -> None:
    """A coroutine function is refused as handler of a blocking service, which would not await it."""
    with open_channel(path, int) as channel:
        fill(channel, 1)
        with pytest.raises(HandlerError, match="returned an awaitable"):
            channel.serve(promise, retry=NEVER).run()
        assert position(channel) == 0


def test_the_name_is_taken_and_freed(path: Path) -> None:
    """`serve` owns the consumer name until the service has ended."""
    with open_channel(path, int) as channel:
        service = channel.serve(print)
        with pytest.raises(ConsumerBusyError):
            channel.ack_receiver()
        service.close()
        with pytest.raises(ClosedResourceError):
            service.run()
        with channel.serve(print):
            pass
        channel.ack_receiver().close()


def test_acks_reach_the_disk_as_the_options_say(path: Path) -> None:
    """With `cursor_flush="fsync"` every message is handled and acknowledged."""
    with open_channel(path, int, options=ChannelOptions(cursor_flush="fsync")) as channel:
        fill(channel, 5)
        channel.seal()
        got = list[int]()
        channel.serve(got.append).run()
        assert (got, position(channel)) == ([0, 1, 2, 3, 4], 5)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_letters_and_redriving(path: Path, concurrency: int) -> None:
    """Messages that fail or do not decode become dead letters, and redriving sends the original messages."""
    with open_channel(path, object) as channel, channel.sender() as tx:
        tx.send_many([0, "one", 2, 3, "four"])
        channel.configure(schema=int)
        channel.seal()

    def handle(number: int) -> None:
        if number == 3:
            raise ValueError("three")

    with (
        open_channel(path, int) as numbers,
        open_channel(path.with_name("dead"), DeadLetter) as dead,
        dead.sender() as box,
        open_channel(path.with_name("other"), int) as other,
        open_channel(path.with_name("texts"), str) as texts,
    ):
        with pytest.raises(DecodeError):
            numbers.serve(handle, name="strict", retry=NEVER).run()
        ordered = concurrency == 1
        numbers.serve(handle, ordered=ordered, concurrency=concurrency, retry=NEVER, dead_letter=box).run()
        with dead.replay() as rx:
            letters = sorted(rx, key=lambda letter: letter.sequence)
        assert [(letter.sequence, letter.attempts) for letter in letters] == [(1, 0), (3, 1), (4, 0)]
        assert msgspec.msgpack.decode(letters[1].payload) == 3
        if not ordered:
            return
        for target in (other, texts, other):  # each takes what fits, and is stopped by what does not
            with pytest.raises(CodecError):
                redrive(dead, target)  # type: ignore[type-var]
        assert redrive(dead, texts) == 1
        assert redrive(dead, texts) == 0
        with other.replay() as numbers_again, texts.replay() as texts_again:
            assert (list(numbers_again), list(texts_again)) == ([3], ["one", "four"])


SMALL_AND_DROPPING = ChannelOptions(
    segment_size=4096, spare_segments=0, capacity=Capacity(max_messages=8, on_full="drop_oldest")
)


@pytest.mark.parametrize("moment", ["before its letter", "after its letter"])
def test_an_undecodable_message_may_be_removed_meanwhile(path: Path, moment: str) -> None:
    """A service counts a message that is dropped before or after its letter is written, and continues."""
    with (
        open_channel(path, object, options=SMALL_AND_DROPPING) as channel,
        channel.sender() as tx,
        open_channel(path.with_name("dead"), DeadLetter) as dead,
        dead.sender() as box,
    ):
        tx.send("undecodable")
        channel.configure(schema=int)
        with open_channel(path, int) as numbers:
            got = list[int]()
            service = numbers.serve(got.append, dead_letter=box)
            lookup, send = numbers._store.lookup, box.send

            def drop() -> None:
                del lookup.at, box.send
                MAINTENANCE.forget(numbers._store)
                for number in range(400):
                    tx.send_nowait(number)
                channel.seal()

            def look_up_after_drop(offset: int) -> object:
                drop()
                return lookup.at(offset)

            def send_and_drop(letter: DeadLetter) -> None:
                send(letter)
                drop()

            lookup.at = look_up_after_drop if moment == "before its letter" else lookup.at
            box.send = send_and_drop if moment == "after its letter" else send
            service.run()
            found = service.statistics()
            assert got == list(range(400))[-len(got) :]
            assert found.handled + found.dead + found.missed == 401
            assert found.dead == (moment == "after its letter")


def test_a_dead_letter_channel_of_another_type_is_refused_at_once(path: Path) -> None:
    """`serve` names the type, and registers nothing, although no message has failed yet."""
    with open_channel(path / "in", int) as numbers, open_channel(path / "dead", str) as dead, dead.sender() as box:
        with pytest.raises(
            TypeError, match=r"must be a filechannel\.blocking\.Sender of .*: the channel accepts str, not"
        ):
            numbers.serve(print, dead_letter=box)  # type: ignore[arg-type]
        assert numbers.consumers() == ()
