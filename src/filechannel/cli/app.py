"""The commands, in the order in which `filechannel --help` lists them.

A command is a module with a function of its name, wrapped in `reporting`; its docstring is the help. What takes long to
import (rich tables aside) is imported inside the function: every command pays for the imports of all modules.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Final

import typer

from .failures import end_when_terminated, reporting
from .info import info

_LOOK: Final = "Look"
_MOVE: Final = "Send and receive"
_KEEP: Final = "Look after"

app = typer.Typer(
    name="filechannel",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for panel, commands in {_LOOK: (info,), _MOVE: (), _KEEP: ()}.items():
    for command in commands:
        app.command(rich_help_panel=panel)(reporting(command))


def _print_version(wanted: bool) -> None:
    if wanted:
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


def run() -> int:
    """Run what the command line asks for, and return the exit code."""
    end_when_terminated()
    try:
        app(prog_name="filechannel")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
