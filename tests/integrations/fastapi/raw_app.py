"""An app whose messages have fields that were never parsed; `server.py` serves it from a directory."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, Request

from filechannel import ChannelOptions, Retention, Sender
from filechannel.integrations.fastapi import AppChannel, Channels, EventStream

DIRECTORY = "FILECHANNEL_RAW_APP"


class Note(msgspec.Struct):
    """A message with a part that is passed on unparsed."""

    number: int
    content: msgspec.Raw


kept = ChannelOptions(retention=Retention(after_consumed="keep"))
channels = Channels(os.environ.get(DIRECTORY, "nowhere"))
as_json: AppChannel[Note] = channels.add("json", Note, codec="json", options=kept)
as_msgpack: AppChannel[Note] = channels.add("msgpack", Note, codec="msgpack", options=kept)
app = FastAPI(lifespan=channels.lifespan)


@app.post("/json", status_code=202)
async def add_json(request: Request, tx: Annotated[Sender[Note], Depends(as_json.sender)]) -> None:
    """Store a note that a client has sent as JSON."""
    await tx.send(msgspec.json.decode(await request.body(), type=Note))


@app.post("/msgpack", status_code=202)
async def add_msgpack(request: Request, tx: Annotated[Sender[Note], Depends(as_msgpack.sender)]) -> None:
    """Store a note that a client has sent as MessagePack."""
    await tx.send(msgspec.msgpack.decode(await request.body(), type=Note))


@app.post("/seal")
async def seal() -> None:
    """End both channels, and with them their streams."""
    for channel in (as_json, as_msgpack):
        await (await channel.channel()).seal()


app.get("/json", response_class=EventStream)(as_json.events(start="earliest", event="note"))
app.get("/msgpack", response_class=EventStream)(as_msgpack.events(start="earliest"))


@app.get("/mapped", response_class=EventStream)
async def mapped(stream: Annotated[EventStream[Note], Depends(as_json.events(start="earliest"))]) -> EventStream:
    """Stream the content alone."""
    return stream.map(lambda note: [note.content])
