"""A stream of events: where it begins, resumes and ends, and what it reports on the way."""

from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import pytest
from fastapi import Depends, FastAPI

from filechannel import ChannelOptions, FileChannel, Retention
from filechannel.integrations.fastapi import AppChannel, Channels, EventStream
from tests.integrations.fastapi.asgi import Event, Stream, running

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    """What is ordered."""

    id: int


class Shop:
    """An app with a stream."""

    def __init__(self, directory: Path, heartbeat: float = 15.0, event: str | None = None) -> None:
        self.channels = Channels(directory)
        kept = ChannelOptions(retention=Retention(after_consumed="keep"), segment_size=4096)
        self.orders: AppChannel[Order] = self.channels.add("orders", Order, options=kept)
        self.app = FastAPI()
        self.app.get("/events", response_class=EventStream)(self.orders.events(heartbeat=heartbeat, event=event))

    async def send(self, *numbers: int) -> None:
        """Send orders."""
        await (await self.orders.sender()).send_many([Order(number) for number in numbers])

    async def channel(self) -> FileChannel[Order]:
        """Return the open channel."""
        return await self.orders.channel()

    def stream(self, query: str = "", last_id: str | None = None) -> Stream:
        """Return a client of the stream."""
        return Stream(self.app, f"/events{query}", last_id)


async def test_a_new_client_gets_what_comes_from_now_on(tmp_path: Path) -> None:
    """A new client gets the messages sent from then on, and with `?since=earliest` all of them."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        await shop.send(1, 2)
        async with shop.stream().open() as new, shop.stream("?since=earliest").open() as late:
            await new.next()
            await shop.send(3)
            assert await new.messages(1) == [{"id": 3}]
            assert await late.messages(3) == [{"id": 1}, {"id": 2}, {"id": 3}]


async def test_a_client_resumes_behind_the_last_event_it_had(tmp_path: Path) -> None:
    """A client that sends the id of its last event, as header or parameter, gets the next one, also after a restart."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        await shop.send(1, 2)
        async with shop.stream("?since=earliest").open() as stream:
            await stream.next()
            first = await stream.event()
    async with running(shop.channels, shop.app):
        await shop.send(3)
        async with shop.stream("?since=latest", first.id).open() as stream:
            assert await stream.messages(2) == [{"id": 2}, {"id": 3}]
        async with shop.stream(f"?since={first.id}").open() as stream:
            assert await stream.messages(1) == [{"id": 2}]


async def test_a_client_that_had_no_event_yet_misses_none(tmp_path: Path) -> None:
    """A stream begins with an id, so that a client without an event resumes at the same position."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        async with shop.stream().open() as stream:
            begin = await stream.event()
        assert begin == Event(begin.id)
        await shop.send(1)
        async with shop.stream(last_id=begin.id).open() as stream:
            assert await stream.messages(1) == [{"id": 1}]


async def test_silence_is_filled(tmp_path: Path) -> None:
    """While nothing is sent the stream has comments, with the id at which to resume."""
    shop = Shop(tmp_path, heartbeat=0.01)
    async with running(shop.channels, shop.app), shop.stream().open() as stream:
        begin = await stream.next()
        assert await stream.next() == begin
        assert await stream.next() == begin
        await shop.send(1)
        assert await stream.messages(1) == [{"id": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "0",
        "-1-0",
        "0-1",
        "1-0",
        "999999-3",
        "9" * 30,
        f"{2**63}-0",
        "0-" + "9" * 19,
        "9" * 19 + "-" + "9" * 19,
        "0-0 ",
        "٣-٣",
    ],
)
@pytest.mark.parametrize("place", ["header", "query"])
async def test_an_unknown_id_is_refused(text: str, place: str, tmp_path: Path) -> None:
    """An id that is not one of this channel gets a 400."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app) as client:
        await shop.send(1, 2)
        if place == "query":
            response = await client.get("/events", params={"since": text})
        else:
            if not text.isascii() or text != text.strip():
                pytest.skip("no header can have it")
            response = await client.get("/events", headers={"Last-Event-ID": text})
        assert response.status_code == 400
        assert "not an id" in response.json()["detail"]


async def test_reclaimed_messages_are_reported(tmp_path: Path) -> None:
    """A stream that resumes at a reclaimed message begins with the oldest one, and reports how many were missed."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        async with shop.stream().open() as stream:
            begin = await stream.event()
        await shop.send(1, 2, 3)
        await (await shop.channel()).purge()
        await shop.send(4)
        async with shop.stream(last_id=begin.id).open() as stream:
            missed = await stream.event()
            assert (missed.name, missed.value) == ("missed", {"missed": 3})
            assert await stream.messages(1) == [{"id": 4}]
        async with shop.stream(last_id=missed.id).open() as stream:
            assert await stream.messages(1) == [{"id": 4}]


async def test_an_overtaken_client_gets_the_count(tmp_path: Path) -> None:
    """The stream of a slow client counts messages that were reclaimed before it got them."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        await shop.send(*range(20_000))
        async with shop.stream("?since=earliest").open() as stream:
            received = len(await stream.messages(1))
            await (await shop.channel()).purge()
            await shop.send(77)
            while (event := await stream.next()) is not None and event.name is None:
                received += 1
            assert event is not None
            assert (event.name, event.value) == ("missed", {"missed": 20_000 - received})
            assert await stream.messages(1) == [{"id": 77}]


