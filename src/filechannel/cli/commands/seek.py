"""`filechannel seek`: move a consumer to another position."""

from __future__ import annotations

from typing import Annotated

import typer

from ... import blocking
from ..._channel.status.consumer_status import Consumer
from ..._errors import UnknownConsumerError
from ..ui.channel_argument import ChannelArgument, complete_consumer, writing
from ..ui.escaping import safe
from ..ui.humanize import counted
from ..ui.output import JsonOption, document, show
from ..ui.position_argument import POSITIONS, complete_position, parse_position, reported_for
from .consumers import refuse_owned


def seek(
    channel: ChannelArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The consumer.", autocompletion=complete_consumer)],
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help=f"{POSITIONS}.", autocompletion=complete_position)
    ],
    json: JsonOption = False,
) -> None:
    """Move a consumer to another position.

    The command fails while a process owns the consumer, and names that process. A time may lead to a position slightly
    before the first message of that time, never after it. Messages before the new position may be deleted then, unless
    another consumer needs them.

    \b
    Examples:
      filechannel seek data/orders billing earliest
      filechannel seek data/orders billing seq:120000
      filechannel seek data/orders billing 2026-03-01T12:00
      filechannel seek data/orders billing 2h
    """
    with writing(channel) as target:
        before = _find(target.channel, name)
        refuse_owned(before)
        to = parse_position(position, target.channel.offset_of, "POSITION")
        with reported_for("POSITION"):
            if before.kind == "group":
                with target.channel.group(name) as member:
                    member.seek(to)
            else:
                with target.channel.receiver(name) as receiver:
                    receiver.seek(to)
        after = _find(target.channel, name)
    if json:
        document({"consumer": name, "before": _report(before), "after": _report(after)})
    else:
        shown = safe(name)
        show(f"{shown}: was at {_words(before)}", f"{' ' * len(shown)}  now at {_words(after)}")


def _find(channel: blocking.FileChannel[object], name: str) -> Consumer:
    for consumer in channel.consumers():
        if consumer.name == name:
            return consumer
    raise UnknownConsumerError(name, path=channel.path)


def _report(consumer: Consumer) -> dict[str, int]:
    return {"offset": consumer.offset, "sequence": consumer.next_sequence, "lag_messages": consumer.lag_messages}


def _words(consumer: Consumer) -> str:
    left = counted(consumer.lag_messages, "message")
    return f"message {consumer.next_sequence} (offset {consumer.offset}), {left} left"
