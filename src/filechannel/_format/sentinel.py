"""`NOTHING`, the result of a read that found no record. It is not `None`, because a channel may carry `None`."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Nothing(Enum):
    """The type of `NOTHING`, so that checkers can narrow it."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING
