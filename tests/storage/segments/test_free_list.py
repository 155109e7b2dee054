"""Files that wait to become segments."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event, Thread

import pytest

from filechannel import ChannelOptions, DiskFullError, StorageError
from filechannel._format import PURE
from filechannel._offset import Offset
from filechannel._storage.segments.free_list import FreeList, free_file_names
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.processes.workers import TIMEOUT
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, read_all, reader_of, take_all
from tests.storage.faults import FLUSHING, FaultyFiles, input_output_error
from tests.storage.reclaiming import reclaim
from tests.storage.resources import files_under, maps_under

SIZE = 4096
files = Files()
shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


def _free_files(directory: Path, most: int = 2, fit_from: int = 0) -> FreeList:
    return FreeList(files, directory, SIZE, 0o600, lambda: most, lambda: fit_from, lambda: None)


def _file(directory: Path, begin: int, size: int = SIZE) -> Path:
    path = directory / segment_name(begin)
    path.write_bytes(b"x" * size)
    return path


def _fill(store: Store, segments: int) -> None:
    """Send messages of which each takes a segment."""
    for _ in range(segments):
        store.log.append([os.urandom(SIZE // 2 + 100)])


def _reclaim_all(store: Store) -> None:
    reclaim(store, store.control.write_offset)


# Waiting


def test_a_file_in_the_free_list_is_not_a_segment_any_more(tmp_path: Path) -> None:
    """A file in the free list has an invalid magic number for processes that map it, and is otherwise unchanged."""
    path = _file(tmp_path, 100)
    free_list = _free_files(tmp_path)
    free_list.recycle(path, 100)
    [name] = free_list.names()
    assert not path.exists()
    assert (tmp_path / name).read_bytes() == bytes(8) + b"x" * (SIZE - 8)


def test_no_more_files_wait_than_the_options_say(tmp_path: Path) -> None:
    """The free list holds as many files as the options allow, and others are deleted."""
    free_list = _free_files(tmp_path, most=2)
    for begin in range(5):
        free_list.recycle(_file(tmp_path, begin), begin)
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 3 * SIZE])
def test_only_files_of_the_ordinary_size_are_used_again(tmp_path: Path, size: int) -> None:
    """Only files of the ordinary segment size go to the free list, and larger or shorter ones are deleted."""
    _free_files(tmp_path).recycle(_file(tmp_path, 0, size), 0)
    assert os.listdir(tmp_path) == []


def test_files_from_before_a_failed_flush_are_not_used_again(tmp_path: Path) -> None:
    """Files from before a failed flush are deleted, because the disk refused one of them."""
    free_list = _free_files(tmp_path, fit_from=100)
    free_list.recycle(_file(tmp_path, 99), 99)
    assert free_list.names() == []
    free_list.recycle(_file(tmp_path, 100), 100)
    assert len(free_list.names()) == 1


def test_a_file_with_another_name_is_not_recycled(tmp_path: Path) -> None:
    """A file with another name is not recycled, because a backup by hard links would be destroyed."""
    path = _file(tmp_path, 0)
    backup = tmp_path / "backup"
    backup.hardlink_to(path)
    free_list = _free_files(tmp_path)
    free_list.recycle(path, 0)
    assert free_list.names() == []
    assert backup.read_bytes() == b"x" * SIZE


def test_retiring_a_missing_segment_does_nothing(tmp_path: Path) -> None:
    """Retiring a segment that another process retired does nothing."""
    free_list = _free_files(tmp_path)
    free_list.recycle(tmp_path / segment_name(7), 7)
    assert free_list.take() is None


def test_only_files_that_are_there_are_remembered(tmp_path: Path) -> None:
    """A process that retires segments does not list files that another one has taken."""
    free_list = _free_files(tmp_path)
    for begin in range(20):
        free_list.recycle(_file(tmp_path, begin), begin)
        (tmp_path / free_list.names()[0]).rename(tmp_path / segment_name(100 + begin))
    assert len(free_list._waiting) == 1


# Taking


def test_the_file_that_was_used_last_is_taken_first(tmp_path: Path) -> None:
    """The file that was retired last is taken first, because its pages are still in memory."""
    free_list = _free_files(tmp_path)
    inodes = []
    for begin in range(2):
        path = _file(tmp_path, begin)
        inodes.append(path.stat().st_ino)
        free_list.recycle(path, begin)
    taken = [free_list.take(), free_list.take(), free_list.take()]
    assert [None if spare is None else spare.inode[1] for spare in taken] == [*reversed(inodes), None]


def test_a_file_that_another_process_has_taken_is_skipped(tmp_path: Path) -> None:
    """A file that another process has taken or replaced is skipped."""
    ours = _free_files(tmp_path, most=3)
    for begin in range(3):
        ours.recycle(_file(tmp_path, begin), begin)
    first, second, third = sorted(ours.names())
    (tmp_path / third).rename(tmp_path / segment_name(9))
    (tmp_path / "other").write_bytes(bytes(SIZE))
    (tmp_path / "other").replace(tmp_path / second)
    taken = ours.take()
    assert taken is not None
    assert taken.path.name == first
    assert ours.take() is None


def test_files_left_by_dead_processes_are_recycled_or_removed(tmp_path: Path) -> None:
    """Files of dead processes are recycled up to the limit if they are complete, and deleted otherwise."""
    for name, size in (("spare-1.seg", SIZE), ("spare-2.seg", SIZE), ("spare-3.seg", SIZE), ("spare-4.seg", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    free_list = _free_files(tmp_path)
    free_list.trim()
    assert free_list.names() == ["spare-1.seg", "spare-2.seg"]
    assert [spare is not None for spare in (free_list.take(), free_list.take(), free_list.take())] == [
        True,
        True,
        False,
    ]


# Preparing


def test_a_file_is_made_with_all_its_disk_space(tmp_path: Path) -> None:
    """A prepared file has its disk space and a name with the offset of the segment it is for."""
    free_list = _free_files(tmp_path)
    spare = free_list.prepare(segment_name(5))
    assert spare is not None
    assert spare.is_whole
    assert re.fullmatch("spare-[0-9a-f]{16}-after-00000000000000000005.seg", spare.path.name)
    assert spare.path.stat().st_size == SIZE
    assert spare.path.stat().st_blocks * 512 >= SIZE
    assert free_list.take() == spare


def test_the_name_of_a_file_is_never_reused(tmp_path: Path) -> None:
    """The name of a free file is not reused, so that a rename cannot move a newer file."""
    free_list = _free_files(tmp_path)
    first = free_list.prepare(segment_name(5))
    free_list.remove_all()
    second = free_list.prepare(segment_name(5))
    assert first is not None
    assert second is not None
    assert first.path != second.path


def test_a_file_that_waits_is_prepared_instead(tmp_path: Path) -> None:
    """A file of the free list, also of another process, is prepared instead of a new one."""
    (tmp_path / "spare-1.seg").touch()
    os.truncate(tmp_path / "spare-1.seg", SIZE)
    spare = _free_files(tmp_path).prepare(segment_name(5))
    assert spare is not None
    assert spare.path.name == "spare-1.seg"
    assert spare.is_whole
    assert spare.path.stat().st_blocks * 512 >= SIZE


def test_nothing_is_prepared_where_nothing_may_wait(tmp_path: Path) -> None:
    """With `spare_segments=0` no file is prepared."""
    assert _free_files(tmp_path, most=0).prepare(segment_name(5)) is None
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_incomplete_file(tmp_path: Path) -> None:
    """A full disk leaves no incomplete file, and the caller gets the error and tries later."""
    faulty = FaultyFiles()
    faulty.fail(frozenset({"allocate"}), lambda path: DiskFullError(path, SIZE))
    free_list = FreeList(faulty, tmp_path, SIZE, 0o600, lambda: 2, lambda: 0, lambda: None)
    with pytest.raises(DiskFullError):
        free_list.prepare(segment_name(5))
    assert os.listdir(tmp_path) == []


class _Slow(Files):
    """Is slow to allocate disk space; remembers what was removed in between."""

    def __init__(self) -> None:
        self.inside, self.removed = Event(), Event()
        self.removed_inside = False

    def allocate(self, path: Path, descriptor: int, position: int, size: int) -> None:
        super().allocate(path, descriptor, position, size)
        self.inside.set()
        self.removed_inside = self.removed.wait(0.2)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.removed.set()


def test_a_process_that_needs_the_space_waits_for_a_file_that_is_being_created(tmp_path: Path) -> None:
    """A process that needs space deletes a file that is being created, and waits until its space is free."""
    files = _Slow()
    free_list = FreeList(files, tmp_path, SIZE, 0o600, lambda: 2, lambda: 0, lambda: None)
    thread = Thread(target=free_list.prepare, args=[segment_name(5)])
    thread.start()
    assert files.inside.wait(TIMEOUT)
    free_list.remove_all()
    thread.join()
    assert not files.removed_inside
    assert free_list.names() == []


# In a channel


def test_segments_are_written_into_the_files_of_consumed_ones(path: Path) -> None:
    """Segments are written into the files of consumed ones, with the same inodes and maps."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        for _ in range(10):
            _fill(store, 1)
            _reclaim_all(store)
        segments = path / "segments"
        inodes = {entry.stat().st_ino for entry in segments.glob("*.seg")}
        before = faulty.calls["create"] + faulty.calls["map"], store.segments.mapped
        for number in range(30):
            store.log.append([bytes([number]) * (SIZE // 2 + 100)])
            assert payloads_of(store)[-1][:1] == bytes([number])
            _reclaim_all(store)
        assert {entry.stat().st_ino for entry in segments.glob("*.seg")} == inodes
        # Only indexes are made.
        assert faulty.calls["create"] + faulty.calls["map"] <= before[0] + 30
        assert store.segments.mapped == before[1]


def test_what_a_file_held_before_is_never_read_again(path: Path) -> None:
    """Records that a recycled file held before are not read, also if it contains less than before."""
    with opened(path) as store:
        store.log.append([b"old %d" % number * 20 for number in range(20)])
        _fill(store, 2)
        _reclaim_all(store)
        assert free_file_names(files, path / "segments")
        _fill(store, 1)
        store.log.append([b"new"])
        assert payloads_of(store)[-1] == b"new"
    with opened(path) as store:
        assert payloads_of(store)[-1] == b"new"


def test_a_large_message_gets_a_file_of_its_own(path: Path) -> None:
    """A large message gets a file of its own, which is deleted afterwards."""
    with opened(path) as store:
        _fill(store, 3)
        _reclaim_all(store)
        before = free_file_names(files, path / "segments")
        assert before
        store.log.append([bytes(5 * SIZE)])
        assert free_file_names(files, path / "segments") == before
        _fill(store, 1)
        _reclaim_all(store)
        sizes = {entry.stat().st_size for entry in (path / "segments").glob("spare-*")}
        assert sizes == {SIZE}


def test_a_rolled_back_segment_is_not_recycled(path: Path) -> None:
    """The file of a rolled back segment is not recycled, because its records would be valid at the same offsets."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        store.log.append([b"first"])
        faulty.fail(frozenset({"create"}), lambda path: DiskFullError(path, SIZE), at=3)
        with pytest.raises(DiskFullError):
            store.log.append([bytes(3000) for _ in range(5)])
        faulty.work()
        assert free_file_names(files, path / "segments") == []
        assert payloads_of(store) == [b"first"]


def test_files_of_a_failed_flush_never_wait(path: Path, background: Background) -> None:
    """Files from before a failed flush are never recycled, also in another life of the channel."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        _fill(store, 4)
        _reclaim_all(store)
        assert free_file_names(files, path / "segments")
        _fill(store, 1)
        faulty.fail(FLUSHING, input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.flush()
        faulty.work()
        assert free_file_names(files, path / "segments") == []
    with opened(path) as store:
        _fill(store, 1)
        poisoned_before = [begin for begin in store.segments.begins if begin < store.control.poisoned_before]
        assert poisoned_before
        store.control.oldest_offset = Offset(store.control.poisoned_before)
        store.segments.remove_before(Offset(store.control.poisoned_before))
        assert free_file_names(files, path / "segments") == []
        background.forget()


def test_the_free_list_makes_space_on_a_full_disk(path: Path) -> None:
    """On a full disk files of the free list are deleted for a message."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        _fill(store, 3)
        _reclaim_all(store)
        assert free_file_names(files, path / "segments")
        faulty.fail(frozenset({"allocate"}), lambda path: DiskFullError(path, SIZE), once=True)
        store.log.append([bytes(2 * SIZE)])
        assert free_file_names(files, path / "segments") == []


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=shares)])
def test_files_that_are_removed_are_not_kept_mapped(path: Path, elsewhere: bool) -> None:
    """Files that are deleted are unmapped at once, here and in processes that scan again."""
    with opened(path) as store, opened(path) if elsewhere else nullcontext(store) as other:
        _fill(store, 3)
        _reclaim_all(store)
        assert other.segments.begins
        assert free_file_names(files, path / "segments")
        other.segments.remove_free_files()
        with other.log.writing():
            other.log.appender.announce_change()
        assert store.segments.begins
        gc.collect()
        mapped = Path("/proc/self/maps").read_text().splitlines()
        assert not [line for line in mapped if str(path) in line and "deleted" in line]


def test_the_manifest_bounds_the_free_list(path: Path) -> None:
    """`spare_segments` of the manifest limits the free list when a segment is retired."""
    with opened(path, ChannelOptions(segment_size=SIZE, spare_segments=0)) as store:
        _fill(store, 4)
        _reclaim_all(store)
        assert free_file_names(files, path / "segments") == []


def test_the_file_of_a_segment_that_is_elsewhere_is_used_again(path: Path) -> None:
    """The plain file of a compressed segment is recycled."""
    with opened(path) as store:
        _fill(store, 3)
        first = store.segments.begins[0]
        store.segments.replace_plain(first)
        assert free_file_names(files, path / "segments") == [f"spare-{segment_name(first)}"]
        assert store.segments.begins[0] == first


@pytest.mark.parametrize("how", ["idle", "purged", "sealed"])
def test_an_empty_channel_keeps_no_file(path: Path, how: str) -> None:
    """An empty channel deletes the files of its free list."""
    with opened(path) as store:
        _fill(store, 4)
        _reclaim_all(store)
        assert free_file_names(files, path / "segments")
        if how == "purged":
            store.purge()
        else:
            if how == "sealed":
                store.seal()
            with store.flusher.held(), store.log.writing():
                store.flusher.commit_with_lock()
                store.log.appender.finish_segment()
                store.control.oldest_offset = store.control.write_offset
                store.flusher.flush_with_lock()
                store.segments.remove_before(store.control.write_offset)
        assert free_file_names(files, path / "segments") == []


# Readers


def test_an_overtaken_reader_gets_an_error(path: Path) -> None:
    """A reader whose file another process recycled gets an error."""
    with opened(path) as store, opened(path, readonly=True) as other:
        _fill(store, 4)
        reader = reader_of(other)
        reader.move(other.lookup.earliest())
        assert len(reader.take_many(1)) == 1
        for _ in range(6):
            _reclaim_all(store)
            _fill(store, 2)
        messages, errors = [], 0
        while other.control.write_offset > reader.native.offset:
            try:
                messages += take_all(reader)
            except StorageError:
                errors += 1
        assert errors == 1
        assert [message.payload for message in messages] == payloads_of(store)
        reader.close()


@pytest.mark.parametrize("mapped", [2, 4, 8])
def test_readers_far_behind_share_the_maps(path: Path, mapped: int) -> None:
    """Eight readers in segments of a long backlog map and open no more than the options allow."""
    with opened(path, mapped=mapped) as store:
        _fill(store, 40)
        store.flusher.flush()
        expected = payloads_of(store)
        readers = [reader_of(store) for _ in range(8)]
        for number, reader in enumerate(readers):
            reader.move(store.lookup.numbered(number * 4))
        for step in range(4):
            for number, reader in enumerate(readers):
                assert reader.take_many(1) == [expected[number * 4 + step]]
                assert store.segments.mapped <= mapped
                assert maps_under(path / "segments") <= mapped
        assert files_under(path / "segments") <= 2 * mapped + 1  # and the index
        for reader in readers:
            reader.close()


# Lookups


class _Overtaken(Files):
    """A disk on which segments are retired, and their files recycled, in the middle of a lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.strike: Callable[[], object] | None = None
        self._index = -1

    def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
        """Note which descriptor is that of an index."""
        descriptor = super().open(path, create=create, writable=writable, mode=mode)
        if path.suffix == ".idx":
            self._index = descriptor
        return descriptor

    def close(self, descriptor: int) -> None:
        """Be overtaken after an index was read, and before the reader looks at its segment."""
        super().close(descriptor)
        if descriptor == self._index:
            self._index = -1
            strike, self.strike = self.strike, None
            if strike is not None:
                strike()


def test_a_lookup_that_is_overtaken_is_repeated(path: Path) -> None:
    """A lookup during which its segment is recycled is repeated, and raises that the message is not stored."""
    disk = _Overtaken()
    with opened(path) as store, opened(path, readonly=True, files=disk) as other:
        for number in range(40):
            store.log.append([b"%d" % number * 200])

        def overtake() -> None:
            reclaim(store, store.segments.begins[1])
            _fill(store, 3)

        looks: list[Callable[[], object]] = [
            lambda: other.lookup.numbered(9),
            lambda: other.lookup.at(last_of_oldest),
        ]
        for look in looks:
            store.log.store_index_entries()
            disk.strike = overtake
            last_of_oldest = [each.offset for each in read_all(store) if each.offset < store.segments.begins[1]][-1]
            with pytest.raises(ValueError, match="not"):
                look()
            assert disk.strike is None


# Flushing


def test_what_is_consumed_in_time_is_never_written_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished segment that is consumed before its flush is retired without being flushed."""
    monkeypatch.setattr("filechannel._storage.durability.flusher.FINISHED_FLUSH_DELAY_SECONDS", 1000.0)
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        before = faulty.calls["flush"]
        for _ in range(100):
            _fill(store, 1)
            reclaim(store, store.control.write_offset, flush=False)
        assert faulty.calls["flush"] == before
        assert len(store.log.dirty) <= 3


def test_many_finished_segments_are_flushed_at_once(path: Path, background: Background) -> None:
    """Finished segments that are not consumed in time are flushed several at once."""
    with opened(path) as store:
        _fill(store, 20)
        background.run()
        assert store.control.durable_offset >= store.segments.begins[-2]


def test_segments_that_begin_a_batch_are_known(path: Path) -> None:
    """A segment that begins with a batch, at which the log can begin, is known from one that begins inside a batch."""
    with opened(path) as store:
        store.log.append([bytes(3000)])
        store.log.append([bytes(3000)])
        between = store.segments.begins[-1]
        store.log.append([bytes(3000), bytes(3000)])
        middle = store.segments.begins[-1]
        assert middle > between
        assert store.log.dirty.is_between_batches(between)
        assert not store.log.dirty.is_between_batches(middle)


def test_a_late_retirement_does_not_touch_what_the_file_has_become(path: Path) -> None:
    """If two processes retire one file, the later one does not change the segment that it has become."""

    class Late(Files):
        meanwhile: Callable[[], object] | None = None

        def open(self, path: Path, *, create: bool = False, writable: bool = True, mode: int = 0o600) -> int:
            descriptor = super().open(path, create=create, writable=writable, mode=mode)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            return descriptor

    late = Late()
    with opened(path) as store:
        _fill(store, 4)
        first = store.segments.begins[0]

        def write_it_again() -> None:
            reclaim(store, store.segments.begins[2])
            _fill(store, 3)

        late.meanwhile = write_it_again
        free_list = FreeList(late, store.segments.directory, SIZE, 0o600, lambda: 5, lambda: 0, lambda: None)
        free_list.recycle(store.segments.path(first), first)
        assert late.meanwhile is None
        assert all(store.segments.get(begin).is_valid for begin in store.segments.begins)
        assert len(payloads_of(store)) == len(store.segments.begins)
