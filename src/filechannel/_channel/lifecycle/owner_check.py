"""Checks whether other users can change a channel: the owner of a directory can replace everything in it."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..._errors import UntrustedChannelError
from ..._storage.recovery.ownership import Ownership

_logger = logging.getLogger("filechannel")
_warned: set[Path] = set()
_OTHERS_WRITE = 0o022
_ALWAYS = ("", "control")  # parts that belong to the creator of the channel, even if a group of users shares it


@dataclass(frozen=True, slots=True)
class Expected:
    """What an open expects of a channel."""

    mode: int
    """The permission bits that its files should have."""
    is_asked_for: bool
    """Whether the open asked for them: then it knows which users have access."""


def check_trust(
    path: Path, parts: Iterable[Ownership], expected: Expected, *, strict: bool, names_option: bool = True
) -> None:
    """Warn once per path, or with *strict* raise `UntrustedChannelError`, if other users may change or read a channel.

    With *names_option*, the warning says how to refuse such a channel.
    """
    parts = tuple(parts)
    foreign = _foreign(parts, expected)
    reasons = [f"{_subject(names)} to user {_name(user)}, who can change it" for user, names in foreign.items()]
    mode = None if expected.is_asked_for else expected.mode
    if mode is not None and mode & ~0o600:
        reasons.append(f"its mode is {mode:04o}, which ChannelOptions(mode=...) did not request")
    wide = {each.name or ".": each.permissions for each in parts if each.excess(expected.mode)}
    if wide:
        found = ", ".join(f"{name} has {permissions:04o}" for name, permissions in wide.items())
        reasons.append(f"it grants access to more users than its mode, {expected.mode:04o}: {found}")
    if not reasons:
        return
    reason = "; and ".join(reasons)
    if strict:
        raise UntrustedChannelError(path, reason, min(foreign, default=None), mode, parts=tuple(wide))
    if path not in _warned:
        _warned.add(path)
        hint = "; strict_owner=True refuses such a channel" if names_option else ""
        _logger.warning("%s is not under the control of this user alone: %s%s", path, reason, hint)


def _foreign(parts: Sequence[Ownership], expected: Expected) -> dict[int, list[str]]:
    """Return the users other than this one and root that own parts, and which parts.

    If this open asked for a mode that lets other users write, they may have created parts of the channel.
    """
    is_shared = expected.is_asked_for and expected.mode & _OTHERS_WRITE
    found: dict[int, list[str]] = {}
    for each in parts:
        if each.user not in (0, os.geteuid()) and (not is_shared or each.name in _ALWAYS):
            found.setdefault(each.user, []).append(each.name)
    return dict(sorted(found.items()))


def _subject(names: Sequence[str]) -> str:
    if "" in names:
        return "it belongs"
    return f"{names[0]} belongs" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} belong"


def _name(user: int) -> str:
    try:
        return f"{user} ({pwd.getpwuid(user).pw_name})"
    except KeyError:
        return str(user)
