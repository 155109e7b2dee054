"""Recovery after a power cut: finds the valid end of the log and moves what lies after it to the quarantine.

Only checkpoints and checksums are trusted. What a checkpoint covers was flushed before the checkpoint was written. From
there recovery walks the records as long as they are valid, through all segments that follow without a gap, and cuts the
log after the last complete batch. Valid records after the cut are moved to `quarantine/`, with the reason; nothing else
is ever removed. If there is damage between the cut and those records, that is logged as an error: a repair before the
open would have kept them. The log resumes far after every offset that was ever used, so that none is used twice.

A damaged or missing control file, or a directory that was copied here, is handled in the same way. So is a lost tail
while the machine keeps running, except that the tail in the control page is then trusted like a checkpoint.

A compressed segment is trusted like a checkpoint: it was complete and on disk before it got its name.

Messages that a checkpoint covers and no segment holds any more are lost. That is logged once, and receivers get an
error where they are missing. The log never ends before the checkpoint, so the sequence of a message that was reported
as durable is never given to another one.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..._errors import CorruptRecordError
from ..._offset import LogPosition, Offset
from ..._options import Durability
from ..consumers.cursor_file_format import CONSUMERS
from ..consumers.cursors import Cursors
from ..control.checkpoints import Checkpoint
from ..control.control_file import CONTROL
from ..control.control_page import Control, Tail
from ..manifest import Manifest
from ..producers.producer_positions import PRODUCERS, erase_unpublished
from ..segments.catalog import Segments
from ..segments.compressed_segment import CompressedSegment, StoredSegment, compressed_path
from ..segments.plain_or_compressed import keep_one_encoding
from ..segments.segment import Segment
from ..segments.segment_index import index_path
from ..store_events import StoreEvents
from ..system.kernel_locks import KernelLocks
from ..system.machine import boot_id
from ..system.os_calls import Files
from .find_end import Cut, extent, find_end, not_before_compressed
from .missing_messages import find_loss, reaches
from .quarantine import Quarantine
from .stale_control import is_confirmed, is_stale, used_offsets
from .unreachable_records import find_unreachable

_logger = logging.getLogger("filechannel")


def recover_if_needed(
    files: Files, path: Path, control: Control, segments: Segments, manifest: Manifest, locks: KernelLocks
) -> Offset | None:
    """Recover a channel that no other process has open, if it needs recovery.

    Returns the offset beyond which the log must resume, or None if no offset gap is needed. Until the control page is
    known to be current, nothing else is changed or removed.
    """
    tail, end = _trusted_tail(control, manifest), None
    if tail is not None and is_stale(files, path, control, segments):
        _logger.warning("%s: %s is older than the other files; recovering as after a power cut", path, CONTROL)
        control.identity.disown(boot_id())
        tail = None
    elif tail is not None and not control.identity.is_same_mount:
        if manifest.options.durability == Durability.FSYNC and is_confirmed(control, segments):
            end = tail.offset  # nothing beyond it was ever visible, so no gap is needed
        control.identity.disown(boot_id())
        tail = None
    if tail is not None:
        if control.reserved_end > tail.offset or control.is_gap_pending:
            erase_unpublished(files, path / PRODUCERS, tail.offset)
        control.forget_the_dead()
        if _is_intact(control, segments, tail):
            return None
    resume = Recovery(files, path, control, segments, manifest.options.mode, locks).run(tail)
    segments.scan()
    return None if control.write_offset == end else resume


def _trusted_tail(control: Control, manifest: Manifest) -> Tail | None:
    """Return the end of the log if the control page was written for this channel and in this boot; else None."""
    is_ours = control.identity.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail
    return control.tail() if is_ours else None


def _is_intact(control: Control, segments: Segments, tail: Tail) -> bool:
    """Return whether the control page agrees with the segments."""
    begins, oldest, checkpoint = segments.begins, control.oldest_offset, control.checkpoints.newest()
    if checkpoint is None or oldest > tail.offset:
        return False
    if oldest not in (checkpoint.oldest, tail.offset) and oldest not in begins:
        return False
    active = segments.covering(tail.offset)
    if active is None or active < oldest:  # the latter is being reclaimed
        return oldest == tail.offset
    try:
        return reaches(segments.get(active), tail.offset)
    except CorruptRecordError:
        return False


class Recovery:
    """Recovers one channel that no other process has open."""

    def __init__(
        self, files: Files, path: Path, control: Control, segments: Segments, mode: int, locks: KernelLocks
    ) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._quarantine = Quarantine(files, path, mode, control)
        self._cursors = Cursors(
            files,
            path / CONSUMERS,
            mode,
            locks,
            StoreEvents(),
            create=control.reserve.using,
            count_change=control.count_registration,
            check_directory=partial(segments.names.check_directory, control),
        )

    def run(self, trusted: Tail | None = None) -> Offset | None:
        """Recover, and return the offset beyond which the log must resume; None if the channel is sealed.

        *trusted* is the tail, if there was no power cut since it was written. Segments after the end are left for the
        offset gap to remove: their names record which offsets were used. Recovery can be interrupted by a crash and
        repeated, with the same result.
        """
        used = max(used_offsets(self._files, self._path, self._control, self._segments))
        self._drop_unreadable_segments()
        checkpoint = not_before_compressed(self._segments, self._checkpoint(trusted))
        used = max(used, checkpoint.offset)
        self._segments.remove_before(checkpoint.oldest)  # the process that reclaimed them was interrupted
        checkpoint = self._without_loss(checkpoint)
        cut = find_end(self._segments, checkpoint)
        unreachable = find_unreachable(self._files, self._segments, cut)
        cut = self._quarantine_rest(cut)
        oldest = min(checkpoint.oldest, cut.offset)
        tail = Tail(cut.offset, cut.sequence, self._segments.covering(cut.offset) or cut.offset)
        if not self._control.identity.is_of_boot(boot_id()):
            self._control.poisoned_before = 0  # after a reboot, what can be read is what is on disk
        self._control.start_over(tail, oldest, sealed=cut.sealed)
        self._move_cursors(tail)
        self._files.flush_directory(self._path)
        self._quarantine.report(cut.offset, damaged=unreachable is not None)
        if cut.sealed or trusted is not None:
            # Needed for a trusted tail, too: once the next segment is created, a process that opens the channel alone
            # does not trust the tail any more, and the last checkpoint may be older than the lost messages.
            self._files.flush_directory(self._segments.directory)
            self._control.checkpoints.write(Checkpoint(cut.offset, cut.sequence, oldest, cut.sealed))
        if not cut.sealed:
            return Offset(max(cut.offset, used))
        self._remove_after(cut.offset)
        return None

    def _checkpoint(self, trusted: Tail | None) -> Checkpoint:
        """Return the offset up to which the log was complete: the trusted tail, or else the last checkpoint."""
        checkpoint = self._control.checkpoints.newest() or self._first_checkpoint()
        if trusted is None:
            return checkpoint
        oldest = self._control.oldest_offset
        if oldest not in self._segments.begins or oldest > trusted.offset:
            oldest = min(checkpoint.oldest, trusted.offset)
        return Checkpoint(trusted.offset, trusted.sequence, oldest, self._control.sealed)

    def _first_checkpoint(self) -> Checkpoint:
        begins = self._segments.begins
        if not begins:
            return Checkpoint(Offset(0), 0, Offset(0))
        return Checkpoint(begins[0], self._segments.get(begins[0]).header.first_sequence, begins[0])

    def _without_loss(self, checkpoint: Checkpoint) -> Checkpoint:
        """Log which messages are lost. If only unused offsets are missing, the log ends before them."""
        loss = find_loss(self._segments, checkpoint)
        if loss is None:
            return checkpoint
        if not loss.messages:
            return replace(checkpoint, offset=loss.start)
        _logger.warning("%s: messages missing: %s; their segment was removed, truncated or damaged", self._path, loss)
        return checkpoint

    def _drop_unreadable_segments(self) -> None:
        checkpoint = self._control.checkpoints.newest()
        oldest = 0 if checkpoint is None else checkpoint.oldest
        for begin in self._segments.begins:
            if begin < oldest:
                continue  # the process that reclaimed it was interrupted, and may have invalidated the file already
            keep_one_encoding(self._files, self._segments, begin)
            path = self._segments.path(begin)
            readable = [self._is_readable(CompressedSegment, compressed_path(path)), self._is_readable(Segment, path)]
            if not any(readable):
                self._files.unlink(index_path(path))
        self._segments.scan()

    def _is_readable(self, form: type[StoredSegment], path: Path) -> bool:
        """Return whether a file is a segment. Other files are quarantined, unless another version could read them."""
        try:
            form.open(self._files, path, limits=self._segments.limits)
        except FileNotFoundError:
            return False
        except ValueError as error:
            self._quarantine.move_and_log(path, str(error))
            return False
        return True

    # After the cut

    def _quarantine_rest(self, cut: Cut) -> Cut:
        """Quarantine the records after the cut, store the end of every segment, and return the end of the log."""
        log_end = cut.offset
        for begin in self._segments.begins:
            segment = self._segments.get(begin)
            end = extent(self._segments, segment)
            if end > cut.offset:
                first = max(cut.offset, begin)
                last = min(end, segment.data_end) if isinstance(segment, Segment) else end
                self._quarantine.keep_records(segment, first, max(first, last))
            if begin < cut.offset:
                if isinstance(segment, Segment):
                    self._finish(segment, min(end, cut.offset))
                segment.flush()  # the file may be a fresh copy: what can be read need not be on disk
            elif begin == cut.offset:
                log_end = segment.header.previous_end  # this segment is empty: the log ends with the previous one
        return replace(cut, offset=log_end)

    @staticmethod
    def _finish(segment: Segment, end: Offset) -> None:
        if segment.end != end or not segment.has_valid_end:
            segment.finish(end)

    def _remove_after(self, cut: Offset) -> None:
        """Remove the segments after the cut. Called only after a checkpoint records that the log ends there."""
        for begin in self._segments.begins:
            if begin >= cut:
                self._segments.remove(begin)
        self._files.flush_directory(self._segments.directory)

    # Consumers

    def _move_cursors(self, tail: Tail) -> None:
        """Move consumers that are beyond the cut back to it: they have read every remaining message."""
        self._cursors.move_unowned(LogPosition(tail.offset, tail.sequence), back=True)
        self._cursors.reset_rings()
        self._cursors.flush()
