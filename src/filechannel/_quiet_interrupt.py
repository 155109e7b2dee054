"""Quiet Ctrl-C while `python -m filechannel` starts.

The package imports this module first. Until a command has started, Ctrl-C then ends the process without a traceback. It
has no effect if the package is imported for any other purpose. The `filechannel` shell command does the same in
`filechannel_command`, before it imports the package.
"""

from __future__ import annotations

import os
import signal
import sys


def is_command() -> bool:
    """Return whether this process was started as `python -m filechannel` and `__main__` does not run yet."""
    if sys.argv[:1] != ["-m"]:  # sys.argv[0] is "-m" only until the module is found
        return False
    before = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return before[-2:] == ["-m", "filechannel"] or before[-1].endswith("mfilechannel")


def _end(*_: object) -> None:
    os._exit(130)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
