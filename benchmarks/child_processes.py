"""Child processes that execute commands: a child reads a line, answers with a line, and sleeps in between.

Only the children of the current contestant are awake, so that contestants do not disturb each other. All processes read
the same clock, which counts from the start of the machine. Every child is stopped by its id when its workers are
closed, even after an error, and exits when its parent has exited. Imports only the standard library: the peers have a
separate interpreter.
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

TIMEOUT = 60.0
"""Seconds after which a missing answer of a child, or a missing message, is an error."""
_GRACE = 5.0
_ROOT = Path(__file__).parent.parent


class Child:
    """A child process that executes commands."""

    def __init__(self, command: Sequence[str], inherited: Sequence[int] = ()) -> None:
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=inherited
        )
        self._name = " ".join(command[1:4])
        self._received = b""

    def send(self, *numbers: int) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(str(int(number)) for number in numbers).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> list[float]:
        """Wait for the answer. Raise `RuntimeError` if the child has exited, or takes too long."""
        assert self._process.stdout is not None
        until = monotonic() + TIMEOUT
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - monotonic()))
            if not ready:
                raise RuntimeError(f"{self._name} does not answer")
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise RuntimeError(f"{self._name} ended with {self._process.wait(_GRACE)}")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return [float(word) for word in line.split()]

    def close_input(self) -> None:
        """Close its input, so that it exits."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self) -> None:
        """Wait until it has exited; kill it if it takes too long."""
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class ChildProcesses:
    """The processes of one measurement. All of them end with it."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(
        self, module: str, role: str, *arguments: object, python: Path | None = None, inherited: Sequence[int] = ()
    ) -> Child:
        """Start a role of a module, and wait until it is ready."""
        command = [str(python or sys.executable), "-m", module, role, *map(str, arguments)]
        child = Child(command, inherited)
        self._children.append(child)
        child.receive()
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.close_input()
        for child in self._children:
            child.stop()


def play(roles: Mapping[str, Callable[..., None]]) -> None:
    """Run the role that the command line names. Called in a child."""
    role, *arguments = sys.argv[1:]
    with suppress(BrokenPipeError, KeyboardInterrupt):
        roles[role](*arguments)


def orders() -> Iterator[list[int]]:
    """Answer that this child is ready, and yield the commands until there are no more."""
    answer()
    for line in sys.stdin:
        yield [int(word) for word in line.split()]


def answer(*figures: float) -> None:
    """Send an answer to the parent."""
    print(*figures, flush=True)
