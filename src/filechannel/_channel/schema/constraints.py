"""Comparing the constraints (``msgspec.Meta``) of two types.

No pattern is ever matched: the pattern or the text comes from a manifest, and either can make matching take exponential
time. Two patterns are compared as texts. If a type has a pattern, a text counts as one that may not match.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from .tree import Node, Scalar

__all__ = ["implies", "satisfies"]

_Bound: TypeAlias = tuple[float, bool]
"""A limit, and whether the limit itself is excluded."""


def implies(writer: Node, reader: Node) -> bool:
    """Return whether every value within the constraints of *writer* is within those of *reader*."""
    ours, theirs = _plain(writer), _plain(reader)
    return (
        _low(ours) >= _low(theirs)
        and _high(ours) <= _high(theirs)
        and ours.get("min_length", 0) >= theirs.get("min_length", 0)
        and ours.get("max_length", math.inf) <= theirs.get("max_length", math.inf)
        and _divides(theirs.get("multiple_of"), ours.get("multiple_of"))
        and theirs.get("pattern") in {None, ours.get("pattern")}
        and theirs.get("tz") in {None, ours.get("tz")}
    )


def satisfies(value: Scalar, reader: Node) -> bool:
    """Return whether *value*, whose type fits, is certainly within the constraints of *reader*."""
    theirs = _plain(reader)
    if isinstance(value, str):
        fits = theirs.get("min_length", 0) <= len(value) <= theirs.get("max_length", math.inf)
        return fits and "pattern" not in theirs
    if isinstance(value, int) and not isinstance(value, bool):
        fits = _low(theirs) <= (value, False) and (value, True) <= _high(theirs)
        return fits and _divides(theirs.get("multiple_of"), value)
    return True


def _plain(node: Node) -> dict[str, Any]:
    """Return the constraints, with the exclusive limits of an int converted to inclusive ones."""
    limits: dict[str, Any] = dict(node.constraints)
    if node.kind == "int":
        if "gt" in limits:
            limits["ge"] = limits.pop("gt") + 1
        if "lt" in limits:
            limits["le"] = limits.pop("lt") - 1
    return limits


def _low(limits: dict[str, Any]) -> _Bound:
    return (limits["gt"], True) if "gt" in limits else (limits.get("ge", -math.inf), False)


def _high(limits: dict[str, Any]) -> _Bound:
    # Of two equal upper limits, the excluded one is lower: it sorts before the included one.
    return (limits["lt"], False) if "lt" in limits else (limits.get("le", math.inf), True)


def _divides(divisor: float | None, number: float | None) -> bool:
    return divisor is None or (number is not None and number % divisor == 0)
