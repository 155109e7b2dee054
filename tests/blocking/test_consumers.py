"""Consumers without async: listing, removing, expiring and waiting for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from anyio import ClosedResourceError

from filechannel import ConsumerBusyError, UnknownConsumerError
from filechannel.blocking import FileChannel, open_channel
from tests.blocking.threads import in_thread
from tests.storage.clocks import Clock


def test_consumers_are_listed_and_removed(channel: FileChannel[int]) -> None:
    """A blocking channel lists and removes consumers as an async one does."""
    with channel.sender() as tx, channel.receiver("a", expires=60) as rx:
        tx.send_many([1, 2])
        assert rx.receive() == 1
        [found] = channel.consumers()
        assert (found.name, found.offset, found.lag_messages, found.expires) == ("a", rx.read_offset, 1, 60.0)
        with pytest.raises(ConsumerBusyError) as caught:
            channel.remove_consumer("a")
        assert caught.value.pid == os.getpid()
    channel.remove_consumer("a")
    assert channel.consumers() == ()
    with pytest.raises(UnknownConsumerError):
        channel.remove_consumer("a")


def test_a_name_expires(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer name with an expiry is removed when it has had no owner for that long."""
    clock = Clock.install(monkeypatch)
    with open_channel(path, int) as channel:
        channel.receiver("a", expires=60).close()
        channel.ack_receiver("b", expires=60).close()
        clock.pass_seconds(60)
        assert channel.consumers() == ()


def test_join_waits_for_a_thread(channel: FileChannel[int]) -> None:
    """`join` returns when another thread has received every message that was stored."""
    with channel.sender() as tx, channel.receiver("a") as rx:
        tx.send_many(range(100))
        with in_thread(lambda: [rx.receive() for _ in range(100)]):
            channel.join("a", timeout=60)
            assert rx.read_offset == tx.write_offset


def test_join_times_out(channel: FileChannel[int]) -> None:
    """`join` of a consumer that receives nothing raises `TimeoutError` and changes nothing."""
    with channel.sender() as tx, channel.receiver("a") as rx:
        tx.send(1)
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match="'a' did not catch up"):
                channel.join("a", timeout=timeout)
        assert rx.receive() == 1
        channel.join("a", timeout=0)
        with pytest.raises(ValueError, match="timeout"):
            channel.join("a", timeout=-1)
        with pytest.raises(UnknownConsumerError):
            channel.join("b", timeout=0)


def test_join_of_a_closed_channel(path: Path) -> None:
    """`join` of a closed channel raises `ClosedResourceError`."""
    with open_channel(path, int) as channel:
        channel.receiver("a").close()
    with pytest.raises(ClosedResourceError):
        channel.join("a")
