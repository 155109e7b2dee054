"""Writing a log position into a slot of a cursor file."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from filechannel._format.layout import CURSOR, CURSOR_SLOTS
from tests.format.pages import cursor_slots, new_cursor


def test_generations_alternate_between_the_slots(impl: SimpleNamespace) -> None:
    """Each generation is stored in the slot that does not count, and the other slot keeps its checksum."""
    cursor, older = new_cursor(), None
    for generation in range(1, 6):
        newest = generation, generation * 100, generation * 10
        impl.write_cursor_slot(cursor, *newest, 7)
        assert cursor_slots(cursor) == ([older, newest] if generation % 2 else [newest, older])
        assert CURSOR.unpack_from(cursor, CURSOR_SLOTS[generation % 2])[3] == 7
        older = newest


def test_nothing_else_is_written(impl: SimpleNamespace) -> None:
    """Storing a position changes only its slot, and no other field of the cursor."""
    cursor = bytearray(b"\xa5" * 4096)
    impl.write_cursor_slot(cursor, 1, 2, 3, 4)
    start, stop = CURSOR_SLOTS[1], CURSOR_SLOTS[1] + CURSOR.size
    assert set(cursor[:start] + cursor[stop:]) == {0xA5}


def test_a_slot_takes_the_largest_numbers_and_no_larger_ones(impl: SimpleNamespace) -> None:
    """A slot stores the largest numbers, and larger ones are refused before anything is written."""
    most = (1 << 64) - 1
    cursor = new_cursor()
    impl.write_cursor_slot(cursor, most, most, most, most)
    assert CURSOR.unpack_from(cursor, CURSOR_SLOTS[1])[:4] == (most,) * 4
    before = bytes(cursor)
    for place in range(4):
        numbers = [0, 0, 0, 0]
        numbers[place] = most + 1
        with pytest.raises(OverflowError):
            impl.write_cursor_slot(cursor, *numbers)
    assert bytes(cursor) == before


def test_a_cursor_must_have_both_slots(impl: SimpleNamespace) -> None:
    """A cursor that is cut off before the end of its slots, or cannot be written, is refused."""
    with pytest.raises(ValueError, match="cursor is too short"):
        impl.write_cursor_slot(bytearray(127), 1, 0, 0, 0)
    with pytest.raises(BufferError):
        impl.write_cursor_slot(bytes(128), 1, 0, 0, 0)
