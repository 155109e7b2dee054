"""`open_channel` for threads."""

from __future__ import annotations

import os
from typing import TypeVar, overload

from typing_extensions import TypeForm

from .._channel.lifecycle.open_spec import OpenSpec
from .._channel.lifecycle.store_handle import StoreHandle
from .._channel.schema.codec import Codec, CodecName
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
    """Open the channel in a directory. Create it if it does not exist. Use it in a `with` block, or close it.

    Arguments and errors are those of the async `filechannel.open_channel`. If a signal handler raises meanwhile, a
    channel that was opened is closed in the background.
    """
    open_spec: OpenSpec[T] = OpenSpec(path, type, codec, options, create, readonly, strict_owner=strict_owner)
    handle = StoreHandle(open_spec.open_store)
    try:
        handle.open()
        return FileChannel(open_spec, handle)
    except BaseException:
        handle.close_soon()
        raise
