"""The console of rich, as commands need it."""

from __future__ import annotations

from typing import NoReturn, final

from rich.console import Console


@final
class Terminal(Console):
    """A console that leaves a broken pipe to whoever knows the exit code."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise it again: rich would end the process."""
        raise BrokenPipeError
