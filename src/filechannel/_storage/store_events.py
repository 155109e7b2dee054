"""The events of a store: the only way in which a part of it notifies what was built on top of that part.

`StoreEvents` exists before any part, and each part that raises an event gets it in its constructor. What reacts to an
event attaches its handler: the parts of the store while it is opened, in their constructors; the waiters and the
maintenance thread when the first channel object of the process opens or shares the store, because a store that only
Spark or a repair uses has neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

Handler: TypeAlias = Callable[[], object]


@final
class Event:
    """Calls its handlers in the order in which they were attached, on the thread that raises the event."""

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        # A list that is iterated while other threads append: a handler that is attached while the event is raised is
        # called as well. A compression job that starts while the store is closing has to be stopped, too.
        self._handlers: list[Handler] = []

    def attach(self, handler: Handler) -> None:
        """Call *handler* from now on, even if the event is being raised. If one raises, later ones are not called."""
        self._handlers.append(handler)

    def detach_all(self) -> None:
        """Call no handler any more, and keep none alive."""
        self._handlers.clear()

    def __call__(self) -> None:
        """Raise the event."""
        for handler in self._handlers:
            handler()


@final
class StoreEvents:
    """The events of one store. "No lock" means: neither the writer lock nor the flush lock is held."""

    def __init__(self) -> None:
        self.message_published: Event = Event()
        """A message became visible, and event loops wait for one. On the publishing thread, with no lock.

        The native writer raises it, at most once for each time that an event loop starts to wait.
        """
        self.capacity_freed: Event = Event()
        """There may be capacity, and event loops wait for it. On any thread; the writer lock may be held."""
        self.position_moved: Event = Event()
        """The oldest offset, a group or the set of consumers changed, so there may be capacity. Any thread, no lock."""
        self.ring_freed: Event = Event()
        """The full ring of a group has a free entry, for which members may wait. On a member's thread, with no lock."""
        self.segment_finished: Event = Event()
        """A segment was finished. On the sending thread or on the thread that calls `Log.catch_up`, with no lock."""
        self.oldest_dropped: Event = Event()
        """A full channel dropped its oldest segments; their files still exist. On the sending thread, with no lock."""
        self.append_refused: Event = Event()
        """The capacity did not allow an append. On the sending thread, with no lock."""
        self.flush_needed: Event = Event()
        """An append waits until everything that was appended is flushed. On the sending thread, with no lock.

        A handler has flushed when it returns.
        """
        self.options_changed: Event = Event()
        """Another process may have changed the options. On the thread that acquired the writer lock, which it holds."""
        self.maintenance_due: Event = Event()
        """There may be maintenance to do. On any thread; a handler neither waits nor acquires a lock of the store.

        The writer rolled, a reader moved to the next segment, a consumer was registered or removed, other options were
        stored, or the channel was purged. The native writer raises it after a fast roll.
        """
        self.closing: Event = Event()
        """The last user closes the store, and everything is still open. On the closing thread, with the open lock.

        When all handlers have returned, no background work uses the store.
        """
        self.closed: Event = Event()
        """The store is about to close its files: nothing waits for it any more. Follows `closing` on its thread."""

    def detach_all(self) -> None:
        """Raise nothing any more. Handlers refer to the store, and would keep its maps alive."""
        for event in vars(self).values():
            event.detach_all()
