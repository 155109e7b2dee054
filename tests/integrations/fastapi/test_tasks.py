"""Background tasks: when they are stored, how they are run, and what becomes of those that cannot be."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import httpx
import msgspec
import pytest
from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from filechannel import CodecError, DeadLetter, RetryPolicy, redrive
from filechannel.integrations.fastapi import Channels, DurableTasks, TaskError, TaskQueue
from tests.integrations.fastapi.asgi import running

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(max_attempts=2, delay=0)


class Order(msgspec.Struct):
    """What is ordered."""

    id: int


@dataclass
class Address:
    """The address of an order."""

    street: str


class Customer(BaseModel):
    """The customer of an order."""

    name: str
    since: datetime


called: list[tuple[object, ...]] = []


async def deliver(order: Order, to: Address, *items: int, fast: bool = False, **notes: str) -> None:
    """Take arguments of every kind."""
    called.append((order, to, items, fast, notes))


def greet(customer: Customer, /, loud: bool | None = None) -> None:
    """Be called in a thread."""
    called.append((customer, loud, threading.current_thread() is threading.main_thread()))


async def fail(order: Order) -> None:
    """Never succeed."""
    raise ValueError(f"no luck with {order.id}")


async def unknown() -> None:
    """Be no task."""


async def untyped(order) -> None:  # type: ignore[no-untyped-def]
    """Say nothing about the argument."""


class Method:
    """Something with a method."""

    def method(self) -> None:
        """Need an object."""


def make(directory: Path, *, serve: bool = True) -> tuple[Channels, TaskQueue]:
    """Return a queue with some tasks."""
    called.clear()
    channels = Channels(directory, serve=serve)
    queue = channels.add_tasks("jobs", retry=QUICK)
    for function in (deliver, greet, fail):
        queue.task(function)
    return channels, queue


async def finish(queue: TaskQueue) -> None:
    """Wait until every call was run, or is a dead letter."""
    with anyio.fail_after(30):
        await (await queue.channel.channel()).join("tasks")


async def letters(queue: TaskQueue) -> list[DeadLetter]:
    """Return the dead letters."""
    with (await queue.dead.channel()).replay() as past:
        return [letter async for letter in past]


async def test_a_call_is_made_as_it_was_added(tmp_path: Path) -> None:
    """A task is called with the arguments it was added with, converted by the hints of the function."""
    channels, queue = make(tmp_path)
    customer = Customer(name="Ann", since=datetime(2020, 1, 2, tzinfo=UTC))
    async with running(channels):
        async with queue.collecting() as tasks:
            tasks.add_task(deliver, Order(1), Address("Elm"), 7, 8, fast=True, door="red")
            tasks.add_task(deliver, to=Address("Oak"), order=Order(2))
            tasks.add_task(greet, customer)
        await finish(queue)
    assert (Order(1), Address("Elm"), (7, 8), True, {"door": "red"}) in called
    assert (Order(2), Address("Oak"), (), False, {}) in called
    assert (customer, None, False) in called
    assert len(called) == 3


async def test_calls_are_stored_before_the_response_is_sent(tmp_path: Path) -> None:
    """When the first byte of the response is sent every added task is in the channel."""
    channels, queue = make(tmp_path, serve=False)
    app, stored = FastAPI(), []

    @app.post("/orders")
    async def place(tasks: Annotated[DurableTasks, Depends(queue.tasks)]) -> None:
        tasks.add_task(fail, Order(1))
        tasks.add_task(fail, Order(2))

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def look_and_send(message: Message) -> None:
            stored.append((await queue.channel.channel()).statistics().messages)
            await send(message)

        await app(scope, receive, look_and_send)

    async with channels.lifespan(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(watched), base_url="http://shop") as client:
            assert (await client.post("/orders")).status_code == 200
    assert stored
    assert set(stored) == {2}


@pytest.mark.parametrize("error", [HTTPException(409), RuntimeError("broken")])
async def test_nothing_is_stored_if_the_endpoint_fails(error: Exception, tmp_path: Path) -> None:
    """A request that fails stores no task."""
    channels, queue = make(tmp_path, serve=False)
    app = FastAPI()

    @app.post("/orders")
    async def place(tasks: Annotated[DurableTasks, Depends(queue.tasks)]) -> None:
        tasks.add_task(fail, Order(1))
        raise error

    async with channels.lifespan(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.post("/orders")).status_code in (409, 500)
        assert (await queue.channel.channel()).statistics().messages == 0


async def test_what_cannot_be_stored_is_not_answered_as_if(tmp_path: Path) -> None:
    """If its tasks cannot be stored the client gets an error, although the endpoint has returned."""
    channels, queue = make(tmp_path, serve=False)
    app = FastAPI()

    @app.post("/orders")
    async def place(tasks: Annotated[DurableTasks, Depends(queue.tasks)]) -> None:
        tasks.add_task(fail, Order(1))

    async with channels.lifespan(app):
        await (await queue.channel.channel()).seal()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.post("/orders")).status_code == 500


async def test_a_request_that_is_cancelled_stores_nothing(tmp_path: Path) -> None:
    """A cancelled request stores none of its tasks."""
    channels, queue = make(tmp_path, serve=False)
    app, added = FastAPI(), anyio.Event()

    @app.post("/orders")
    async def place(tasks: Annotated[DurableTasks, Depends(queue.tasks)]) -> None:
        tasks.add_task(fail, Order(1))
        added.set()
        await anyio.sleep_forever()

    async with running(channels, app) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.post, "/orders")
            await added.wait()
            group.cancel_scope.cancel()
        assert (await queue.channel.channel()).statistics().messages == 0


async def test_calls_wait_for_a_process_that_serves(tmp_path: Path) -> None:
    """Tasks that a process stored without serving are run by the next process that serves."""
    channels, queue = make(tmp_path, serve=False)
    async with running(channels), queue.collecting() as tasks:
        tasks.add_task(deliver, Order(1), Address("Elm"))
    channels, queue = make(tmp_path)
    async with running(channels):
        await finish(queue)
    assert called == [(Order(1), Address("Elm"), (), False, {})]


async def test_a_call_that_fails_becomes_a_dead_letter(tmp_path: Path) -> None:
    """A task that fails becomes a dead letter after the attempts of the policy, and can be redriven."""
    channels, queue = make(tmp_path)
    async with running(channels):
        async with queue.collecting() as tasks:
            tasks.add_task(fail, Order(5))
        await finish(queue)
        [letter] = await letters(queue)
        assert (letter.reason, letter.attempts) == ("ValueError: no luck with 5", 2)
        assert await redrive(await queue.dead.channel(), await queue.channel.channel()) == 1


async def test_a_call_of_a_missing_function_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    """A task whose function does not exist in this version of the app becomes a dead letter at once."""
    channels, queue = make(tmp_path, serve=False)
    async with running(channels), queue.collecting() as tasks:
        tasks.add_task(fail, Order(5))
    channels = Channels(tmp_path)
    queue = channels.add_tasks("jobs", retry=QUICK)
    async with running(channels):
        await finish(queue)
        [letter] = await letters(queue)
    assert letter.attempts == 1
    assert letter.reason.startswith("TaskError: task 'fail': this app has no function with this name")


async def with_more(order: Order, box: int) -> None:
    """Need more than was stored."""


async def with_less() -> None:
    """Need less than was stored."""


async def with_other(order: int) -> None:
    """Need something else than was stored."""


async def with_default(order: Order, box: int = 3) -> None:
    """Need nothing more than was stored."""
    called.append((order, box))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (with_more, "missing required field `box`"),
        (with_less, "unknown field `order`"),
        (with_other, "Expected `int`, got `object` - at `$.order`"),
    ],
)
async def test_a_function_that_takes_other_arguments_is_a_dead_letter(
    function: Callable[..., object], reason: str, tmp_path: Path
) -> None:
    """A task whose arguments the function does not take any more becomes a dead letter with the reason."""
    channels, queue = make(tmp_path, serve=False)
    async with running(channels), queue.collecting() as tasks:
        tasks.add_task(fail, Order(5))
    channels = Channels(tmp_path)
    queue = channels.add_tasks("jobs", retry=QUICK)
    queue.task(name="fail")(function)
    async with running(channels):
        await finish(queue)
        [letter] = await letters(queue)
    assert letter.attempts == 1
    assert "it does not accept the stored arguments" in letter.reason
    assert reason in letter.reason


async def test_a_function_may_get_more_parameters_with_defaults(tmp_path: Path) -> None:
    """A stored task runs although the function got more parameters with defaults."""
    channels, queue = make(tmp_path, serve=False)
    async with running(channels), queue.collecting() as tasks:
        tasks.add_task(fail, Order(5))
    channels = Channels(tmp_path)
    queue = channels.add_tasks("jobs")
    queue.task(name="fail")(with_default)
    async with running(channels):
        await finish(queue)
    assert called == [(Order(5), 3)]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, "a lambda"),
        (partial(fail, Order(1)), "not a function"),
        (Method().method, "a method"),
        (print, "a method|not a function"),
        (Method, "not a function"),
        (unknown, "decorate it"),
    ],
)
async def test_only_registered_functions_are_added(function: Callable[[], object], reason: str, tmp_path: Path) -> None:
    """Adding a function that is not registered is refused with the reason."""
    channels, queue = make(tmp_path)
    async with running(channels):
        async with queue.collecting() as tasks:
            with pytest.raises(TypeError, match=reason):
                tasks.add_task(function)


async def test_arguments_are_checked_where_they_are_added(tmp_path: Path) -> None:
    """Adding a task with wrong, mistyped or unstorable arguments is refused."""
    channels, queue = make(tmp_path)
    async with running(channels):
        async with queue.collecting() as tasks:
            with pytest.raises(TypeError, match="fail: missing a required argument: 'order'"):
                tasks.add_task(fail)  # type: ignore[call-arg]
            with pytest.raises(CodecError, match=r"fail: .*Expected `int`, got `str` - at `\$\.order\.id`"):
                tasks.add_task(fail, Order("5"))  # type: ignore[arg-type]
            with pytest.raises(CodecError, match=r"fail: .*msgspec does not know Lock"):
                tasks.add_task(fail, anyio.Lock())  # type: ignore[arg-type]
        assert (await queue.channel.channel()).statistics().messages == 0
        with pytest.raises(RuntimeError, match="add tasks before"):
            tasks.add_task(fail, Order(1))


async def test_what_can_be_a_task(tmp_path: Path) -> None:
    """A task function must be at the top level of a module, with hints for its arguments and a unique name."""
    _, queue = make(tmp_path)

    def inner() -> None:
        """Be nowhere to be found."""

    with pytest.raises(TypeError, match="inner cannot be a task: it is defined in another function"):
        queue.task(inner)
    with pytest.raises(TypeError, match="'order' has no type hint"):
        queue.task(untyped)
    with pytest.raises(ValueError, match="a task with this name exists"):
        queue.task(name="fail")(unknown)
    assert queue.task(name="something")(unknown) is unknown
    assert str(TaskError("x", "y")) == "task 'x': y; redrive() it to an app that has it"
