"""Walking the log from a checkpoint on: where its valid records end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .._errors import CorruptRecordError
from .._format import read_record
from .._format.layout import CONTROL_RECORD, SEAL
from .._offset import Offset
from .compressed import CompressedSegment, StoredSegment
from .control import Checkpoint
from .loss import scan_stored, stored_end
from .segment import Header, Segment
from .segments import Segments


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log ends, and whether it was sealed there."""

    offset: Offset
    sequence: int
    sealed: bool
    reached: Offset
    """Where the valid records end that follow without a gap: behind *offset* if the last batch is not whole."""


def find_end(segments: Segments, checkpoint: Checkpoint, *, finished: bool = False) -> Cut:
    """Follow valid records from a checkpoint on, and return where the last whole batch ends.

    *finished*: not beyond a segment that does not say itself where it ends, for a reader who cannot store that.
    `CorruptRecordError` if the segment at the checkpoint has no valid header; another one without ends the walk.
    """
    cut = Cut(checkpoint.offset, checkpoint.sequence, checkpoint.sealed, checkpoint.offset)
    begin = segments.covering(checkpoint.offset)
    at, sequence = checkpoint.offset, checkpoint.sequence
    if begin is None and segments.begins:
        first = segments.get(segments.begins[0]).header
        if first.previous_end == at:  # nothing is left before it, and it says so
            begin, at, sequence = first.begin, first.begin, first.first_sequence
    while begin is not None:
        segment, following = segments.get(begin), segments.following(begin)
        end = extent(segments, segment)
        if at > end:  # what the checkpoint covers is not there
            header = None if following is None else _header(segments, following)
            is_left_out = header is not None and header.previous_end == end and header.begin >= at
            if header is None or not is_left_out or header.first_sequence < sequence:
                break
            begin, at, sequence = header.begin, header.begin, header.first_sequence  # by a repair, which says so
            continue
        whole = True
        if isinstance(segment, Segment):  # what is compressed lies before the checkpoint
            start, stop = segment.position(at), segment.position(end)
            batch_end, messages, reached, last = scan_stored(segment, at, end)
            if batch_end > start:
                sealed = is_seal(segment, last, batch_end)
                cut = Cut(Offset(at + batch_end - start), sequence + messages, sealed, cut.reached)
            cut = replace(cut, reached=Offset(at + reached - start))
            whole = stop == reached and (segment.has_valid_end or not finished)
        else:
            cut = replace(cut, reached=end)
        header = None if following is None or not whole else _header(segments, following)
        if header is None or header.previous_end != end:
            break
        begin, at, sequence = header.begin, header.begin, header.first_sequence
    return cut


def not_before_compressed(segments: Segments, checkpoint: Checkpoint) -> Checkpoint:
    """Return where the log was whole: up to the end of what is compressed, whatever an older checkpoint says."""
    for begin in reversed(segments.begins):
        if begin < checkpoint.oldest:
            break  # being reclaimed, and perhaps partly deleted
        try:
            segment = segments.get(begin)
        except CorruptRecordError:
            continue
        if isinstance(segment, CompressedSegment):
            if segment.end > checkpoint.offset:
                return Checkpoint(segment.end, segment.next_sequence, checkpoint.oldest)
            break
    return checkpoint


def extent(segments: Segments, segment: StoredSegment) -> Offset:
    """Return where the records of a segment end at most: the next one says it best."""
    following = segments.following(segment.begin)
    header = None if following is None else _header(segments, following)
    if header is not None and segment.begin < header.previous_end <= segment.room_end:
        return header.previous_end
    return stored_end(segment)


def _header(segments: Segments, begin: Offset) -> Header | None:
    """Return the header of a segment; None if it is damaged."""
    try:
        return segments.get(begin).header
    except CorruptRecordError:
        return None


def is_seal(segment: Segment, position: int, stop: int) -> bool:
    """Return whether the record between two positions is a seal."""
    offset = segment.begin + position - segment.position(segment.begin)
    word, payload = read_record(segment.map, position, stop, offset)
    return bool(word & CONTROL_RECORD) and payload == SEAL
