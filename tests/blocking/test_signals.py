"""Exceptions that signal handlers raise in the middle of a call: the channel keeps working, for every thread and
process.

Each test raises one before each bytecode of a call, one by one, and checks after each that other threads can send, that
every accepted message arrives once, and that the exception has reached the caller.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Protocol, TypeAlias

import anyio
import pytest

import filechannel
from filechannel import AckError, Capacity, ChannelOptions, ConsumerBusyError, Durability
from filechannel import open_channel as async_open_channel
from filechannel._format import PURE
from filechannel._storage.log.append_and_roll_back import Appender
from filechannel._storage.open_stores import STORES
from filechannel.blocking import AckReceiver, FileChannel, Receiver, Sender, open_channel
from tests.blocking.interruptions import Attempt, InterruptError, elsewhere
from tests.blocking.threads import until

pytestmark = pytest.mark.skipif(PURE, reason="the pure implementation promises nothing here; see mutex.py")

OS = ChannelOptions(segment_size=4096)
NO_FREE_LIST = ChannelOptions(segment_size=4096, spare_segments=0)
FSYNC = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)
BOUNDED = ChannelOptions(segment_size=4096, capacity=Capacity(max_messages=4))
DROPPING = ChannelOptions(segment_size=4096, capacity=Capacity(max_messages=40, on_full="drop_oldest"))
MODES = {"os": OS, "no spares": NO_FREE_LIST, "fsync": FSYNC, "bounded": BOUNDED}
_FILLER = 900
_TRIES = 12  # a call takes different ways: only some of them are as long as the longest
_PACKAGE = str(Path(filechannel.__file__).parent)
_STRIDE = 7  # bytecodes: the tests marked `soak` leave out none


def _strides() -> list[object]:
    return [_STRIDE, pytest.param(1, marks=pytest.mark.soak)]


def _payload(number: int) -> bytes:
    return b"%08d" % number + bytes(_FILLER)


def _number(payload: bytes) -> int:
    return int(payload[:8])


def _numbers(stride: int) -> Iterator[int]:
    """Count bytecodes, from a random one on if some are left out."""
    number = random.randrange(1, stride + 1)
    while True:
        yield number
        number += stride


def _drain(rx: Receiver[bytes]) -> list[int]:
    found: list[int] = []
    while True:
        try:
            found.append(_number(rx.receive_nowait()))
        except anyio.WouldBlock:
            return found


class Closable(Protocol):
    """A channel, a sender or a receiver."""

    def close(self) -> None:
        """Close it."""
        ...


class Trial:
    """One channel whose calls are interrupted repeatedly."""

    def __init__(self, path: Path, options: ChannelOptions) -> None:
        self.channel: FileChannel[bytes] = open_channel(path, bytes, options=options)
        self.tx: Sender[bytes] = self.channel.sender()
        self.count = 0
        self.tried = 0

    def next(self) -> bytes:
        """Return another message."""
        self.count += 1
        return _payload(self.count)

    def run(self, stride: int, work: Callable[[], Callable[[], object]], check: Callable[[Attempt], None]) -> None:
        """Interrupt what *work* returns before each bytecode, until it has no more of them."""
        for number in _numbers(stride):
            for _ in range(_TRIES):
                attempt = Attempt(number, work())
                check(attempt)
                if attempt.where is not None:
                    self.tried += 1
                    break
            else:
                return

    def send_elsewhere(self, attempt: Attempt) -> int:
        """Let another thread send, and return the number of its message."""
        payload = self.next()
        elsewhere(lambda: self.tx.send(payload), attempt.where)
        return _number(payload)

    def close(self) -> None:
        """Close the channel, in another thread."""
        elsewhere(self.channel.close, "closing")


Begin: TypeAlias = Callable[[ChannelOptions], Trial]


@pytest.fixture
def begin(path: Path) -> Iterator[Begin]:
    """What opens a channel for a trial, which is closed at the end of the test, however that ends."""
    trials: list[Trial] = []

    def open_trial(options: ChannelOptions) -> Trial:
        trials.append(Trial(path, options))
        return trials[-1]

    yield open_trial
    for trial in trials:
        trial.close()


@pytest.fixture
def seeded(rng: random.Random) -> None:
    """Print the seed, so that the bytecodes can be chosen again."""
    random.seed(rng.random())


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", _strides())
@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
@pytest.mark.parametrize("how", ["send", "send_many", "send_nowait"])
def test_a_send_that_is_interrupted_leaves_the_channel_usable(
    begin: Begin, options: ChannelOptions, how: str, stride: int
) -> None:
    """After an interrupted send the message was sent or not; all others arrive once, in order, and no thread is
    blocked.
    """
    trial = begin(options)
    accepted, received, perhaps = list[int](), list[int](), set[int]()

    def send() -> Callable[[], object]:
        payload = trial.next()
        sending = {
            "send": lambda: trial.tx.send(payload),
            "send_many": lambda: trial.tx.send_many([payload]),
            "send_nowait": lambda: trial.tx.send_nowait(payload),
        }
        return sending[how]

    def check(attempt: Attempt) -> None:
        (accepted.append if attempt.is_done else perhaps.add)(trial.count)
        accepted.append(trial.send_elsewhere(attempt))
        received.extend(_drain(rx))
        expected = [number for number in received if number not in perhaps]
        assert expected == accepted, attempt.where
        assert received == sorted(set(received)), attempt.where

    with trial.channel.receiver() as rx:
        trial.run(stride, send, check)
    trial.close()
    assert trial.tried


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", _strides())
@pytest.mark.parametrize("kind", ["ack_receiver", "group"])
@pytest.mark.parametrize("options", [OS, BOUNDED], ids=["os", "bounded"])
def test_a_receive_or_an_ack_that_is_interrupted_leaves_the_channel_usable(
    begin: Begin, options: ChannelOptions, kind: str, stride: int
) -> None:
    """After an interrupted receive or ack no unacknowledged message is lost, and no acknowledged one is redelivered."""
    trial = begin(options)
    acked, perhaps = list[int](), set[int]()
    rx: AckReceiver[bytes] = trial.channel.ack_receiver("r") if kind == "ack_receiver" else trial.channel.group("r")  # type: ignore[assignment]

    def receive() -> Callable[[], object]:
        trial.tx.send(trial.next())

        def take() -> None:
            perhaps.add(_number(rx.receive_nowait()))
            rx.ack()

        return take

    def check(attempt: Attempt) -> None:
        number, last = trial.count, trial.send_elsewhere(attempt)
        with suppress(AckError):  # nothing is outstanding
            rx.nack()
        found = _drain_acking(rx)
        assert found[-1:] == [last], attempt.where
        assert found[:-1] in ([], [number]), attempt.where
        assert not attempt.is_done or found == [last], attempt.where
        if not found[:-1]:
            acked.append(number)

    trial.run(stride, receive, check)
    trial.close()
    assert trial.tried


def _drain_acking(rx: AckReceiver[bytes]) -> list[int]:
    found = _drain(rx)
    if found:
        rx.ack(len(found))
    return found


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", _strides())
def test_a_plain_receive_that_is_interrupted_leaves_the_channel_usable(begin: Begin, stride: int) -> None:
    """An interrupted receive may lose the message that it was about to return, since nothing acks it, but no other."""
    trial = begin(OS)

    def receive() -> Callable[[], object]:
        trial.tx.send(trial.next())
        return rx.receive

    def check(attempt: Attempt) -> None:
        number, last = trial.count, trial.send_elsewhere(attempt)
        found = _drain(rx)
        assert found in ([last], [number, last]), attempt.where
        assert not attempt.is_done or found == [last], attempt.where

    with trial.channel.receiver() as rx:
        trial.run(stride, receive, check)
    trial.close()
    assert trial.tried


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", [5 * _STRIDE, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("what", ["flush", "statistics", "seek"])
def test_other_calls_that_are_interrupted_leave_the_channel_usable(begin: Begin, what: str, stride: int) -> None:
    """After any other interrupted call the next call works."""
    trial = begin(FSYNC)
    trial.tx.send(trial.next())

    def call() -> Callable[[], object]:
        if what == "seek":
            return lambda: rx.seek("earliest")
        return trial.channel.flush if what == "flush" else trial.channel.statistics

    def check(attempt: Attempt) -> None:
        trial.send_elsewhere(attempt)
        call()()
        _drain(rx)

    with trial.channel.receiver() as rx:
        trial.run(stride, call, check)
    trial.close()
    assert trial.tried


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # nothing refers to the receiver that was made
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", _strides())
@pytest.mark.parametrize("kind", ["receiver", "ack_receiver", "group"])
def test_a_name_whose_opening_was_interrupted_is_free(begin: Begin, kind: str, stride: int) -> None:
    """Another receiver can own a name whose open was interrupted, once its registration has ended."""
    trial = begin(OS)
    trial.tx.send(trial.next())
    register: Callable[[str], Closable] = getattr(trial.channel, kind)

    def is_free() -> bool:
        try:
            register("name").close()
        except ConsumerBusyError:
            return False
        return True

    def call() -> Callable[[], object]:
        return lambda: register("name").close()

    def check(_attempt: Attempt) -> None:
        until(is_free)

    trial.run(stride, call, check)
    trial.close()
    assert trial.tried


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", [1500, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("options", [OS, FSYNC], ids=["os", "fsync"])
def test_opening_and_closing_can_be_interrupted(path: Path, options: ChannelOptions, stride: int) -> None:
    """After an interrupted open or close another thread can open the channel and finds every message."""
    accepted = 0

    def use() -> None:
        with open_channel(path, bytes, options=options) as channel, channel.sender() as tx:
            tx.send(_payload(accepted))

    def use_elsewhere() -> None:
        with open_channel(path, bytes, options=options) as channel, channel.replay() as rx:
            assert len(rx.receive_many(100_000)) >= accepted

    use()
    for number in _numbers(stride):
        attempt = Attempt(number, use)
        accepted += attempt.is_done
        elsewhere(use_elsewhere, attempt.where)
        if attempt.where is None:
            break
    until(lambda: not STORES._open)


def _open_files(path: Path) -> list[str]:
    """Return what this process has open or mapped below a directory."""
    found = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [each for each in found if str(path) in each]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# As an error, it would be kept until the end of the test, and with its traceback the channel.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", [61, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["open_channel", "an unpickled channel", "async open_channel"])
def test_an_interrupted_open_leaves_nothing_open(path: Path, how: str, stride: int) -> None:
    """The store of an interrupted open is closed in the background, although the caller got no channel."""
    with open_channel(path, bytes) as channel:
        pickled = pickle.dumps(channel)

    def use() -> None:
        if how == "open_channel":
            open_channel(path, bytes).close()
        elif how == "an unpickled channel":
            unpickled: FileChannel[bytes] = pickle.loads(pickled)
            try:
                assert unpickled._store
            finally:
                unpickled.close()
        else:
            asyncio.run(open_and_close())

    async def open_and_close() -> None:
        async with async_open_channel(path, bytes):
            pass

    tried = 0
    for number in _numbers(stride):
        attempt = Attempt(number, use, within=_PACKAGE if how == "async open_channel" else "")
        if how == "async open_channel":
            gc.collect()  # a task and the exception that ended it refer to each other, and with them to the channel
        until(lambda: not STORES._open)
        until(lambda: not _open_files(path))
        if attempt.where is None:
            break
        tried += 1
    assert tried


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", _strides())
@pytest.mark.parametrize("what", ["channel", "sender", "receiver", "ack_receiver", "group", "lone sender"])
@pytest.mark.parametrize("options", [OS, FSYNC], ids=["os", "fsync"])
def test_closing_again_completes_what_was_interrupted(
    path: Path, options: ChannelOptions, what: str, stride: int
) -> None:
    """After an interrupted close a second close leaves no file open or mapped, and the names free."""
    sent = 0
    for number in _numbers(stride):
        channel: FileChannel[bytes] = open_channel(path, bytes, options=options)
        tx: Sender[bytes] = pickle.loads(pickle.dumps(channel.sender())) if what == "lone sender" else channel.sender()
        try:
            tx.send(_payload(sent))
            sent += 1
            handles: dict[str, Callable[[], Closable]] = {
                "channel": lambda channel=channel: channel,  # type: ignore[misc]
                "receiver": lambda channel=channel: channel.receiver("r"),  # type: ignore[misc]
                "ack_receiver": lambda channel=channel: channel.ack_receiver("r"),  # type: ignore[misc]
                "group": lambda channel=channel: channel.group("g"),  # type: ignore[misc]
            }
            handle = handles[what]() if what in handles else tx
            if what == "channel":
                channel.receiver("r").receive_nowait()
            attempt = Attempt(number, handle.close)
            handle.close()
            if what in handles and what != "channel":
                handles[what]().close()
        finally:
            tx.close()
            channel.close()
        assert _open_files(path) == [], attempt.where
        if attempt.where is None:
            break
    assert sent > 1


@pytest.mark.parametrize("seconds", [1.5, pytest.param(20.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("options", [OS, FSYNC, BOUNDED, DROPPING], ids=["os", "fsync", "bounded", "dropping"])
def test_signals_may_come_at_any_time(path: Path, options: ChannelOptions, rng: random.Random, seconds: float) -> None:
    """With a real signal every few hundred microseconds each one reaches the caller, and accepted messages are
    received.
    """
    is_armed = False

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if is_armed:  # on a busy machine a signal may come late
            raise InterruptError

    handler = signal.signal(signal.SIGALRM, handle)
    sent, received, raised, interrupted = 0, list[int](), 0, set[int]()
    try:
        with open_channel(path, bytes, options=options) as channel, channel.sender() as tx, channel.receiver() as rx:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    try:
                        is_armed = True
                        # The second one comes if the first was raised where Python can only report it: in a finalizer.
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(20e-6, 2e-3), 0.1)
                        while True:
                            sent += 1
                            tx.send(_payload(sent))
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except InterruptError:
                    is_armed = False
                    raised += 1
                    interrupted.add(sent)
                signal.setitimer(signal.ITIMER_REAL, 0)
                received.extend(_drain(rx))
            elsewhere(lambda: tx.send(_payload(sent + 1)), "the end")
            received.extend(_drain(rx))
            assert received[-1] == sent + 1
            elsewhere(channel.close, "the end")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert raised > 10
    assert received == sorted(set(received))
    assert options is DROPPING or set(range(1, sent + 1)) - set(received) <= interrupted


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of a file whose `with` statement was interrupted
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", _strides())
def test_nothing_is_rolled_back_without_the_writer_lock(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """A send that is interrupted in a roll removes nothing without the writer lock, because another process may be
    writing.
    """
    trial, rolled_back = begin(NO_FREE_LIST), list[bool]()
    log, discard = trial.channel._store.log, Appender.roll_back  # pyright: ignore[reportPrivateUsage]

    def watched(self: Appender) -> None:
        rolled_back.append(log.mutex.user == get_ident())
        discard(self)

    monkeypatch.setattr(Appender, "roll_back", watched)

    def send() -> Callable[[], object]:
        payload = trial.next()
        return lambda: trial.tx.send(payload)

    def check(attempt: Attempt) -> None:
        assert all(rolled_back), attempt.where

    trial.run(stride, send, check)
    trial.close()
    assert rolled_back


_BURST = 20  # messages
_AHEAD = 10  # bursts
_SENDING = f"""
import sys
from itertools import count, islice
from filechannel.blocking import open_channel

