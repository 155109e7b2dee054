"""A channel without async: opening, changing, closing."""

from __future__ import annotations

import gc
import io
import os
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest
from anyio import ClosedResourceError, EndOfStream

import filechannel
from filechannel import (
    ChannelNotFoundError,
    ChannelOptions,
    Durability,
    OptionsMismatchError,
    Process,
    SchemaMismatchError,
)
from filechannel._format import PURE
from filechannel._storage.open_stores import STORES
from filechannel.blocking import FileChannel, open_channel
from tests.blocking.threads import all_at_once, in_thread, until
from tests.channel.gates import Gate
from tests.channel.messages import Cancelled, Order, Placed
from tests.storage.resources import descriptors_under


def test_opening_creates_and_shares(path: Path) -> None:
    """Two opens of one directory, async or not, share their messages, and closing one leaves the other open."""
    with open_channel(path, int) as first:
        with open_channel(str(path), int) as second, second.sender() as tx:
            tx.send(1)
        with first.receiver() as rx:
            assert rx.receive(timeout=0) == 1
        assert (first.path, first.message_type) == (path, int)


def test_errors_of_opening(path: Path) -> None:
    """The blocking `open_channel` refuses the same arguments as the async one."""
    with pytest.raises(ChannelNotFoundError):
        open_channel(path, int, create=False)
    with pytest.raises(ChannelNotFoundError):
        open_channel(path, int, readonly=True)
    open_channel(path, int).close()
    with pytest.raises(SchemaMismatchError):
        open_channel(path, str)
    with pytest.raises(OptionsMismatchError):
        open_channel(path, int, options=ChannelOptions(segment_size=8192))
    with pytest.raises(TypeError, match="options"):
        open_channel(path, int, options={})  # type: ignore[call-overload]


def test_a_union_and_a_codec(path: Path) -> None:
    """A blocking channel accepts unions of Structs and every codec, as an async one does."""
    with open_channel(path, Placed | Cancelled, codec="json") as channel, channel.sender() as tx:
        tx.send(Placed(1))
        tx.send(Cancelled(2, "why"))
        with channel.replay() as history:
            assert list(history) == [Placed(1), Cancelled(2, "why")]


def test_raw_bytes(path: Path) -> None:
    """In raw mode a sender accepts any buffer, and receivers return bytes."""
    with open_channel(path, bytes) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many([b"a", bytearray(b"b"), memoryview(b"c")])  # type: ignore[list-item]
        assert rx.receive_many(9) == [b"a", b"b", b"c"]


def test_flush_waits_for_the_disk(path: Path, gate: Gate) -> None:
    """`flush` returns when what was sent is on disk, under any durability."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send(1)
        with gate.closed(), in_thread(channel.flush) as flushing:
            assert gate.reached.wait(60)
            assert not flushing.done()
            gate.open()
            flushing.result(60)
        assert channel.statistics().durable_offset == tx.write_offset


def test_seal_purge_and_configure(path: Path) -> None:
    """`seal`, `purge` and `configure` have taken effect when they return."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many(range(10))
        channel.purge()
        assert rx.receive_many_nowait(99) == []
        tx.send(10)
        channel.configure(durability=Durability.FSYNC)
        tx.send(11)
        assert channel.statistics().durable_offset == tx.write_offset
        channel.seal()
        channel.seal()
        assert list(rx) == [10, 11]
        assert channel.statistics().sealed
        with pytest.raises(TypeError, match="schema"):
            channel.configure(schema=bytes)
        with pytest.raises(ValueError, match="99"):
            channel.offset_of(99)
        with pytest.raises(TypeError, match="sequence"):
            channel.offset_of("1")  # type: ignore[arg-type]


def test_a_new_field(path: Path) -> None:
    """`configure(schema=…)` affects channels that are opened afterwards."""
    new = msgspec.defstruct("Order", [("id", int), ("note", int)])
    with open_channel(path, Order) as channel:
        channel.configure(schema=new)
    with open_channel(path, new) as channel, channel.sender() as tx:
        tx.send(new(1, 2))


def test_statistics_name_the_writers(channel: FileChannel[int]) -> None:
    """Statistics list the processes that have the channel open for writing, this one first."""
    writers = channel.statistics().writers
    assert [type(writer) for writer in writers] == [Process]
    assert (writers[0].pid, writers[0].host) == (os.getpid(), os.uname().nodename[:40])
    assert writers[0].since is not None
    with open_channel(channel.path, int, readonly=True) as same:
        assert same.statistics().writers == writers  # it shares what is open for writing


