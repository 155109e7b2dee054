"""`open_channel`: from a path and a type to a channel."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Generic, TypeVar, final, overload

from typing_extensions import TypeForm

from .._options import ChannelOptions
from .._wakeup.loops import run_in_thread
from .channel import FileChannel
from .codec import Codec, CodecName
from .recipe import Recipe
from .store_handle import StoreHandle

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
        handle = StoreHandle(self._recipe.open_store)
        try:
            await run_in_thread(handle.open_here, abandon_on_cancel=True)
            return FileChannel(self._recipe, handle)
        except BaseException:
            handle.close_soon()
            raise


@overload
def open_channel(
    path: str | os.PathLike[str],
    type: type[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
    strict_owner: bool = False,
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
    strict_owner: bool = False,
) -> ChannelContext[T]: ...


def open_channel(
    path: str | os.PathLike[str],
    type: type[T] | TypeForm[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
    strict_owner: bool = False,
) -> ChannelContext[T]:
    """Open the channel in a directory, and create it if it is not there.

    *type* is what the messages are: a Struct, dataclass, TypedDict, a tagged union of Structs, `int`,
    `dict[str, float]`, whatever msgspec can check; `bytes` is raw mode. The result is awaitable and an async context
    manager.

    A channel that belongs to a user other than this one or root, or that is open to other users although *options* did
    not ask for its `mode`, is opened with a warning, logged once a path; with *strict_owner* it is refused.

    Raises `ChannelNotFoundError` (with `create=False`), `NotAChannelError`, `ChannelLockedError`,
    `SchemaMismatchError`, `OptionsMismatchError`, `UnsupportedFormatError`, `UntrustedChannelError`; nothing on disk
    was changed then.
    """
    return ChannelContext(Recipe(path, type, codec, options, create, readonly, strict_owner=strict_owner))
