"""Deciding which defaults of a stored schema are filled in for fields that a message lacks.

A manifest may come from another user. A default of a million values would be created again for every message that
lacks the field, and the sizes of nested defaults multiply. So the defaults of a record have a limited size, which is
counted after everything is filled in. A field whose default exceeds the limit has none.
"""

from __future__ import annotations

from typing import Final, cast

from msgspec import UNSET

from .tree import Field, Node, Record, Schema

__all__ = ["MOST_DEFAULT_BYTES", "affordable_defaults"]

MOST_DEFAULT_BYTES: Final = 8192
"""Of all defaults of a record together, with 8 for each value and the length of each text."""
_VALUE: Final = 8
_MOST_STEPS: Final = 200_000
"""For all defaults of a schema; those not measured by then count as too large."""
_DEEPEST: Final = 64


def affordable_defaults(schema: Schema) -> dict[str, frozenset[int]]:
    """Return for each record, by its key, the positions of the fields whose defaults are filled in."""
    measure = _Measure(schema)
    return {key: frozenset(measure.affordable(record)) for key, record in schema.records.items()}


class _TooLargeError(Exception):
    pass


class _Measure:
    """Measures defaults after they are filled in."""

    def __init__(self, schema: Schema) -> None:
        self._records = schema.records
        self._steps = _MOST_STEPS
        self._left = 0

    def affordable(self, record: Record) -> list[int]:
        left, found = MOST_DEFAULT_BYTES, list[int]()
        for position, field in enumerate(record.fields):
            self._left = left
            try:
                self._add_default(field, 0)
            except _TooLargeError:
                continue
            if field.default is not UNSET:
                left = self._left
                found.append(position)
        return found

    def _add_default(self, field: Field, depth: int) -> None:
        """Count a default. At the top level of a record, one that all messages share counts only its text."""
        default = field.default
        if depth or isinstance(default, list | dict):
            if default is not UNSET:
                self._add(field.default, field.type, depth)
        elif isinstance(default, str):
            self._spend(len(default))

    def _add(self, value: object, node: Node, depth: int) -> None:
        self._spend(_VALUE + (len(value) if isinstance(value, str) else 0))
        if depth > _DEEPEST:
            raise _TooLargeError
        if not isinstance(value, list | dict):
            return
        if node.kind == "union":
            for member in node.arguments:
                self._add(cast("object", value), member, depth + 1)
        elif isinstance(value, list):
            self._add_items(cast("list[object]", value), node, depth + 1)
        else:
            self._add_entries(cast("dict[str, object]", value), node, depth + 1)

    def _add_items(self, items: list[object], node: Node, depth: int) -> None:
        record = self._records[node.name or ""] if node.kind == "record" else None
        for position, item in enumerate(items):
            if record is not None and position < len(record.fields):
                kind = record.fields[position].type
            elif position < len(node.arguments):
                kind = node.arguments[position]
            else:
                kind = node.arguments[0] if node.arguments else _ANY
            self._add(item, kind, depth)
        for field in record.fields[len(items) :] if record is not None else ():
            self._add_default(field, depth)

    def _add_entries(self, entries: dict[str, object], node: Node, depth: int) -> None:
        if node.kind != "record":
            for value in entries.values():
                self._add(value, node.arguments[-1] if node.arguments else _ANY, depth)
            return
        for field in self._records[node.name or ""].fields:
            if field.wire_name in entries:
                self._add(entries[field.wire_name], field.type, depth)
            else:
                self._add_default(field, depth)

    def _spend(self, size: int) -> None:
        self._steps -= 1
        self._left -= size
        if self._left < 0 or self._steps < 0:
            raise _TooLargeError


_ANY: Final = Node("any")
