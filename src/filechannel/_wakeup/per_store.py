"""`PerStore`: objects of this process of which each store has one, such as its waiters and its send queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final
from weakref import WeakKeyDictionary

from .._format import Mutex
from .._runtime.fork_registry import Phase, reset_in_child
from .._storage.store import Store

S = TypeVar("S", bound=Store)
T = TypeVar("T")


@final
class PerStore(Generic[S, T]):
    """Creates one object for each store, when it is first asked for, and keeps it as long as the store lives."""

    def __init__(self, make: Callable[[S], T]) -> None:
        self._make = make
        self._start_over()
        reset_in_child(Phase.STORES, self._start_over)

    def _start_over(self) -> None:
        """Reset in a forked child: it has none of the stores, and another thread may have held the lock."""
        self._lock = Mutex()
        self._objects: WeakKeyDictionary[S, T] = WeakKeyDictionary()

    def of(self, store: S) -> T:
        """Return the object of a store."""
        with self._lock.held():
            found = self._objects.get(store)
            if found is None:
                found = self._objects[store] = self._make(store)
            return found
