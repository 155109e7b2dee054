"""`python -m filechannel` imports this before anything else: until a command has begun, Ctrl-C ends it quietly.

Whoever imports the package for anything else notices nothing of it. The command `filechannel` in a shell does the same
before it imports the package, in `filechannel_command`.
"""

from __future__ import annotations

import os
import signal
import sys


def is_command() -> bool:
    """Tell whether this is `python -m filechannel`, on its way to `__main__`."""
    if sys.argv[:1] != ["-m"]:  # what it is only until the module was found
        return False
    before = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    return before[-2:] == ["-m", "filechannel"] or before[-1].endswith("mfilechannel")


def _end(*_: object) -> None:
    os._exit(130)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
