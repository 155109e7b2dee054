"""`filechannel gc`: reclaim segments that are not needed any more."""

from __future__ import annotations

from typing import Annotated

import typer

from ..._errors import Busy
from ..._maintenance.background import reclaim_now as reclaiming
from ..ui.channel_argument import ChannelArgument, explaining_errors
from ..ui.failures import Failure
from ..ui.humanize import counted, size
from ..ui.output import JsonOption, document, show


def gc(
    channel: ChannelArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and change nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete the segments that are not needed any more, now.

    These are segments that every consumer has read, or that the retention does not keep.

    A process that has the channel open does this in the background. Use the command for a channel that no process has
    open, or to delete consumed messages now instead of when the channel is idle. It never deletes a message that a
    registered consumer has not read.

    \b
    Examples:
      filechannel gc data/orders
      filechannel gc data/orders --dry-run --json
    """
    path = channel.absolute()
    with explaining_errors(path, "read" if dry_run else "change"):
        try:
            done = reclaiming.preview(path) if dry_run else reclaiming.gc(path)
        except Busy:
            raise Failure(
                "another process holds the maintenance lock of the channel and does not release it; try again later"
            ) from None
    if json:
        held_back_by = None if done.pinned_by is None else str(done.pinned_by)
        document({"segments": done.segments, "bytes": done.bytes, "held_back_by": held_back_by, "dry_run": dry_run})
        return
    verb = "would remove" if dry_run else "removed"
    show(f"{verb} {counted(done.segments, 'segment')} with {size(done.bytes)} of records")
    if done.pinned_by is not None:
        show(f"the oldest segment is kept: {done.pinned_by}")
