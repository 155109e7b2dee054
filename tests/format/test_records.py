"""Records in a buffer."""

from __future__ import annotations

import mmap
import random
from array import array
from types import SimpleNamespace

import pytest

from filechannel._format.layout import BATCH_CONTINUES, CONTROL_RECORD, LENGTH_MASK
from tests.format.pages import (
    ZERO_HEADER_OFFSET,
    crc_of,
    packed_record,
    packed_records,
    size_of,
)

LENGTHS_THAT_LOOK_LIKE_MARKERS = [
    b"\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x3f",
    b"\x00\x00\x00\x80",
    b"\x00\x00\x00\x40\x00\x00\x00\x00",
    b"fchan\x1aSG",
    packed_record(b"inner", 8),
    packed_record(b"", 0) * 3,
]


def batch(payloads: list[bytes], offset: int = 0, control: tuple[int, ...] = ()) -> bytes:
    """Return payloads as the records of one batch; those at the indices given are control records."""
    content = b""
    for index, payload in enumerate(payloads):
        flags = BATCH_CONTINUES if index + 1 < len(payloads) else 0
        flags |= CONTROL_RECORD if index in control else 0
        content += packed_record(payload, offset + len(content), flags)
    return content


# Writing


def test_every_length_is_written_and_read(impl: SimpleNamespace) -> None:
    """Payloads of 0 to 1100 bytes are written where the format says, change nothing else, and are read unchanged."""
    data, guard = random.Random(1).randbytes(1100), b"\xee" * 8
    for length in range(len(data) + 1):
        payload = data[:length]
        buffer = bytearray(guard + bytes(8 + length) + guard)
        assert impl.write_record(buffer, 8, 1000 + length, 0, payload) == 16 + length
        assert buffer == guard + packed_record(payload, 1000 + length) + guard
        assert impl.read_record(buffer, 8, 16 + length, 1000 + length) == (length, payload)


@pytest.mark.parametrize("payload", LENGTHS_THAT_LOOK_LIKE_MARKERS)
def test_a_payload_that_looks_like_a_header_is_a_payload(impl: SimpleNamespace, payload: bytes) -> None:
    """A payload with the bytes of a header is read unchanged, and the walk continues behind it."""
    buffer = bytearray(200)
    end = impl.write_record(buffer, 0, 0, 0, payload)
    end = impl.write_record(buffer, end, end, 0, b"next")
    assert impl.scan_records(buffer, 0, end, 0) == (end, 2, end, end - 12)
    assert impl.read_record(buffer, 0, end, 0)[1] == payload


@pytest.mark.parametrize("remainder", range(17))
def test_every_remainder_at_the_end(impl: SimpleNamespace, remainder: int) -> None:
    """Bytes behind a record do not matter to it, and a buffer that is one byte too short is an error."""
    for length in (0, 1, 3, 4, 5, 7, 8, 9, 100):
        payload = bytes(range(length))
        buffer = bytearray(b"\xff" * (8 + length + remainder))
        end = impl.write_record(buffer, 0, 77, 0, payload)
        assert end == 8 + length
        assert buffer[end:] == b"\xff" * remainder
        assert impl.scan_records(buffer, 0, len(buffer), 77) == (end, 1, end, 0)
        assert impl.find_record(buffer, end, len(buffer), 77 + end) == -1
        short = bytearray(b"\xff" * (8 + length - 1))
        with pytest.raises(ValueError, match="range is not inside the buffer"):
            impl.write_record(short, 0, 77, 0, payload)
        assert short == b"\xff" * len(short)


@pytest.mark.parametrize("flags", [0, BATCH_CONTINUES, CONTROL_RECORD, BATCH_CONTINUES | CONTROL_RECORD])
def test_flags_share_the_word_with_the_length(impl: SimpleNamespace, flags: int) -> None:
    """Flags share a word with the length, are covered by the checksum, and are read as written."""
    buffer = bytearray(11)
    impl.write_record(buffer, 0, 5, flags, b"abc")
    assert buffer == packed_record(b"abc", 5, flags)
    assert impl.read_record(buffer, 0, 11, 5) == (3 | flags, b"abc")


@pytest.mark.parametrize("flags", [1, LENGTH_MASK, 1 << 29, 1 << 32, BATCH_CONTINUES | 1, (1 << 64) - 1])
def test_flags_that_are_none_are_refused(impl: SimpleNamespace, flags: int) -> None:
    """Invalid flags are refused, because they would change the length."""
    buffer = bytearray(20)
    with pytest.raises(ValueError, match="payload or flags do not fit the word"):
        impl.write_record(buffer, 0, 0, flags, b"abc")
    assert buffer == bytes(20)


