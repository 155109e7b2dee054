"""The commands, in the order in which `filechannel --help` lists them.

A command is a module with a function of the same name. Its docstring is the help text, and `reporting` converts its
errors. Modules that are slow to import are imported inside the function: every command imports all command modules.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated, TextIO, cast, final

import typer

from .commands.bench import bench
from .commands.compress import compress
from .commands.consumers import consumers
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.export import export
from .commands.gc import gc
from .commands.import_ import import_
from .commands.info import info
from .commands.repair import repair
from .commands.seek import seek
from .commands.send import send
from .commands.ship import ship
from .commands.tail import tail
from .commands.top import top
from .commands.verify import verify
from .ui.escaping import Plain, safe
from .ui.failures import end_when_terminated, reporting
from .ui.usage_line import Command

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
    """Inspect, maintain and repair channels, and import and export messages.

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


def _replace_closed_streams() -> None:
    """Replace standard streams that are closed, before a file of a channel gets their descriptor.

    Reading from or writing to a replacement fails with an error. Only stderr discards output instead, because the error
    would be written there.
    """
    for number, name, flags, mode in _STREAMS:
        if getattr(sys, name) is None:
            devnull = os.open(os.devnull, flags)
            if devnull != number:
                os.dup2(devnull, number)
                os.close(devnull)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it is never closed


@final
class _OneLine(logging.Formatter):
    """Formats log messages as Python does without configuration, but escaped and on one line each."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        return safe(record.message)


def _show_log_messages() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    logging.getLogger().addHandler(handler)


def run() -> int:
    """Run the command of the command line, and return the exit code."""
    end_when_terminated()
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may contain any bytes
    sys.stdout, sys.stderr = cast("TextIO", Plain(sys.stdout)), cast("TextIO", Plain(sys.stderr))
    _show_log_messages()
    try:
        app(prog_name="filechannel")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
