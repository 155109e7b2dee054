"""The processes that the demo starts, and kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager

from ..._format import PURE
from ..interrupts import uninterrupted


@contextmanager
def started(module: str, *arguments: object) -> Generator[subprocess.Popen[bytes]]:
    """Run a module of this package in a process of its own; it does not outlive the block.

    Ctrl-C does not reach it: it would have something to say about that.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | ({"FILECHANNEL_PURE": "1"} if PURE else {})  # it was said once that the core is missing
    with ExitStack() as ending:
        with uninterrupted():  # or nobody would know of the process that was just made
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0, env=environment
            )
            ending.enter_context(child)
            ending.callback(child.kill)
        yield child


def numbers_from(child: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the numbers that a process reports, until it ends; a report cut short by a kill is none."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith(b"\n"):
            yield int(line)