def test_a_payload_may_be_any_buffer(impl: SimpleNamespace) -> None:
    """A payload may be any buffer."""
    for payload in (bytearray(b"12345678"), memoryview(b"12345678"), array("I", b"12345678")):
        buffer = bytearray(16)
        impl.write_record(buffer, 0, 0, 0, payload)
        assert buffer == packed_record(b"12345678", 0)


@pytest.mark.parametrize("shift", [-16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 16])
def test_a_payload_may_be_a_part_of_the_same_buffer(impl: SimpleNamespace, shift: int) -> None:
    """A payload may be a part of the buffer that is written to, and is written as it was before the call."""
    buffer = bytearray(range(100))
    payload = bytes(buffer[40 + shift : 60 + shift])
    with memoryview(buffer) as view:
        impl.write_record(buffer, 32, 0, 0, view[40 + shift : 60 + shift])
    assert buffer[32:60] == packed_record(payload, 0)


@pytest.mark.parametrize("position", [93, 100, 101, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1])
def test_a_record_is_not_written_outside(impl: SimpleNamespace, position: int) -> None:
    """A record that does not lie wholly inside, also where the sum would wrap around, is refused."""
    buffer = bytearray(100)
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        impl.write_record(buffer, position, 0, 0, b"")
    assert buffer == bytes(100)


@pytest.mark.parametrize("value", [-1, -8, 1 << 64, -(1 << 65)])
def test_numbers_have_64_unsigned_bits(impl: SimpleNamespace, value: int) -> None:
    """Positions and offsets are unsigned numbers of 64 bits, and negative ones are refused."""
    buffer = bytearray(packed_record(b"abc", 0))
    before = bytes(buffer)
    for arguments in ((value, 0, 0), (0, value, 0), (0, 0, value)):
        with pytest.raises(OverflowError, match="value does not fit the word"):
            impl.write_record(buffer, *arguments, b"")
        for function in (impl.read_record, impl.scan_records, impl.find_record):
            with pytest.raises(OverflowError, match="value does not fit the word"):
                function(buffer, *arguments)
    assert buffer == before


def test_the_largest_offset_is_an_offset(impl: SimpleNamespace) -> None:
    """All 64 bits of an offset are covered by the checksum, up to the largest one."""
    buffer = bytearray(12)
    impl.write_record(buffer, 0, (1 << 64) - 1, 0, b"last")
    assert buffer == packed_record(b"last", (1 << 64) - 1)
    assert impl.read_record(buffer, 0, 12, (1 << 64) - 1) == (4, b"last")


def test_a_read_only_buffer_is_not_written(impl: SimpleNamespace) -> None:
    """Writing to a read-only buffer raises and changes nothing."""
    for buffer in (bytes(20), memoryview(bytes(20)), memoryview(bytearray(20)).toreadonly()):
        with pytest.raises(BufferError):
            impl.write_record(buffer, 0, 0, 0, b"x")
        assert bytes(buffer) == bytes(20)


# Reading


def test_zeros_are_not_a_record(impl: SimpleNamespace) -> None:
    """A range of zeros contains no record, wherever it is read, scanned or searched."""
    zeros = bytes(300)
    for offset in (0, 1, 8, 64, 1 << 20, 1 << 40, (1 << 64) - 1):
        with pytest.raises(ValueError, match="checksum mismatch"):
            impl.read_record(zeros, 0, 300, offset)
        assert impl.scan_records(zeros, 0, 300, offset) == (0, 0, 0, 0)
        assert impl.skip_records(zeros, 0, 300, offset, 300) == (0, 0)
        assert impl.find_record(zeros, 0, 300, offset) == -1


def test_zeros_are_not_a_record_even_where_their_checksum_would_be_zero(impl: SimpleNamespace) -> None:
    """If the checksum of an empty record is zero it is stored as all ones, so that zeros are not a record."""
    zeros, offset = bytes(64), ZERO_HEADER_OFFSET
    assert crc_of(bytes(4) + offset.to_bytes(8, "little")) == 0
    with pytest.raises(ValueError, match="checksum mismatch"):
        impl.read_record(zeros, 0, 64, offset)
    assert impl.scan_records(zeros, 0, 64, offset) == (0, 0, 0, 0)
    assert impl.skip_records(zeros, 0, 64, offset, 64) == (0, 0)
    assert impl.find_record(zeros, 0, 64, offset - 32) == -1
    buffer = bytearray(8)
    impl.write_record(buffer, 0, offset, 0, b"")
    assert buffer == b"\x00\x00\x00\x00\xff\xff\xff\xff"
    assert impl.read_record(buffer, 0, 8, offset) == (0, b"")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 30, 200])
