"""Compressing a segment: what is chosen, what is left as it is, and what happens if something comes in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Compression, DiskFullError, StorageError
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._maintenance.background import compress_segment as module
from filechannel._maintenance.background.compress_segment import Candidate, SegmentCompressor, compress, sweep
from filechannel._offset import Offset
from filechannel._policies import CompressionMethod
from filechannel._storage.segments.compressed_segment import CompressedSegment, compressed_path
from filechannel._storage.segments.plain_or_compressed import keep_one_encoding
from filechannel._storage.segments.segment import Segment
from filechannel._storage.segments.segment_index import index_path
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.compressing import NO_FREE_LIST, compress_all, compress_segment, compressed, compressed_file
from tests.storage.faults import FLUSHING, NEEDING_SPACE, FaultyFiles, disk_full, input_output_error

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


def _fill(store: Store, count: int = 60) -> None:
    for number in range(count):
        store.log.append([b"%d " % number + b"text " * 60])


def _compressor(store: Store, *, block_size: int = 512) -> SegmentCompressor:
    return SegmentCompressor(store, Compression(), block_size=block_size)


def _candidates(store: Store) -> list[Candidate]:
    return list(_compressor(store).candidates(Offset(0)))


def _names(path: Path) -> list[str]:
    """The names of all segments, in either encoding; files of the free list do not count."""
    names = [file.name for file in (path / "segments").iterdir() if file.suffix != ".idx"]
    return sorted(name for name in names if not name.startswith("spare-"))


# What is chosen


def test_only_finished_segments_on_disk_are_candidates(path: Path, background: Background) -> None:
    """The active segment, and segments beyond the checkpoint, are not candidates for compression."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        assert _candidates(store) == []
        store.flusher.flush()
        assert [candidate.begin for candidate in _candidates(store)] == store.segments.begins[:-1]
        for candidate in _candidates(store):
            assert candidate.end == candidate.following
        background.forget()


def test_what_may_not_be_on_disk_can_be_compressed(path: Path) -> None:
    """A segment whose flush failed can be compressed, because its readable content is written again."""
    files = FaultyFiles()
    with opened(path, NO_FREE_LIST, files=files) as store:
        _fill(store)
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.flush()
    assert compress(path).segments > 1


def test_a_reclaimed_segment_is_not_a_candidate(path: Path) -> None:
    """A segment that was reclaimed, or compressed by another process, is not a candidate."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        begins = store.segments.begins
        store.control.oldest_offset = begins[2]
        assert [candidate.begin for candidate in _candidates(store)] == begins[2:-1]
        assert compress_segment(_compressor(store), _candidates(store)[0])
        assert [candidate.begin for candidate in _candidates(store)] == begins[3:-1]


def test_a_segment_before_a_gap_ends_where_its_records_do(path: Path) -> None:
    """A segment before an offset gap is compressed up to its last record, not up to the next segment."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store, 5)
        store.flusher.flush()
        with store.log.writing():
            store.log.abandon_active()
        _fill(store, 30)
        before = read_all(store)
        begins = compress_all(store)
        assert begins[0] == 0
        assert compressed(store, Offset(0)).end == before[4].offset + 8 + len(before[4].payload)
        assert compressed(store, Offset(0)).next_sequence == 5
        assert read_all(store) == before


def test_the_header_is_that_of_the_plain_segment(path: Path) -> None:
    """A compressed segment has the begin, sequence, ids and predecessor of the plain one in its header."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        headers = [store.segments.get(begin).header for begin in store.segments.begins]
        compress_all(store)
        store.segments.scan()
        assert [store.segments.header(begin) for begin in store.segments.begins] == headers
        assert [store.segments.get(begin).header for begin in store.segments.begins] == headers
        following = store.segments.begins[1:]
        assert [compressed(store, begin).end for begin in store.segments.begins[:-1]] == following


@pytest.mark.parametrize("method", ["zstd", "lz4", "gzip"])
def test_what_cannot_be_compressed_stays_plain(path: Path, method: CompressionMethod) -> None:
    """A segment that cannot be compressed stays plain, and leaves no file of the attempt."""
    noise = random.Random(1)
    with opened(path, ChannelOptions(segment_size=1 << 16, spare_segments=0)) as store:
        for _ in range(300):
            store.log.append([noise.randbytes(1000)])
        names = _names(path)
        assert compress_all(store, method, block_size=4096) == []
        assert _names(path) == names


def test_a_few_blocks_show_that_it_is_not_worth_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compressor gives up on a large segment of noise after a few blocks."""
    noise = random.Random(1)
    with opened(path, ChannelOptions(segment_size=1 << 18)) as store:
        for _ in range(300):
            store.log.append([noise.randbytes(1000)])
        store.flusher.flush()
        compressor, tried = _compressor(store, block_size=4096), 0

        def count() -> None:
            nonlocal tried
            tried += 1

        assert compress_segment(compressor, _candidates(store)[0], count) == 0
        assert 1 <= tried <= 4


