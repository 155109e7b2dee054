"""Validation of option values, and how values are shown in messages.

A check takes the option's name and a value. It raises ``TypeError`` or ``ValueError`` naming the option, the value and
what is allowed, and returns nothing if the value is valid.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeAlias, cast

Check: TypeAlias = Callable[[str, object], None]

_LONGEST: Final = 1e9
"""About 30 years: the waits of the operating system accept it, and no user needs more."""


def shown(name: str, value: object) -> str:
    """Return the value of an option as a user writes it: permission bits are octal."""
    return f"{value:#o}" if name == "mode" and type(value) is int else repr(value)


def with_article(name: str) -> str:
    """Return a name with its indefinite article, as in "an Order"."""
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def instance_of(wanted: type, allowed: str) -> Check:
    """Accept instances of *wanted*. A bool is not accepted as an int: ``segment_size=True`` is a mistake."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}")

    return check


def integer(low: int, high: int | None = None) -> Check:
    """Accept an integer from *low* to *high*, both included."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    check_type = instance_of(int, allowed)

    def check(name: str, value: object) -> None:
        check_type(name, value)
        number = cast("int", value)
        if number < low or (high is not None and number > high):
            raise ValueError(f"{name}={value!r}: must be {allowed}")

    return check


def one_of(*choices: str) -> Check:
    """Accept one of the given words."""
    allowed = " or ".join(map(repr, choices))
    check_type = instance_of(str, allowed)

    def check(name: str, value: object) -> None:
        check_type(name, value)
        if value not in choices:
            raise ValueError(f"{name}={value!r}: must be {allowed}")

    return check


def none_or(check: Check) -> Check:
    """Accept None, and what *check* accepts."""

    def check_unless_none(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return check_unless_none


def fraction(name: str, value: object) -> None:
    """Accept a fraction: above 0 and at most 1."""
    allowed = "a number above 0 and at most 1"
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}")
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value!r}: must be {allowed}")


def permission_bits(name: str, value: object) -> None:
    """Accept the permissions of a file that its owner can read and write."""
    allowed = "permission bits from 0o600 to 0o777 with the owner's read and write"
    instance_of(int, allowed)(name, value)
    bits = cast("int", value)
    if not 0o600 <= bits <= 0o777:
        raise ValueError(f"{name}={shown(name, bits)}: must be {allowed}{_meant(bits)}")


def _meant(bits: int) -> str:
    """Return a hint if the octal digits were probably meant, as in 640; otherwise an empty string."""
    digits = str(bits)
    meant = int(digits, 8) if set(digits) <= set("01234567") else 0
    return f"; {bits} is decimal, did you mean 0o{digits}?" if 0o600 <= meant <= 0o777 else ""


def path_text(name: str, value: object) -> str:
    """Accept a path, and return it as given."""
    text: object = os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"{name}={value!r}: must be a str or os.PathLike, not {type(text).__name__}")
    return text


def seconds(name: str, value: object) -> None:
    """Accept a duration above 0."""
    if not _duration(name, value, "a number of seconds greater than 0") > 0:
        raise ValueError(f"{name}={value!r}: must be a number of seconds greater than 0")


def seconds_or_zero(name: str, value: object) -> None:
    """Accept a duration of 0 or more."""
    _duration(name, value, "a number of seconds, 0 or more")


def messages_or_seconds(name: str, value: object) -> None:
    """Accept a number of messages (an int), a duration (a float), ``"fsync"``, or None."""
    if value is None or value == "fsync":
        return
    allowed = "a number of messages (an int), of seconds (a float) or 'fsync'"
    if type(value) not in (int, float):
        raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}")
    number = cast("float", value)
    if not 0 < number <= _LONGEST:
        raise ValueError(f"{name}={value!r}: must be {allowed}, greater than 0 and at most {_LONGEST:.0e}")


def _duration(name: str, value: object, allowed: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: must be {allowed}, not {type(value).__name__}")
    if not 0 <= value <= _LONGEST:
        raise ValueError(f"{name}={value!r}: must be {allowed} and at most {_LONGEST:.0e}")
    return value
