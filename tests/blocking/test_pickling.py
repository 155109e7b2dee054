"""Pickling: channels and senders open the directory again, in this and in other processes; receivers refuse."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import cast

import msgspec
import pytest
from anyio import ClosedResourceError
from typing_extensions import TypeForm

import filechannel
from filechannel import ChannelNotFoundError, ChannelOptions, Durability, OptionsMismatchError, SchemaMismatchError
from filechannel._format import PURE
from filechannel._storage.open_stores import STORES
from filechannel.blocking import FileChannel, Sender, open_channel
from tests.blocking.threads import all_at_once
from tests.channel.messages import Cancelled, Order, Placed, Point, Reading

MESSAGES: list[tuple[object, object]] = [
    (int, 1),
    (bytes, b"raw"),
    (Order, Order(1)),
    (Point, Point(1, 2.5)),
    (Reading, Reading(sensor="a", value=1.5)),
    (Placed | Cancelled, Cancelled(1, "why")),
    (dict[str, float], {"a": 1.5}),
    (int | None, None),
]
each_message = pytest.mark.parametrize(("message_type", "message"), MESSAGES, ids=lambda value: str(value)[:40])
COPIES: dict[str, Callable[[object], object]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "oldest protocol": lambda value: pickle.loads(pickle.dumps(value, 0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
each_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


class Shout:
    """A codec of the user."""

    name = "shout"

    def __init__(self, marks: int = 1) -> None:
        self.marks = marks

    def encode(self, value: str, /) -> bytes:
        """Return it in capitals."""
        return value.upper().encode() + b"!" * self.marks

    def decode(self, payload: bytes | bytearray | memoryview, /) -> str:
        """Return what was shouted."""
        return bytes(payload).decode()


@each_message
@each_copy
def test_a_sender_comes_back(
    path: Path, copied: Callable[[object], object], message_type: TypeForm[object], message: object
) -> None:
    """An unpickled sender opens the channel when it is first used, and closes it when it is closed."""
    with open_channel(path, message_type) as channel, channel.receiver() as rx, channel.sender() as tx:
        other = cast("Sender[object]", copied(tx))
        assert type(other) is Sender
        assert channel.statistics().senders == 1
        with other:
            other.send(message)
            other.send_many([message])
            assert rx.receive_many(9) == [message, message]
        tx.send(message)
        with pytest.raises(ClosedResourceError):
            other.send(message)


@each_message
@each_copy
def test_a_round_trip_of_a_channel(
    path: Path, copied: Callable[[object], object], message_type: TypeForm[object], message: object
) -> None:
    """An unpickled channel has the same path and type, and is closed separately."""
    with open_channel(path, message_type) as channel:
        with cast("FileChannel[object]", copied(channel)) as other:
            assert (other.path, other.message_type) == (path, message_type)
            with other.sender() as tx, channel.receiver() as rx:
                tx.send(message)
                assert rx.receive(timeout=0) == message
        assert channel.statistics().messages == 1
    assert not STORES._open


@pytest.mark.anyio
@each_copy
async def test_async_objects_come_back(path: Path, copied: Callable[[object], object]) -> None:
    """Unpickled async objects are async, and open the directory off the event loop."""
    async with filechannel.open_channel(path, int) as channel, channel.receiver() as rx, channel.sender() as tx:
        async with cast("filechannel.Sender[int]", copied(tx)) as other:
            assert type(other) is filechannel.Sender
            await other.send(1)
            await other.send_many([2, 3])
            assert await rx.receive_many(9) == [1, 2, 3]
        async with cast("filechannel.FileChannel[int]", copied(channel)) as same, same.sender() as another:
            await another.send(4)
            assert await rx.receive() == 4
        untouched = cast("filechannel.Sender[int]", copied(tx))
        await untouched.aclose()
        for action in (untouched.send(5), untouched.send_many([5])):
            with pytest.raises(ClosedResourceError):
                await action
    assert not STORES._open


@pytest.mark.parametrize("codec", ["json", "msgpack", Shout(3)], ids=["json", "msgpack", "own"])
def test_the_codec_comes_along(path: Path, codec: object) -> None:
    """A codec given by name, or one that can be pickled itself, is pickled with the channel."""
    with open_channel(path, str, codec=codec) as channel, channel.receiver() as rx:  # type: ignore[call-overload]
        with channel.sender() as tx, pickle.loads(pickle.dumps(tx)) as other:
            other.send("hey")
        assert rx.receive() == ("HEY!!!" if isinstance(codec, Shout) else "hey")


def test_what_cannot_be_pickled(path: Path) -> None:
    """Pickling a receiver raises an error that says what to do instead; a type inside a function cannot be pickled."""
    with open_channel(path, int) as channel:
        for rx in (channel.receiver(), channel.replay()):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="pickle the channel, and create a receiver"):
                    attempt(rx)
    local = msgspec.defstruct("Local", [("id", int)])
    with open_channel(path / "local", local) as channel, pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(channel)


@pytest.mark.anyio
async def test_async_receivers_refuse_too(path: Path) -> None:
    """Pickling an async receiver raises the same error as pickling a blocking one."""
    async with filechannel.open_channel(path, int) as channel:
        with pytest.raises(TypeError, match="pickle the channel"):
            pickle.dumps(channel.receiver())


def test_closed_objects_cannot_be_pickled(path: Path) -> None:
    """Pickling a closed object raises, because there is nothing to open again."""
    channel = open_channel(path, int)
    tx = channel.sender()
    lazy = pickle.loads(pickle.dumps(tx))
    lazy.close()
    tx.close()
    channel.close()
    for closed in (channel, tx, lazy):
        with pytest.raises(ClosedResourceError):
            pickle.dumps(closed)


def test_nothing_is_opened_before_it_is_used(path: Path) -> None:
    """Unpickling opens nothing, and an object that was never used is closed or dropped without a warning."""
    with open_channel(path, int) as channel:
        data = pickle.dumps((channel, channel.sender()))
    other, tx = pickle.loads(data)
    assert not STORES._open
    assert (repr(other), repr(tx)) == (f"<FileChannel '{path}'>", f"<Sender '{path}'>")
    other.close()
    tx.close()
    tx.close()
    assert not STORES._open
    with pytest.raises(ClosedResourceError):
        other.sender()
    with pytest.raises(ClosedResourceError):
        tx.send(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del other, tx
        pickle.loads(data)
        gc.collect()


def test_a_sender_that_was_used_and_closed_leaves_nothing_open(path: Path) -> None:
    """An unpickled sender owns its channel and closes it with itself: no warning, and nothing stays open."""
    with open_channel(path, int) as channel:
        data = pickle.dumps(channel.sender())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pickle.loads(data) as tx:
            tx.send(1)
            assert STORES._open
        assert not STORES._open
        del tx
        gc.collect()


def test_clones_of_an_unpickled_sender(path: Path) -> None:
    """Each clone is closed separately, in any order; the last one closes the channel."""
    with open_channel(path, int) as channel:
        data = pickle.dumps(channel.sender())
    for used in (False, True):
        tx = pickle.loads(data)
        if used:
            tx.send(1)
        clone = tx.clone()
        tx.close()
        clone.send(2)
        another = clone.clone()
        clone.close()
        another.send_many([3])
        another.close()
        assert not STORES._open
    with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_many(9) == [2, 3, 1, 2, 3]


def test_an_unpickled_sender_may_be_pickled_again(path: Path) -> None:
    """An unpickled sender can be pickled again, whether or not it was used."""
    with open_channel(path, int) as channel:
        with pickle.loads(pickle.dumps(channel.sender())) as unused, pickle.loads(pickle.dumps(unused)) as tx:
            tx.send(1)
            with pickle.loads(pickle.dumps(tx)) as another:
                another.send(2)
        assert channel.statistics().messages == 2


def test_an_unpickled_sender_in_many_threads(path: Path) -> None:
    """Threads that first use an unpickled sender at once open the channel once, and closing it at the same time is
    safe.
    """
    with open_channel(path, int) as channel:
        for _ in range(10):
            tx = pickle.loads(pickle.dumps(channel.sender()))
            all_at_once(*[partial(tx.send, number) for number in range(8)])
            tx.close()
            racing = pickle.loads(pickle.dumps(channel.sender()))
            all_at_once(*[partial(send_unless_closed, racing)] * 4, racing.close)
            with pytest.raises(ClosedResourceError):
                racing.send(1)
        assert STORES._open
        assert next(iter(STORES._open.values())).users == 1
    assert not STORES._open


def send_unless_closed(tx: Sender[int]) -> None:
    """Send, unless another thread has closed the sender."""
    try:
        tx.send(1)
    except ClosedResourceError:
        pass


# What is found


def test_options_come_along(path: Path) -> None:
    """Pickling keeps the options of one open; channel-wide options are those stored when it is opened again."""
    options = ChannelOptions(validate=True, spin=0.001, segment_size=8192, durability=Durability.FSYNC)
    with open_channel(path, Order, options=options) as channel:
        tx = channel.sender()
        data = pickle.dumps((channel, tx))
        channel.configure(durability=Durability.OS)
        for other in pickle.loads(data):
            with other:
                sender = other.sender() if isinstance(other, FileChannel) else other
                with pytest.raises(filechannel.CodecError):
                    sender.send(Order("one"))  # type: ignore[arg-type]
                sender.send(Order(1))
        assert pickle.loads(data)[0]._options == options.per_open()
    with pytest.raises(OptionsMismatchError):
        open_channel(path, Order, options=options)


def test_a_missing_channel(path: Path, tmp_path: Path) -> None:
    """A copy opens the channel that was open, and does not create a new one."""
    with open_channel(path, int) as channel:
        data = pickle.dumps(channel.sender())
    path.rename(tmp_path / "moved")
    with pickle.loads(data) as tx:
        with pytest.raises(ChannelNotFoundError):
            tx.send(1)
        assert not path.exists()
        (tmp_path / "moved").rename(path)
        tx.send(1)


def test_a_channel_that_has_become_another(path: Path, tmp_path: Path) -> None:
    """An unpickled channel raises when it is used, if its type no longer fits the channel."""
    with open_channel(path, int) as channel:
        data = pickle.dumps((channel, channel.sender()))
    path.rename(tmp_path / "moved")
    open_channel(path, str).close()
    other, tx = pickle.loads(data)
    with other, tx:
        for call in (other.receiver, other.statistics, partial(tx.send, 1)):
            with pytest.raises(SchemaMismatchError):
                call()


def test_a_relative_path_is_resolved_when_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy finds the directory whatever the working directory is."""
    monkeypatch.chdir(tmp_path)
    with open_channel("here", int) as channel:
        data = pickle.dumps(channel.sender())
    monkeypatch.chdir("/")
    with pickle.loads(data) as tx:
        tx.send(1)
    assert (tmp_path / "here" / "channel.json").exists()


