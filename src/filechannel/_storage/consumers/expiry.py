"""Names that nobody has owned for as long as they were to stay: who notices removes them.

Whoever opens a channel or lists its consumers does it on the way, and so does whoever maintains it and wants to know
what is still needed.
"""

from __future__ import annotations

import time

from .cursors import Cursors
from .roster import Registration, Roster


def remove_expired(roster: Roster, cursors: Cursors) -> list[str]:
    """Remove every name whose time is over, and return them. Safe in any number of processes at once.

    The time of a name whose owner was killed begins when somebody calls this: it is noted in the file.
    """
    now = time.time_ns()
    return [each.name for each in roster.registrations() if _is_over(each, cursors, now)]


def _is_over(registration: Registration, cursors: Cursors, now: int) -> bool:
    if registration.expires is None or registration.owner is not None:
        return False
    if registration.left is None:
        cursors.note_departure(registration.name)
        return False
    return registration.left + registration.expires <= now and cursors.remove_overdue(registration.name)
