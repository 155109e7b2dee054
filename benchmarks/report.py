"""The results as a table for the terminal, as Markdown for the documentation and as JSON for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .harness import Series

MARKERS = "<!-- bench -->", "<!-- /bench -->"
_COLUMNS = "work", "time", "figure", "quartiles", "target", "met"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    work: str
    figure: Series
    """The figure that is judged, in *unit*."""
    unit: str
    target: float | None = None
    """None: only for information."""
    at_least: bool = False
    time: Series | None = None
    """Nanoseconds per message."""
    worst: bool = False
    """Whether the worst round counts instead of the median."""

    @property
    def result(self) -> float:
        """The figure that is shown and judged."""
        return max(self.figure.values) if self.worst else self.figure.median

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.result >= self.target if self.at_least else self.result <= self.target

    def cells(self) -> tuple[str, ...]:
        low, high = self.figure.quartiles
        spread = "" if len(self.figure.values) < 2 else f"{_short(low)} to {_short(high)}"
        sign = "≥" if self.at_least else "≤"
        target = "" if self.target is None else f"{sign} {self.target:g} {self.unit}"
        met = {True: "yes", False: "NO", None: ""}[self.met]
        time = "" if self.time is None else _time(self.time.median)
        return self.work, time, f"{_short(self.result)} {self.unit}", spread, target, met

    def to_json(self) -> dict[str, object]:
        return {
            "work": self.work,
            "nanoseconds": None if self.time is None else self.time.median,
            "figure": self.result,
            "quartiles": self.figure.quartiles,
            "unit": self.unit,
            "target": self.target,
            "at_least": self.at_least,
            "met": self.met,
            "rounds": len(self.figure.values),
        }


def _short(figure: float) -> str:
    return f"{figure:.3f}" if figure < 1 else f"{figure:.2f}" if figure < 10 else f"{figure:.1f}"


def _time(nanoseconds: float) -> str:
    if nanoseconds < 10_000:
        return f"{nanoseconds:.1f} ns" if nanoseconds < 100 else f"{nanoseconds:.0f} ns"
    return f"{nanoseconds / 1000:.0f} us"


def as_text(findings: Sequence[Finding]) -> str:
    """Return a table for a terminal."""
    rows = [_COLUMNS, *(finding.cells() for finding in findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    work, *cells = row
    return [work.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))]


def as_markdown(machine: Sequence[str], groups: Sequence[tuple[str, Sequence[Finding]]], notes: Sequence[str]) -> str:
    """Return a table for the documentation."""
    lines = [" · ".join(machine) + ".", ""]
    lines += [f"| {' | '.join(_COLUMNS)} |", f"| --- {'| ---: ' * (len(_COLUMNS) - 1)}|"]
    for title, findings in groups:
        lines.append(f"| **{title}** {'| ' * (len(_COLUMNS) - 1)}|")
        lines += [f"| {' | '.join(finding.cells())} |" for finding in findings]
    for note in notes:
        lines += ["", note]
    return "\n".join(lines)


def write_into(page: Path, table: str) -> None:
    """Replace the text between the markers of a page. Raise `ValueError` if it has none."""
    begin, end = MARKERS
    text = page.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} has no {begin} … {end}")
    page.write_text(pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text))