def test_a_read_only_channel(path: Path) -> None:
    """A pickled read-only channel is read-only after unpickling."""
    open_channel(path, int).close()
    with open_channel(path, int, readonly=True) as channel, pickle.loads(pickle.dumps(channel)) as other:
        assert other.statistics().messages == 0
        with pytest.raises(OSError, match="read-only"):
            other.sender()


# Other processes


def send_some(tx: Sender[object], messages: list[object]) -> None:
    """Send in another process."""
    with tx:
        for message in messages:
            tx.send(message)


def send_with_a_loop(tx: filechannel.Sender[object], messages: list[object]) -> None:
    """Send in another process, in an event loop."""

    async def main() -> None:
        async with tx:
            for message in messages:
                await tx.send(message)

    asyncio.run(main())


def use_channel(channel: FileChannel[tuple[int, int]], who: int, total: int) -> None:
    """Receive under a name of its own what the parent has sent, and answer."""
    with channel, channel.receiver(str(who)) as rx, channel.sender() as tx:
        got = [rx.receive(timeout=60) for _ in range(total)]
        tx.send((who, len(got)))


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def context(request: pytest.FixtureRequest) -> BaseContext:
    """Each way to start a process."""
    return multiprocessing.get_context(request.param)


def run_all(context: BaseContext, target: Callable[..., object], arguments: list[tuple[object, ...]]) -> None:
    """Run a function in a process for each tuple of arguments; all at once, or one by one where one process is all."""
    processes = [context.Process(target=target, args=each) for each in arguments]  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
        for process in processes:
            process.start()
            if PURE:
                process.join(60)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)


