"""The stores of this process: every open of one directory shares one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from .control import CONTROL
from .files import Files
from .kernel_locks import UnwantedError
from .manifest import Manifest
from .opening import open_store
from .store import Store

_LOOK = 0.05  # seconds between two looks at whether somebody still wants it


def _always() -> bool:
    return True


class _Door:
    """Lets one thread at a time open or close a directory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def held(self, wanted: Callable[[], bool]) -> Generator[None]:
        """Hold it; whoever is not wanted any more waits no longer."""
        while not self._lock.acquire(timeout=_LOOK):
            if not wanted():
                raise UnwantedError
        try:
            yield
        finally:
            self._lock.release()


class Stores:
    """The stores of this process, one a directory, each open as long as somebody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._doors: WeakValueDictionary[str, _Door] = WeakValueDictionary()
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
        wanted: Callable[[], bool] = _always,
    ) -> Store:
        """Return the store of a directory, opened or shared.

        `UnwantedError` if it is not *wanted* any more while others keep us from opening it.
        """
        with self._door(path).held(wanted):
            store = self._share(path, check, readonly)
            if store is not None:
                return store
            store = open_store(
                files or Files(),
                path,
                check=check,
                new=new,
                readonly=readonly,
                max_mapped_segments=max_mapped_segments,
                wanted=wanted,
            )
            key = _key(path, readonly=readonly)
            with self._lock:
                if key is not None:
                    self._open[key] = store, 1
            return store

    def _door(self, path: Path) -> _Door:
        name = os.path.realpath(path)
        with self._lock:
            return self._doors.setdefault(name, _Door())

    def _share(self, path: Path, check: Callable[[Manifest], None], readonly: bool) -> Store | None:
        # Whoever only reads may share with a writer, not the other way round.
        for shareable in (False, True) if readonly else (False,):
            key = _key(path, readonly=shareable)
            found = None if key is None else self._open.get(key)
            if key is None or found is None:
                continue
            check(found[0].manifest)
            with self._lock:
                now = self._open.get(key)
                if now is not None and now[0] is found[0]:
                    self._open[key] = now[0], now[1] + 1
                    return now[0]
        return None

    def close(self, store: Store) -> None:
        """Give up one use of a store; the last one closes it."""
        with self._door(store.path).held(_always):
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
        self._lock = threading.Lock()
        self._doors = WeakValueDictionary()
        self._inherited = list(self._open.values())  # kept: closing them would take maps away under live objects
        self._open = {}
        for store, _ in self._inherited:
            store.abandon()


STORES = Stores()
os.register_at_fork(after_in_child=STORES.forget)


def _key(path: Path, *, readonly: bool) -> tuple[int, int, bool] | None:
    try:
        status = os.stat(path / CONTROL)
    except OSError:
        return None
    return status.st_dev, status.st_ino, readonly
