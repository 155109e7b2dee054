"""The methods of event loops with an operating system that refuses: errors of this package, or anyio's."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock, fail_after

from filechannel import ChannelOptions, Durability, FileChannel, FileChannelError, Retention, open_channel, transaction
from filechannel._offset import Offset
from filechannel._storage import open_stores
from tests.backends import BACKENDS
from tests.storage.refusing import RefusingFiles

pytestmark = pytest.mark.anyio
TIMEOUT = 60  # seconds; nothing here takes as long
ALLOWED = FileChannelError, ClosedResourceError, EndOfStream, WouldBlock, ValueError
ERRORS = errno.EMFILE, errno.EIO, errno.ENOENT, errno.ENOMEM


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """One loop is enough: what touches files is the same under all of them."""
    return BACKENDS["asyncio"]


async def commit(channel: FileChannel[bytes], acked: Any, **_: Any) -> None:
    """Receive and send in one step."""
    async with channel.sender() as tx, transaction(acked, tx) as step:
        step.send(await step.receive())


METHODS: dict[str, Callable[..., Awaitable[object]]] = {
    "flush": lambda channel, **_: channel.flush(),
    "seal": lambda channel, **_: channel.seal(),
    "purge": lambda channel, **_: channel.purge(),
    "offset_of": lambda channel, **_: channel.offset_of(15),
    "remove_consumer": lambda channel, **_: channel.remove_consumer("unowned"),
    "configure": lambda channel, **_: channel.configure(retention=Retention(max_age=60.0), durability=Durability.FSYNC),
    "aclose": lambda channel, **_: channel.aclose(),
    "send": lambda channel, **_: channel.sender().send(bytes(3000)),
    "send_many": lambda channel, **_: channel.sender().send_many([bytes(1000)] * 20),
    "receive_many": lambda rx, **_: rx.receive_many(25),
    "seek": lambda rx, **_: rx.seek(Offset(908)),
    "unsubscribe": lambda rx, **_: rx.unsubscribe(),
    "ack_receiver.receive_many": lambda acked, **_: acked.receive_many(25),
    "group.receive_many": lambda group, **_: group.receive_many(25),
    "transaction": commit,
}
IN_MEMORY = {"receive_many", "ack_receiver.receive_many", "group.receive_many"}
"""Methods that need not call the operating system here: the segments are mapped."""


@pytest.mark.parametrize("method", METHODS)
async def test_what_is_refused_is_a_typed_error(path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """A method raises a typed error, whichever call the operating system refuses, in whichever thread."""
    for at in count(1):
        files = RefusingFiles()
        monkeypatch.setattr(open_stores, "Files", lambda files=files: files)
        options = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)
        channel = await open_channel(path / str(at), bytes, options=options)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(close, channel)
            await channel.sender().send_many([bytes(900)] * 30)
            channel.receiver("unowned").close()
            objects = {"rx": channel.receiver("a"), "acked": channel.ack_receiver("b"), "group": channel.group("c")}
            files.refuse(at, ERRORS[at % len(ERRORS)], everywhere=True)
            try:
                with fail_after(TIMEOUT):
                    await METHODS[method](channel=channel, **objects)
            except ALLOWED:
                pass
            except BaseException as error:
                raise AssertionError(f"call {at}, {files.refused}: {type(error).__name__}: {error}") from error
            finally:
                files.work()
        if files.refused is None:
            assert at > 1 or method in IN_MEMORY, "no call was refused"
            break


async def close(channel: FileChannel[bytes]) -> None:
    """Close a channel whose last flush may fail."""
    with suppress(ALLOWED):
        await channel.aclose()
