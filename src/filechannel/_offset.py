"""The one name for a place in a channel."""

from __future__ import annotations

from typing import NewType

__all__ = ["Offset"]

Offset = NewType("Offset", int)
"""A place in the channel's log: how many bytes of records lie before it. Global, 64-bit, never reused."""
