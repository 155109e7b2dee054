"""The rich console that the commands write to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .escaping import safe_lines


@final
class Terminal(Console):
    """A console that escapes control characters in text.

    A broken pipe raises, so that the caller sets the exit code.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments to print. Only control segments that rich creates itself may control the terminal."""
        for part in super().render(renderable, options):
            if part.control or part.text.isprintable():
                yield part
            else:
                yield Segment(safe_lines(part.text), part.style)

    def on_broken_pipe(self) -> NoReturn:
        """Raise `BrokenPipeError`: rich would end the process."""
        raise BrokenPipeError
