"""`open_channel`: from a path and a type to a channel."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from threading import Lock
from typing import Generic, TypeVar, final, overload

from anyio.to_thread import run_sync
from typing_extensions import TypeForm

from .._options import ChannelOptions
from .._storage.background import background_threads
from .._storage.store import Store
from .._storage.stores import STORES
from .channel import FileChannel
from .codec import Codec, CodecName
from .recipe import Recipe

T = TypeVar("T")


@final
class ChannelContext(Generic[T]):
    """What `open_channel` returns: `await` it for a channel, or use it in `async with`, which also closes it."""

    def __init__(self, recipe: Recipe[T]) -> None:
        self._recipe = recipe
        self._channel: FileChannel[T] | None = None
        self._entered = False

    def __await__(self) -> Generator[object, None, FileChannel[T]]:
        """Open the channel; close it with `aclose()`."""
        return self._open().__await__()

    async def __aenter__(self) -> FileChannel[T]:
        """Open the channel."""
        if self._entered:
            raise RuntimeError("this context was entered already; call open_channel() once for each use")
        self._entered = True
        try:
            self._channel = await self._open()
        except BaseException:
            self._entered = False
            raise
        return self._channel

    async def __aexit__(self, *_: object) -> None:
        """Close the channel and everything it created."""
        channel, self._channel, self._entered = self._channel, None, False
        assert channel is not None
        await channel.aclose()

    async def _open(self) -> FileChannel[T]:
        opening = _Opening(self._recipe.open_store)
        try:
            store = await run_sync(opening.run, abandon_on_cancel=True)
        except BaseException:
            opening.abandon()
            raise
        return FileChannel(self._recipe, store)


class _Opening:
    """Opens a store in a thread. If the task goes away meanwhile, the store does not stay open."""

    def __init__(self, open_store: Callable[[Callable[[], bool]], Store]) -> None:
        self._open_store = open_store
        self._lock = Lock()
        self._store: Store | None = None
        self._abandoned = False

    def run(self) -> Store:
        store = self._open_store(lambda: not self._abandoned)
        with self._lock:
            self._store = store
            if self._abandoned:
                STORES.close(store)
        return store

    def abandon(self) -> None:
        with self._lock:
            if self._store is not None and not self._abandoned:
                background_threads().submit(STORES.close, self._store)
            self._abandoned = True


@overload
def open_channel(
    path: str | os.PathLike[str],
    type: type[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
) -> ChannelContext[T]: ...


@overload
def open_channel(
    path: str | os.PathLike[str],
    type: TypeForm[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
) -> ChannelContext[T]: ...


def open_channel(
    path: str | os.PathLike[str],
    type: type[T] | TypeForm[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
) -> ChannelContext[T]:
    """Open the channel in a directory, and create it if it is not there.

    *type* is what the messages are: a Struct, dataclass, TypedDict, a tagged union of Structs, `int`,
    `dict[str, float]`, whatever msgspec can check; `bytes` is raw mode. The result is awaitable and an async context
    manager.

    Raises `ChannelNotFoundError` (with `create=False`), `NotAChannelError`, `ChannelLockedError`,
    `SchemaMismatchError`, `OptionsMismatchError`, `UnsupportedFormatError`; nothing on disk was changed then.
    """
    return ChannelContext(Recipe(path, type, codec, options, create, readonly))
