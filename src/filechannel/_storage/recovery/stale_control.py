"""Detects a stale control page: one that is older than the other files of the channel.

The page is shared memory that the kernel writes back at any time, and the disk may come back within one boot: a
journal is aborted and the file system mounted again, an iSCSI or USB device is reconnected, a snapshot is rolled back.
Then boot, device and inode are what they were, and the page on disk is older than segments that were flushed, or newer
than segments that were not. A flag for a clean close would not help: the old page may have one.

So a process that opens the channel alone searches for evidence before it trusts the page or removes anything. If there
is any, the channel is recovered as after a reboot: from the newest checkpoint, which is always flushed, by checksums
alone, and with an offset gap. With T the write tail and R the reserved end, the page is older than the other files if

(a) a segment begins beyond max(T, R), or the checkpoint lies there,
(b) a complete batch validates beyond T and ends beyond R, or
(c) a consumer, a group or a producer was beyond T.

None of these is true after a process was killed at any point, because a larger R is stored before the first byte is
written beyond the old one, and everything below happens under the writer lock:

- *Between append and publish.* The records lie in T to R: they are rolled back, as always. A batch may continue in
  further segments; each of them begins at the end of what was written so far, at or below R.
- *`FSYNC`.* The append tail A lies beyond T until a flush ends, and R at or beyond A. A checkpoint covers A at most.
  Consumers see T only.
- *A roll.* The next segment begins at the end of the last batch: at T, or at A, which is R then. A prepared file has no
  offset in its name before that, and no record validates in a recycled one: the checksum covers the offset.
- *A rollback.* R is reset to T after zeros were written in between.
- *A gap is pending* after a failed flush: the page stores at which offset the log resumes (`poisoned_before`), and T
  does not change until it has resumed. A segment that begins there is not evidence unless it holds a batch; and records
  beyond T were rolled back, even if R was reset to T. If recovery was interrupted after it created a segment at the
  gap, and before it moved T, then (a) is true, and recovery is repeated.
- *Reclaiming, `drop_oldest`, a purge.* They move the oldest offset only, never beyond T.
- *A producer* stores the offset of its record before it writes the record: at T, or at A, which is at most R, or below
  the offset of a gap that is pending. The first open erases it before R is reset to T (`erase_unpublished`).

For the opposite case, segments older than the page, the page stores through which mount it was written. If that is
another one or unknown, nothing in the page is trusted, and the channel is recovered as after a reboot: the log is
walked from the checkpoint, groups start over at their positions, and consumers whose files are zeros start at the
oldest message. (The page may be right about the end of the log and wrong about the oldest offset: which messages every
consumer had received was decided in memory, and a consumer's file may be older.) Only the offset gap is not needed
under `FSYNC` if the walk ends exactly at T: nothing was visible before it was flushed.

Two cases cannot be detected within one mount: all files were reset to the same moment, as by a snapshot; and an append
between T and R of an old page, which looks like one whose process was killed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..._errors import CorruptRecordError
from ..._format.layout import LARGEST_OFFSET, OFFSET_GAP
from ..._offset import Offset
from ..consumers.cursor_file_format import CONSUMERS, offsets_in_consumers
from ..control.checkpoints import Checkpoint
from ..control.control_page import Control, Tail
from ..producers.producer_positions import PRODUCERS, offsets_in_producers
from ..segments.catalog import Segments
from ..segments.compressed_segment import CompressedSegment
from ..system.os_calls import Files
from .find_end import find_end

_LARGEST = LARGEST_OFFSET - 2 * OFFSET_GAP
"""No log is that long: an offset beyond it is damage, and leaves no offsets for a gap."""


def used_offsets(files: Files, path: Path, control: Control, segments: Segments) -> list[Offset]:
    """Return offsets up to which the log was used, according to all files in the directory."""
    tail = [control.write_offset, control.poisoned_before] if control.has_tail else []
    positions = offsets_in_consumers(files, path / CONSUMERS) + offsets_in_producers(files, path / PRODUCERS)
    return [Offset(0), *(each for each in segments.begins + tail + positions if each < _LARGEST)]


def is_stale(files: Files, path: Path, control: Control, segments: Segments) -> bool:
    """Return whether the page, which has a tail, is older than the other files."""
    tail = control.write_offset
    limit = max(tail, control.reserved_end, control.poisoned_before if control.is_gap_pending else 0)
    return (
        is_older_than_log(control, segments)
        or any(tail < offset < _LARGEST for offset in offsets_in_consumers(files, path / CONSUMERS))
        or any(limit < offset < _LARGEST for offset in offsets_in_producers(files, path / PRODUCERS))
    )


def is_older_than_log(control: Control, segments: Segments) -> bool:
    """Return whether the page, which has a tail, is older than the segments or the checkpoint."""
    tail = control.tail()
    limit = max(tail.offset, control.reserved_end)
    return _has_segment_beyond(control, segments, limit) or _has_batch_beyond(control, segments, tail, limit)


def _has_segment_beyond(control: Control, segments: Segments, limit: int) -> bool:
    checkpoint = control.checkpoints.newest()
    beyond = {begin for begin in segments.begins if begin > limit}
    if checkpoint is not None and checkpoint.offset > limit:
        beyond.add(checkpoint.offset)
    if control.is_gap_pending and beyond == {control.poisoned_before}:
        return _end(segments, Tail(control.poisoned_before, 0, control.poisoned_before)) > control.poisoned_before
    return bool(beyond)


def _has_batch_beyond(control: Control, segments: Segments, tail: Tail, limit: int) -> bool:
    return not control.is_gap_pending and _end(segments, tail) > limit


def is_confirmed(control: Control, segments: Segments) -> bool:
    """Return whether valid records lead from the checkpoint exactly to the tail, and nothing lies beyond it."""
    checkpoint, tail = control.checkpoints.newest(), control.tail()
    if checkpoint is None or control.is_gap_pending or max([checkpoint.offset, *segments.begins]) > tail.offset:
        return False
    with suppress(CorruptRecordError):
        cut = find_end(segments, checkpoint)
        return (cut.offset, cut.sequence) == (tail.offset, tail.sequence)
    return False


def _end(segments: Segments, tail: Tail) -> Offset:
    """Return where valid batches end that follow a tail; the tail if that cannot be known."""
    with suppress(CorruptRecordError):
        begin = segments.covering(tail.offset)
        if begin is not None and segments.following(begin) is None and segments.is_blank(begin, tail.offset):
            return tail.offset  # the usual case, unless there was a crash; detected without mapping the file
        segment = None if begin is None else segments.get(begin)
        if isinstance(segment, CompressedSegment):  # it was flushed and published before it was compressed
            return max(tail.offset, segment.end)
        return find_end(segments, Checkpoint(tail.offset, tail.sequence, tail.offset)).offset
    return tail.offset