with open_channel(sys.argv[1], bytes) as channel, channel.sender() as tx:
    numbers = count(1)
    while sys.stdin.buffer.read(1):
        for number in islice(numbers, {_BURST}):
            tx.send(b"-%07d" % number + bytes({_FILLER}))
"""
"""Sends as many negative numbers as the test asks for, until it is killed: no receiver is as fast as it sends."""


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("stride", [61, pytest.param(7, marks=pytest.mark.soak)])
@pytest.mark.parametrize("options", [OS, FSYNC], ids=["os", "fsync"])
def test_another_process_sends_while_sends_are_interrupted(
    path: Path, begin: Begin, options: ChannelOptions, stride: int
) -> None:
    """Another process never waits for an interrupted one, and no message of either is lost or duplicated."""
    trial = begin(options)
    mine, theirs, perhaps = list[int](), list[int](), set[int]()
    command = [sys.executable, "-c", _SENDING, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
    accepted, asked_for = list[int](), 0

    def take() -> None:
        nonlocal asked_for
        for number in _drain(rx):
            (mine if number > 0 else theirs).append(abs(number))
        bursts = len(theirs) // _BURST + _AHEAD - asked_for
        assert process.stdin is not None
        process.stdin.write(bytes(bursts))
        asked_for += bursts

    def send() -> Callable[[], object]:
        payload = trial.next()
        return lambda: trial.tx.send(payload)

    def check(attempt: Attempt) -> None:
        (accepted.append if attempt.is_done else perhaps.add)(trial.count)
        before = len(theirs)

        def has_more() -> bool:
            take()
            return len(theirs) > before

        until(has_more)

    try:
        with trial.channel.receiver() as rx:
            take()
            trial.run(stride, send, check)
            process.kill()
            process.communicate()
            for number in _drain(rx):
                (mine if number > 0 else theirs).append(abs(number))
    finally:
        process.kill()
        process.communicate()
    trial.close()
    assert trial.tried
    assert [number for number in mine if number not in perhaps] == accepted
    assert mine == sorted(set(mine))
    assert theirs == list(range(1, len(theirs) + 1))
