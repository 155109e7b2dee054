"""`filechannel tail`: the last messages, and those that come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Final

import typer
from anyio import EndOfStream

from .. import blocking
from .._channel.any_receiver import Record
from .._channel.places import Start
from .._errors import DataExpiredError, DecodeError
from .._options import ChannelOptions
from .output import JsonOption, remark, write_line
from .position import PLACES, complete_position, place, told_as
from .rendering import Rendering
from .target import ChannelArgument, reading, tell_incomplete

_POLL: Final = 0.01
"""Seconds between two looks: who only reads cannot say that it waits."""


def tail(
    channel: ChannelArgument,
    count: Annotated[
        int, typer.Option("-n", "--lines", metavar="NUMBER", min=0, help="How many of the last messages.")
    ] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is sent from now on.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help=f"Begin there instead: {PLACES}.", autocompletion=complete_position
        ),
    ] = None,
    skip_damage: Annotated[bool, typer.Option("--skip-damage", help="Pass damaged records instead of ending.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the last messages of a channel; -f goes on with new ones.

    Nothing is changed: there is no consumer, nothing is held back, and the right to read is enough. In front of each
    message is its number. With --json each line is an object: 'sequence', 'offset' and 'value'; or 'error' and
    'payload' (base64) for a record that is no message of the channel's schema. Bytes are base64 in JSON.

    \b
    Examples:
      filechannel tail data/orders
      filechannel tail data/orders -f --json | jq .value.sku
      filechannel tail data/orders --from earliest
      filechannel tail data/orders --from 15m -f
    """
    options = ChannelOptions(poll_interval=_POLL, on_corruption="skip" if skip_damage else "raise")
    with reading(channel, options) as target:
        if not target.is_current:
            tell_incomplete(channel, target.unreachable)
        rendering = Rendering(target.description, as_json=json)
        begin = _last(target.channel, count) if start is None else place(start, target.channel.offset_of, "--from")
        with told_as("--from"):
            receiver = target.channel.replay(begin, None if follow else "latest")
        with receiver:
            for record in _records(receiver):
                write_line(rendering.line(record))
                if follow:
                    sys.stdout.flush()


def _last(channel: blocking.FileChannel[object], count: int) -> Start:
    statistics = channel.statistics()
    if not count:
        return "latest"
    if count >= statistics.messages:
        return "earliest"
    for number in range(statistics.next_sequence - count, statistics.next_sequence):
        with suppress(ValueError):  # lost, and left out by a repair: the next one then
            return channel.offset_of(number)
    return "latest"


def _records(receiver: blocking.Receiver[object]) -> Iterator[Record[object] | DecodeError]:
    """Return everything that comes, also what is no message; what was dropped meanwhile is told."""
    while True:
        try:
            yield receiver.receive_record()
        except DecodeError as error:
            yield error
            receiver.seek(error.next_offset)
        except DataExpiredError as error:
            remark(f"{error.missed:,} messages were removed before they were shown")
        except EndOfStream:
            return
