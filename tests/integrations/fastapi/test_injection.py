"""Messages with `msgspec.Raw` fields: no client can write into the stream of another."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.integrations.fastapi.event_source import Event, dispatched
from tests.integrations.fastapi.raw_app import DIRECTORY
from tests.integrations.fastapi.server import Server

APP = "tests.integrations.fastapi.raw_app:app"
FORGED = "\n\nevent: note\ndata: {}\nid: 9-9\n\n\r\rdata: forged\r\n\r\n"
BREAKS = ["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n", " ", "\t", ""]


def spaced(value: object, rng: random.Random) -> str:
    """Return a value as JSON with white space of all kinds where that is allowed."""
    gap = rng.choice(BREAKS)
    if isinstance(value, dict):
        inner = [f"{gap}{spaced(name, rng)}{gap}:{spaced(item, rng)}" for name, item in value.items()]
        return f"{gap}{{{','.join(inner)}{gap}}}{gap}"
    if isinstance(value, list):
        return f"{gap}[{','.join(spaced(item, rng) for item in value)}{gap}]{gap}"
    return f"{gap}{msgspec.json.encode(value).decode()}{gap}"


def random_value(rng: random.Random, depth: int = 3) -> object:
    """Return a value that JSON and MessagePack have, with texts that look like events."""
    kind = rng.randrange(4) if depth else rng.randrange(2)
    if kind == 0:
        return rng.choice([FORGED, "data: x", "\0", "\u2028\x85", "", "id: 1-1\n"])
    if kind == 1:
        return rng.choice([10, 13, 49, None, True, -1, 0.5, 2**63])
    items = [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return items if kind == 2 else {f"{rng.choice([FORGED, 'a'])}{number}": item for number, item in enumerate(items)}


def streamed(server: Server, path: str) -> list[Event]:
    """Return what a browser gets of a sealed channel."""
    return list(dispatched(server.client.get(path).raise_for_status().content))


def test_raw_fields_are_values_of_their_event(tmp_path: Path, rng: random.Random) -> None:
    """Behind a real server each message is one event with one JSON value, whatever its raw field contains."""
    values = [FORGED, [FORGED], 10, 13, 49, *(random_value(rng) for _ in range(100))]
    with Server(tmp_path, 1, APP, DIRECTORY) as server:
        for number, value in enumerate(values):
            text = f'{{"number":{number},"content":{spaced(value, rng)}}}'.encode()
            assert server.client.post("/json", content=text).status_code == 202
            packed = msgspec.msgpack.encode({"number": number, "content": value})
            assert server.client.post("/msgpack", content=packed).status_code == 202
        server.client.post("/seal").raise_for_status()
        events = {path: streamed(server, path) for path in ("/json", "/msgpack", "/mapped")}
        assert "Traceback" not in server.stop()
    sent = [{"number": number, "content": value} for number, value in enumerate(values)]
    for path, kind in (("/json", "note"), ("/msgpack", "message"), ("/mapped", "message")):
        *notes, last = events[path]
        assert last.kind == "end"
        assert {each.kind for each in notes} == {kind}
        shown = [msgspec.json.decode(each.data) for each in notes]
        assert shown == ([[note["content"]] for note in sent] if path == "/mapped" else sent)
        assert [int(each.last_id.split("-")[1]) for each in notes] == list(range(1, len(sent) + 1))


def test_a_raw_field_that_is_not_a_value_does_not_end_the_stream(tmp_path: Path) -> None:
    """A raw field that is not JSON becomes an event `undecodable`, and later messages are sent."""
    with Server(tmp_path, 1, APP, DIRECTORY) as server:
        for raw in (b"1", b'"\xff"', b"3"):
            text = b'{"number":0,"content":%b}' % raw
            assert server.client.post("/json", content=text).status_code == 202
        server.client.post("/seal").raise_for_status()
        kinds = [each.kind for each in streamed(server, "/json")]
        assert "Traceback" not in server.stop()
    assert kinds == ["note", "undecodable", "note", "end"]


@pytest.mark.parametrize(
    "raw",
    [b"\xd4\x01\x00", b"\x91\xd4\x05\x01", b"\x81\xc0\x01", b"\x81\xc3\x01", b"\x81\x91\x01\x02"],
    ids=["extension", "extension in a list", "key nil", "key true", "key of a list"],
)
def test_what_only_messagepack_expresses_does_not_end_the_stream(raw: bytes, tmp_path: Path) -> None:
    """A MessagePack value that JSON cannot express becomes an event `undecodable`, and the next message is sent."""
    with Server(tmp_path, 1, APP, DIRECTORY) as server:
        for content in (b"\x01", raw, b"\x03"):
            packed = b"\x82\xa6number\x00\xa7content" + content
            assert server.client.post("/msgpack", content=packed).status_code == 202
        server.client.post("/seal").raise_for_status()
        kinds = [each.kind for each in streamed(server, "/msgpack")]
        assert "Traceback" not in server.stop()
    assert kinds == ["message", "undecodable", "message", "end"]
