"""Manifests that an attacker wrote: each is refused with a message that names the file, or read."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from filechannel import ChannelOptions, NotAChannelError, SchemaMismatchError, blocking
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
    """A schema that no type has is damage, whatever msgspec raises for it, and however deep it is."""
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
    """A schema with a default of the wrong type, such as a list for a text, is damage."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][1] |= {"required": False, "default": [1, {"a": 2}]}
    _change(path, {"schema": schema})
    _refused(path)


@pytest.mark.parametrize("value", [0, -1, float("inf"), 2**1100], ids=str)
def test_a_limit_that_cannot_be_compared_is_damage_for_a_channel_with_types(path: Path, value: float) -> None:
    """A schema with a limit that cannot be compared is damage when a channel is opened with a type."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][0]["type"] = {"kind": "int", "constraints": {"multiple_of": value}}
    _change(path, {"schema": schema})
    with pytest.raises(NotAChannelError, match="multiple_of"):
        blocking.open_channel(path, Order)


def test_a_deep_schema_is_damage_for_a_channel_with_types(path: Path) -> None:
    """A deeply nested schema is damage when a channel is opened with a type, instead of being compared by recursion."""
    fill(path, 10)
    schema = json.loads((path / "channel.json").read_text())["schema"]
    schema["records"]["Order"]["fields"][1]["type"] = _nested(400)
    _change(path, {"schema": schema})
    with pytest.raises(NotAChannelError, match="64 nested types"):
        blocking.open_channel(path, Order)


@pytest.mark.parametrize("created", ["", "\x1b]0;title\x07", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59"])
def test_a_channel_that_was_created_at_no_time_is_damaged(path: Path, created: str) -> None:
    """A manifest whose creation time is no time is damaged."""
    fill(path, 10)
    _change(path, {"created": created})
    _refused(path)


LIST = {"kind": "list", "arguments": [{"kind": "int"}]}
MEMORY = 4 << 30
"""Addresses, most of which are libraries and stacks of threads."""
SLOW: dict[str, dict[str, object]] = {
    "values": {"kind": "literal", "values": [f"v{number}" for number in range(150_000)]},
    "colliding values": {"kind": "literal", "values": [number * (2**61 - 1) for number in range(100_000)]},
    "a union": {"kind": "union", "arguments": [{"kind": "tuple", "arguments": [{"kind": "int"}]}] * 20_000},
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("command", ["info", "tail", "verify"])
def test_a_large_schema_takes_no_quadratic_time(path: Path, name: str, command: str) -> None:
    """Commands end within a minute for a large schema, because no step takes quadratic time."""
    fill(path, 10)
    _change(path, {"schema": {"root": SLOW[name]}})
    _, _, err = real(command, path, *(["--payloads"] if command == "verify" else []))
    assert "FILECHANNEL_DEBUG" not in err


def _linked(count: int, kind: str = "list", form: str = "ring") -> dict[str, object]:
    """Return records each of which has the next one, in a collection."""
    records: dict[str, object] = {}
    for number in range(count):
        item = {"kind": "record", "name": f"R{(number + 1) % count}"}
        if number == count - 1 and form == "chain":
            item = {"kind": "int", "name": ""}
        field = {"name": "a", "wire_name": "a", "type": {"kind": kind, "arguments": [item] * (1 + (kind == "tuple"))}}
        records[f"R{number}"] = {"name": "R", "form": "struct", "fields": [field], "array_like": kind == "tuple"}
    return {"root": {"kind": "record", "name": "R0"}, "records": records}


@pytest.mark.parametrize("count", [100, 145, 300, 2000])
@pytest.mark.parametrize("form", ["ring", "chain"])
def test_records_that_refer_to_each_other_are_read_or_refused(path: Path, count: int, form: str) -> None:
    """A command says in either case what the channel is, and a program with types gets a documented error."""
    fill(path, 10)
    _change(path, {"schema": _linked(count, form=form)})
    for command in ("info", "tail", "export", "verify", "doctor"):
        assert "FILECHANNEL_DEBUG" not in invoke(command, path).stderr, command
    with pytest.raises(SchemaMismatchError):
        blocking.open_channel(path, Order)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _with_default(count: int) -> dict[str, object]:
    field = {"name": "a", "wire_name": "a", "type": LIST, "required": False, "default": [1] * count}
    return {
        "root": {"kind": "record", "name": "R"},
        "records": {"R": {"name": "R", "form": "struct", "fields": [field]}},
    }


def test_a_large_default_takes_no_memory_for_each_message(path: Path, tmp_path: Path) -> None:
    """Lines are exported without the field that messages lack, and a table is refused."""
    fill(path, 1000)
    _change(path, {"schema": _with_default(1_000_000)})
    code, out, err = real("export", path, preexec_fn=_limit_memory)
    assert (code, out.split()) == (0, ["{}"] * 1000), err
    code, _, err = real("export", path, tmp_path / "x.parquet", preexec_fn=_limit_memory)
    assert (code, "R.a has a default that is too large" in err) == (1, True), err


def test_a_long_default_takes_no_memory_for_each_row(path: Path, tmp_path: Path) -> None:
    """A table whose rows are mostly defaults is written in smaller batches."""
    fill(path, 20_000, ChannelOptions())
    _change(path, {"schema": _with_default(1000)})
    code, _, err = real("export", path, tmp_path / "x.parquet", preexec_fn=_limit_memory)
    assert code == 0, err
    file: Any = pq.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.row_group(0).num_rows < 10_000


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (_linked(40, "tuple", "chain"), "more than 64 nested types"),
        (_linked(200, form="chain"), "damaged"),
        (_linked(3), "which Parquet has no type for"),
    ],
    ids=["tuples", "a chain", "a ring"],
)
def test_what_is_nested_too_deeply_for_a_table_is_said(
    path: Path, tmp_path: Path, schema: dict[str, object], reason: str
) -> None:
    """The error for a message type that is too deep for a table is one of the command."""
    fill(path, 10)
    _change(path, {"schema": schema})
    result = invoke("export", path, tmp_path / "x.parquet")
    assert (result.exit_code, reason in result.stderr) == (1, True), result.stderr
    assert "FILECHANNEL_DEBUG" not in result.stderr


def test_columns_that_double_are_too_many_for_a_table(path: Path, tmp_path: Path) -> None:
    """A table of records that double with each level is refused, because it would have a billion columns."""
    fill(path, 10)
    records = {
        f"R{number}": {
            "name": "R",
            "form": "struct",
            "fields": [
                {"name": name, "wire_name": name, "type": {"kind": "record", "name": f"R{number + 1}"}}
                for name in ("a", "b")
            ],
        }
        for number in range(30)
    }
    records["R30"] = {"name": "R", "form": "struct", "fields": []}
    _change(path, {"schema": {"root": {"kind": "record", "name": "R0"}, "records": records}})
    code, _, err = real("export", path, tmp_path / "x.parquet")
    assert (code, "more than 10,000 columns" in err) == (1, True), err
