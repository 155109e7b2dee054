"""The open stores of this process: all opens of one directory share one store."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload
from weakref import WeakValueDictionary

from .._errors import Busy
from .._format import Guard, Mutex
from .._runtime.fork_registry import Phase, reset_in_child
from .._runtime.may_sleep import always
from .control.control_file import CONTROL
from .manifest import Manifest
from .open_directory import Trust, open_store, trust_anyone
from .recovery.ownership import ownership_of
from .store import Store
from .system.kernel_locks import UnwantedError
from .system.os_calls import Files
from .writable_store import WritableStore

_CHECK_SECONDS = 0.05  # between two checks whether the open is still wanted


class _OpenLock:
    """Serializes opening and closing of one directory among the threads of this process."""

    def __init__(self) -> None:
        self._lock = Mutex()

    def held(self, wanted: Callable[[], bool]) -> Guard:
        """Hold the lock in a `with` statement. Raise `UnwantedError` if *wanted* returns False while waiting."""
        while True:
            try:
                return self._lock.held(_CHECK_SECONDS)
            except Busy:
                if not wanted():
                    raise UnwantedError from None


@dataclass(slots=True)
class _Open:
    """An open store and its number of users."""

    store: Store
    open_lock: _OpenLock
    users: int = 1


class Stores:
    """The stores of this process, one per directory. A store is open as long as it has users."""

    def __init__(self) -> None:
        self._lock = Mutex()
        self._open_locks: WeakValueDictionary[str, _OpenLock] = WeakValueDictionary()
        self._open: dict[tuple[int, int, bool], _Open] = {}
        self._inherited: list[_Open] = []

    @overload
    def open(
        self,
        path: Path,
        *,
        check: Callable[[Manifest], None],
        new: Callable[[], Manifest] | None,
        readonly: Literal[False],
        max_mapped_segments: int,
        files: Files | None = None,
        wanted: Callable[[], bool] = always,
        trust: Trust = trust_anyone,
    ) -> WritableStore: ...

    @overload
    def open(
        self,
        path: Path,
        *,
        check: Callable[[Manifest], None],
        new: Callable[[], Manifest] | None,
        readonly: bool,
        max_mapped_segments: int,
        files: Files | None = None,
        wanted: Callable[[], bool] = always,
        trust: Trust = trust_anyone,
    ) -> Store: ...

    def open(
        self,
        path: Path,
        *,
        check: Callable[[Manifest], None],
        new: Callable[[], Manifest] | None,
        readonly: bool,
        max_mapped_segments: int,
        files: Files | None = None,
        wanted: Callable[[], bool] = always,
        trust: Trust = trust_anyone,
    ) -> Store:
        """Return the store of a directory, opened or shared; *check* and *trust* see it first, and may raise.

        Raises `UnwantedError` if *wanted* returns False while another thread or process keeps this one from opening it.
        """
        open_lock = self._open_lock(path)  # a weak dictionary holds it: it lives as long as something refers to it
        with open_lock.held(wanted):
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
            return self._register(store, open_lock, readonly=readonly)

    def _register(self, store: Store, open_lock: _OpenLock, *, readonly: bool) -> Store:
        """Let later opens share a store. Return another one if the same directory was opened by another path meanwhile.

        A directory may be mounted at several paths. Then two threads do not wait for each other, and each opens it.
        """
        key = (*store.identity, readonly)
        with self._lock.held():
            other = self._open.get(key)
            if other is None:
                self._open[key] = _Open(store, open_lock)
                return store
            other.users += 1
        store.close()
        return other.store

    def _open_lock(self, path: Path) -> _OpenLock:
        name = os.path.realpath(path)
        with self._lock.held():
            return self._open_locks.setdefault(name, _OpenLock())

    def _share(self, path: Path, check: Callable[[Manifest], None], trust: Trust, readonly: bool) -> Store | None:
        # A read-only open may share a store that is open for writing, but not the other way round.
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
        """Drop one use of a store; the last one closes it."""
        with self._open_lock_of(store).held(always):
            with self._lock.held():
                for key, opened in self._open.items():
                    if opened.store is store:
                        if opened.users > 1:
                            opened.users -= 1
                            return
                        del self._open[key]
                        break
            store.close()

    def _open_lock_of(self, store: Store) -> _OpenLock:
        """Return the open lock under which a store was opened, wherever its path leads now."""
        with self._lock.held():
            for opened in self._open.values():
                if opened.store is store:
                    return opened.open_lock
        return self._open_lock(store.path)

    def forget(self) -> None:
        """Start over in a forked child: the open stores and their kernel locks belong to the parent."""
        self._lock = Mutex()
        self._open_locks = WeakValueDictionary()
        self._inherited = list(self._open.values())  # kept: closing them would unmap files under live objects
        self._open = {}
        for opened in self._inherited:
            opened.store.abandon()


STORES = Stores()
reset_in_child(Phase.STORES, STORES.forget)


def _key(path: Path, *, readonly: bool) -> tuple[int, int, bool] | None:
    try:
        status = os.lstat(path / CONTROL)  # never the control page of another channel, to which a link may lead
    except OSError:
        return None
    return status.st_dev, status.st_ino, readonly
