"""One bash for the commands of a page, so that jobs and variables stay from block to block."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_DONE = "-- done:"


@dataclass(frozen=True, slots=True)
class Command:
    """A command behind a `$ `, and the output that the page gives."""

    line: str
    printed: str


def commands_of(text: str) -> list[Command]:
    """Return the commands of a block. A line that begins with `> ` continues the one before."""
    found: list[Command] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, *rest = part.splitlines()
        while rest and rest[0].startswith("> "):
            line += "\n" + rest.pop(0)[2:]
        found.append(Command(line, "\n".join(rest)))
    return found


class Shell:
    """A bash that runs commands one by one. What is left in the background ends with it."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bash.communicate('jobs=$(jobs -p); [ -z "$jobs" ] || { kill $jobs; wait $jobs; } 2>/dev/null\n')

    def run(self, line: str) -> tuple[str, int]:
        """Run a command; return its output and exit code. The output of a job (`&`) is written to a file."""
        if line.endswith(" &"):
            line = f">>background.log 2>&1 </dev/null {line}"  # in front, so that the page may say otherwise
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # The code is restored, because a page may ask for it with `echo $?`.
        self._bash.stdin.write(f'{line}\ncode=$?; printf "\\n{_DONE}%d\\n" $code; (exit $code)\n')
        self._bash.stdin.flush()
        printed = ""
        for output in self._bash.stdout:
            if output.startswith(_DONE):
                return printed.strip("\n"), int(output.removeprefix(_DONE))
            printed += output
        raise EOFError(f"the shell ended in {line!r}, which printed {printed!r}")
