"""The channels of an app: declared, opened, served and closed."""

import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import pytest
from anyio import ClosedResourceError
from fastapi import APIRouter, Depends, FastAPI

from filechannel import DeadLetter, FileChannel, NotAChannelError, RetryPolicy, Sender, UntrustedChannelError
from filechannel.integrations.fastapi import Channels
from tests.integrations.fastapi.asgi import running

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    """What is ordered."""

    id: int


async def test_channels_are_open_while_the_app_runs(tmp_path: Path) -> None:
    """Dependencies return sender and channel while the app runs, and raise before and afterwards."""
    channels = Channels(tmp_path)
    orders = channels.add("orders", Order)
    app = FastAPI(lifespan=channels.lifespan)

    @app.post("/orders/{number}")
    async def place(number: int, tx: Annotated[Sender[Order], Depends(orders.sender)]) -> None:
        await tx.send(Order(number))

    @app.get("/orders")
    async def count(channel: Annotated[FileChannel[Order], Depends(orders.channel)]) -> int:
        return channel.statistics().messages

    with pytest.raises(RuntimeError, match="orders is not open"):
        await orders.sender()
    async with running(channels, app) as client:
        sender = await orders.sender()
        await client.post("/orders/1")
        await client.post("/orders/2")
        assert (await client.get("/orders")).json() == 2
        with pytest.raises(RuntimeError, match="already open"):
            async with channels.lifespan(app):
                pass
        with pytest.raises(RuntimeError, match="the app is running"):
            channels.add("more", Order)
    with pytest.raises(ClosedResourceError):
        await sender.send(Order(3))
    async with running(channels, app) as client:
        assert (await client.get("/orders")).json() == 2


async def test_a_lifespan_of_ones_own_enters_that_of_the_channels(tmp_path: Path) -> None:
    """A lifespan of the user's enters that of the channels, also in an included router, and its state is kept."""
    channels = Channels(tmp_path)
    orders = channels.add("orders", Order)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, int]]:
        async with channels.lifespan(app):
            yield {"sent": (await orders.channel()).statistics().messages}

    app = FastAPI(lifespan=lifespan)
    app.include_router(APIRouter())
    async with app.router.lifespan_context(app) as state:
        assert state == {"sent": 0}
    with pytest.raises(RuntimeError, match="not open"):
        await orders.channel()


async def test_what_cannot_be_opened_closes_the_rest(tmp_path: Path) -> None:
    """If a channel cannot be opened the app does not start, and nothing stays open."""
    channels = Channels(tmp_path)
    orders = channels.add("orders", Order)
    channels.add("file", Order)
    (tmp_path / "file").write_text("no channel")
    with pytest.raises(NotAChannelError):
        async with channels.lifespan():
            pass
    with pytest.raises(RuntimeError, match="not open"):
        await orders.channel()


async def test_an_error_of_the_body_is_raised_as_it_is(tmp_path: Path) -> None:
    """An error of the body is raised as it is, after the handlers have ended."""
    channels = Channels(tmp_path)
    orders = channels.add("orders", Order)
    orders.handler("billing")(lambda order: None)
    with pytest.raises(ValueError, match="mine"):
        async with channels.lifespan():
            raise ValueError("mine")


