"""Sending without async."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import ClosedResourceError, WouldBlock

import filechannel
from filechannel import (
    ChannelOptions,
    ChannelSealedError,
    CodecError,
    Durability,
    MessageTooLargeError,
    MessageTypeError,
    StorageError,
)
from filechannel._format import PURE
from filechannel.blocking import FileChannel, open_channel
from tests.blocking.children import HOLDER, running
from tests.blocking.threads import all_at_once, in_thread, until
from tests.channel.gates import Gate
from tests.channel.messages import Order

FSYNC = ChannelOptions(durability=Durability.FSYNC)
many_processes = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


def test_what_is_sent_is_there_on_return(channel: FileChannel[int]) -> None:
    """After `send` returns every receiver can get the message, under every durability."""
    with channel.sender() as tx, channel.receiver() as rx, channel.receiver("other") as other:
        for number in range(50):
            assert tx.send(number) is None  # type: ignore[func-returns-value]
            assert rx.receive_nowait() == number
        assert other.receive_many_nowait(99) == list(range(50))


def test_a_batch_returns_the_offset_of_its_first_message(channel: FileChannel[int]) -> None:
    """`send_many` accepts any iterable, sends it as one batch, and returns the offset of its first message."""
    with channel.sender() as tx, channel.receiver() as rx:
        tx.send(0)
        start = tx.write_offset
        assert tx.send_many(iter(range(1, 2500))) == start
        assert rx.receive_many(5000) == list(range(2500))
        assert channel.offset_of(1) == start


def test_an_empty_batch_is_nothing(channel: FileChannel[int]) -> None:
    """`send_many([])` sends nothing, even to a sealed channel, and returns the write offset."""
    with channel.sender() as tx:
        channel.seal()
        assert tx.send_many([]) == tx.write_offset
        assert channel.statistics().next_sequence == 0


def test_a_bad_item_names_its_index(channel: FileChannel[int]) -> None:
    """A batch with a bad item is not sent at all, and the error names the index of the item."""
    with channel.sender() as tx:
        with pytest.raises(MessageTypeError) as failure:
            tx.send_many([1, 2, "three"])  # type: ignore[list-item]
        assert failure.value.index == 2
        with pytest.raises(MessageTypeError):
            tx.send("four")  # type: ignore[arg-type]
        assert channel.statistics().messages == 0


def test_values_that_do_not_fit(path: Path) -> None:
    """A value or message size that does not fit raises the errors of the async sender, with and without a timeout."""
    options = ChannelOptions(max_message_size=100, validate=True)
    with open_channel(path, Order, options=options) as channel, channel.sender() as tx:
        for timeout in (None, 1.0):
            with pytest.raises(CodecError):
                tx.send(Order("one"), timeout)  # type: ignore[arg-type]
            with pytest.raises(MessageTooLargeError):
                tx.send(Order(1, "x" * 200), timeout)
        assert channel.statistics().messages == 0


def test_nowait_methods(channel: FileChannel[int]) -> None:
    """`send_nowait` and `send_many_nowait` return offsets, and `flush` waits for what they began."""
    with channel.sender() as tx, channel.receiver() as rx:
        first = tx.send_nowait(1)
        second = tx.send_many_nowait([2, 3])
        channel.flush()
        records = [rx.receive_record() for _ in range(3)]
        assert [record.value for record in records] == [1, 2, 3]
        assert [record.offset for record in records][:2] == [first, second]


def test_clones_are_closed_separately(channel: FileChannel[int]) -> None:
    """A clone keeps working when the sender it was made of is closed."""
    tx = channel.sender()
    clone = tx.clone()
    tx.close()
    tx.close()
    clone.send(1)
    assert clone.statistics().next_sequence == 1
    with pytest.raises(ClosedResourceError):
        tx.clone()


def test_a_closed_sender_refuses_everything(channel: FileChannel[int]) -> None:
    """Every method of a closed sender, and of one whose channel is closed, raises `ClosedResourceError`."""
    closed = channel.sender()
    closed.close()
    orphan = channel.sender()
    channel.close()
    for tx in (closed, orphan):
        for call in (
            partial(tx.send, 1),
            partial(tx.send, 1, 1.0),
            partial(tx.send_many, [1]),
            partial(tx.send_many, []),
            partial(tx.send_nowait, 1),
            partial(tx.send_many_nowait, [1]),
            tx.statistics,
            lambda tx=tx: tx.write_offset,
        ):
            with pytest.raises(ClosedResourceError):
                call()


def test_sending_to_a_sealed_channel(channel: FileChannel[int]) -> None:
    """Every way to send to a sealed channel raises `ChannelSealedError`."""
    with channel.sender() as tx:
        tx.send(1)
        channel.seal()
        for call in (partial(tx.send, 2), partial(tx.send, 2, timeout=1), partial(tx.send_many, [2])):
            with pytest.raises(ChannelSealedError):
                call()


@pytest.mark.parametrize("timeout", ["soon", -1, float("nan"), float("inf"), True, 1j])
def test_a_wrong_timeout_is_named(path: Path, timeout: float) -> None:
    """An invalid timeout raises an error with its name, and nothing is sent."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        for call in (partial(tx.send, 1, timeout), partial(tx.send, 1, timeout=timeout), partial(tx.send_many, [1])):
            keywords = {"timeout": timeout} if call.func == tx.send_many else {}
            with pytest.raises((TypeError, ValueError), match="timeout="):
                call(**keywords)
        assert channel.statistics().messages == 0


