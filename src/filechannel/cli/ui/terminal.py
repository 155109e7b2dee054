"""The console of rich, as commands need it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .escaping import safe_lines


@final
class Terminal(Console):
    """A console on which text is only shown, and that leaves a broken pipe to the caller, who knows the exit code."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the parts of something to be shown: only those that rich makes itself may control the terminal."""
        for part in super().render(renderable, options):
            if part.control or part.text.isprintable():
                yield part
            else:
                yield Segment(safe_lines(part.text), part.style)

    def on_broken_pipe(self) -> NoReturn:
        """Raise it again: rich would end the process."""
        raise BrokenPipeError
