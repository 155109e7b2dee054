"""Deciding whether two schemas may share a channel: each must decode what the other writes.

Both directions ask the same question: does *reader* accept everything that *writer* may write? The answer follows
msgspec's strict decoding, and a test compares every answer with msgspec itself. It is ``None`` for yes, or the first
difference, with what each side has there.

One rule is stricter than decoding. An array-like record is encoded without names: a field that is inserted before
others of the same type would be decoded without an error, as another field. So the names are compared too.

An attacker may have written the stored schema, so a comparison takes polynomial time and a limited number of steps. If
it exceeds the limit, the schemas count as different: what was not compared must not count as compatible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, final

import msgspec

from .bounded_walk import Budget, TooComplexError, Walk
from .constraints import implies, satisfies
from .tree import Node, Scalar, Schema
from .wire import ArrayForm, ObjectForm, Slot, array_form, object_form

__all__ = ["Difference", "find_difference", "reads"]


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference that keeps two schemas from decoding each other's messages."""

    field: str
    """A dotted path such as ``Order.lines[].sku``; ``message`` is the message itself."""
    expected: str
    """What the stored schema has there."""
    found: str
    """What the given schema has there."""


def find_difference(stored: Schema, given: Schema) -> Difference | None:
    """Return where *given* and *stored* do not decode each other's messages, None if they always do.

    They also count as different if the comparison takes too many steps, or depends on what a regular expression
    matches.
    """
    if _is_same(stored, given):
        return None
    try:
        miss = _Comparison(given, stored, names=given).run()
        if miss is not None:
            found, expected = _texts(miss, given, stored)
            return Difference(miss.path.text(), expected=expected, found=found)
        miss = _Comparison(stored, given, names=given).run()
        if miss is not None:
            expected, found = _texts(miss, stored, given)
            return Difference(miss.path.text(), expected=expected, found=found)
    except TooComplexError:
        return Difference(
            _ROOT.part, expected="a schema that is too complex to be compared", found=_short(given.text(given.root))
        )
    return None


def reads(reader: Schema, writer: Schema) -> bool:
    """Return whether *reader* decodes everything that *writer* writes, and nothing about the other direction."""
    try:
        return _is_same(reader, writer) or _Comparison(reader, writer, names=reader).run() is None
    except TooComplexError:
        return False


def _is_same(one: Schema, other: Schema) -> bool:
    """Return whether two schemas are equal as text, which is fast to decide. On the command line they are.

    Their text is compared, because ``1 == True`` for Python.
    """
    try:
        return msgspec.json.encode(one) == msgspec.json.encode(other)
    except (ValueError, OverflowError, RecursionError):  # of a damaged schema: a lone surrogate in a name
        return False


