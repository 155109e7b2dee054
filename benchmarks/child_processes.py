"""Processes that work on command: a line is told, a line comes back, and in between they sleep.

So that contestants do not disturb each other, only those of the moment are awake. All read the same clock, which
counts from the start of the machine. Every child is stopped by its id when its crew ends, whatever happened, and ends
by itself when its commander is gone. Imports nothing but the standard library: the peers have their own interpreter.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

PATIENCE = 60.0
"""Seconds after which a child that does not answer, or a message that does not come, is an error."""
_GRACE = 5.0
_ROOT = Path(__file__).parent.parent


class Child:
    """A process that does what it is told."""

    def __init__(self, command: Sequence[str], inherited: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=inherited
        )
        self._name = " ".join(command[1:4])
        self._heard = b""

    def tell(self, *numbers: int) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(str(int(number)) for number in numbers).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> list[float]:
        """Wait for the answer; `RuntimeError` if the child ended, or takes too long."""
        assert self._process.stdout is not None
        until = monotonic() + PATIENCE
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - monotonic()))
            if not ready:
                raise RuntimeError(f"{self._name} does not answer")
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise RuntimeError(f"{self._name} ended with {self._process.wait(_GRACE)}")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return [float(word) for word in line.split()]

    def let_go(self) -> None:
        """Let it end: it has no more orders to wait for."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self) -> None:
        """Wait for its end, and see to it."""
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Crew:
    """The processes of one measurement, all of which end with it."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(
        self, module: str, role: str, *arguments: object, python: Path | None = None, inherited: Sequence[int] = ()
    ) -> Child:
        """Start a role of a module and wait until it is up."""
        command = [str(python or sys.executable), "-m", module, role, *map(str, arguments)]
        child = Child(command, inherited)
        self._children.append(child)
        child.hear()
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.let_go()
        for child in self._children:
            child.stop()


def play(roles: Mapping[str, Callable[..., None]]) -> None:
    """Be a child: play the role that the command line names."""
    role, *arguments = sys.argv[1:]
    with suppress(BrokenPipeError, KeyboardInterrupt):
        roles[role](*arguments)


def orders() -> Iterator[list[int]]:
    """Say that we are up, and give one order after the other, until there are no more."""
    answer()
    for line in sys.stdin:
        yield [int(word) for word in line.split()]


def answer(*figures: float) -> None:
    """Answer the one who gives orders."""
    print(*figures, flush=True)
