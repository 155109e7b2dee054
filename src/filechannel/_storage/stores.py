"""The stores of this process: every open of one directory shares one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from .control import CONTROL
from .files import Files
from .manifest import Manifest
from .store import Store


class Stores:
    """The stores of this process, one a directory, each open as long as somebody uses it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a channel may be collected, and closed by that, anywhere
        self._open: dict[tuple[int, int, bool], tuple[Store, int]] = {}
        self._inherited: list[tuple[Store, int]] = []

    def open(
        self,
        path: Path,
        *,
        check: Callable[[Manifest], None],
        new: Callable[[], Manifest] | None,
        readonly: bool,
        max_mapped_segments: int,
        files: Files | None = None,
    ) -> Store:
        """Return the store of a directory, opened or shared."""
        with self._lock:
            # Whoever only reads may share with a writer, not the other way round.
            for shareable in (False, True) if readonly else (False,):
                key = _key(path, readonly=shareable)
                if key is not None and key in self._open:
                    store, users = self._open[key]
                    check(store.manifest)
                    self._open[key] = store, users + 1
                    return store
            store = Store.open(
                files or Files(),
                path,
                check=check,
                new=new,
                readonly=readonly,
                max_mapped_segments=max_mapped_segments,
            )
            key = _key(path, readonly=readonly)
            if key is not None:
                self._open[key] = store, 1
            return store

    def close(self, store: Store) -> None:
        """Give up one use of a store; the last one closes it."""
        with self._lock:
            for key, (other, users) in self._open.items():
                if other is store:
                    if users > 1:
                        self._open[key] = store, users - 1
                        return
                    del self._open[key]
                    break
            store.close()

    def forget(self) -> None:
        """Start over in a forked child: what is open here belongs to the parent, and so do its kernel locks."""
        self._lock = threading.RLock()
        self._inherited = list(self._open.values())  # kept: closing them would take maps away under live objects
        self._open = {}


STORES = Stores()
os.register_at_fork(after_in_child=STORES.forget)


def _key(path: Path, *, readonly: bool) -> tuple[int, int, bool] | None:
    try:
        status = os.stat(path / CONTROL)
    except OSError:
        return None
    return status.st_dev, status.st_ino, readonly
