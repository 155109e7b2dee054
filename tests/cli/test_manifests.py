"""Manifests that an attacker wrote: each is refused with a message that names the file, or read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from filechannel import NotAChannelError, blocking
from tests.cli.shell import Order, fill, invoke, real, run


def _nested(depth: int) -> dict[str, object]:
    node: dict[str, object] = {"kind": "int"}
    for _ in range(depth):
        node = {"kind": "list", "arguments": [node]}
    return node


TEXT = {"kind": "str"}
TYPES: dict[str, dict[str, object]] = {
    "a pattern of numbers": {"kind": "int", "constraints": {"pattern": "a"}},
    "a bound of texts": TEXT | {"constraints": {"ge": 1}},
    "two bounds": {"kind": "int", "constraints": {"ge": 1, "gt": 1}},
    "a bound beyond 64 bits": {"kind": "int", "constraints": {"ge": 2**70}},
    "a multiple of zero": {"kind": "int", "constraints": {"multiple_of": 0}},
    "an infinite bound": {"kind": "float", "constraints": {"ge": float("inf")}},
    "a bound that is not a number": {"kind": "float", "constraints": {"ge": float("nan")}},
    "deep": _nested(65),
    "deeper": _nested(400),
    "two arrays": {"kind": "union", "arguments": [_nested(1), {"kind": "set", "arguments": [TEXT]}]},
    "no value": {"kind": "literal", "values": []},
    "a value beyond 64 bits": {"kind": "enum", "values": [2**70]},
}


def _change(path: Path, change: dict[str, Any]) -> None:
    file = path / "channel.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def _refused(path: Path) -> None:
    for command in ("info", "export", "consumers", "tail", "doctor"):
        result = invoke(command, path)
        assert "FILECHANNEL_DEBUG" not in result.stderr, command
        if command != "doctor":
            assert result.exit_code == 1
            assert "channel.json is damaged" in result.stderr


@pytest.mark.parametrize("name", TYPES)
def test_a_schema_that_no_type_has_is_damage(path: Path, name: str) -> None:
    """Whatever msgspec says about it, and however deep it is."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][1]["type"] = TYPES[name]
    _change(path, {"schema": schema})
    _refused(path)


@pytest.mark.parametrize("pattern", ["^(a|a)*$", "("], ids=["exponential", "invalid"])
def test_a_pattern_in_a_schema_is_never_matched(path: Path, pattern: str) -> None:
    """Commands that read, check or send messages end, although matching this one would take years."""
    text = "a" * 60 + "!"
    with blocking.open_channel(path, Order) as channel, channel.sender() as sender:
        sender.send(Order(1, text))
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][1]["type"] = TEXT | {"constraints": {"pattern": pattern}}
    _change(path, {"schema": schema})
    given = json.dumps({"id": 2, "sku": text}).encode()
    for arguments in (("export", path), ("tail", path), ("verify", path, "--payloads"), ("info", path), ("send", path)):
        code, out, err = real(*arguments, given=given if arguments[0] == "send" else None)
        assert code == 0, err
        assert (text in out) == (arguments[0] in ("export", "tail"))
    assert run("export", path).stdout.count(text) == 2


def test_a_schema_with_a_default_that_cannot_be_one_is_damage(path: Path) -> None:
    """As a list is for a text."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][1] |= {"required": False, "default": [1, {"a": 2}]}
    _change(path, {"schema": schema})
    _refused(path)


@pytest.mark.parametrize("value", [0, -1, float("inf"), 2**1100], ids=str)
def test_a_limit_that_cannot_be_compared_is_damage_for_a_channel_with_types(path: Path, value: float) -> None:
    """Opening raises what it documents, not an arithmetic error."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][0]["type"] = {"kind": "int", "constraints": {"multiple_of": value}}
    _change(path, {"schema": schema})
    with pytest.raises(NotAChannelError, match="multiple_of"):
        blocking.open_channel(path, Order)


def test_a_deep_schema_is_damage_for_a_channel_with_types(path: Path) -> None:
    """It is not compared by recursion."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][1]["type"] = _nested(400)
    _change(path, {"schema": schema})
    with pytest.raises(NotAChannelError, match="64 types inside of one another"):
        blocking.open_channel(path, Order)


@pytest.mark.parametrize("created", ["", "\x1b]0;title\x07", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59"])
def test_a_channel_that_was_created_at_no_time_is_damaged(path: Path, created: str) -> None:
    """The moment is shown in the time zone of whoever asks."""
    fill(path, 10)
    _change(path, {"created": created})
    _refused(path)
