"""What `statistics()` returns, and what is seen from outside, while others send and remove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel._channel.status.collect_statistics import take_snapshot
from filechannel._maintenance.watch_channel import Watch
from filechannel._storage.reading.lookup import LogLookup
from filechannel._storage.segments.segment_index import IndexEntry
from filechannel._storage.store import Store
from tests.storage.channels import opened


def _meanwhile(places: LogLookup, patch: pytest.MonkeyPatch, event: Callable[[], object], *, before: bool) -> None:
    """Call *event* once, before or after the look-up of the oldest message."""
    earliest = places.earliest_entry

    def look() -> IndexEntry:
        patch.undo()
        if before:
            event()
        found = earliest()
        if not before:
            event()
        return found

    patch.setattr(places, "earliest_entry", look)


def _send_and_remove(store: Store) -> None:
    """Remove what was stored, so that the log is empty further on."""
    store.log.append([b"meanwhile"] * 5)
    store.purge()


@pytest.mark.parametrize("before", [True, False], ids=["before the look", "behind it"])
@pytest.mark.parametrize("outside", [True, False], ids=["from outside", "statistics"])
def test_figures_of_one_moment_do_not_contradict_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, outside: bool, before: bool
) -> None:
    """Messages that are sent and removed between two reads of the shared words are counted or not."""
    with opened(path) as store, Watch.open(path) as watch:
        store.log.append([b"before"])
        places = watch.lookup if outside else store.lookup
        _meanwhile(places, monkeypatch, lambda: _send_and_remove(store), before=before)
        figures = watch.figures() if outside else take_snapshot(store, senders=0, receivers=0)
        assert figures.oldest_offset <= figures.durable_offset <= figures.write_offset
        assert figures.messages == (0 if before else 6)


def test_a_message_sent_in_this_moment_has_no_age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a message that existed when it was looked up has an age."""
    with opened(path) as store:
        _meanwhile(store.lookup, monkeypatch, lambda: store.log.append([b"meanwhile"]), before=False)
        figures = take_snapshot(store, senders=0, receivers=0)
        assert (figures.messages, figures.oldest_age) == (1, None)
