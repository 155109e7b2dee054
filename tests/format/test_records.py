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


def test_every_length_is_written_and_read(twin: SimpleNamespace) -> None:
    """Payloads of 0 to 1100 bytes come back, lie where the format says, and touch nothing else."""
    data, guard = random.Random(1).randbytes(1100), b"\xee" * 8
    for length in range(len(data) + 1):
        payload = data[:length]
        buffer = bytearray(guard + bytes(8 + length) + guard)
        assert twin.write_record(buffer, 8, 1000 + length, 0, payload) == 16 + length
        assert buffer == guard + packed_record(payload, 1000 + length) + guard
        assert twin.read_record(buffer, 8, 16 + length, 1000 + length) == (length, payload)


@pytest.mark.parametrize("payload", LENGTHS_THAT_LOOK_LIKE_MARKERS)
def test_a_payload_that_looks_like_a_header_is_a_payload(twin: SimpleNamespace, payload: bytes) -> None:
    """Whatever the bytes are, they come back and the walk goes on behind them."""
    buffer = bytearray(200)
    end = twin.write_record(buffer, 0, 0, 0, payload)
    end = twin.write_record(buffer, end, end, 0, b"next")
    assert twin.scan_records(buffer, 0, end, 0) == (end, 2, end, end - 12)
    assert twin.read_record(buffer, 0, end, 0)[1] == payload


@pytest.mark.parametrize("remainder", range(17))
def test_every_remainder_at_the_end(twin: SimpleNamespace, remainder: int) -> None:
    """So many bytes behind a record are neither read as one nor in its way; one byte too few is an error."""
    for length in (0, 1, 3, 4, 5, 7, 8, 9, 100):
        payload = bytes(range(length))
        buffer = bytearray(b"\xff" * (8 + length + remainder))
        end = twin.write_record(buffer, 0, 77, 0, payload)
        assert end == 8 + length
        assert buffer[end:] == b"\xff" * remainder
        assert twin.scan_records(buffer, 0, len(buffer), 77) == (end, 1, end, 0)
        assert twin.find_record(buffer, end, len(buffer), 77 + end) == -1
        short = bytearray(b"\xff" * (8 + length - 1))
        with pytest.raises(ValueError, match="range is not inside the buffer"):
            twin.write_record(short, 0, 77, 0, payload)
        assert short == b"\xff" * len(short)


@pytest.mark.parametrize("flags", [0, BATCH_CONTINUES, CONTROL_RECORD, BATCH_CONTINUES | CONTROL_RECORD])
def test_flags_share_the_word_with_the_length(twin: SimpleNamespace, flags: int) -> None:
    """They are covered by the checksum and come back."""
    buffer = bytearray(11)
    twin.write_record(buffer, 0, 5, flags, b"abc")
    assert buffer == packed_record(b"abc", 5, flags)
    assert twin.read_record(buffer, 0, 11, 5) == (3 | flags, b"abc")


@pytest.mark.parametrize("flags", [1, LENGTH_MASK, 1 << 29, 1 << 32, BATCH_CONTINUES | 1, (1 << 64) - 1])
def test_flags_that_are_none_are_refused(twin: SimpleNamespace, flags: int) -> None:
    """They would change the length."""
    buffer = bytearray(20)
    with pytest.raises(ValueError, match="payload or flags do not fit the word"):
        twin.write_record(buffer, 0, 0, flags, b"abc")
    assert buffer == bytes(20)


def test_a_payload_may_be_any_buffer(twin: SimpleNamespace) -> None:
    """The bytes count."""
    for payload in (bytearray(b"12345678"), memoryview(b"12345678"), array("I", b"12345678")):
        buffer = bytearray(16)
        twin.write_record(buffer, 0, 0, 0, payload)
        assert buffer == packed_record(b"12345678", 0)


@pytest.mark.parametrize("shift", [-16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 16])
def test_a_payload_may_be_a_part_of_the_same_buffer(twin: SimpleNamespace, shift: int) -> None:
    """It is written as it was before the call."""
    buffer = bytearray(range(100))
    payload = bytes(buffer[40 + shift : 60 + shift])
    with memoryview(buffer) as view:
        twin.write_record(buffer, 32, 0, 0, view[40 + shift : 60 + shift])
    assert buffer[32:60] == packed_record(payload, 0)


@pytest.mark.parametrize("position", [93, 100, 101, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1])
def test_a_record_is_not_written_outside(twin: SimpleNamespace, position: int) -> None:
    """Not partly, and not where the sum would wrap around."""
    buffer = bytearray(100)
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        twin.write_record(buffer, position, 0, 0, b"")
    assert buffer == bytes(100)


