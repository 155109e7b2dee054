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
from filechannel._storage.files import Files
from filechannel._storage.segment import segment_name
from filechannel._storage.spares import Spares, spare_names
from filechannel._storage.store import Store
from tests.processes.crew import PATIENCE
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, read_all, reader_of, take_all
from tests.storage.faults import FLUSHING, FaultyFiles, input_output_error
from tests.storage.reclaiming import reclaim
from tests.storage.resources import files_under, maps_under

SIZE = 4096
files = Files()
shares = pytest.mark.skipif(PURE, reason="the pure twin shares with nobody")


def _spares(directory: Path, most: int = 2, fit_from: int = 0) -> Spares:
    return Spares(files, directory, SIZE, 0o600, lambda: most, lambda: fit_from)


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


def test_a_file_that_waits_is_no_segment_any_more(tmp_path: Path) -> None:
    """Whoever has it mapped finds the magic number overwritten, and the rest as it was."""
    path = _file(tmp_path, 100)
    spares = _spares(tmp_path)
    spares.recycle(path, 100)
    [name] = spares.names()
    assert not path.exists()
    assert (tmp_path / name).read_bytes() == bytes(8) + b"x" * (SIZE - 8)


def test_no_more_files_wait_than_the_options_say(tmp_path: Path) -> None:
    """The others are removed."""
    spares = _spares(tmp_path, most=2)
    for begin in range(5):
        spares.recycle(_file(tmp_path, begin), begin)
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, 3 * SIZE])
def test_only_files_of_the_ordinary_size_are_used_again(tmp_path: Path, size: int) -> None:
    """One that was made for a large message is removed, and so is one that was cut off."""
    _spares(tmp_path).recycle(_file(tmp_path, 0, size), 0)
    assert os.listdir(tmp_path) == []


def test_files_from_before_a_failed_flush_are_not_used_again(tmp_path: Path) -> None:
    """The disk has refused one of them."""
    spares = _spares(tmp_path, fit_from=100)
    spares.recycle(_file(tmp_path, 99), 99)
    assert spares.names() == []
    spares.recycle(_file(tmp_path, 100), 100)
    assert len(spares.names()) == 1


def test_a_file_with_another_name_is_not_written_again(tmp_path: Path) -> None:
    """Whoever made a copy by links would lose it."""
    path = _file(tmp_path, 0)
    backup = tmp_path / "backup"
    backup.hardlink_to(path)
    spares = _spares(tmp_path)
    spares.recycle(path, 0)
    assert spares.names() == []
    assert backup.read_bytes() == b"x" * SIZE


def test_giving_up_what_is_gone_already_does_nothing(tmp_path: Path) -> None:
    """Another process may have done it."""
    spares = _spares(tmp_path)
    spares.recycle(tmp_path / segment_name(7), 7)
    assert spares.take() is None


def test_only_files_that_are_there_are_remembered(tmp_path: Path) -> None:
    """A process that gives segments up for one that writes does not remember what the other has taken."""
    spares = _spares(tmp_path)
    for begin in range(20):
        spares.recycle(_file(tmp_path, begin), begin)
        (tmp_path / spares.names()[0]).rename(tmp_path / segment_name(100 + begin))
    assert len(spares._waiting) == 1


# Taking


def test_the_file_that_was_used_last_is_taken_first(tmp_path: Path) -> None:
    """Its pages are the ones that are still there."""
    spares = _spares(tmp_path)
    inodes = []
    for begin in range(2):
        path = _file(tmp_path, begin)
        inodes.append(path.stat().st_ino)
        spares.recycle(path, begin)
    taken = [spares.take(), spares.take(), spares.take()]
    assert [None if spare is None else spare.inode[1] for spare in taken] == [*reversed(inodes), None]


def test_a_file_that_another_process_has_taken_is_passed_over(tmp_path: Path) -> None:
    """Its name leads nowhere, or to another file."""
    ours = _spares(tmp_path, most=3)
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


