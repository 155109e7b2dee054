"""The options of `format("filechannel")`, checked on the driver before a job starts. Errors name the option."""

from __future__ import annotations

import glob
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, final

import pyspark
from pyspark.sql.datasource import DataSourceReader
from typing_extensions import TypeForm

from .._offset import Offset
from .._storage.consumers.cursor_file_format import encoded_name
from .._storage.manifest import MANIFEST
from .arrow_files import ArrowFiles

StartPosition: TypeAlias = Literal["earliest", "latest"] | Offset | datetime

_ANY_READ: Final = (
    "path", "paths", "type", "startingOffset", "numPartitions", "arrowBatchRecords", "includeMetadata", "consumer",
)  # fmt: skip
_BATCH: Final = (*_ANY_READ, "endingOffset", "archive", "pushFilters")
_STREAM: Final = (*_ANY_READ, "maxRecordsPerBatch", "maxBytesPerBatch")
_ARCHIVE: Final = ("type", "startingOffset", "endingOffset", "arrowBatchRecords", "includeMetadata")
_WRITE: Final = ("path", "type", "roomTimeout", "txnId", "batchId")
KEEPS_FILTERS_APART: Final = hasattr(DataSourceReader, "pushLimit")
"""Whether Spark pushes the filters of each query of a frame separately. Versions that also push limits do."""
STAGE_ONLY: Final = "stageOnly"
"""Passed from `feed` to the sink: stage the messages in files of this group, and do not publish them."""
CHANNEL_ID: Final = "channelId"
"""Passed from `feed` to the sink: the id of the channel that the sender has open. The path must lead to it."""
_SPARK_OPTIONS: Final = ("checkpointLocation", "queryName")


