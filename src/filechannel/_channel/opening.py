"""`open_channel`: from a path and a type to a channel."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar, final, get_args, overload

from anyio.to_thread import run_sync
from typing_extensions import TypeForm

from .. import _checks as checks
from .._errors import (
    ChannelNotFoundError,
    FileChannelError,
    NotAChannelError,
    OptionsMismatchError,
    SchemaMismatchError,
    StorageError,
    UnsupportedFormatError,
)
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
        except ChannelNotFoundError:
            raise ChannelNotFoundError(self._path, readonly=self._readonly) from None
        except UnsupportedFormatError as error:
            if error.path is not None:
                raise
            raise UnsupportedFormatError(error.found, error.supported, path=self._path) from error
        except (NotADirectoryError, IsADirectoryError) as error:
            raise NotAChannelError(self._path, f"{error.filename}: {error.strerror}") from error
        except OSError as error:
            advice = "check the path, its parents and where links lead to"
            if isinstance(error, PermissionError):
                advice = "check who may read and write it and its parents, or open it with readonly=True"
            raise StorageError(
                f"{self._path} cannot be opened: {error.strerror}: {error.filename}; {advice}"
            ) from error

    def _describe_new(self) -> Manifest:
        return Manifest.new(machine_id(), self._codec.name, self._schema.to_json(), self._options.resolve())

    def _check(self, manifest: Manifest) -> None:
        """Refuse to open what does not fit, before anything is touched."""
        self._options.check_against(manifest.options, self._path)
        try:
            stored = Schema.from_json(manifest.schema)
        except ValueError as error:
            raise NotAChannelError(self._path, f"the schema in {MANIFEST} is damaged ({error})") from error
        if manifest.codec != self._codec.name:
            raise self._other_codec(manifest.codec, stored)
        difference = find_difference(stored, self._schema)
        if difference is not None:
            raise SchemaMismatchError(difference.field, difference.expected, difference.found, path=self._path)

    def _other_codec(self, codec: str, schema: Schema) -> FileChannelError:
        """Return the error for a channel whose stored codec is not that of this open; no `configure` changes it."""
        own = self._codec.name
        if "raw" in (codec, own):
            advice = f"open it with the type {schema.text(schema.root)}, or use another directory"
            return SchemaMismatchError("message", _content(codec), _content(own), advice, path=self._path)
        with_it = f"codec={codec!r}" if codec in get_args(CodecName) else f"the codec whose name is {codec!r}"
        advice = f"open it with {with_it}, or use another directory: it is fixed at creation"
        return OptionsMismatchError("codec", codec, own, advice, path=self._path)


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
    for name, value in (("create", create), ("readonly", readonly)):
        checks.instance_of(bool, "True or False")(name, value)
    absolute = _absolute(path)
    chosen = codec_for(type, codec)
    return ChannelContext(
        absolute, type, chosen, options or ChannelOptions(), create=create and not readonly, readonly=readonly
    )


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return the path that is meant now, wherever the process goes later; no file is touched."""
    text: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"path={path!r}: must be a text or a PathLike of one, not {type(text).__name__}")
    if not text:
        raise ValueError(f"path={path!r}: is empty; the current directory is '.'")
    if "\0" in text:
        raise ValueError(f"path={path!r}: has a null character, which no file name can have")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"path={path!r}: cannot be encoded as a file name: {error.reason}") from error
    return Path(os.path.abspath(text))


def _content(codec: str) -> str:
    return "raw bytes" if codec == "raw" else f"typed messages ({codec})"
