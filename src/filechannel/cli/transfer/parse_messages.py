"""Parses the lines of an input into messages of a channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

import typer

from ..._channel.lifecycle.channel_description import Description
from .input_lines import Line, Lines
from .json_messages import Json, NotAMessageError


class Part(NamedTuple):
    """Messages that became available together."""

    messages: list[object]
    numbers: list[int]
    """The line number of each message."""


def without_mark(line: bytes) -> bytes:
    """Return the first line of a text without the byte order mark that some programs put in front of UTF-8."""
    return line.removeprefix(b"\xef\xbb\xbf")


class WrongLineError(ValueError):
    """A line that is not a message of the channel."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number} is not a message of the channel: {reason}")


@final
class Parser:
    """Parses lines into messages of one channel."""

    def __init__(self, description: Description, *, raw: bool = False, whole: bool = False) -> None:
        """Parse each line as JSON, or take it unchanged if *raw*. With *whole*, the entire input is one message."""
        if raw and not description.is_bytes:
            kind = description.schema.text(description.schema.root)
            raise typer.BadParameter(f"is for channels of bytes; this one has {kind}, send JSON", param_hint="--raw")
        self._json = None if raw else Json(description)
        self._is_whole = whole

    def parts(self, lines: Lines) -> Iterator[Part]:
        """Yield messages in groups that arrived together. Raise `WrongLineError` after everything before a bad line.

        Empty lines are skipped, unless they are raw.
        """
        for found in [[Line(1, lines.rest())]] if self._is_whole else lines:
            if self._json is None:
                yield Part([text for _, text in found], [number for number, _ in found])
                continue
            part, wrong = self._parsed(self._json, found)
            yield part
            if wrong is not None:
                raise wrong

    def _parsed(self, json: Json, lines: list[Line]) -> tuple[Part, WrongLineError | None]:
        part = Part([], [])
        for number, line in lines:
            text = without_mark(line) if number == 1 else line
            if text and not text.isspace():
                try:
                    part.messages.append(json.message(text))
                except NotAMessageError as error:
                    return part, WrongLineError(number, str(error))
                part.numbers.append(number)
        return part, None