@pytest.mark.parametrize("value", [-1, -8, 1 << 64, -(1 << 65)])
def test_numbers_have_64_unsigned_bits(twin: SimpleNamespace, value: int) -> None:
    """A negative position does not count from the end."""
    buffer = bytearray(packed_record(b"abc", 0))
    before = bytes(buffer)
    for arguments in ((value, 0, 0), (0, value, 0), (0, 0, value)):
        with pytest.raises(OverflowError, match="value does not fit the word"):
            twin.write_record(buffer, *arguments, b"")
        for function in (twin.read_record, twin.scan_records, twin.find_record):
            with pytest.raises(OverflowError, match="value does not fit the word"):
                function(buffer, *arguments)
    assert buffer == before


def test_the_largest_offset_is_an_offset(twin: SimpleNamespace) -> None:
    """All 64 bits are covered by the checksum."""
    buffer = bytearray(12)
    twin.write_record(buffer, 0, (1 << 64) - 1, 0, b"last")
    assert buffer == packed_record(b"last", (1 << 64) - 1)
    assert twin.read_record(buffer, 0, 12, (1 << 64) - 1) == (4, b"last")


def test_a_read_only_buffer_is_not_written(twin: SimpleNamespace) -> None:
    """Bytes stay as they are."""
    for buffer in (bytes(20), memoryview(bytes(20)), memoryview(bytearray(20)).toreadonly()):
        with pytest.raises(BufferError):
            twin.write_record(buffer, 0, 0, 0, b"x")
        assert bytes(buffer) == bytes(20)


# Reading


def test_zeros_are_no_record(twin: SimpleNamespace) -> None:
    """A zero-filled tail holds no phantom, wherever it is read, scanned or searched."""
    zeros = bytes(300)
    for offset in (0, 1, 8, 64, 1 << 20, 1 << 40, (1 << 64) - 1):
        with pytest.raises(ValueError, match="checksum mismatch"):
            twin.read_record(zeros, 0, 300, offset)
        assert twin.scan_records(zeros, 0, 300, offset) == (0, 0, 0, 0)
        assert twin.find_record(zeros, 0, 300, offset) == -1


def test_zeros_are_no_record_even_where_their_checksum_would_be_zero(twin: SimpleNamespace) -> None:
    """Once in 4 GiB the checksum of an empty record comes out as zero; it is then stored as all ones."""
    zeros, offset = bytes(64), ZERO_HEADER_OFFSET
    assert crc_of(bytes(4) + offset.to_bytes(8, "little")) == 0
    with pytest.raises(ValueError, match="checksum mismatch"):
        twin.read_record(zeros, 0, 64, offset)
    assert twin.scan_records(zeros, 0, 64, offset) == (0, 0, 0, 0)
    assert twin.find_record(zeros, 0, 64, offset - 32) == -1
    buffer = bytearray(8)
    twin.write_record(buffer, 0, offset, 0, b"")
    assert buffer == b"\x00\x00\x00\x00\xff\xff\xff\xff"
    assert twin.read_record(buffer, 0, 8, offset) == (0, b"")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 30, 200])
