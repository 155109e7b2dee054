"""`filechannel tail`: the last messages, and new ones as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Final

import typer
from anyio import EndOfStream

from ... import blocking
from ..._channel.base.receiver import Record
from ..._channel.subscription.start_position import Start
from ..._errors import DataExpiredError, DecodeError
from ..._options import ChannelOptions
from ..transfer.message_view import Rendering
from ..ui.channel_argument import ChannelArgument, reading, warn_if_incomplete
from ..ui.output import JsonOption, remark, write_line
from ..ui.position_argument import POSITIONS, complete_position, parse_position, reported_for

_POLL: Final = 0.01
"""Seconds between two polls: a process that only reads cannot register as a waiter."""


def tail(
    channel: ChannelArgument,
    count: Annotated[
        int, typer.Option("-n", "--lines", metavar="NUMBER", min=0, help="The number of messages to show.")
    ] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Continue with new messages as they are sent.")
    ] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help=f"Start here instead: {POSITIONS}.", autocompletion=complete_position
        ),
    ] = None,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Skip damaged records instead of stopping.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the last messages of a channel; -f continues with new ones.

    The command registers no consumer, changes nothing and needs read permission only. Each message is printed with its
    sequence. With --json each line is an object: 'sequence', 'offset' and 'value'; or 'error' and 'payload' (base64)
    for a record that cannot be decoded with the channel's schema. Bytes are base64 in JSON.

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
            warn_if_incomplete(channel, target.unreachable)
        rendering = Rendering(target.description, as_json=json)
        begin = (
            _last(target.channel, count) if start is None else parse_position(start, target.channel.offset_of, "--from")
        )
        with reported_for("--from"):
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
        with suppress(ValueError):  # lost, and left out by a repair: try the next one
            return channel.offset_of(number)
    return "latest"


def _records(receiver: blocking.Receiver[object]) -> Iterator[Record[object] | DecodeError]:
    """Yield all records, and a `DecodeError` for each that does not decode. Report messages that were removed first."""
    while True:
        try:
            yield receiver.receive_record()
        except DecodeError as error:
            yield error
            receiver.seek(error.next_offset)
        except DataExpiredError as error:
            remark(f"{error.missed:,} messages were deleted before they could be shown")
        except EndOfStream:
            return
