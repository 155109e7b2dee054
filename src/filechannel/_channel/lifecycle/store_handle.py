"""`StoreHandle`: one use of a store, from before it is opened until it is closed, despite any interruption."""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import final

from anyio import ClosedResourceError

from ..._format import Mutex
from ..._maintenance.background.maintenance_thread import MAINTENANCE
from ..._runtime.threads import blocking_call_threads
from ..._storage.open_stores import STORES
from ..._storage.store import Store
from ..._storage.writable_store import WritableStore
from ..._wakeup.send_queue import send_queue_of
from ..._wakeup.waiters import waiters_of
from .signal_safe_work import do_undisturbed


@final
class StoreHandle:
    """Opens a store and closes it exactly once, however often it is asked to.

    It exists before the store is opened, and a thread that runs no signal handlers opens it. So if a handler raises an
    exception, at any bytecode, the user of the handle still has it and closes it; or nothing references the handle any
    more, and it is closed in the background when it is deleted.
    """

    def __init__(self, open_store: Callable[[Callable[[], bool]], Store]) -> None:
        """Take as *open_store* a function. It gets a function that returns whether the store is still wanted."""
        self._open_store = open_store
        self._lock = Mutex()
        self._store: Store | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def store(self) -> Store:
        """The open store. Raise `ClosedResourceError` before it is open."""
        if self._store is None:
            raise ClosedResourceError
        return self._store

    def open(self) -> Store:
        """Open the store and return it. If an exception ends the wait, the store is closed once it is open."""
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
        """Release the store, or cancel opening it. Blocks while the last user closes it."""
        store = self._take()
        if store is not None:
            STORES.close(store)

    def close_soon(self) -> None:
        """Release the store, or cancel opening it, without blocking: another thread closes it."""
        store = self._take()
        if store is not None:
            blocking_call_threads().do(partial(STORES.close, store))

    def _take(self) -> Store | None:
        """Return the store, only to the one caller that closes it. A forked child closes nothing of its parent."""
        with self._lock.held():
            store, is_first = self._store, not self._closed
            self._closed = True
            return store if is_first and self._process == os.getpid() else None

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._store is None or sys.is_finalizing():
            return
        # In another thread: the garbage collector may run while this one holds a lock of ours.
        _thread.start_new_thread(self.close, ())


def _connect(store: Store) -> None:
    """Connect a store with the waiters of receivers and senders and with maintenance, unless that was done."""
    waiters_of(store)  # from now on, sends wake waiting receivers in all processes
    if isinstance(store, WritableStore):
        send_queue_of(store)  # and consuming wakes waiting senders
        MAINTENANCE.register(store)
