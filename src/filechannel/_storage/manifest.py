"""`channel.json`: schema, codec and channel-wide options. It is replaced atomically, never edited in place."""

from __future__ import annotations

import json
import shlex
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from pathlib import Path
from typing import TypeVar, cast

from .._errors import NotAChannelError, StorageError, UnexpectedFileError, UnsupportedFormatError
from .._format.layout import FORMAT_VERSION
from .._options import StoredOptions
from .system.os_calls import Files

MANIFEST = "channel.json"
MANIFEST_LIMIT = 4 << 20
"""A larger file is not a manifest: most of a manifest is the schema, which has a few kilobytes."""
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
        """Return the manifest of a channel that is about to be created."""
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        return cls(FORMAT_VERSION, uuid.uuid4().hex, machine, created, codec, schema, options)

    def with_changes(self, *, schema: object, options: StoredOptions) -> Manifest:
        """Return a manifest of the same channel with another schema and other options."""
        return replace(self, schema=schema, options=options)

    def on_machine(self, machine: str) -> Manifest:
        """Return a manifest of the same channel on another machine."""
        return replace(self, machine=machine)

    def write(self, files: Files, directory: Path) -> None:
        """Write the manifest; it is on disk when this returns."""
        content = asdict(self) | {"options": self.options.to_json()}
        text = (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
        if len(text) > MANIFEST_LIMIT:
            raise StorageError(
                f"{directory / MANIFEST} would have {len(text):,} bytes, and at most {MANIFEST_LIMIT:,} are read: "
                "use a message type with a smaller schema"
            )
        files.write_atomically(directory / MANIFEST, text, self.options.mode)

    def check_writable(self, directory: Path) -> None:
        """Raise `UnsupportedFormatError` for a channel of an older format version: it can be read, not written to."""
        if self.format != FORMAT_VERSION:
            hint = (
                "and readonly=True still reads it; to write to it, copy it into a new channel: "
                f"'filechannel export {shlex.quote(str(directory))} FILE --header', then 'filechannel import NEW FILE'"
            )
            raise UnsupportedFormatError(self.format, FORMAT_VERSION, hint, path=directory)

    @classmethod
    def read(cls, files: Files, directory: Path) -> Manifest:
        """Read and parse the manifest; an error says what is wrong with the file."""
        return cls.parse(cls.read_text(files, directory), directory)

    @staticmethod
    def read_text(files: Files, directory: Path) -> bytes:
        """Return the input of `parse`; `FileNotFoundError` if there is no manifest."""
        try:
            return files.read(directory / MANIFEST, MANIFEST_LIMIT + 1)
        except UnexpectedFileError as error:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is {error.found}") from error

    @classmethod
    def parse(cls, text: bytes, directory: Path) -> Manifest:
        """Return the manifest in the text of a `channel.json`; an error says what is wrong with it."""
        if len(text) > MANIFEST_LIMIT:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} has more than {MANIFEST_LIMIT:,} bytes")
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
                created=_moment(_field(fields, "created", str)),
                codec=_field(fields, "codec", str),
                schema=fields.get("schema"),
                options=StoredOptions.from_json(fields.get("options")),
            )
        except (ValueError, OverflowError) as error:
            raise NotAChannelError.without_manifest(directory, f"{MANIFEST} is damaged ({error})") from error


def _moment(text: str) -> str:
    """Return the timestamp unchanged; `ValueError` or `OverflowError` if it cannot be shown in every time zone."""
    if not MINYEAR < datetime.fromisoformat(text).astimezone(UTC).year < MAXYEAR:
        raise ValueError(f"'created' is {text!r}")
    return text


def _field(fields: dict[str, object], name: str, kind: type[_V]) -> _V:
    value = fields.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name!r} is missing or not {kind.__name__}")
    return value
