"""Spark beside an event loop: frames that become messages, and queries that run along.

Everything that Spark does happens in threads of its own; the loop only appends what is encoded already. Whoever is
cancelled takes the Spark job along: left alone it would go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Self, TypeAlias, final
from uuid import uuid4

import anyio
import pyarrow as pa
from anyio import from_thread, to_thread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from .._channel.sender import Sender
from .._storage.staging import packed, unpacked
from .channels import channel_at
from .rows import Rows

Put: TypeAlias = Callable[[list[bytes]], Coroutine[object, object, None]]

_SLICE = 1024  # messages that become visible together; the loop is held up no longer than they take
_LOOK = 1  # seconds between two looks at a query


async def feed(sender: Sender[object], dataframe: DataFrame) -> int:
    """Send every row of a frame as a message, and return how many. Works on asyncio, and wherever anyio does.

    Rows become messages on Spark's workers and come here partition by partition, as fast as they are sent: neither the
    frame nor its messages are ever in memory as a whole. Messages become visible as they are sent, in the order of the
    partitions; for all or nothing, use `dataframe.write.format("filechannel")`. Cancelled, the Spark job is cancelled
    too, and what was sent stays sent. Raises `ValueError` if the columns are not those of the channel's messages.
    """
    count, error = 0, None
    send, receive = anyio.create_memory_object_stream[list[bytes]](2)
    source = _Source(dataframe, sender.path, send.send)
    async with anyio.create_task_group() as group:
        group.start_soon(_pump, source, send.close)
        try:
            async with receive:
                async for payloads in receive:
                    await sender.send_encoded(payloads)
                    count += len(payloads)
        except Exception as caught:
            error = caught
            group.cancel_scope.cancel()
    error = error or source.error
    if error is not None:
        raise error
    return count


async def _pump(source: _Source, close: Callable[[], None]) -> None:
    try:
        await to_thread.run_sync(source.run, abandon_on_cancel=True)
    except Exception as error:
        source.error = error
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(source.cancel)
        raise
    finally:
        close()


@final
class _Source:
    """Takes a frame from Spark, in a thread, as payloads."""

    def __init__(self, dataframe: DataFrame, path: Path, put: Put) -> None:
        self._dataframe = dataframe
        self._path = path
        self._put = put
        self._group = f"filechannel-{uuid4().hex}"
        self.error: Exception | None = None
        """What it failed with."""

    def run(self) -> None:
        """Hand over everything, waiting for whoever takes it."""
        frame = self._dataframe
        manifest, schema = channel_at(self._path, None)
        Rows(manifest.codec, schema, frame.schema)
        # Another thread than the one that has made the session: it knows of none.
        SparkSession.builder.getOrCreate()
        context = frame.sparkSession.sparkContext
        context.setJobGroup(self._group, f"feed {self._path}", interruptOnCancel=True)
        encode = partial(_encoded, str(self._path), frame.schema.json())
        for row in frame.mapInArrow(encode, "part binary").toLocalIterator(prefetchPartitions=True):
            for payloads in unpacked(bytes(row[0])):
                for first in range(0, len(payloads), _SLICE):
                    from_thread.run(self._put, payloads[first : first + _SLICE])

    def cancel(self) -> None:
        """Let Spark stop."""
        self._dataframe.sparkSession.sparkContext.cancelJobGroup(self._group)


def _encoded(path: str, columns: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows into parts, on a worker."""
    manifest, schema = channel_at(Path(path), None)
    rows = Rows(manifest.codec, schema, StructType.fromJson(json.loads(columns)))
    shape = pa.schema([pa.field("part", pa.binary())])
    for part in rows.parts(batches):
        yield pa.RecordBatch.from_arrays([pa.array([packed(part)], pa.binary())], schema=shape)


@final
class ChannelFeeder:
    """A streaming query that writes a frame into a channel, exactly once, beside an application's event loop.

    ::

        async with ChannelFeeder(frame, "data/results", checkpoint="data/checkpoint") as feeder:
            ...
            feeder.progress()

    Leaving the block stops the query; `await feeder.wait()` waits until it ends by itself. If it fails, that is raised
    in whoever waits, or at the end of the block. Cancellation stops it, too.
    """

    def __init__(
        self,
        dataframe: DataFrame,
        path: str | PathLike[str],
        *,
        checkpoint: str | PathLike[str],
        every: str | None = None,
        available_now: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Begin a batch as soon as the last one is done, or *every* so often, as "5 seconds".

        *available_now*: end when everything that is there now was dealt with. *options* are those of the sink: `type`,
        `txnId`.
        """
        if every is not None and available_now:
            raise ValueError("every and available_now: choose one, a query that ends has nothing to wait for")
        self._dataframe = dataframe
        self._path = fspath(path)
        self._checkpoint = fspath(checkpoint)
        self._every = every
        self._available_now = available_now
        self._options = dict(options or {})
        self._query: StreamingQuery | None = None

    async def start(self) -> None:
        """Start the query; wrong options and columns are raised here."""
        if self._query is not None:
            raise RuntimeError("this feeder was started already; make one for each run")
        self._query = await to_thread.run_sync(self._start)

    def _start(self) -> StreamingQuery:
        writer = self._dataframe.writeStream.format("filechannel").options(**self._options)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if self._every is not None:
            writer = writer.trigger(processingTime=self._every)
        elif self._available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(self._path)

    async def wait(self) -> None:
        """Wait until the query has ended; raise what it failed with. Cancelled, the query is stopped."""
        query = self._running
        try:
            while not await to_thread.run_sync(query.awaitTermination, _LOOK, abandon_on_cancel=True):
                pass
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the query, after the batch that it is at. Stopping twice is stopping once."""
        if self._query is not None:
            await to_thread.run_sync(self._query.stop)

    @property
    def is_running(self) -> bool:
        """Whether the query goes on."""
        return self._query is not None and self._query.isActive

    def progress(self) -> dict[str, object] | None:
        """Return what Spark last told about the query, as in its `lastProgress`; None before the first batch."""
        last: object = self._running.lastProgress
        if last is None:
            return None
        found: dict[str, object] = json.loads(getattr(last, "json", None) or json.dumps(last))
        return found

    @property
    def _running(self) -> StreamingQuery:
        if self._query is None:
            raise RuntimeError("this feeder was not started: use it in 'async with', or await start()")
        return self._query

    async def __aenter__(self) -> Self:
        """Start the query."""
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the query; raise what it failed with, unless the block failed itself."""
        with anyio.CancelScope(shield=True):
            await self.stop()
            error = await to_thread.run_sync(self._running.exception)
            if error is not None and kind is None:
                raise error