def test_what_the_dead_have_left_is_used_or_removed(tmp_path: Path) -> None:
    """Whole files wait again, as many as may; half-made ones go."""
    for name, size in (("spare-1.seg", SIZE), ("spare-2.seg", SIZE), ("spare-3.seg", SIZE), ("spare-4.seg", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    spares = _spares(tmp_path)
    spares.trim()
    assert spares.names() == ["spare-1.seg", "spare-2.seg"]
    assert [spare is not None for spare in (spares.take(), spares.take(), spares.take())] == [True, True, False]


# Preparing


def test_a_file_is_made_with_all_its_disk_space(tmp_path: Path) -> None:
    """Whoever sends finds it under a name that says what it is to follow."""
    spares = _spares(tmp_path)
    spare = spares.prepare(segment_name(5))
    assert spare is not None
    assert spare.is_whole
    assert re.fullmatch("spare-[0-9a-f]{16}-after-00000000000000000005.seg", spare.path.name)
    assert spare.path.stat().st_size == SIZE
    assert spare.path.stat().st_blocks * 512 >= SIZE
    assert spares.take() == spare


def test_the_name_of_a_file_never_comes_again(tmp_path: Path) -> None:
    """Whoever has looked at a name, and gives it to a segment, moves that file and none that was made since."""
    spares = _spares(tmp_path)
    first = spares.prepare(segment_name(5))
    spares.remove_all()
    second = spares.prepare(segment_name(5))
    assert first is not None
    assert second is not None
    assert first.path != second.path


def test_a_file_that_waits_is_prepared_instead(tmp_path: Path) -> None:
    """Another process may have left it."""
    (tmp_path / "spare-1.seg").touch()
    os.truncate(tmp_path / "spare-1.seg", SIZE)
    spare = _spares(tmp_path).prepare(segment_name(5))
    assert spare is not None
    assert spare.path.name == "spare-1.seg"
    assert spare.is_whole
    assert spare.path.stat().st_blocks * 512 >= SIZE


def test_nothing_is_prepared_where_nothing_may_wait(tmp_path: Path) -> None:
    """Such a channel keeps no file that holds nothing."""
    assert _spares(tmp_path, most=0).prepare(segment_name(5)) is None
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_half_made_file(tmp_path: Path) -> None:
    """Whoever prepares is told, and tries another time."""
    faulty = FaultyFiles()
    faulty.fail(frozenset({"allocate"}), lambda path: DiskFullError(path, SIZE))
    spares = Spares(faulty, tmp_path, SIZE, 0o600, lambda: 2, lambda: 0)
    with pytest.raises(DiskFullError):
        spares.prepare(segment_name(5))
    assert os.listdir(tmp_path) == []


class _Slow(Files):
    """Takes its time to reserve disk space; remembers what was removed meanwhile."""

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


def test_whoever_needs_the_room_waits_for_a_file_that_is_being_made(tmp_path: Path) -> None:
    """It has its room until it is made, whatever becomes of its name: then it goes, and the room is there."""
    files = _Slow()
    spares = Spares(files, tmp_path, SIZE, 0o600, lambda: 2, lambda: 0)
    thread = Thread(target=spares.prepare, args=[segment_name(5)])
    thread.start()
    assert files.inside.wait(PATIENCE)
    spares.remove_all()
    thread.join()
    assert not files.removed_inside
    assert spares.names() == []


# In a channel


def test_segments_are_written_into_the_files_of_consumed_ones(path: Path) -> None:
    """The same inodes, the same maps: nothing is made and nothing is removed."""
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
    """A shorter history in the same bytes: what lies behind its end are records of before, and none of them counts."""
    with opened(path) as store:
        store.log.append([b"old %d" % number * 20 for number in range(20)])
        _fill(store, 2)
        _reclaim_all(store)
        assert spare_names(files, path / "segments")
        _fill(store, 1)
        store.log.append([b"new"])
        assert payloads_of(store)[-1] == b"new"
    with opened(path) as store:
        assert payloads_of(store)[-1] == b"new"


def test_a_large_message_gets_a_file_of_its_own(path: Path) -> None:
    """Spare files are too small for it, and its own is not used again."""
    with opened(path) as store:
        _fill(store, 3)
        _reclaim_all(store)
        before = spare_names(files, path / "segments")
        assert before
        store.log.append([bytes(5 * SIZE)])
        assert spare_names(files, path / "segments") == before
        _fill(store, 1)
        _reclaim_all(store)
        sizes = {entry.stat().st_size for entry in (path / "segments").glob("spare-*")}
        assert sizes == {SIZE}


def test_what_was_taken_back_is_not_used_again(path: Path) -> None:
    """Its offsets are yet to be used: there the records would validate."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        store.log.append([b"first"])
        faulty.fail(frozenset({"create"}), lambda path: DiskFullError(path, SIZE), at=3)
        with pytest.raises(DiskFullError):
            store.log.append([bytes(3000) for _ in range(5)])
        faulty.work()
        assert spare_names(files, path / "segments") == []
        assert payloads_of(store) == [b"first"]


def test_files_of_a_failed_flush_never_wait(path: Path, background: Background) -> None:
    """Not even when what is in them was consumed long ago, in another life of the channel."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        _fill(store, 4)
        _reclaim_all(store)
        assert spare_names(files, path / "segments")
        _fill(store, 1)
        faulty.fail(FLUSHING, input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.flush()
        faulty.work()
        assert spare_names(files, path / "segments") == []
    with opened(path) as store:
        _fill(store, 1)
        given_up = [begin for begin in store.segments.begins if begin < store.control.given_up]
        assert given_up
        store.control.oldest_offset = Offset(store.control.given_up)
        store.segments.remove_before(Offset(store.control.given_up))
        assert spare_names(files, path / "segments") == []
        background.forget()


def test_spare_files_make_room_on_a_full_disk(path: Path) -> None:
    """A message is worth more than a file that holds nothing."""
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        _fill(store, 3)
        _reclaim_all(store)
        assert spare_names(files, path / "segments")
        faulty.fail(frozenset({"allocate"}), lambda path: DiskFullError(path, SIZE), once=True)
        store.log.append([bytes(2 * SIZE)])
        assert spare_names(files, path / "segments") == []


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=shares)])
def test_files_that_are_removed_are_not_kept_mapped(path: Path, elsewhere: bool) -> None:
    """They would take their disk space until something else is mapped: here, and in a process that looks again."""
    with opened(path) as store, opened(path) if elsewhere else nullcontext(store) as other:
        _fill(store, 3)
        _reclaim_all(store)
        assert other.segments.begins
        assert spare_names(files, path / "segments")
        other.segments.remove_spares()
        with other.log.writing():
            other.log.announce_change()
        assert store.segments.begins
        gc.collect()
        mapped = Path("/proc/self/maps").read_text().splitlines()
        assert not [line for line in mapped if str(path) in line and "deleted" in line]


