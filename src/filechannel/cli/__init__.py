"""The command line, `filechannel`: one file a command. Needs the extra `cli`."""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line, and exit with its code."""
    try:
        import rich  # noqa: F401 - imported by whoever shows something, which is too late to say so

        from .app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write("filechannel: the command line needs typer and rich: pip install 'filechannel[cli]'\n")
        sys.exit(2)
    sys.exit(run())
