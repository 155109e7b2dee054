"""A progress bar on stderr, shown only if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from .output import stderr


class ReportProgress(Protocol):
    """Reports progress."""

    def __call__(self, done: int, *, of: int | None = None, messages: int | None = None) -> None:
        """Report how much is done, *of* how much if that is known by now, and the number of messages."""
        ...


@contextmanager
def progress(
    label: str, total: int | None = None, *, in_bytes: bool = True, is_wanted: bool = True
) -> Generator[ReportProgress]:
    """Show a progress bar while the block runs. *total* may be unknown. Nothing is shown if not *is_wanted*."""
    if not is_wanted or not sys.stderr.isatty():
        yield _report_nothing
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

        def report_progress(done: int, *, of: int | None = None, messages: int | None = None) -> None:
            text = "" if messages is None else f"{messages:,} messages"
            shown.update(task, completed=done, total=total if of is None else of, messages=text)

        yield report_progress


def _report_nothing(done: int, *, of: int | None = None, messages: int | None = None) -> None:
    pass
