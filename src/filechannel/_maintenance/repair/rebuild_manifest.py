"""Rebuilding a lost manifest from the other files of a channel.

The id is also in the control file, and segment size and mode are those of the segment files. Codec and schema are
stored nowhere else: the caller has to provide them.
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

from ..._errors import FileChannelError
from ..._format.layout import FORMAT_VERSION
from ..._options import ChannelOptions, StoredOptions
from ..._storage.manifest import MANIFEST, MANIFEST_LIMIT, Manifest
from ..._storage.segments.segment import begin_of
from ..._storage.system.machine import machine_id
from ..._storage.system.os_calls import REPLACING, Files
from ..verify.directory_scan import DirectoryScan


@final
@dataclass(frozen=True, slots=True)
class RebuiltManifest:
    """A manifest, and which parts of it are guesses."""

    manifest: Manifest
    guesses: tuple[str, ...]


class UnknownMessagesError(Exception):
    """Codec and schema are not known."""


def rebuild_manifest(scan: DirectoryScan, like: Manifest | None) -> RebuiltManifest:
    """Build a manifest; *like* provides codec, schema and options where nothing else does.

    Raises `UnknownMessagesError` if it is needed and missing.
    """
    replacing = _read_other(scan.files, scan.path / (MANIFEST + REPLACING))
    if replacing is not None:
        return RebuiltManifest(replacing, ("a process that was replacing the manifest had completed the new one",))
    left = readable_fields(scan.files, scan.path / MANIFEST)
    guesses: list[str] = []
    codec, schema = left.get("codec"), left.get("schema")
    if not isinstance(codec, str):
        if like is None:
            raise UnknownMessagesError
        codec, schema = like.codec, like.schema
        guesses.append("codec and schema are taken from the other channel")
    known_id = _id_in_control(scan)
    if known_id is None:
        guesses.append("it has a new id: transactions that read from it start from the beginning")
    manifest = Manifest(
        FORMAT_VERSION,
        known_id or uuid.uuid4().hex,
        machine_id(),
        datetime.now(UTC).isoformat(timespec="milliseconds"),
        codec,
        schema,
        _options(scan, left.get("options"), like, guesses),
    )
    return RebuiltManifest(manifest, tuple(guesses))


def _read_other(files: Files, path: Path) -> Manifest | None:
    """Read a manifest with another name; None if it is not a valid manifest."""
    try:
        content = files.read(path, MANIFEST_LIMIT + 1)
    except OSError:
        return None
    try:
        return Manifest.parse(content, path.parent)
    except FileChannelError:
        return None


def readable_fields(files: Files, path: Path) -> dict[str, object]:
    """Return the fields of a manifest that can still be read; none if it is not JSON."""
    try:
        content: object = json.loads(files.read(path, MANIFEST_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", content) if isinstance(content, dict) else {}


def _id_in_control(scan: DirectoryScan) -> str | None:
    known = None if scan.control is None else scan.control.identity.channel_id
    return None if known is None else known.hex()


def _options(scan: DirectoryScan, left: object, like: Manifest | None, guesses: list[str]) -> StoredOptions:
    try:
        return StoredOptions.from_json(left)
    except ValueError:
        pass
    if like is None:
        guesses.append("durability, capacity, retention and compression have their defaults")
    else:
        guesses.append("durability, capacity, retention and compression are taken from the other channel")
    options = ChannelOptions().resolve() if like is None else like.options
    paths = [scan.segments / name for name in scan.list(scan.segments) if begin_of(name) is not None]
    segments = [path for path in paths if scan.files.is_file(path)]
    if not segments:
        return options
    sizes = Counter(map(scan.files.size_of, segments))
    modes = Counter(stat.S_IMODE(scan.files.mode_of(path)) for path in segments)
    try:
        return replace(options, segment_size=sizes.most_common(1)[0][0], mode=modes.most_common(1)[0][0])
    except ValueError:
        return options
