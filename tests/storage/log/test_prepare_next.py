"""The next segment's file, ready before the active one is full."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from filechannel import ChannelOptions, DiskFullError, Durability
from filechannel._storage.log.page_prefault import PagePrefault
from filechannel._storage.segments.catalog import Segments
from filechannel._storage.segments.free_list import free_file_names
from filechannel._storage.segments.segment import Header, Segment, segment_name
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import open_store, opened, payloads_of
from tests.storage.faults import FaultyFiles, too_many_open_files
from tests.storage.segment_files import create_segment

if TYPE_CHECKING:
    from filechannel._format import Writer

SIZE = 64 << 10
OPTIONS = ChannelOptions(segment_size=SIZE)
MESSAGE = os.urandom(1000)
HALF = SIZE // 2 // 1008 + 1
files = Files()


def _send(store: Store, count: int) -> None:
    for _ in range(count):
        store.log.writer.append(MESSAGE)


def _free_files(store: Store) -> list[str]:
    return free_file_names(files, store.path / "segments")


def test_nothing_is_prepared_before_the_half_of_a_segment(path: Path, background: Background) -> None:
    """Before half of a segment is written no file is prepared."""
    with opened(path, OPTIONS) as store:
        _send(store, HALF - 2)
        background.run()
        assert _free_files(store) == []


def test_past_the_half_a_file_waits(path: Path, background: Background) -> None:
    """Past half of a segment one file is prepared with its disk space, and the roll uses it."""
    with opened(path, OPTIONS) as store:
        _send(store, HALF + 1)
        background.run()
        [name] = _free_files(store)
        spare = path / "segments" / name
        inode = spare.stat().st_ino
        assert spare.stat().st_blocks * 512 >= SIZE
        assert store.segments.mapped == 2
        _send(store, HALF)
        background.run()
        assert (path / "segments" / segment_name(store.segments.begins[-1])).stat().st_ino == inode
        assert len(payloads_of(store)) == 2 * HALF + 1
        assert store.segments.mapped == 2
        assert _free_files(store) == []


def test_a_file_that_was_not_ready_in_time_is_for_the_next_one(path: Path, background: Background) -> None:
    """A sender does not wait for a file that is not ready, which is used for the next roll."""
    with opened(path, OPTIONS) as store:
        _send(store, 2 * HALF)
        assert len(store.segments.begins) == 2
        background.run()
        assert len(_free_files(store)) == 1
        _send(store, 2 * HALF)
        assert len(store.segments.begins) == 3
        assert _free_files(store) == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_channel_that_was_closed_needs_no_file(
    path: Path, background: Background, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """After a channel was closed no file is created, and no warning is logged."""
    store = open_store(path, OPTIONS)
    _send(store, HALF + 1)
    prepare = Segments.prepare_free_file

    def close_first(segments: Segments, active: Segment) -> object:
        store.close()
        return prepare(segments, active)

    if when == "before":
        store.close()
    else:
        monkeypatch.setattr(Segments, "prepare_free_file", close_first)
    background.run()
    assert caplog.text == ""
    assert _free_files(store) == []


def test_a_file_that_waits_already_needs_no_other_thread(path: Path, background: Background) -> None:
    """If a prepared file is in the free list no other thread is needed."""
    with opened(path, OPTIONS) as store:
        _send(store, HALF + 1)
        background.run()
        store.segments.prepare_free_file(store.segments.get(store.segments.begins[-1]))
        _send(store, HALF)
        store.segments.prepare_free_file(store.segments.get(store.segments.begins[-1]))
        store.log.catch_up()
        background.forget()
        _send(store, HALF)
        assert background.waiting == []


def test_the_disk_space_of_a_prepared_file_is_not_asked_for_again(path: Path, background: Background) -> None:
    """A roll to a prepared file is a rename, without creating, allocating or mapping a file."""
    faulty = FaultyFiles()
    with opened(path, OPTIONS, files=faulty) as store:
        _send(store, HALF + 1)
        background.run()
        before = faulty.calls.copy()
        _send(store, HALF)
        assert len(store.segments.begins) == 2
        done = faulty.calls - before
        assert done["replace"] == 1
        assert not {"allocate", "map", "unlink"} & set(done)
        assert done["create"] <= 1  # the index


@pytest.mark.parametrize(
    ("calls", "error"),
    [("allocate", lambda path: DiskFullError(path, SIZE)), ("create", too_many_open_files)],
    ids=["full", "descriptors"],
)
def test_what_cannot_be_prepared_is_created_when_it_is_needed(
    path: Path, background: Background, caplog: pytest.LogCaptureFixture, calls: str, error: object
) -> None:
    """If a file cannot be prepared the roll creates it, and a sender gets an error only if that fails too."""
    faulty = FaultyFiles()
    with opened(path, OPTIONS, files=faulty) as store, caplog.at_level(logging.CRITICAL, "filechannel"):
        _send(store, HALF + 1)
        faulty.fail(frozenset({calls}), error)  # type: ignore[arg-type]
        background.run()
        faulty.work()
        assert _free_files(store) == []
        _send(store, HALF)
        assert len(store.segments.begins) == 2


def test_what_a_dead_process_has_prepared_is_used(path: Path, background: Background) -> None:
    """The next process finds and uses a file that a dead process prepared."""
    with opened(path, OPTIONS) as store:
        _send(store, HALF + 1)
        background.run()
        inode = (path / "segments" / _free_files(store)[0]).stat().st_ino
    with opened(path, OPTIONS) as store:
        _send(store, HALF)
        assert (path / "segments" / segment_name(store.segments.begins[-1])).stat().st_ino == inode


def test_a_closed_channel_keeps_nothing_that_comes_too_late(path: Path, background: Background) -> None:
    """A file that is ready after its channel was closed is unmapped, and used at the next open."""
    with opened(path, OPTIONS) as store:
        _send(store, HALF + 1)
    background.run()
    assert store.segments.mapped == 0


def test_under_fsync_the_file_is_prepared_and_its_pages_are_not(
    path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under FSYNC the file is prepared, and its pages are not populated, because a flush would write them."""
    monkeypatch.setattr(PagePrefault, "advance", lambda *_: pytest.fail("pages were populated"))
    options = ChannelOptions(segment_size=SIZE, durability=Durability.FSYNC)
    with opened(path, options) as store:
        _send(store, HALF + 1)
        background.run()
        assert len(_free_files(store)) == 1