@final
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a batch, stream or archive read."""

    paths: tuple[Path, ...]
    """The channels; at least one. For an archive: its path in its own file system."""
    is_many: bool
    """Whether the caller asked for several channels (a list or a glob), even if there is only one."""
    message_type: str | None
    start: StartPosition | None
    """None: the stored position of the consumer, or the oldest message."""
    stop: StartPosition
    partitions: int | None
    """The number of tasks. None: derived from the amount of data."""
    batch_records: int
    metadata: bool
    consumer: str | None
    max_records: int | None
    max_bytes: int | None
    archive: str | None
    """The URI of an archive that is read instead of channels."""
    push_filters: bool
    glob: str | None = None
    """The glob pattern of the channels. A stream looks for new matches while it runs."""

    @classmethod
    def of_batch(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options of a batch read. `ValueError` names the option and the values it accepts."""
        return cls._of(_Given(given, _BATCH, "a batch read"))

    @classmethod
    def of_archive(cls, given: Mapping[str, str], path: Path) -> ReadOptions:
        """Check the options of an archive in a file system that only Spark's JVM can open."""
        return cls._of(_Given(given, _ARCHIVE, "an archive"), path)

    @classmethod
    def of_stream(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options of a streaming read."""
        return cls._of(_Given(given, _STREAM, "a stream"))

    @classmethod
    def of_either(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options as far as possible before it is known whether they are for a batch or a stream."""
        return cls._of(_Given(given, tuple(dict.fromkeys(_BATCH + _STREAM)), "reading"))

    @classmethod
    def _of(cls, options: _Given, path: Path | None = None) -> ReadOptions:
        archive = options.archive()
        known = path if archive is None else archive[1]
        paths, is_many = options.paths() if known is None else ((known,), False)
        return cls(
            paths=paths,
            is_many=is_many,
            archive=None if archive is None else archive[0],
            glob=options.glob() if is_many else None,
            push_filters=options.pushing("pushFilters"),
            message_type=options.text("type"),
            start=options.position("startingOffset"),
            stop=options.position("endingOffset") or "latest",
            partitions=options.number("numPartitions"),
            batch_records=options.number("arrowBatchRecords") or 50_000,
            metadata=options.flag("includeMetadata"),
            consumer=options.name("consumer"),
            max_records=options.number("maxRecordsPerBatch"),
            max_bytes=options.number("maxBytesPerBatch"),
        )


@final
@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write, and the name and number under which a batch is written once."""

    path: Path
    message_type: str | None
    producer: str | None
    """The producer whose batches are numbered. None: the id of the query."""
    batch: int | None
    """The number of the batch. None for a stream, whose batches Spark numbers."""
    room_timeout: float | None = None
    """How many seconds a batch waits for capacity if the channel is full. None: without a limit."""
    stage_only: str | None = None
    """The group of files in which the messages stay staged."""
    channel: str | None = None
    """The id of the channel, if the caller knows it."""

    @classmethod
    def of_batch(cls, given: Mapping[str, str]) -> WriteOptions:
        """Check the options of a batch write. `ValueError` names the option and the values it accepts."""
        options = cls._of(_Given(given, _WRITE, "writing", STAGE_ONLY, CHANNEL_ID))
        if (options.producer is None) != (options.batch is None):
            raise ValueError("options 'txnId' and 'batchId' must be used together: a batch is written once under both")
        return options

    @classmethod
    def of_stream(cls, given: Mapping[str, str]) -> WriteOptions:
        """Check the options of a streaming write."""
        return cls._of(_Given(given, (*_WRITE[:-1], *_SPARK_OPTIONS), "a streaming write"))

    @classmethod
    def _of(cls, options: _Given) -> WriteOptions:
        batch = options.text("batchId")
        if batch is not None and not (batch.isascii() and batch.isdigit()):
            raise ValueError(f"option batchId={batch!r}: must be a number, 0 or more")
        return cls(
            path=options.path(),
            message_type=options.text("type"),
            producer=options.name("txnId"),
            batch=None if batch is None else int(batch),
            room_timeout=options.seconds("roomTimeout"),
            stage_only=options.text(STAGE_ONLY),
            channel=options.text(CHANNEL_ID),
        )


class _Given:
    """Options as Spark passes them: strings, with names in any case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], use: str, *hidden: str) -> None:
        names = {name.lower(): name for name in known + hidden}
        unknown = [name for name in given if name.lower() not in names]
        if unknown:
            raise ValueError(f"option {unknown[0]!r} is not known for {use}; there are {', '.join(known)}")
        self._values = {names[name.lower()]: value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def name(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None:
            try:
                encoded_name(text)
            except ValueError as error:
                raise ValueError(f"option {name}={text!r}: {error}") from None
        return text

    def path(self) -> Path:
        text = self.text("path")
        if text is None:
            raise ValueError("option 'path' is missing: .option('path', 'data/orders') or .load('data/orders')")
        return _local(text)

    def paths(self) -> tuple[tuple[Path, ...], bool]:
        """Return the channels to read, and whether the option can name several."""
        several = self.text("paths")  # this is how Spark passes the list of load([...])
        if several is not None:
            found = _list_of_texts(several)
            if not found:
                raise ValueError(f"option paths={several!r}: must be a list of paths, as in .load(['a', 'b'])")
            return tuple(dict.fromkeys(_local(text) for text in found)), True
        path = self.path()
        pattern = self.glob()
        if pattern is None:
            return (path,), False
        matches = matching(pattern)
        if not matches:
            raise ValueError(f"option path={str(path)!r}: this cannot be the name of a channel")
        return matches, True

    def glob(self) -> str | None:
        """Return the path as a glob pattern; None if it names a single channel."""
        path = None if self.text("paths") is not None else self.path()
        return None if path is None or path.exists() or not glob.has_magic(str(path)) else str(path)

    def archive(self) -> tuple[str, Path] | None:
        """Return the URI of the archive and its path in its file system; None if no archive is to be read."""
        uri = self.text("archive")
        if uri is None:
            return None
        for other in ("path", "paths", "consumer"):
            if self.text(other) is not None:
                raise ValueError(
                    f"options 'archive' and {other!r} cannot be combined: an archive is not a live channel"
                )
        uri = uri if ":" in uri else Path(uri).absolute().as_uri()  # a worker may have another working directory
        return uri, ArrowFiles.of(uri)[1]

    def seconds(self, name: str) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"option {name}={text!r}: must be a number of seconds, 0 or more")
        return seconds

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise ValueError(f"option {name}={text!r}: must be a number, 1 or more")
        return int(text)

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false"):
            raise ValueError(f"option {name}={text!r}: must be 'true' or 'false'")
        return text == "true"

    def pushing(self, name: str) -> bool:
        """Return whether filters are pushed. Raise `ValueError` if this Spark version would then miss rows."""
        text = (self.text(name) or "false").lower()
        if text not in ("true", "false", "once"):
            raise ValueError(f"option {name}={text!r}: must be 'true', 'false' or 'once'")
        if text == "true" and not KEEPS_FILTERS_APART:
            raise ValueError(
                f"option {name}='true': Spark {pyspark.__version__} applies the filters of one query to the next "
                f"one of the same frame, which then misses rows; load a frame for each query, and set {name}='once'"
            )
        return text != "false"

    def position(self, name: str) -> StartPosition | None:
        text = self.text(name)
        match text:
            case None:
                return None
            case "earliest":
                return "earliest"
            case "latest":
                return "latest"
            case _ if text.isascii() and text.isdigit():
                return Offset(int(text))
            case _:
                return self._moment(name, text)

    def _moment(self, name: str, text: str) -> datetime:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"option {name}={text!r}: must be 'earliest', 'latest', an offset or a timestamp as in ISO 8601"
            ) from None
        if moment.utcoffset() is None:
            raise ValueError(
                f"option {name}={text!r} has no time zone: add one, as in {moment.replace(tzinfo=UTC).isoformat()!r}"
            )
        if name == "startingOffset" and moment > datetime.now(UTC):
            raise ValueError(f"option {name}={text!r} lies in the future: use 'latest' for new messages")
        return moment


def matching(pattern: str) -> tuple[Path, ...]:
    """Return the channels that match a glob pattern, sorted by path."""
    return tuple(match.parent for match in sorted(map(Path, glob.glob(str(Path(pattern) / MANIFEST)))))


def _local(text: str) -> Path:
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "file":
        text = "/" + rest.lstrip("/")
    elif colon and rest.startswith("//"):
        raise ValueError(f"option path={text!r}: a channel is a directory of this machine, not of {scheme}")
    return Path(text).absolute()


def _list_of_texts(text: str) -> list[str]:
    try:
        found: object = json.loads(text)
    except ValueError:
        return []
    items = cast("list[object]", found) if isinstance(found, list) else []
    return [item for item in items if isinstance(item, str) and item]


def load_type(name: str) -> TypeForm[object]:
    """Return the type that `module:name` refers to. `ValueError` explains how to make it importable if it is not."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ValueError(f"option type={name!r}: must be 'package.module:Name'")
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"option type={name!r} cannot be loaded ({error}): install its package on the driver and every worker, "
            "or spark.addArtifacts(..., pyfile=True); or leave the option out: the channel knows its schema"
        ) from error
    return cast("TypeForm[object]", found)