def test_as_many_files_wait_as_the_manifest_says(path: Path) -> None:
    """Whoever gives segments up asks there."""
    with opened(path, ChannelOptions(segment_size=SIZE, spare_segments=0)) as store:
        _fill(store, 4)
        _reclaim_all(store)
        assert spare_names(files, path / "segments") == []


def test_the_file_of_a_segment_that_is_elsewhere_is_used_again(path: Path) -> None:
    """Its name stays: a compressed copy has it."""
    with opened(path) as store:
        _fill(store, 3)
        first = store.segments.begins[0]
        store.segments.replace_plain(first)
        assert spare_names(files, path / "segments") == [f"spare-{segment_name(first)}"]
        assert store.segments.begins[0] == first


@pytest.mark.parametrize("how", ["idle", "purged", "sealed"])
def test_a_channel_of_which_nothing_is_left_keeps_no_file(path: Path, how: str) -> None:
    """Nobody waits for it, and the disk space may be somebody else's."""
    with opened(path) as store:
        _fill(store, 4)
        _reclaim_all(store)
        assert spare_names(files, path / "segments")
        if how == "purged":
            store.purge()
        else:
            if how == "sealed":
                store.seal()
            with store.flusher.held(), store.log.writing():
                store.flusher.commit_settled()
                store.log.finish_segment()
                store.control.oldest_offset = store.control.write_offset
                store.flusher.flush(settled=True)
                store.segments.remove_before(store.control.write_offset)
        assert spare_names(files, path / "segments") == []


