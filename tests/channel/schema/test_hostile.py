"""Stored schemas that an attacker wrote: comparing them with a type ends, and never accepts what was not compared."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import msgspec
import pytest

from filechannel._channel.schema import Schema, compatibility, describe, find_difference, reads
from filechannel._channel.schema.compatibility import _Comparison, _FieldPath, _Miss

MOST_COMPARISONS = 20_000
"""Of records and collections; the schemas here have fewer than a thousand pairs of records."""


class Tree(msgspec.Struct):
    """Any recursive type of a user."""

    children: list[Tree] = []


class Optional(msgspec.Struct):
    """A record that a dict with texts as keys can read and write."""

    a: str = ""
    b: str = ""


def _record(*fields: dict[str, object]) -> dict[str, object]:
    return {"name": "Tree", "form": "struct", "fields": fields}


def _field(name: str, kind: object, **more: object) -> dict[str, object]:
    return {"name": name, "wire_name": name, "type": kind, **more}


def _children(*keys: str) -> dict[str, object]:
    members = [{"kind": "record", "name": key} for key in keys]
    item = members[0] if len(members) == 1 else {"kind": "union", "arguments": members}
    return _field("children", {"kind": "list", "arguments": [item]}, required=False)


def _doubling(levels: int) -> Schema:
    """Return a schema with two ways into each level, and a field at the end that no Tree has."""
    records: dict[str, object] = {
        f"{letter}{level}": _record(_children(f"a{level + 1}", f"b{level + 1}"))
        for level in range(levels)
        for letter in "ab"
    }
    for key in (f"a{levels}", f"b{levels}"):
        records[key] = _record(_children(key), _field("more", {"kind": "int"}))
    return Schema.from_json({"root": {"kind": "record", "name": "a0"}, "records": records})


def _ring(count: int) -> Schema:
    records = {f"r{number}": _record(_children(f"r{(number + 1) % count}")) for number in range(count)}
    return Schema.from_json({"root": {"kind": "record", "name": "r0"}, "records": records})


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail instead of comparing forever."""
    numbers = itertools.count()
    array_form: Any = compatibility.__dict__["array_form"]

    def counted(*args: Any, **kwargs: Any) -> Any:
        assert next(numbers) < MOST_COMPARISONS
        return array_form(*args, **kwargs)

    monkeypatch.setattr(compatibility, "array_form", counted)


@pytest.mark.usefixtures("limited")
def test_a_difference_at_the_end_of_many_ways_is_found_once() -> None:
    """A refused pair of records is not compared again on each of the 2**40 ways that lead to it."""
    difference = find_difference(_doubling(40), describe(Tree))
    assert difference is not None
    assert difference.field.endswith(".children[].more")


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("count", [100, 300, 2000])
def test_a_ring_of_records_is_compared_without_recursion(count: int) -> None:
    """Records that refer to each other are a recursive type, however many there are."""
    assert find_difference(_ring(count), describe(Tree)) is None


@pytest.mark.parametrize("schema", [_ring(20_000), _doubling(10_000)], ids=["ring", "doubling"])
def test_a_comparison_with_too_many_steps_is_a_difference(schema: Schema) -> None:
    """An unfinished comparison says so, and does not count as compatible."""
    difference = find_difference(schema, describe(Tree))
    assert difference is not None
    assert difference.field == "message"
    assert difference.expected == "a schema that is too complex to be compared"
    assert difference.found == "Tree"
    assert not reads(schema, describe(Tree))


def test_a_large_union_of_tagged_records_is_compared_by_tags() -> None:
    """A thousand members take a thousand comparisons, not a million: the type may be one in use."""
    tagged: list[Any] = [msgspec.defstruct(f"T{number}", [("a", int)], tag=True) for number in range(1000)]
    longer: list[Any] = [msgspec.defstruct(f"T{number}", [("a", int)], tag=True) for number in range(1001)]
    one, other = (describe(_union(members)) for members in (tagged, longer))
    assert reads(other, one)
    assert not reads(one, other)


