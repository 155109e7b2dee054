"""Removal of consumer names that had no live owner for longer than their expiry time.

A process does this whenever it opens a channel or lists its consumers, and when the maintenance thread determines what
is still needed.
"""

from __future__ import annotations

import time

from .cursors import Cursors
from .listing import ConsumerListing, Registration


def remove_expired(consumer_listing: ConsumerListing, cursors: Cursors) -> list[str]:
    """Remove every expired name, and return them. Safe in any number of processes at once.

    The time of a name whose owner was killed starts at the first call of this function, which notes it in the file.
    """
    now = time.time_ns()
    return [each.name for each in consumer_listing.registrations() if _is_over(each, cursors, now)]


def _is_over(registration: Registration, cursors: Cursors, now: int) -> bool:
    if registration.expires is None or registration.owner is not None:
        return False
    if registration.departed is None:
        cursors.note_departure(registration.name)
        return False
    return registration.departed + registration.expires <= now and cursors.remove_overdue(registration.name)
