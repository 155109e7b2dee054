"""The order of two events: a consumer gets a position, or maintenance decides to reclaim it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel._format import load_u32, load_u64
from filechannel._format.layout import OLDEST_OFFSET, RECLAIMING, REGISTRY, REGISTRY_COUNT, REGISTRY_DECIDED
from filechannel._offset import Offset
from filechannel._storage.consumers.low_watermark import LowWatermark
from filechannel._storage.store import Store
from tests.storage.channels import SMALL, opened


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """A channel with more bytes than any offset of these tests: what is the oldest lies before the end of the log."""
    with opened(path, SMALL) as store:
        store.log.append([bytes(500)])
        yield store


def test_a_position_that_is_there_is_held(store: Store) -> None:
    """A position at or after the low watermark is accepted."""
    assert store.low_watermark.retain_from(0)
    store.control.oldest_offset = 100
    assert not store.low_watermark.retain_from(99)
    assert store.low_watermark.retain_from(100)


def test_a_decision_moves_the_low_watermark(store: Store) -> None:
    """A decision moves the low watermark permanently, for every process."""
    assert store.low_watermark.decide(Offset(100), store.low_watermark.note())
    assert store.control.oldest_offset == load_u64(store.control.map, OLDEST_OFFSET) == 100
    assert not store.low_watermark.is_decided


def test_nothing_is_decided_when_a_consumer_got_a_position_since(store: Store) -> None:
    """No decision is made if a consumer got a position after the check, and maintenance checks again."""
    noted = store.low_watermark.note()
    assert LowWatermark(store.control).retain_from(0)
    assert not store.low_watermark.decide(Offset(100), noted)
    assert store.control.oldest_offset == 0
    assert store.low_watermark.decide(Offset(100), store.low_watermark.note())


def test_a_decision_holds_when_its_process_is_killed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision of a killed or stopped process holds, and the next one that maintains the channel stores it."""
    monkeypatch.setattr(LowWatermark, "carry_out", lambda _: None)
    assert store.low_watermark.decide(Offset(100), store.low_watermark.note())
    monkeypatch.undo()
    assert store.low_watermark.is_decided
    assert load_u64(store.control.map, OLDEST_OFFSET) == 0
    assert store.control.oldest_offset == 100
    assert not store.low_watermark.retain_from(99)
    assert store.low_watermark.retain_from(100)
    assert not store.low_watermark.decide(Offset(200), store.low_watermark.note()), "one after the other"
    store.low_watermark.carry_out()
    assert load_u64(store.control.map, OLDEST_OFFSET) == 100
    assert load_u32(store.control.map, REGISTRY) == 2 * REGISTRY_COUNT
    assert store.low_watermark.decide(Offset(200), store.low_watermark.note())


def test_an_undecided_candidate_means_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that a process stored before it was killed, without a decision, changes nothing."""
    noted = store.low_watermark.note()
    store.low_watermark.retain_from(0)
    store.low_watermark.decide(Offset(100), noted)
    assert load_u64(store.control.map, RECLAIMING) == 100
    assert store.control.oldest_offset == 0


def test_the_low_watermark_never_moves_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge between a decision and its storing does not let the low watermark move back."""
    monkeypatch.setattr(LowWatermark, "carry_out", lambda _: None)
    assert store.low_watermark.decide(Offset(100), store.low_watermark.note())
    monkeypatch.undo()
    store.control.oldest_offset = 300
    assert store.control.oldest_offset == 300
    store.low_watermark.carry_out()
    assert store.control.oldest_offset == 300


def test_a_full_channel_overrules_a_consumer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full channel moves the low watermark beyond a consumer, which notices when it gets a position."""
    assert store.low_watermark.retain_from(0)
    with store.log.writing():
        store.low_watermark.overrule(Offset(100))
    assert store.control.oldest_offset == load_u64(store.control.map, OLDEST_OFFSET) == 100
    assert not store.low_watermark.retain_from(99)
    monkeypatch.setattr(LowWatermark, "carry_out", lambda _: None)
    assert store.low_watermark.decide(Offset(300), store.low_watermark.note())
    monkeypatch.undo()
    with store.log.writing():
        store.low_watermark.overrule(Offset(200))
    assert store.control.oldest_offset == load_u64(store.control.map, OLDEST_OFFSET) == 300
    assert not store.low_watermark.is_decided


def test_the_counter_wraps_around(store: Store) -> None:
    """The counter of the low watermark wraps around to zero."""
    words = store.control.map
    words[REGISTRY : REGISTRY + 4] = (0xFFFFFFFF & ~REGISTRY_DECIDED).to_bytes(4, "little")
    assert store.low_watermark.retain_from(0)
    assert load_u32(words, REGISTRY) == 0


def test_a_recovery_forgets_what_was_decided_in_another_boot(path: Path) -> None:
    """A recovery drops decisions of another boot, and uses the checkpoint."""
    with opened(path, SMALL) as store:
        store.log.append([b"one"])
        store.flusher.flush()
        words = store.control.map
        words[RECLAIMING : RECLAIMING + 8] = (1 << 50).to_bytes(8, "little")
        words[REGISTRY : REGISTRY + 4] = REGISTRY_DECIDED.to_bytes(4, "little")
        words[:8] = bytes(8)  # the words are not believed any more
    with opened(path, SMALL) as store:
        assert store.control.oldest_offset == 0
        assert not store.low_watermark.is_decided