@pytest.mark.parametrize("flags", [0, BATCH_CONTINUES, CONTROL_RECORD])
def test_a_flipped_bit_anywhere_is_detected(impl: SimpleNamespace, length: int, flags: int) -> None:
    """A flipped bit in the word, the checksum or the payload is detected."""
    record = bytearray(packed_record(random.Random(length).randbytes(length), 4096, flags))
    room = bytes(64)  # so that a longer length may lie inside
    for bit in range(8 * len(record)):
        record[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"checksum mismatch|reaches beyond the end"):
            impl.read_record(record + room, 0, len(record) + 64, 4096)
        record[bit // 8] ^= 1 << bit % 8
    assert impl.read_record(record, 0, len(record), 4096)[0] == length | flags


def test_a_record_at_another_offset_does_not_validate(impl: SimpleNamespace) -> None:
    """A record that is read at another offset, as in a recycled file, is not valid."""
    record = packed_record(b"payload", 1 << 30)
    for bit in range(64):
        with pytest.raises(ValueError, match="checksum mismatch"):
            impl.read_record(record, 0, len(record), (1 << 30) ^ (1 << bit))
    for distance in range(-1100, 1100):
        if distance:
            assert impl.scan_records(record, 0, len(record), (1 << 30) + distance)[0] == 0


def test_a_record_must_end_before_the_stop(impl: SimpleNamespace) -> None:
    """A record must end before the stop, not only before the end of the buffer."""
    buffer = packed_record(b"0123456789", 0) + bytes(50)
    for stop in range(18):
        with pytest.raises(ValueError, match="record reaches beyond the end"):
            impl.read_record(buffer, 0, stop, 0)
        assert impl.scan_records(buffer, 0, stop, 0) == (0, 0, 0, 0)
        assert impl.skip_records(buffer, 0, stop, 0, 1) == (0, 0)
        assert impl.find_record(buffer, 0, stop, 0) == -1
    assert impl.read_record(buffer, 0, 18, 0) == (10, b"0123456789")


@pytest.mark.parametrize("name", ["read_record", "scan_records", "skip_records", "find_record"])
@pytest.mark.parametrize(
    ("position", "stop"),
    [(0, 101), (51, 50), (100, 99), (101, 101), (1 << 63, 1 << 63), ((1 << 64) - 1,) * 2, ((1 << 64) - 8, 100)],
)
def test_a_range_must_lie_inside(impl: SimpleNamespace, name: str, position: int, stop: int) -> None:
    """Position, stop and end of the buffer must be in this order."""
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        getattr(impl, name)(bytes(100), position, stop, 0, *([1] if name == "skip_records" else []))


def test_an_empty_range_has_no_record(impl: SimpleNamespace) -> None:
    """An empty range, at the end of a buffer or in an empty one, has no record."""
    for buffer, position in ((b"", 0), (bytes(100), 100), (bytes(100), 50)):
        with pytest.raises(ValueError, match="record reaches beyond the end"):
            impl.read_record(buffer, position, position, 0)
        assert impl.scan_records(buffer, position, position, 0) == (position, 0, position, position)
        assert impl.skip_records(buffer, position, position, 0, 1) == (position, 0)
        assert impl.find_record(buffer, position, position, 0) == -1


def test_what_is_read_is_a_copy(impl: SimpleNamespace) -> None:
    """A payload that was read does not change when its bytes are overwritten."""
    buffer = bytearray(packed_record(b"first", 0))
    _, payload = impl.read_record(buffer, 0, len(buffer), 0)
    buffer[:] = packed_record(b"other", 0)
    assert payload == b"first"
    assert type(payload) is bytes


# Scanning


def test_a_scan_walks_to_the_first_record_that_is_not_valid(impl: SimpleNamespace) -> None:
    """A scan returns the end of the valid records and the number of messages in them."""
    payloads = [bytes(length) for length in range(20)]
    content, offset = packed_records(payloads, 500), 500
    last = len(content) - size_of(payloads[-1])
    assert impl.scan_records(content + bytes(40), 0, len(content) + 40, offset) == (
        len(content),
        20,
        len(content),
        last,
    )
    damaged = bytearray(content)
    third = size_of(*payloads[:3])
    damaged[third + 8] ^= 1
    assert impl.scan_records(damaged, 0, len(damaged), offset) == (third, 3, third, size_of(*payloads[:2]))


def test_a_scan_may_begin_anywhere(impl: SimpleNamespace) -> None:
    """A scan may begin at any position in the buffer with the offset that belongs to it."""
    content = packed_records([b"a", b"bb", b"ccc"], 1 << 33)
    begin = size_of(b"a")
    answer = impl.scan_records(b"??" + content, 2 + begin, 2 + len(content), (1 << 33) + begin)
    assert answer == (2 + len(content), 2, 2 + len(content), 2 + size_of(b"a", b"bb"))


def test_a_batch_is_cut_as_a_whole(impl: SimpleNamespace) -> None:
    """A scan counts a batch only if its last record is valid."""
    whole = packed_records([b"alone"], 0) + batch([b"x" * n for n in range(5)], size_of(b"alone"))
    alone = size_of(b"alone")
    ends = [alone + size_of(*[b"x" * n for n in range(count)]) for count in range(6)]
    for stop in range(alone, len(whole)):
        end = max(e for e in ends if e <= stop)
        assert impl.scan_records(whole, 0, stop, 0) == (alone, 1, end, 0)
    assert impl.scan_records(whole, 0, len(whole), 0) == (len(whole), 6, len(whole), ends[4])


def test_a_damaged_record_takes_its_batch_with_it(impl: SimpleNamespace) -> None:
    """A damaged record invalidates its whole batch, and not what came before."""
    first, second = batch([b"1", b"2"]), batch([b"3", b"4", b"5"], size_of(b"1", b"2"))
    content = bytearray(first + second)
    for position in range(len(first), len(content)):
        content[position] ^= 0x10
        end, messages, _, last = impl.scan_records(content, 0, len(content), 0)
        assert (end, messages, last) == (len(first), 2, size_of(b"1"))
        content[position] ^= 0x10


def test_control_records_are_not_counted(impl: SimpleNamespace) -> None:
    """Control records move the end of a scan and are not counted, alone or in a batch."""
    alone = packed_record(b"\x01seal", 0, CONTROL_RECORD)
    content = alone + batch([b"a", b"position", b"b"], len(alone), control=(1,))
    end, messages, valid, _ = impl.scan_records(content, 0, len(content), 0)
    assert (end, messages, valid) == (len(content), 2, len(content))


def test_messages_of_an_open_batch_are_not_counted(impl: SimpleNamespace) -> None:
    """A scan does not count the messages of an open batch at its end."""
    content = packed_record(b"a", 0) + packed_record(b"b", 9, BATCH_CONTINUES)
    assert impl.scan_records(content, 0, len(content), 0) == (9, 1, 18, 0)


# Skipping


def test_a_skip_counts_the_messages_it_passes(impl: SimpleNamespace) -> None:
    """Control records are skipped but not counted, and an incomplete batch is skipped like other records."""
    content = packed_record(b"header", 0, CONTROL_RECORD) + packed_records([b"a", b"bb"], size_of(b"header"))
    content += packed_record(b"open", len(content), BATCH_CONTINUES)
    assert impl.skip_records(content, 0, len(content), 0, len(content)) == (len(content), 3)


def test_a_skip_stops_behind_the_last_wanted_message(impl: SimpleNamespace) -> None:
    """A control record behind it is not skipped, one in front of it is."""
    records = [(b"a", 0), (b"control", CONTROL_RECORD), (b"bb", 0), (b"control", CONTROL_RECORD), (b"ccc", 0)]
    content = b""
    for payload, flags in records:
        content += packed_record(payload, len(content), flags)
    ends = [0, size_of(b"a"), size_of(b"a", b"control", b"bb"), len(content), len(content)]
    for most, end in enumerate(ends):
        assert impl.skip_records(content, 0, len(content), 0, most) == (end, min(most, 3))


def test_a_skip_ends_before_damage_and_before_a_record_that_is_cut_off(impl: SimpleNamespace) -> None:
    """A skip ends before damage without raising, and the caller reads that record to learn the reason."""
    payloads = [bytes(length) for length in range(20)]
    content, third = bytearray(packed_records(payloads, 500)), size_of(*[bytes(length) for length in range(3)])
    for stop in range(third, third + size_of(payloads[3])):
        assert impl.skip_records(content, 0, stop, 500, 99) == (third, 3)
    for position in range(third, third + size_of(payloads[3])):
        content[position] ^= 0x10
        assert impl.skip_records(content, 0, len(content), 500, 99) == (third, 3)
        assert impl.skip_records(content, third, len(content), 500 + third, 99) == (third, 0)
        content[position] ^= 0x10
    assert impl.skip_records(content, 0, len(content), 501, 99) == (0, 0)


# Finding


def test_the_next_valid_record_is_found(impl: SimpleNamespace) -> None:
    """The search finds the next valid record behind damage of any length."""
    for length in range(40):
        garbage = random.Random(length).randbytes(length)
        content = garbage + packed_record(b"found", 100 + length) + bytes(9)
        assert impl.find_record(content, 0, len(content), 100) == length


def test_a_record_that_is_there_already_is_found_first(impl: SimpleNamespace) -> None:
    """The search finds a record that begins at its start."""
    content = packed_records([b"one", b"two"], 0)
    assert impl.find_record(content, 0, len(content), 0) == 0
    assert impl.find_record(content, 1, len(content), 1) == size_of(b"one")


def test_a_record_inside_a_payload_is_not_found_by_a_walk(impl: SimpleNamespace) -> None:
    """A walk skips a record inside a payload; a search may find one that was sent for exactly that offset."""
    inner = packed_record(b"inner", 8)
    content = bytearray(packed_record(inner, 0))
    assert impl.scan_records(content, 0, len(content), 0)[:2] == (len(content), 1)
    content[0] ^= 1
    assert impl.find_record(content, 0, len(content), 0) == 8


# Buffers


def test_no_view_of_a_map_stays_behind(impl: SimpleNamespace) -> None:
    """After any call, also a failed one, the map can be closed, and a closed map is refused."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    end = impl.write_record(page, 0, 0, 0, b"abc")
    assert impl.read_record(page, 0, end, 0) == (3, b"abc")
    assert impl.scan_records(page, 0, len(page), 0)[0] == end
    assert impl.skip_records(page, 0, len(page), 0, 9) == (end, 1)
    assert impl.find_record(page, 0, len(page), 0) == 0
    with pytest.raises(ValueError, match="range"):
        impl.write_record(page, len(page), 0, 0, b"")
    with pytest.raises(TypeError):
        impl.write_record(page, 0, 0, 0, "text")
    for function in (impl.read_record, impl.scan_records, impl.find_record):
        with pytest.raises(ValueError, match="range"):
            function(page, 0, len(page) + 1, 0)
    with pytest.raises(ValueError, match="range"):
        impl.skip_records(page, 0, len(page) + 1, 0, 1)
    with pytest.raises(ValueError, match="checksum mismatch"):
        impl.read_record(page, 0, len(page), 1)
    page.close()
    for call in (
        lambda: impl.write_record(page, 0, 0, 0, b""),
        lambda: impl.read_record(page, 0, 0, 0),
        lambda: impl.scan_records(page, 0, 0, 0),
        lambda: impl.skip_records(page, 0, 0, 0, 1),
        lambda: impl.find_record(page, 0, 0, 0),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.parametrize("payload", [None, 5, "text", [1], {}])
def test_a_payload_must_have_bytes(impl: SimpleNamespace, payload: object) -> None:
    """A payload that is not a buffer is refused, also a number, which does not mean so many zeros."""
    buffer = bytearray(100)
    with pytest.raises(TypeError, match="bytes-like object is required"):
        impl.write_record(buffer, 0, 0, 0, payload)
    assert buffer == bytes(100)


def test_joined_records_are_those_of_a_log(impl: SimpleNamespace) -> None:
    """Joined records are those of a log that begins with them, and their payloads can be split again."""
    payloads = [b"", b"a", bytes(100), bytes(70000)]
    joined = impl.join_records(payloads)
    assert joined == packed_records(payloads, 0)
    assert impl.split_records(joined) == payloads
    assert (impl.join_records([]), impl.split_records(b"")) == (b"", [])


def test_damage_is_found_when_records_are_split(impl: SimpleNamespace) -> None:
    """Splitting records refuses a changed or missing byte."""
    joined = impl.join_records([b"abc", b"de"])
    for place in range(len(joined)):
        wrong = bytearray(joined)
        wrong[place] ^= 0x10
        with pytest.raises(ValueError, match=r"checksum mismatch|beyond the end"):
            impl.split_records(wrong)
    with pytest.raises(ValueError, match="beyond the end"):
        impl.split_records(joined[:-1])
