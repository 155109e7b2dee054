"""Whether two schemas may share a channel: each must decode what the other writes.

Both directions ask the same question: does *reader* accept everything that *writer* may put on the wire?
The answer follows msgspec's strict decoding, and a test holds every answer against msgspec itself. It is
``None`` for yes, or the first place where the reader does not accept it, with what each side has there.

One rule is stricter than decoding. The positions of an array-like record carry no names on the wire: a
field put in front of others of the same type would be read without an error and mean something else. So
the names are compared too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Final, TypeAlias, final

from .constraints import implies, satisfies
from .tree import Node, Scalar, Schema
from .wire import ArrayForm, ObjectForm, Slot, array_form, object_form

__all__ = ["Difference", "find_difference", "reads"]


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two schemas do not decode each other's messages."""

    field: str
    """A dotted path such as ``Order.lines[].sku``; ``message`` is the message itself."""
    expected: str
    """What the stored schema has there."""
    found: str
    """What the schema given has there."""


def find_difference(stored: Schema, given: Schema) -> Difference | None:
    """Return where *given* and *stored* do not decode each other's messages, None if they always do."""
    miss = _Comparison(given, stored, names=given).accept(given.root, stored.root, _ROOT)
    if miss is not None:
        return Difference("".join(miss.path), expected=miss.writer, found=miss.reader)
    miss = _Comparison(stored, given, names=given).accept(stored.root, given.root, _ROOT)
    if miss is not None:
        return Difference("".join(miss.path), expected=miss.reader, found=miss.writer)
    return None


def reads(reader: Schema, writer: Schema) -> bool:
    """Tell whether *reader* decodes everything that *writer* writes, and nothing about the other direction."""
    return _Comparison(reader, writer, names=reader).accept(reader.root, writer.root, _ROOT) is None


_Path: TypeAlias = tuple[str, ...]
_Tag: TypeAlias = tuple[str | None, int | str | None]

