"""Progress on stderr, for whoever watches: nothing is shown where nobody does."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from .output import stderr


class Tell(Protocol):
    """Says how far it got."""

    def __call__(self, done: int, *, of: int | None = None, messages: int | None = None) -> None:
        """So much is done in all, *of* so much if that is known by now, and so many messages."""
        ...


@contextmanager
def progress(label: str, total: int | None = None, *, in_bytes: bool = True, is_wanted: bool = True) -> Generator[Tell]:
    """Show a bar while the block runs; *total* may be unknown. Not where it would be in the way of something else."""
    if not is_wanted or not sys.stderr.isatty():
        yield _nobody_watches
        return
    from rich import progress as bars

    amount = [bars.DownloadColumn(), bars.TransferSpeedColumn()] if in_bytes else [bars.MofNCompleteColumn()]
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        *amount,
        bars.TextColumn("{task.fields[messages]}"),
        console=stderr(),
        transient=True,
    ) as shown:
        task = shown.add_task(label, total=total, messages="")

        def tell(done: int, *, of: int | None = None, messages: int | None = None) -> None:
            text = "" if messages is None else f"{messages:,} messages"
            shown.update(task, completed=done, total=total if of is None else of, messages=text)

        yield tell


def _nobody_watches(done: int, *, of: int | None = None, messages: int | None = None) -> None:
    pass
