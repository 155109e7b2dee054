"""The output of commands: reports and streams to stdout, as text or JSON; progress and remarks to stderr."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, TextIO, TypeAlias, cast

import msgspec
import typer

from .escaping import safe, safe_json

if TYPE_CHECKING:  # rich takes as long to import as everything else here: imported only by commands that use it
    from rich.console import Console, RenderableType
    from rich.table import Table

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
"""The option of every command that reports something."""

_ENDLESS: Final = 10_000  # columns


def stdout() -> Console:
    """Return the console for the output that the user asked for."""
    return _console(sys.stdout, False)


def stderr() -> Console:
    """Return the console for everything else: progress, remarks, questions."""
    return _console(sys.stderr, True)


@cache
def _console(stream: TextIO, is_stderr: bool) -> Console:
    from .terminal import Terminal

    # A program or a file gets lines of any length.
    width = None if stream.isatty() or "COLUMNS" in os.environ else _ENDLESS
    while (behind := cast("TextIO | None", getattr(stream, "rich_proxied_file", None))) is not None:
        stream = behind
    return Terminal(file=stream, stderr=is_stderr, highlight=False, emoji=False, markup=False, width=width)


# JSON


def document(content: object) -> None:
    """Write a report as one JSON document: dataclasses as objects, times as ISO 8601, durations as seconds."""
    text = msgspec.json.encode(plain(content))
    write_line(msgspec.json.format(text, indent=2))


def write_line(text: bytes) -> None:
    """Write a line of JSON, in which values may be colored.

    Everything else that could control a terminal is escaped.
    """
    out = sys.stdout.buffer
    out.write(safe_json(text))
    out.write(b"\n")


def plain(content: object) -> object:
    """Return the content of a report as types that JSON has."""
    match content:
        case timedelta():
            return content.total_seconds()
        case datetime():
            return content.isoformat()
        case dict():
            return {_json_text(name): plain(value) for name, value in cast("Mapping[object, object]", content).items()}
        case list() | tuple():
            return [plain(value) for value in cast("Sequence[object]", content)]
        case None | bool() | int() | float():
            return content
        case _ if dataclasses.is_dataclass(content):
            return {field.name: plain(getattr(content, field.name)) for field in dataclasses.fields(content)}
        case _:
            return _json_text(content)


def _json_text(content: object) -> str:
    return str(content).encode(errors="backslashreplace").decode()  # a file name may contain any bytes


# Text


def show(*parts: RenderableType) -> None:
    """Write text for a person to read. A string is one line."""
    from rich.text import Text

    console = stdout()
    for each in parts:
        part = Text(safe(each)) if isinstance(each, str) else each
        if console.is_terminal:
            console.print(part)
        else:
            _write_plain(console, part)


def show_command(text: str) -> None:
    """Write a command to copy into a shell: on one line, however long it is."""
    from rich.text import Text

    stdout().print(Text(safe(text), style="cyan"), soft_wrap=True)


def _write_plain(console: Console, part: RenderableType) -> None:
    """Write to a program or a file: without padding at the end of lines."""
    with console.capture() as captured:
        console.print(part)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def remark(text: str) -> None:
    """Write a line that is not part of the requested output to stderr."""
    from rich.text import Text

    stderr().print(Text(safe(text)), soft_wrap=True)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values, one per line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(safe(value)))
    return table


def _without(
    headings: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    from rich.cells import cell_len

    widths = dict(
        zip(headings, (max(map(cell_len, cells)) for cells in zip(headings, *rows, strict=True)), strict=True)
    )
    for heading in optional:
        if sum(widths.values()) + 2 * len(widths) <= stdout().width + 2:
            break
        del widths[heading]
    kept = [number for number, heading in enumerate(headings) if heading in widths]
    return [headings[number] for number in kept], [[row[number] for number in kept] for row in rows]


def columns(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), optional: Sequence[str] = ()
) -> Table:
    """Return a table that is as wide as its content; the columns in *right* contain numbers.

    The columns in *optional* are left out, one by one, if the terminal is too narrow for all.
    """
    from rich.table import Table
    from rich.text import Text

    if optional:
        headings, rows = _without(headings, list(rows), optional)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        is_number = heading in right
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    return table
