"""How a receiver gets the position that it stands on: a name is owned, a group joined, or history replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

from .. import _checks as checks
from .._options import OpenOptions
from .._storage.cursor import Cursor
from .._storage.index import Mark
from .._storage.log_reader import LogReader
from .._storage.store import Store
from .ack_source import AckSource
from .consumers import check_name
from .errands import Errands
from .group_source import GroupSource
from .places import Start, Stop, find_place, find_stop
from .source import Source

S = TypeVar("S", bound=Source)


@final
@dataclass(frozen=True, slots=True)
class Sources:
    """Makes positions for the receivers of one channel object."""

    store: Store
    options: OpenOptions
    errands: Errands
    open_reader: Callable[[Cursor | None, Mark | None], LogReader]
    keep: Callable[[Source], object]
    """Called with each that was made; it raises if the channel was closed meanwhile."""
    forget: Callable[[Source], object]
    """Called with each that was closed."""

    def named(self, name: str, start: Start, expires: float | None) -> Source:
        """Own a name."""
        return self._named(Source, name, start, expires)

    def acknowledged(self, name: str, start: Start, expires: float | None) -> AckSource:
        """Own a name whose position follows what is acknowledged."""
        return self._named(AckSource, name, start, expires)

    def _named(self, kind: type[S], name: str, start: Start, expires: float | None) -> S:
        """Own a name, and stand where it stopped."""
        check_name(name)
        if expires is not None:
            checks.seconds("expires", expires)
        cursor = self.store.cursors.open(name)
        try:
            if expires is not None:
                cursor.expire_after(expires)
            position = cursor.position
            if position is None:
                place = find_place(self.store, start)
            else:
                place = Mark(position.offset, position.sequence, position.time)
            source = self._make(kind, cursor, place)
        except BaseException:
            if cursor.position is None:
                self.store.cursors.remove(cursor)
            else:
                self.store.cursors.close(cursor)
            raise
        if position is None:
            source.hold_on(start)
        source.own()
        return source

    def shared(self, name: str, lease: float, start: Start, expires: float | None) -> GroupSource:
        """Join a group, which stands where its members have got to."""
        check_name(name)
        checks.seconds("lease", lease)
        if expires is not None:
            checks.seconds("expires", expires)
        store = self.store
        assert store.processes is not None
        group = store.cursors.join(name, store.processes)
        try:
            if expires is not None:
                group.expire_after(expires)
            is_new = group.position is None
            group.begin(find_place(store, start) if is_new else None)
            source = GroupSource(store, self.options, self.errands, self.open_reader, group, lease, self.forget)
            self.keep(source)
            if is_new:
                source.hold_on(start)
            source.own()
            return source
        except BaseException:
            store.cursors.give_up(group)
            raise

    def replayed(self, start: Start, stop: Stop) -> Source:
        """Stand somewhere without a name, and go no further than *stop*."""
        # The end first: what is published while the beginning is looked for does not belong to it.
        end = find_stop(self.store, stop)
        source = self._make(Source, None, find_place(self.store, start), end)
        source.own()
        return source

    def _make(self, kind: type[S], cursor: Cursor | None, place: Mark, stop: Mark | None = None) -> S:
        source = kind(self.store, self.options, self.errands, self.open_reader, cursor, place, stop, self.forget)
        self.keep(source)
        return source
