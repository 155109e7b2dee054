"""Any number of messages as one batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelOptions, Durability, MessageTooLargeError, blocking
from filechannel._channel.base.publish_batch import publish
from filechannel._channel.lifecycle.channel_description import describe_channel
from filechannel._storage.open_stores import STORES
from filechannel._storage.store import Store


def make(path: Path, options: ChannelOptions | None = None) -> Store:
    """Make a channel of bytes, and open what is below it."""
    blocking.open_channel(path, bytes, options=options).close()
    return describe_channel(path).open_spec().open_store()


def parts(count: int, *, fail: bool = False) -> Iterator[list[bytes]]:
    """Return payloads in parts of ten, some of them empty."""
    for start in range(0, count, 10):
        yield [b"%d" % number for number in range(start, start + 10)]
        yield []
    if fail:
        raise KeyboardInterrupt


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=repr)
def test_all_of_them_at_once(path: Path, durability: Durability) -> None:
    """A batch becomes visible at once, across any number of segments, and wakes waiting receivers."""
    store = make(path, ChannelOptions(segment_size=4096, durability=durability))
    with blocking.open_channel(path, bytes) as channel, channel.receiver() as receiver:
        assert publish(store, parts(5000)) == 5000
        assert receiver.receive_many_nowait(10_000) == [b"%d" % number for number in range(5000)]
    STORES.close(store)
    assert not (path / "staging").exists()


def test_none_of_them(path: Path) -> None:
    """A batch that is interrupted in the middle is not sent, and nothing of it is left."""
    store = make(path)
    with pytest.raises(KeyboardInterrupt):
        publish(store, parts(50, fail=True))
    assert store.control.write_offset == 0
    STORES.close(store)
    assert not (path / "staging").exists()


def test_nothing_at_all(path: Path) -> None:
    """An empty list of payloads publishes nothing."""
    store = make(path)
    assert publish(store, iter([])) == 0
    assert store.control.write_offset == 0
    STORES.close(store)


def test_what_never_fits(path: Path) -> None:
    """A payload that is too large, and a batch above the capacity, are refused."""
    store = make(path, ChannelOptions(max_message_size=10, capacity=Capacity(max_messages=15)))
    for payloads in ([[b"x", b"x" * 11]], parts(20)):
        with pytest.raises(MessageTooLargeError):
            publish(store, payloads)
    assert publish(store, parts(10)) == 10
    STORES.close(store)
    assert not (path / "staging").exists()
