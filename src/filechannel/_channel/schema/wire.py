"""Two general shapes of encoded messages: an array of items, and an object of named fields.

With them, the same few rules compare a Struct, a dataclass, a TypedDict and a dict (or a list, a tuple, a NamedTuple
and an array-like Struct). Reading and writing differ: an array-like Struct always writes all its fields, but reads an
array without those that have a default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from .tree import Field, Node, Record

__all__ = ["ArrayForm", "ObjectForm", "Slot", "array_form", "object_form"]


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """One field or one position."""

    type: Node
    name: str | None = None
    """The name in Python; None for a position without a name."""
    certain: bool = True
    """When writing: always present. When reading: refused without it."""


@final
@dataclass(frozen=True, slots=True)
class ArrayForm:
    """From *low* to *high* items: the slots, then any number of *rest* (None: not written, or ignored)."""

    slots: tuple[Slot, ...]
    rest: Slot | None
    low: int
    high: float

    def at(self, position: int) -> Slot | None:
        """Return what is at *position*, if there can be an item and it matters."""
        return self.slots[position] if position < len(self.slots) else self.rest


@final
@dataclass(frozen=True, slots=True)
class ObjectForm:
    """Slots by their encoded names, then entries of *key* and *value* (None: not written, or ignored)."""

    slots: Mapping[str, Slot] = field(default_factory=dict[str, Slot])
    key: Node | None = None
    value: Node | None = None
    closed: bool = False
    """When reading: an unknown name is refused."""
    low: int = 0
    high: float = math.inf


def array_form(node: Node, records: Mapping[str, Record], *, writing: bool) -> ArrayForm | None:
    """Return the array that *node* is encoded as; None if it is something else."""
    if node.kind in {"list", "set", "frozenset", "vartuple"}:
        return ArrayForm((), Slot(node.arguments[0]), *_lengths(node))
    if node.kind == "tuple":
        return ArrayForm(tuple(map(Slot, node.arguments)), None, len(node.arguments), len(node.arguments))
    record = records[node.name or ""] if node.kind == "record" else None
    return _record_array(record, writing=writing) if record is not None and record.array_like else None


def object_form(
    node: Node, records: Mapping[str, Record], *, writing: bool, tag_needed: bool = False
) -> ObjectForm | None:
    """Return the object that *node* is encoded as; None if it is something else.

    With *tag_needed*, an object without the tag is refused, since a reader has to choose between several records.
    """
    if node.kind == "dict":
        low, high = _lengths(node)
        return ObjectForm(key=node.arguments[0], value=node.arguments[1], low=low, high=high)
    record = records[node.name or ""] if node.kind == "record" else None
    if record is None or record.array_like:
        return None
    return _record_object(record, writing=writing, tag_needed=tag_needed)


def _record_array(record: Record, *, writing: bool) -> ArrayForm:
    slots = [Slot(_tag_node(record), "the tag")] if record.tag is not None else []
    slots += [Slot(field.type, field.name, field.required) for field in record.fields]
    needed = max((number for number, slot in enumerate(slots, 1) if slot.certain), default=0)
    complete = len(slots)
    return ArrayForm(
        tuple(slots),
        None,
        low=complete if writing else needed,
        high=complete if writing or record.forbid_unknown_fields else math.inf,
    )


def _record_object(record: Record, *, writing: bool, tag_needed: bool) -> ObjectForm:
    slots = {field.wire_name: _field_slot(field, writing=writing) for field in record.fields}
    if record.tag is not None and record.tag_field is not None:
        slots[record.tag_field] = Slot(_tag_node(record), record.tag_field, certain=writing or tag_needed)
    certain = sum(slot.certain for slot in slots.values())
    return ObjectForm(slots, closed=record.forbid_unknown_fields, low=certain, high=len(slots))


def _field_slot(field: Field, *, writing: bool) -> Slot:
    return Slot(field.type, field.name, not field.omittable if writing else field.required)


def _tag_node(record: Record) -> Node:
    return Node("literal", values=(record.tag,))


def _lengths(node: Node) -> tuple[int, float]:
    low, high = node.constraints.get("min_length", 0), node.constraints.get("max_length", math.inf)
    return int(low), float(high)
