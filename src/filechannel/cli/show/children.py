"""The processes that the demo starts, and kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager


@contextmanager
def started(module: str, *arguments: object) -> Generator[subprocess.Popen[bytes]]:
    """Run a module of this package in a process of its own; it does not outlive the block."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def numbers_from(child: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the numbers that a process reports, until it ends; a report cut short by a kill is none."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith(b"\n"):
            yield int(line)
