"""One use of a store, from before it is opened until it is closed, whatever interrupts its user in between."""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import final

from anyio import ClosedResourceError

from .._format import Mutex
from .._maintenance.worker import WORKER
from .._storage.background import do_undisturbed, errand_threads
from .._storage.store import Store
from .._storage.stores import STORES
from .._wakeup.arrivals import arrivals_of
from .._wakeup.line import line_of


@final
class StoreHandle:
    """Opens a store and closes it once, however often that is asked for.

    It exists before the store is opened, and a thread that runs no signal handlers opens it. So an exception that a
    handler raises, at any bytecode, finds the handle in the hands of its user, which closes it, or of no user any more:
    then it is closed in the background when it is deleted.
    """

    def __init__(self, open_store: Callable[[Callable[[], bool]], Store]) -> None:
        """*open_store* is called with a function that returns whether the store is still wanted."""
        self._open_store = open_store
        self._lock = Mutex()
        self._store: Store | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def store(self) -> Store:
        """The open store; `ClosedResourceError` before it is open."""
        if self._store is None:
            raise ClosedResourceError
        return self._store

    def open(self) -> Store:
        """Open the store and return it. If an exception ends the waiting, the store is closed when it is open."""
        do_undisturbed(self.open_here)
        return self.store

    def open_here(self) -> Store:
        """Open the store in this thread, which is not the main thread."""
        store = self._open_store(lambda: not self._closed)
        try:
            _connect(store)
            with self._lock.held():
                if not self._closed:
                    self._store = store
                    return store
        except BaseException:
            STORES.close(store)
            raise
        STORES.close(store)
        raise ClosedResourceError

    def close(self) -> None:
        """Give the store up, or give up opening it. Blocks while the last user closes it."""
        store = self._take()
        if store is not None:
            STORES.close(store)

    def close_soon(self) -> None:
        """Give the store up, or give up opening it, without blocking: another thread closes it."""
        store = self._take()
        if store is not None:
            errand_threads().do(partial(STORES.close, store))

    def _take(self) -> Store | None:
        """Return the store for the only caller that closes it. A forked child closes nothing of its parent's."""
        with self._lock.held():
            store, is_first = self._store, not self._closed
            self._closed = True
            return store if is_first and self._process == os.getpid() else None

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._store is None or sys.is_finalizing():
            return
        # Not in this thread: the collector may run while it holds any of our locks.
        _thread.start_new_thread(self.close, ())


def _connect(store: Store) -> None:
    """Connect a store with what wakes its receivers and senders, and with maintenance, unless that was done."""
    arrivals_of(store)  # what is sent from here on wakes the receivers that wait, in any process
    if not store.readonly:
        line_of(store)  # and what is taken wakes the senders
        store.log.on_closed = _refuse_closed
        WORKER.look_after(store)


def _refuse_closed() -> None:
    raise ClosedResourceError
