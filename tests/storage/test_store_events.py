"""The events of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel._storage.store_events import Event, StoreEvents
from tests.storage.channels import opened


def test_handlers_are_called_in_the_order_in_which_they_were_attached() -> None:
    """Every handler is called each time that the event is raised."""
    event, calls = Event(), list[str]()
    event.attach(lambda: calls.append("first"))
    event.attach(lambda: calls.append("second"))
    event()
    event()
    assert calls == ["first", "second"] * 2


def test_a_handler_that_is_attached_while_the_event_is_raised_is_called() -> None:
    """A compression job that starts while its store is closing is stopped, and does not keep the store alive."""
    event, calls = Event(), list[str]()
    event.attach(lambda: event.attach(lambda: calls.append("late")))
    event()
    assert calls == ["late"]


def test_an_error_of_a_handler_reaches_the_caller() -> None:
    """Handlers that were attached later are not called then."""

    def fail() -> None:
        raise OSError("the disk is broken")

    event, calls = Event(), list[str]()
    event.attach(fail)
    event.attach(lambda: calls.append("later"))
    with pytest.raises(OSError, match="the disk is broken"):
        event()
    assert not calls


def test_no_handler_is_called_after_all_were_detached() -> None:
    """After `detach_all` no handler of any event is called."""
    events, calls = StoreEvents(), list[str]()
    for name, event in vars(events).items():
        event.attach(lambda name=name: calls.append(name))
    events.detach_all()
    for event in vars(events).values():
        event()
    assert not calls


def test_a_store_raises_closing_while_its_files_are_open(path: Path) -> None:
    """Both events are raised once, in this order; a closed store has no handlers."""
    seen: list[tuple[str, int]] = []
    with opened(path) as store:
        store.events.closed.attach(lambda: seen.append(("closed", store.control.write_offset)))
        store.events.closing.attach(lambda: seen.append(("closing", store.control.write_offset)))
    assert seen == [("closing", 0), ("closed", 0)]
    store.events.closing()
    assert len(seen) == 2