async def test_wrong_arguments_are_refused_where_they_are(tmp_path: Path) -> None:
    """Wrong arguments are refused when the app is imported, not when it starts."""
    channels = Channels(tmp_path)
    with pytest.raises(TypeError, match="cannot be a message type"):
        channels.add("orders", anyio.Lock)
    orders = channels.add("orders", Order)
    orders.handler("billing")(lambda order: None)
    with pytest.raises(ValueError, match="already has a handler with this name"):
        orders.handler("billing")
    with pytest.raises(TypeError, match=r"name=3: a consumer's name must be a str, not int"):
        orders.handler(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be empty"):
        orders.handler("")
    for wrong in ({"concurrency": 0}, {"concurrency": 3}, {"lease": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            orders.handler("packing", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handler=3: must be callable"):
        orders.handler("packing")(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [3, None, b"data"])
async def test_a_directory_that_is_not_a_path_is_refused_at_once(tmp_path: Path, wrong: object) -> None:
    """A directory that is not a path is refused when it is given or set."""
    for wrongly in (
        lambda: Channels(wrong),  # type: ignore[arg-type]
        lambda: setattr(Channels(tmp_path), "directory", wrong),
        lambda: Channels(tmp_path).add(wrong, int),  # type: ignore[arg-type]
        lambda: Channels(tmp_path).add_tasks(wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"must be a str or os.PathLike, not"):
            wrongly()
    with pytest.raises(TypeError, match="serve=1: must be True or False"):
        Channels(tmp_path, serve=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "is empty"),
        ("../escape", "leads out of the directory"),
        ("a/../../escape", "leads out of the directory"),
        ("..", "leads out of the directory"),
        ("orders", "was already added"),
        ("./other/../orders", "was already added"),
    ],
)
async def test_a_path_that_cannot_be_added_is_refused_at_once(tmp_path: Path, path: str, reason: str) -> None:
    """A channel whose path leaves the directory, or belongs to another channel, is refused when it is added."""
    channels = Channels(tmp_path / "data")
    channels.add("orders", Order)
    with pytest.raises(ValueError, match=reason):
        channels.add(path, Order)
    channels.add(tmp_path / "elsewhere", Order)
    async with channels.lifespan():
        assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "elsewhere"]


async def test_a_channel_can_be_strict_about_its_owner(tmp_path: Path) -> None:
    """With `strict_owner` the app does not start if a channel, also one of tasks, belongs to another user."""
    for name in ("orders", "tasks", "tasks-dead"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        channels = Channels(tmp_path)
        channels.add("orders", Order, strict_owner=True)
        channels.add_tasks("tasks", strict_owner=True)
        with pytest.raises(UntrustedChannelError, match=f"{name} is not under the control of this user alone"):
            async with channels.lifespan():
                pass
        (tmp_path / name).chmod(0o700)
    with pytest.raises(TypeError, match="strict_owner=1: must be True or False"):
        channels.add("more", Order, strict_owner=1)  # type: ignore[call-overload]


async def test_handlers_run_beside_the_app(tmp_path: Path) -> None:
    """Async and plain handlers run beside the app, each name gets every message, and running handlers complete."""
    channels = Channels(tmp_path)
    orders = channels.add("orders", Order)
    billed, packed, handling = [], [], anyio.Event()

    @orders.handler("billing")
    async def bill(order: Order) -> None:
        handling.set()
        await anyio.sleep(0.01)
        billed.append(order.id)

    @orders.handler("packing")
    def pack(order: Order) -> None:
        packed.append(order.id)

    async with channels.lifespan():
        await (await orders.sender()).send(Order(1))
        await handling.wait()
        await (await orders.channel()).join("packing")
    assert (billed, packed) == ([1], [1])


async def test_a_handler_that_runs_at_the_end_may_still_send(tmp_path: Path) -> None:
    """A handler that runs when the app ends can still send, because channels close after every handler."""
    channels = Channels(tmp_path)
    before, orders, after = (channels.add(name, Order) for name in ("before", "orders", "after"))
    handling, over = anyio.Event(), anyio.Event()

    @orders.handler("billing")
    async def bill(order: Order) -> None:
        handling.set()
        await over.wait()
        for channel in (before, after):
            await (await channel.sender()).send(order)

    async with anyio.create_task_group() as tasks:

        async def end_later() -> None:
            await anyio.wait_all_tasks_blocked()
            over.set()

        async with channels.lifespan():
            await (await orders.sender()).send(Order(1))
            await handling.wait()
            tasks.start_soon(end_later)
    async with channels.lifespan():
        for channel in (before, after):
            assert (await channel.channel()).statistics().messages == 1
        assert [consumer.lag_messages for consumer in (await orders.channel()).consumers()] == [0]


async def test_messages_wait_for_a_process_that_serves(tmp_path: Path) -> None:
    """With `serve=False` no message is handled, and none is lost."""
    handled = []
    for serve in (False, True):
        channels = Channels(tmp_path, serve=serve)
        orders = channels.add("orders", Order)
        orders.handler("billing")(handled.append)
        async with channels.lifespan():
            if serve:
                await (await orders.channel()).join("billing")
            else:
                await (await orders.sender()).send(Order(1))
    assert handled == [Order(1)]


async def test_a_dead_letter_is_sent_to_another_channel(tmp_path: Path) -> None:
    """A dead letter is sent to another channel of the app."""
    channels = Channels(tmp_path)
    orders, dead = channels.add("orders", Order), channels.add("dead", DeadLetter)

    @orders.handler("billing", retry=RetryPolicy(max_attempts=1), dead_letter=dead)
    async def bill(order: Order) -> None:
        raise ValueError("no")

    async with channels.lifespan():
        await (await orders.sender()).send(Order(1))
        await (await orders.channel()).join("billing")
        with (await dead.channel()).replay() as letters:
            assert [letter.reason async for letter in letters] == ["ValueError: no"]


async def test_a_service_that_fails_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that fails is restarted and its message retried, with the reason in the log."""
    monkeypatch.setattr("filechannel.integrations.fastapi.services._SHORTEST_PAUSE", 0.001)
    channels = Channels(tmp_path)
    orders = channels.add("orders", Order)
    attempts: list[int] = []

    @orders.handler("billing", group=False, retry=RetryPolicy(max_attempts=1))
    async def bill(order: Order) -> None:
        attempts.append(order.id)
        if len(attempts) < 3:
            raise ValueError("not yet")

    with caplog.at_level(logging.ERROR, "filechannel"):
        async with channels.lifespan():
            await (await orders.sender()).send(Order(1))
            with anyio.fail_after(30):
                await (await orders.channel()).join("billing")
    assert attempts == [1, 1, 1]
    assert caplog.text.count("a service failed") == 2
    assert "not yet" in caplog.text


async def test_without_a_group_one_serves_and_others_stand_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a group one process owns the name and serves; when it ends another one takes over."""
    monkeypatch.setattr("filechannel.integrations.fastapi.services._SHORTEST_PAUSE", 0.001)
    handled: list[tuple[str, int]] = []
    apps = []
    for name in ("first", "second"):
        channels = Channels(tmp_path)
        orders = channels.add("orders", Order)
        orders.handler("billing", group=False)(lambda order, name=name: handled.append((name, order.id)))  # type: ignore[misc]
        apps.append((channels, orders))
    (first, _), (second, orders) = apps
    async with first.lifespan():
        async with anyio.create_task_group() as tasks:
            over = anyio.Event()

            async def stand_by(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                async with second.lifespan():
                    task_status.started()
                    await over.wait()

            await tasks.start(stand_by)
            await (await orders.sender()).send(Order(1))
            await (await orders.channel()).join("billing")
            over.set()
    assert handled == [("first", 1)]
    async with second.lifespan():
        await (await orders.sender()).send(Order(2))
        with anyio.fail_after(30):
            await (await orders.channel()).join("billing")
    assert handled == [("first", 1), ("second", 2)]


def test_without_the_extra_the_import_names_it() -> None:
    """Without the extra the import raises an `ImportError` that says what to install."""
    code = "import sys; sys.modules['fastapi'] = None; import filechannel.integrations.fastapi"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'filechannel[fastapi]'" in done.stderr.splitlines()[-1]
