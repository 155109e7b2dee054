"""Who was first: a consumer that is put somewhere, or the decision that what lies there goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel._format import load_u32, load_u64
from filechannel._format.layout import OLDEST_OFFSET, RECLAIMING, REGISTRY, REGISTRY_COUNT, REGISTRY_DECIDED
from filechannel._offset import Offset
from filechannel._storage.registry import Registry
from filechannel._storage.store import Store
from tests.storage.channels import SMALL, opened


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """A channel with more bytes than any offset of these tests: what is the oldest lies before the end of the log."""
    with opened(path, SMALL) as store:
        store.log.append([bytes(500)])
        yield store


def test_a_position_that_is_there_is_held(store: Store) -> None:
    """At the oldest message or behind it."""
    assert store.registry.settle(0)
    store.control.oldest_offset = 100
    assert not store.registry.settle(99)
    assert store.registry.settle(100)


def test_a_decision_moves_what_is_the_oldest(store: Store) -> None:
    """For everybody at once, and for good."""
    assert store.registry.decide(Offset(100), store.registry.note())
    assert store.control.oldest_offset == load_u64(store.control.map, OLDEST_OFFSET) == 100
    assert not store.registry.is_decided


def test_nothing_is_decided_when_somebody_was_put_somewhere_since(store: Store) -> None:
    """Whoever decides looks again."""
    noted = store.registry.note()
    assert Registry(store.control).settle(0)
    assert not store.registry.decide(Offset(100), noted)
    assert store.control.oldest_offset == 0
    assert store.registry.decide(Offset(100), store.registry.note())


def test_a_decision_holds_when_whoever_made_it_is_killed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or stopped: everybody goes by it, and the next one who maintains the channel writes it down."""
    monkeypatch.setattr(Registry, "carry_out", lambda _: None)
    assert store.registry.decide(Offset(100), store.registry.note())
    monkeypatch.undo()
    assert store.registry.is_decided
    assert load_u64(store.control.map, OLDEST_OFFSET) == 0
    assert store.control.oldest_offset == 100
    assert not store.registry.settle(99)
    assert store.registry.settle(100)
    assert not store.registry.decide(Offset(200), store.registry.note()), "one after the other"
    store.registry.carry_out()
    assert load_u64(store.control.map, OLDEST_OFFSET) == 100
    assert load_u32(store.control.map, REGISTRY) == 2 * REGISTRY_COUNT
    assert store.registry.decide(Offset(200), store.registry.note())


def test_what_is_not_decided_means_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed between storing it and deciding has changed nothing."""
    noted = store.registry.note()
    store.registry.settle(0)
    store.registry.decide(Offset(100), noted)
    assert load_u64(store.control.map, RECLAIMING) == 100
    assert store.control.oldest_offset == 0


def test_what_is_the_oldest_never_goes_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge comes in between the decision and its being written down."""
    monkeypatch.setattr(Registry, "carry_out", lambda _: None)
    assert store.registry.decide(Offset(100), store.registry.note())
    monkeypatch.undo()
    store.control.oldest_offset = 300
    assert store.control.oldest_offset == 300
    store.registry.carry_out()
    assert store.control.oldest_offset == 300


def test_a_full_channel_overrules_whoever_stands_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is put somewhere after that sees it; what was decided before, by somebody who died, is not lost."""
    assert store.registry.settle(0)
    with store.log.writing():
        store.registry.overrule(Offset(100))
    assert store.control.oldest_offset == load_u64(store.control.map, OLDEST_OFFSET) == 100
    assert not store.registry.settle(99)
    monkeypatch.setattr(Registry, "carry_out", lambda _: None)
    assert store.registry.decide(Offset(300), store.registry.note())
    monkeypatch.undo()
    with store.log.writing():
        store.registry.overrule(Offset(200))
    assert store.control.oldest_offset == load_u64(store.control.map, OLDEST_OFFSET) == 300
    assert not store.registry.is_decided


def test_the_count_goes_round(store: Store) -> None:
    """After four billion there is another."""
    words = store.control.map
    words[REGISTRY : REGISTRY + 4] = (0xFFFFFFFF & ~REGISTRY_DECIDED).to_bytes(4, "little")
    assert store.registry.settle(0)
    assert load_u32(words, REGISTRY) == 0


def test_a_recovery_forgets_what_was_decided_in_another_boot(path: Path) -> None:
    """Only the checkpoint is believed then."""
    with opened(path, SMALL) as store:
        store.log.append([b"one"])
        store.flusher.flush()
        words = store.control.map
        words[RECLAIMING : RECLAIMING + 8] = (1 << 50).to_bytes(8, "little")
        words[REGISTRY : REGISTRY + 4] = REGISTRY_DECIDED.to_bytes(4, "little")
        words[:8] = bytes(8)  # the words are not believed any more
    with opened(path, SMALL) as store:
        assert store.control.oldest_offset == 0
        assert not store.registry.is_decided
