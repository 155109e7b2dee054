"""One thread a process that extends leases while somebody works on what they are for.

It exists only while there is something to keep, and never waits for long: a process that was stopped in the middle of
one group must not cost the members of another theirs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import final

from anyio import ClosedResourceError

from .._errors import Busy, FileChannelError
from .._format import Guard, ensured
from .._storage.background import Timekeeper
from .._wakeup.patience import no_longer_than

_PATIENCE = 0.02  # seconds
_SHORTLY = 0.05
_logger = logging.getLogger("filechannel")


@final
class _Lease:
    """Something to extend, and when to do so next, by the monotonic clock."""

    def __init__(self, extend: Callable[[], object], every: float) -> None:
        self.extend = extend
        self.every = every
        self.when = time.monotonic() + every


@final
class Keeper:
    """Calls what was registered with it again and again, until that fails or is not wanted any more."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: a forked child has not got the thread, and none of the leases."""
        self._kept: dict[_Lease, None] = {}
        self._thread = Timekeeper("filechannel-keeper", self._attend)

    def keeping(self, extend: Callable[[], object], every: float) -> Guard:
        """Call *extend* every so many seconds as long as the body of a `with` runs. What it raises ends that, silently.

        `NoThreadError` if there is no thread to be had.
        """
        lease = _Lease(extend, every)
        # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
        return (ensured(self._kept.pop, lease, None), self._begin(lease))[0]  # type: ignore[func-returns-value]

    def _begin(self, lease: _Lease) -> None:
        self._kept[lease] = None
        self._thread.wake()

    # On the thread

    def _attend(self) -> float | None:
        kept = list(self._kept)  # one call of a C function: others come and go
        if not kept:
            return None
        lease = min(kept, key=lambda each: each.when)
        left = lease.when - time.monotonic()
        if left > 0:
            return left
        pause = self._extend(lease.extend, lease.every)
        if pause is None:
            self._kept.pop(lease, None)
        else:
            lease.when = time.monotonic() + pause
        return 0.0

    @staticmethod
    def _extend(extend: Callable[[], object], every: float) -> float | None:
        """Return after how many seconds to do it again; None if that is of no use."""
        try:
            with no_longer_than(time.monotonic() + _PATIENCE):
                extend()
            return every
        except Busy:
            return min(every, _SHORTLY)
        except (FileChannelError, ClosedResourceError):
            return None  # lost or closed: the call that settles it raises
        except Exception:  # the thread serves every group of the process: nothing may end it
            _logger.exception("extending a lease failed")
            return None


KEEPER = Keeper()
os.register_at_fork(after_in_child=KEEPER.start_over)
