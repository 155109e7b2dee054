"""Writing to a channel: tasks stage messages in files, and the driver publishes all of them as one batch.

What is published is known by a producer's name, the query's id or the option `txnId`, and the number of the batch. Both
travel with the batch: replayed after whatever happened, it is there already and nothing is written again. Files of
attempts that failed are swept by the next commit.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from .._channel.recipe import Recipe
from .._errors import Busy, ChannelMismatchError, ChannelNotFoundError, NoRoomYetError
from .._maintenance.retention import reclaim
from .._storage.ahead import taken_ahead
from .._storage.backlog import Batch
from .._storage.cursor_file import encoded_name
from .._storage.files import Files
from .._storage.ledger import Ledger
from .._storage.parts import Records
from .._storage.staging import Staged, Staging
from .._storage.store import Store
from .._storage.stores import STORES
from .._wakeup.arrivals import arrivals_of
from .._wakeup.line import when_there_is_room
from .channels import channel_at, opened
from .identity import check_channel, naming_host
from .options import WriteOptions, load_type
from .rows import Rows

_logger = logging.getLogger("filechannel")
_QUERY_ID: Final = "sql.streaming.queryId"


@final
@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has staged, for which producer and in which channel."""

    staged: Staged
    producer: str | None
    channel: str | None = None
    """The id of the channel; None if it is not to be compared."""
    host: str = ""
    """Where the task ran."""


def refuse_overwrite(overwrite: bool) -> None:
    """Raise if what is there was to be replaced."""
    if overwrite:
        raise ValueError(
            "a channel is only appended to: use .mode('append'); to begin anew, purge the channel or use another path"
        )


def prepare(options: WriteOptions, given: StructType) -> str:
    """Make sure on the driver that rows can be written, and make the channel if a type says how. Return its id."""
    try:
        manifest, schema = channel_at(options.path, options.message_type)
    except ChannelNotFoundError:
        if options.message_type is None:
            raise ValueError(
                f"option path: there is no channel at {options.path}; "
                "create it first, or name the type of its messages in the option type='package.module:Name'"
            ) from None
        STORES.close(Recipe(options.path, load_type(options.message_type), None, None, True, False).open_store())
        manifest, schema = channel_at(options.path, options.message_type)
    if options.channel is not None:
        check_channel(options.path, options.channel, manifest.id)
    Rows(manifest.codec, schema, given)
    return manifest.id


def stage(
    options: WriteOptions,
    given: StructType,
    group: str,
    batches: Iterator[pa.RecordBatch],
    channel: str | None = None,
) -> Staged:
    """Write the rows of a task to a file of its own, as messages.

    `ChannelMismatchError` if that would be in another channel than the one of this id.
    """
    with naming_host():
        if channel is not None:  # before the type and the schema, which may be wrong because of that
            check_channel(options.path, channel, channel_at(options.path, None)[0].id)
        manifest, schema = channel_at(options.path, options.message_type)
    records = Rows(manifest.codec, schema, given).records(batches, manifest.options.max_message_size)
    return Staging(Files(), options.path, group, manifest.options.mode).write(records)


def publish(path: Path, written: list[Written], number: int | None, timeout: float | None = None) -> None:
    """Append what tasks have staged as one batch, unless it is there already, and sweep.

    Waits for room in a channel that lets senders wait, but no longer than *timeout*: `TimeoutError`. Raises
    `ChannelMismatchError` if they were staged in another channel, or on a host with another directory.
    """
    producer, found = written[0].producer, [each.staged for each in written]
    batch = Batch.of(sum(staged.length for staged in found), sum(staged.count for staged in found))
    with opened(path, readonly=False) as store, ExitStack() as reading:
        for each in written:
            if each.channel is not None:
                check_channel(path, each.channel, store.manifest.id)
        arrivals_of(store)  # so that waiting receivers are woken, in any process
        staging = Staging(Files(), path, found[0].group, store.manifest.options.mode)

        def parts() -> Iterator[Records]:
            return reading.enter_context(
                closing(taken_ahead(part for each in written for part in _take(staging, each)))
            )

        if batch.messages and (producer is None or number is None):
            _append(store, lambda: store.log.append_parts(parts(), batch), timeout)
        elif batch.messages and producer is not None and number is not None:
            ledger = Ledger(store, producer)
            _append(store, lambda: ledger.append(number, batch, parts), timeout)
        if store.control.deferred:
            store.flusher.commit()
        staging.sweep()
        _reclaim(store)


