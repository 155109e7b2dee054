"""Draws the acts of the demo while they run and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..ui.humanize import number, size
from ..ui.output import columns
from .capacity_act import TOTAL, Usage
from .crash_act import CRASHES, CrashProgress
from .group_act import ORDERS, Progress

_BAR: Final = 32
_GOOD: Final = "green"
_BAD: Final = "bold red"


def verdict(is_fine: bool, good: str, bad: str) -> Text:
    """Return the text for a promise that was kept or broken."""
    return Text(good, style=_GOOD) if is_fine else Text(bad, style=_BAD)


def crashes(state: CrashProgress) -> RenderableType:
    """Draw the kills so far, and how many orders the running process has sent."""
    numbers = ("kill", "accepted", "received", "lost", "torn batches")
    rows: list[list[str]] = []
    for count, outcome in enumerate(state.outcomes, 1):
        row = (count, outcome.accepted, outcome.received, outcome.lost, outcome.torn_batches)
        rows.append([*map(number, row), "yes" if outcome.in_order else "NO"])
    if state.accepted is not None:
        rows.append([f"{len(state.outcomes) + 1} of {CRASHES}", number(state.accepted), "sending"])
    return columns([*numbers, "in order"], rows, right=numbers)


def workers(progress: Progress) -> RenderableType:
    """Draw how many orders each worker has handled, and which one was killed."""
    table = Table.grid(padding=(0, 2))
    for worker, done in progress.done.items():
        is_dead = worker == progress.killed
        state = Text("killed", style=_BAD) if is_dead else Text("alive", style=_GOOD)
        bar = ProgressBar(ORDERS, done, width=_BAR, complete_style="red" if is_dead else _GOOD)
        table.add_row(f"worker {worker + 1}", bar, number(done), state)
    bar = ProgressBar(ORDERS, progress.total, width=_BAR)
    table.add_row("together", bar, number(progress.total), f"of {number(ORDERS)}")
    return table


def bounds(usage: Usage) -> RenderableType:
    """Draw how much data passed through the channel, and its disk usage."""
    table = Table.grid(padding=(0, 2))
    table.add_row("through the channel", ProgressBar(TOTAL, usage.received, width=_BAR), size(usage.received))
    table.add_row("on disk now", ProgressBar(TOTAL, usage.on_disk, width=_BAR), size(usage.on_disk))
    table.add_row("most so far", ProgressBar(TOTAL, usage.most, width=_BAR), size(usage.most))
    return table


def figures(nanoseconds: Mapping[str, float]) -> RenderableType:
    """Draw the time per message, compared with the first line."""
    numbers = ("each", "per second", "times as long")
    yardstick = next(iter(nanoseconds.values()))
    rows = [
        (name, _duration(each), number(int(1e9 / each)), _ratio(each / yardstick)) for name, each in nanoseconds.items()
    ]
    return columns(["send and receive an order of five fields", *numbers], rows, right=numbers)


def promises(results: Sequence[tuple[str, str, bool]]) -> RenderableType:
    """Draw the closing table: what was done, the result, and whether the promise was kept."""
    table = Table.grid(padding=(0, 2))
    for done, outcome, is_fine in results:
        table.add_row(verdict(is_fine, "kept", "BROKEN"), done, outcome)
    return table


def _ratio(times: float) -> str:
    return f"{times:.2f}" if times < 100 else f"{times:,.0f}"


def _duration(nanoseconds: float) -> str:
    return f"{nanoseconds:,.0f} ns" if nanoseconds < 10_000 else f"{nanoseconds / 1000:,.0f} us"
