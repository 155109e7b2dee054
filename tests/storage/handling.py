"""Handling the events of a store in a test, in place of what handles them otherwise."""

from __future__ import annotations

from collections.abc import Callable

from filechannel._storage.store_events import Event


def handle(event: Event, handler: Callable[[], object]) -> None:
    """Call *handler* alone when the event is raised."""
    event.detach_all()
    event.attach(handler)
