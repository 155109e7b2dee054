"""`GroupMember`: one member of a group, whose deliveries have leases."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import final
from weakref import ref

from anyio import ClosedResourceError, WouldBlock

from ..._errors import AckError, Busy, DecodeError, LeaseExpiredError
from ..._format import Reader
from ..._offset import LogPosition, Offset
from ..._runtime.may_sleep import may_sleep
from ..._storage.consumers.attempts import Attempts
from ..._storage.consumers.group_cursor import Group
from ..._storage.writable_store import writable
from .lease_renewer import LEASE_RENEWER
from .outstanding import Claim
from .start_position import Start
from .subscription import NANOSECOND, Subscription

_REMEMBERED = 4096
_RENEWALS_PER_LEASE = 3


def _tend_weakly(member: GroupMember) -> Callable[[Reader], bool]:
    """Return a function that calls `tend` through a weak reference: the member references the reader that calls it."""
    reference = ref(member)

    def tend(reader: Reader) -> bool:
        found = reference()
        return found is not None and found.tend(reader)

    return tend


@final
class GroupMember:
    """The claims of one member: it delivers messages that no other member has, each for the time of a lease.

    It also moves the position that all members share.
    """

    has_leases = True

    def __init__(self, subscription: Subscription, group: Group, lease: float) -> None:
        self._subscription = subscription
        self._group = group
        self.lease = lease
        """For how many seconds a delivery belongs to this member, unless the lease is extended."""
        self._lost: dict[tuple[int, int], None] = {}
        reader = subscription.reader
        reader.expire = group.expire_before
        reader.native.share(group.map, group.owner, int(lease / NANOSECOND), _tend_weakly(self))

    def tend(self, reader: Reader) -> bool:
        """Do what is due in the group. Return False if another process holds the group's lock for too long."""
        try:
            is_redelivered = self._group.redelivery.run(may_sleep)
        except Busy:
            self._subscription.lock_is_busy = True
            return False
        if is_redelivered or reader.must_wake():
            self.wake()
        return True

    def wake(self) -> None:
        """Let the receivers of all members rescan, in all processes."""
        self._subscription.wake_group()

    # Leases

    def extend(self, offset: Offset, token: int) -> bool:
        """Restart a lease. Return False if the message is not this member's any more."""
        try:
            return self._extend(offset, token)
        except Busy:
            raise WouldBlock from None

    def _extend(self, offset: Offset, token: int) -> bool:
        number = self._subscription.reader.native.entry_number(offset, token)
        until = time.monotonic_ns() + int(self.lease / NANOSECOND)
        return number >= 0 and self._group.extend(number, token, until, may_sleep)

    def renewing(self, current: Callable[[], Claim | None]) -> AbstractContextManager[object]:
        """Extend the lease of the current delivery as often as needed while the body runs."""

        def extend() -> None:
            claim = current()
            if self._subscription.is_closed:
                raise ClosedResourceError
            if claim is not None:
                # False if it was acknowledged or lost: the call that acknowledges it raises the reason.
                self._extend(*claim)

        return LEASE_RENEWER.renewing(extend, self.lease / _RENEWALS_PER_LEASE)

    def after_ack(self) -> None:
        """Wake waiters after an ack. Raise `LeaseExpiredError` if some of the messages were lost before."""
        self.wake()
        with suppress(Busy):  # the process that holds the lock for so long detects it as well
            self._group.check_words(may_sleep)
        self.check_lost()

    def check_lost(self) -> None:
        """Raise `LeaseExpiredError` if messages were lost before they were acknowledged."""
        lost = self.collect_lost()
        if lost:
            first_offset, _ = lost[0]
            raise LeaseExpiredError(self._subscription.name, Offset(first_offset))

    def is_lost(self, offset: Offset, token: int) -> bool:
        """Return whether a delivery was lost before it was acknowledged."""
        self.collect_lost()
        return (offset, token) in self._lost

    def collect_lost(self) -> list[tuple[int, int]]:
        """Record which deliveries were lost since the last call, and return them."""
        lost = self._subscription.reader.native.take_lost()
        self._lost |= dict.fromkeys(lost)
        for old in list(self._lost)[: max(0, len(self._lost) - _REMEMBERED)]:
            del self._lost[old]
        return lost

    # Undecodable messages: like others, they belong to the member that claimed them

    def undecodable(self, offset: Offset) -> tuple[int, int, int]:
        """Return (sequence, attempt, token) of an undecodable message. Raise `AckError` if this member has none."""
        self._subscription.check_open()
        found = self._subscription.reader.native.refused(offset)
        if found is None:
            raise AckError(
                self._subscription.name,
                f"this member has no undecodable message at offset {offset}: it was acknowledged or redelivered",
            )
        return found

    def undecodable_sequence(self, error: DecodeError) -> int | None:
        """Return the sequence of an undecodable message; None if it does not belong to this member any more."""
        found = self._subscription.reader.native.refused(error.offset)
        if found is None:
            return None
        sequence, _, _ = found
        return sequence

    def skip_undecodable(self, error: DecodeError, sequence: int) -> None:
        """Acknowledge an undecodable message. If its lease has ended, another member gets it."""
        del sequence
        native = self._subscription.reader.native
        found = native.refused(error.offset)
        is_done = False
        if found is not None:
            _, _, token = found
            is_done = native.acknowledge(error.offset, token)
        self.collect_lost()
        if is_done:
            self._subscription.acked(1)
            if native.must_wake():
                with suppress(LeaseExpiredError):  # of another message: the call that acknowledges it raises
                    self.after_ack()

    # The position of the group

    def attempts(self) -> Attempts:
        """Return what counts attempts to move the group, and ends them if none can succeed."""
        return Attempts(self._subscription.store.control, self._group.name)

    def seek(self, to: Start, attempts: Attempts) -> bool:
        """Move the whole group to another log position. Return False if it was reclaimed meanwhile. May block.

        Raises `StorageError` after too many attempts, otherwise errors as in `_move`.
        """
        attempts.count()
        return self._move(self._subscription.find(to, "to"))

    def _move(self, target: LogPosition) -> bool:
        """Move the whole group. Return False if the target was reclaimed. May block.

        In that case the group stays where it was. Raises `AckError` if a message is outstanding or to be redelivered.
        """
        self._subscription.check_open()
        if target.offset < self._subscription.store.control.oldest_offset:
            return False  # reclaimed since it was looked up
        before = self._group.move(target)
        is_there = self._is_retained()
        if not is_there:
            with suppress(AckError):  # a member got a message meanwhile, after an error that says what it missed
                self._group.move(before)
        self.wake()
        return is_there

    def retain_start(self, start: Start) -> None:
        """Retain the data at the start position of a new group. If it was reclaimed meanwhile, resolve it again."""
        attempts = self.attempts()
        with suppress(AckError):  # a new member got a message meanwhile, after an error that says what it missed
            while not self._is_retained():
                attempts.count()
                self._group.move(self._subscription.find(start, "start"))

    def _is_retained(self) -> bool:
        """Return whether the data at this new position is retained until consumed; False if it was reclaimed."""
        position = self._group.position
        return position is None or writable(self._subscription.store).retain_from(position.offset)