def test_a_block_of_noise_is_stored_as_it_is(path: Path) -> None:
    """A block that would grow is stored uncompressed, and the other blocks are compressed."""
    noise = random.Random(1).randbytes(1500)
    with opened(path, ChannelOptions(segment_size=1 << 14)) as store:
        for _ in range(6):
            store.log.append([b"text " * 1000])
            store.log.append([noise])
        before = read_all(store)
        assert compress_all(store)
        assert read_all(store) == before


def test_a_damaged_segment_stays_plain(path: Path) -> None:
    """A segment with an invalid header or end, or one that is cut off, stays plain."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        first, second, third, *rest = _candidates(store)
        store.segments.get(first.begin).invalidate()
        store.segments.get(second.begin).map[60:64] = b"none"
    with store.segments.path(third.begin).open("r+b") as file:
        file.truncate(2000)
    with opened(path, NO_FREE_LIST) as store:
        compressor = _compressor(store)
        assert [compressor.prepare(candidate) for candidate in (first, second, third)] == [None, None, None]
        assert compress_segment(compressor, rest[0])


# Where it is written


def test_it_is_on_disk_before_the_plain_file_is_removed(path: Path) -> None:
    """The compressed file, its name and the index are on disk before the plain file is deleted."""
    files = FaultyFiles()
    with opened(path, NO_FREE_LIST, files=files) as store:
        _fill(store)
        store.flusher.flush()
        candidate = _candidates(store)[0]
        target = compressed_file(store, candidate.begin)
        steps: list[str] = []
        real = Files.unlink

        def unlink(self: Files, file: Path) -> None:
            steps.append(f"unlink {file.name}")
            real(self, file)

        files.flushed.clear()
        files.unlink = unlink.__get__(files)  # type: ignore[method-assign]
        assert compress_segment(_compressor(store), candidate)
        index = index_path(target)
        assert files.flushed == [index, target.with_name(f"new-{target.name}"), store.segments.directory]
        assert steps == [f"unlink {store.segments.path(candidate.begin).name}"]
        assert index.exists()


def test_two_at_once_do_not_disturb_each_other(path: Path) -> None:
    """A second compressor finds the segment locked, and starts again when the first one is dead."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        before = read_all(store)
        candidate = _candidates(store)[0]
        compressor, other = _compressor(store), _compressor(store)
        prepared = compressor.prepare(candidate)
        assert prepared is not None
        with pytest.raises(Busy):
            other.prepare(candidate)
        Files().close(prepared.descriptor)  # as a process does that dies
        assert compress_segment(other, candidate)
        assert read_all(store) == before
        assert not [name for name in _names(path) if name.startswith("new-")]


def test_a_sweep_between_creation_and_lock_does_not_stop_a_compressor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a sweep deletes the new file before it is locked, the compressor creates it again."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        candidate = _candidates(store)[0]
        created: list[Path] = []
        create = Files.create

        def create_and_sweep(files: Files, name: Path, mode: int, *, replace: bool = True) -> int:
            descriptor = create(files, name, mode, replace=replace)
            if name.name.startswith("new-") and name not in created:
                created.append(name)
                sweep(store)
                assert not name.exists()
            return descriptor

        monkeypatch.setattr(Files, "create", create_and_sweep)
        assert compress_segment(_compressor(store), candidate)
        assert created


def test_what_is_prepared_can_be_discarded(path: Path) -> None:
    """A prepared compression that is discarded leaves nothing, and can be repeated."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        names, candidate = _names(path), _candidates(store)[0]
        compressor = _compressor(store)
        prepared = compressor.prepare(candidate)
        assert prepared is not None
        compressor.discard(prepared)
        assert _names(path) == names
        assert compress_segment(compressor, candidate)


def test_the_mode_is_that_of_the_channel(path: Path) -> None:
    """A compressed file has the mode of the channel's files."""
    with opened(path, ChannelOptions(segment_size=4096, mode=0o640)) as store:
        _fill(store)
        begin = compress_all(store)[0]
        assert compressed_file(store, begin).stat().st_mode & 0o777 == 0o640


# In between


def _reclaim(store: Store, candidate: Candidate) -> None:
    """Do what retention does, in its order."""
    store.control.oldest_offset = candidate.following
    store.segments.remove_before(candidate.following)