@pytest.mark.parametrize("flags", [0, BATCH_CONTINUES, CONTROL_RECORD])
def test_a_flipped_bit_anywhere_is_detected(twin: SimpleNamespace, length: int, flags: int) -> None:
    """In the word, the checksum and the payload."""
    record = bytearray(packed_record(random.Random(length).randbytes(length), 4096, flags))
    room = bytes(64)  # so that a longer length may lie inside
    for bit in range(8 * len(record)):
        record[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"checksum mismatch|reaches beyond the end"):
            twin.read_record(record + room, 0, len(record) + 64, 4096)
        record[bit // 8] ^= 1 << bit % 8
    assert twin.read_record(record, 0, len(record), 4096)[0] == length | flags


def test_a_record_at_another_offset_does_not_validate(twin: SimpleNamespace) -> None:
    """Yesterday's bytes in a recycled file are not today's."""
    record = packed_record(b"payload", 1 << 30)
    for bit in range(64):
        with pytest.raises(ValueError, match="checksum mismatch"):
            twin.read_record(record, 0, len(record), (1 << 30) ^ (1 << bit))
    for distance in range(-1100, 1100):
        if distance:
            assert twin.scan_records(record, 0, len(record), (1 << 30) + distance)[0] == 0


def test_a_record_must_end_before_the_stop(twin: SimpleNamespace) -> None:
    """Not the buffer but the stop says how far may be read."""
    buffer = packed_record(b"0123456789", 0) + bytes(50)
    for stop in range(18):
        with pytest.raises(ValueError, match="record reaches beyond the end"):
            twin.read_record(buffer, 0, stop, 0)
        assert twin.scan_records(buffer, 0, stop, 0) == (0, 0, 0, 0)
        assert twin.find_record(buffer, 0, stop, 0) == -1
    assert twin.read_record(buffer, 0, 18, 0) == (10, b"0123456789")


@pytest.mark.parametrize("name", ["read_record", "scan_records", "find_record"])
@pytest.mark.parametrize(
    ("position", "stop"),
    [(0, 101), (51, 50), (100, 99), (101, 101), (1 << 63, 1 << 63), ((1 << 64) - 1,) * 2, ((1 << 64) - 8, 100)],
)
def test_a_range_must_lie_inside(twin: SimpleNamespace, name: str, position: int, stop: int) -> None:
    """Position, stop and the end of the buffer in this order."""
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        getattr(twin, name)(bytes(100), position, stop, 0)


def test_an_empty_range_has_no_record(twin: SimpleNamespace) -> None:
    """At the very end of a buffer, or in an empty one."""
    for buffer, position in ((b"", 0), (bytes(100), 100), (bytes(100), 50)):
        with pytest.raises(ValueError, match="record reaches beyond the end"):
            twin.read_record(buffer, position, position, 0)
        assert twin.scan_records(buffer, position, position, 0) == (position, 0, position, position)
        assert twin.find_record(buffer, position, position, 0) == -1


def test_what_is_read_is_a_copy(twin: SimpleNamespace) -> None:
    """The bytes may be rewritten behind it."""
    buffer = bytearray(packed_record(b"first", 0))
    _, payload = twin.read_record(buffer, 0, len(buffer), 0)
    buffer[:] = packed_record(b"other", 0)
    assert payload == b"first"
    assert type(payload) is bytes


# Scanning


def test_a_scan_walks_to_the_first_record_that_is_not_valid(twin: SimpleNamespace) -> None:
    """It tells where the valid ones end and how many messages there are."""
    payloads = [bytes(length) for length in range(20)]
    content, offset = packed_records(payloads, 500), 500
    last = len(content) - size_of(payloads[-1])
    assert twin.scan_records(content + bytes(40), 0, len(content) + 40, offset) == (
        len(content),
        20,
        len(content),
        last,
    )
    damaged = bytearray(content)
    third = size_of(*payloads[:3])
    damaged[third + 8] ^= 1
    assert twin.scan_records(damaged, 0, len(damaged), offset) == (third, 3, third, size_of(*payloads[:2]))


def test_a_scan_may_begin_anywhere(twin: SimpleNamespace) -> None:
    """Position is in the buffer, offset in the channel; both move together."""
    content = packed_records([b"a", b"bb", b"ccc"], 1 << 33)
    begin = size_of(b"a")
    answer = twin.scan_records(b"??" + content, 2 + begin, 2 + len(content), (1 << 33) + begin)
    assert answer == (2 + len(content), 2, 2 + len(content), 2 + size_of(b"a", b"bb"))


def test_a_batch_is_cut_as_a_whole(twin: SimpleNamespace) -> None:
    """Until its closing record is there, none of it counts."""
    whole = packed_records([b"alone"], 0) + batch([b"x" * n for n in range(5)], size_of(b"alone"))
    alone = size_of(b"alone")
    ends = [alone + size_of(*[b"x" * n for n in range(count)]) for count in range(6)]
    for stop in range(alone, len(whole)):
        end = max(e for e in ends if e <= stop)
        assert twin.scan_records(whole, 0, stop, 0) == (alone, 1, end, 0)
    assert twin.scan_records(whole, 0, len(whole), 0) == (len(whole), 6, len(whole), ends[4])


def test_a_damaged_record_takes_its_batch_with_it(twin: SimpleNamespace) -> None:
    """What came before the batch stays."""
    first, second = batch([b"1", b"2"]), batch([b"3", b"4", b"5"], size_of(b"1", b"2"))
    content = bytearray(first + second)
    for position in range(len(first), len(content)):
        content[position] ^= 0x10
        end, messages, _, last = twin.scan_records(content, 0, len(content), 0)
        assert (end, messages, last) == (len(first), 2, size_of(b"1"))
        content[position] ^= 0x10


def test_control_records_are_not_counted(twin: SimpleNamespace) -> None:
    """They move the end but are no messages, alone or in a batch."""
    alone = packed_record(b"\x01seal", 0, CONTROL_RECORD)
    content = alone + batch([b"a", b"position", b"b"], len(alone), control=(1,))
    end, messages, valid, _ = twin.scan_records(content, 0, len(content), 0)
    assert (end, messages, valid) == (len(content), 2, len(content))


def test_messages_of_an_open_batch_are_not_counted(twin: SimpleNamespace) -> None:
    """The count belongs to the end that is returned with it."""
    content = packed_record(b"a", 0) + packed_record(b"b", 9, BATCH_CONTINUES)
    assert twin.scan_records(content, 0, len(content), 0) == (9, 1, 18, 0)


# Finding


def test_the_next_valid_record_is_found(twin: SimpleNamespace) -> None:
    """Behind damage of any length."""
    for length in range(40):
        garbage = random.Random(length).randbytes(length)
        content = garbage + packed_record(b"found", 100 + length) + bytes(9)
        assert twin.find_record(content, 0, len(content), 100) == length


def test_a_record_that_is_there_already_is_found_first(twin: SimpleNamespace) -> None:
    """The search includes where it begins."""
    content = packed_records([b"one", b"two"], 0)
    assert twin.find_record(content, 0, len(content), 0) == 0
    assert twin.find_record(content, 1, len(content), 1) == size_of(b"one")


def test_a_record_inside_a_payload_is_not_found_by_a_walk(twin: SimpleNamespace) -> None:
    """But a search may find one if somebody sent the bytes of a record for exactly that offset."""
    inner = packed_record(b"inner", 8)
    content = bytearray(packed_record(inner, 0))
    assert twin.scan_records(content, 0, len(content), 0)[:2] == (len(content), 1)
    content[0] ^= 1
    assert twin.find_record(content, 0, len(content), 0) == 8


# Buffers


def test_no_view_of_a_map_stays_behind(twin: SimpleNamespace) -> None:
    """A map can be closed after any of the calls, failed ones too; a closed one is an error."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    end = twin.write_record(page, 0, 0, 0, b"abc")
    assert twin.read_record(page, 0, end, 0) == (3, b"abc")
    assert twin.scan_records(page, 0, len(page), 0)[0] == end
    assert twin.find_record(page, 0, len(page), 0) == 0
    with pytest.raises(ValueError, match="range"):
        twin.write_record(page, len(page), 0, 0, b"")
    with pytest.raises(TypeError):
        twin.write_record(page, 0, 0, 0, "text")
    for function in (twin.read_record, twin.scan_records, twin.find_record):
        with pytest.raises(ValueError, match="range"):
            function(page, 0, len(page) + 1, 0)
    with pytest.raises(ValueError, match="checksum mismatch"):
        twin.read_record(page, 0, len(page), 1)
    page.close()
    for call in (
        lambda: twin.write_record(page, 0, 0, 0, b""),
        lambda: twin.read_record(page, 0, 0, 0),
        lambda: twin.scan_records(page, 0, 0, 0),
        lambda: twin.find_record(page, 0, 0, 0),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


@pytest.mark.parametrize("payload", [None, 5, "text", [1], {}])
def test_a_payload_must_have_bytes(twin: SimpleNamespace, payload: object) -> None:
    """In particular a number is not that many zeros."""
    buffer = bytearray(100)
    with pytest.raises(TypeError, match="bytes-like object is required"):
        twin.write_record(buffer, 0, 0, 0, payload)
    assert buffer == bytes(100)


def test_joined_records_are_those_of_a_log(twin: SimpleNamespace) -> None:
    """Payloads come back from their records, which are those of a log that begins with them."""
    payloads = [b"", b"a", bytes(100), bytes(70000)]
    joined = twin.join_records(payloads)
    assert joined == packed_records(payloads, 0)
    assert twin.split_records(joined) == payloads
    assert (twin.join_records([]), twin.split_records(b"")) == (b"", [])


def test_damage_is_found_when_records_are_split(twin: SimpleNamespace) -> None:
    """Not one byte can change, or be missing."""
    joined = twin.join_records([b"abc", b"de"])
    for place in range(len(joined)):
        wrong = bytearray(joined)
        wrong[place] ^= 0x10
        with pytest.raises(ValueError, match=r"checksum mismatch|beyond the end"):
            twin.split_records(wrong)
    with pytest.raises(ValueError, match="beyond the end"):
        twin.split_records(joined[:-1])
