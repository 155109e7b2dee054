"""CRC-32C: the one checksum of the format."""

from __future__ import annotations

import mmap
import random
from array import array
from types import SimpleNamespace

import google_crc32c
import pytest

from filechannel._format import checksum

LANE = 256
READ_PDU = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000"
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x00000000),
        (b"a", 0xC1D04330),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (READ_PDU, 0xD9963A56),
    ],
)
def test_the_checksum_is_castagnoli(impl: SimpleNamespace, data: bytes, expected: int) -> None:
    """The checksum is CRC-32C: the vectors of RFC 3720 and the usual check value agree."""
    assert impl.crc32c(data) == expected


def test_every_length_agrees_with_another_implementation(impl: SimpleNamespace) -> None:
    """Checksums of 0 to 2000 bytes, which cover the loops over one, four and eight bytes and three lanes, agree."""
    data = random.Random(1).randbytes(2000)
    for length in range(len(data) + 1):
        assert impl.crc32c(data[:length]) == google_crc32c.value(data[:length])


@pytest.mark.parametrize("lanes", range(0, 25, 3))
@pytest.mark.parametrize("more", [-9, -1, 0, 1, 7, 8, 9])
def test_lane_boundaries_agree_with_another_implementation(impl: SimpleNamespace, lanes: int, more: int) -> None:
    """Checksums just below, at and above a multiple of three lanes agree with another implementation."""
    data = random.Random(lanes).randbytes(max(lanes * LANE + more, 0))
    assert impl.crc32c(data) == google_crc32c.value(data)


def test_a_large_buffer_agrees_with_another_implementation(impl: SimpleNamespace) -> None:
    """The checksum of more than a megabyte agrees with another implementation."""
    data = random.Random(2).randbytes((1 << 20) + 13)
    assert impl.crc32c(data) == google_crc32c.value(data)


def test_the_alignment_of_the_data_does_not_matter(impl: SimpleNamespace) -> None:
    """The checksum of a view does not depend on its alignment."""
    data = random.Random(3).randbytes(900)
    for start in range(17):
        assert impl.crc32c(memoryview(data)[start:]) == google_crc32c.value(data[start:])


def test_a_checksum_can_be_extended(impl: SimpleNamespace) -> None:
    """The checksum of two parts in a row is that of the whole, wherever the cut is."""
    data = random.Random(4).randbytes(1600)
    for cut in range(0, len(data) + 1, 7):
        assert impl.crc32c(data[cut:], impl.crc32c(data[:cut])) == google_crc32c.value(data)


def test_any_contiguous_buffer_is_taken(impl: SimpleNamespace) -> None:
    """A checksum accepts any contiguous buffer, and its type or shape does not matter."""
    data = bytes(range(64))
    with mmap.mmap(-1, len(data)) as anonymous:
        anonymous[:] = data
        shaped = memoryview(data).cast("B", (8, 8))
        for buffer in (bytearray(data), memoryview(data), array("I", data), shaped, anonymous):
            assert impl.crc32c(buffer) == google_crc32c.value(data)


def test_empty_buffers_of_any_type_are_taken(impl: SimpleNamespace) -> None:
    """The checksum of an empty buffer of any type is the value it starts from."""
    for buffer in (b"", bytearray(), memoryview(b""), array("I")):
        assert impl.crc32c(buffer, 77) == 77


@pytest.mark.parametrize("value", [-1, 1 << 32, 1 << 64, -(1 << 70)])
def test_a_value_that_is_not_a_checksum_is_refused(impl: SimpleNamespace, value: int) -> None:
    """A start value that does not fit 32 bits is refused."""
    with pytest.raises(OverflowError, match="does not fit the word"):
        impl.crc32c(b"x", value)


@pytest.mark.parametrize("data", [None, 5, "text", [1, 2], 1.5])
def test_something_without_bytes_is_refused(impl: SimpleNamespace, data: object) -> None:
    """A value that is not a buffer is refused, also a number, which does not mean so many zeros."""
    with pytest.raises(TypeError, match="bytes-like object is required"):
        impl.crc32c(data)


def test_a_strided_view_is_refused(impl: SimpleNamespace) -> None:
    """A view with gaps between its bytes is refused."""
    with pytest.raises(BufferError):
        impl.crc32c(memoryview(b"abcd")[::2])


def test_the_table_agrees_with_the_library() -> None:
    """The table of the pure implementation computes the same checksum as the library."""
    data = random.Random(5).randbytes(300)
    for length in range(len(data) + 1):
        assert checksum._by_table(0, data[:length]) == google_crc32c.value(data[:length])
    assert checksum._by_table(checksum._by_table(0, data[:99]), data[99:]) == google_crc32c.value(data)