# Pages


class Populated:
    """Replaces the kernel and the writer: remembers what was asked for."""

    deferred = False

    def __init__(self) -> None:
        self.started: list[tuple[object, int, int]] = []
        self.ahead: list[tuple[int, int]] = []

    def populate(self, map_: object, position: int, size: int) -> bool:
        """Say that it is possible."""
        return bool(size)

    def populate_soon(self, map_: object, position: int, size: int) -> None:
        """Remember it."""
        self.started.append((map_, position, position + size))

    def populate_ahead(self, end: int, distance: int) -> None:
        """Remember it."""
        self.ahead.append((end, distance))


@pytest.fixture
def populated(monkeypatch: pytest.MonkeyPatch) -> Populated:
    """What was populated."""
    found = Populated()
    monkeypatch.setattr("filechannel._storage.log.page_prefault.populate", found.populate)
    monkeypatch.setattr("filechannel._storage.log.page_prefault.populate_soon", found.populate_soon)
    return found


def _segment(directory: Path, begin: int, size: int = 16 << 20) -> Segment:
    header = Header.new(begin, 0, begin)
    return create_segment(files, directory / segment_name(begin), header, size, 4096)


def _pages(populated: Populated) -> PagePrefault:
    return PagePrefault(cast("Writer", populated))


def test_the_writer_stays_as_far_ahead_as_it_has_come(tmp_path: Path, populated: Populated) -> None:
    """Pages are populated as far ahead as has been written, up to some mebibytes, also in the next segment."""
    first = _segment(tmp_path, 0)
    pages = _pages(populated)
    for offset in (0, 100 << 10, 256 << 10, 3 << 20, 12 << 20):
        pages.advance(first, offset, 15 << 20)
    assert populated.ahead == [(15 << 20, 256 << 10), (15 << 20, 3 << 20), (15 << 20, 8 << 20)]
    second = _segment(tmp_path, first.space_end)
    pages.advance(second, second.begin, second.space_end)
    assert populated.ahead[-1] == (second.space_end, 8 << 20)


def test_a_reset_channel_has_to_write_much_again_to_prepare(tmp_path: Path, populated: Populated) -> None:
    """After a reset a channel has to write as much again before pages are populated."""
    segment = _segment(tmp_path, 0)
    pages = _pages(populated)
    pages.advance(segment, 0, segment.space_end)
    pages.close()
    pages.advance(segment, 10 << 20, segment.space_end)
    assert populated.ahead == []


def test_the_next_segment_has_its_first_pages(tmp_path: Path, populated: Populated) -> None:
    """When pages are populated, those of the prepared file are too."""
    first, second = _segment(tmp_path, 0), _segment(tmp_path, 100)
    pages = _pages(populated)
    pages.begin(second.map)
    assert populated.started == []
    pages.advance(first, 0, first.space_end)
    pages.advance(first, 1 << 20, first.space_end)
    pages.begin(second.map)
    assert populated.started == [(second.map, 0, 8 << 20)]
    populated.deferred = True
    pages.begin(second.map)
    assert len(populated.started) == 1


def test_small_segments_are_not_worth_it(tmp_path: Path, populated: Populated) -> None:
    """Pages of small segments are not populated, because the writer is faster."""
    segment = _segment(tmp_path, 0, SIZE)
    pages = _pages(populated)
    for offset in range(0, SIZE * 100, SIZE):
        pages.advance(segment, offset, segment.space_end)
    pages.begin(segment.map)
    assert populated.ahead == populated.started == []


def test_a_prepared_file_is_announced_once(path: Path, background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prepared file is announced once, whether it was created or found in the free list."""
    announced: list[object] = []
    monkeypatch.setattr(PagePrefault, "begin", lambda _, following: announced.append(following))
    with opened(path, OPTIONS) as store:
        _send(store, HALF + 1)
        assert announced == []
        background.run()
        _send(store, 1)
        [following] = announced
        _send(store, HALF)
        active = store.segments.get(store.segments.begins[-1])
        assert isinstance(active, Segment)
        assert active.map is following
        store.segments.prepare_free_file(active)
        _send(store, HALF)
        assert len(announced) == 2
