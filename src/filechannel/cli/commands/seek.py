"""`filechannel seek`: put a consumer somewhere else."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import blocking
from .._channel.consumers import Consumer
from .._errors import UnknownConsumerError
from .consumers import refuse_owned
from .escaping import safe
from .output import JsonOption, document, show
from .position import PLACES, complete_position, place, told_as
from .target import ChannelArgument, complete_consumer, writing
from .wording import counted


def seek(
    channel: ChannelArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The consumer.", autocompletion=complete_consumer)],
    position: Annotated[str, typer.Argument(metavar="POSITION", help=f"{PLACES}.", autocompletion=complete_position)],
    json: JsonOption = False,
) -> None:
    """Let a consumer go on at another place.

    It is refused while a live process has the consumer, with who that is. A time may lead a little before the first
    message of that time, never behind it. What lies before the new place may be removed then, if nobody else needs it.

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
        to = place(position, target.channel.offset_of, "POSITION")
        with told_as("POSITION"):
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
    return f"message {consumer.next_sequence} (offset {consumer.offset}), {left} to come"
