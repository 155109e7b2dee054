"""Archives: the manifest of a channel and its finished segments, compressed, in any directory or file system.

`channel.json`, `segments/<begin>.seg.z` and `segments/<begin>.idx` are the same as in a channel, and only a complete
file gets its name. So there is no list that could disagree with the files, and an archive is read like a channel
without writers: it ends with its last segment.
"""

from __future__ import annotations

from pathlib import Path

from ..._errors import CorruptRecordError
from ..._offset import Offset
from ..control.channel_directory import ChannelDirectory
from ..control.control_page import Control, Tail
from ..current_manifest import CurrentManifest
from ..manifest import MANIFEST, Manifest
from ..recovery.read_only import list_segments
from ..segments.compressed_segment import CompressedSegment, compressed_begin_of, compressed_path
from ..segments.segment import ANY_SIZE, SegmentLimits, segment_name
from ..segments.segment_names import SEGMENTS
from ..store import ChannelFiles, ReadOnlyStore
from ..system.os_calls import Files

_MOST_OPEN = 4  # segments


def archived(files: Files, path: Path) -> list[Offset]:
    """Return the offset of each segment of an archive, in order."""
    found = (compressed_begin_of(name) for name in files.list(path / SEGMENTS))
    return sorted(begin for begin in found if begin is not None)


def archived_path(path: Path, begin: int) -> Path:
    """Return the path of the archived segment that begins at an offset."""
    return compressed_path(path / SEGMENTS / segment_name(begin))


def open_archived(files: Files, path: Path, begin: Offset, limits: SegmentLimits = ANY_SIZE) -> CompressedSegment:
    """Open a segment of an archive; `CorruptRecordError` if it is damaged, `FileNotFoundError` if it is missing."""
    file = archived_path(path, begin)
    try:
        return CompressedSegment.open(files, file, limits)
    except ValueError as error:
        raise CorruptRecordError(file.name, begin, str(error)) from error


def open_archive(files: Files, path: Path) -> ReadOnlyStore:
    """Open an archive for reading; the caller closes it. `FileNotFoundError` if there is none."""
    manifest = Manifest.read(files, path)
    begins = archived(files, path)
    last = open_archived(files, path, begins[-1], SegmentLimits.of(manifest.options)) if begins else None
    descriptor = files.open(path / MANIFEST, writable=False)
    control = Control(files, descriptor, private=True)
    tail = Tail(Offset(0), 0, Offset(0)) if last is None else Tail(last.end, last.next_sequence, last.begin)
    control.start_over(tail, begins[0] if begins else 0, sealed=True)
    segments = list_segments(files, path, control, manifest, _MOST_OPEN, writable=False)
    directory = ChannelDirectory(files, path, descriptor)
    current = CurrentManifest(files, directory, control, manifest)
    return ReadOnlyStore(ChannelFiles(files, directory, control, current, segments))
