"""Spark next to an event loop: sends the rows of a frame as messages, and runs streaming queries.

All Spark work runs in worker threads; the event loop thread only appends messages that are already encoded. If the
caller is cancelled, the Spark job is cancelled too: otherwise it would keep running.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from threading import Event, Lock
from typing import Self, TypeVar, final
from uuid import uuid4

import anyio
import anyio.lowlevel
from anyio import to_thread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from .._channel.aio.sender import Sender
from .._errors import MessageTooLargeError
from .._storage.producers.staging import Staged, Staging
from .._storage.system.os_calls import Files
from .channel_identity import check_channel
from .open_channels import channel_at
from .source_options import CHANNEL_ID, STAGE_ONLY, WriteOptions
from .write.encode_rows import check_columns
from .write.sink import prepare

T = TypeVar("T")

_SLICE = 1024  # messages that become visible together, and for which the event loop is blocked
_PAUSE = 0.02  # seconds between two checks of a job or a query
_WAIT_SECONDS = 1  # seconds that a thread waits for a query before it checks again


async def feed(sender: Sender[T], dataframe: DataFrame) -> int:
    """Send every row of a frame as a message, and return the number of rows. Works on asyncio and trio, through anyio.

    Spark's workers encode rows as messages and stage them in files, from which they are sent as fast as the channel
    accepts them: neither the frame nor its messages are ever in memory as a whole. Messages become visible as they are
    sent, in the order of the partitions; for all or nothing, use `dataframe.write.format("filechannel")`. On
    cancellation the Spark job is cancelled too, and messages that were sent stay sent. Raises `ValueError` if the
    columns do not match the channel's messages, and `ChannelMismatchError` if the path leads to another channel, here
    or on another host.
    """
    staged_frame = _StagedFrame(dataframe, sender.path, sender.channel_id)
    try:
        count = 0
        for staged in await to_thread.run_sync(staged_frame.stage, abandon_on_cancel=True):
            parts = staged_frame.staging.payloads(staged)
            while (part := await to_thread.run_sync(next, parts, None)) is not None:
                for first in range(0, len(part), _SLICE):
                    await _send(sender, part[first : first + _SLICE])
                    await anyio.lowlevel.checkpoint()  # sending does not suspend while the channel has capacity
                count += len(part)
        return count
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(staged_frame.forget)


async def _send(sender: Sender[T], payloads: list[bytes]) -> None:
    """Send messages in order: as one batch, or as smaller ones if the capacity of the channel is less."""
    try:
        await sender.append_with(lambda: sender.append_encoded(payloads))
    except MessageTooLargeError:
        if len(payloads) == 1:
            raise
        middle = len(payloads) // 2
        await _send(sender, payloads[:middle])
        await _send(sender, payloads[middle:])


@final
class _StagedFrame:
    """A frame whose rows Spark stages as messages, in a worker thread."""

    def __init__(self, dataframe: DataFrame, path: Path, channel: str) -> None:
        """*channel* is the id of the channel at the path."""
        self._dataframe = dataframe
        self._path = path
        self._channel = channel
        self._group = f"feed-{uuid4().hex}"
        # Only worker threads of anyio use the lock and the event (`stage`, `forget`): no signal handler runs on them.
        self._lock = Lock()
        self._is_over = False
        self._ended = Event()
        """Set unless a thread is inside `stage`."""
        self._ended.set()
        self.staging: Staging = Staging(Files(), path, self._group, 0o600)

    def stage(self) -> list[Staged]:
        """Run the Spark job that stages all rows as messages. Return the files, in order."""
        with self._lock:
            if self._is_over:
                return []
            self._ended.clear()
        try:
            return self._stage()
        finally:
            self._ended.set()

    def _stage(self) -> list[Staged]:
        frame = self._dataframe
        manifest, schema = channel_at(self._path, None)
        check_channel(self._path, self._channel, manifest.id)
        check_columns(manifest.codec, schema, frame.schema)
        enter_thread(frame.sparkSession)
        frame.sparkSession.sparkContext.setJobGroup(self._group, f"feed {self._path}", interruptOnCancel=True)
        writer = frame.write.format("filechannel").mode("append").option(STAGE_ONLY, self._group)
        writer = writer.option(CHANNEL_ID, self._channel)
        writer.save(str(self._path))
        return self.staging.listed()

    def forget(self) -> None:
        """Cancel the Spark job if it is still running, and delete the files."""
        with self._lock:
            self._is_over = True
        # Cancel repeatedly: a job that starts after cancelJobGroup is not affected by it.
        while not self._ended.wait(_PAUSE):
            self._dataframe.sparkSession.sparkContext.cancelJobGroup(self._group)
        self.staging.sweep()


def enter_thread(session: SparkSession) -> None:
    """Make a session the active one of this thread. Without an active session Spark finds no data sources."""
    # createDataFrame sets the active session, and the empty frame has no other effect.
    session.createDataFrame([], "nothing int")  # pyright: ignore[reportUnknownMemberType]


@final
class ChannelFeeder:
    """A streaming query that writes a frame to a channel, exactly once, next to an application's event loop.

    ```python
    async with ChannelFeeder(frame, "data/results", checkpoint="data/checkpoint") as feeder:
        ...
        feeder.progress()
    ```

    Leaving the block stops the query; `await feeder.wait()` waits until it ends by itself. If the query fails, its
    error is raised by `wait`, or at the end of the block. Cancellation stops the query, too.
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
        """Start a batch as soon as the previous one is done, or *every* interval, for example "5 seconds".

        *available_now*: end when everything that is available now is processed. *options* are those of the sink:
        `type`, `txnId`, `roomTimeout`.
        """
        if every is not None and available_now:
            raise ValueError(
                "every and available_now: use one of them: a query that ends does not wait for a next trigger"
            )
        self._dataframe = dataframe
        self._path = fspath(path)
        self._checkpoint = fspath(checkpoint)
        self._every = every
        self._available_now = available_now
        self._options = dict(options or {})
        self._query: StreamingQuery | None = None

    async def start(self) -> None:
        """Start the query. Raise `ValueError` for wrong options or columns."""
        if self._query is not None:
            raise RuntimeError("this feeder was already started; create one for each run")
        self._query = await to_thread.run_sync(self._start)

    def _start(self) -> StreamingQuery:
        # Spark would check this later, in a thread of the query.
        prepare(WriteOptions.of_stream({**self._options, "path": self._path}), self._dataframe.schema)
        enter_thread(self._dataframe.sparkSession)
        writer = self._dataframe.writeStream.format("filechannel").options(**self._options)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if self._every is not None:
            writer = writer.trigger(processingTime=self._every)
        elif self._available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(self._path)

    async def wait(self) -> None:
        """Wait until the query ends, and raise the error it failed with. Cancellation stops the query."""
        query = self._running
        try:
            while not await to_thread.run_sync(query.awaitTermination, _WAIT_SECONDS, abandon_on_cancel=True):
                pass
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def stop(self, *, grace: float = 5.0) -> None:
        """Stop the query once its current batch is done, or after *grace* seconds. Calling it again has no effect.

        A batch that was not finished is repeated when the query is started again with its checkpoint, and is written
        once.
        """
        if self._query is not None:
            await to_thread.run_sync(self._stop, self._query, grace)

    @staticmethod
    def _stop(query: StreamingQuery, grace: float) -> None:
        until = time.monotonic() + grace
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(_PAUSE)
        query.stop()

    @property
    def is_running(self) -> bool:
        """Whether the query is running."""
        return self._query is not None and self._query.isActive

    def progress(self) -> dict[str, object] | None:
        """Return Spark's `lastProgress` of the query; None before the first batch."""
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
        """Stop the query. Raise the error it failed with, unless the block itself raised one."""
        with anyio.CancelScope(shield=True):
            await self.stop()
            error = await to_thread.run_sync(self._running.exception)
            if error is not None and kind is None:
                raise error
