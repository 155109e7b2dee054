"""Types of msgspec as bodies and responses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from fastapi import Body, Depends, FastAPI
from pydantic import BaseModel

from filechannel import Sender
from filechannel.integrations.fastapi import ByMsgspec, Channels
from tests.integrations.fastapi.asgi import running

pytestmark = pytest.mark.anyio


class Line(msgspec.Struct):
    """A part of an order."""

    sku: str
    parts: list[Line] = []


class Order(msgspec.Struct, tag="order"):
    """What is ordered."""

    id: Annotated[int, msgspec.Meta(ge=1)]
    lines: list[Line] = []


class Cancel(msgspec.Struct, tag="cancel"):
    """What is not."""

    id: int


class Envelope(BaseModel):
    """A model with such a field."""

    order: Annotated[Order, ByMsgspec]


app = FastAPI()


@app.post("/orders")
async def place(order: Annotated[Order, Body(), ByMsgspec]) -> Annotated[Order, ByMsgspec]:
    """Accept a value and return it."""
    assert isinstance(order, Order)
    return order


@app.post("/messages")
async def take(message: Annotated[Order | Cancel, Body(), ByMsgspec]) -> str:
    """Take one of several."""
    return type(message).__name__


@app.post("/envelopes")
async def unpack(envelope: Envelope) -> Envelope:
    """Take a model."""
    assert isinstance(envelope.order, Order)
    return envelope


async def post(path: str, content: object) -> httpx.Response:
    """Send something to the app."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        return await client.post(path, json=content)


async def test_a_body_becomes_what_it_says() -> None:
    """A request body becomes Structs, unions by their tags and models, and a response turns them back into JSON."""
    order = {"type": "order", "id": 1, "lines": [{"sku": "pen", "parts": []}]}
    assert (await post("/orders", order)).json() == order
    assert (await post("/messages", order)).json() == "Order"
    assert (await post("/messages", {"type": "cancel", "id": 1})).json() == "Cancel"
    assert (await post("/envelopes", {"order": order})).json() == {"order": order}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"type": "order", "id": 0}, "Expected `int` >= 1 - at `$.id`"),
        ({"type": "order"}, "Object missing required field `id`"),
        ([1], "Expected `object`, got `array`"),
    ],
)
async def test_what_does_not_fit_gets_a_422(content: object, reason: str) -> None:
    """A body that does not fit gets a 422 in the format of FastAPI's errors, with the location of each."""
    response = await post("/orders", content)
    assert response.status_code == 422
    [error] = response.json()["detail"]
    assert (error["loc"], error["type"]) == (["body"], "msgspec")
    assert reason in error["msg"]


Json = int | float | str | list[Any] | dict[str, Any] | None


class Box(msgspec.Struct, forbid_unknown_fields=True):
    """A model that holds any value."""

    label: str = ""
    size: float = 0.0
    content: Json = None
    names: dict[str, Json] = {}


class Parcel(BaseModel):
    """A model with one."""

    box: Annotated[Box, ByMsgspec]


channels = Channels()
boxes = channels.add("boxes", Box)
BoxSender = Annotated[Sender[Box], Depends(boxes.sender)]


@app.post("/boxes")
async def add(box: Annotated[Box, Body(), ByMsgspec], sender: BoxSender) -> None:
    """Store a box."""
    await sender.send(box)


@app.post("/parcels")
async def open_parcel(parcel: Parcel, sender: BoxSender) -> None:
    """Store the box of a model."""
    await sender.send(parcel.box)


async def post_raw(directory: Path, path: str, *bodies: bytes) -> list[httpx.Response]:
    """Send bodies as they are to the app, with its channels in a directory."""
    channels.directory = directory
    headers = {"content-type": "application/json"}
    async with running(channels, app) as client:
        return [await client.post(path, content=body, headers=headers) for body in bodies]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"content":%d}' % 2**70, "within 64 bits"),
        (b'{"content":[{"a":[%d]}]}' % -(2**63 + 1), "within 64 bits"),
        (b'{"label":"\\ud800"}', "surrogates"),
        (b'{"content":[["\\udfff"]]}', "surrogates"),
        (b'{"names":{"\\ud800":1}}', "surrogates"),
        (b'{"\\ud800":1}', "surrogates"),
        (b'"\\ud800"', "surrogates"),
        (b'{"label":NaN}', "Expected `str`, got `float`"),
        (b'{"label":-Infinity}', "Expected `str`, got `float`"),
        (b'{"label":[[1e999]]}', "Expected `str`, got `array`"),
        (b'{"label":%b1%b}' % (b"[" * 400, b"]" * 400), "Expected `str`, got `array`"),
        (b'{"label":%b1%b}' % (b'{"a":' * 400, b"}" * 400), "Expected `str`, got `object`"),
    ],
)
@pytest.mark.parametrize("path", ["/boxes", "/parcels"])
async def test_what_no_channel_can_store_gets_a_422(path: str, content: bytes, reason: str, tmp_path: Path) -> None:
    """A body that no channel can store gets a 422, also where FastAPI could not repeat the input in its response."""
    [response] = await post_raw(tmp_path, path, content if path == "/boxes" else b'{"box":%b}' % content)
    assert response.status_code == 422
    [error] = response.json()["detail"]
    assert error["type"] == "msgspec"
    assert reason in error["msg"]