class _Interrupting(Files):
    """Lets something happen right before or after a file is renamed."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def replace(self, source: Path, target: Path) -> None:
        """Rename."""
        self.before()
        super().replace(source, target)
        self.after()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_segment_that_was_reclaimed_does_not_come_back(path: Path, when: str) -> None:
    """A segment that is reclaimed at any moment of its compression does not come back."""
    files = _Interrupting()
    with opened(path, NO_FREE_LIST, files=files) as store:
        _fill(store)
        store.flusher.flush()
        before = read_all(store)
        candidate = _candidates(store)[0]
        compressor = _compressor(store)
        prepared = compressor.prepare(candidate)
        assert prepared is not None
        setattr(files, when, lambda: _reclaim(store, candidate))
        assert not compressor.finish(prepared)
        assert min(int(name.split(".")[0]) for name in _names(path)) == candidate.following
        assert read_all(store) == [message for message in before if message.offset >= candidate.following]


def test_a_segment_reclaimed_during_compression_is_not_finished(path: Path) -> None:
    """A segment that was reclaimed during its compression is not renamed into place."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        candidate = _candidates(store)[0]
        compressor = _compressor(store)
        prepared = compressor.prepare(candidate)
        assert prepared is not None
        _reclaim(store, candidate)
        assert not compressor.finish(prepared)
        assert compressor.prepare(candidate) is None
        assert not [name for name in _names(path) if name.startswith(("new-", f"{candidate.begin:020}"))]


def test_a_file_that_was_used_for_something_else_is_not_believed(path: Path) -> None:
    """A segment whose header changed while it was read is not compressed, because its file was recycled."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        candidate = _candidates(store)[0]
        compressor = _compressor(store)
        prepared = compressor.prepare(candidate)
        assert prepared is not None
        segment = store.segments.get(candidate.begin)
        assert isinstance(segment, Segment)
        segment.invalidate()
        assert not compressor.finish(prepared)
        assert not compressed_file(store, candidate.begin).exists()


def test_purging_in_the_middle_leaves_nothing(path: Path) -> None:
    """A purge in the middle of a compression leaves neither file."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        compressor = _compressor(store)
        prepared = compressor.prepare(_candidates(store)[0])
        assert prepared is not None
        store.purge()
        assert not compressor.finish(prepared)
        assert len(_names(path)) == 1
        assert payloads_of(store) == []


# Failures


def _every_failure(path: Path, calls: frozenset[str], error: Callable[[Path], Exception]) -> Iterator[FaultyFiles]:
    """Let each of some calls fail, one by one, until none does."""
    for number in range(1, 100):
        files = FaultyFiles()
        with opened(path / str(number), NO_FREE_LIST, files=files) as store:
            _fill(store)
            store.flusher.flush()
            before, names, candidate = read_all(store), _names(path / str(number)), _candidates(store)[0]
            files.fail(calls, error, at=number)
            try:
                done = compress_segment(_compressor(store), candidate)
            except (DiskFullError, OSError):
                done = 0
            files.work()
            yield files
            assert read_all(store) == before
            left = _names(path / str(number))
            assert not [name for name in left if name.startswith("new-")]
            assert left == names or compressed_path(store.segments.path(candidate.begin)).name in left
            if done and not files.failures:
                return
            compress_segment(_compressor(store), candidate)
            keep_one_encoding(store.files, store.segments, candidate.begin)
            assert isinstance(store.segments.get(candidate.begin), CompressedSegment)
            assert read_all(store) == before
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("calls", "error"),
    [(NEEDING_SPACE, disk_full), (FLUSHING, input_output_error), (frozenset({"unlink"}), input_output_error)],
    ids=["disk full", "flush", "unlink"],
)
def test_whatever_fails_is_cleaned_up_and_done_later(
    path: Path, calls: frozenset[str], error: Callable[[Path], Exception]
) -> None:
    """After an error at any call all messages are stored, no incomplete file is left, and the next attempt succeeds."""
    assert sum(files.failures > 0 for files in _every_failure(path, calls, error)) >= 1


class _FullFiles(Files):
    """A disk without space for a compressed segment while a file is in the free list."""

    def write_at(self, descriptor: int, data: bytes, position: int) -> None:
        """Fail or write."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.suffix == ".z" and any(path.parent.glob("spare-*")):
            raise DiskFullError(path, len(data))
        super().write_at(descriptor, data, position)


def test_the_space_that_one_segment_saves_is_used_for_the_next(path: Path) -> None:
    """The plain file of a compressed segment is deleted, not kept in the free list, when the disk is full."""
    with opened(path, files=_FullFiles()) as store:
        _fill(store)
        store.flusher.flush()
        begins, messages = store.segments.begins, payloads_of(store)
        assert compress_all(store) == begins[:-1]
        assert payloads_of(store) == messages


# Both encodings


@pytest.fixture
def both(path: Path) -> Path:
    """A channel whose first segment exists in both encodings."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        plain = store.segments.path(0)
        content = plain.read_bytes()
        compress_all(store)
    plain.write_bytes(content)
    return path


