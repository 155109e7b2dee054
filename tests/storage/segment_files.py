"""Segment files without a log: what `Appender` does, with nothing to finish."""

from __future__ import annotations

from pathlib import Path

from filechannel._storage.segments.segment import HALF_MADE, Header, Segment, create_segment_file
from filechannel._storage.system.os_calls import Files


def create_segment(files: Files, path: Path, header: Header, size: int, allocate: int) -> Segment:
    """Create the file of a segment under a temporary name, and give it its name."""
    temporary = path.with_name(HALF_MADE + path.name)
    file = create_segment_file(files, temporary, path, header, size, allocate, 0o600)
    try:
        files.replace(temporary, path)
    except BaseException:
        files.unlink(temporary)
        raise
    return Segment(path, header, file)
