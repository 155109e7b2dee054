"""How far a stream has come, as Spark's checkpoint keeps it: JSON, a place for each channel by the channel's id.

Ids rather than paths: a directory may be moved, and another channel in its place is not the same.
"""

from __future__ import annotations

from typing import TypeAlias

from .._offset import Offset
from .._storage.index import Mark

Progress: TypeAlias = dict[str, dict[str, int]]


def written(mark: Mark) -> dict[str, int]:
    """Return a place as the checkpoint keeps it."""
    return {"offset": mark.offset, "sequence": mark.sequence}


def place_in(progress: Progress, id: str) -> Mark:
    """Return the place of a channel; `ValueError` if the checkpoint is not one of ours."""
    try:
        place = progress[id]
        return Mark(Offset(place["offset"]), place["sequence"], 0)
    except (KeyError, TypeError):
        raise ValueError(
            f"the checkpoint is not one of a filechannel stream ({progress!r}): "
            "begin anew with another checkpointLocation"
        ) from None
