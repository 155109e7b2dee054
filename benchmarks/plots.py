"""Draws bar charts for the documentation from the table of the report: `python -m benchmarks.plots`.

The charts show only what the table says: a test draws them again and compares. They are narrow, with each label above
its bar, so that they are readable on a phone, where a page has about 330 pixels for a picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeAlias

from . import batch, fsync, latency, processes, queue

Times: TypeAlias = Mapping[str, Mapping[str, float]]
"""Nanoseconds per message, by the title of the group and the work."""
FileSystems: TypeAlias = tuple[str, str]
"""The file systems that the channels were on, and that `FSYNC` was measured on."""

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
IMAGES = PAGE.parent / "images"

_GROUP = re.compile(r"\*\*(.+)\*\*")
_TIME = re.compile(r"([\d.]+) (ns|us|ms)")
_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6}
_FILES = re.compile(r"channels on (\w+), FSYNC on (\w+)")
_WIDTH, _MARGIN, _BAR, _STEP, _TOP, _VALUE = 400, 16, 18, 46, 76, 76
_STYLE = """
.ground { fill: #ffffff; stroke: #d5dade } .own { fill: #00897b } .other { fill: #a9b5bf }
text { fill: #1f2a33; font: 15px system-ui, sans-serif } .title { font-weight: 600 } .note { font-size: 13.5px }
@media (prefers-color-scheme: dark) {
.ground { fill: #1b2026; stroke: #39434d } .own { fill: #26a69a } .other { fill: #5d6b78 } text { fill: #e3e8ec } }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of the table, with a label that is clear without the table."""

    label: str
    work: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Some lines of a group as bars: times, so shorter is better."""

    name: str
    title: str
    group: str
    bars: tuple[Bar, ...]
    each: str = "message"
    """The unit of work that a time is for."""
    is_flushed: bool = False
    """Whether the files were on the disk instead of in memory."""


PLOTS = (
    Plot(
        "bench-queue",
        "One message at a time in an event loop",
        queue.TITLE,
        (
            Bar("asyncio.Queue", "asyncio.Queue: await put, await get"),
            Bar("anyio memory stream", "anyio memory stream: await send, await receive"),
            Bar("filechannel, typed, in a file", "await send, await receive", own=True),
        ),
    ),
    Plot(
        "bench-batch",
        "Batches of 1,000, and msgspec alone",
        batch.TITLE,
        (
            Bar("msgspec encode", "msgspec encode in a loop"),
            Bar("filechannel send_many", "await send_many", own=True),
            Bar("msgspec decode", "msgspec decode in a loop"),
            Bar("filechannel receive_many", "await receive_many", own=True),
        ),
    ),
    Plot(
        "bench-processes",
        "12 bytes from process to process",
        processes.TITLE,
        (
            Bar("filechannel, batches of 1,000", "12 B raw, send_many, receive_many, 1,000 per call", own=True),
            Bar("filechannel, one by one", "12 B raw, send, receive", own=True),
            Bar("pyzmq PUSH, PULL over ipc", "12 B raw against pyzmq PUSH, PULL over ipc: one by one"),
            Bar("multiprocessing.Queue", "12 B raw against multiprocessing.Queue: one by one"),
            Bar("faster-fifo", "12 B raw against faster-fifo: one by one"),
        ),
    ),
    Plot(
        "bench-structs",
        "5-field Struct from process to process",
        processes.TITLE,
        (
            Bar("filechannel, batches of 1,000", "5-field Struct, send_many, receive_many", own=True),
            Bar("filechannel, one by one", "5-field Struct, send, receive", own=True),
            Bar("multiprocessing.Queue", "5-field Struct against multiprocessing.Queue: one by one"),
        ),
    ),
    Plot(
        "bench-fsync",
        "On disk before send returns (FSYNC)",
        fsync.TITLE,
        (
            Bar("bare write + fdatasync", "bare write + fdatasync, appending"),
            Bar("filechannel, one sender", "one sender", own=True),
            Bar("filechannel, 64 concurrent senders", "64 concurrent senders", own=True),
        ),
        is_flushed=True,
    ),
    Plot(
        "bench-latency",
        "Round trip between two processes",
        latency.TITLE,
        (
            Bar("bare futex", "bare futex"),
            Bar("filechannel, blocking", "blocking send, receive", own=True),
            Bar("filechannel, blocking, spin=0.001", "the same with spin=0.001", own=True),
            Bar("bare eventfd in asyncio", "bare eventfd + add_reader in asyncio"),
            Bar("filechannel in asyncio", "await send, await receive", own=True),
        ),
        each="round trip",
    ),
)


def times_of(table: str) -> Times:
    """Return the times of a report in Markdown."""
    groups: dict[str, dict[str, float]] = {}
    group = groups.setdefault("", {})
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if title := _GROUP.fullmatch(cells[0]):
            group = groups.setdefault(title[1], {})
        elif len(cells) > 1 and (time := _TIME.fullmatch(cells[1])):
            group[cells[0]] = float(time[1]) * _UNITS[time[2]]
    return groups


def file_systems_of(table: str) -> FileSystems | None:
    """Return the file systems that a report in Markdown names, if it does."""
    found = _FILES.search(table)
    return None if found is None else (found[1], found[2])


def draw(plot: Plot, times: Times, file_systems: FileSystems | None = None) -> str | None:
    """Return a chart of the bars that were measured; None if there is nothing to compare."""
    measured = times.get(plot.group, {})
    bars = [bar for bar in plot.bars if bar.work in measured]
    if len(bars) < 2:
        return None
    longest = max(measured[bar.work] for bar in bars)
    height = _TOP + _STEP * len(bars) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
        f"<title>{escape(plot.title)}</title><style>{_STYLE}</style>",
        f'<rect class="ground" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="title" x="{_MARGIN}" y="28">{escape(plot.title)}</text>',
        f'<text class="note" x="{_MARGIN}" y="50">{escape(_note(plot, file_systems))}</text>',
    ]
    for row, bar in enumerate(bars):
        time, y = measured[bar.work], _TOP + _STEP * row
        length = max(2.0, (_WIDTH - 2 * _MARGIN - _VALUE) * time / longest)
        kind = "own" if bar.own else "other"
        parts += [
            f'<text x="{_MARGIN}" y="{y + 5}">{escape(bar.label)}</text>',
            f'<rect class="{kind}" x="{_MARGIN}" y="{y + 11}" width="{length:.1f}" height="{_BAR}" rx="3"/>',
            f'<text x="{_MARGIN + length + 8:.1f}" y="{y + 25}">{_short(time)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def _note(plot: Plot, file_systems: FileSystems | None) -> str:
    """Say what the bars are, and where the files were: figures in memory say little about a disk."""
    note = f"time per {plot.each}, shorter is better"
    if file_systems is None:
        return note
    kind = file_systems[1 if plot.is_flushed else 0]
    return f"{note}; files {'in memory' if kind == 'tmpfs' else f'on {kind}'}"


def _short(nanoseconds: float) -> str:
    if nanoseconds < 1000:
        return f"{nanoseconds:.0f} ns"
    microseconds = nanoseconds / 1000
    return f"{microseconds:.1f} µs" if microseconds < 100 else f"{microseconds:.0f} µs"


def drawn(table: str) -> Iterator[tuple[str, str]]:
    """Yield the file names and the charts of a report in Markdown."""
    times, file_systems = times_of(table), file_systems_of(table)
    for plot in PLOTS:
        if picture := draw(plot, times, file_systems):
            yield f"{plot.name}.svg", picture


def write(table: str, directory: Path) -> None:
    """Draw the charts of a report in Markdown into a directory."""
    for name, picture in drawn(table):
        (directory / name).write_text(picture)


if __name__ == "__main__":
    write(PAGE.read_text(), IMAGES)
