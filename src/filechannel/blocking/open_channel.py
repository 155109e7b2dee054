"""Opening a channel without an event loop."""

from __future__ import annotations

import os
from typing import TypeVar, overload

from typing_extensions import TypeForm

from .._channel.codec import Codec, CodecName
from .._channel.recipe import Recipe
from .._channel.store_handle import StoreHandle
from .._options import ChannelOptions
from .channel import FileChannel

T = TypeVar("T")


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
) -> FileChannel[T]: ...


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
) -> FileChannel[T]: ...


def open_channel(
    path: str | os.PathLike[str],
    type: type[T] | TypeForm[T],
    *,
    codec: Codec[T] | CodecName | None = None,
    options: ChannelOptions | None = None,
    create: bool = True,
    readonly: bool = False,
    strict_owner: bool = False,
) -> FileChannel[T]:
    """Open the channel in a directory, and create it if it is not there. Use it in a `with` block, or close it.

    Arguments and errors are those of the async `filechannel.open_channel`. If a signal handler raises meanwhile, what
    was opened is closed in the background.
    """
    recipe: Recipe[T] = Recipe(path, type, codec, options, create, readonly, strict_owner=strict_owner)
    handle = StoreHandle(recipe.open_store)
    try:
        handle.open()
        return FileChannel(recipe, handle)
    except BaseException:
        handle.close_soon()
        raise
