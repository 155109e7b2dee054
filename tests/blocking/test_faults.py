"""Every public method with an operating system that refuses: what comes out is an error of this package, or anyio's."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock

from filechannel import Capacity, ChannelOptions, Durability, FileChannelError, Retention
from filechannel._offset import Offset
from filechannel._storage import open_stores
from filechannel.blocking import FileChannel, open_channel, transaction
from tests.storage.refusing import RefusingFiles

Channel = FileChannel[bytes]
ALLOWED = FileChannelError, ClosedResourceError, EndOfStream, WouldBlock, ValueError, TimeoutError
ERRORS = errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOENT, errno.ENOMEM, errno.EROFS, errno.ENFILE


def make(channel: Channel, stack: ExitStack) -> dict[str, Any]:
    """Return objects of every kind, with messages waiting for each of them."""
    objects: dict[str, Any] = {
        "tx": channel.sender(),
        "rx": channel.receiver("fan-out"),
        "acked": channel.ack_receiver("acked"),
        "group": channel.group("group"),
        "replayed": channel.replay(stop=None),
        "channel": channel,
    }
    for each in objects.values():
        stack.callback(each.close)
    channel.receiver("unowned").close()
    with channel.sender() as tx:
        for _ in range(30):
            tx.send(bytes(900))
    objects["acked"].receive()
    objects["delivery"] = objects["acked"].receive_delivery()
    objects["member"] = objects["group"].receive_delivery()
    return objects


def commit(tx: Any, acked: Any, **_: Any) -> None:
    """Receive and send in one step."""
    acked.ack(2)
    with transaction(acked, tx) as step:
        step.send(step.receive())


def process(acked: Any, **_: Any) -> None:
    """Acknowledge what a block has done."""
    with acked.processing():
        pass


METHODS: dict[str, Callable[..., object]] = {
    "channel.sender": lambda channel, **_: channel.sender(),
    "channel.receiver": lambda channel, **_: channel.receiver("new", expires=60.0),
    "channel.receiver, known": lambda channel, **_: channel.receiver("unowned"),
    "channel.ack_receiver": lambda channel, **_: channel.ack_receiver("new", start=Offset(0)),
    "channel.group": lambda channel, **_: channel.group("new", start="latest"),
    "channel.group, known": lambda channel, **_: channel.group("group"),
    "channel.replay": lambda channel, **_: channel.replay(start=channel.offset_of(20)),
    "channel.remove_consumer": lambda channel, **_: channel.remove_consumer("unowned"),
    "channel.join": lambda channel, **_: channel.join("unowned", timeout=0),
    "channel.offset_of": lambda channel, **_: channel.offset_of(15),
    "channel.flush": lambda channel, **_: channel.flush(),
    "channel.seal": lambda channel, **_: channel.seal(),
    "channel.purge": lambda channel, **_: channel.purge(),
    "channel.configure": lambda channel, **_: channel.configure(
        retention=Retention(max_age=60.0), durability=Durability.FSYNC, capacity=Capacity(max_messages=5000)
    ),
    "channel.statistics": lambda channel, **_: channel.statistics(),
    "channel.consumers": lambda channel, **_: channel.consumers(),
    "channel.close": lambda channel, **_: channel.close(),
    "sender.send": lambda tx, **_: tx.send(bytes(3000)),
    "sender.send_nowait": lambda tx, **_: tx.send_nowait(bytes(3000)),
    "sender.send_many": lambda tx, **_: tx.send_many([bytes(1000)] * 20),
    "sender.send_payload": lambda tx, **_: tx.send_payload(bytes(3000)),
    "sender.statistics": lambda tx, **_: tx.statistics(),
    "sender.clone": lambda tx, **_: tx.clone(),
    "sender.close": lambda tx, **_: tx.close(),
    "receiver.receive": lambda rx, **_: [rx.receive(timeout=0) for _ in range(12)],
    "receiver.receive_nowait": lambda rx, **_: [rx.receive_nowait() for _ in range(12)],
    "receiver.receive_record": lambda rx, **_: [rx.receive_record(timeout=0) for _ in range(12)],
    "receiver.receive_many": lambda rx, **_: rx.receive_many(30, timeout=0),
    "receiver.peek": lambda rx, **_: rx.peek(30),
    "receiver.seek, earliest": lambda rx, **_: rx.seek("earliest"),
    "receiver.seek, offset": lambda rx, **_: rx.seek(Offset(908)),
    "receiver.statistics": lambda rx, **_: rx.statistics(),
    "receiver.unsubscribe": lambda rx, **_: rx.unsubscribe(),
    "receiver.close": lambda rx, **_: rx.close(),
    "replayed.receive_many": lambda replayed, **_: replayed.receive_many(30, timeout=0),
    "ack_receiver.receive": lambda acked, **_: [acked.receive(timeout=0) for _ in range(12)],
    "ack_receiver.ack": lambda acked, **_: acked.ack(2),
    "ack_receiver.nack": lambda acked, **_: [acked.nack(2), acked.receive(timeout=0)],
    "ack_receiver.processing": process,
    "ack_receiver.seek": lambda acked, **_: acked.seek("latest"),
    "ack_receiver.unsubscribe": lambda acked, **_: acked.unsubscribe(),
    "delivery.ack": lambda delivery, **_: delivery.ack(),
    "delivery.nack": lambda delivery, **_: delivery.nack(),
    "transaction": commit,
    "group.receive": lambda group, **_: [group.receive(timeout=0) for _ in range(12)],
    "group.peek": lambda group, **_: group.peek(20),
    "group.statistics": lambda group, **_: group.statistics(),
    "group.close": lambda group, **_: group.close(),
    "group.unsubscribe": lambda group, **_: group.unsubscribe(),
    "group.delivery.ack": lambda member, **_: member.ack(),
    "group.delivery.extend": lambda member, **_: member.extend(),
}
IN_MEMORY = {
    "channel.sender",
    "sender.statistics",
    "sender.clone",
    "sender.close",
    "receiver.receive",
    "receiver.receive_nowait",
    "receiver.receive_record",
    "receiver.receive_many",
    "receiver.peek",
    "receiver.seek, earliest",
    "receiver.statistics",
    "replayed.receive_many",
    "ack_receiver.receive",
    "ack_receiver.ack",
    "ack_receiver.nack",
    "ack_receiver.processing",
    "ack_receiver.seek",
    "delivery.ack",
    "delivery.nack",
    "group.receive",
    "group.peek",
    "group.statistics",
    "group.delivery.ack",
    "group.delivery.extend",
}
"""Methods that need not call the operating system here: the segments and the cursors are mapped."""
OPTIONS = {
    "os": ChannelOptions(segment_size=4096),
    "fsync": ChannelOptions(segment_size=4096, durability=Durability.FSYNC, cursor_flush="fsync", spare_segments=0),
}


CASES = [(method, "os") for method in METHODS] + [
    (method, "fsync") for method in METHODS if method.startswith(("channel.", "sender.send", "receiver.rec", "trans"))
]


@pytest.mark.parametrize(("method", "options"), CASES)
def test_what_is_refused_is_a_typed_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, method: str, options: str
) -> None:
    """A method raises a typed error, whichever call the operating system refuses, in whichever thread."""
    for at in count(1):
        files = RefusingFiles()
        monkeypatch.setattr(open_stores, "Files", lambda files=files: files)
        channel = open_channel(path / str(at), bytes, options=OPTIONS[options])
        with ExitStack() as stack, suppress(ALLOWED), channel:
            objects = make(channel, stack)
            files.refuse(at, ERRORS[at % len(ERRORS)], everywhere=True)
            try:
                METHODS[method](**objects)
            except ALLOWED:
                raise
            except BaseException as error:
                raise AssertionError(f"call {at}, {files.refused}: {type(error).__name__}: {error}") from error
            finally:
                files.work()
        if files.refused is None:
            assert at > 1 or method in IN_MEMORY, "no call was refused"
            break
