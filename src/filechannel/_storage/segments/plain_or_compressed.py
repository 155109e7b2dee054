"""Segments that exist in both encodings, because compressing them was interrupted: which file to keep."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from ..._offset import Offset
from ..system.os_calls import Files
from .catalog import Segments
from .compressed_segment import CompressedSegment, compressed_path
from .segment import Segment, SegmentLimits


def keep_one_encoding(files: Files, segments: Segments, begin: Offset) -> None:
    """Delete the plain file if the compressed one is valid, else the compressed one; neither if both are damaged.

    The compressed file is checked first: after a power cut, the name of the plain one may belong to a file that is in
    use elsewhere.
    """
    plain = segments.path(begin)
    compressed = compressed_path(plain)
    if not (files.exists(plain) and files.exists(compressed)):
        return
    with suppress(FileNotFoundError):  # the segment has just been reclaimed
        if not _is_damaged(files, compressed, segments.limits):
            segments.replace_plain(begin)
        elif _is_whole(files, plain, segments.limits):
            segments.forget(begin)
            files.unlink(compressed)


def _is_damaged(files: Files, compressed: Path, limits: SegmentLimits) -> bool:
    """Return whether the content is damaged or the disk cannot read it; raise any other `OSError`.

    Other errors, such as too many open files, prove nothing about the file: the process that compressed it may be about
    to delete the plain file, which is valid, too.
    """
    try:
        CompressedSegment.open(files, compressed, limits).check()
    except ValueError:
        return True
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return True
    return False


def _is_whole(files: Files, plain: Path, limits: SegmentLimits) -> bool:
    try:
        return Segment.open(files, plain, writable=False, limits=limits).has_valid_end
    except ValueError:
        return False
