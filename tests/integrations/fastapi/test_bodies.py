"""Types of msgspec as bodies and responses."""

from __future__ import annotations

from typing import Annotated

import httpx
import msgspec
import pytest
from fastapi import Body, FastAPI
from pydantic import BaseModel

from filechannel.integrations.fastapi import ByMsgspec

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
    """Take one and give it back."""
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
    """Structs in Structs, unions by their tags, and Structs in models; and back again."""
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
    """In the form of FastAPI's own errors, with what is wrong where."""
    response = await post("/orders", content)
    assert response.status_code == 422
    [error] = response.json()["detail"]
    assert (error["loc"], error["type"]) == (["body"], "msgspec")
    assert reason in error["msg"]


async def test_the_schema_is_documented() -> None:
    """In one piece, also if a type contains itself."""
    document = app.openapi()
    schema = document["paths"]["/orders"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["type", "id"]
    assert schema["properties"]["id"] == {"type": "integer", "minimum": 1}
    line = schema["properties"]["lines"]["items"]
    assert line["properties"]["parts"]["items"] == {"title": "Line"}
    message = document["paths"]["/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [one["title"] for one in message["anyOf"]] == ["Order", "Cancel"]
