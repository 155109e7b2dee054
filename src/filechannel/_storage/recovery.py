"""After a power cut: find the valid end of the log, put aside what lies behind it.

Only checkpoints and checksums are believed. What a checkpoint covers was flushed before it was written. From there the
records are walked as long as they validate, through as many segments as follow without a gap; the log is cut after the
last whole batch. Valid records behind the cut go to `quarantine/`, with the reason, and nothing else is ever removed.
The log goes on far behind every offset that was ever used, so that none is used twice.

A damaged or missing control file, or a directory that was copied here, is handled the same way; so is a lost end of
the log while the machine runs, except that the tail is believed then as a checkpoint is.

A compressed segment is believed as a checkpoint is: it was on disk, whole, before it got its name.

What a checkpoint covers and no segment holds any more is gone: that is said once, and readers are told where. The log
never ends before the checkpoint, so no number of a message that was promised is given to another one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from .._errors import CorruptRecordError
from .._format import read_record
from .._format.layout import CONTROL_RECORD, SEAL
from .._offset import Offset
from .compressed import CompressedSegment, StoredSegment, compressed_path
from .control import Checkpoint, Control, Tail
from .cursor_file import CONSUMERS
from .cursors import Cursors
from .files import Files
from .forms import keep_one_form
from .index import Mark, index_path
from .loss import find_loss, reaches, scan_stored, stored_end
from .machine import boot_id
from .manifest import Manifest
from .quarantine import Quarantine
from .segment import Segment
from .segments import Segments

_logger = logging.getLogger("filechannel")


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where the log ends, and whether it was sealed there."""

    offset: Offset
    sequence: int
    sealed: bool


def make_whole(files: Files, path: Path, control: Control, segments: Segments, manifest: Manifest) -> Offset | None:
    """Recover a channel that nobody has open, if it needs that; return the offset beyond which it must go on then."""
    tail = _believed_tail(control, manifest)
    if tail is not None and _is_intact(control, segments, tail):
        return None
    resume = Recovery(files, path, control, segments, manifest.options.mode).run(tail)
    segments.scan()
    return resume


def _believed_tail(control: Control, manifest: Manifest) -> Tail | None:
    """Return the end of the log if the words of the control page were written here and in this boot."""
    if not control.belongs_to(bytes.fromhex(manifest.id), boot_id()) or not control.has_tail:
        return None
    control.forget_the_dead()
    return control.tail()


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

    def __init__(self, files: Files, path: Path, control: Control, segments: Segments, mode: int) -> None:
        self._files = files
        self._path = path
        self._control = control
        self._segments = segments
        self._quarantine = Quarantine(files, path, mode)
        self._quarantine.make = control.spending_reserve
        self._cursors = Cursors(files, path / CONSUMERS, mode)

    def run(self, believed: Tail | None = None) -> Offset | None:
        """Recover, and return the offset beyond which the log must go on; None if it takes no more messages.

        The tail is believed if no power was lost since it was written. Segments behind its end are left to the jump
        there: their names say which offsets were used. Dying in here and starting again comes to the same result.
        """
        used = max((0, *self._segments.begins, *self._cursors.offsets()))
        self._drop_unreadable_segments()
        checkpoint = self._not_before_compressed(self._checkpoint(believed))
        used = max(used, checkpoint.offset)
        self._segments.remove_before(checkpoint.oldest)  # whoever did so was interrupted
        checkpoint = self._without_loss(checkpoint)
        cut = self._put_aside(self._walk(checkpoint))
        oldest = min(checkpoint.oldest, cut.offset)
        tail = Tail(cut.offset, cut.sequence, self._segments.covering(cut.offset) or cut.offset)
        if believed is None:
            self._control.given_up = 0  # that was of another boot: what can be read now is what the disk has
        self._control.start_over(tail, oldest, sealed=cut.sealed)
        self._move_cursors(tail)
        self._files.flush_directory(self._path)
        self._quarantine.report(cut.offset)
        if not cut.sealed:
            return Offset(max(cut.offset, used))
        self._control.write_checkpoint(Checkpoint(cut.offset, cut.sequence, oldest, cut.sealed))
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

    def _not_before_compressed(self, checkpoint: Checkpoint) -> Checkpoint:
        """The log was whole up to the end of what is compressed, whatever an older checkpoint says."""
        for begin in reversed(self._segments.begins):
            if begin < checkpoint.oldest:
                break  # being given up, and perhaps half gone
            segment = self._segments.get(begin)
            if isinstance(segment, CompressedSegment):
                if segment.end > checkpoint.offset:
                    return Checkpoint(segment.end, segment.next_sequence, checkpoint.oldest)
                break
        return checkpoint

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
            form.open(self._files, path)
        except FileNotFoundError:
            return False
        except ValueError as error:
            self._quarantine.keep_file(path, str(error))
            return False
        return True

    # The walk

    def _walk(self, checkpoint: Checkpoint) -> _Cut:
        """Follow valid records from the checkpoint on."""
        cut = _Cut(checkpoint.offset, checkpoint.sequence, checkpoint.sealed)
        begin = self._segments.covering(checkpoint.offset)
        at, sequence = checkpoint.offset, checkpoint.sequence
        if begin is None and self._segments.begins:
            first = self._segments.get(self._segments.begins[0]).header
            if first.previous_end == at:  # nothing is left before it, and it says so
                begin, at, sequence = first.begin, first.begin, first.first_sequence
        while begin is not None:
            segment, following = self._segments.get(begin), self._segments.following(begin)
            end = self._extent(segment, following)
            if at > end:
                break  # what the checkpoint covers is not there
            whole = True
            if isinstance(segment, Segment):  # what is compressed lies before the checkpoint
                start, stop = segment.position(at), segment.position(end)
                batch_end, messages, reached, last = scan_stored(segment, at, end)
                if batch_end > start:
                    sealed = self._is_seal(segment, last, batch_end)
                    cut = _Cut(Offset(at + batch_end - start), sequence + messages, sealed)
                whole = stop == reached
            if following is None or not whole or self._segments.get(following).header.previous_end != end:
                break
            begin, at, sequence = following, following, self._segments.get(following).header.first_sequence
        return cut

    def _extent(self, segment: StoredSegment, following: Offset | None) -> Offset:
        """Where a segment's records end at most: the next one says it best."""
        if following is not None:
            previous_end = self._segments.get(following).header.previous_end
            if segment.begin < previous_end <= segment.room_end:
                return previous_end
        return stored_end(segment)

    @staticmethod
    def _is_seal(segment: Segment, position: int, stop: int) -> bool:
        offset = segment.begin + position - segment.position(segment.begin)
        word, payload = read_record(segment.map, position, stop, offset)
        return bool(word & CONTROL_RECORD) and payload == SEAL

    # What lies behind the cut

    def _put_aside(self, cut: _Cut) -> _Cut:
        """Let every segment end where its records end, and return where the log does."""
        log_end = cut.offset
        for begin in self._segments.begins:
            segment = self._segments.get(begin)
            end = self._extent(segment, self._segments.following(begin))
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
        return _Cut(log_end, cut.sequence, cut.sealed)

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
