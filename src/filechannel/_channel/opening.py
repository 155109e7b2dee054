"""`open_channel`: from a path and a type to a channel."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar, final, overload

from anyio.to_thread import run_sync
from typing_extensions import TypeForm

from .._errors import NotAChannelError, OptionsMismatchError, SchemaMismatchError, StorageError
from .._options import ChannelOptions
from .._storage.background import background_threads
from .._storage.machine import machine_id
from .._storage.manifest import MANIFEST, Manifest
from .._storage.store import Store
from .._storage.stores import STORES
from .channel import FileChannel
from .codec import Codec, CodecName, Payloads, codec_for, schema_of
from .schema import Schema, find_difference

T = TypeVar("T")


@final
class ChannelContext(Generic[T]):
    """What `open_channel` returns: `await` it for a channel, or use it in `async with`, which also closes it."""

    def __init__(
        self,
        path: Path,
        message_type: TypeForm[T],
        codec: Codec[T],
        options: ChannelOptions,
        *,
        create: bool,
        readonly: bool,
    ) -> None:
        self._path = path
        self._message_type = message_type
        self._codec = codec
        self._schema = schema_of(message_type, codec)
        self._options = options
        self._create = create
        self._readonly = readonly
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
        per_open = self._options.per_open()
        payloads = Payloads(self._message_type, self._codec, validate=per_open.validate)
        opening = _Opening(self._open_store)
        try:
            store = await run_sync(opening.run)
        except BaseException:
            opening.abandon()
            raise
        return FileChannel(store, self._message_type, payloads, per_open, readonly=self._readonly)

    def _open_store(self) -> Store:
        try:
            return STORES.open(
                self._path,
                check=self._check,
                new=self._describe_new if self._create else None,
                readonly=self._readonly,
                max_mapped_segments=self._options.per_open().max_mapped_segments,
            )
        except (NotADirectoryError, IsADirectoryError) as error:
            raise NotAChannelError(self._path, f"{error.filename}: {error.strerror}") from error
        except PermissionError as error:
            advice = "check who may read and write it and its parents, or open it with readonly=True"
            raise StorageError(
                f"{self._path} cannot be opened: {error.strerror}: {error.filename}; {advice}"
            ) from error

    def _describe_new(self) -> Manifest:
        return Manifest.new(machine_id(), self._codec.name, self._schema.to_json(), self._options.resolve())

    def _check(self, manifest: Manifest) -> None:
        """Refuse to open what does not fit, before anything is touched."""
        self._options.check_against(manifest.options)
        try:
            stored = Schema.from_json(manifest.schema)
        except ValueError as error:
            raise NotAChannelError(self._path, f"the schema in {MANIFEST} is damaged ({error})") from error
        if manifest.codec != self._codec.name:
            if "raw" in (manifest.codec, self._codec.name):
                raise SchemaMismatchError("message", _content(manifest.codec), _content(self._codec.name))
            raise OptionsMismatchError("codec", manifest.codec, self._codec.name)
        difference = find_difference(stored, self._schema)
        if difference is not None:
            raise SchemaMismatchError(difference.field, difference.expected, difference.found)


class _Opening:
    """Opens a store in a thread. If the task goes away meanwhile, the store does not stay open."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._lock = Lock()
        self._store: Store | None = None
        self._abandoned = False

    def run(self) -> Store:
        store = self._open_store()
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
    if not isinstance(options, ChannelOptions | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"options={options!r}: must be ChannelOptions(...)")
    chosen = codec_for(type, codec)
    absolute = Path(os.path.abspath(path))
    return ChannelContext(
        absolute, type, chosen, options or ChannelOptions(), create=create and not readonly, readonly=readonly
    )


def _content(codec: str) -> str:
    return "raw bytes" if codec == "raw" else f"typed messages ({codec})"
