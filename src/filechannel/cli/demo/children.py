"""Starts the processes that the demo kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

from ..._format import PURE
from ..ui.interrupts import uninterrupted


@contextmanager
def started(module: str, *arguments: object) -> Generator[subprocess.Popen[bytes]]:
    """Run a module of this package in a process of its own, which is killed at the end of the block.

    Ctrl-C does not reach the process: it would print a traceback.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | ({"FILECHANNEL_PURE": "1"} if PURE else {})  # no second warning about a missing core
    with ExitStack() as ending:
        with uninterrupted():  # otherwise Ctrl-C could leave a process that was just started
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0, env=environment
            )
            ending.enter_context(child)
            ending.callback(child.kill)
        yield child


def numbers_from(child: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the numbers that a process reports until it ends. A line that was cut short by a kill is ignored."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith(b"\n"):
            yield int(line)
