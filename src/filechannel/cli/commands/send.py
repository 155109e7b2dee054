"""`filechannel send`: send messages from lines of JSON, or raw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, final

import typer

from ... import blocking
from ..._channel.base.publish_batch import publish
from ..._channel.lifecycle.channel_description import Description
from ..._errors import ChannelFullError, CodecError, FileChannelError, MessageTooLargeError
from ..._storage.writable_store import writable
from ..transfer.input_lines import Lines, opened_lines
from ..transfer.parse_messages import Parser, Part, WrongLineError
from ..ui.channel_argument import ChannelArgument, find, opened, opened_store
from ..ui.failures import Failure, explain
from ..ui.humanize import counted
from ..ui.interrupts import uninterrupted
from ..ui.output import JsonOption, document, remark
from ..ui.progress import progress

_SEND_TIMEOUT: Final = 0.2
"""Seconds to wait for capacity before checking whether Ctrl-C was pressed."""


def send(
    channel: ChannelArgument,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-i",
            metavar="FILE",
            help="The file to read instead of stdin.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send each line unchanged as a message. For channels of bytes.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Send the whole input as one message.")] = False,
    atomic: Annotated[
        bool,
        typer.Option("--atomic", help="All or nothing: send everything as one batch after the last line was read."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Send messages, one from each line of JSON.

    Each line is checked against the channel's schema. Lines are sent as they arrive, in batches of what is available.
    The command stops at the first line that is not a message: everything before it was sent, nothing after it, and the
    error says so; with --atomic nothing was sent at all. Ctrl-C stops between two batches, and the command reports how
    many messages were sent. Empty lines are skipped.

    \b
    Examples:
      echo '{"id": 1, "sku": "pen", "qty": 3}' | filechannel send data/orders
      filechannel send data/orders --file orders.jsonl --atomic
      tail -F access.log | filechannel send data/access --raw
      filechannel send data/images --raw --whole --file picture.png
    """
    description = find(channel)
    parser = Parser(description, raw=raw, whole=whole)
    with opened_lines(file) as lines:
        count = (_send_atomically if atomic else _send_as_they_arrive)(description, parser, lines)
    if json:
        document({"sent": count})
    else:
        remark(f"sent {counted(count, 'message')}")


def _send_atomically(description: Description, parser: Parser, lines: Lines) -> int:
    with (
        opened_store(description) as store,
        progress("reading", lines.size, is_wanted=not lines.is_typed) as report_progress,
    ):
        encode = description.open_spec().payloads().encode

        def payloads() -> Iterator[list[bytes]]:
            for part in parser.parts(lines):
                report_progress(lines.position)
                yield [encode(message) for message in part.messages]

        try:
            return publish(writable(store), payloads())
        except (WrongLineError, FileChannelError) as error:
            raise Failure(f"{explain(error)}; nothing was sent") from error


def _send_as_they_arrive(description: Description, parser: Parser, lines: Lines) -> int:
    with (
        opened(description.open_spec(), "change") as channel,
        channel.sender() as sender,
        progress("sending", lines.size, is_wanted=not lines.is_typed) as report_progress,
    ):
        sending = Sending(sender)
        try:
            for part in parser.parts(lines):
                sending.send(part)
                report_progress(lines.position, messages=sending.sent)
        except KeyboardInterrupt:
            remark(f"interrupted: {sending.so_far()}")
            raise
        except (WrongLineError, FileChannelError) as error:
            raise Failure(f"{explain(error)}; {sending.so_far()}") from error
        return sending.sent


@final
class Sending:
    """Sends messages, and counts exactly how many were sent, even if it is interrupted."""

    def __init__(self, sender: blocking.Sender[object]) -> None:
        self._sender = sender
        self.sent: int = 0

    def so_far(self) -> str:
        """Return the number of sent messages as text."""
        return f"{counted(self.sent, 'message')} {'was' if self.sent == 1 else 'were'} sent"

    def send(self, part: Part) -> None:
        """Send messages as one batch, or as smaller ones if the capacity is less than the batch.

        Raises `WrongLineError` for a message that the channel never accepts; the messages before it were sent.
        """
        try:
            self._send(part.messages)
        except (MessageTooLargeError, ChannelFullError, CodecError) as error:
            count, index = len(part.messages), None if isinstance(error, ChannelFullError) else error.index
            if index is None and count > 1:
                self.send(_slice(part, 0, count // 2))
                self.send(_slice(part, count // 2, count))
            elif isinstance(error, ChannelFullError):
                raise
            else:
                self.send(_slice(part, 0, index or 0))
                raise WrongLineError(part.numbers[index or 0], str(error.args[0])) from error

    def _send(self, messages: list[object]) -> None:
        while messages:
            with uninterrupted():
                try:
                    self._sender.send_many(messages, timeout=_SEND_TIMEOUT)
                    self.sent += len(messages)
                    return
                except TimeoutError:
                    pass  # nothing was sent: the channel is full, or another process holds the writer lock


def _slice(part: Part, start: int, stop: int) -> Part:
    return Part(part.messages[start:stop], part.numbers[start:stop])
