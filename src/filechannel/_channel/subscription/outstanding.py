"""`Outstanding`: the deliveries of a subscription that are neither acked nor nacked."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol, TypeAlias, final

from anyio import ClosedResourceError

from ..._errors import AckError, DecodeError, LeaseExpiredError
from ..._offset import Offset
from .subscription import NANOSECOND, Subscription
from .transaction_position import TransactionInput

Claim: TypeAlias = tuple[Offset, int]
"""Offset and token of a delivery."""


class Claims(Protocol):
    """To whom deliveries belong: to a single consumer, or to a member of a group until a lease ends."""

    @property
    def has_leases(self) -> bool:
        """Whether a message can pass to another member before it is acknowledged."""
        ...

    def wake(self) -> None:
        """Let all receivers that share the position rescan, since a message is redelivered."""
        ...

    def after_ack(self) -> None:
        """Wake receivers that may wait for an ack. Raise `LeaseExpiredError` if acked messages were lost before."""
        ...

    def check_lost(self) -> None:
        """Raise `LeaseExpiredError` if messages were lost before they were acknowledged."""
        ...

    def collect_lost(self) -> object:
        """Record which deliveries were lost, so that only a call about one of them raises."""
        ...

    def is_lost(self, offset: Offset, token: int) -> bool:
        """Return whether a delivery was lost before it was acknowledged."""
        ...

    def extend(self, offset: Offset, token: int) -> bool:
        """Restart a lease. Return False if the message is not this consumer's any more."""
        ...

    def renewing(self, current: Callable[[], Claim | None]) -> AbstractContextManager[object]:
        """Extend the lease of the current delivery as often as needed while the body runs."""
        ...

    def undecodable_sequence(self, error: DecodeError) -> int | None:
        """Return the sequence of an undecodable message; None if another worker skipped it, or it was removed.

        May read files.
        """
        ...

    def skip_undecodable(self, error: DecodeError, sequence: int) -> None:
        """Skip an undecodable message."""
        ...


@final
class SingleConsumer:
    """The claims of a single consumer: what was delivered stays with it, since there is no other one."""

    has_leases = False

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def wake(self) -> None:
        """Let all receivers that share the position rescan."""
        self._subscription.waiters.wake_all()

    after_ack = wake
    """The ack of the last message of a sealed channel ends the stream."""

    def check_lost(self) -> None:
        """Do nothing."""

    def collect_lost(self) -> None:
        """Do nothing."""

    def is_lost(self, offset: Offset, token: int) -> bool:
        """Return False."""
        del offset, token
        return False

    def extend(self, offset: Offset, token: int) -> bool:
        """Do nothing."""
        del offset, token
        return True

    def renewing(self, current: Callable[[], Claim | None]) -> AbstractContextManager[object]:
        """Do nothing."""
        del current
        return nullcontext()

    def undecodable_sequence(self, error: DecodeError) -> int | None:
        """Look the message up if it is still the next one."""
        subscription = self._subscription
        if subscription.reader.native.offset != error.offset:
            return None
        try:
            return subscription.find(error.offset, "offset").sequence
        except ValueError:
            if error.offset >= subscription.store.control.oldest_offset:
                raise
            subscription.reader.native.unbind()  # the next take looks for its segment, and reports what was removed
            return None

    def skip_undecodable(self, error: DecodeError, sequence: int) -> None:
        """Move past the message, unless it was removed and the position has moved meanwhile."""
        self._subscription.reader.native.move_from(error.offset, error.next_offset, sequence + 1)
        self.wake()


@final
class Outstanding:
    """The outstanding deliveries of a subscription. Its stored position is that of the oldest of them.

    Receivers and deliveries reference this object, which references the subscription.
    """

    def __init__(self, subscription: Subscription, claims: Claims) -> None:
        self.subscription = subscription
        self.claims = claims
        # Looked up once, for the path of every ack.
        self._native = subscription.reader.native
        self._is_counted = subscription.is_counted
        self._has_leases = claims.has_leases
        self.transaction: TransactionInput = TransactionInput(subscription)

    def ack(self, count: int) -> bool:
        """Acknowledge the oldest outstanding messages. Return False if there are fewer."""
        self.subscription.check_position()
        is_done = self._native.ack(count)
        if is_done:
            self._acked(count)
        return is_done

    def nack(self, count: int | None) -> bool:
        """Redeliver the newest outstanding messages, all if None. Return False if there are fewer.

        Raises `LeaseExpiredError` if some of them were lost before.
        """
        is_done = self._native.nack(count)
        if is_done:
            self.claims.wake()
        self.claims.check_lost()
        return is_done

    def acknowledge(self, offset: Offset, token: int) -> None:
        """Acknowledge one message. Raise `AckError` or `LeaseExpiredError` if it is not outstanding any more."""
        self.subscription.check_open()  # first: a forked child must not access the reader at all
        self.subscription.check_position()
        self._acknowledge(offset, token)

    def _acknowledge(self, offset: Offset, token: int) -> None:
        self.subscription.check_open()
        is_done = self._native.acknowledge(offset, token)
        if not is_done or self._has_leases:
            self._check(offset, token, is_done)
        self._acked(1)

    def _acked(self, count: int) -> None:
        if self._is_counted:
            self.subscription.acked(count)
        if self._native.must_wake():
            self.claims.after_ack()

    def redeliver(self, offset: Offset, token: int, delay: float = 0.0, *, counted: bool = True) -> None:
        """Redeliver one message after *delay* seconds. Errors as in `acknowledge`.

        With ``counted=False``, this delivery does not count as an attempt.
        """
        self.subscription.check_open()
        due = time.monotonic_ns() + int(delay / NANOSECOND) if delay else 0
        self._check(offset, token, self._native.redeliver(offset, token, due, counted))
        self.claims.wake()

    def return_undelivered(self, taken: Iterable[Claim]) -> None:
        """Redeliver messages that were not returned to a caller, except those acknowledged or lost meanwhile."""
        for offset, token in taken:
            self._native.redeliver(offset, token, 0, False)
        self.claims.wake()
        self.claims.collect_lost()

    def extend(self, offset: Offset, token: int) -> None:
        """Restart a lease. Errors as in `acknowledge`. Without a lease, do nothing."""
        self.subscription.check_open()
        if not self.claims.extend(offset, token):
            self._native.redeliver(offset, token, 0, False)  # detects that it is lost
            self._check(offset, token, is_done=False)

    def _check(self, offset: Offset, token: int, is_done: bool) -> None:
        """Raise if a message could not be acknowledged with its token."""
        if self.claims.is_lost(offset, token):
            raise LeaseExpiredError(self.subscription.name, offset)
        if not is_done:
            self.subscription.check_open()  # closed by another thread at the same time
            what = f"the message at offset {offset} was already acknowledged or redelivered"
            raise AckError(self.subscription.name, what)

    @contextmanager
    def acknowledging(self, offset: Offset, token: int) -> Generator[None]:
        """Acknowledge a message if the body completes; redeliver it otherwise. Extend its lease meanwhile.

        If the body is left by anything that is not an `Exception`, such as a cancellation, the attempt does not count.
        """
        try:
            if self._has_leases:
                with self.claims.renewing(lambda: (offset, token)):
                    yield
            else:
                yield
        except BaseException as error:
            # Suppressed: the body has acknowledged it, or it is redelivered in any case.
            with suppress(AckError, LeaseExpiredError, ClosedResourceError):
                self.redeliver(offset, token, counted=isinstance(error, Exception))
            raise
        self._acknowledge(offset, token)  # a failed flush is raised by the next call: this message is done
