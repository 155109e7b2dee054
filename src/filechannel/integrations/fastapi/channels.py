"""The channels of an app: declared when the app is imported, and open while it runs."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar, final, overload

from fastapi import FastAPI
from typing_extensions import TypeForm

from ... import _checks as checks
from ..._channel.aio.channel import FileChannel
from ..._channel.aio.open_channel import ChannelContext, open_channel
from ..._channel.aio.sender import Sender
from ..._channel.aio.service import Service
from ..._channel.base.dead_letter import DeadLetter
from ..._channel.base.retry_policy import RetryPolicy
from ..._channel.base.service import ServiceConfig, check_handler
from ..._channel.schema.codec import Codec, CodecName
from ..._channel.status.consumer_status import check_name
from ..._channel.subscription.start_position import Start
from ..._options import ChannelOptions
from ..._storage.consumers.cursor_file_format import encoded_name
from .events import Events, FirstStart, Streams, events_of
from .services import serving
from .shutdown import notified_of_stop
from .tasks import Task, TaskQueue

T = TypeVar("T")
R = TypeVar("R")


@final
class Channels:
    """The channels of an app with their handlers and tasks: open and running while the app's lifespan runs.

    `FastAPI(lifespan=channels.lifespan)` is all that is needed. Relative paths are below *directory*, which may be set
    until the app starts. With `serve=False` this process runs no handlers and no tasks; their messages wait in the
    channels for a process that serves.
    """

    def __init__(self, directory: str | os.PathLike[str] = ".", *, serve: bool = True) -> None:
        checks.instance_of(bool, "True or False")("serve", serve)
        self.directory = directory
        self.serve = serve
        self._opened_paths: set[str] = set()
        self._openings: list[Callable[[], AbstractAsyncContextManager[object]]] = []
        self._services: list[Callable[[], Service]] = []
        self._streams = Streams()
        self._is_running = False

    @property
    def directory(self) -> str | os.PathLike[str]:
        """The directory of channels with relative paths."""
        return self._directory

    @directory.setter
    def directory(self, directory: str | os.PathLike[str]) -> None:
        checks.path_text("directory", directory)
        self._directory = directory

    @overload
    def add(
        self,
        path: str | os.PathLike[str],
        type: type[T],
        *,
        codec: Codec[T] | CodecName | None = None,
        options: ChannelOptions | None = None,
        strict_owner: bool = False,
    ) -> AppChannel[T]: ...

    @overload
    def add(
        self,
        path: str | os.PathLike[str],
        type: TypeForm[T],
        *,
        codec: Codec[T] | CodecName | None = None,
        options: ChannelOptions | None = None,
        strict_owner: bool = False,
    ) -> AppChannel[T]: ...

    def add(
        self,
        path: str | os.PathLike[str],
        type: type[T] | TypeForm[T],
        *,
        codec: Codec[T] | CodecName | None = None,
        options: ChannelOptions | None = None,
        strict_owner: bool = False,
    ) -> AppChannel[T]:
        """Declare a channel, with these arguments of `open_channel`. It is opened, or created, when the app starts.

        Raises `ValueError` for a relative *path* that leads out of the directory, or for one that was already added.
        """
        self._check_not_running()
        relative = _relative_path(path)
        if relative in self._opened_paths:
            raise ValueError(f"path={path!r}: was already added; use the channel that add() returned")

        def make() -> ChannelContext[T]:
            where = Path(self.directory, relative)
            return open_channel(where, type, codec=codec, options=options, strict_owner=strict_owner)

        make()  # raises for wrong arguments here, where they are given
        channel = AppChannel(Path(path), make, self._streams, self._add_service)
        self._opened_paths.add(relative)
        self._openings.append(channel.opened)
        return channel

    def add_tasks(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "tasks",
        concurrency: int = 10,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        dead_letter: AppChannel[DeadLetter] | None = None,
        grace: float | None = 10.0,
        lease: float = 30.0,
        options: ChannelOptions | None = None,
        strict_owner: bool = False,
    ) -> TaskQueue:
        """Declare a channel of background tasks. The group *name* runs them, in every process that serves.

        Each process runs up to *concurrency* tasks at once; the other arguments are those of `AppChannel.handler`.
        Tasks that fail for good are sent to *dead_letter*; without it, to a channel next to this one: `<path>-dead`.
        """
        channel = self.add(path, Task, options=options, strict_owner=strict_owner)
        dead = dead_letter
        if dead is None:
            dead = self.add(f"{os.fspath(path)}-dead", DeadLetter, strict_owner=strict_owner)
        queue = TaskQueue(channel, dead)
        channel.handler(
            name,
            ordered=False,
            concurrency=concurrency,
            retry=queue.policy(retry),
            dead_letter=dead,
            grace=grace,
            lease=lease,
        )(queue.run)
        return queue

    def _add_service(self, begin: Callable[[], Service]) -> None:
        self._check_not_running()
        self._services.append(begin)

    def _check_not_running(self) -> None:
        if self._is_running:
            raise RuntimeError("the app is running: declare channels, handlers and tasks where it is imported")

    @asynccontextmanager
    async def lifespan(self, app: FastAPI | None = None) -> AsyncGenerator[None]:
        """Open every channel, run every handler and task while the body runs, and close everything in reverse order.

        If the app has a lifespan of its own, enter this one inside it: `async with channels.lifespan(app)`. So does a
        process without an app that only serves. When the body ends, no new messages are handled, handlers that are
        running finish, and then the channels are closed. If a channel cannot be opened, the error is raised and
        everything is closed again. The lifespan may run again later, but not twice at the same time: `RuntimeError`.
        """
        if self._is_running:
            raise RuntimeError("these channels are already open; enter their lifespan once per app")
        self._is_running = True
        try:
            async with AsyncExitStack() as stack:
                for opened in self._openings:
                    await stack.enter_async_context(opened())
                self._streams.begin()
                stack.callback(self.end_streams)
                stack.enter_context(notified_of_stop(self.end_streams))
                await stack.enter_async_context(serving(self._services if self.serve else ()))
                yield
        finally:
            self._is_running = False

    def end_streams(self) -> None:
        """End every event stream, and each one that starts from now on. Their clients reconnect and resume.

        Called automatically when the process receives SIGTERM or SIGINT. Call it for a server that is stopped in
        another way, for example in a thread: it would wait for the streams without end.
        """
        self._streams.end()


def _relative_path(path: str | os.PathLike[str]) -> str:
    """Return the normalized path of a channel; relative paths are below the directory."""
    text = checks.path_text("path", path)
    if not text:
        raise ValueError(f"path={path!r}: is empty; give the channel a name")
    relative = os.path.normpath(text)
    if relative.split(os.sep, 1)[0] == os.pardir:
        raise ValueError(f"path={path!r}: leads out of the directory of these channels; use an absolute path")
    return relative


@final
class AppChannel(Generic[T]):
    """A channel that is open while its app runs. Created by `Channels.add`."""

    def __init__(
        self,
        path: Path,
        make: Callable[[], ChannelContext[T]],
        streams: Streams,
        add_service: Callable[[Callable[[], Service]], None],
    ) -> None:
        self._path = path
        self._make = make
        self._streams = streams
        self._add_service = add_service
        self._names: set[str] = set()
        self._open: tuple[FileChannel[T], Sender[T]] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Keep the channel open while the body runs."""
        async with self._make() as channel:
            self._open = channel, channel.sender()
            try:
                yield
            finally:
                self._open = None

    @property
    def _opened(self) -> tuple[FileChannel[T], Sender[T]]:
        if self._open is None:
            raise RuntimeError(
                f"{self._path} is not open: the app needs lifespan=channels.lifespan, and must be running"
            )
        return self._open

    async def channel(self) -> FileChannel[T]:
        """Return the open channel. A dependency: `Annotated[FileChannel[Order], Depends(orders.channel)]`."""
        return self._opened[0]

    async def sender(self) -> Sender[T]:
        """Return a sender. A dependency: `Annotated[Sender[Order], Depends(orders.sender)]`.

        All requests share the same sender. It is closed with the channel: do not close it.
        """
        return self._opened[1]

    def handler(
        self,
        name: str,
        *,
        group: bool = True,
        ordered: bool = True,
        concurrency: int = 1,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        dead_letter: AppChannel[DeadLetter] | None = None,
        grace: float | None = 10.0,
        lease: float = 30.0,
        start: Start = "earliest",
    ) -> Callable[[Callable[[T], R]], Callable[[T], R]]:
        """Decorate a function that handles every message under a durable name while the app runs, like `serve`.

        The arguments are those of `FileChannel.serve`. The handlers of all processes that serve form a group: each
        message is delivered to one of them. With `group=False` one process owns the name and handles all messages in
        order; the others stand by, and one of them takes over if it dies. A service that ends with an error is logged
        and restarted, with longer pauses each time. Without a *dead_letter*, a service ends with an error when a
        message has used up its attempts.
        """
        check_name(name)
        encoded_name(name)
        ServiceConfig(group=group, ordered=ordered, concurrency=concurrency, retry=retry, grace=grace)
        checks.seconds("lease", lease)
        if name in self._names:
            raise ValueError(
                f"name={name!r}: {self._path} already has a handler with this name, with which it would share messages"
            )

        def decorate(handle: Callable[[T], R]) -> Callable[[T], R]:
            check_handler(handle)

            def begin() -> Service:
                return self._opened[0].serve(
                    handle,
                    name=name,
                    group=group,
                    ordered=ordered,
                    concurrency=concurrency,
                    retry=retry,
                    dead_letter=None if dead_letter is None else dead_letter._opened[1],
                    grace=grace,
                    lease=lease,
                    start=start,
                )

            self._names.add(name)
            self._add_service(begin)
            return handle

        return decorate

    def events(self, *, start: FirstStart = "latest", heartbeat: float = 15.0, event: str | None = None) -> Events[T]:
        """Return an endpoint, or a dependency of one, that streams the channel as Server-Sent Events.

        A client resumes at the id in the header `Last-Event-ID` or in `?since=`, which also accepts `earliest` and
        `latest`. Without either it starts at *start*. If the message of an id is not stored any more, the stream starts
        at the oldest message and reports how many were missed. An id that does not belong to this channel gets the
        status 400. After *heartbeat* seconds without an event a comment is sent. Events have the name *event*, if it is
        given.
        """
        return events_of(self.channel, self._streams, start, heartbeat, event)
