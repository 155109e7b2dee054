"""The first line of an export: it describes the messages, so that `import` can create a channel from it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from ..._channel.lifecycle.channel_description import Description
from ..._options import ChannelOptions
from ..._storage.manifest import Manifest
from ..ui.failures import Failure
from .parse_messages import without_mark

KEY: Final = "$filechannel"
"""The only key in that line, and the metadata key of the same content in a Parquet file."""
_VERSION: Final = 1


class _Header(msgspec.Struct):
    version: int
    codec: str
    schema: object


def header_of(description: Description) -> bytes:
    """Return the header of a channel's export."""
    manifest = description.manifest
    return msgspec.json.encode({KEY: _Header(_VERSION, manifest.codec, manifest.schema)})


def is_header(line: bytes) -> bool:
    """Return whether a line is a header."""
    return without_mark(line).lstrip().startswith(b'{"%b"' % KEY.encode())


def described_by(line: bytes, path: Path) -> Description:
    """Return what a header describes, for a channel at a path.

    Raise `Failure` if it is damaged or of another version.
    """
    try:
        found = msgspec.json.decode(without_mark(line), type=dict[str, _Header])[KEY]
        manifest = Manifest.new("", found.codec, found.schema, ChannelOptions().resolve())
        if found.version != _VERSION:
            raise Failure(f"the header is of version {found.version}, and only {_VERSION} is known")
        return Description.of(path, manifest)
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise Failure(f"the header is damaged: {error}") from error
