"""How far a stream has come, as Spark's checkpoint keeps it: JSON, a place for each channel by the channel's id.

Ids rather than paths: a directory may be moved, and another channel in its place is not the same. A place also names
the segment that has the last byte before it, by offset, random id and time of creation: a copy of the channel that was
written to has the same id, and other segments. A repair gives a segment another id and leaves its time as it was.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from .._offset import Offset
from .._storage.index import Mark
from .._storage.segment import Header

Progress: TypeAlias = dict[str, dict[str, int]]


class Known(NamedTuple):
    """A segment that a checkpoint knows."""

    begin: Offset
    id: int
    created: int


def written(mark: Mark, segment: Header | None) -> dict[str, int]:
    """Return a place as the checkpoint keeps it, with the segment before it if there is one."""
    place = {"offset": int(mark.offset), "sequence": mark.sequence}
    if segment is None:
        return place
    return place | {"segment": int(segment.begin), "segment_id": segment.id, "segment_created": segment.created}


def segment_in(progress: Progress, id: str) -> Known | None:
    """Return the segment before the place of a channel, if there was one."""
    place = progress[id]
    try:
        return Known(Offset(place["segment"]), place["segment_id"], place["segment_created"])
    except KeyError:
        return None


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