def _take(staging: Staging, written: Written) -> Iterator[Records]:
    """Return what a task has staged. A copy of the channel on another host has the same id; its files are not here."""
    if written.host not in ("", socket.gethostname()) and not staging.has(written.staged):
        found = f"a directory without {written.staged.name}, which a task staged on host {written.host}"
        raise ChannelMismatchError(staging.channel, f"channel {written.channel}", found, socket.gethostname())
    return staging.take(written.staged)


def _append(store: Store, append: Callable[[], object], timeout: float | None) -> None:
    try:
        when_there_is_room(store, append, timeout)
    except NoRoomYetError as full:
        raise TimeoutError(f"option roomTimeout={timeout}: after so many seconds {full}") from None


def _reclaim(store: Store) -> None:
    """Remove what may go: perhaps nobody else ever has the channel open. If it fails, the next commit tries again."""
    try:
        store.upkeep.in_turn(lambda: reclaim(store))
    except Busy:
        pass  # somebody else is at it
    except Exception as error:  # the batch is there, and must not count as failed
        _logger.error("%s: maintenance failed, and will be tried again: %s", store.path, error)


def discard(path: Path, group: str, channel: str) -> None:
    """Remove everything that tasks have staged in a channel, if it is still there. What was published stays."""
    manifest, _ = channel_at(path, None)
    if manifest.id == channel:
        Staging(Files(), path, group, manifest.options.mode).sweep()


@final
class BatchWriter(DataSourceArrowWriter):
    """Writes one frame."""

    def __init__(self, options: WriteOptions, given: StructType, channel: str) -> None:
        """*channel* is the id of the one that the frame was prepared for."""
        self.options = options
        self._given = given
        self._channel = channel
        self._group = options.stage_only or f"batch-{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override] # as in Spark itself
        """Stage the rows of a task."""
        staged = stage(self.options, self._given, self._group, iterator, self._channel)
        return Written(staged, self.options.producer, self._channel, socket.gethostname())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged."""
        written = _only_ours(messages)
        if self.options.stage_only is not None:
            manifest, _ = channel_at(self.options.path, None)
            check_channel(self.options.path, self._channel, manifest.id)
            staging = Staging(Files(), self.options.path, self._group, manifest.options.mode)
            staging.list_for_later(each.staged for each in written)
        elif written:
            publish(self.options.path, written, self.options.batch, self.options.room_timeout)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged, also those of which Spark does not know."""
        discard(self.options.path, self._group, self._channel)


@final
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, options: WriteOptions, given: StructType, channel: str) -> None:
        """*channel* is the id of the one that the query was prepared for."""
        self.options = options
        self._given = given
        self._channel = channel

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override] # as in Spark itself
        """Stage the rows of a task."""
        producer = self.options.producer
        if producer is None:
            context = TaskContext.get()
            producer = None if context is None else context.getLocalProperty(_QUERY_ID)
        if producer is None:
            raise ValueError("Spark does not tell the id of the query: name one in the option 'txnId'")
        staged = stage(self.options, self._given, f"query-{encoded_name(producer)}", iterator, self._channel)
        return Written(staged, producer, self._channel, socket.gethostname())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks have staged, once."""
        written = _only_ours(messages)
        if written:
            publish(self.options.path, written, batchId, self.options.room_timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what the tasks have staged; if none of them came to its end, the next batch does."""
        for written in _only_ours(messages)[:1]:
            discard(self.options.path, written.staged.group, self._channel)


def _only_ours(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]
