"""Background tasks that survive: calls that are stored before the response is sent, and made by whoever is there."""

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

from ..._channel.dead_letter import DeadLetter
from ..._channel.retry import RetryPolicy
from ..._channel.serve import is_async
from ..._errors import FileChannelError
from .arguments import Arguments

if TYPE_CHECKING:
    from .channels import AppChannel

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., object])


@final
class Task(msgspec.Struct, frozen=True):
    """A call that is to be made: what a channel of tasks carries."""

    function: str
    """The name that the function is registered under."""
    arguments: msgspec.Raw
    """Names and values, as MessagePack."""
    added: datetime
    """When it was added."""


class TaskError(FileChannelError):
    """A stored call that cannot be made: the app has no such function, or one with other parameters."""

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
    """Functions that may be called in the background, and the channel with the calls. Made by `Channels.add_tasks`.

    A call is made at least once, by one of the processes that serve: again if that dies, or if the function raises, as
    the retry policy says. When that gives up, and at once if the call cannot be made (`TaskError`), it goes to `dead`.
    """

    channel: AppChannel[Task]
    """The calls that are to be made."""
    dead: AppChannel[DeadLetter]
    """Those that were given up."""
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

        # Of this scope, so that it ends, and the calls are stored, before the response is sent; whoever depends on the
        # outer function need not know.
        collected = Depends(collect, scope="function")

        async def tasks(collected: DurableTasks = collected) -> DurableTasks:
            return collected

        return tasks

    @overload
    def task(self, function: F, /) -> F: ...

    @overload
    def task(self, function: None = None, /, *, name: str) -> Callable[[F], F]: ...

    def task(self, function: F | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
        """Decorate a function that `add_task` may be given: one at the top level of a module, with type hints.

        A stored call knows it by its *name*, its own unless another one is given: keep that when the function is
        renamed. Functions may be async, or are called in a thread. `TypeError` for what cannot be found again after a
        restart, or whose hints do not say how to store arguments; `ValueError` for a name that is taken.
        """
        if function is None:
            return partial(self._register, name=name)
        return self._register(function)

    def _register(self, function: F, name: str | None = None) -> F:
        _check_lasting(function)
        name = name or function.__name__
        if name in self._registered:
            raise ValueError(f"name={name!r}: there is a task of that name already; give one of them another")
        self._registered[name] = _Registered(name, function, Arguments(name, function))
        self._names[function] = name
        return function

    @asynccontextmanager
    async def collecting(self) -> AsyncGenerator[DurableTasks]:
        """Return what takes calls, and store them together when the body ends; none of them if it fails."""
        calls: list[Task] = []
        is_over = False

        def add(function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            if is_over:
                raise RuntimeError("what had to be stored is stored, and the response on its way: add tasks before")
            calls.append(self._encode(function, args, kwargs))

        yield DurableTasks(add)
        is_over = True
        sender = await self.channel.sender()
        await sender.send_many(calls)

    def _encode(self, function: object, args: tuple[object, ...], kwargs: dict[str, object]) -> Task:
        name = self._names.get(function) if isinstance(function, FunctionType) else None
        if name is None:
            _check_lasting(function)
            raise TypeError(f"{function!r} is no task: decorate it with @….task of the queue that it is added to")
        arguments = self._registered[name].arguments.encode(args, kwargs)
        return Task(name, msgspec.Raw(arguments), datetime.now(UTC))

    def policy(self, retry: RetryPolicy) -> RetryPolicy:
        """Return a policy that gives a call up at once if it cannot be made."""
        given_up = retry.give_up_on if isinstance(retry.give_up_on, tuple) else (retry.give_up_on,)
        return replace(retry, give_up_on=(*given_up, TaskError))

    async def run(self, task: Task) -> None:
        """Make a stored call."""
        registered = self._registered.get(task.function)
        if registered is None:
            raise TaskError(task.function, "there is no function of that name in this app")
        try:
            given = registered.arguments.decode(task.arguments)
        except msgspec.MsgspecError as error:
            raise TaskError(task.function, f"it takes other arguments than those stored: {error}") from error
        call = partial(registered.function, *given.args, **given.kwargs)
        if is_async(registered.function):
            await cast("Awaitable[object]", call())
        else:
            # anyio's own hand-over, as every sync endpoint of the app uses it: a handler that raises in it ends the
            # event loop's task, and no lock of a channel is involved.
            await run_sync(call, abandon_on_cancel=True, limiter=CapacityLimiter(1))


@final
class DurableTasks:
    """Calls that are stored before the response is sent, all or none, and made afterwards, also after a restart.

    Stands in for `BackgroundTasks`. Nothing is stored if the endpoint raises. A call is made at least once: a function
    should not mind being called again. It may begin before the client has the response.
    """

    def __init__(self, add: Callable[[object, tuple[object, ...], dict[str, object]], None]) -> None:
        self._add = add

    def add_task(self, func: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Add a call of a function that is a task of this queue; its arguments are taken as they are now.

        `TypeError` for a lambda, a closure, a method or any other function, and for arguments that it does not take;
        `CodecError` for arguments that are not of the types its hints say. The endpoint has not answered then.
        """
        self._add(func, args, kwargs)


def _check_lasting(function: object) -> None:
    """Refuse what cannot be found again after a restart."""
    if not isinstance(function, FunctionType):
        what = "a method, whose object would be lost" if hasattr(function, "__self__") else "not a function"
        raise TypeError(f"{function!r} cannot be a task: it is {what}; use a function at the top level of a module")
    if function.__name__ == "<lambda>" or "<locals>" in function.__qualname__:
        what = "a lambda" if function.__name__ == "<lambda>" else "defined in another function"
        raise TypeError(
            f"{function.__qualname__} cannot be a task: it is {what}; define it at the top level of a module"
        )
