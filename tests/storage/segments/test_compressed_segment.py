"""A compressed segment is read as the plain one was, and damage in it is named, skipped and never worse."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import ChannelOptions, CorruptRecordError, UnsupportedFormatError
from filechannel._format import NOTHING, PURE
from filechannel._format.layout import BLOCK_SIZE, COMPRESSED, COMPRESSED_BLOCK, COMPRESSED_EXTRA, COMPRESSED_TABLE
from filechannel._offset import LogPosition, Offset
from filechannel._policies import CompressionMethod
from filechannel._storage.reading.log_reader import LogReader
from filechannel._storage.segments import compressed_segment as module
from filechannel._storage.segments.catalog import Segments
from filechannel._storage.segments.compressed_segment import CompressedSegment, table_crc
from filechannel._storage.segments.compression_codecs import codec
from filechannel._storage.segments.segment import Segment
from filechannel._storage.segments.segment_index import index_path
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import Message, opened, payloads_of, read_all, reader_of, take_all
from tests.storage.compressing import compress_all, compressed, compressed_file
from tests.storage.resources import descriptors_under

METHODS: list[CompressionMethod] = ["zstd", "lz4", "gzip"]


def _text(size: int, seed: int = 0) -> bytes:
    return bytes(random.Random(seed + size).choices(b"abc ", k=size))


# Reading


@pytest.mark.parametrize("method", METHODS)
def test_every_length_is_read_across_blocks(path: Path, method: CompressionMethod) -> None:
    """Payloads of 0 to 1100 bytes, whose records begin, end and break at every position of a block."""
    payloads = [_text(size) for size in range(1101)]
    with opened(path, ChannelOptions(segment_size=1 << 16)) as store:
        for payload in payloads:
            store.log.append([payload])
        before = read_all(store)
        begins = compress_all(store, method, block_size=1021)
        assert len(begins) == len(store.segments.begins) - 1 > 5
        assert read_all(store) == before
    with opened(path, readonly=True) as store:
        found = read_all(store)
        assert found == before[: len(found)]
    with opened(path) as store:
        assert payloads_of(store) == payloads
        store.log.append([b"resumes"])
        assert payloads_of(store)[-1] == b"resumes"


@pytest.mark.parametrize("block_size", [64, 65, 71, 8, 7, 1])
def test_records_begin_everywhere_in_a_block(path: Path, block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may begin anywhere in a block, with headers in two or up to eight blocks."""
    # Small blocks save nothing.
    monkeypatch.setattr(
        "filechannel._maintenance.background.compress_segment._WORTHWHILE_RATIO", 1000
    )  # so small blocks save nothing
    payloads = [_text(size % 40) for size in range(300)]
    with opened(path) as store:
        store.log.append(payloads)
        before = read_all(store)
        store.log.append([b"x" * 4000])
        begin = compress_all(store, "gzip", block_size=block_size)[0]
        assert compressed(store, begin).blocks == -(-(compressed(store, begin).end - begin) // block_size)
        assert read_all(store)[: len(before)] == before


@pytest.mark.parametrize("size", [255, 256, 257, 5000, 100_000])
def test_a_record_larger_than_a_block_is_read(path: Path, size: int) -> None:
    """A record larger than a block is read through a window of as many blocks as it needs."""
    payloads = [_text(size), b"small", _text(size, seed=1), b""]
    with opened(path) as store:
        for payload in payloads:
            store.log.append([payload])
        store.log.append([_text(4000), _text(4000)])
        assert compress_all(store)
        assert payloads_of(store)[:4] == payloads


def test_plain_and_compressed_segments_mix(path: Path) -> None:
    """Plain and compressed segments can be mixed, and readers read both."""
    noise = random.Random(3)
    payloads = [_text(900, index) if index // 20 % 2 else noise.randbytes(900) for index in range(200)]
    with opened(path) as store:
        for payload in payloads:
            store.log.append([payload])
        before = read_all(store)
        begins = compress_all(store)
        usage = store.segments.usage()
        assert 5 < len(begins) == usage.compressed
        assert usage.plain > 5
        assert usage.plain + usage.compressed == len(store.segments.begins)
        assert usage.compressed_bytes > 0
        assert read_all(store) == before
        for message in before:
            assert store.lookup.at(message.offset) == LogPosition(Offset(message.offset), message.sequence)
            assert store.lookup.numbered(message.sequence).offset == message.offset


def test_positions_are_found_without_reading_everything(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek in a compressed segment loads the blocks between two marks of its index, not all of it."""
    with opened(path, ChannelOptions(segment_size=1 << 20)) as store:
        for index in range(3000):
            store.log.append([_text(600, index)])
        before = read_all(store)
        begin = compress_all(store, block_size=1 << 12)[0]
        segment = compressed(store, begin)
        assert len(store.lookup.entries(segment)) > 10
        loaded: list[int] = []
        load = CompressedSegment.load
        monkeypatch.setattr(
            CompressedSegment, "load", lambda self, number: (loaded.append(number), load(self, number))[1]
        )
        message = before[1500]
        assert begin <= message.offset < segment.end
        assert store.lookup.numbered(message.sequence).offset == message.offset
        assert store.lookup.at(message.offset).sequence == message.sequence
        assert len(set(loaded)) <= (1 << 16 >> 12) + 2 < segment.blocks // 4


def test_a_reader_in_the_plain_file_continues(path: Path) -> None:
    """A reader in the middle of a plain file keeps it, and a later one reads the compressed file."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        before = read_all(store)
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        first = [Message(*reader.native.take_record()) for _ in range(3)]
        begins = compress_all(store)
        assert begins[0] == 0
        assert not store.segments.path(0).exists()
        assert first + take_all(reader) == before
        assert read_all(store) == before
        reader.close()


class InPieces(Files):
    """A directory so large that the kernel lists it in pieces: first what is compressed, and then the rest."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile: Callable[[], object] | None = meanwhile

    def list(self, directory: Path) -> list[str]:
        """List it; the first time something happens between the two pieces."""
        early = super().list(directory)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is None:
            return early
        meanwhile()
        late = super().list(directory)
        return [name for name in early if name.endswith(".z")] + [name for name in late if not name.endswith(".z")]


def test_a_segment_compressed_during_a_scan_is_found(path: Path) -> None:
    """Its new name may be missing from one part of a listing, and its old one be deleted before the other."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        begins = store.segments.begins
        files = InPieces(lambda: compress_all(store))
        segments = Segments(files, store.segments.directory, writable=False, most_mapped=2)
        assert compressed_file(store, begins[0]).exists()
        assert segments.begins == begins


def test_a_block_that_is_read_again_is_not_decompressed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that alternates between two blocks finds both where it left them."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        compress_all(store)
        module._recent.clear()
        loaded: list[int] = []
        load = CompressedSegment.load
        monkeypatch.setattr(
            CompressedSegment, "load", lambda self, number: (loaded.append(number), load(self, number))[1]
        )
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        reader.native.track_acks()
        for _ in range(3):
            reader.native.take()
        seen = len(loaded)
        for _ in range(20):
            reader.native.nack(3)
            for _ in range(3):
                reader.native.take()
        assert len(loaded) == seen
        reader.close()


def test_a_look_ahead_reader_starts_in_the_same_window(path: Path) -> None:
    """A look-ahead reader starts with what the reader has, even if the segment was retired."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        before = read_all(store)
        compress_all(store)
        reader, look_ahead_reader = reader_of(store), reader_of(store)
        reader.move(store.lookup.earliest())
        reader.native.take()
        look_ahead_reader.copy_position_of(reader)
        assert Message(*look_ahead_reader.native.take_record()) == before[1]
        assert take_all(look_ahead_reader) == before[2:]
        reader.close()
        look_ahead_reader.close()


# Memory


def test_readers_far_behind_hold_a_block_each(path: Path) -> None:
    """Eight readers in segments of eight mebibytes keep far less than one segment in memory."""
    with opened(path, ChannelOptions(segment_size=8 << 20), mapped=4) as store:
        for index in range(9 * 8):
            store.log.append([_text(64, index) * (1 << 14)])
        begins = compress_all(store, block_size=BLOCK_SIZE)
        assert len(begins) >= 8
        module._recent.clear()
        readers = [reader_of(store) for _ in begins[:8]]
        tracemalloc.start()
        try:
            for reader, begin in zip(readers, begins, strict=False):
                reader.move(LogPosition(begin, 0))
                for _ in range(3):
                    reader.native.take()
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 40 << 20
        assert peak < 50 << 20
        for reader in readers:
            reader.close()


def test_a_bounded_number_of_files_is_open(path: Path) -> None:
    """A limited number of compressed files is open, and none after another process deleted them."""
    with opened(path, mapped=3) as store:
        for index in range(200):
            store.log.append([_text(300, index)])
        begins = compress_all(store)
        assert len(begins) > 10
        others = descriptors_under(path / "segments")
        read_all(store)
        assert descriptors_under(path / "segments") == others + 3
        for begin in begins:
            compressed_file(store, begin).unlink()
        store.segments.scan()
        assert descriptors_under(path / "segments") == others


def test_a_damaged_table_allocates_no_memory(path: Path) -> None:
    """Numbers that claim gibibytes are refused before they are used, whatever their checksum says."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        begin = compress_all(store)[0]
        file = compressed_file(store, begin)
    good = file.read_bytes()
    sequence, method, block_size, blocks, _ = COMPRESSED.unpack_from(good, COMPRESSED_EXTRA)
    table = good[COMPRESSED_TABLE : COMPRESSED_TABLE + blocks * COMPRESSED_BLOCK.size]
    huge = COMPRESSED_BLOCK.pack(1 << 62, 0xFFFFFFFF, 0) + table[COMPRESSED_BLOCK.size :]
    cases = [
        ((sequence, method, block_size, 0xFFFFFFFF), table),
        ((sequence, method, 0xFFFFFFFF, 1), table[: COMPRESSED_BLOCK.size]),
        ((sequence, method, 0, blocks), table),
        ((sequence, method, block_size, blocks), huge),
    ]
    tracemalloc.start()
    try:
        for fields, entries in cases:
            extra = COMPRESSED.pack(*fields, 0)[:-4]
            crc = table_crc(extra, entries).to_bytes(4, "little")
            file.write_bytes(good[:COMPRESSED_EXTRA] + extra + crc + entries + good[COMPRESSED_TABLE + len(table) :])
            with opened(path) as store, pytest.raises(CorruptRecordError, match=file.name):
                read_all(store)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# Damage


@pytest.fixture
def filled(path: Path) -> tuple[Path, list[Message], list[Offset]]:
    """A channel of compressed segments, closed; what is in it, and where its segments begin."""
    with opened(path) as store:
        for index in range(60):
            store.log.append([b"%d " % index + _text(300, index)])
        before = read_all(store)
        begins = compress_all(store)
        assert len(begins) == len(store.segments.begins) - 1
        return path, before, begins


def test_a_block_that_is_damaged_is_named(filled: tuple[Path, list[Message], list[Offset]]) -> None:
    """A damaged block raises an error with file, offset and block, after the messages before it."""
    path, before, begins = filled
    with opened(path) as store:
        file = compressed_file(store, begins[1])
        position, _, _ = COMPRESSED_BLOCK.unpack_from(file.read_bytes(), COMPRESSED_TABLE + 3 * COMPRESSED_BLOCK.size)
    _flip(file, position + 2)
    with opened(path) as store:
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        found: list[Message] = []
        with pytest.raises(CorruptRecordError, match=r"block 3 does not match its checksum") as caught:
            _take_into(found, reader)
        assert caught.value.segment == file.name
        assert found == before[: len(found)]
        assert begins[1] <= caught.value.offset == before[len(found)].offset
        assert caught.value.offset < begins[1] + 4 * 256
        with pytest.raises(CorruptRecordError, match="block 3"):
            store.lookup.numbered(before[len(found)].sequence + 1)
        reader.close()


def test_only_what_lies_in_a_damaged_block_is_skipped(filled: tuple[Path, list[Message], list[Offset]]) -> None:
    """Only messages in a damaged block are skipped, and later ones keep their sequences."""
    path, before, begins = filled
    with opened(path) as store:
        file = compressed_file(store, begins[1])
        position, _, _ = COMPRESSED_BLOCK.unpack_from(file.read_bytes(), COMPRESSED_TABLE + 3 * COMPRESSED_BLOCK.size)
    _flip(file, position)
    start, stop = begins[1] + 3 * 256, begins[1] + 4 * 256
    hit = [message for message in before if message.offset < stop and message.offset + 8 + len(message.payload) > start]
    with opened(path) as store:
        found = [message[:2] for message in read_all(store, skip=True)]
    assert found == [message[:2] for message in before if message not in hit]


def test_any_bit_may_flip(filled: tuple[Path, list[Message], list[Offset]]) -> None:
    """A flipped bit in any byte raises a typed error, or leaves every message outside its block readable."""
    path, before, begins = filled
    sent, chance = {message[:2] for message in before}, random.Random(7)
    elsewhere = [message[:2] for message in before if not begins[1] <= message.offset < begins[2]]
    with opened(path) as store:
        file = compressed_file(store, begins[1])
        content = file.read_bytes()
        for position in range(0, len(content), 7 if not PURE else 23):
            _flip(file, position, 1 << chance.randrange(8))
            store.segments.forget(begins[1])
            with pytest.raises(CorruptRecordError, match=file.name):
                read_all(store)
            found = [message[:2] for message in read_all(store, skip=True)]
            file.write_bytes(content)
            assert set(found) <= sent
            assert [message for message in found if not begins[1] <= message[1] < begins[2]] == elsewhere


def test_a_file_may_end_anywhere(filled: tuple[Path, list[Message], list[Offset]]) -> None:
    """In a file that was cut off messages before the cut are read, and so are other segments."""
    path, before, begins = filled
    with opened(path) as store:
        file = compressed_file(store, begins[1])
    content = file.read_bytes()
    for length in sorted({*range(0, len(content), 61), len(content) - 1}):
        file.write_bytes(content[:length])
        with opened(path) as store:
            with pytest.raises(CorruptRecordError, match=file.name):
                read_all(store)
            found = [message[:2] for message in read_all(store, skip=True)]
            assert [m for m in found if not begins[1] <= m[1] < begins[2]] == [
                m[:2] for m in before if not begins[1] <= m.offset < begins[2]
            ]
            if length == len(content) - 1:
                assert len(found) >= len(before) - 2


def _take_into(found: list[Message], reader: LogReader) -> None:
    while (record := reader.native.take_record()) is not NOTHING:
        found.append(Message(*record))


def _flip(file: Path, position: int, mask: int = 1) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= mask
    file.write_bytes(content)


def test_a_file_of_the_wrong_name_is_not_a_segment(filled: tuple[Path, list[Message], list[Offset]]) -> None:
    """A file with a wrong name, a directory, an empty file or a plain file is not a compressed segment."""
    path, _, begins = filled
    with opened(path) as store:
        file = compressed_file(store, begins[1])
        plain = store.segments.path(store.segments.begins[-1])
    other = file.with_name(file.name.replace("00000", "00001", 1))
    shutil.copy(file, other)
    with pytest.raises(ValueError, match="of the segment at"):
        CompressedSegment.open(Files(), other)
    for content in (b"", plain.read_bytes()[:4096], bytes(500)):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"segment header"):
            CompressedSegment.open(Files(), file)
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match="directory"):
        CompressedSegment.open(Files(), file)


def test_without_the_library_it_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compression library a segment raises an error with the package to install, and is not skipped."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        assert compress_all(store, "lz4", block_size=2048)

    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("filechannel._storage.segments.compression_codecs.import_module", missing)
    codec.cache_clear()
    try:
        with opened(path) as store, pytest.raises(UnsupportedFormatError, match=r"filechannel\[lz4\]"):
            read_all(store, skip=True)
    finally:
        codec.cache_clear()


# Both encodings


def test_the_plain_file_is_read_if_the_compressed_one_is_damaged(path: Path) -> None:
    """While both encodings exist a damaged compressed file is replaced by the plain one in reads."""
    with opened(path) as store:
        for index in range(40):
            store.log.append([_text(300, index)])
        before = read_all(store)
        plain = store.segments.path(0)
        content = plain.read_bytes()
        compress_all(store)
        file = compressed_file(store, 0)
    plain.write_bytes(content)
    _flip(file, 20)
    with opened(path) as store:
        assert read_all(store) == before
        assert isinstance(store.segments.get(Offset(0)), Segment)


def test_removing_a_segment_removes_both_encodings(filled: tuple[Path, list[Message], list[Offset]]) -> None:
    """Deleting a segment deletes both encodings and the index."""
    path, before, begins = filled
    with opened(path) as store:
        index_path(store.segments.path(begins[0])).touch()
        store.control.oldest_offset = begins[2]
        store.segments.remove_before(begins[2])
        assert read_all(store) == [message for message in before if message.offset >= begins[2]]
        assert not [file for file in (path / "segments").iterdir() if file.name.startswith(f"{begins[0]:020}")]
        store.purge()
        assert payloads_of(store) == []
        assert not list((path / "segments").glob("*.z"))