def test_wrong_arguments(path: Path) -> None:
    """`send` takes an item and a timeout."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        for arguments, keywords in (((), {}), ((1, None, 3), {}), ((1,), {"timeot": 1}), ((1, 2), {"timeout": 1})):
            with pytest.raises(TypeError):
                tx.send(*arguments, **keywords)
        tx.send(item=1, timeout=None)
        tx.send(2, timeout=None)
        assert channel.statistics().messages == 2


# On disk


def test_send_returns_only_when_the_message_is_on_disk(path: Path, gate: Gate) -> None:
    """Under FSYNC `send` and `send_many` wait for the disk, and no receiver sees a message before it is there."""
    with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        for send, expected in ((partial(tx.send, 1), [1]), (partial(tx.send_many, [2, 3]), [2, 3])):
            with gate.closed(), in_thread(send) as sending:
                assert gate.reached.wait(60)
                assert not sending.done()
                assert rx.receive_many_nowait(9) == []
                gate.open()
                sending.result(60)
            assert rx.receive_many_nowait(9) == expected
            assert channel.statistics().durable_offset == tx.write_offset


def test_threads_share_a_flush(path: Path, gate: Gate) -> None:
    """Thirty threads that send at once under FSYNC wait for a few flushes, not for thirty."""
    with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx:
        tail = partial(channel._store.control.tail, deferred=True)
        with gate.closed(), in_thread(partial(tx.send, 0)):
            assert gate.reached.wait(60)
            before = gate.flushes
            sends = [partial(tx.send, number) for number in range(1, 31)]
            with in_thread(lambda: all_at_once(*sends)) as others:
                until(lambda: tail().sequence == 31)
                gate.open()
                others.result(60)
        assert gate.flushes - before <= 3
        assert channel.statistics().messages == 31


def test_a_failed_flush_is_reported_to_every_sender_that_waited(path: Path, gate: Gate) -> None:
    """Each thread whose message was not flushed gets `StorageError`; later sends work."""
    with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:
        tail = partial(channel._store.control.tail, deferred=True)
        failures = list[StorageError]()

        def send(number: int) -> None:
            try:
                tx.send(number)
            except StorageError as error:
                failures.append(error)

        gate.error = OSError(errno.EIO, os.strerror(errno.EIO))
        with gate.closed(), in_thread(partial(send, 0)):
            assert gate.reached.wait(60)
            with in_thread(lambda: all_at_once(*[partial(send, number) for number in range(1, 6)])):
                until(lambda: tail().sequence == 6)
                gate.open()
        assert len(failures) == 6
        tx.send(7)
        assert rx.receive_many_nowait(9) == [7]


def test_an_interrupted_flush_leaves_no_message_unseen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Ctrl-C interrupts `send` while it waits for the disk, the message is in the channel and becomes visible."""
    with open_channel(path, int, options=FSYNC) as channel, channel.sender() as tx, channel.receiver() as rx:

        def interrupted(_: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(channel._store.group_commit, "commit_for", interrupted)
            with pytest.raises(KeyboardInterrupt):
                tx.send(1)
        assert rx.receive(timeout=60) == 1


def test_closing_waits_for_threads_in_send(path: Path, gate: Gate) -> None:
    """Closing a channel lets a thread that waits for the disk return from `send`: its message is stored."""
    channel = open_channel(path, int, options=FSYNC)
    tx = channel.sender()
    with gate.closed(), in_thread(partial(tx.send, 1)) as sending:
        assert gate.reached.wait(60)
        with in_thread(channel.close):
            gate.open()
        sending.result(60)
    with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_nowait() == 1


# Another process in the middle of sending


@many_processes
def test_a_timeout_while_another_process_keeps_the_channel(path: Path) -> None:
    """While another process holds the writer lock, `send` waits, and with a timeout raises and has sent nothing."""
    with open_channel(path, int) as channel, channel.sender() as tx, running(HOLDER, path) as other:
        other.expect("held")
        os.kill(other.process.pid, signal.SIGSTOP)
        for timeout in (0, 0.01):
            before = time.monotonic()
            with pytest.raises(TimeoutError, match="nothing was sent"):
                tx.send(1, timeout)
            with pytest.raises(TimeoutError):
                tx.send_many([1, 2], timeout=timeout)
            assert time.monotonic() - before < 60
        assert channel.statistics().messages == 0
        with in_thread(partial(tx.send, 3)) as sending:
            until(lambda: bool(channel._store.control.map))
            os.kill(other.process.pid, signal.SIGCONT)
            other.resume()
            other.expect("released")
            sending.result(60)
        assert channel.statistics().messages == 1


@many_processes
def test_the_lock_holder_is_named(path: Path) -> None:
    """`TimeoutError` names the directory and the lock holder; statistics name it, and no process while none sends."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        assert channel.statistics().busy_writer is None
        with running(HOLDER, path) as other:
            other.expect("held")
            pid, seconds = other.process.pid, 0.001
            sends = (partial(tx.send, 1, seconds), partial(tx.send_many, [1], timeout=seconds))
            for send in sends:
                with pytest.raises(TimeoutError, match=re.escape(f"{path}: process {pid} on {socket.gethostname()} ")):
                    send()
            busy = channel.statistics().busy_writer
            assert busy is not None
            assert busy.pid == pid
            assert busy in channel.statistics().writers
            other.resume()
            other.expect("released")
            assert channel.statistics().busy_writer is None
            assert len(channel.statistics().writers) == 2
        tx.send(2)
        assert channel.statistics().busy_writer is None


@many_processes
def test_opening_while_another_process_holds_the_writer_lock(path: Path) -> None:
    """Another process can open the channel and receive; only sending waits."""
    for durability in (Durability.OS, Durability.FSYNC):
        with open_channel(path / durability.kind, int, options=ChannelOptions(durability=durability)) as channel:
            channel.sender().send(1)
        with running(HOLDER, path / durability.kind) as other:
            other.expect("held")
            os.kill(other.process.pid, signal.SIGSTOP)
            with open_channel(path / durability.kind, int) as channel, channel.receiver() as rx, channel.sender() as tx:
                assert len(channel.statistics().writers) == 2
                assert rx.receive() == 1
                with pytest.raises(TimeoutError):
                    tx.send(2, timeout=0)
                os.kill(other.process.pid, signal.SIGCONT)
                other.resume()
                tx.send(3)
                assert rx.receive() == 3


@many_processes
def test_timeouts_of_threads_do_not_add_up(path: Path) -> None:
    """Threads that wait for another process time out independently, although one of them has no timeout."""
    with open_channel(path, int) as channel, channel.sender() as tx, running(HOLDER, path) as other:
        other.expect("held")
        with in_thread(partial(tx.send, 0)) as for_ever:

            def time_out() -> None:
                with pytest.raises(TimeoutError):
                    tx.send(1, timeout=0.01)

            all_at_once(*[time_out] * 5)
            assert not for_ever.done()
            other.resume()
            other.expect("released")
            for_ever.result(60)
        assert channel.statistics().messages == 1


@many_processes
def test_an_event_loop_keeps_running_while_a_thread_waits_for_another_process(path: Path) -> None:
    """While a thread waits in `send` for another process, tasks of an event loop can wait and time out."""

    async def main() -> None:
        async with filechannel.open_channel(path, int) as channel, channel.sender() as tx:
            with pytest.raises(WouldBlock):
                tx.send_nowait(2)
            async with anyio.create_task_group() as group:
                group.start_soon(tx.send, 3)
                for _ in range(5):
                    before = time.monotonic()
                    await asyncio.sleep(0.001)
                    assert time.monotonic() - before < 60
                other.resume()

    with open_channel(path, int) as channel, channel.sender() as tx, running(HOLDER, path) as other:
        other.expect("held")
        with in_thread(partial(tx.send, 1)) as sending:
            until(lambda: threading.active_count() > 1)
            asyncio.run(main())
            sending.result(60)
        with channel.replay() as history:
            assert sorted(history) == [1, 3]


def test_sending_from_a_thread_that_runs_an_event_loop(path: Path) -> None:
    """A blocking sender works in a thread that runs an event loop, although it should not be used there."""

    async def main() -> None:
        with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
            tx.send(1)
            tx.send(2, timeout=1)
            assert [rx.receive(), rx.receive(timeout=1)] == [1, 2]

    asyncio.run(main())
