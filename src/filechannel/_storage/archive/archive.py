"""An archive: the manifest of a channel and its finished segments, in compressed form, wherever they were copied to.

`channel.json`, `segments/<begin>.seg.z` and `segments/<begin>.idx` are what they are in a channel, and a name is given
only to what is whole. So there is no list that could disagree with what is there, and an archive is read as a channel
is that nobody writes to: it ends where its last segment does.
"""

from __future__ import annotations

from pathlib import Path

from .._errors import CorruptRecordError
from .._offset import Offset
from .compressed import CompressedSegment, compressed_begin_of, compressed_path
from .control import Control, Tail
from .entrance import list_segments
from .files import Files
from .manifest import MANIFEST, Manifest
from .segment import ANY_SIZE, SegmentLimits, segment_name
from .segments import SEGMENTS
from .store import Store

_MOST_OPEN = 4  # segments


def archived(files: Files, path: Path) -> list[Offset]:
    """Return where each segment of an archive begins, in order."""
    found = (compressed_begin_of(name) for name in files.list(path / SEGMENTS))
    return sorted(begin for begin in found if begin is not None)


def archived_path(path: Path, begin: int) -> Path:
    """Return where an archive has the segment that begins at an offset."""
    return compressed_path(path / SEGMENTS / segment_name(begin))


def open_archived(files: Files, path: Path, begin: Offset, limits: SegmentLimits = ANY_SIZE) -> CompressedSegment:
    """Open a segment of an archive; `CorruptRecordError` if it is damaged, `FileNotFoundError` if it is not there."""
    place = archived_path(path, begin)
    try:
        return CompressedSegment.open(files, place, limits)
    except ValueError as error:
        raise CorruptRecordError(place.name, begin, str(error)) from error


def open_archive(files: Files, path: Path) -> Store:
    """Open an archive to read it; the caller closes it. `FileNotFoundError` if there is none."""
    manifest = Manifest.read(files, path)
    begins = archived(files, path)
    last = open_archived(files, path, begins[-1], SegmentLimits.of(manifest.options)) if begins else None
    descriptor = files.open(path / MANIFEST, writable=False)
    control = Control(files, descriptor, private=True)
    tail = Tail(Offset(0), 0, Offset(0)) if last is None else Tail(last.end, last.next_sequence, last.begin)
    control.start_over(tail, begins[0] if begins else 0, sealed=True)
    segments = list_segments(files, path, control, manifest, _MOST_OPEN, writable=False)
    return Store(files, path, descriptor, control, manifest, segments, readonly=True)
