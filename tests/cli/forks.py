"""Many commands in a short time: a program that gives each to a fork of itself, which has imported everything.

Its argument is a file with a JSON list of commands, each a list of words in hexadecimal: a word may be any bytes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import rich.live
import rich.progress
import rich.table  # noqa: F401
from typer.testing import CliRunner

import filechannel.cli.ui.terminal
import filechannel.cli.ui.top_view  # noqa: F401
from filechannel.cli.app import app, run


def main() -> None:
    """Run every command of the file, and write a line before each."""
    CliRunner().invoke(app, ["info", "/nowhere"])  # imports what every command does
    for number, words in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        os.write(1, b"\n== command %d\n" % number)
        child = os.fork()
        if not child:
            sys.argv = ["filechannel", *(os.fsdecode(bytes.fromhex(word)) for word in words)]
            code = 70
            try:
                code = run()
                sys.stdout.flush()
            except BaseException as error:  # as the interpreter would, outside of run()
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        os.write(1, b"\n== exit code %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
