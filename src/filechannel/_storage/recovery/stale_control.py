"""Whether the control page is as recent as the other files of the channel.

The page is shared memory that the kernel writes back whenever it likes, and the disk may come back within one boot: a
journal is aborted and the file system mounted again, an iSCSI or USB device is reconnected, a snapshot is rolled back.
Then boot, device and inode are what they were, and the page on disk is older than segments that were flushed, or newer
than segments that were not. A mark for an orderly end would not help: the old page may have one.

So a process that is alone looks for evidence before it trusts the page or removes anything. If there is any, the
channel is recovered as after a reboot: from the newest checkpoint, which is always flushed, by checksums alone, and
with an offset gap. With T the write tail and R the reserved end, the page is older than the other files if

(a) a segment begins beyond max(T, R), or the checkpoint lies there,
(b) a complete batch validates beyond T and ends beyond R, or
(c) a consumer, a group or a producer was beyond T.

None of these is true after a process was killed at any point, because R is stored before the first byte beyond it, and
everything below happens under the writer lock:

- *Between append and publish.* The records lie in T to R: they are rolled back, as always. A batch may continue in
  further segments; each of them begins at the end of what was written so far, at or below R.
- *`FSYNC`.* The append tail A lies beyond T until a flush ends, and R at or beyond A. A checkpoint covers A at most.
  Consumers see T only.
- *A roll.* The next segment begins at the end of the last batch: at T, or at A, which is R then. A prepared file has no
  offset in its name before that, and no record validates in a recycled one: the checksum covers the offset.
- *A rollback.* R goes back to T after zeros were written in between.
- *A gap is pending* after a failed flush: the page says at which offset the log resumes (`given up`), and T stays where
  it is until it does. A segment that begins there is no evidence unless it holds a batch; and records beyond T were
  discarded, even if R has gone back to T. If recovery was interrupted after it made a segment at the gap, and before it
  moved T, then (a) is true, and recovery is repeated.
- *Reclaiming, `drop_oldest`, a purge.* They move the oldest offset only, never beyond T.
- *A producer* stores where its record is to be before it writes it: at T, or at A, which is at most R, or below the
  offset of a gap that is pending. The first open erases it before R goes back to T (`forget_unpublished`).

For the opposite case, segments older than the page, the page says through which mount it was written. If that is
another one or unknown, nothing in the page is trusted, and the channel is recovered as after a reboot: the log is
walked from the checkpoint, groups start over at their positions, and consumers whose files are zeros at the oldest
message. (The page may be right about the end of the log and wrong about the oldest offset: which messages every
consumer had got was decided in memory, and a consumer's file may be older.) Only the offset gap is not needed under
`FSYNC` if the walk ends exactly at T: nothing was visible before it was flushed.

What cannot be detected, within one mount: everything was rolled back to one moment; and an append that lies between T
and R of an old page, which looks like one whose process was killed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .._errors import CorruptRecordError
from .._offset import Offset
from .compressed import CompressedSegment
from .control import Checkpoint, Control, Tail
from .cursor_file import CONSUMERS, offsets_in_consumers
from .files import Files
from .producers import PRODUCERS, offsets_in_producers
from .segments import Segments
from .walk import find_end

_LARGEST = 1 << 63
"""No log is that long: a position beyond it is damage, and leaves no room for a gap."""


def used_offsets(files: Files, path: Path, control: Control, segments: Segments) -> list[Offset]:
    """Return offsets up to which the log was used, as far as anything in the directory says so."""
    tail = [control.write_offset, control.given_up] if control.has_tail else []
    positions = offsets_in_consumers(files, path / CONSUMERS) + offsets_in_producers(files, path / PRODUCERS)
    return [Offset(0), *segments.begins, *(each for each in tail + positions if each < _LARGEST)]


def is_stale(files: Files, path: Path, control: Control, segments: Segments) -> bool:
    """Return whether the page, which has a tail, is older than the other files."""
    tail = control.write_offset
    limit = max(tail, control.reserved_end, control.given_up if control.owes_jump else 0)
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
    checkpoint = control.checkpoint()
    beyond = {begin for begin in segments.begins if begin > limit}
    if checkpoint is not None and checkpoint.offset > limit:
        beyond.add(checkpoint.offset)
    if control.owes_jump and beyond == {control.given_up}:
        return _end(segments, Tail(control.given_up, 0, control.given_up)) > control.given_up
    return bool(beyond)


def _has_batch_beyond(control: Control, segments: Segments, tail: Tail, limit: int) -> bool:
    return not control.owes_jump and _end(segments, tail) > limit


def is_confirmed(control: Control, segments: Segments) -> bool:
    """Return whether valid records lead from the checkpoint exactly to the tail, and nothing lies beyond it."""
    checkpoint, tail = control.checkpoint(), control.tail()
    if checkpoint is None or control.owes_jump or max([checkpoint.offset, *segments.begins]) > tail.offset:
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
            return tail.offset  # as always but after a crash, and known without a map
        segment = None if begin is None else segments.get(begin)
        if isinstance(segment, CompressedSegment):  # it was flushed and published before it was compressed
            return max(tail.offset, segment.end)
        return find_end(segments, Checkpoint(tail.offset, tail.sequence, tail.offset)).offset
    return tail.offset