_ROOT: Final[_Path] = ("message",)
_BINARY: Final = frozenset({"bytes", "bytearray", "memoryview"})
_READABLE: Final[Mapping[str, frozenset[str]]] = {
    "float": frozenset({"int", "float"}),
    "decimal": frozenset({"int", "float", "decimal"}),
    **dict.fromkeys(_BINARY, _BINARY),
}
"""What a type reads if that is more than its own kind."""
_LITERALS: Final[Mapping[str, type]] = {
    "none": NoneType,
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
    """A place where the reader does not accept what the writer writes, and what each has there."""

    path: _Path
    reader: str
    writer: str


@final
class _Comparison:
    """One direction: what *reader* says to the messages of *writer*. ``None`` is yes."""

    def __init__(self, reader: Schema, writer: Schema, *, names: Schema) -> None:
        self._reader = reader
        self._writer = writer
        self._names = names
        self._accepted: frozenset[tuple[str | None, str | None, bool]] = frozenset()

    def accept(self, reader: Node, writer: Node, path: _Path) -> _Miss | None:
        """Compare two types, each of which may be a union: each thing written needs somebody to read it."""
        whole = _Miss(path, *self._texts(reader, writer))
        readers, writers = list(_alternatives(reader)), list(_written(writer))
        for alternative in writers:
            choosing = len(readers) > 1 or len(writers) > 1
            miss = self._accept_alternative(readers, alternative, whole, choosing=choosing)
            if miss is not None:
                return miss
        return None

    def _accept_alternative(self, readers: list[Node], writer: Node, whole: _Miss, *, choosing: bool) -> _Miss | None:
        """Return None if one of *readers* accepts *writer*, else the most telling reason why none does."""
        tags = [_tag(self._reader, reader) for reader in readers]
        tag_needed = len(tags) - tags.count(None) > 1
        reason = whole
        for reader, tag in zip(readers, tags, strict=True):
            if choosing and _is_another_member(tag, _tag(self._writer, writer)):
                continue
            miss = self._match(reader, writer, whole, tag_needed=tag_needed)
            if miss is None:
                return None
            reason = miss if reason is whole else reason
        return reason

    def _match(self, reader: Node, writer: Node, whole: _Miss, *, tag_needed: bool) -> _Miss | None:
        """Compare two types that are no unions; *whole* says that they are different kinds of things."""
        if reader.kind in {"any", "raw"}:
            return None
        if writer.kind == "literal":
            return None if _reads_value(reader, writer.values[0]) else whole
        if reader.kind == "record" and writer.kind == "record":
            return self._match_records(reader, writer, whole, tag_needed=tag_needed)
        return self._match_forms(reader, writer, whole, tag_needed=tag_needed)

    def _match_records(self, reader: Node, writer: Node, whole: _Miss, *, tag_needed: bool) -> _Miss | None:
        """Compare two records once: a recursive type that meets itself again inside counts as accepted."""
        pair = (reader.name, writer.name, tag_needed)
        if pair in self._accepted:
            return None
        before = self._accepted
        self._accepted = before | {pair}
        miss = self._match_forms(reader, writer, whole, tag_needed=tag_needed)
        if miss is not None:
            self._accepted = before
        return miss

    def _match_forms(self, reader: Node, writer: Node, whole: _Miss, *, tag_needed: bool) -> _Miss | None:
        inside = replace(whole, path=self._path_inside(reader, writer, whole.path))
        read_array = array_form(reader, self._reader.records, writing=False)
        written_array = array_form(writer, self._writer.records, writing=True)
        if read_array is not None and written_array is not None:
            return self._accept_array(read_array, written_array, inside)
        read_object = object_form(reader, self._reader.records, writing=False, tag_needed=tag_needed)
        written_object = object_form(writer, self._writer.records, writing=True)
        if read_object is not None and written_object is not None:
            return self._accept_object(read_object, written_object, inside)
        return None if _reads(reader, writer) else whole

    def _accept_array(self, reader: ArrayForm, writer: ArrayForm, whole: _Miss) -> _Miss | None:
        for position in range(max(len(reader.slots), len(writer.slots))):
            miss = self._accept_item(reader.at(position), writer.at(position), position, whole.path)
            if miss is not None:
                return miss
        if writer.low < reader.low:
            return self._missing(reader.at(writer.low), whole)
        if writer.high > reader.high:
            return self._surplus(writer.at(int(reader.high)), whole)
        if reader.rest is None or writer.rest is None:
            return None
        return self.accept(reader.rest.type, writer.rest.type, (*whole.path, "[]"))

    def _accept_item(self, reader: Slot | None, writer: Slot | None, position: int, path: _Path) -> _Miss | None:
        if reader is None or writer is None:
            return None
        label = f"[{position}]"
        if reader.name and writer.name and reader.name != writer.name:
            return _Miss((*path, label), f"field {reader.name!r}", f"field {writer.name!r}")
        name = reader.name or writer.name
        return self.accept(reader.type, writer.type, (*path, f".{name}" if name else label))

    def _accept_object(self, reader: ObjectForm, writer: ObjectForm, whole: _Miss) -> _Miss | None:
        for name, slot in reader.slots.items():
            miss = self._accept_field(slot, writer.slots.get(name), writer, whole.path)
            if miss is not None:
                return miss
        for name, slot in writer.slots.items():
            miss = None if name in reader.slots else self._accept_unknown(name, slot, reader, whole)
            if miss is not None:
                return miss
        return self._accept_entries(reader, writer, whole)

    def _accept_field(self, reader: Slot, written: Slot | None, writer: ObjectForm, path: _Path) -> _Miss | None:
        """Accept a field that *reader* knows; a dict may or may not have it."""
        if written is None and writer.value is not None:
            written = Slot(writer.value, reader.name, certain=False)
        if written is None:
            return self._missing(reader, _Miss(path, "", "")) if reader.certain else None
        path = (*path, f".{self._name(reader, written)}")
        if reader.certain and not written.certain:
            return _Miss(path, "required field", "field that may be left out")
        return self.accept(reader.type, written.type, path)

    def _accept_unknown(self, name: str, writer: Slot, reader: ObjectForm, whole: _Miss) -> _Miss | None:
        """Accept a field that *reader* does not know: ignored, refused, or an entry of a dict."""
        if reader.closed:
            return self._surplus(writer, whole)
        if reader.key is None or reader.value is None:
            return None
        path = (*whole.path, f".{writer.name}")
        key = Node("literal", values=(name,))
        return self.accept(reader.key, key, path) or self.accept(reader.value, writer.type, path)

    def _accept_entries(self, reader: ObjectForm, writer: ObjectForm, whole: _Miss) -> _Miss | None:
        """Accept what a dict writes, or the number of entries that a dict reads."""
        if reader.key is not None and (writer.low < reader.low or writer.high > reader.high):
            return whole
        if writer.key is None or writer.value is None:
            return None
        if reader.closed:
            return whole
        miss = self.accept(reader.key or Node("str"), writer.key, (*whole.path, "[key]"))
        if miss is not None or reader.value is None:
            return miss
        return self.accept(reader.value, writer.value, (*whole.path, "[]"))

    def _missing(self, reader: Slot | None, whole: _Miss) -> _Miss:
        if reader is None or reader.name is None:
            return whole
        return _Miss((*whole.path, f".{reader.name}"), "required field", "no such field")

    def _surplus(self, writer: Slot | None, whole: _Miss) -> _Miss:
        if writer is None or writer.name is None:
            return whole
        return _Miss((*whole.path, f".{writer.name}"), "no such field", self._writer.text(writer.type))

    def _name(self, reader: Slot, writer: Slot) -> str | None:
        return reader.name if self._names is self._reader else writer.name

    def _path_inside(self, reader: Node, writer: Node, path: _Path) -> _Path:
        """Start a path with the name of the message's record, where it has one."""
        node = reader if self._names is self._reader else writer
        return (self._names.text(node),) if path == _ROOT and node.kind == "record" else path

    def _texts(self, reader: Node, writer: Node) -> tuple[str, str]:
        texts = self._reader.text(reader), self._writer.text(writer)
        if texts[0] != texts[1]:
            return texts
        # Two records of one name: what differs then is how they are written.
        return f"{texts[0]} {_shape(self._reader, reader)}", f"{texts[1]} {_shape(self._writer, writer)}"


def _alternatives(node: Node) -> Iterator[Node]:
    """Return the members of a union, also of a union in a union."""
    if node.kind != "union":
        yield node
    for member in node.arguments if node.kind == "union" else ():
        yield from _alternatives(member)


def _written(node: Node) -> Iterator[Node]:
    """Return what may be written, with each value of an enum or a literal on its own."""
    for alternative in _alternatives(node):
        if alternative.kind in {"literal", "enum"}:
            yield from (Node("literal", values=(value,)) for value in alternative.values)
        else:
            yield Node("literal", values=(None,)) if alternative.kind == "none" else alternative


def _reads(reader: Node, writer: Node) -> bool:
    """Tell whether a type without parts reads all values of another one."""
    if reader.kind == "record":
        return False  # One of the two is an array, the other one an object.
    if reader.kind == "custom":
        return writer.kind == "custom" and reader.name == writer.name
    return writer.kind in _READABLE.get(reader.kind, {reader.kind}) and implies(writer, reader)


def _reads_value(reader: Node, value: Scalar) -> bool:
    """Tell whether a type reads this one value."""
    if reader.kind in {"literal", "enum"}:
        return any(value == own and type(value) is type(own) for own in reader.values)
    return type(value) is _LITERALS.get(reader.kind) and satisfies(value, reader)


def _tag(schema: Schema, node: Node) -> _Tag | None:
    """Return the field and the value of a record's tag, None if it has none."""
    record = schema.records[node.name or ""] if node.kind == "record" else None
    return None if record is None or record.tag is None else (record.tag_field, record.tag)


def _is_another_member(tag: _Tag | None, other: _Tag | None) -> bool:
    """Tell whether two tags are of different members of a union: their fields need no comparison."""
    return tag is not None and other is not None and tag[0] == other[0] and tag[1] != other[1]


def _shape(schema: Schema, node: Node) -> str:
    names = [member.name for member in _alternatives(node) if member.kind == "record"]
    return "as an array" if any(schema.records[name or ""].array_like for name in names) else "as an object"
