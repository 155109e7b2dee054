"""`LeaseRenewer`: extends the leases of messages that are being handled, in the background.

One thread does it for all groups of the process, and never waits for long: a process that was stopped while it held the
lock of one group must not cost the members of another group their leases.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import final

from anyio import ClosedResourceError

from ..._errors import Busy, FileChannelError
from ..._format import Guard, ensured
from ..._runtime.scheduler import LEASE_LANE, Lane, TimedCall
from ..._wakeup.sleep_deadline import no_longer_than

_LOCK_WAIT_SECONDS = 0.02
_BUSY_RETRY_SECONDS = 0.05
_logger = logging.getLogger("filechannel")


@final
class LeaseRenewer:
    """Calls functions periodically, until they fail or a `with` block ends."""

    def __init__(self, lane: Lane = LEASE_LANE) -> None:
        self._lane = lane

    def renewing(self, extend: Callable[[], object], every: float) -> Guard:
        """Call *extend* every *every* seconds while the body of a `with` runs. An error silently ends that.

        Raises `NoThreadError` if no thread can be started.
        """
        extension = TimedCall(self._lane, partial(_extend, extend, every))
        # The guard has no name, so that an exception raised by a signal handler cannot keep it (see mutex.c).
        return (ensured(extension.cancel), extension.request(every))[0]  # type: ignore[func-returns-value]


def _extend(extend: Callable[[], object], every: float) -> float | None:
    """Return after how many seconds to extend again; None if that is useless."""
    try:
        with no_longer_than(time.monotonic() + _LOCK_WAIT_SECONDS):
            extend()
        return every
    except Busy:
        return min(every, _BUSY_RETRY_SECONDS)
    except (FileChannelError, ClosedResourceError):
        return None  # lost or closed: the call that acknowledges it raises
    except Exception:
        _logger.exception("a lease could not be extended")
        return None


LEASE_RENEWER = LeaseRenewer()