@pytest.mark.parametrize("work", [send_some, send_with_a_loop])
def test_processes_that_send_through_a_pickled_sender(
    path: Path, context: BaseContext, work: Callable[..., object]
) -> None:
    """Processes that get a pickled sender send, and the parent receives the messages of each process in order."""
    each, total = 2, 50
    channel = open_channel(path, tuple[int, int])
    tx = channel.sender() if work is send_some else cast("object", asyncio.run(async_sender(path)))
    with channel, channel.receiver() as rx:
        arguments = [(pickled(tx), [(who, number) for number in range(total)]) for who in range(each)]
        if PURE:
            rx.close()
            channel.close()
            if work is not send_some:
                tx.close()  # type: ignore[attr-defined]
        run_all(context, work, cast("list[tuple[object, ...]]", arguments))
        if not PURE:
            check(rx.receive_many(10**6), each, total)
            if work is not send_some:
                tx.close()  # type: ignore[attr-defined]
            return
    with open_channel(path, tuple[int, int]) as channel, channel.receiver() as rx:
        check(rx.receive_many(10**6), each, total)


async def async_sender(path: Path) -> object:
    """Return a sender of the async kind that has its channel for itself."""
    async with filechannel.open_channel(path, tuple[int, int]) as channel, channel.sender() as tx:
        return pickled(tx)


