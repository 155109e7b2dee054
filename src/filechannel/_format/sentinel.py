"""The answer of a read that found no record. `None` cannot be it: a channel may carry `None`."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Nothing(Enum):
    """The type of `NOTHING`, so that checkers can narrow it."""

    NOTHING = "nothing"


NOTHING: Final = Nothing.NOTHING
