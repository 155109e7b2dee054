"""Creating subscriptions: owning a name, joining a group, or replaying history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from ... import _checks as checks
from ..._offset import LogPosition
from ..._options import OpenOptions
from ..._storage.consumers.cursor import Cursor
from ..._storage.reading.log_reader import LogReader
from ..._storage.store import Store
from ..._storage.writable_store import writable
from ..lifecycle.blocking_calls import BlockingCalls
from ..status.consumer_status import check_name
from .group_member import GroupMember
from .outstanding import Outstanding, SingleConsumer
from .start_position import Start, Stop, find_stop, resolve_start
from .subscription import Subscription


@final
@dataclass(frozen=True, slots=True)
class Subscriptions:
    """Creates the subscriptions of one channel object."""

    store: Store
    options: OpenOptions
    blocking_calls: BlockingCalls
    open_reader: Callable[[Cursor | None, LogPosition | None], LogReader]
    keep: Callable[[Subscription], object]
    """Called with each new subscription; it raises if the channel was closed meanwhile."""
    forget: Callable[[Subscription], object]
    """Called with each closed subscription."""

    def named(self, name: str, start: Start, expires: float | None) -> Subscription:
        """Own a name."""
        return self._named(name, start, expires, acknowledged=False)

    def acknowledged(self, name: str, start: Start, expires: float | None) -> Outstanding:
        """Own a name whose position follows the acknowledgements."""
        subscription = self._named(name, start, expires, acknowledged=True)
        return Outstanding(subscription, SingleConsumer(subscription))

    def _named(self, name: str, start: Start, expires: float | None, *, acknowledged: bool) -> Subscription:
        """Own a name, and resume at its stored position."""
        check_name(name)
        if expires is not None:
            checks.seconds("expires", expires)
        cursors = writable(self.store).cursors
        cursor = cursors.open(name)
        try:
            if expires is not None:
                cursor.expire_after(expires)
            position = cursor.position
            if position is None:
                log_position = resolve_start(self.store, start)
            else:
                log_position = position.log_position
            subscription = self._make(cursor, log_position, acknowledged=acknowledged)
            if acknowledged:
                subscription.reader.native.track_acks()
            self.keep(subscription)
        except BaseException:
            if cursor.position is None:
                cursors.remove(cursor)
            else:
                cursors.close(cursor)
            raise
        if position is None:
            subscription.retain_start(start)
        subscription.own()
        return subscription

    def shared(self, name: str, lease: float, start: Start, expires: float | None) -> tuple[Outstanding, GroupMember]:
        """Join a group, and resume at its stored position."""
        check_name(name)
        checks.seconds("lease", lease)
        if expires is not None:
            checks.seconds("expires", expires)
        store = writable(self.store)
        group = store.cursors.join(name, store.processes)
        try:
            if expires is not None:
                group.expire_after(expires)
            is_new = group.position is None
            group.begin(resolve_start(store, start) if is_new else None)
            position = group.position
            assert position is not None
            log_position = position.log_position
            subscription = self._make(group, log_position, acknowledged=True)
            member = GroupMember(subscription, group, lease)
            self.keep(subscription)
            if is_new:
                member.retain_start(start)
            subscription.own()
            return Outstanding(subscription, member), member
        except BaseException:
            store.cursors.leave_after_failed_join(group)
            raise

    def replayed(self, start: Start, stop: Stop) -> Subscription:
        """Create a subscription without a name that ends at *stop*."""
        # Resolve the end first: messages published while the start is looked up are not part of the replay.
        end = find_stop(self.store, stop)
        subscription = self._make(None, resolve_start(self.store, start), end)
        self.keep(subscription)
        subscription.own()
        return subscription

    def _make(
        self,
        cursor: Cursor | None,
        log_position: LogPosition,
        stop: LogPosition | None = None,
        *,
        acknowledged: bool = False,
    ) -> Subscription:
        return Subscription(
            self.store,
            self.options,
            self.blocking_calls,
            self.open_reader,
            cursor,
            log_position,
            stop,
            self.forget,
            acknowledged=acknowledged,
        )
