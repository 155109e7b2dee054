"""What the segments of a damaged channel have to become: the same records, without what is no record.

A record is valid at its own offset only, so nothing can be moved together. But offsets may be left out between two
segments, and the header of each says where the one before it ended. So a segment is cut where it is damaged: one ends
before the damage and the next begins behind it, and no reader, in any version, finds anything unusual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from .._offset import Offset
from .segment_check import Checked
from .stretches import Stretch
from .survey import End


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A segment as it has to be."""

    begin: Offset
    end: Offset | None
    """None if it is written to."""
    stop: Offset
    """Where its records end now."""
    first_sequence: int
    previous_end: Offset


@final
@dataclass(frozen=True, slots=True)
class Change:
    """What has to become of one segment; nothing is to be done if it is that already."""

    checked: Checked
    pieces: tuple[Piece, ...]
    """None at all if there is nothing in it."""

    @property
    def is_needed(self) -> bool:
        """Whether it is not that already."""
        if len(self.pieces) != 1:
            return True
        head, piece = self.checked.head, self.pieces[0]
        header = head.header
        return header is None or (header.begin, head.end, header.first_sequence, header.previous_end) != (
            piece.begin,
            piece.end,
            piece.first_sequence,
            piece.previous_end,
        )

    @property
    def is_header_only(self) -> bool:
        """Whether its records can stay where they are."""
        head, pieces = self.checked.head, self.pieces
        if len(pieces) != 1 or pieces[0].begin != head.begin:
            return False
        return not head.is_compressed or (head.header is not None and head.end == pieces[0].end)


def plan_pieces(checked: list[Checked], end: End | None) -> list[Change]:
    """Return what has to become of every segment, in order."""
    changes: list[Change] = []
    reached: Offset | None = None
    sequence = 0
    for each, is_last in zip(checked, [False] * (len(checked) - 1) + [True], strict=False):
        pieces: list[Piece] = []
        if not each.stretches and _is_empty_and_right(each):
            each.stretches.append(Stretch(each.head.begin, each.head.begin))
        firsts = _first_sequences(each, reached, sequence)
        for stretch, first in zip(each.stretches, firsts, strict=True):
            previous_end = _previous_end(each, stretch, reached, end)
            stays_open = is_last and stretch is each.stretches[-1] and len(each.stretches) == 1 and _may_grow(each, end)
            piece_end = None if stays_open else stretch.stop
            pieces.append(Piece(stretch.start, piece_end, stretch.stop, first, previous_end))
            reached, sequence = stretch.stop, first + stretch.messages
        changes.append(Change(each, tuple(pieces)))
    return changes


def _is_empty_and_right(checked: Checked) -> bool:
    """Tell whether it holds no records because none were written yet."""
    return checked.head.header is not None and checked.bounds.certain <= checked.head.begin


def _may_grow(checked: Checked, end: End | None) -> bool:
    """Tell whether the last segment goes on: it has no end yet, and is whole as far as the log goes."""
    head = checked.head
    if head.is_compressed or head.end is not None or head.claims_end:
        return False
    return end is None or not end.is_believed or checked.end == end.offset


def _previous_end(checked: Checked, stretch: Stretch, reached: Offset | None, end: End | None) -> Offset:
    if reached is not None:
        return reached
    oldest = checked.head.begin if end is None else min(end.oldest, stretch.start)
    header = checked.head.header
    return oldest if header is None or stretch.start != header.begin else min(header.previous_end, oldest)


def _first_sequences(checked: Checked, reached: Offset | None, sequence: int) -> list[int]:
    """Return the number of the first message of each stretch.

    As the header says, or the index, or as many before what is known behind it; else one message is missing at least.
    """
    stretches, header = checked.stretches, checked.head.header
    known = [stretch.first_sequence() for stretch in stretches]
    if stretches and stretches[0].start == checked.head.begin and header is not None:
        known[0] = header.first_sequence
    elif stretches and stretches[0].start == reached:
        known[0] = sequence
    if stretches and known[-1] is None and checked.bounds.sequence is not None and checked.end == checked.bounds.stop:
        known[-1] = checked.bounds.sequence - stretches[-1].messages
    found: list[int] = []
    for stretch, first in zip(stretches, known, strict=True):
        found.append(sequence + (stretch.start != reached and reached is not None) if first is None else first)
        reached, sequence = stretch.stop, found[-1] + stretch.messages
    return found
