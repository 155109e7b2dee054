"""An app without a server: a client that calls it, and one that reads a stream of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx
import msgspec
from fastapi import FastAPI
from starlette.types import Message

from filechannel.integrations.fastapi import Channels


@asynccontextmanager
async def running(channels: Channels, app: FastAPI | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    """Run an app, and call it."""
    app = app or FastAPI()
    async with channels.lifespan(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield client


class Event(msgspec.Struct, rename={"name": "event"}):
    """What a client gets of a stream; a heartbeat has neither name nor data."""

    id: str
    name: str | None = None
    data: str | None = None

    @property
    def value(self) -> object:
        """The data, decoded."""
        assert self.data is not None
        return msgspec.json.decode(self.data)


class Stream:
    """A response that is read event by event."""

    def __init__(self, app: FastAPI, path: str, last_id: str | None = None) -> None:
        self._app = app
        path, _, query = path.partition("?")
        headers = [] if last_id is None else [(b"last-event-id", last_id.encode())]
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        self._write, self._read = anyio.create_memory_object_stream[Message](0)
        self._gone = anyio.Event()
        self._asked = False
        self._rest = ""
        self.status = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Stream]:
        """Read it while the body runs, and disconnect then."""
        with self._read:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run)
                self.status = (await self._read.receive())["status"]
                yield self
                self._gone.set()

    async def _run(self) -> None:
        with self._write:
            await self._app(self._scope, self._receive, self._write.send)

    async def _receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def next(self) -> Event | None:
        """Return the next event; None when the stream has ended."""
        with anyio.fail_after(30):
            while "\n\n" not in self._rest:
                message = await self._read.receive()
                if not message.get("more_body"):
                    return None
                self._rest += message["body"].decode()
        text, _, self._rest = self._rest.partition("\n\n")
        fields = dict(line.split(": ", 1) for line in text.split("\n") if line != ":")
        return msgspec.convert(fields, Event)

    async def event(self) -> Event:
        """Return the next event, which comes."""
        event = await self.next()
        assert event is not None
        return event

    async def messages(self, count: int) -> list[object]:
        """Return the data of so many events, passing over those without."""
        found: list[object] = []
        while len(found) < count:
            event = await self.event()
            if event.data is not None:
                found.append(event.value)
        return found
