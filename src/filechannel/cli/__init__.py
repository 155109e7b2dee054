"""The command line, `filechannel`: one module for each command. Needs the extra `cli`."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its code."""
    if any(find_spec(name) is None for name in ("typer", "rich")):
        sys.stderr.write("filechannel: the command line needs typer and rich: pip install 'filechannel[cli]'\n")
        sys.exit(2)
    try:
        from .app import run

        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on commands have to clean up
        code = run()
    except KeyboardInterrupt:  # before a command has started, or after it has ended
        code = 130
    sys.exit(code)
