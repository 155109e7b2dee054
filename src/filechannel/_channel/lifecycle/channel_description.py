"""Channels without the user's types: reading, checking and writing messages with what the manifest describes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast, final, get_args

from typing_extensions import TypeForm

from ..._errors import ChannelNotFoundError, NotAChannelError
from ..._options import ChannelOptions
from ..._storage.control.control_file import CONTROL
from ..._storage.manifest import MANIFEST, Manifest
from ..._storage.segments.segment_names import SEGMENTS
from ..._storage.system.os_calls import Files
from ..schema import Schema, build_type
from ..schema.codec import Codec, CodecName, codec_for
from .open_spec import OpenSpec

_OURS = ("msgpack", "json")
"""Codecs whose encoding follows the schema."""


@final
@dataclass(frozen=True, slots=True)
class Description:
    """What the manifest of a channel says about it."""

    path: Path
    manifest: Manifest
    schema: Schema
    message_type: TypeForm[object]
    """The message type to use here; `bytes` if nothing else is known."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> Self:
        """Describe a channel by its manifest. Raise `ValueError` if the schema in it is damaged."""
        schema = Schema.from_json(manifest.schema)
        message_type = build_type(schema) if manifest.codec in _OURS else cast("TypeForm[object]", bytes)
        return cls(path, manifest, schema, message_type)

    @property
    def is_bytes(self) -> bool:
        """Whether messages are bytes here: the channel is raw, or uses a custom codec."""
        return self.manifest.codec not in _OURS

    def open_spec(self, *, readonly: bool = False, options: ChannelOptions | None = None) -> OpenSpec[object]:
        """Return the spec that opens the channel."""
        return self._open_spec(self.path, options, create=False, readonly=readonly)

    def open_spec_for(self, path: Path, options: ChannelOptions | None = None) -> OpenSpec[object]:
        """Return the spec that opens a channel with the same messages elsewhere, and creates it if necessary."""
        return self._open_spec(path, options, create=True, readonly=False)

    def _open_spec(
        self, path: Path, options: ChannelOptions | None, *, create: bool, readonly: bool
    ) -> OpenSpec[object]:
        message_type = self.message_type
        name = self.manifest.codec
        codec: Codec[object] = _ForeignCodec(name)
        if name in get_args(CodecName):
            codec = codec_for(message_type, cast("CodecName", name))
        open_spec = OpenSpec(path, message_type, codec, options, create, readonly, self.schema)
        open_spec.expects_mode = True  # the channel already has its mode, and the user chose this channel
        open_spec.names_strict_owner = False
        return open_spec


def describe_channel(path: Path) -> Description:
    """Return the description of the channel in a directory, without opening it.

    Raises `ChannelNotFoundError`, `NotAChannelError`, `UnsupportedFormatError`, and `OSError` if it cannot be read.
    """
    try:
        files = Files()
        files.confine(path)
        manifest = Manifest.read(files, path)
    except FileNotFoundError:
        if path.is_dir():
            raise _without_manifest(path) from None
        raise ChannelNotFoundError(path, readonly=True) from None
    except NotADirectoryError:
        raise NotAChannelError(path, "it is a file") from None
    try:
        return Description.of(path, manifest)
    except ValueError as error:
        raise NotAChannelError.without_manifest(path, f"{MANIFEST} is damaged ({error})") from error


def _without_manifest(path: Path) -> NotAChannelError:
    """Return the error for a directory without a manifest, which may have been a channel."""
    reason = f"it has no {MANIFEST}"
    was_one = any((path / part).exists() for part in (CONTROL, SEGMENTS))
    return NotAChannelError.without_manifest(path, reason) if was_one else NotAChannelError(path, reason)


@final
class _ForeignCodec:
    """Stands for a custom codec: payloads are not changed."""

    def __init__(self, name: str) -> None:
        self.name: str = name

    def encode(self, value: object, /) -> bytes:
        return cast("bytes", value)

    def decode(self, payload: bytes, /) -> bytes:
        return payload
