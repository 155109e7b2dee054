"""Durable background tasks: calls are stored before the response is sent, and any serving process executes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar, cast, final, overload

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Depends

from ..._channel.aio.service import is_async
from ..._channel.base.dead_letter import DeadLetter
from ..._channel.base.retry_policy import RetryPolicy
from ..._errors import FileChannelError
from .task_arguments import Arguments

if TYPE_CHECKING:
    from .channels import AppChannel

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., object])


@final
class Task(msgspec.Struct, frozen=True):
    """A stored call of a function: the message type of a task channel."""

    function: str
    """The name under which the function is registered."""
    arguments: msgspec.Raw
    """The names and values of the arguments, as MessagePack."""
    added: datetime
    """When the call was added."""


class TaskError(FileChannelError):
    """A stored call cannot be executed: the app has no such function, or one with other parameters."""

    function: str
    reason: str

    def __init__(self, function: str, reason: str) -> None:
        self.function = function
        self.reason = reason
        super().__init__(f"task {function!r}: {reason}; redrive() it to an app that has it")


class _Registered(NamedTuple):
    name: str
    function: Callable[..., object]
    arguments: Arguments


@final
class TaskQueue:
    """Functions that may be called in the background, and the channel of their calls. Created by `Channels.add_tasks`.

    A call is executed at least once, by one of the processes that serve. It is repeated if that process dies, or if the
    function raises, according to the retry policy. When the attempts are used up, and at once if the call cannot be
    executed (`TaskError`), it is sent to `dead`.
    """

    channel: AppChannel[Task]
    """The calls to execute."""
    dead: AppChannel[DeadLetter]
    """The calls that failed for good."""
    tasks: Callable[[DurableTasks], Coroutine[object, object, DurableTasks]]
    """The dependency: `Annotated[DurableTasks, Depends(queue.tasks)]`."""

    def __init__(self, channel: AppChannel[Task], dead: AppChannel[DeadLetter]) -> None:
        self.channel = channel
        self.dead = dead
        self._registered: dict[str, _Registered] = {}
        self._names: dict[object, str] = {}
        self.tasks = self._dependency()

    def _dependency(self) -> Callable[[DurableTasks], Coroutine[object, object, DurableTasks]]:
        async def collect() -> AsyncGenerator[DurableTasks]:
            async with self.collecting() as tasks:
                yield tasks

        # With this scope the dependency ends, and so the calls are stored, before the response is sent. Users of the
        # outer function need not set it.
        collected = Depends(collect, scope="function")

        async def tasks(collected: DurableTasks = collected) -> DurableTasks:
            return collected

        return tasks

    @overload
    def task(self, function: F, /) -> F: ...

    @overload
    def task(self, function: None = None, /, *, name: str) -> Callable[[F], F]: ...

    def task(self, function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
        """Decorate a function so that `add_task` accepts it. It must be at the top level of a module, with type hints.

        Stored calls refer to it by *name*, by default the name of the function: keep that name when the function is
        renamed. Functions may be async; others are called in a thread. Raises `TypeError` for a function that cannot be
        found again after a restart, or whose type hints do not say how to store arguments, and `ValueError` for a name
        that is taken.
        """
        if function is None:
            return partial(self._register, name=name)
        return self._register(function)

    def _register(self, function: F, name: str | None = None) -> F:
        _check_lasting(function)
        name = name or function.__name__
        if name in self._registered:
            raise ValueError(f"name={name!r}: a task with this name exists; rename one of them")
        self._registered[name] = _Registered(name, function, Arguments(name, function))
        self._names[function] = name
        return function

    @asynccontextmanager
    async def collecting(self) -> AsyncGenerator[DurableTasks]:
        """Return an object that collects calls. They are stored together when the body ends; none if it raises."""
        calls: list[Task] = []
        is_over = False

        def add(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if is_over:
                raise RuntimeError("the tasks are stored and the response is being sent: add tasks before that")
            calls.append(self._encode(function, args, kwargs))

        yield DurableTasks(add)
        is_over = True
        sender = await self.channel.sender()
        await sender.send_many(calls)

    def _encode(self, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> Task:
        name = self._names.get(function) if isinstance(function, FunctionType) else None
        if name is None:
            _check_lasting(function)
            raise TypeError(f"{function!r} is not a task: decorate it with @….task of the queue to which you add it")
        arguments = self._registered[name].arguments.encode(args, kwargs)
        return Task(name, msgspec.Raw(arguments), datetime.now(UTC))

    def policy(self, retry: RetryPolicy) -> RetryPolicy:
        """Return a policy that does not retry a call that cannot be executed."""
        given_up_on = retry.give_up_on if isinstance(retry.give_up_on, tuple) else (retry.give_up_on,)
        return replace(retry, give_up_on=(*given_up_on, TaskError))

    async def run(self, task: Task) -> None:
        """Execute a stored call."""
        registered = self._registered.get(task.function)
        if registered is None:
            raise TaskError(task.function, "this app has no function with this name")
        try:
            given = registered.arguments.decode(task.arguments)
        except msgspec.MsgspecError as error:
            raise TaskError(task.function, f"it does not accept the stored arguments: {error}") from error
        call = partial(registered.function, *given.args, **given.kwargs)
        if is_async(registered.function):
            await cast("Awaitable[object]", call())
        else:
            # anyio's own thread, as for every sync endpoint of the app: a signal handler that raises in it ends the
            # task of the event loop, and no lock of a channel is involved.
            await run_sync(call, abandon_on_cancel=True, limiter=CapacityLimiter(1))


@final
class DurableTasks:
    """Calls that are stored before the response is sent, all or none, and executed afterwards, even after a restart.

    Replaces `BackgroundTasks`. Nothing is stored if the endpoint raises. A call is executed at least once: the function
    must tolerate being called again. It may start before the client has the response.
    """

    def __init__(self, add: Callable[[object, tuple[object, ...], dict[str, object]], None]) -> None:
        self._add = add

    def add_task(self, func: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Add a call of a function that is a task of this queue. The arguments are encoded immediately.

        Raises `TypeError` for a lambda, a closure, a method or any other function, and for arguments that it does not
        take; `CodecError` for arguments that do not match its type hints. At that point the endpoint has not answered
        yet.
        """
        self._add(func, args, kwargs)


def _check_lasting(function: object) -> None:
    """Raise `TypeError` for a function that cannot be found again after a restart."""
    if not isinstance(function, FunctionType):
        what = "a method, and its object cannot be stored" if hasattr(function, "__self__") else "not a function"
        raise TypeError(f"{function!r} cannot be a task: it is {what}; use a function at the top level of a module")
    if function.__name__ == "<lambda>" or "<locals>" in function.__qualname__:
        what = "a lambda" if function.__name__ == "<lambda>" else "defined in another function"
        raise TypeError(
            f"{function.__qualname__} cannot be a task: it is {what}; define it at the top level of a module"
        )
