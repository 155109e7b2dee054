"""The commands, in the order in which `filechannel --help` lists them.

A command is a module with a function of its name; its docstring is the help, and `reporting` its way to fail. What
takes long to import is imported inside the function: every command pays for the imports of all modules.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated, TextIO, cast, final

import typer

from .bench import bench
from .command import Command
from .compress import compress
from .consumers import consumers
from .demo import demo
from .doctor import doctor
from .escaping import Plain, safe
from .export import export
from .failures import end_when_terminated, reporting
from .gc import gc
from .import_ import import_
from .info import info
from .repair import repair
from .seek import seek
from .send import send
from .ship import ship
from .tail import tail
from .top import top
from .verify import verify

_STREAMS = ((0, "stdin", os.O_WRONLY, "r"), (1, "stdout", os.O_RDONLY, "w"), (2, "stderr", os.O_WRONLY, "w"))

app: typer.Typer = typer.Typer(
    name="filechannel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"filechannel {version('filechannel')}")
        raise typer.Exit


@app.callback()
def _filechannel(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Look into channels, move messages in and out of them, and look after them.

    A channel is a directory. No command needs the Python types of its messages: the channel knows its schema.

    Exit codes: 0 fine, 1 failed or findings, 2 wrong usage, 130 interrupted.
    """


def _add(command: Callable[..., object], name: str | None = None) -> None:
    app.command(name, cls=Command)(reporting(command))


_add(demo)
_add(info)
_add(top)
_add(tail)
_add(send)
app.add_typer(consumers)
_add(seek)
_add(verify)
_add(repair)
_add(doctor)
_add(gc)
_add(compress)
_add(export)
_add(import_, "import")
_add(ship)
_add(bench)


def _have_streams() -> None:
    """Put something in the place of streams that are closed, before a file of a channel takes it.

    Nothing can be read from it or written to it, which is told; except to stderr, which is where that would be told.
    """
    for number, name, flags, mode in _STREAMS:
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, flags)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays


@final
class _OneLine(logging.Formatter):
    """Log messages as they are otherwise shown where nothing is configured, but each in its line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        return safe(record.message)


def _show_log_messages() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    logging.getLogger().addHandler(handler)


def run() -> int:
    """Run what the command line asks for, and return the exit code."""
    end_when_terminated()
    _have_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be anything
    sys.stdout, sys.stderr = cast("TextIO", Plain(sys.stdout)), cast("TextIO", Plain(sys.stderr))
    _show_log_messages()
    try:
        app(prog_name="filechannel")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
