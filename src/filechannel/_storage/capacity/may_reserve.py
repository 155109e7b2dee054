"""Which sender of this process may reserve capacity: the first entry of the send queue, before any new sender.

The queue itself waits and wakes, and belongs to `_wakeup.send_queue`. `CapacityLimit` needs only the part of it that is
here.
"""

from __future__ import annotations

from threading import get_ident
from typing import final


@final
class SendOrder:
    """The entries of the send queue of one channel, and the threads that try to append for them."""

    def __init__(self) -> None:
        self.entries: dict[object, None] = {}
        """The entries of the queue, in order. Only the send queue changes them."""
        self.served: set[int] = set()
        """The thread of the first entry, while it tries to append. Only the send queue changes it."""

    def may_pass(self) -> bool:
        """Return whether this thread may reserve capacity: no entry waits, or it appends for the first one."""
        return not self.entries or get_ident() in self.served
