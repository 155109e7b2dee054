"""What commands write: reports and streams to stdout, in words or in JSON; progress and remarks to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, NoReturn, TypeAlias, final

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]
"""Of every command that reports something."""


@final
class _Terminal(Console):
    """A console that leaves a broken pipe to whoever knows the exit code."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


@cache
def stdout() -> Console:
    """The console of what was asked for."""
    return _Terminal(highlight=False, soft_wrap=False)


@cache
def stderr() -> Console:
    """The console of everything else: progress, remarks, questions."""
    return _Terminal(stderr=True, highlight=False)


def document(content: object) -> None:
    """Write the one JSON document of a report."""
    _write(msgspec.json.format(msgspec.json.encode(content, enc_hook=str), indent=2))


def line(content: object) -> None:
    """Write one line of a stream of JSON."""
    _write(msgspec.json.encode(content, enc_hook=str))


def raw_line(content: bytes) -> None:
    """Write a line as it is."""
    _write(content)


def _write(content: bytes) -> None:
    out = sys.stdout.buffer
    out.write(content)
    out.write(b"\n")


def show(*parts: RenderableType) -> None:
    """Write to a person."""
    stdout().print(*parts, sep="\n")


def remark(text: str) -> None:
    """Say something that is not part of what was asked for."""
    stderr().print(Text(text))


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and what they are, a line each."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def columns(*headings: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table as wide as it needs to be; the columns in *right* hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading in right, overflow="fold"
        )
    return table