# Readers


def test_a_reader_that_is_overtaken_is_told(path: Path) -> None:
    """It stands in a file that is written again, by a process whose changes it has not seen."""
    with opened(path) as store, opened(path, readonly=True) as other:
        _fill(store, 4)
        reader = reader_of(other)
        reader.move(other.places.earliest())
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
    """Eight of them in eight segments of a long backlog: no more is mapped, or open, than the options allow."""
    with opened(path, mapped=mapped) as store:
        _fill(store, 40)
        store.flusher.flush()
        expected = payloads_of(store)
        readers = [reader_of(store) for _ in range(8)]
        for number, reader in enumerate(readers):
            reader.move(store.places.numbered(number * 4))
        for step in range(4):
            for number, reader in enumerate(readers):
                assert reader.take_many(1) == [expected[number * 4 + step]]
                assert store.segments.mapped <= mapped
                assert maps_under(path / "segments") <= mapped
        assert files_under(path / "segments") <= 2 * mapped + 1  # and the index
        for reader in readers:
            reader.close()


# Looking for a place


class _Overtaken(Files):
    """A disk on which segments are given up, and their files written again, in the middle of a look."""

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


def test_who_looks_for_a_place_and_is_overtaken_looks_again(path: Path) -> None:
    """Then it is said that the message is not stored any more, not that it is damaged."""
    disk = _Overtaken()
    with opened(path) as store, opened(path, readonly=True, files=disk) as other:
        for number in range(40):
            store.log.append([b"%d" % number * 200])

        def overtake() -> None:
            reclaim(store, store.segments.begins[1])
            _fill(store, 3)

        looks: list[Callable[[], object]] = [
            lambda: other.places.numbered(9),
            lambda: other.places.at(last_of_oldest),
        ]
        for look in looks:
            store.log.store_marks()
            disk.strike = overtake
            last_of_oldest = [each.offset for each in read_all(store) if each.offset < store.segments.begins[1]][-1]
            with pytest.raises(ValueError, match="not"):
                look()
            assert disk.strike is None


# Flushing


def test_what_is_consumed_in_time_is_never_written_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished segment waits for its flush; given up meanwhile, it needs none."""
    monkeypatch.setattr("filechannel._storage.flush.LAZINESS", 1000.0)
    faulty = FaultyFiles()
    with opened(path, files=faulty) as store:
        before = faulty.calls["flush"]
        for _ in range(100):
            _fill(store, 1)
            reclaim(store, store.control.write_offset, flush=False)
        assert faulty.calls["flush"] == before
        assert store.log.unflushed_segments <= 3


def test_many_finished_segments_are_flushed_at_once(path: Path, background: Background) -> None:
    """Nobody consumes them as fast as they come."""
    with opened(path) as store:
        _fill(store, 20)
        background.run()
        assert store.control.durable_offset >= store.segments.begins[-2]


def test_segments_that_begin_a_batch_are_known(path: Path) -> None:
    """There the log may begin, without anything before it on disk; not in the middle of a batch."""
    with opened(path) as store:
        store.log.append([bytes(3000)])
        store.log.append([bytes(3000)])
        between = store.segments.begins[-1]
        store.log.append([bytes(3000), bytes(3000)])
        middle = store.segments.begins[-1]
        assert middle > between
        assert store.log.is_between_batches(between)
        assert not store.log.is_between_batches(middle)


def test_whoever_gives_up_a_file_late_does_not_touch_what_it_has_become(path: Path) -> None:
    """Two do it at once: one stands still after it has opened the file, and the other lets it become a segment."""

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
        spares = Spares(late, store.segments.directory, SIZE, 0o600, lambda: 5, lambda: 0)
        spares.recycle(store.segments.path(first), first)
        assert late.meanwhile is None
        assert all(store.segments.get(begin).is_valid for begin in store.segments.begins)
        assert len(payloads_of(store)) == len(store.segments.begins)
