"""Reclaiming now, whether the channel is open or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel import ChannelNotFoundError, Pin
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._maintenance.background import reclaim_now as module
from filechannel._maintenance.background.plan_reclaim import reclaim_after
from filechannel._maintenance.background.reclaim_now import Reclaimed, gc, preview
from filechannel._storage.store import Store
from tests.maintenance.stores import A_THIRD, consume, files_of, fill
from tests.storage.channels import SMALL, opened, payloads_of

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
SEGMENT = 3 * (8 + A_THIRD)


def test_it_works_with_nothing_open(path: Path) -> None:
    """`gc` of a closed channel returns what it reclaimed, and what holds back the rest."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        consume(store, 7)
    pin = Pin(reason="consumer", consumer="consumer")
    assert gc(path) == Reclaimed(segments=2, bytes=2 * SEGMENT, pinned_by=pin)
    assert gc(path) == Reclaimed(segments=0, bytes=0, pinned_by=pin)
    with opened(path, SMALL) as store:
        assert payloads_of(store) == sent[6:]


def test_a_channel_that_is_consumed_counts_as_idle(path: Path) -> None:
    """`gc` treats a consumed channel as idle, and frees its last segment."""
    with opened(path, SMALL) as store:
        fill(store, 2)
        consume(store)
    assert gc(path) == Reclaimed(segments=2, bytes=2 * SEGMENT, pinned_by=None)
    with opened(path, SMALL) as store:
        assert files_of(store) == []


@pytest.mark.parametrize("taken", [0, 7, 12])
def test_it_can_be_foreseen(path: Path, taken: int) -> None:
    """A preview of `gc` names the segments that are then reclaimed, and changes nothing."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        consume(store, taken)
    previewed = preview(path)
    with opened(path, SMALL) as store:
        assert payloads_of(store) == sent
    done = gc(path)
    assert (previewed.segments, previewed.bytes) == (done.segments, done.bytes)


@shares
def test_it_works_while_others_have_the_channel_open(path: Path) -> None:
    """`gc` works while other processes have the channel open, and they continue."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        consume(store, 7)
        assert gc(path).segments == 2
        store.log.append([b"more"])
        assert consume(store) == [*sent[7:], b"more"]


def test_it_ends_although_others_send_and_receive_all_the_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gc` ends although others send and receive all the time, and may leave what is consumed meanwhile."""
    rounds = 0

    def reclaim_while_they_run(store: Store, idle: float) -> float:
        nonlocal rounds
        rounds += 1
        assert rounds < 10
        pause = reclaim_after(store, idle)
        fill(store, 2)
        consume(store)
        return pause

    with opened(path, SMALL) as store:
        fill(store, 2)
        consume(store)
    monkeypatch.setattr(module, "reclaim_after", reclaim_while_they_run)
    assert gc(path).segments >= 2


@shares
def test_it_waits_for_the_maintenance_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gc` waits for the maintenance lock for a limited time."""
    monkeypatch.setattr(module, "_LOCK_WAIT_SECONDS", 0.05)
    with opened(path, SMALL) as store:
        fill(store, 1)
        with store.maintenance_lock.held(), pytest.raises(Busy):
            gc(path)


def test_it_makes_no_channel(path: Path) -> None:
    """`gc` of a missing channel raises and creates nothing."""
    with pytest.raises(ChannelNotFoundError):
        gc(path)
    assert not path.exists()


@shares
def test_it_sweeps_what_a_dead_compressor_left(path: Path) -> None:
    """`gc` deletes files of a dead compressor, whether or not a segment can be reclaimed."""
    with opened(path, SMALL) as store:
        fill(store, 2)
        left = store.segments.directory / "new-00000000000000000000.seg.z"
        left.write_bytes(b"half")
        gc(path)
        assert not left.exists()