def test_a_channel_that_is_open_read_only(path: Path) -> None:
    """A read-only channel can be replayed and refuses every change."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send(1)
    with open_channel(path, int, readonly=True) as channel:
        assert channel.statistics().writers == ()
        with channel.replay() as history:
            assert list(history) == [1]
        for call in (channel.sender, channel.receiver, channel.flush, channel.seal, channel.purge, channel.configure):
            with pytest.raises(io.UnsupportedOperation):
                call()


def test_closing_closes_what_was_created(channel: FileChannel[int]) -> None:
    """Every method of a closed channel raises, and closing it twice is allowed."""
    rx, history = channel.receiver(), channel.replay()
    channel.close()
    channel.close()
    for call in (
        rx.receive,
        history.receive,
        channel.sender,
        channel.receiver,
        channel.replay,
        channel.statistics,
        channel.flush,
        channel.seal,
        channel.purge,
        channel.configure,
        partial(channel.offset_of, 0),
    ):
        with pytest.raises(ClosedResourceError):
            call()
    assert "closed" in repr(channel)


def test_closing_waits_for_what_is_under_way(path: Path, gate: Gate) -> None:
    """`close` waits until a flush in another thread has ended, and only then closes the files."""
    channel = open_channel(path, int)
    with channel.sender() as tx:
        tx.send(1)
    with gate.closed(), in_thread(channel.flush) as flushing:
        assert gate.reached.wait(60)
        with in_thread(channel.close) as closing:
            until(lambda: channel._closed)
            assert not closing.done()
            gate.open()
        flushing.result(60)


def test_an_interrupted_blocking_call_does_not_keep_a_channel_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in `flush` the channel works, and closes."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with open_channel(path, int) as channel, channel.sender() as tx:
        with monkeypatch.context() as patch:
            patch.setattr(channel._store.flusher, "flush", interrupted)
            with pytest.raises(KeyboardInterrupt):
                channel.flush()
        tx.send(1)
        channel.flush()


def test_an_unclosed_channel_emits_a_warning(path: Path) -> None:
    """A channel that is dropped without closing emits a `ResourceWarning`, and is closed."""
    gc.collect()
    with pytest.warns(ResourceWarning, match="unclosed <FileChannel"):
        forget_a_channel(path)
    until(lambda: not STORES._open)


def forget_a_channel(path: Path) -> None:
    """Open a channel, and leave it at that."""
    open_channel(path, int)
    gc.collect()


def test_opening_in_fifty_threads_at_once(path: Path) -> None:
    """One of them creates the channel, all of them share it, and the last one closes it."""

    def work(number: int) -> None:
        with open_channel(path, int) as channel, channel.sender() as tx:
            tx.send(number)

    all_at_once(*[partial(work, number) for number in range(50)])
    with open_channel(path, int) as channel, channel.receiver() as rx:
        assert sorted(rx.receive_many(99)) == list(range(50))


def test_the_end_of_a_stream_is_not_a_timeout(path: Path) -> None:
    """After the last message `EndOfStream` is raised at once, whatever the timeout."""
    with open_channel(path, int) as channel, channel.receiver() as rx:
        channel.seal()
        with pytest.raises(EndOfStream):
            rx.receive(timeout=0)


def test_async_and_blocking_have_the_same_methods() -> None:
    """The async and the blocking class have the same methods, apart from those that only async code needs."""
    for name in ("FileChannel", "Sender", "Receiver", "FanOutReceiver"):
        ours, theirs = (
            {method for method in dir(getattr(module, name)) if not method.startswith("_")}
            for module in (filechannel.blocking, filechannel)
        )
        assert theirs - ours <= {"aclose", "send_eof", "extra", "extra_attributes"}
        assert ours - theirs == set()


@pytest.mark.skipif(PURE and sys.version_info < (3, 13), reason="only C can map without a descriptor there")
def test_a_closed_channel_keeps_no_descriptor(path: Path) -> None:
    """A closed channel keeps no descriptor open, also with the garbage collector turned off."""
    gc.disable()
    try:
        for number in range(5):
            with open_channel(path.with_name(f"{number}"), int) as channel:
                channel.sender().send(number)
                assert channel.receiver().receive() == number
        assert descriptors_under(path.parent) == 0
    finally:
        gc.enable()


def test_configure_says_why_it_does_not_take_an_option(path: Path) -> None:
    """`configure` refuses `segment_size`, and the error says that it is fixed at creation."""
    with open_channel(path, bytes) as channel, pytest.raises(TypeError, match="segment_size: it is fixed at creation"):
        channel.configure(segment_size=4096)  # type: ignore[arg-type]


def test_advice_about_configure_has_no_await(path: Path) -> None:
    """The messages name `channel.configure`, which is not a coroutine here."""
    open_channel(path, int).close()
    with pytest.raises(OptionsMismatchError, match=r"'channel\.configure\(durability=") as options:
        open_channel(path, int, options=ChannelOptions(durability=Durability.FSYNC))
    with pytest.raises(SchemaMismatchError, match=r"'channel\.configure\(schema=") as schema:
        open_channel(path, str)
    assert "await" not in f"{options.value}{schema.value}"
