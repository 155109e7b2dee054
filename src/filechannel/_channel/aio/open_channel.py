"""`open_channel` for event loops, and the context manager it returns."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Generic, TypeVar, final, overload

from typing_extensions import TypeForm

from ..._options import ChannelOptions
from ..._wakeup.event_loops import run_in_thread
from ..lifecycle.open_spec import OpenSpec
from ..lifecycle.store_handle import StoreHandle
from ..schema.codec import Codec, CodecName
from .channel import FileChannel

T = TypeVar("T")


@final
class ChannelContext(Generic[T]):
    """The result of `open_channel`: `await` it to get a channel, or use it in `async with`, which also closes it."""

    def __init__(self, open_spec: OpenSpec[T]) -> None:
        self._open_spec = open_spec
        self._channel: FileChannel[T] | None = None
        self._entered = False

    def __await__(self) -> Generator[object, None, FileChannel[T]]:
        """Open the channel. Close it with `aclose()`."""
        return self._open().__await__()

    async def __aenter__(self) -> FileChannel[T]:
        """Open the channel."""
        if self._entered:
            raise RuntimeError("this context was already entered; call open_channel() for each use")
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
        handle = StoreHandle(self._open_spec.open_store)
        try:
            await run_in_thread(handle.open_here, abandon_on_cancel=True)
            return FileChannel(self._open_spec, handle)
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
    """Open the channel in a directory. Create it if it does not exist.

    *type* is the type of the messages: a Struct, dataclass, TypedDict, a tagged union of Structs, `int`, `dict[str,
    float]`, or any other type that msgspec can validate. `bytes` selects raw mode: messages are stored and returned
    unchanged. *codec* is ``"msgpack"`` (the default for other types), ``"json"``, ``"raw"`` or a `Codec` of your own.
    *options* apply to a new channel; for an existing one they must not contradict what is stored. With
    ``readonly=True`` you can replay and inspect the channel, and no file is changed. The result is awaitable and an
    async context manager.

    If the channel belongs to a user other than this one or root, or if other users can access it although *options* did
    not ask for that `mode`, a warning is logged once per path. With *strict_owner*, `UntrustedChannelError` is raised
    instead.

    Raises `ChannelNotFoundError` (with `create=False`), `NotAChannelError`, `ChannelLockedError`,
    `SchemaMismatchError`, `OptionsMismatchError`, `UnsupportedFormatError` and `UntrustedChannelError`. In these cases
    nothing on disk was changed.
    """
    return ChannelContext(OpenSpec(path, type, codec, options, create, readonly, strict_owner=strict_owner))
