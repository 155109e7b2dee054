"""After a power cut: find the valid end of the log, put aside what lies behind it.

Only checkpoints and checksums are believed. What a checkpoint covers was flushed before it was written. From there the
records are walked as long as they validate, through as many segments as follow without a gap; the log is cut after the
last whole batch. Valid records behind the cut go to `quarantine/`, with the reason, and nothing else is ever removed.
If damage lies between them and the cut, that is logged as an error: a repair before the open would have kept them.
The log goes on far behind every offset that was ever used, so that none is used twice.

A damaged or missing control file, or a directory that was copied here, is handled the same way; so is a lost end of
the log while the machine runs, except that the tail is believed then as a checkpoint is.

A compressed segment is believed as a checkpoint is: it was on disk, whole, before it got its name.

What a checkpoint covers and no segment holds any more is gone: that is said once, and readers are told where. The log
never ends before the checkpoint, so no number of a message that was promised is given to another one.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from .._errors import CorruptRecordError
from .._offset import Offset
from .._options import Durability
from .compressed import CompressedSegment, StoredSegment, compressed_path
from .control import CONTROL, Checkpoint, Control, Tail
from .cursor_file import CONSUMERS
from .cursors import Cursors
from .files import Files
from .forms import keep_one_form
from .index import Mark, index_path
from .kernel_locks import KernelLocks
from .loss import find_loss, reaches
from .machine import boot_id
from .manifest import Manifest
from .producers import PRODUCERS, forget_unpublished
from .quarantine import Quarantine
from .segment import Segment
from .segments import Segments
from .staleness import is_confirmed, is_stale, used_offsets
from .unreachable import find_unreachable
from .walk import Cut, extent, find_end, not_before_compressed

_logger = logging.getLogger("filechannel")


def make_whole(
    files: Files, path: Path, control: Control, segments: Segments, manifest: Manifest, locks: KernelLocks
) -> Offset | None:
    """Recover a channel that no other process has open, if it needs that.

    Returns the offset beyond which the log must resume then. Before it is known that the control page is current,
    nothing else is changed or removed.
    """
    tail, end = _believed_tail(control, manifest), None
    if tail is not None and is_stale(files, path, control, segments):
        _logger.warning("%s: %s is older than the other files; recovering as after a power cut", path, CONTROL)
        control.disown(boot_id())
        tail = None
    elif tail is not None and not control.is_same_mount:
        if manifest.options.durability == Durability.FSYNC and is_confirmed(control, segments):
            end = tail.offset  # nothing beyond it was ever visible, so no gap is needed
        control.disown(boot_id())
        tail = None
    if tail is not None:
        if control.reserved_end > tail.offset or control.owes_jump:
            forget_unpublished(files, path / PRODUCERS, tail.offset)
        control.forget_the_dead()
        if _is_intact(control, segments, tail):
            return None
    resume = Recovery(files, path, control, segments, manifest.options.mode, locks).run(tail)
    segments.scan()
    return None if control.write_offset == end else resume


def _believed_tail(control: Control, manifest: Manifest) -> Tail | None:
    """Return the end of the log if the words of the control page were written here and in this boot."""
    is_ours = control.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail
    return control.tail() if is_ours else None


def _is_intact(control: Control, segments: Segments, tail: Tail) -> bool:
    """Tell whether the words of the control page are those of what is there."""
    begins, oldest, checkpoint = segments.begins, control.oldest_offset, control.checkpoint()
    if checkpoint is None or oldest > tail.offset:
        return False
    if oldest not in (checkpoint.oldest, tail.offset) and oldest not in begins:
        return False
    active = segments.covering(tail.offset)
    if active is None or active < oldest:  # the latter is being given up
        return oldest == tail.offset
    try:
        return reaches(segments.get(active), tail.offset)
    except CorruptRecordError:
        return False


class Recovery:
    """Brings one channel, which nobody has open, back to a state that is whole."""

    def __init__(
        self, files: Files, path: Path, control: Control, segments: Segments, mode: int, locks: KernelLocks
    ) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._quarantine = Quarantine(files, path, mode)
        self._quarantine.make = control.spending_reserve
        self._cursors = Cursors(files, path / CONSUMERS, mode, locks)

    def run(self, believed: Tail | None = None) -> Offset | None:
        """Recover, and return the offset beyond which the log must go on; None if it takes no more messages.

        The tail is believed if no power was lost since it was written. Segments behind its end are left to the jump
        there: their names say which offsets were used. Dying in here and starting again comes to the same result.
        """
        used = max(used_offsets(self._files, self._path, self._control, self._segments))
        self._drop_unreadable_segments()
        checkpoint = not_before_compressed(self._segments, self._checkpoint(believed))
        used = max(used, checkpoint.offset)
        self._segments.remove_before(checkpoint.oldest)  # whoever did so was interrupted
        checkpoint = self._without_loss(checkpoint)
        cut = find_end(self._segments, checkpoint)
        unreachable = find_unreachable(self._files, self._segments, cut)
        cut = self._put_aside(cut)
        oldest = min(checkpoint.oldest, cut.offset)
        tail = Tail(cut.offset, cut.sequence, self._segments.covering(cut.offset) or cut.offset)
        if not self._control.is_of_boot(boot_id()):
            self._control.given_up = 0  # what can be read now is what the disk has
        self._control.start_over(tail, oldest, sealed=cut.sealed)
        self._move_cursors(tail)
        self._files.flush_directory(self._path)
        self._quarantine.report(cut.offset, damaged=unreachable is not None)
        if cut.sealed or believed is not None:
            # Also of a tail that is trusted: when the next segment is made, a process that is alone does not trust the
            # tail any more, and the last checkpoint may be older than messages that are lost.
            self._files.flush_directory(self._segments.directory)
            self._control.write_checkpoint(Checkpoint(cut.offset, cut.sequence, oldest, cut.sealed))
        if not cut.sealed:
            return Offset(max(cut.offset, used))
        self._remove_behind(cut.offset)
        return None

    def _checkpoint(self, believed: Tail | None) -> Checkpoint:
        """Return where the log was whole."""
        checkpoint = self._control.checkpoint() or self._first_checkpoint()
        if believed is None:
            return checkpoint
        oldest = self._control.oldest_offset
        if oldest not in self._segments.begins or oldest > believed.offset:
            oldest = min(checkpoint.oldest, believed.offset)
        return Checkpoint(believed.offset, believed.sequence, oldest, self._control.sealed)

    def _first_checkpoint(self) -> Checkpoint:
        begins = self._segments.begins
        if not begins:
            return Checkpoint(Offset(0), 0, Offset(0))
        return Checkpoint(begins[0], self._segments.get(begins[0]).header.first_sequence, begins[0])

    def _without_loss(self, checkpoint: Checkpoint) -> Checkpoint:
        """Say what is gone; if only offsets that were left out are, the log ends before them."""
        loss = find_loss(self._segments, checkpoint)
        if loss is None:
            return checkpoint
        if not loss.messages:
            return replace(checkpoint, offset=loss.start)
        _logger.warning("%s: messages missing: %s; their segment was removed, cut off or damaged", self._path, loss)
        return checkpoint

    def _drop_unreadable_segments(self) -> None:
        checkpoint = self._control.checkpoint()
        oldest = 0 if checkpoint is None else checkpoint.oldest
        for begin in self._segments.begins:
            if begin < oldest:
                continue  # whoever gave it up was interrupted, and may have taken the file out of use
            keep_one_form(self._files, self._segments, begin)
            path = self._segments.path(begin)
            readable = [self._is_readable(CompressedSegment, compressed_path(path)), self._is_readable(Segment, path)]
            if not any(readable):
                self._files.unlink(index_path(path))
        self._segments.scan()

    def _is_readable(self, form: type[StoredSegment], path: Path) -> bool:
        """Tell whether there is a segment; a file that is none is put aside, unless another version could read it."""
        try:
            form.open(self._files, path, limits=self._segments.limits)
        except FileNotFoundError:
            return False
        except ValueError as error:
            self._quarantine.keep_file(path, str(error))
            return False
        return True

    # What lies behind the cut

    def _put_aside(self, cut: Cut) -> Cut:
        """Let every segment end where its records end, and return where the log does."""
        log_end = cut.offset
        for begin in self._segments.begins:
            segment = self._segments.get(begin)
            end = extent(self._segments, segment)
            if end > cut.offset:
                behind = max(cut.offset, begin)
                last = min(end, segment.data_end) if isinstance(segment, Segment) else end
                self._quarantine.keep_records(segment, behind, max(behind, last))
            if begin < cut.offset:
                if isinstance(segment, Segment):
                    self._finish(segment, min(end, cut.offset))
                segment.flush()  # it may be a fresh copy: what we can read need not be on disk
            elif begin == cut.offset:
                log_end = segment.header.previous_end  # no record follows: this begin is just another name for that end
        return replace(cut, offset=log_end)

    @staticmethod
    def _finish(segment: Segment, end: Offset) -> None:
        if segment.end != end or not segment.has_valid_end:
            segment.finish(end)

    def _remove_behind(self, cut: Offset) -> None:
        """Not before the checkpoint agrees that the log ends there."""
        for begin in self._segments.begins:
            if begin >= cut:
                self._segments.remove(begin)
        self._files.flush_directory(self._segments.directory)

    # Everything else that speaks of offsets

    def _move_cursors(self, tail: Tail) -> None:
        """A consumer beyond the cut has seen all that is left."""
        self._cursors.move_unowned(Mark(tail.offset, tail.sequence, 0), back=True)
        self._cursors.forget_rings()
        self._cursors.flush()