def test_the_next_process_after_a_crash_finishes_it(both: Path) -> None:
    """After a crash the next process deletes the plain file when it has read the compressed one to its end."""
    with opened(both) as store:
        before = read_all(store)
        assert [candidate.begin for candidate in _candidates(store)] == [0]
        assert compress_segment(_compressor(store), _candidates(store)[0]) == 0
        assert not store.segments.path(0).exists()
        assert read_all(store) == before


@pytest.mark.parametrize("position", [10, 70, 90, -1])
def test_a_damaged_compressed_file_is_created_again(both: Path, position: int) -> None:
    """After a crash a damaged compressed file is created again from the plain one."""
    with opened(both) as store:
        before = read_all(store)
        file = compressed_file(store, 0)
        content = bytearray(file.read_bytes())
        content[position] ^= 1
        file.write_bytes(content)
        store.segments.forget(Offset(0))
        assert compress_segment(_compressor(store), _candidates(store)[0])
        compressed(store, Offset(0)).check()
        assert not store.segments.path(0).exists()
        assert read_all(store) == before


# With nothing open


def test_a_channel_is_compressed_with_nothing_open(path: Path) -> None:
    """`compress` of a closed channel compresses every finished segment, and a second call finds nothing to do."""
    with opened(path, ChannelOptions(segment_size=1 << 16, spare_segments=0)) as store:
        _fill(store, 1000)
        before, segments = read_all(store), len(store.segments.begins)
    report = compress(path)
    assert report.segments == segments - 1
    assert 0 < report.bytes_after < report.bytes_before / 4
    assert compress(path).segments == 0
    with opened(path, NO_FREE_LIST) as store:
        assert read_all(store) == before
        assert store.segments.usage().compressed == segments - 1


def test_the_method_is_that_of_the_channel(path: Path) -> None:
    """`compress` uses the method of the channel unless another one is given."""
    with opened(path, ChannelOptions(segment_size=1 << 16, compression=Compression(method="gzip"))) as store:
        _fill(store, 1000)
    compress(path)
    with opened(path, NO_FREE_LIST) as store:
        assert compressed(store, Offset(0)).method == 3
        _fill(store, 400)
        begin = store.segments.begins[-2]
    compress(path, Compression(method="lz4"))
    with opened(path, NO_FREE_LIST) as store:
        assert compressed(store, begin).method == 2


@shares
def test_compress_waits_for_the_maintenance_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compress` waits for the maintenance lock for a limited time, and leaves nothing behind."""
    monkeypatch.setattr(module, "_LOCK_WAIT_SECONDS", 0.05)
    with opened(path, ChannelOptions(segment_size=1 << 16, spare_segments=0)) as store:
        _fill(store, 1000)
        store.flusher.flush()
        names = _names(path)
        with store.maintenance_lock.held(), pytest.raises(Busy):
            compress(path)
        assert _names(path) == names
        assert compress(path).segments == len(store.segments.begins) - 1


# What the dead leave


def test_incomplete_files_are_swept(path: Path) -> None:
    """Incomplete files of dead processes are deleted, and those of a live one are kept."""
    with opened(path, NO_FREE_LIST) as store:
        _fill(store)
        store.flusher.flush()
        compressor = _compressor(store)
        dead, alive = (compressor.prepare(candidate) for candidate in _candidates(store)[:2])
        assert dead is not None
        assert alive is not None
        Files().close(dead.descriptor)  # as a process does that dies
        sweep(store)
        assert [name for name in _names(path) if name.startswith("new-")] == [alive.path.name]
        assert compressor.finish(alive)
        assert compress_segment(compressor, dead.candidate)


def test_a_segment_that_is_reclaimed_while_its_encodings_are_compared(
    both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is reclaimed while its two encodings are compared is neither kept nor reported."""
    with opened(both, NO_FREE_LIST) as store:
        candidate = _candidates(store)[0]
        check = CompressedSegment.open

        def open_too_late(files: Files, path: Path, *_: object) -> CompressedSegment:
            store.segments.remove(candidate.begin)
            return check(files, path)

        monkeypatch.setattr(CompressedSegment, "open", open_too_late)
        assert _compressor(store).prepare(candidate) is None
