"""Whose turn it is to maintain a channel."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from filechannel._errors import Busy
from filechannel._format import PURE
from tests.storage.channels import SMALL, opened
from tests.storage.clocks import Clock

shares = pytest.mark.skipif(PURE, reason="the pure twin shares with nobody")


@shares
def test_one_process_at_a_time_has_its_turn(path: Path) -> None:
    """The others are told, and do not wait."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        with store.upkeep.turn():
            with pytest.raises(Busy), other.upkeep.turn():
                pass
        with other.upkeep.turn():
            pass


def test_one_thread_at_a_time_has_its_turn(path: Path) -> None:
    """The kernel's lock belongs to the process."""
    refused: list[bool] = []
    with opened(path, SMALL) as store:

        def try_it() -> None:
            try:
                with store.upkeep.turn():
                    refused.append(False)
            except Busy:
                refused.append(True)

        with store.upkeep.turn():
            thread = Thread(target=try_it)
            thread.start()
            thread.join()
        try_it()
    assert refused == [True, False]


@shares
def test_who_may_wait_waits(path: Path) -> None:
    """Until the other one has ended, or as long as it likes."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        looks: list[int] = []
        turn = other.upkeep.turn()
        turn.__enter__()

        def look() -> bool:
            looks.append(1)
            if len(looks) == 3:
                turn.__exit__(None, None, None)
            return True

        with store.upkeep.turn(look):
            assert len(looks) == 3
            with pytest.raises(Busy), other.upkeep.turn(lambda: False):
                pass


@shares
def test_everybody_knows_who_had_the_last_turn(path: Path) -> None:
    """As long as that process lives."""
    with opened(path, SMALL) as store:
        assert store.upkeep.maintainer is None
        assert store.upkeep.last_turn is None
        with opened(path, SMALL) as other:
            with other.upkeep.turn():
                pass
            assert other.processes is not None
            assert store.upkeep.maintainer == other.processes.holder(other.processes.slot)
            assert store.upkeep.last_turn is not None
        assert store.upkeep.maintainer is None


@shares
def test_everybody_knows_whether_somebody_is_at_it(path: Path) -> None:
    """In this process or another."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        assert not store.upkeep.is_running
        with other.upkeep.turn():
            assert store.upkeep.is_running
            assert other.upkeep.is_running
        assert not store.upkeep.is_running
        assert not other.upkeep.is_running


def test_it_is_seen_how_long_the_log_did_not_move(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the turn on in which it was seen to have moved: a message is never younger than that."""
    clock = Clock.install(monkeypatch)

    def quiet() -> float:
        return store.upkeep.quiet(store.control.write_offset) / 1e9

    with opened(path, SMALL) as store:
        store.log.append([b"one"])
        assert quiet() == 0
        clock.pass_seconds(5)
        with store.upkeep.turn():
            assert quiet() == 0
        clock.pass_seconds(5)
        with store.upkeep.turn():
            assert quiet() == 5
            end = store.control.write_offset
            store.log.append([b"two"])
            assert quiet() == 0
            assert store.upkeep.quiet(end) == 5 * 10**9
    with opened(path, SMALL) as store:
        with store.upkeep.turn():
            pass
        clock.pass_seconds(7)
    with opened(path, SMALL) as store:
        assert quiet() == 7, "whoever has it open"
        clock.pass_seconds(-60)
        assert quiet() == 0, "a clock that was set back"


def test_errors_and_what_was_reclaimed_are_counted(path: Path) -> None:
    """For everybody."""
    with opened(path, SMALL) as store:
        store.upkeep.count_error()
        store.upkeep.count_reclaimed(2, 100)
        store.upkeep.count_reclaimed(1, 50)
    with opened(path, SMALL) as store:
        assert store.upkeep.errors == 1
        assert store.upkeep.reclaimed == (3, 150)
