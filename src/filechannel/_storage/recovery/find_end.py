"""Finds the end of the log: walks the records from a checkpoint on, as long as they are valid."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..._errors import CorruptRecordError
from ..._format import read_record
from ..._format.layout import CONTROL_RECORD, SEAL
from ..._offset import Offset
from ..control.checkpoints import Checkpoint
from ..segments.catalog import Segments
from ..segments.compressed_segment import CompressedSegment, StoredSegment
from ..segments.segment import Header, Segment
from .missing_messages import scan_stored, stored_end


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log ends, and whether it was sealed there."""

    offset: Offset
    sequence: int
    sealed: bool
    reached: Offset
    """Where the contiguous valid records end: beyond *offset* if the last batch is incomplete."""


def find_end(segments: Segments, checkpoint: Checkpoint, *, finished: bool = False) -> Cut:
    """Walk the valid records from a checkpoint on, and return where the last complete batch ends.

    *finished*: stop at a segment that does not store its own end, for a read-only process that cannot store it.
    `CorruptRecordError` if the segment at the checkpoint has no valid header; a later one without ends the walk.
    """
    cut = Cut(checkpoint.offset, checkpoint.sequence, checkpoint.sealed, checkpoint.offset)
    begin = segments.covering(checkpoint.offset)
    at, sequence = checkpoint.offset, checkpoint.sequence
    if begin is None and segments.begins:
        first = segments.get(segments.begins[0]).header
        if first.previous_end == at:  # no earlier segment is left, and this header confirms that none is needed
            begin, at, sequence = first.begin, first.begin, first.first_sequence
    while begin is not None:
        segment, following = segments.get(begin), segments.following(begin)
        end = extent(segments, segment)
        if at > end:  # records before the checkpoint are missing
            header = None if following is None else _header(segments, following)
            is_left_out = header is not None and header.previous_end == end and header.begin >= at
            if header is None or not is_left_out or header.first_sequence < sequence:
                break
            # A repair has left out the records in between, and the header of the next segment confirms that.
            begin, at, sequence = header.begin, header.begin, header.first_sequence
            continue
        whole = True
        if isinstance(segment, Segment):  # a compressed segment lies before the checkpoint
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
    """Return the checkpoint, or the end of the last compressed segment if the checkpoint is older.

    Up to there the log is known to be complete on disk.
    """
    for begin in reversed(segments.begins):
        if begin < checkpoint.oldest:
            break  # it is being reclaimed, and perhaps partly deleted
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
    """Return the offset beyond which a segment has no records; the header of the next one is the best source."""
    following = segments.following(segment.begin)
    header = None if following is None else _header(segments, following)
    if header is not None and segment.begin < header.previous_end <= segment.space_end:
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