@pytest.mark.parametrize("content", [b'"\xff"', b"\xff", b"[" * 100_000 + b"]" * 100_000, b"9" * 5000, b"{"])
async def test_what_is_not_json_is_an_error_of_the_client(content: bytes, tmp_path: Path) -> None:
    """A body that is not JSON gets the status that FastAPI has for it."""
    [response] = await post_raw(tmp_path, "/boxes", content)
    assert response.status_code in (400, 422)


async def test_a_large_number_fits_where_it_is_a_float(tmp_path: Path) -> None:
    """A float field accepts a large number without an exponent, as JavaScript writes it."""
    [response] = await post_raw(tmp_path, "/boxes", b'{"size":100000000000000000000}')
    assert response.status_code == 200


@app.post("/echo")
async def echo(box: Annotated[Box, Body(), ByMsgspec]) -> Annotated[Box, ByMsgspec]:
    """Give a box back."""
    return box


@app.post("/shelves")
async def echo_all(shelf: list[Parcel]) -> list[Parcel]:
    """Give models in a list back."""
    return shelf


@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
async def test_every_body_that_is_accepted_can_be_answered_with(start: bytes, end: bytes, tmp_path: Path) -> None:
    """A body that is nested more deeply than a response can be gets a 422, not a 500."""
    bodies = [b'{"content":%b1%b}' % (start * depth, end * depth) for depth in (1, 126, 127, 128, 250, 260, 900)]
    answers = await post_raw(tmp_path, "/echo", *bodies)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 422, 422, 422, 422]
    assert "fewer nested values" in answers[-1].json()["detail"][0]["msg"]
    answers = await post_raw(tmp_path, "/shelves", *(b'[{"box":%b}]' % body for body in bodies))
    assert {answer.status_code for answer in answers} == {200, 422}


def random_json(rng: random.Random, depth: int = 4) -> bytes:
    """Return a JSON text with values that are rarely tried."""
    leaves = [b"1", b"%d" % 2**64, b"%d" % -(2**63), b"-%d" % 2**64, b"1e400", b"NaN", b"null", b'"x"']
    leaves += [b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\u0000\\u2028"', b'"\\n"', b"0.1"]
    kind = rng.randrange(3) if depth else 0
    if kind == 0:
        return rng.choice(leaves)
    inner = [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 1:
        return b"[%b]" % b",".join(inner)
    names = [rng.choice([b'"label"', b'"content"', b'"size"', b'"names"', b'"\\udc00"', b'"a"']) for _ in inner]
    return b"{%b}" % b",".join(b"%b:%b" % pair for pair in zip(names, inner, strict=True))


async def test_no_body_is_an_error_of_the_server(tmp_path: Path, rng: random.Random) -> None:
    """Every random body is stored or gets a 422, and no exception reaches the server."""
    bodies = [
        rng.choice([b'{"content":%b,"names":{"a":%b}}' % (random_json(rng), random_json(rng)), random_json(rng)])
        for _ in range(300)
    ]
    answers = {response.status_code for response in await post_raw(tmp_path, "/boxes", *bodies)}
    assert answers == {200, 422}


async def test_the_schema_is_documented() -> None:
    """The OpenAPI document has the schema of message types, also of recursive ones."""
    document = app.openapi()
    schema = document["paths"]["/orders"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["type", "id"]
    assert schema["properties"]["id"] == {"type": "integer", "minimum": 1}
    line = schema["properties"]["lines"]["items"]
    assert line["properties"]["parts"]["items"] == {"title": "Line"}
    message = document["paths"]["/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [one["title"] for one in message["anyOf"]] == ["Order", "Cancel"]
