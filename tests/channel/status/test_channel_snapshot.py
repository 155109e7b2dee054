"""What `statistics()` returns, and what is seen from outside, while others send and remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel._channel.snapshot import take_snapshot
from filechannel._maintenance.watch import Watch
from filechannel._storage.index import Mark
from filechannel._storage.places import Places
from filechannel._storage.store import Store
from tests.storage.channels import opened


def _meanwhile(places: Places, patch: pytest.MonkeyPatch, event: Callable[[], object], *, before: bool) -> None:
    """Let something happen once, before somebody has looked for the oldest message or behind that."""
    earliest = places.earliest

    def look() -> Mark:
        patch.undo()
        if before:
            event()
        found = earliest()
        if not before:
            event()
        return found

    patch.setattr(places, "earliest", look)


def _send_and_remove(store: Store) -> None:
    """Let what was stored be gone, and the log be empty further on."""
    store.log.append([b"meanwhile"] * 5)
    store.purge()


@pytest.mark.parametrize("before", [True, False], ids=["before the look", "behind it"])
@pytest.mark.parametrize("outside", [True, False], ids=["from outside", "statistics"])
def test_figures_of_one_moment_do_not_contradict_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, outside: bool, before: bool
) -> None:
    """Messages that come and go between two looks at the shared words are there or not."""
    with opened(path) as store, Watch.open(path) as watch:
        store.log.append([b"before"])
        places = watch.places if outside else store.places
        _meanwhile(places, monkeypatch, lambda: _send_and_remove(store), before=before)
        figures = watch.look() if outside else take_snapshot(store, senders=0, receivers=0)
        assert figures.oldest_offset <= figures.durable_offset <= figures.write_offset
        assert figures.messages == (0 if before else 6)


def test_nothing_is_old_that_came_in_this_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An age is told only of what was there when it was looked for."""
    with opened(path) as store:
        _meanwhile(store.places, monkeypatch, lambda: store.log.append([b"meanwhile"]), before=False)
        figures = take_snapshot(store, senders=0, receivers=0)
        assert (figures.messages, figures.oldest_age) == (1, None)
