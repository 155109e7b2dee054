"""`filechannel send`: messages from JSON lines, or as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, final

import typer

from .. import blocking
from .._channel.publication import publish
from .._channel.untyped import Description
from .._errors import ChannelFullError, CodecError, FileChannelError, MessageTooLargeError
from .failures import Failure, explain
from .interrupts import uninterrupted
from .lines import Lines, opened_lines
from .output import JsonOption, document, remark
from .parsing import Parser, Part, WrongLineError
from .progress import progress
from .target import ChannelArgument, find, opened, opened_store
from .wording import counted

_PATIENCE: Final = 0.2
"""Seconds to wait for room before looking whether Ctrl-C was pressed."""


def send(
    channel: ChannelArgument,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-i", metavar="FILE", help="Read it instead of stdin.", show_default=False, readable=False
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Each line is a message as it is. For channels of bytes.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="All of the input is one message.")] = False,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="All or nothing: sent when the last line was read, as one batch.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Send messages, one from each line of JSON.

    Each line is checked against the channel's schema. Lines are sent as they come, in batches of those that are there.
    At a line that is no message it ends: everything before it was sent, nothing from it on, and the error says so; with
    --atomic nothing was sent at all. Ctrl-C ends it between two batches, and it says how much was sent. Empty lines
    are passed.

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
        count = (_send_at_once if atomic else _send_as_they_come)(description, parser, lines)
    if json:
        document({"sent": count})
    else:
        remark(f"sent {counted(count, 'message')}")


def _send_at_once(description: Description, parser: Parser, lines: Lines) -> int:
    with opened_store(description) as store, progress("reading", lines.size, is_wanted=not lines.is_typed) as tell:
        encode = description.recipe().payloads().encode

        def payloads() -> Iterator[list[bytes]]:
            for part in parser.parts(lines):
                tell(lines.position)
                yield [encode(message) for message in part.messages]

        try:
            return publish(store, payloads())
        except (WrongLineError, FileChannelError) as error:
            raise Failure(f"{explain(error)}; nothing was sent") from error


def _send_as_they_come(description: Description, parser: Parser, lines: Lines) -> int:
    with (
        opened(description.recipe(), "change") as channel,
        channel.sender() as sender,
        progress("sending", lines.size, is_wanted=not lines.is_typed) as tell,
    ):
        sending = Sending(sender)
        try:
            for part in parser.parts(lines):
                sending.send(part)
                tell(lines.position, messages=sending.sent)
        except KeyboardInterrupt:
            remark(f"interrupted: {sending.so_far()}")
            raise
        except (WrongLineError, FileChannelError) as error:
            raise Failure(f"{explain(error)}; {sending.so_far()}") from error
        return sending.sent


@final
class Sending:
    """Sends parts, and knows exactly how much was sent, whatever comes in between."""

    def __init__(self, sender: blocking.Sender[object]) -> None:
        self._sender = sender
        self.sent: int = 0

    def so_far(self) -> str:
        """Say how much that is."""
        return f"{counted(self.sent, 'message')} {'was' if self.sent == 1 else 'were'} sent"

    def send(self, part: Part) -> None:
        """Send a part as one batch; in smaller ones where there is no room for all of it at once.

        `WrongLineError` for a message that the channel never takes; those before it were sent.
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
                    self._sender.send_many(messages, timeout=_PATIENCE)
                    self.sent += len(messages)
                    return
                except TimeoutError:
                    pass  # nothing was sent: there is no room, or somebody else keeps the channel


def _slice(part: Part, start: int, stop: int) -> Part:
    return Part(part.messages[start:stop], part.numbers[start:stop])
