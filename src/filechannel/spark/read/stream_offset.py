"""The progress of a stream in Spark's checkpoint: JSON with a log position for each channel, by the channel's id.

Ids rather than paths: a directory may be moved, and another channel at its path is not the same. An entry also names
the segment with the last byte before the log position, by offset, random id and creation time: a copy of the channel
that was written to has the same id, but other segments. A repair gives a segment another id and keeps its creation
time.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ..._offset import LogPosition, Offset
from ..._storage.segments.segment import Header

Progress: TypeAlias = dict[str, dict[str, int]]


class Known(NamedTuple):
    """A segment as a checkpoint names it."""

    begin: Offset
    id: int
    created: int


def checkpoint_entry(log_position: LogPosition, segment: Header | None) -> dict[str, int]:
    """Return the checkpoint entry of a log position, with the segment before it if there is one."""
    entry = {"offset": int(log_position.offset), "sequence": log_position.sequence}
    if segment is None:
        return entry
    return entry | {"segment": int(segment.begin), "segment_id": segment.id, "segment_created": segment.created}


def segment_in(progress: Progress, id: str) -> Known | None:
    """Return the segment before the log position of a channel; None if the checkpoint names none."""
    entry = progress[id]
    try:
        return Known(Offset(entry["segment"]), entry["segment_id"], entry["segment_created"])
    except KeyError:
        return None


def position_in(progress: Progress, id: str) -> LogPosition:
    """Return the log position of a channel. Raise `ValueError` if a filechannel stream did not write the checkpoint."""
    try:
        entry = progress[id]
        return LogPosition(Offset(entry["offset"]), entry["sequence"])
    except (KeyError, TypeError):
        raise ValueError(
            f"the checkpoint is not one of a filechannel stream ({progress!r}): "
            "start again with another checkpointLocation"
        ) from None
