"""`filechannel info`: what a channel is, and how it is."""

from __future__ import annotations

from .output import JsonOption, document, facts, show
from .target import ChannelArgument, reading
from .wording import number, size


def info(channel: ChannelArgument, json: JsonOption = False) -> None:
    """Show what a channel is and how full it is."""
    with reading(channel) as target:
        statistics, manifest = target.channel.statistics(), target.description.manifest
    if json:
        document({"path": str(statistics.path), "id": manifest.id, "messages": statistics.messages})
        return
    show(
        facts(
            [
                ("channel", str(statistics.path)),
                ("messages", number(statistics.messages)),
                ("on disk", size(statistics.bytes_on_disk)),
            ]
        )
    )