def pickled(tx: object) -> object:
    """Return it as it arrives elsewhere."""
    return pickle.loads(pickle.dumps(tx))


def check(got: list[tuple[int, int]], each: int, total: int) -> None:
    """Everything came once, and each sender's messages in order."""
    for who in range(each):
        assert [number for sender, number in got if sender == who] == list(range(total))
    assert len(got) == each * total


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_processes_that_receive_through_a_pickled_channel(path: Path, context: BaseContext) -> None:
    """Processes that get a pickled channel receive every message under their own names, and report to the parent."""
    with open_channel(path, tuple[int, int]) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many([(-1, number) for number in range(500)])
        rx.seek("latest")
        run_all(context, use_channel, [(channel, who, 500) for who in range(2)])
        assert sorted(rx.receive_many(9)) == [(0, 500), (1, 500)]
        assert [writer.pid for writer in channel.statistics().writers] == [os.getpid()]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
@pytest.mark.parametrize(("message_type", "message"), MESSAGES, ids=lambda value: str(value)[:40])
def test_every_kind_of_type_is_found_in_another_process(
    path: Path, message_type: TypeForm[object], message: object
) -> None:
    """Message types of every kind are found again in another process by their module."""
    with open_channel(path, message_type) as channel, channel.receiver() as rx, channel.sender() as tx:
        run_all(multiprocessing.get_context("forkserver"), send_some, [(tx, [message] * 3)])
        assert rx.receive_many(9) == [message] * 3


def test_a_pool_of_processes(path: Path) -> None:
    """A process pool accepts senders as arguments of each task."""
    with open_channel(path, int) as channel:
        tx = pickle.loads(pickle.dumps(channel.sender()))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.starmap(send_some, [(tx, [number]) for number in range(5)], chunksize=1)
        pool.close()
        pool.join()
    tx.close()
    with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_many(9) == list(range(5))


def test_errors_come_back_from_another_process(path: Path) -> None:
    """An error in another process is raised in this one with its own type."""
    with open_channel(path, int) as channel:
        channel.seal()
        tx = pickle.loads(pickle.dumps(channel.sender()))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with pytest.raises(filechannel.ChannelSealedError) as failure:
            pool.apply(send_some, (tx, [1]))
        pool.close()
        pool.join()
    assert failure.value.path == path
    tx.close()


@pytest.mark.anyio
async def test_an_unpickled_channel_is_open_in_its_block(path: Path) -> None:
    """`async with` opens it off the event loop, so that nothing in the block has to."""
    async with filechannel.open_channel(path, int) as channel:
        data = pickle.dumps(channel)
    async with pickle.loads(data) as other:
        assert STORES._open
        with other.sender() as tx:
            tx.send_nowait(1)
    assert not STORES._open
