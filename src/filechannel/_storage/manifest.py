"""`channel.json`: what a channel is, for everybody who opens it. Replaced atomically, never edited in place."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar, cast

from .._errors import NotAChannelError, UnsupportedFormatError
from .._format.layout import FORMAT_VERSION
from .._options import StoredOptions
from .files import Files

MANIFEST = "channel.json"
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `channel.json`."""

    format: int
    id: str
    machine: str
    created: str
    codec: str
    schema: object
    options: StoredOptions

    @classmethod
    def new(cls, machine: str, codec: str, schema: object, options: StoredOptions) -> Manifest:
        """Describe a channel that is about to be created."""
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        return cls(FORMAT_VERSION, uuid.uuid4().hex, machine, created, codec, schema, options)

    def with_changes(self, *, schema: object, options: StoredOptions) -> Manifest:
        """Return the same channel, configured anew."""
        return replace(self, schema=schema, options=options)

    def on_machine(self, machine: str) -> Manifest:
        """Return the same channel, moved to another machine."""
        return replace(self, machine=machine)

    def write(self, files: Files, directory: Path) -> None:
        """Store it; when this returns it is on disk."""
        content = asdict(self) | {"options": self.options.to_json()}
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        files.write_atomically(directory / MANIFEST, text.encode(), self.options.mode)

    @classmethod
    def read(cls, files: Files, directory: Path) -> Manifest:
        """Load it; an error names what is wrong with the file."""
        try:
            return cls.parse(files.read(directory / MANIFEST), directory)
        except IsADirectoryError:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is a directory") from None

    @classmethod
    def parse(cls, text: bytes, directory: Path) -> Manifest:
        """Return what the file of a channel's directory says; an error names what is wrong with it."""
        try:
            content: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is damaged ({error})") from error
        if not isinstance(content, dict):
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is not a JSON object")
        fields = cast("dict[str, object]", content)
        version = fields.get("format")
        if type(version) is not int or version < 1:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is damaged ('format' is {version!r})")
        if version > FORMAT_VERSION:
            raise UnsupportedFormatError(version, FORMAT_VERSION, path=directory)
        try:
            return cls(
                format=_field(fields, "format", int),
                id=uuid.UUID(_field(fields, "id", str)).hex,
                machine=_field(fields, "machine", str),
                created=_field(fields, "created", str),
                codec=_field(fields, "codec", str),
                schema=fields.get("schema"),
                options=StoredOptions.from_json(fields.get("options")),
            )
        except ValueError as error:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is damaged ({error})") from error


def _field(fields: dict[str, object], name: str, kind: type[_V]) -> _V:
    value = fields.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} is missing or not {kind.__name__}")
    return value
