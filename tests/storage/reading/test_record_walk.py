"""The record walk: runs of valid records, and the damage between them."""

from __future__ import annotations

import pytest

from filechannel._format import read_record
from filechannel._format.layout import RECORD_HEADER_SIZE
from filechannel._offset import Offset
from filechannel._storage.reading.record_walk import Damage, Run, walk_records
from filechannel._storage.segments.segment_index import IndexEntry
from tests.format.pages import packed_records

BEGIN = Offset(1 << 33)
PAYLOADS = [bytes([number]) * (number % 40) for number in range(100)]


class Bytes:
    """The records of a segment, in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)

    @property
    def space_end(self) -> Offset:
        """Nothing comes after the bytes."""
        return Offset(BEGIN + len(self.content))

    def span(self, start: int, _: int) -> tuple[bytearray, int]:
        """Return all of them."""
        return self.content, start - BEGIN

    def read(self, offset: int, stop: int) -> tuple[int, bytes]:
        """Read one record."""
        return read_record(self.content, offset - BEGIN, stop - BEGIN, offset)


def boundaries() -> list[Offset]:
    """Return where each record begins, and where the last one ends."""
    found = [BEGIN]
    for payload in PAYLOADS:
        found.append(Offset(found[-1] + RECORD_HEADER_SIZE + len(payload)))
    return found


def covered(parts: list[Run | Damage]) -> list[tuple[Offset, Offset]]:
    """Return the ranges of some parts."""
    return [(part.start, part.stop) for part in parts]


def test_whole_records_are_one_run() -> None:
    """Whole records are one run with their number, and its bytes are those that were written."""
    segment = Bytes(packed_records(PAYLOADS, BEGIN))
    [run] = walk_records(segment, BEGIN, segment.space_end, [])
    assert isinstance(run, Run)
    assert (run.start, run.stop, run.messages) == (BEGIN, segment.space_end, len(PAYLOADS))
    assert [payload for _, _, payload in run.records()] == PAYLOADS
    assert [offset for offset, _, _ in run.records()] == boundaries()[:-1]


@pytest.mark.parametrize("number", [0, 1, 50, 98, 99])
def test_damage_is_a_part_of_its_own(number: int) -> None:
    """Damage is a separate part, and the parts around it have all other records."""
    segment, at = Bytes(packed_records(PAYLOADS, BEGIN)), boundaries()
    segment.content[at[number] + 5 - BEGIN] ^= 1
    parts = list(walk_records(segment, BEGIN, segment.space_end, []))
    expected = [(BEGIN, at[number]), (at[number], at[number + 1]), (at[number + 1], at[-1])]
    assert covered(parts) == [(start, stop) for start, stop in expected if start < stop]
    assert [part for part in parts if isinstance(part, Damage)] == [
        Damage(at[number], at[number + 1], "checksum mismatch")
    ]
    assert sum(part.messages for part in parts if isinstance(part, Run)) == len(PAYLOADS) - 1


def test_a_run_ends_at_an_index_entry_unless_no_record_begins_there() -> None:
    """A run ends at the offset of an index entry, so that an entry inside a run is known to be wrong."""
    segment, at = Bytes(packed_records(PAYLOADS, BEGIN)), boundaries()
    entries = [IndexEntry(at[10], 10, 0), IndexEntry(Offset(at[30] + 9), 30, 0), IndexEntry(at[60], 60, 0)]
    parts = list(walk_records(segment, BEGIN, segment.space_end, entries))
    assert covered(parts) == [
        (BEGIN, at[10]),
        (at[10], at[30]),
        (at[30], at[31]),
        (at[31], at[60]),
        (at[60], at[-1]),
    ]


def test_what_no_record_follows_is_the_end_where_records_are_not_certain() -> None:
    """Damage that no record follows is the end of the log where records are not certain, and damage otherwise."""
    segment, at = Bytes(packed_records(PAYLOADS, BEGIN) + bytes(100)), boundaries()
    stop = segment.space_end
    assert covered(list(walk_records(segment, BEGIN, stop, [], certain=at[-1]))) == [(BEGIN, at[-1])]
    assert covered(list(walk_records(segment, BEGIN, stop, []))) == [(BEGIN, at[-1]), (at[-1], stop)]
    segment.content[at[40] - BEGIN + 4] ^= 1
    parts = list(walk_records(segment, BEGIN, stop, [], certain=BEGIN))
    assert covered(parts) == [(BEGIN, at[40]), (at[40], at[41]), (at[41], at[-1])]
