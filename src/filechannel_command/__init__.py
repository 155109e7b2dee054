"""The entry point of the command `filechannel`: Ctrl-C ends it quietly while the other modules are being imported."""

from __future__ import annotations

import os
import signal

__all__ = ["main"]


def _end(*_: object) -> None:
    os._exit(130)


def main() -> None:
    """Run the command line, and exit with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if SIGINT is ignored, as under nohup
        signal.signal(signal.SIGINT, _end)
    from filechannel.cli import main as run

    run()
