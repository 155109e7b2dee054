"""The channels that an option means: what they are, and how a process has them open."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from pyspark.sql.types import StructType

from .._channel.schema import Schema, describe, find_difference
from .._channel.untyped import describe_channel
from .._errors import NotAChannelError, SchemaMismatchError
from .._storage.archive import open_archive
from .._storage.manifest import Manifest
from .._storage.remote import RemoteFiles
from .._storage.store import Store
from .._storage.stores import STORES
from .arrow_files import ArrowFiles
from .options import ReadOptions, load_type
from .table import Table


@final
@dataclass(frozen=True, slots=True)
class Channel:
    """One channel, as a table."""

    path: Path
    id: str
    """What the manifest calls it, wherever the directory is moved to."""
    table: Table


def channel_at(path: Path, type_name: str | None, files: RemoteFiles | None = None) -> tuple[Manifest, Schema]:
    """Return what is known of a channel, with the schema of a type if one is named.

    *files* are those that an archive is in.

    Raises `ChannelNotFoundError`, `NotAChannelError`, `SchemaMismatchError`; `ValueError` for a type that is none.
    """
    manifest, schema = _described(path) if files is None else _shipped(path, files)
    if type_name is None:
        return manifest, schema
    asked = describe(load_type(type_name))
    difference = find_difference(schema, asked)
    if difference is not None:
        advice = f"correct the option type={type_name!r}, or leave it out: the channel knows its schema"
        raise SchemaMismatchError(difference.field, difference.expected, difference.found, advice, path=path)
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
            f"archive={files.describe(path)!r}: there is no archive; filechannel.spark.ship makes one"
        ) from None
    except (NotAChannelError, ValueError) as error:
        raise ValueError(f"archive={files.describe(path)!r}: its manifest is damaged ({error})") from error


def find_channels(options: ReadOptions, asked: StructType | None = None, *, only: Path | None = None) -> list[Channel]:
    """Return every channel that is meant, or only one, each with all columns or those that were asked for.

    `ValueError` if they do not have the same columns, or not those.
    """
    found = [_find(path, options, asked) for path in (options.paths if only is None else (only,))]
    for other in found[1:]:
        if other.table.spark != found[0].table.spark:
            raise ValueError(
                f"option path: {other.path} has other columns than {found[0].path}; "
                "name a type that fits both in the option 'type', or read them apart"
            )
    return found


def _find(path: Path, options: ReadOptions, asked: StructType | None) -> Channel:
    files = None if options.archive is None else ArrowFiles.of(options.archive)[0]
    manifest, schema = channel_at(path, options.message_type, files)
    name = str(path) if options.is_many else None
    table = Table.of(manifest.codec, schema, metadata=options.metadata, channel=name, asked=asked)
    return Channel(path, manifest.id, table)


@contextmanager
def opened(path: Path, *, readonly: bool = True) -> Generator[Store]:
    """Open a channel, whatever its type."""
    store = open_store(path, readonly=readonly)
    try:
        yield store
    finally:
        STORES.close(store)


@contextmanager
def opened_to_read(path: Path, options: ReadOptions) -> Generator[Store]:
    """Open a channel, or the archive that is read instead of one."""
    if options.archive is None:
        with opened(path) as store:
            yield store
        return
    store = open_archive(*ArrowFiles.of(options.archive))
    try:
        yield store
    finally:
        store.close()


def open_store(path: Path, *, readonly: bool) -> Store:
    """Open a channel, whatever its type; `STORES` closes it."""
    return STORES.open(path, check=_accept, new=None, readonly=readonly, max_mapped_segments=4)


def _accept(_: Manifest) -> None:
    pass
