"""A segment that is there in both forms, because whoever compressed it was interrupted: which one counts."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from .._offset import Offset
from .compressed import CompressedSegment, compressed_path
from .files import Files
from .segment import Segment, SegmentLimits
from .segments import Segments


def keep_one_form(files: Files, segments: Segments, begin: Offset) -> None:
    """Remove the plain form if the compressed one is whole, or else the other way round; neither if both are damaged.

    The compressed one first: under the name of the plain one, after a power cut, there may be a file in use elsewhere.
    """
    plain = segments.path(begin)
    compressed = compressed_path(plain)
    if not (files.exists(plain) and files.exists(compressed)):
        return
    with suppress(FileNotFoundError):  # it was reclaimed meanwhile
        if not _is_damaged(files, compressed, segments.limits):
            segments.replace_plain(begin)
        elif _is_whole(files, plain, segments.limits):
            segments.forget(begin)
            files.unlink(compressed)


def _is_damaged(files: Files, compressed: Path, limits: SegmentLimits) -> bool:
    """Only what the file or the disk says: whoever made it may be about to remove the plain form, which is whole, too.

    Any other `OSError`, such as too many open files, is raised.
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
