"""The stores of this process: every open of one directory shares one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from .._errors import Busy
from .._format import Guard, Mutex
from .control import CONTROL
from .files import Files
from .kernel_locks import UnwantedError
from .manifest import Manifest
from .opening import Trust, open_store, trust_anyone
from .ownership import ownership_of
from .store import Store

_LOOK = 0.05  # seconds between two looks at whether somebody still wants it


def _always() -> bool:
    return True


class _Door:
    """Lets one thread at a time open or close a directory."""

    def __init__(self) -> None:
        self._lock = Mutex()

    def held(self, wanted: Callable[[], bool]) -> Guard:
        """Hold it in a `with` statement; a caller that is not wanted any more waits no longer."""
        while True:
            try:
                return self._lock.held(_LOOK)
            except Busy:
                if not wanted():
                    raise UnwantedError from None


@dataclass(slots=True)
class _Open:
    """An open store."""

    store: Store
    door: _Door
    users: int = 1


class Stores:
    """The stores of this process, one a directory, each open as long as somebody uses it."""

    def __init__(self) -> None:
        self._lock = Mutex()
        self._doors: WeakValueDictionary[str, _Door] = WeakValueDictionary()
        self._open: dict[tuple[int, int, bool], _Open] = {}
        self._inherited: list[_Open] = []

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
        trust: Trust = trust_anyone,
    ) -> Store:
        """Return the store of a directory, opened or shared; *check* and *trust* see it first, and may raise.

        `UnwantedError` if it is not *wanted* any more while others keep us from opening it.
        """
        door = self._door(path)  # which lives as long as it has a name somewhere
        with door.held(wanted):
            store = self._share(path, check, trust, readonly)
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
                trust=trust,
            )
            return self._register(store, door, readonly=readonly)

    def _register(self, store: Store, door: _Door, *, readonly: bool) -> Store:
        """Let later opens share a store; return another one if that has been opened by another path meanwhile.

        A directory may be mounted at several paths. Then two threads do not wait for each other, and each opens it.
        """
        key = (*store.identity, readonly)
        with self._lock.held():
            other = self._open.get(key)
            if other is None:
                self._open[key] = _Open(store, door)
                return store
            other.users += 1
        store.close()
        return other.store

    def _door(self, path: Path) -> _Door:
        name = os.path.realpath(path)
        with self._lock.held():
            return self._doors.setdefault(name, _Door())

    def _share(self, path: Path, check: Callable[[Manifest], None], trust: Trust, readonly: bool) -> Store | None:
        # Whoever only reads may share with a writer, not the other way round.
        for shareable in (False, True) if readonly else (False,):
            key = _key(path, readonly=shareable)
            found = None if key is None else self._open.get(key)
            if key is None or found is None:
                continue
            check(found.store.manifest)
            trust(found.store.manifest, ownership_of(found.store.files, path))
            with self._lock.held():
                if self._open.get(key) is found:
                    found.users += 1
                    return found.store
        return None

    def close(self, store: Store) -> None:
        """Give up one use of a store; the last one closes it."""
        with self._door_of(store).held(_always):
            with self._lock.held():
                for key, opened in self._open.items():
                    if opened.store is store:
                        if opened.users > 1:
                            opened.users -= 1
                            return
                        del self._open[key]
                        break
            store.close()

    def _door_of(self, store: Store) -> _Door:
        """Return the door through which a store was opened, wherever its path leads to by now."""
        with self._lock.held():
            for opened in self._open.values():
                if opened.store is store:
                    return opened.door
        return self._door(store.path)

    def forget(self) -> None:
        """Start over in a forked child: what is open here belongs to the parent, and so do its kernel locks."""
        self._lock = Mutex()
        self._doors = WeakValueDictionary()
        self._inherited = list(self._open.values())  # kept: closing them would take maps away under live objects
        self._open = {}
        for opened in self._inherited:
            opened.store.abandon()


STORES = Stores()
os.register_at_fork(after_in_child=STORES.forget)


def _key(path: Path, *, readonly: bool) -> tuple[int, int, bool] | None:
    try:
        status = os.lstat(path / CONTROL)  # never another channel's, which a link may lead to
    except OSError:
        return None
    return status.st_dev, status.st_ino, readonly