def _union(members: list[Any]) -> Any:
    union = members[0]
    for member in members[1:]:
        union |= member
    return union


def test_a_large_literal_is_compared_by_its_values() -> None:
    """Large Literals are compared by their values, as many as fit into a manifest, however they were chosen."""
    values = [number << 40 for number in range(100_000)]
    one, other = (Schema.from_json({"root": {"kind": "literal", "values": each}}) for each in (values, values[1:]))
    assert reads(one, other)
    assert not reads(other, one)


def test_values_of_other_types_are_not_the_same() -> None:
    """Values that Python compares as equal, such as 1 and True, are different in a schema."""
    one, other = (Schema.from_json({"root": {"kind": "literal", "values": [value]}}) for value in (1, True))
    assert one == other
    assert find_difference(one, other) is not None


@pytest.mark.parametrize("pattern", ["", "^(([a-z_]+)*)*!$", "("], ids=["any", "exponential", "invalid"])
def test_a_pattern_is_never_matched(pattern: str) -> None:
    """A key type with a pattern fits no field names, because patterns of stored schemas are never matched."""
    key = {"kind": "str", "constraints": {"pattern": pattern}}
    stored = Schema.from_json({"root": {"kind": "dict", "arguments": [key, {"kind": "str"}]}})
    difference = find_difference(stored, describe(Optional))
    assert difference is not None
    assert (difference.field, difference.expected) == ("Optional.a", f"str (pattern={pattern!r})")
    assert find_difference(stored, stored) is None


def test_errors_are_short() -> None:
    """An error names a type of megabytes by its beginning."""
    stored = Schema.from_json({"root": {"kind": "literal", "values": [f"value {number}" for number in range(50_000)]}})
    difference = find_difference(stored, describe(Tree))
    assert difference is not None
    assert len(difference.expected) < 2000


@pytest.mark.parametrize("seed", range(300))
def test_recursive_records_are_accepted_as_far_as_anything_allows(seed: int) -> None:
    """Caching results of comparisons changes no answer: compatible pairs are the largest set that is consistent."""
    random = Random(seed)
    reader, writer = _random_records(random), _random_records(random)
    accepted = {(one, other) for one in reader.records for other in writer.records}
    while True:
        fitting = {pair for pair in accepted if _fits(reader, writer, pair, accepted)}
        if fitting == accepted:
            break
        accepted = fitting
    assert reads(reader, writer) == ((reader.root.name, writer.root.name) in accepted)


def _random_records(random: Random) -> Schema:
    """Return a few records that refer to each other, some of them through unions; leaves differ now and then."""
    keys = [f"r{number}" for number in range(random.randint(1, 5))]
    records = {
        key: _record(
            _field("leaf", {"kind": "str" if random.random() < 0.1 else "int"}),
            _children(*random.sample(keys, random.randint(1, min(3, len(keys))))),
        )
        for key in keys
    }
    return Schema.from_json({"root": {"kind": "record", "name": "r0"}, "records": records})


def _fits(reader: Schema, writer: Schema, pair: tuple[str, str], accepted: set[tuple[str, str]]) -> bool:
    """Compare two records if it is known of each pair inside of them whether it is accepted."""
    comparison: Any = _Comparison(reader, writer, names=reader)
    one, other = (
        msgspec.structs.replace(reader.root, name=pair[0]),
        msgspec.structs.replace(reader.root, name=pair[1]),
    )
    whole = _Miss(_FieldPath("x"), one, other)
    comparison._accepted = {(*each, False) for each in accepted}
    comparison._refused = {
        (*each, False): whole for each in itertools.product(reader.records, writer.records) if each not in accepted
    }
    return comparison._budget.run(comparison._match_forms(one, other, whole, tag_needed=False)) is None
