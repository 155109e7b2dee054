"""Making a manifest anew from what is left of a channel.

Its id is in the control file too, the size of segments is that of their files, and so is their mode. What the messages
are, codec and schema, is nowhere else: somebody has to say it.
"""

from __future__ import annotations

import json
import stat
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast, final

from .._errors import FileChannelError
from .._format.layout import FORMAT_VERSION
from .._options import ChannelOptions, StoredOptions
from .._storage.files import REPLACING, Files
from .._storage.machine import machine_id
from .._storage.manifest import MANIFEST, MANIFEST_LIMIT, Manifest
from .._storage.segment import begin_of
from .survey import Survey


@final
@dataclass(frozen=True, slots=True)
class Salvaged:
    """A manifest, and what of it is a guess."""

    manifest: Manifest
    guesses: tuple[str, ...]


class UnknownMessagesError(Exception):
    """Nothing says how the messages are encoded."""


def salvage_manifest(survey: Survey, like: Manifest | None) -> Salvaged:
    """Make a manifest; *like* says what the messages are, and how the channel is kept, where nothing else does.

    Raises `UnknownMessagesError` if that is needed and not there.
    """
    replacing = _read_other(survey.files, survey.path / (MANIFEST + REPLACING))
    if replacing is not None:
        return Salvaged(replacing, ("whoever replaced the manifest had finished the new one",))
    left = what_is_left(survey.files, survey.path / MANIFEST)
    guesses: list[str] = []
    codec, schema = left.get("codec"), left.get("schema")
    if not isinstance(codec, str):
        if like is None:
            raise UnknownMessagesError
        codec, schema = like.codec, like.schema
        guesses.append("codec and schema are those of the other channel")
    known_id = _id_in_control(survey)
    if known_id is None:
        guesses.append("it has a new id: transactions that read from it begin anew")
    manifest = Manifest(
        FORMAT_VERSION,
        known_id or uuid.uuid4().hex,
        machine_id(),
        datetime.now(UTC).isoformat(timespec="milliseconds"),
        codec,
        schema,
        _options(survey, left.get("options"), like, guesses),
    )
    return Salvaged(manifest, tuple(guesses))


def _read_other(files: Files, path: Path) -> Manifest | None:
    """Read a manifest that has another name; None if it is none."""
    try:
        content = files.read(path, MANIFEST_LIMIT + 1)
    except OSError:
        return None
    try:
        return Manifest.parse(content, path.parent)
    except FileChannelError:
        return None


def what_is_left(files: Files, path: Path) -> dict[str, object]:
    """Return the fields of a manifest that can still be read; none if it is not JSON."""
    try:
        content: object = json.loads(files.read(path, MANIFEST_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", content) if isinstance(content, dict) else {}


def _id_in_control(survey: Survey) -> str | None:
    known = None if survey.control is None else survey.control.channel_id
    return None if known is None else known.hex()


def _options(survey: Survey, left: object, like: Manifest | None, guesses: list[str]) -> StoredOptions:
    try:
        return StoredOptions.from_json(left)
    except ValueError:
        pass
    if like is None:
        guesses.append("durability, capacity, retention and compression have their defaults")
    else:
        guesses.append("durability, capacity, retention and compression are those of the other channel")
    options = ChannelOptions().resolve() if like is None else like.options
    paths = [survey.segments / name for name in survey.list(survey.segments) if begin_of(name) is not None]
    segments = [path for path in paths if survey.files.is_file(path)]
    if not segments:
        return options
    sizes = Counter(map(survey.files.size_of, segments))
    modes = Counter(stat.S_IMODE(survey.files.mode_of(path)) for path in segments)
    try:
        return replace(options, segment_size=sizes.most_common(1)[0][0], mode=modes.most_common(1)[0][0])
    except ValueError:
        return options
