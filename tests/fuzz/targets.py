"""One function for each parser of stored bytes: it takes any bytes, and raises only if something is wrong.

A target parses with both implementations where there are two, and compares what they return or raise. An error that
the parser documents is fine; any other exception, a difference, a signal or a hang is a finding.

The first byte says how to read the rest: if it is odd, the checksums in it are made right first, so that the code
behind them is reached as well.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from filechannel._channel.lifecycle.channel_description import Description
from filechannel._channel.schema import Schema, build_type, describe, find_difference
from filechannel._errors import FileChannelError
from filechannel._format import NOTHING, crc32c
from filechannel._format.layout import (
    CHECKPOINT,
    CHECKPOINT_CHECKED,
    CHECKPOINT_SLOTS,
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_EXTRA,
    COMPRESSED_TABLE,
    CONTROL_IDENTITY,
    CONTROL_SIZE,
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_SLOTS,
    GROUP_SIZE,
    INDEX_CHECKED,
    INDEX_ENTRY,
    LENGTH_MASK,
    LOCK_SLOT_SHIFT,
    POSITION,
    POSITION_CHECKED,
    POSITION_SIZE,
    POSITION_SLOTS,
    PROCESS_SLOT_COUNT,
    PROCESS_SLOT_SIZE,
    PROCESS_SLOTS,
    RECORD_CHECKED,
    RECORD_HEADER,
    RECORD_HEADER_SIZE,
    SEGMENT_BEGIN,
    SEGMENT_CRC,
    SEGMENT_END,
    SEGMENT_END_CRC,
    SEGMENT_HEADER_SIZE,
    SINK,
    TAIL_CHECKED,
    TAIL_SLOT,
    TAIL_SLOTS,
    WRITE_TAIL,
)
from filechannel._maintenance.repair.rebuild_manifest import readable_fields
from filechannel._maintenance.repair.repair import plan_repair
from filechannel._maintenance.verify.verification import verify
from filechannel._offset import Offset
from filechannel._storage.archive.archive import open_archive
from filechannel._storage.consumers.cursor_file_format import (
    encoded_name,
    is_damaged,
    is_overdue,
    name_of,
    read_departure,
    read_origin,
    read_owner,
    read_position,
    read_slots,
    read_term,
)
from filechannel._storage.consumers.group_file_format import entry_at, numbers_in, ring_problem
from filechannel._storage.control.control_page import Control
from filechannel._storage.control.live_processes import Processes
from filechannel._storage.manifest import MANIFEST, Manifest
from filechannel._storage.producers.producer_positions import (
    POSITION_SUFFIX,
    PRODUCERS,
    Producer,
    ProducerPosition,
    Producers,
    erase_unpublished,
    offsets_in_producers,
    slots_in,
)
from filechannel._storage.producers.staging import STAGING, Staged, Staging
from filechannel._storage.segments.catalog import Segments
from filechannel._storage.segments.compressed_segment import CompressedSegment, compressed_begin_of, compressed_path
from filechannel._storage.segments.compression_codecs import codec
from filechannel._storage.segments.segment import Header, Segment, begin_of, segment_name, valid_end
from filechannel._storage.segments.segment_index import index_path, indexed_begin_of, latest_time, read_entries
from filechannel._storage.segments.segment_names import SEGMENTS
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import open_channel
from filechannel.cli.transfer.export_header import described_by
from filechannel.cli.ui.failures import Failure
from tests.format.implementations import native_implementation, pure_implementation, why_no_native_core
from tests.format.read.test_reader import Bench, DamagedError
from tests.fuzz import sample

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}
_MOST = 1 << 16
"""More bytes than this reach nothing new, and take long in Python."""
_TEXT = ("string", False, ())
_PLAN = (
    "struct",
    False,
    (
        ("a", None, "a", ("int", True, ())),
        ("b", None, "b", ("string", True, ())),
        ("c", None, "c", ("list", True, ((0, None, "item", ("float", True, ())),))),
        (
            "d",
            None,
            "d",
            ("map", True, (("key", None, "key", ("string", False, ())), ("v", None, "v", ("bool", True, ())))),
        ),
        ("e", None, "e", ("timestamp", True, ())),
        ("f", None, "f", ("binary", True, ())),
        ("g", None, "g", ("date", True, ())),
    ),
)


def target(function: Callable[[bool, bytes], None]) -> Target:
    """Register a target under its name."""

    def run(data: bytes) -> None:
        if len(data) <= _MOST:
            function(bool(data[:1] and data[0] & 1), data[1:])

    TARGETS[function.__name__] = run
    return run


@cache
def implementations() -> tuple[SimpleNamespace, ...]:
    """Return the implementations to compare: one, if there is no C core."""
    return (
        (pure_implementation(),)
        if why_no_native_core() is not None
        else (pure_implementation(), native_implementation())
    )


def _outcome(call: Callable[[], Any]) -> object:
    """Return what a call returned, or the documented error it raised, as a value that can be compared."""
    try:
        return call()
    except (ValueError, LookupError, FileChannelError) as error:
        return type(error).__name__, str(error)


def _same(call: Callable[[SimpleNamespace], Any]) -> object:
    """Let every implementation do something, and compare."""
    first, *others = [_outcome(lambda each=each: call(each)) for each in implementations()]
    for other in others:
        assert other == first, f"{first!r} != {other!r}"
    return first


@contextmanager
def _stored(content: bytes, name: str = "file") -> Generator[Path]:
    directory = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
        yield directory / name
    finally:
        shutil.rmtree(directory)


# Records and segments


def _fix_records(content: bytes, offset: int = 0) -> bytes:
    fixed, position = bytearray(content), 0
    while position + RECORD_HEADER_SIZE <= len(fixed):
        word, _ = RECORD_HEADER.unpack_from(fixed, position)
        end = position + RECORD_HEADER_SIZE + (word & LENGTH_MASK)
        if end > len(fixed):
            break
        crc = crc32c(RECORD_CHECKED.pack(word, offset + position), crc32c(fixed[position + RECORD_HEADER_SIZE : end]))
        RECORD_HEADER.pack_into(fixed, position, word, crc)
        position = end
    return bytes(fixed)


@target
def records(fix: bool, data: bytes) -> None:
    """Single records: read, scanned, skipped, looked for, split."""
    content = _fix_records(data) if fix else data
    size = len(content)
    _same(lambda impl: impl.read_record(content, 0, size, 0))
    _same(lambda impl: impl.scan_records(content, 0, size, 0))
    for most in (0, 1, 3, size):
        _same(lambda impl, most=most: impl.skip_records(content, 0, size, 0, most))
    _same(lambda impl: impl.find_record(content, 0, size, 0))
    _same(lambda impl: impl.split_records(content))


@target
def reader(fix: bool, data: bytes) -> None:
    """A reader over a published segment: item by item, in batches, and behind damage."""
    content = _fix_records(data) if fix else data

    _same(lambda impl: [_read_all(Bench(impl, content=content), "take_record", ())])
    _same(lambda impl: [_read_all(Bench(impl, content=content), "take_many", (7,))])


def _read_all(bench: Bench, method: str, arguments: tuple[int, ...]) -> object:
    """Read to the end or to the first error; return everything that can be seen of that."""
    found: list[object] = []
    for _ in range(len(bench.content) // RECORD_HEADER_SIZE + 2):
        try:
            found.append(getattr(bench.reader, method)(*arguments))
        except (DamagedError, LookupError) as error:
            found.append((type(error).__name__, str(error)))
            break
        if found[-1] is NOTHING or found[-1] == []:
            break
    return found, bench.reader.offset, bench.reader.sequence, bench.damages, bytes(bench.cursor[8:24])


def _fix_header(content: bytes) -> bytes:
    fixed = bytearray(content)
    if len(fixed) >= SEGMENT_HEADER_SIZE:
        checked = bytes(fixed[:SEGMENT_END]) + bytes(fixed[SEGMENT_END + 8 : SEGMENT_CRC])
        fixed[SEGMENT_CRC : SEGMENT_CRC + 4] = crc32c(checked).to_bytes(4, "little")
        end = crc32c(bytes(fixed[SEGMENT_BEGIN : SEGMENT_END + 8]))
        fixed[SEGMENT_END_CRC : SEGMENT_END_CRC + 4] = end.to_bytes(4, "little")
    return bytes(fixed)


@target
def segment_header(fix: bool, data: bytes) -> None:
    """The header and the end of a segment, and the records that it says it has."""
    content = _fix_header(data) if fix else data
    if len(content) >= SEGMENT_HEADER_SIZE:
        header = _outcome(lambda: Header.unpack(content[:SEGMENT_HEADER_SIZE]))
        if isinstance(header, Header):
            valid_end(header, content[:SEGMENT_HEADER_SIZE])
            with _stored(content, segment_name(header.begin)) as path:
                _outcome(lambda: _read_segment(path))
    with _stored(content, segment_name(0)) as path:
        _outcome(lambda: _read_segment(path))


def _read_segment(path: Path) -> None:
    segment = Segment.open(Files(), path, writable=False)
    limit = segment.limit
    assert segment.begin <= limit
    _ = segment.end, segment.has_valid_end, segment.is_valid, segment.data_end
    _outcome(lambda: segment.read(segment.begin, limit))
    _outcome(lambda: segment.whole(limit))


def _fix_compressed(content: bytes) -> bytes:
    fixed = bytearray(_fix_header(content))
    if len(fixed) < COMPRESSED_TABLE:
        return bytes(fixed)
    following, method, size, blocks, _ = COMPRESSED.unpack_from(fixed, COMPRESSED_EXTRA)
    table_end = COMPRESSED_TABLE + COMPRESSED_BLOCK.size * blocks
    for number in range(min(blocks, (len(fixed) - COMPRESSED_TABLE) // COMPRESSED_BLOCK.size)):
        at = COMPRESSED_TABLE + number * COMPRESSED_BLOCK.size
        position, length, _ = COMPRESSED_BLOCK.unpack_from(fixed, at)
        COMPRESSED_BLOCK.pack_into(fixed, at, position, length, crc32c(fixed[position : position + length]))
    extra = bytes(fixed[COMPRESSED_EXTRA : COMPRESSED_TABLE - 4])
    crc = crc32c(extra + bytes(fixed[COMPRESSED_TABLE : min(table_end, len(fixed))]))
    COMPRESSED.pack_into(fixed, COMPRESSED_EXTRA, following, method, size, blocks, crc)
    return bytes(fixed)


@target
def compressed(fix: bool, data: bytes) -> None:
    """The container of a compressed segment, its table, and its blocks."""
    content = _fix_compressed(data) if fix else data
    begin = int.from_bytes(content[SEGMENT_BEGIN : SEGMENT_BEGIN + 8], "little")
    with _stored(content, f"{segment_name(begin)}.z") as path:
        _outcome(lambda: _read_compressed(path))


def _read_compressed(path: Path) -> None:
    segment = CompressedSegment.open(Files(), path)
    try:
        _ = segment.is_whole, segment.is_valid, segment.limit, segment.space_end
        _outcome(segment.check)
        for offset in (segment.begin, Offset(segment.limit - 1)):
            _outcome(lambda offset=offset: segment.read(offset, segment.limit))
            _outcome(lambda offset=offset: segment.window(offset))
    finally:
        segment.close()


@target
def codecs(_: bool, data: bytes) -> None:
    """A block, with a size that need not be its own."""
    method, size, block = data[:1], int.from_bytes(data[1:4], "little"), data[4:]
    if method:
        raw = _outcome(lambda: codec(method[0] % 5).decompress(block, size))
        assert not isinstance(raw, bytes) or len(raw) == size


def _fix_index(content: bytes) -> bytes:
    fixed = bytearray(content)
    for position in range(0, len(fixed) - INDEX_ENTRY.size + 1, INDEX_ENTRY.size):
        *fields, _, zero = INDEX_ENTRY.unpack_from(fixed, position)
        INDEX_ENTRY.pack_into(fixed, position, *fields, crc32c(INDEX_CHECKED.pack(*fields)), zero)
    return bytes(fixed)


@target
def index(fix: bool, data: bytes) -> None:
    """The index of a segment."""
    with _stored(_fix_index(data) if fix else data, "0.idx") as path:
        marks = read_entries(Files(), path.with_name("0.seg"))
        assert [mark.offset for mark in marks] == sorted({mark.offset for mark in marks})
        latest_time(Files(), path.with_name("0.seg"))


@target
def archive(fix: bool, data: bytes) -> None:
    """An archive with one segment: opened, and read."""
    content = _fix_compressed(data) if fix else data
    begin = int.from_bytes(content[SEGMENT_BEGIN : SEGMENT_BEGIN + 8], "little")
    with _stored(content, f"segments/{segment_name(begin)}.z") as path:
        shutil.copy(_GOLDEN / MANIFEST, path.parents[1])
        store = _outcome(lambda: open_archive(Files(), path.parents[1]))
        if not isinstance(store, tuple):
            try:
                _outcome(store.lookup.earliest)
                _outcome(store.lookup.latest)
            finally:
                store.close()


# The control page, cursors, groups, producers


def _fix_control(content: bytes) -> bytes:
    fixed = bytearray(content)
    identity = CONTROL_IDENTITY.size - 4
    fixed[identity : identity + 4] = crc32c(bytes(fixed[:identity])).to_bytes(4, "little")
    for distance in TAIL_SLOTS:
        at = WRITE_TAIL + distance
        *fields, _ = TAIL_SLOT.unpack_from(fixed, at)
        TAIL_SLOT.pack_into(fixed, at, *fields, crc32c(TAIL_CHECKED.pack(*fields)))
    for at in CHECKPOINT_SLOTS:
        *fields, _ = CHECKPOINT.unpack_from(fixed, at)
        CHECKPOINT.pack_into(fixed, at, *fields, crc32c(CHECKPOINT_CHECKED.pack(*fields)))
    return bytes(fixed)


@target
def control(fix: bool, data: bytes) -> None:
    """The control page: identity, tails, checkpoints."""
    content = data.ljust(CONTROL_SIZE, b"\0")[:CONTROL_SIZE]
    with _stored(_fix_control(content) if fix else content, "control") as path:
        files = Files()
        descriptor = files.open(path, writable=False)
        try:
            page = Control(files, descriptor, writable=False)
            page.checkpoints.newest()
            _ = page.identity.channel_id, page.has_tail
            page.identity.belongs_to(bytes(16), bytes(16))
            for read in (
                page.tail,
                lambda: page.tail(deferred=True),
                lambda: page.oldest_offset,
                lambda: page.is_gap_pending,
                lambda: page.is_durability_unknown,
                lambda: page.is_purged,
            ):
                _outcome(read)
        finally:
            files.close(descriptor)


def _fix_cursor(content: bytes) -> bytes:
    fixed = bytearray(content)
    for slot in CURSOR_SLOTS:
        if slot + CURSOR.size <= len(fixed):
            *fields, _ = CURSOR.unpack_from(fixed, slot)
            CURSOR.pack_into(fixed, slot, *fields, crc32c(CURSOR_CHECKED.pack(*fields)))
    return bytes(fixed)


@target
def cursor(fix: bool, data: bytes) -> None:
    """The position of a consumer, its owner, its term, and its origin. A file may be cut off anywhere."""
    content = _fix_cursor(data) if fix else data
    position, slots = read_position(content), read_slots(content)
    assert (position is None) == (not slots)
    is_damaged(content)
    read_term(content)
    read_departure(content)
    is_overdue(content, 0)
    padded = content.ljust(4096, b"\0")
    read_owner(padded)
    read_origin(padded)


@target
def group(fix: bool, data: bytes) -> None:
    """The words and the ring of a group: the position moves in the same way in both implementations, or not at all."""
    content = (_fix_cursor(data) if fix else data).ljust(GROUP_SIZE, b"\0")
    head, tail = numbers_in(content)
    assert tail - head <= 4096
    for number in range(head, tail):
        entry_at(content, number)
    ring_problem(content)
    numbers_in(data)

    def move(impl: SimpleNamespace) -> object:
        shared = bytearray(content)
        moved = impl.advance_position(shared, 1 << 22 | 2)
        for slot in CURSOR_SLOTS:  # the time is the clock's
            shared[slot + 24 : slot + 36] = bytes(12)
        return moved, bytes(shared)

    _same(move)


def _fix_producer(content: bytes) -> bytes:
    fixed = bytearray(content.ljust(POSITION_SIZE, b"\0")[:POSITION_SIZE])
    for slot in POSITION_SLOTS:
        *fields, _ = POSITION.unpack_from(fixed, slot)
        POSITION.pack_into(fixed, slot, *fields, crc32c(POSITION_CHECKED.pack(*fields)))
    return bytes(fixed)


@target
def producer(fix: bool, data: bytes) -> None:
    """The position file of a producer."""
    slots_in(_fix_producer(data) if fix else data.ljust(POSITION_SIZE, b"\0")[:POSITION_SIZE])


@target
def producer_records(fix: bool, data: bytes) -> None:
    """A position file, its first 128 bytes, and the records of a log: where the producer left off is found or reported.

    What was found once is found again, and a batch can follow it.
    """
    size = 2 * POSITION_SLOTS[-1]
    position, log = data[:size].ljust(POSITION_SIZE, b"\0"), data[size:]
    if fix:
        position, log = _fix_producer(position), _fix_records(log)
    content = Header.new(0, 0, 0).pack(end=len(log)) + log
    with _stored(content, f"{SEGMENTS}/{segment_name(0)}") as path:
        channel, files = path.parents[1], Files()
        (channel / PRODUCERS).mkdir()
        (channel / PRODUCERS / f"{sample.KEY}{POSITION_SUFFIX}").write_bytes(position)
        control = SimpleNamespace(map=bytes(CONTROL_SIZE), oldest_offset=Offset(0), write_offset=Offset(len(log)))
        segments = Segments(files, path.parent, writable=False, most_mapped=2)
        producers = Producers(
            files,
            channel / PRODUCERS,
            cast("Control", control),
            segments,
            0o600,
            create=lambda create: create(),
            check_directory=lambda: None,
        )
        try:
            _find_producer(producers.open(sample.KEY), Offset(len(log)))
            producers.release_before(Offset(len(log)))
            offsets_in_producers(files, channel / PRODUCERS)
            erase_unpublished(files, channel / PRODUCERS, Offset(len(log)))
            assert all(offset <= len(log) for offset in offsets_in_producers(files, channel / PRODUCERS))
        finally:
            producers.close()
            segments.close()


def _find_producer(found: Producer, end: Offset) -> None:
    place = _outcome(found.find)
    place = found.find(past_damage=True) if isinstance(place, tuple) else place
    if isinstance(place, ProducerPosition):
        assert found.newest == place == found.find(past_damage=True)
        following = ProducerPosition(end, place.origin, place.offset, place.sequence)
        assert len(found.record(SINK, following, place)) == found.record_size
        assert found.newest == following


# The table of processes


class _Locks:
    """Kernel locks of which each third byte is held."""

    def is_taken(self, byte: int, *, shared: bool = True) -> bool:
        """Return whether a byte is locked."""
        return byte % 3 == 0 or shared

    def taken(self, first: int, last: int, *, shared: bool = True) -> list[int]:
        """Return the locked bytes."""
        return [byte for byte in range(first, last + 1) if self.is_taken(byte, shared=shared) and byte < 8]


@target
def processes(_: bool, data: bytes) -> None:
    """A lock word, and the table of processes that it names one of."""
    word, table = int.from_bytes(data[:4], "little"), data[4 : 4 + PROCESS_SLOT_COUNT * PROCESS_SLOT_SIZE]
    words = mmap.mmap(-1, CONTROL_SIZE)
    words[PROCESS_SLOTS : PROCESS_SLOTS + len(table)] = table
    found = Processes(words, cast("KernelLocks", _Locks()))
    found.is_alive(word)
    found.holder_of(word)
    found.remove_from_queue(word)
    found.alive()
    for each in found.queued_slots():
        assert 0 <= each >> LOCK_SLOT_SHIFT < PROCESS_SLOT_COUNT


# Names


@target
def file_names(_: bool, data: bytes) -> None:
    """Names in a directory: those that are taken for a file of the channel are what the channel calls that file."""
    for name in map(os.fsdecode, data.split(b"/")):
        if (begin := begin_of(name)) is not None:
            assert name == segment_name(begin)
        if (begin := compressed_begin_of(name)) is not None:
            assert name == compressed_path(Path(segment_name(begin))).name
        if (begin := indexed_begin_of(name)) is not None:
            assert name == index_path(Path(segment_name(begin))).name
        if (consumer := name_of(name)) is not None:
            assert name.partition(".")[0] == encoded_name(consumer)


# Schemas


class _Given(msgspec.Struct):
    """What a program opens a channel with."""

    number: int | None = None
    name: str = ""
    rows: list[dict[str, float]] = []


_DESCRIBED = (describe(_Given), describe(int | str | None), describe(bool))
_VALUES = (None, 1, -1.5, "text", b"x", [1, "a"], {"number": 1, "name": "n", "rows": [{}]}, {})


@target
def schema(_: bool, data: bytes) -> None:
    """The schema in a manifest: compared with others, shown, and made a type that decodes."""
    try:
        found = Schema.from_json(msgspec.json.decode(data))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return
    for node in found.nodes():
        found.text(node)
    for other in (found, *_DESCRIBED):
        find_difference(found, other)
    built = _outcome(lambda: build_type(found))
    if not isinstance(built, tuple) or built[:1] != ("ValueError",):
        for value in _VALUES:
            with suppress(msgspec.MsgspecError, ValueError):
                msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=cast("Any", built))
            with suppress(msgspec.MsgspecError, ValueError):
                msgspec.json.decode(msgspec.json.encode(value), type=cast("Any", built))


@target
def export_header(_: bool, data: bytes) -> None:
    """The first line of an exported file."""
    with suppress(Failure):
        assert isinstance(described_by(data, Path("channel")), Description)


# Whole channels


@target
def channel_files(fix: bool, data: bytes) -> None:
    """A channel with one file replaced, which the first byte chooses: verified, planned to be repaired, and read."""
    source, names = sample.files()
    name, content = names[data[0] % len(names) if data else 0], data[1:]
    kind = Path(name).suffix
    if kind in {"", ".group", ".cursor", ".position"}:  # of a fixed size
        content = content.ljust((source / name).stat().st_size, b"\0")
    content = _FIXES[kind](content) if fix and kind in _FIXES else content
    with tempfile.TemporaryDirectory(dir=sample.MEMORY) as directory:
        path = Path(directory, "channel")
        sample.with_file(path, name, content)
        _outcome(lambda: verify(path, threads=1))
        _outcome(lambda: plan_repair(path))
        if kind not in {"", ".json"}:  # with those, opening waits: the channel may be in the making
            _outcome(lambda: _read_channel(path))


def _read_channel(path: Path) -> None:
    with open_channel(path, int, readonly=True) as channel:
        for call in (channel.statistics, channel.consumers):
            _outcome(call)
        with channel.receiver() as receiver:
            while receiver.receive_many_nowait(1000):
                pass


# JSON and staged rows


@target
def manifest(_: bool, data: bytes) -> None:
    """`channel.json`, also as a repair reads what is left of it."""
    _outcome(lambda: Manifest.parse(data, Path("channel")))
    with _stored(data, MANIFEST) as path:
        readable_fields(Files(), path)


@target
def staged_list(_: bool, data: bytes) -> None:
    """`staging/<group>/list.json`."""
    with _stored(data, f"{STAGING}/g/list.json") as path:
        listed = _outcome(Staging(Files(), path.parents[2], "g", 0o600).listed)
        for staged in listed if isinstance(listed, list) else ():
            assert os.sep not in staged.name


@target
def staged_rows(fix: bool, data: bytes) -> None:
    """`staging/<group>/*.rows`."""
    name = f"{'0' * 24}.rows"
    with _stored(data, f"{STAGING}/g/{name}") as path:
        staged = Staged("g", name, 1, 1, len(data) if fix else len(data) // 2)
        _outcome(lambda: list(Staging(Files(), path.parents[2], "g", 0o600).payloads(staged)))


# MessagePack


@target
def columns(_: bool, data: bytes) -> None:
    """A payload becomes a row of columns: the same one, or the same error."""

    def put(impl: SimpleNamespace) -> object:
        found = impl.Columns(_PLAN)
        try:
            found.put(data, 0)
        except ValueError as error:
            return str(error), found.length
        return found.finish()

    _same(put)


@target
def column_records(fix: bool, data: bytes) -> None:
    """Records become columns, as Spark reads a segment."""
    content = _fix_records(data) if fix else data

    def take(impl: SimpleNamespace) -> object:
        found, position, steps = impl.Columns(_PLAN), 0, list[object]()
        for _ in range(8):
            try:
                position, sequences = found.take(content, position, len(content), position, 3)
            except ValueError as error:
                steps.append(str(error))
                break
            steps.append((position, sequences))
        return steps, found.finish()

    _same(take)


_FIXES: dict[str, Callable[[bytes], bytes]] = {
    "": _fix_control,
    ".group": _fix_cursor,
    ".cursor": _fix_cursor,
    ".position": _fix_producer,
    ".seg": lambda content: _fix_header(content)[:SEGMENT_HEADER_SIZE] + _fix_records(content[SEGMENT_HEADER_SIZE:]),
    ".z": _fix_compressed,
    ".idx": _fix_index,
}
_GOLDEN = Path(__file__).parents[1] / "data" / "golden-2" / "open"
