"""Finds the channels that the options name, reads their schemas, and opens their stores."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final, overload

from pyspark.sql.types import StructType

from .._channel.lifecycle.channel_description import describe_channel
from .._channel.schema import Schema, describe, find_difference
from .._errors import NotAChannelError, SchemaMismatchError
from .._storage.archive.archive import open_archive
from .._storage.archive.remote_files import RemoteFiles
from .._storage.manifest import Manifest
from .._storage.open_stores import STORES
from .._storage.store import Store
from .._storage.writable_store import WritableStore
from .arrow_files import ArrowFiles
from .arrow_table import Table
from .source_options import ReadOptions, load_type

_MAPPED = 4  # segments


@final
@dataclass(frozen=True, slots=True)
class Channel:
    """One channel and its table."""

    path: Path
    id: str
    """The id in the manifest. It stays the same if the directory is moved."""
    table: Table


def channel_at(path: Path, type_name: str | None, files: RemoteFiles | None = None) -> tuple[Manifest, Schema]:
    """Return the manifest of a channel and its schema, or the schema of the named type.

    *files* is the file system of the archive, if the path is in an archive.

    Raises `ChannelNotFoundError`, `NotAChannelError`, `SchemaMismatchError`; `ValueError` if the name is not a type.
    """
    manifest, schema = _described(path) if files is None else _shipped(path, files)
    if type_name is None:
        return manifest, schema
    asked = describe(load_type(type_name))
    difference = find_difference(schema, asked)
    if difference is not None:
        suggestion = f"correct the option type={type_name!r}, or leave it out: the channel knows its schema"
        raise SchemaMismatchError(difference.field, difference.expected, difference.found, suggestion, path=path)
    return manifest, asked


def _described(path: Path) -> tuple[Manifest, Schema]:
    found = describe_channel(path)
    return found.manifest, found.schema


def _shipped(path: Path, files: RemoteFiles) -> tuple[Manifest, Schema]:
    try:
        manifest = Manifest.read(files, path)
        return manifest, Schema.from_json(manifest.schema)
    except FileNotFoundError:
        raise ValueError(
            f"archive={files.describe(path)!r}: there is no archive; create it with filechannel.spark.ship"
        ) from None
    except (NotAChannelError, ValueError) as error:
        raise ValueError(f"archive={files.describe(path)!r}: its manifest is damaged ({error})") from error


def find_channels(options: ReadOptions, asked: StructType | None = None, *, only: Path | None = None) -> list[Channel]:
    """Return every channel that the options name, or only one, with all columns or the requested ones.

    Raises `ValueError` if the channels have different columns, or lack requested ones.
    """
    found = [_find(path, options, asked) for path in (options.paths if only is None else (only,))]
    for other in found[1:]:
        if other.table.spark != found[0].table.spark:
            raise ValueError(
                f"option path: {other.path} has other columns than {found[0].path}; "
                "name a type that matches both in the option 'type', or read them separately"
            )
    return found


def _find(path: Path, options: ReadOptions, asked: StructType | None) -> Channel:
    files = None if options.archive is None else ArrowFiles.of(options.archive)[0]
    manifest, schema = channel_at(path, options.message_type, files)
    name = str(path) if options.is_many else None
    table = Table.of(manifest.codec, schema, metadata=options.metadata, channel=name, asked=asked)
    return Channel(path, manifest.id, table)


@contextmanager
def opened(path: Path) -> Generator[Store]:
    """Open a channel of any message type read-only. The store is closed at the end of the block."""
    store = open_store(path, readonly=True)
    try:
        yield store
    finally:
        STORES.close(store)


@contextmanager
def opened_to_write(path: Path) -> Generator[WritableStore]:
    """Open a channel of any message type for writing. The store is closed at the end of the block."""
    store = open_store(path, readonly=False)
    try:
        yield store
    finally:
        STORES.close(store)


@contextmanager
def opened_to_read(path: Path, options: ReadOptions) -> Generator[Store]:
    """Open a channel, or the archive that is read instead of it. The store is closed at the end of the block."""
    if options.archive is None:
        with opened(path) as store:
            yield store
        return
    store = open_archive(*ArrowFiles.of(options.archive))
    try:
        yield store
    finally:
        store.close()


@overload
def open_store(path: Path, *, readonly: Literal[False]) -> WritableStore: ...
@overload
def open_store(path: Path, *, readonly: bool) -> Store: ...
def open_store(path: Path, *, readonly: bool) -> Store:
    """Open a channel of any message type. The caller closes it with `STORES.close`."""
    return STORES.open(path, check=_accept, new=None, readonly=readonly, max_mapped_segments=_MAPPED)


def _accept(_: Manifest) -> None:
    pass
