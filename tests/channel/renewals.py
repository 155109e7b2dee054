"""Leases that are renewed much more often than they end, so that a busy machine does not lose one; and their count."""

from __future__ import annotations

import pytest

from filechannel._channel.subscription import group_member
from filechannel._channel.subscription.group_member import GroupMember
from filechannel._offset import Offset

LEASE = 1.0
PER_LEASE = 20
BEYOND = PER_LEASE + 3
"""So many renewals take longer than a lease."""


def counted_renewals(monkeypatch: pytest.MonkeyPatch) -> list[Offset]:
    """Renew leases often, and return a list to which each renewal adds the offset of its message."""
    renewed, extend = list[Offset](), GroupMember._extend

    def counted(self: GroupMember, offset: Offset, token: int) -> bool:
        is_extended = extend(self, offset, token)
        if is_extended:
            renewed.append(offset)
        return is_extended

    monkeypatch.setattr(group_member, "_RENEWALS_PER_LEASE", PER_LEASE)
    monkeypatch.setattr(GroupMember, "_extend", counted)
    return renewed