async def test_an_undecodable_message_is_reported_and_skipped(tmp_path: Path) -> None:
    """An undecodable message becomes an event `undecodable`, and later messages follow."""
    shop = Shop(tmp_path)
    wrong = Channels(tmp_path)
    anything = wrong.add("orders", object)
    async with running(shop.channels, shop.app):
        await shop.send(1)
        await (await shop.channel()).configure(schema=object)
    async with running(wrong):
        await (await anything.sender()).send("no order")
        await (await anything.channel()).configure(schema=Order)
    async with running(shop.channels, shop.app):
        await shop.send(2)
        async with shop.stream("?since=earliest").open() as stream:
            assert await stream.messages(1) == [{"id": 1}]
            event = await stream.event()
            assert event.name == "undecodable"
            assert await stream.messages(1) == [{"id": 2}]
        async with shop.stream(last_id=event.id).open() as stream:
            assert await stream.messages(1) == [{"id": 2}]


async def test_a_sealed_channel_has_an_end(tmp_path: Path) -> None:
    """The stream of a sealed channel ends with an event, and a client that reconnects gets a 204."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        await shop.send(1)
        async with shop.stream("?since=earliest").open() as stream:
            assert await stream.messages(1) == [{"id": 1}]
            await (await shop.channel()).seal()
            last = await stream.event()
            assert last.name == "end"
            assert await stream.next() is None
        async with shop.stream(last_id=last.id).open() as stream:
            assert stream.status == 204


async def test_streams_can_be_ended(tmp_path: Path) -> None:
    """Streams can be ended without a signal, those that run and those that begin later."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        async with shop.stream().open() as stream:
            await stream.next()
            shop.channels.end_streams()
            assert await stream.next() is None
        async with shop.stream().open() as stream:
            await stream.next()
            assert await stream.next() is None
    async with running(shop.channels, shop.app), shop.stream().open() as stream:
        await stream.next()
        await shop.send(1)
        assert await stream.messages(1) == [{"id": 1}]


async def test_a_stream_keeps_nothing_after_its_client_disconnects(tmp_path: Path) -> None:
    """After its client disconnected a stream keeps no receiver, consumer or data."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        channel = await shop.channel()
        async with shop.stream().open() as stream:
            await stream.next()
            assert channel.statistics().receivers == 1
            assert channel.consumers() == ()
        assert channel.statistics().receivers == 0


async def test_an_endpoint_chooses_what_is_shown(tmp_path: Path) -> None:
    """The `map` of an endpoint can drop and change messages, and ids continue across dropped ones."""
    shop = Shop(tmp_path, event="order")

    @shop.app.get("/even", response_class=EventStream)
    async def even(stream: Annotated[EventStream[Order], Depends(shop.orders.events(event="even"))]) -> EventStream:
        return stream.map(lambda order: None if order.id % 2 else {"half": order.id // 2})

    async with running(shop.channels, shop.app):
        async with Stream(shop.app, "/even").open() as stream:
            await stream.next()
            await shop.send(1, 2, 3, 4)
            events = [await stream.next(), await stream.next()]
        assert [(event.name, event.value) for event in events if event] == [
            ("even", {"half": 1}),
            ("even", {"half": 2}),
        ]


async def test_an_error_of_what_is_shown_ends_the_stream(tmp_path: Path) -> None:
    """An error of `map` ends the stream, is raised for the server to log, and leaves no receiver."""
    shop = Shop(tmp_path)

    @shop.app.get("/broken", response_class=EventStream)
    async def broken(stream: Annotated[EventStream[Order], Depends(shop.orders.events())]) -> EventStream:
        return stream.map(lambda order: 1 // order.id)

    async with running(shop.channels, shop.app):
        with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
            async with Stream(shop.app, "/broken").open() as stream:
                await stream.next()
                await shop.send(0)
                with pytest.raises(anyio.EndOfStream):
                    await stream.next()
        assert (await shop.channel()).statistics().receivers == 0


async def test_a_slow_client_is_not_read_ahead_of(tmp_path: Path) -> None:
    """A stream keeps at most one chunk in memory for a client that does not read, and nothing after it disconnects."""
    shop = Shop(tmp_path)
    async with running(shop.channels, shop.app):
        await shop.send(*range(20_000))
        async with shop.stream("?since=earliest").open() as stream:
            await stream.next()
            await anyio.wait_all_tasks_blocked()
            [receiver] = shop.channels._streams._receivers
            assert 0 < receiver.statistics().next_sequence < 10_000
        assert (await shop.channel()).statistics().receivers == 0


@pytest.mark.parametrize("wrong", [{"start": "middle"}, {"heartbeat": 0}, {"event": ""}, {"event": "a\nb"}])
async def test_wrong_arguments_are_refused(wrong: dict[str, object], tmp_path: Path) -> None:
    """Wrong arguments are refused where the stream is declared, not at the first request."""
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        Shop(tmp_path).orders.events(**wrong)  # type: ignore[arg-type]
