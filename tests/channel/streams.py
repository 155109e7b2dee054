"""A pair of streams, of anyio or of a channel, for tests that must not care which."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from filechannel import Capacity, ChannelOptions, FanOutReceiver, FileChannel, Sender, open_channel

T = TypeVar("T")


@dataclass(frozen=True)
class Pair(Generic[T]):
    """Both ends of a stream."""

    tx: MemoryObjectSendStream[T] | Sender[T]
    rx: MemoryObjectReceiveStream[T] | FanOutReceiver[T]
    channel: FileChannel[T] | None
    """None: a memory stream."""

    async def end(self) -> None:
        """Say that nothing more comes: this is where the two differ most."""
        if self.channel is None:
            self.tx.close()
        else:
            await self.channel.seal()


MakePair: TypeAlias = Callable[..., AbstractAsyncContextManager[Pair[T]]]


@asynccontextmanager
async def memory_pair(type: type[T], size: float = math.inf) -> AsyncIterator[Pair[T]]:
    """Make a memory stream that holds so many items."""
    tx, rx = anyio.create_memory_object_stream[type](size)  # type: ignore[valid-type]
    with tx, rx:
        yield Pair(tx, rx, None)


def channel_pair(path: Path) -> MakePair[T]:
    """Return what makes the same of a channel."""

    @asynccontextmanager
    async def make(type: type[T], size: float = math.inf) -> AsyncIterator[Pair[T]]:
        limited = ChannelOptions() if size == math.inf else ChannelOptions(capacity=Capacity(max_messages=int(size)))
        async with open_channel(path, type, options=limited) as channel:
            with channel.sender() as tx, channel.receiver() as rx:
                yield Pair(tx, rx, channel)

    return make


@pytest.fixture(params=["anyio", "filechannel"])
def make_pair(request: pytest.FixtureRequest, path: Path) -> MakePair[T]:
    """What makes a pair of either kind, given a type and a size, in an `async with`."""
    return memory_pair if request.param == "anyio" else channel_pair(path)
