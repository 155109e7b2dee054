"""Writing to a channel: tasks stage messages in files, and the driver publishes all of them as one batch.

A published batch is identified by the name of a producer (the id of the query or the option `txnId`) and the number of
the batch. Both are stored with the batch: if Spark replays it after a failure, the batch is found in the log and is not
written again. The next commit deletes the files of failed attempts.
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

from ..._channel.lifecycle.open_spec import OpenSpec
from ..._errors import Busy, CapacityReachedError, ChannelMismatchError, ChannelNotFoundError
from ..._maintenance.background.plan_reclaim import reclaim
from ..._storage.archive.read_ahead import read_ahead
from ..._storage.capacity.backlog import Batch
from ..._storage.consumers.cursor_file_format import encoded_name
from ..._storage.idempotent_producer import IdempotentProducer
from ..._storage.log.batch_parts import Records
from ..._storage.open_stores import STORES
from ..._storage.producers.staging import Staged, Staging
from ..._storage.system.os_calls import Files
from ..._storage.writable_store import WritableStore
from ..._wakeup.send_queue import append_with_capacity
from ..._wakeup.waiters import waiters_of
from ..channel_identity import check_channel, naming_host
from ..open_channels import channel_at, opened_to_write
from ..source_options import WriteOptions, load_type
from .encode_rows import Rows, check_columns

_logger = logging.getLogger("filechannel")
_QUERY_ID: Final = "sql.streaming.queryId"


@final
@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task staged, for which producer and in which channel."""

    staged: Staged
    producer: str | None
    channel: str | None = None
    """The id of the channel. None: not compared."""
    host: str = ""
    """The host on which the task ran."""


def refuse_overwrite(overwrite: bool) -> None:
    """Raise `ValueError` if Spark asks to replace the content of the channel."""
    if overwrite:
        raise ValueError(
            "a channel is only appended to: use .mode('append'); to start again, purge the channel or use another path"
        )


def prepare(options: WriteOptions, given: StructType) -> str:
    """Check on the driver that the rows can be written, and create the channel if a type is given. Return its id."""
    try:
        manifest, schema = channel_at(options.path, options.message_type)
    except ChannelNotFoundError:
        if options.message_type is None:
            raise ValueError(
                f"option path: there is no channel at {options.path}; "
                "create it first, or name the type of its messages in the option type='package.module:Name'"
            ) from None
        message_type = load_type(options.message_type)
        open_spec = OpenSpec(options.path, message_type, codec=None, options=None, create=True, readonly=False)
        STORES.close(open_spec.open_store())
        manifest, schema = channel_at(options.path, options.message_type)
    if options.channel is not None:
        check_channel(options.path, options.channel, manifest.id)
    check_columns(manifest.codec, schema, given)
    return manifest.id


def stage(
    options: WriteOptions,
    given: StructType,
    group: str,
    batches: Iterator[pa.RecordBatch],
    channel: str | None = None,
) -> Staged:
    """Write the rows of a task to a file of its own, as messages.

    Raises `ChannelMismatchError` if the channel at the path does not have the id *channel*.
    """
    with naming_host():
        if channel is not None:  # checked first: in another channel the type and the schema may be wrong as well
            check_channel(options.path, channel, channel_at(options.path, None)[0].id)
        manifest, schema = channel_at(options.path, options.message_type)
    records = Rows(manifest.codec, schema, given).records(batches, manifest.options.max_message_size)
    return Staging(Files(), options.path, group, manifest.options.mode).write(records)


def publish(path: Path, written: list[Written], number: int | None, timeout: float | None = None) -> None:
    """Append what the tasks staged as one batch, unless the log already has it, and delete the staged files.

    If the channel is full and lets senders wait, waits for capacity, and raises `TimeoutError` after *timeout* seconds.
    Raises `ChannelMismatchError` if the messages were staged in another channel, or on a host with another directory.
    """
    producer, found = written[0].producer, [each.staged for each in written]
    batch = Batch.of(sum(staged.length for staged in found), sum(staged.count for staged in found))
    with opened_to_write(path) as store, ExitStack() as reading:
        for each in written:
            if each.channel is not None:
                check_channel(path, each.channel, store.manifest.id)
        waiters_of(store)  # so that the append wakes waiting receivers in every process
        staging = Staging(Files(), path, found[0].group, store.manifest.options.mode)

        def parts() -> Iterator[Records]:
            return reading.enter_context(closing(read_ahead(part for each in written for part in _take(staging, each))))

        if batch.messages:
            if producer is None or number is None:
                _append(store, lambda: store.log.append_parts(parts(), batch), timeout)
            else:
                idempotent_producer = IdempotentProducer(store, producer)
                _append(store, lambda: idempotent_producer.append(number, batch, parts), timeout)
        if store.control.deferred:
            store.flusher.commit()
        staging.sweep()
        _reclaim(store)


def _take(staging: Staging, written: Written) -> Iterator[Records]:
    """Return the records that a task staged.

    A copy of the channel on another host has the same id, but what the task staged there is not in this directory.
    """
    if written.host not in ("", socket.gethostname()) and not staging.has(written.staged):
        found = f"a directory without {written.staged.name}, which a task staged on host {written.host}"
        raise ChannelMismatchError(staging.channel, f"channel {written.channel}", found, socket.gethostname())
    return staging.read_and_remove(written.staged)


def _append(store: WritableStore, append: Callable[[], object], timeout: float | None) -> None:
    try:
        append_with_capacity(store, append, timeout)
    except CapacityReachedError as full:
        raise TimeoutError(f"option roomTimeout={timeout}: after this time {full}") from None


def _reclaim(store: WritableStore) -> None:
    """Reclaim segments here, as no other process may ever open the channel. After a failure the next commit retries."""
    try:
        store.maintenance_lock.run_locked(lambda: reclaim(store))
    except Busy:
        pass  # another process is doing maintenance
    except Exception as error:  # the batch is published, and must not count as failed
        _logger.error("%s: maintenance failed, and will be retried: %s", store.path, error)


def discard(path: Path, group: str, channel: str) -> None:
    """Delete everything that tasks staged if the channel still has this id. Published messages stay."""
    manifest, _ = channel_at(path, None)
    if manifest.id == channel:
        Staging(Files(), path, group, manifest.options.mode).sweep()


@final
class BatchWriter(DataSourceArrowWriter):
    """Writes one frame."""

    def __init__(self, options: WriteOptions, given: StructType, channel: str) -> None:
        """*channel* is the id of the channel that `prepare` returned for the frame."""
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
        """Delete what the tasks staged, including tasks whose commit message Spark did not receive."""
        discard(self.options.path, self._group, self._channel)


@final
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: WriteOptions, given: StructType, channel: str) -> None:
        """*channel* is the id of the channel that `prepare` returned for the query."""
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
            raise ValueError("Spark does not provide the id of the query: set the option 'txnId'")
        staged = stage(self.options, self._given, f"query-{encoded_name(producer)}", iterator, self._channel)
        return Written(staged, producer, self._channel, socket.gethostname())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks staged. A batch that Spark commits again is not appended twice."""
        written = _only_ours(messages)
        if written:
            publish(self.options.path, written, batchId, self.options.room_timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what the tasks staged. If no task finished, the next batch deletes it."""
        for written in _only_ours(messages)[:1]:
            discard(self.options.path, written.staged.group, self._channel)


def _only_ours(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]
