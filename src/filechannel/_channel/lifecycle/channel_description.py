"""Channels without the user's types: what the manifest says is enough to read, check and write their messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast, final, get_args

from typing_extensions import TypeForm

from .._errors import ChannelNotFoundError, NotAChannelError
from .._options import ChannelOptions
from .._storage.control import CONTROL
from .._storage.files import Files
from .._storage.manifest import MANIFEST, Manifest
from .._storage.segments import SEGMENTS
from .codec import Codec, CodecName, codec_for
from .recipe import Recipe
from .schema import Schema, build_type

_OURS = ("msgpack", "json")
"""Codecs that encode what the schema says."""


@final
@dataclass(frozen=True, slots=True)
class Description:
    """What a channel says of itself."""

    path: Path
    manifest: Manifest
    schema: Schema
    message_type: TypeForm[object]
    """What its messages are here; `bytes` where nothing else is known."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> Self:
        """Describe a channel by its manifest; `ValueError` if the schema in it is damaged."""
        schema = Schema.from_json(manifest.schema)
        message_type = build_type(schema) if manifest.codec in _OURS else cast("TypeForm[object]", bytes)
        return cls(path, manifest, schema, message_type)

    @property
    def is_bytes(self) -> bool:
        """Whether messages are bytes here: the channel is raw, or only the user's own codec knows more."""
        return self.manifest.codec not in _OURS

    def recipe(self, *, readonly: bool = False, options: ChannelOptions | None = None) -> Recipe[object]:
        """Return what opens the channel."""
        return self._recipe(self.path, options, create=False, readonly=readonly)

    def recipe_for(self, path: Path, options: ChannelOptions | None = None) -> Recipe[object]:
        """Return what opens a channel of the same messages elsewhere, and creates it if need be."""
        return self._recipe(path, options, create=True, readonly=False)

    def _recipe(self, path: Path, options: ChannelOptions | None, *, create: bool, readonly: bool) -> Recipe[object]:
        message_type = self.message_type
        name = self.manifest.codec
        codec: Codec[object] = _ForeignCodec(name)
        if name in get_args(CodecName):
            codec = codec_for(message_type, cast("CodecName", name))
        recipe = Recipe(path, message_type, codec, options, create, readonly, self.schema)
        recipe.expects_mode = True  # a channel that has its mode already, and a person who names it
        recipe.names_strict_owner = False
        return recipe


def describe_channel(path: Path) -> Description:
    """Return what is known of the channel in a directory, without opening it.

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
    """Return the error for a directory, which may have been that of a channel."""
    reason = f"it has no {MANIFEST}"
    was_one = any((path / part).exists() for part in (CONTROL, SEGMENTS))
    return NotAChannelError.without_manifest(path, reason) if was_one else NotAChannelError(path, reason)


@final
class _ForeignCodec:
    """Stands for a codec of the user's: payloads stay as they are."""

    def __init__(self, name: str) -> None:
        self.name: str = name

    def encode(self, value: object, /) -> bytes:
        return cast("bytes", value)

    def decode(self, payload: bytes, /) -> bytes:
        return payload
