"""`filechannel gc`: remove what nobody needs any more."""

from __future__ import annotations

from typing import Annotated

import typer

from .._errors import Busy
from .._maintenance import gc as reclaiming
from .failures import Failure
from .output import JsonOption, document, show
from .target import ChannelArgument, opening
from .wording import counted, size


def gc(
    channel: ChannelArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go. Nothing is changed.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove what nobody needs any more, now.

    That is what every consumer has passed, or what the retention does not keep.

    A process that has the channel open does so by itself; this is for channels that nobody has open, and for those in a
    hurry: what is consumed goes at once, without waiting for the channel to be idle. Nothing goes that a registered
    consumer has not passed.

    \b
    Examples:
      filechannel gc data/orders
      filechannel gc data/orders --dry-run --json
    """
    path = channel.absolute()
    with opening(path, "read" if dry_run else "change"):
        try:
            done = reclaiming.foresee(path) if dry_run else reclaiming.gc(path)
        except Busy:
            raise Failure("another process is maintaining the channel and does not come to an end") from None
    if json:
        held_back_by = None if done.pinned_by is None else str(done.pinned_by)
        document({"segments": done.segments, "bytes": done.bytes, "held_back_by": held_back_by, "dry_run": dry_run})
        return
    verb = "would remove" if dry_run else "removed"
    show(f"{verb} {counted(done.segments, 'segment')} with {size(done.bytes)} of records")
    if done.pinned_by is not None:
        show(f"the oldest segment stays: {done.pinned_by}")
