"""Going on elsewhere: no offset is ever used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel import DiskFullError
from filechannel._offset import Offset
from filechannel._storage.store import Store
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, read_all
from tests.storage.faults import FLUSHING, NEEDING_ROOM, FaultyFiles, disk_full, input_output_error

JUMP = 1 << 40

pytestmark = pytest.mark.usefixtures("background")


def _abandon(store: Store) -> None:
    with store.log.writing():
        store.log.abandon_active(OSError("the disk is broken"))


@pytest.mark.parametrize(
    ("beyond", "begin"),
    [(0, 1), (1000, 1), (JUMP // 2 - 1, 1), (JUMP // 2, 2), (JUMP - 1, 2), (JUMP, 2), (3 * JUMP + JUMP // 2, 5)],
)
def test_the_log_goes_on_at_a_multiple_far_away(path: Path, beyond: int, begin: int) -> None:
    """At least half of 2^40 lies between what was used for sure and what comes: more than can be lost unflushed."""
    with opened(path) as store, store.log.writing():
        store.log._jump.go(beyond, Offset(0))
        assert store.control.write_offset == begin * JUMP
        assert store.control.tail() == store.control.tail(deferred=True)


def test_readers_pass_over_the_gap(path: Path) -> None:
    """Nothing is missing, and sequences go on."""
    with opened(path) as store:
        store.log.append([b"before"])
        _abandon(store)
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]
        assert [message.sequence for message in read_all(store)] == [0, 1]
        assert read_all(store)[1].offset == JUMP


def test_each_step_is_on_disk_before_the_next(path: Path) -> None:
    """The fresh segment and its name, then where the log ends, then that the rest is gone, then where it goes on."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        files.flushed.clear()
        _abandon(store)
        names, control = store.segments.directory, path / "control"
        assert files.flushed == [store.segments.path(JUMP), names, control, names, control]
        checkpoint = store.control.checkpoint()
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.sequence) == (JUMP, 1)


def test_jumping_from_an_empty_segment_leaves_no_trace_of_it(path: Path) -> None:
    """However often it jumps without a message in between, readers get through, wherever they stand."""
    with opened(path) as store:
        store.log.append([b"before"])
        places = [store.places.earliest(), store.places.latest()]
        for _ in range(3):
            _abandon(store)
            places.append(store.places.latest())
        assert len(store.segments.begins) == 2
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]
        for place in places[1:]:
            assert [message.payload for message in read_all(store, start=place)] == [b"after"]


@pytest.mark.parametrize("empty", [False, True])
def test_a_full_disk_keeps_the_log_where_it_is(path: Path, empty: bool) -> None:
    """Without room for a fresh segment the error is told; later it goes on, and nothing is lost for readers."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        if empty:
            _abandon(store)
        files.fail(NEEDING_ROOM, disk_full)
        with pytest.raises(DiskFullError):
            _abandon(store)
        assert payloads_of(store) == [b"before"]
        files.work()
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]


def test_a_segment_that_could_not_be_left_is_not_believed(path: Path) -> None:
    """If there was no room to leave a broken file that is empty, the next flush tries again to leave it."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        _abandon(store)
        files.fail(NEEDING_ROOM, disk_full)
        with pytest.raises(DiskFullError):
            _abandon(store)
        files.work()
        with store.log.writing(), pytest.raises(OSError, match="the disk is broken"):
            store.log.take_unflushed()


def test_a_broken_disk_does_not_stop_the_log(path: Path) -> None:
    """Messages go on, and the next flush tells."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        store.log.append([b"before"])
        files.fail(FLUSHING, input_output_error)
        _abandon(store)
        store.log.append([b"after"])
        assert payloads_of(store) == [b"before", b"after"]
        files.work()
        with store.log.writing(), pytest.raises(OSError, match="Input/output"):
            store.log.take_unflushed()


def test_what_was_not_published_is_gone(path: Path, background: Background) -> None:
    """Segments behind the end of the log are removed, on disk too."""
    with opened(path) as store:
        store.log.append([b"before"])
        store.log.append([b"." * 3000] * 5)
        with store.log.writing():
            store.log._jump.go(store.control.write_offset, Offset(8 + len(b"before")))
        assert store.segments.begins == [0, JUMP]
