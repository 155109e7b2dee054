"""Spark beside an event loop: frames that become messages, and queries that run along.

Everything that Spark does happens in threads of its own; the loop only appends what is encoded already. Whoever is
cancelled takes the Spark job along: left alone it would go on.
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

from .._channel.sender import Sender
from .._errors import MessageTooLargeError
from .._storage.files import Files
from .._storage.staging import Staged, Staging
from .channels import channel_at
from .identity import check_channel
from .options import CHANNEL_ID, STAGE_ONLY, WriteOptions
from .rows import Rows
from .sink import prepare

T = TypeVar("T")

_SLICE = 1024  # messages that become visible together; the loop is held up no longer than they take
_PAUSE = 0.02  # seconds between two looks at what Spark does
_LOOK = 1  # seconds between two looks at a query


async def feed(sender: Sender[T], dataframe: DataFrame) -> int:
    """Send every row of a frame as a message, and return how many. Works on asyncio, and wherever anyio does.

    Spark's workers turn rows into messages and put them into files, from which they are sent as fast as the channel
    takes them: neither the frame nor its messages are ever in memory as a whole. They become visible as they are sent,
    in the order of the partitions; for all or nothing, use `dataframe.write.format("filechannel")`. Cancelled, the
    Spark job is cancelled too, and what was sent stays sent. Raises `ValueError` if the columns are not those of the
    channel's messages, `ChannelMismatchError` if the path leads to another channel by now, or on another host.
    """
    rows = _Rows(dataframe, sender.path, sender.channel_id)
    try:
        count = 0
        for staged in await to_thread.run_sync(rows.stage, abandon_on_cancel=True):
            parts = rows.staging.payloads(staged)
            while (part := await to_thread.run_sync(next, parts, None)) is not None:
                for first in range(0, len(part), _SLICE):
                    await _send(sender, part[first : first + _SLICE])
                    await anyio.lowlevel.checkpoint()  # a channel with room takes them without a pause
                count += len(part)
        return count
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(rows.forget)


async def _send(sender: Sender[T], payloads: list[bytes]) -> None:
    """Send messages in order, together if the capacity takes so many at once."""
    try:
        await sender._send_encoded(payloads)  # pyright: ignore[reportPrivateUsage]
    except MessageTooLargeError:
        if len(payloads) == 1:
            raise
        middle = len(payloads) // 2
        await _send(sender, payloads[:middle])
        await _send(sender, payloads[middle:])


@final
class _Rows:
    """The rows of a frame on their way: staged by Spark, in a thread."""

    def __init__(self, dataframe: DataFrame, path: Path, channel: str) -> None:
        """*channel* is the id of the one at the path."""
        self._dataframe = dataframe
        self._path = path
        self._channel = channel
        self._group = f"feed-{uuid4().hex}"
        # Taken by worker threads of anyio only (`stage`, `forget`), on which no signal handler runs; so is the event.
        self._lock = Lock()
        self._is_over = False
        self._ended = Event()
        """Set unless a thread is at it."""
        self._ended.set()
        self.staging: Staging = Staging(Files(), path, self._group, 0o600)

    def stage(self) -> list[Staged]:
        """Let Spark turn all rows into messages; return the files, in order."""
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
        Rows(manifest.codec, schema, frame.schema)
        enter_thread(frame.sparkSession)
        frame.sparkSession.sparkContext.setJobGroup(self._group, f"feed {self._path}", interruptOnCancel=True)
        writer = frame.write.format("filechannel").mode("append").option(STAGE_ONLY, self._group)
        writer = writer.option(CHANNEL_ID, self._channel)
        writer.save(str(self._path))
        return self.staging.listed()

    def forget(self) -> None:
        """Let Spark stop if it is still at it, and remove the files."""
        with self._lock:
            self._is_over = True
        # Again and again: a job that begins a moment later would not know that its group was cancelled.
        while not self._ended.wait(_PAUSE):
            self._dataframe.sparkSession.sparkContext.cancelJobGroup(self._group)
        self.staging.sweep()


def enter_thread(session: SparkSession) -> None:
    """Let Spark know in this thread which session it is about: without one it finds no sources."""
    # Which does just that, and nothing else.
    session.createDataFrame([], "nothing int")  # pyright: ignore[reportUnknownMemberType]


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
        `txnId`, `roomTimeout`.
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
        """Start the query; `ValueError` for wrong options or columns."""
        if self._query is not None:
            raise RuntimeError("this feeder was started already; make one for each run")
        self._query = await to_thread.run_sync(self._start)

    def _start(self) -> StreamingQuery:
        # Spark itself would come to that later, in a thread of the query.
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
        """Wait until the query has ended; raise what it failed with. Cancelled, the query is stopped."""
        query = self._running
        try:
            while not await to_thread.run_sync(query.awaitTermination, _LOOK, abandon_on_cancel=True):
                pass
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise

    async def stop(self, *, grace: float = 5.0) -> None:
        """Stop the query, once the batch that it is at is done, or after so many seconds. Stopping twice is once.

        A batch that was not done is done again when the query is started anew with its checkpoint, and written once.
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
