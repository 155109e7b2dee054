"""The channels of an app: declared when it is imported, open while it runs."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar, final, overload

from fastapi import FastAPI
from typing_extensions import TypeForm

from ... import _checks as checks
from ..._channel.any_service import Terms, check_handler
from ..._channel.channel import FileChannel
from ..._channel.codec import Codec, CodecName
from ..._channel.consumers import check_name
from ..._channel.dead_letter import DeadLetter
from ..._channel.opening import ChannelContext, open_channel
from ..._channel.places import Start
from ..._channel.retry import RetryPolicy
from ..._channel.sender import Sender
from ..._channel.serve import Service
from ..._options import ChannelOptions
from ..._storage.cursor_file import encoded_name
from .events import Events, FirstStart, Streams, events_of
from .services import serving
from .shutdown import told_to_stop
from .tasks import Task, TaskQueue

T = TypeVar("T")
R = TypeVar("R")


@final
class Channels:
    """The channels of an app and what works on them: open, and at work, while its lifespan runs.

    `FastAPI(lifespan=channels.lifespan)` is all that is needed. Relative paths lie below *directory*, which may be set
    until the app starts. With `serve=False` no handler and no task runs in this process; what they are to do waits in
    the channels for a process that serves.
    """

    def __init__(self, directory: str | os.PathLike[str] = ".", *, serve: bool = True) -> None:
        checks.instance_of(bool, "True or False")("serve", serve)
        self.directory = directory
        self.serve = serve
        self._places: set[str] = set()
        self._openings: list[Callable[[], AbstractAsyncContextManager[object]]] = []
        self._services: list[Callable[[], Service]] = []
        self._streams = Streams()
        self._is_running = False

    @property
    def directory(self) -> str | os.PathLike[str]:
        """Where channels with relative paths lie."""
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
        """Declare a channel, with these arguments of `open_channel`: it is opened, or created, when the app starts.

        Raises `ValueError` for a relative *path* that leads out of the directory, or was added before.
        """
        self._check_not_running()
        place = _place(path)
        if place in self._places:
            raise ValueError(f"path={path!r}: was added already; use the channel that add() returned then")

        def make() -> ChannelContext[T]:
            where = Path(self.directory, place)
            return open_channel(where, type, codec=codec, options=options, strict_owner=strict_owner)

        make()  # what is wrong with the arguments is told where they are
        channel = AppChannel(Path(path), make, self._streams, self._add_service)
        self._places.add(place)
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
        """Declare a channel of background tasks, which the group of that *name* runs, in every process that serves.

        Up to *concurrency* of them at once in each; the rest is as for `AppChannel.handler`. Tasks that are given up go
        to *dead_letter*; without, to a channel beside it: `<path>-dead`.
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
        """Open every channel, run every handler and task beside the body, and close it all in turn.

        A lifespan of one's own enters it: `async with channels.lifespan(app)`; so does a process without an app that
        only serves. When the body ends, nothing new is begun, what is being handled goes on to its end, and then the
        channels are closed. Whatever cannot be opened is raised, with everything closed again. It may run again, but
        not twice at a time: `RuntimeError`.
        """
        if self._is_running:
            raise RuntimeError("these channels are open already; enter their lifespan once for an app")
        self._is_running = True
        try:
            async with AsyncExitStack() as stack:
                for opened in self._openings:
                    await stack.enter_async_context(opened())
                self._streams.begin()
                stack.callback(self.end_streams)
                stack.enter_context(told_to_stop(self.end_streams))
                await stack.enter_async_context(serving(self._services if self.serve else ()))
                yield
        finally:
            self._is_running = False

    def end_streams(self) -> None:
        """End every stream of events, and each that is begun from now on: their clients come again, and go on there.

        Happens by itself when the process is told to stop by SIGTERM or SIGINT. For a server that is stopped otherwise,
        in a thread for instance, which would wait for them for ever.
        """
        self._streams.end()


def _place(path: str | os.PathLike[str]) -> str:
    """Return the path of a channel, relative ones below the directory, in the one form that it has."""
    text = checks.path_text("path", path)
    if not text:
        raise ValueError(f"path={path!r}: is empty; give the channel a name")
    place = os.path.normpath(text)
    if place.split(os.sep, 1)[0] == os.pardir:
        raise ValueError(f"path={path!r}: leads out of the directory of these channels; give an absolute path")
    return place


@final
class AppChannel(Generic[T]):
    """A channel that is open while its app runs. Made by `Channels.add`."""

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
        """Have it open for as long as the body runs."""
        async with self._make() as channel:
            self._open = channel, channel.sender()
            try:
                yield
            finally:
                self._open = None

    @property
    def _opened(self) -> tuple[FileChannel[T], Sender[T]]:
        if self._open is None:
            raise RuntimeError(f"{self._path} is not open: the app needs lifespan=channels.lifespan, and has to run")
        return self._open

    async def channel(self) -> FileChannel[T]:
        """Return the open channel. A dependency: `Annotated[FileChannel[Order], Depends(orders.channel)]`."""
        return self._opened[0]

    async def sender(self) -> Sender[T]:
        """Return a sender. A dependency: `Annotated[Sender[Order], Depends(orders.sender)]`.

        It is the same one for every request, and closed with the channel: leave it open.
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
        """Decorate what handles every message under a durable name, beside the app. As `FileChannel.serve` does.

        The handlers of all processes that serve are a group: each message goes to one of them. With `group=False` one
        process has the name, and handles everything in order; the others stand by, and one of them takes over if it
        dies. A service that ends with an error, as it does without a *dead_letter* when a message has used up its
        attempts, is logged and begun again, later each time.
        """
        check_name(name)
        encoded_name(name)
        Terms(group=group, ordered=ordered, concurrency=concurrency, retry=retry, grace=grace)
        checks.seconds("lease", lease)
        if name in self._names:
            raise ValueError(
                f"name={name!r}: {self._path} has a handler of that name already, which would share with it"
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
        """Return what streams the channel as Server-Sent Events: an endpoint, or a dependency of one.

        A client goes on at the header `Last-Event-ID`, or at `?since=` with such an id, `earliest` or `latest`, and
        begins at *start* otherwise. An id whose message is not stored any more goes on with the oldest, and says how
        many were missed; what is no id of this channel gets the status 400. After *heartbeat* seconds without an event
        there is a comment. Events have the name *event*, if that is given.
        """
        return events_of(self.channel, self._streams, start, heartbeat, event)