@final
@dataclass(frozen=True, slots=True)
class _FieldPath:
    """The path of a field in a message type: a part, inside the path around it."""

    part: str
    around: _FieldPath | None = None

    def inside(self, part: str) -> _FieldPath:
        return _FieldPath(part, self)

    def text(self) -> str:
        parts: list[str] = []
        path: _FieldPath | None = self
        while path is not None:
            parts.append(path.part)
            path = path.around
        parts.reverse()
        if len(parts) > _MOST_PARTS:
            parts[_MOST_PARTS // 2 : -_MOST_PARTS // 2] = ["..."]
        return _short("".join(parts))


_Pair: TypeAlias = tuple[str | None, str | None, bool]
_Tag: TypeAlias = tuple[str | None, int | str | None]

_ROOT: Final = _FieldPath("message")
_MOST_PARTS: Final = 64  # of a path that an error names
_LONGEST_TEXT: Final = 1000  # of a type or path in an error
_VALUES: Final = ("literal", "enum", "none")
"""Kinds whose values are known."""
_BINARY: Final = frozenset({"bytes", "bytearray", "memoryview"})
_READABLE: Final[Mapping[str, frozenset[str]]] = {
    "float": frozenset({"int", "float"}),
    "decimal": frozenset({"int", "float", "decimal"}),
    **dict.fromkeys(_BINARY, _BINARY),
}
"""The kinds that a type reads, if it reads more than its own kind."""
_LITERALS: Final[Mapping[str, type]] = {
    "bool": bool,
    "int": int,
    "float": int,
    "decimal": int,
    "str": str,
}
"""Which values of a literal a type reads."""


@final
@dataclass(frozen=True, slots=True)
class _Miss:
    """A field where the reader does not accept what the writer writes, and what each has there: a type, or a text."""

    path: _FieldPath
    reader: Node | str
    writer: Node | str


@final
class _Readers:
    """The members of a union, indexed by what they read. Any other type counts as a union of itself."""

    def __init__(self, schema: Schema, node: Node) -> None:
        self._nodes = list(_alternatives(node))
        # Texts and not values: the author of a manifest cannot choose their hashes, and 1 is not True.
        self._values = frozenset(repr(value) for each in self._nodes for value in _known_values(each))
        self._others = [each for each in self._nodes if each.kind not in _VALUES]
        self._without_tag: list[int] = []
        self._with_tag: dict[str | None, list[int]] = {}
        self._by_tag: dict[tuple[str | None, str], list[int]] = {}
        for number, (name, value) in ((each, _tag(schema, reader)) for each, reader in enumerate(self._nodes)):
            if value is None:
                self._without_tag.append(number)
            else:
                self._with_tag.setdefault(name, []).append(number)
                self._by_tag.setdefault((name, repr(value)), []).append(number)
        self.size: int = len(self._nodes) + len(self._values)
        self.must_choose: bool = len(self._nodes) > 1
        self.tag_needed: bool = len(self._nodes) - len(self._without_tag) > 1
        """Whether records are distinguished by their tags."""
        self.read_anything: bool = any(each.kind in {"any", "raw"} for each in self._nodes)

    def read(self, value: Scalar, budget: Budget) -> bool:
        """Return whether one of them reads this one value."""
        budget.spend(1)
        if repr(value) in self._values:
            return True
        budget.spend(len(self._others))
        return any(_reads_value(reader, value) for reader in self._others)

    def all(self) -> list[Node]:
        return self._nodes

    def of_tag(self, tag: _Tag) -> list[Node]:
        """Return the members that may read a record with a tag: all but those with another value in the same field."""
        name, value = tag
        if value is None:
            return self._nodes
        numbers = [*self._without_tag, *self._by_tag.get((name, repr(value)), ())]
        for other, found in self._with_tag.items():
            numbers += found if other != name else ()
        return [self._nodes[number] for number in sorted(numbers)]


@final
class _Comparison:
    """One direction: whether *reader* accepts the messages of *writer*. ``None`` means yes."""

    def __init__(self, reader: Schema, writer: Schema, *, names: Schema) -> None:
        self._reader = reader
        self._writer = writer
        self._names = names
        self._budget = Budget()
        self._accepted: set[_Pair] = set()
        self._order: list[_Pair] = []
        """The accepted pairs, in the order in which they were assumed to be accepted."""
        self._refused: dict[_Pair, _Miss] = {}

    def run(self) -> _Miss | None:
        """Compare the messages; `TooComplexError` if that takes too long."""
        return self._budget.run(self._accept(self._reader.root, self._writer.root, _ROOT))

    def _accept(self, reader: Node, writer: Node, path: _FieldPath) -> Walk[_Miss]:
        """Compare two types, each of which may be a union: every alternative of *writer* needs a reader."""
        whole = _Miss(path, reader, writer)
        readers, writers = _Readers(self._reader, reader), list(_alternatives(writer))
        self._budget.spend(readers.size + len(writers))
        if readers.read_anything:
            return None
        choosing = readers.must_choose or len(writers) > 1
        for alternative in writers:
            if alternative.kind in _VALUES:
                if not all(readers.read(value, self._budget) for value in _known_values(alternative)):
                    return whole
                continue
            miss = yield self._accept_alternative(readers, alternative, whole, choosing=choosing)
            if miss is not None:
                return miss
        return None

    def _accept_alternative(self, readers: _Readers, writer: Node, whole: _Miss, *, choosing: bool) -> Walk[_Miss]:
        """Return None if one of *readers* accepts *writer*, otherwise the most specific reason why none does."""
        reason = whole
        candidates = readers.of_tag(_tag(self._writer, writer)) if choosing else readers.all()
        self._budget.spend(len(candidates))
        for reader in candidates:
            if reader.kind == "record" and writer.kind == "record":
                miss = yield self._match_records(reader, writer, whole, tag_needed=readers.tag_needed)
            else:
                miss = yield self._match_forms(reader, writer, whole, tag_needed=readers.tag_needed)
            if miss is None:
                return None
            reason = miss if reason is whole else reason
        return reason

    def _match_records(self, reader: Node, writer: Node, whole: _Miss, *, tag_needed: bool) -> Walk[_Miss]:
        """Compare two records once: inside a recursive type, the type itself counts as accepted.

        What was accepted while that was assumed is forgotten if it turns out wrong. What was refused stays refused:
        an assumption can only help to accept.
        """
        pair = (reader.name, writer.name, tag_needed)
        if pair in self._accepted:
            return None
        if pair in self._refused:
            return self._refused[pair]
        before = len(self._order)
        self._accepted.add(pair)
        self._order.append(pair)
        miss = yield self._match_forms(reader, writer, whole, tag_needed=tag_needed)
        if miss is not None:
            self._accepted.difference_update(self._order[before:])
            del self._order[before:]
            self._refused[pair] = miss
        return miss

    def _match_forms(self, reader: Node, writer: Node, whole: _Miss, *, tag_needed: bool) -> Walk[_Miss]:
        inside = replace(whole, path=self._path_inside(reader, writer, whole.path))
        read_array = array_form(reader, self._reader.records, writing=False)
        written_array = array_form(writer, self._writer.records, writing=True)
        if read_array is not None and written_array is not None:
            return (yield self._accept_array(read_array, written_array, inside))
        read_object = object_form(reader, self._reader.records, writing=False, tag_needed=tag_needed)
        written_object = object_form(writer, self._writer.records, writing=True)
        if read_object is not None and written_object is not None:
            return (yield self._accept_object(read_object, written_object, inside))
        self._budget.spend(
            sum(len(form.slots) for form in (read_array, written_array, read_object, written_object) if form)
        )
        return None if _reads(reader, writer) else whole

    def _accept_array(self, reader: ArrayForm, writer: ArrayForm, whole: _Miss) -> Walk[_Miss]:
        self._budget.spend(len(reader.slots) + len(writer.slots))
        for position in range(max(len(reader.slots), len(writer.slots))):
            read, written = reader.at(position), writer.at(position)
            if read is None or written is None:
                continue
            label = f"[{position}]"
            if read.name and written.name and read.name != written.name:
                return _Miss(whole.path.inside(label), f"field {read.name!r}", f"field {written.name!r}")
            name = read.name or written.name
            path = whole.path.inside(f".{name}" if name else label)
            miss = yield self._accept(read.type, written.type, path)
            if miss is not None:
                return miss
        if writer.low < reader.low:
            return self._missing(reader.at(writer.low), whole)
        if writer.high > reader.high:
            return self._surplus(writer.at(int(reader.high)), whole)
        if reader.rest is None or writer.rest is None:
            return None
        return (yield self._accept(reader.rest.type, writer.rest.type, whole.path.inside("[]")))

    def _accept_object(self, reader: ObjectForm, writer: ObjectForm, whole: _Miss) -> Walk[_Miss]:
        self._budget.spend(len(reader.slots) + len(writer.slots))
        for name, slot in reader.slots.items():
            miss = yield self._accept_field(slot, writer.slots.get(name), writer, whole)
            if miss is not None:
                return miss
        for name, slot in writer.slots.items():
            miss = None if name in reader.slots else (yield self._accept_unknown(name, slot, reader, whole))
            if miss is not None:
                return miss
        return (yield self._accept_entries(reader, writer, whole))

    def _accept_field(self, reader: Slot, written: Slot | None, writer: ObjectForm, whole: _Miss) -> Walk[_Miss]:
        """Accept a field that *reader* knows; a dict may or may not have it."""
        if written is None and writer.value is not None:
            written = Slot(writer.value, reader.name, certain=False)
        if written is None:
            return self._missing(reader, whole) if reader.certain else None
        path = whole.path.inside(f".{self._name(reader, written)}")
        if reader.certain and not written.certain:
            return _Miss(path, "required field", "field that may be left out")
        return (yield self._accept(reader.type, written.type, path))

    def _accept_unknown(self, name: str, writer: Slot, reader: ObjectForm, whole: _Miss) -> Walk[_Miss]:
        """Accept a field that *reader* does not know: ignored, refused, or an entry of a dict."""
        if reader.closed:
            return self._surplus(writer, whole)
        if reader.key is None or reader.value is None:
            return None
        path = whole.path.inside(f".{writer.name}")
        miss = yield self._accept(reader.key, Node("literal", values=(name,)), path)
        if miss is not None:
            return miss
        return (yield self._accept(reader.value, writer.type, path))

    def _accept_entries(self, reader: ObjectForm, writer: ObjectForm, whole: _Miss) -> Walk[_Miss]:
        """Accept what a dict writes, or the number of entries that a dict reads."""
        if reader.key is not None and (writer.low < reader.low or writer.high > reader.high):
            return whole
        if writer.key is None or writer.value is None:
            return None
        if reader.closed:
            return whole
        miss = yield self._accept(reader.key or Node("str"), writer.key, whole.path.inside("[key]"))
        if miss is not None or reader.value is None:
            return miss
        return (yield self._accept(reader.value, writer.value, whole.path.inside("[]")))

    def _missing(self, reader: Slot | None, whole: _Miss) -> _Miss:
        if reader is None or reader.name is None:
            return whole
        return _Miss(whole.path.inside(f".{reader.name}"), "required field", "no such field")

    def _surplus(self, writer: Slot | None, whole: _Miss) -> _Miss:
        if writer is None or writer.name is None:
            return whole
        return _Miss(whole.path.inside(f".{writer.name}"), "no such field", writer.type)

    def _name(self, reader: Slot, writer: Slot) -> str | None:
        return reader.name if self._names is self._reader else writer.name

    def _path_inside(self, reader: Node, writer: Node, path: _FieldPath) -> _FieldPath:
        """Start a path with the name of the message's record, where it has one."""
        node = reader if self._names is self._reader else writer
        return _FieldPath(self._names.text(node)) if path is _ROOT and node.kind == "record" else path


def _texts(miss: _Miss, reader: Schema, writer: Schema) -> tuple[str, str]:
    """Return what the reader and the writer have where they do not agree."""
    read = miss.reader if isinstance(miss.reader, str) else reader.text(miss.reader)
    written = miss.writer if isinstance(miss.writer, str) else writer.text(miss.writer)
    if read == written and isinstance(miss.reader, Node) and isinstance(miss.writer, Node):
        # Two records with the same name differ in how they are encoded.
        read, written = f"{read} {_shape(reader, miss.reader)}", f"{written} {_shape(writer, miss.writer)}"
    return _short(read), _short(written)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."


def _alternatives(node: Node) -> Iterator[Node]:
    """Yield the members of a union, including those of nested unions."""
    if node.kind != "union":
        yield node
    for member in node.arguments if node.kind == "union" else ():
        yield from _alternatives(member)


def _known_values(node: Node) -> tuple[Scalar, ...]:
    """Return the values of an enum, a literal or None; an empty tuple for any other type."""
    return (None,) if node.kind == "none" else node.values if node.kind in _VALUES else ()


def _reads(reader: Node, writer: Node) -> bool:
    """Return whether a type without parts reads all values of another one."""
    if reader.kind == "record":
        return False  # One of the two is an array, the other one an object.
    if reader.kind == "custom":
        return writer.kind == "custom" and reader.name == writer.name
    return writer.kind in _READABLE.get(reader.kind, {reader.kind}) and implies(writer, reader)


def _reads_value(reader: Node, value: Scalar) -> bool:
    """Return whether a type other than an enum or a literal reads this one value."""
    return type(value) is _LITERALS.get(reader.kind) and satisfies(value, reader)


def _tag(schema: Schema, node: Node) -> _Tag:
    """Return the field and the value of a record's tag; the value is None if it has none."""
    record = schema.records[node.name or ""] if node.kind == "record" else None
    return (None, None) if record is None else (record.tag_field, record.tag)


def _shape(schema: Schema, node: Node) -> str:
    names = [member.name for member in _alternatives(node) if member.kind == "record"]
    return "as an array" if any(schema.records[name or ""].array_like for name in names) else "as an object"
