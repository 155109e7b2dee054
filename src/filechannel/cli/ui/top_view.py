"""The display of `top`: a line for each channel, and below it one for each of its consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..._maintenance.watch_channel import ConsumerFigures, Figures
from .channel_set import Pace, Picture
from .escaping import safe
from .humanize import counted, size

_NAME: Final = 18  # minimum width in characters
_AROUND: Final = 3  # lines besides the table
_COLUMNS: Final = {
    "MSG/S": 7,
    "BYTES/S": 8,
    "MESSAGES": 8,
    "BYTES": 8,
    "PLAIN": 8,
    "COMPRESSED": 10,
    "SPARE": 8,
    "OPEN": 4,
    "WAIT": 5,
    "FULL": 4,
    "HISTORY": 10,
}
"""The columns in display order, with their widths."""
_IMPORTANCE: Final = (
    ("MESSAGES",),
    ("MSG/S",),
    ("OPEN",),
    ("HISTORY",),
    ("BYTES",),
    ("WAIT",),
    ("FULL",),
    ("BYTES/S",),
    ("PLAIN", "COMPRESSED", "SPARE"),
)
"""The most important columns first: the last ones are left out first if the terminal is too narrow."""
_LONG_HISTORY: Final = 30
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = ".:-=+*#@"
_MANY: Final = 10_000
_COLORS: Final = {True: "red", False: "green"}


def view(
    pictures: Sequence[Picture], width: int, height: int, interval: float, *, unicode: bool = True
) -> RenderableType:
    """Return as many channels and columns as fit into the given width and height."""
    columns = _fitting(width)
    name_width = width - sum(columns.values()) - len(columns)
    rows = [row for picture in pictures for row in _rows(picture, columns, name_width, unicode)]
    lines = max(1, height - _AROUND)
    left_out = len(rows) - lines if len(rows) > lines else 0
    shown = rows[: lines - 1] if left_out else rows
    table = _table(columns, unicode)
    table.width = width
    for row in shown:
        table.add_row(*row)
    parts: list[RenderableType] = [_title(pictures, width, interval), table]
    if not pictures:
        parts.append(Text("there is no channel yet", style="dim"))
    if left_out:
        text = f"{counted(left_out + 1, 'more line')}: name fewer channels, or enlarge the terminal"
        parts.append(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _fitting(width: int) -> dict[str, int]:
    """Return the columns that fit, with their widths."""
    left, chosen = width - _NAME, set[str]()
    for headings in _IMPORTANCE:
        left -= sum(_COLUMNS[heading] + 1 for heading in headings)
        if left < 0:
            break
        chosen.update(headings)
    columns = {heading: width for heading, width in _COLUMNS.items() if heading in chosen}
    if left >= _LONG_HISTORY:
        columns["HISTORY"] = _LONG_HISTORY
    return columns


def _title(pictures: Sequence[Picture], width: int, interval: float) -> Text:
    left = f"filechannel top  {counted(len(pictures), 'channel')}  {datetime.now().astimezone():%H:%M:%S}"
    right = f"every {interval:g} s  q quits"
    text = f"{left}{right:>{max(2, width - len(left))}}" if len(left) + len(right) + 2 <= width else left
    return Text(text, style="bold", no_wrap=True, overflow="crop")


def _table(columns: Mapping[str, int], unicode: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="reverse")
    table.add_column("CHANNEL / CONSUMER", no_wrap=True, ratio=1, overflow="ellipsis" if unicode else "crop")
    for heading, width in columns.items():
        table.add_column(heading, justify="left" if heading == "HISTORY" else "right", no_wrap=True, width=width)
    return table


def _rows(picture: Picture, columns: Mapping[str, int], width: int, unicode: bool) -> Iterator[list[Text]]:
    figures = picture.figures
    if figures is None:
        yield [Text.assemble(_end_of(picture.path, width, unicode), f": {safe(picture.problem or '')}", style="red")]
        return
    bars = columns.get("HISTORY", 0)
    state = " sealed" if figures.sealed else ""
    name = Text.assemble((_end_of(picture.path, width - len(state), unicode), "bold"), (state, "dim"))
    cells = _channel_cells(figures, picture.pace) | {"HISTORY": _history(picture.pace, bars, unicode)}
    yield [name, *(cells[heading] for heading in columns)]
    for consumer in figures.consumers:
        pace = picture.paces[consumer.name]
        branch = "└ " if unicode else "- "
        cells = _consumer_cells(picture, consumer) | {"HISTORY": _history(pace, bars, unicode)}
        yield [Text(f"  {branch}{safe(consumer.name)}"), *(cells.get(heading, Text()) for heading in columns)]


def _end_of(path: Path, width: int, unicode: bool) -> str:
    """Return a path, or as much of its end as fits: the end distinguishes it from other paths."""
    text = safe(str(path))
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"{'…' if unicode else '~'}{text}"


def _channel_cells(figures: Figures, pace: Pace) -> dict[str, Text]:
    usage, fill = figures.usage, figures.fill
    return {
        "MSG/S": Text(_rate(pace.per_second)),
        "BYTES/S": Text(size(int(pace.bytes_per_second))),
        "MESSAGES": Text(_count(figures.messages)),
        "BYTES": Text(size(usage.bytes)),
        "PLAIN": Text(size(usage.plain_bytes)),
        "COMPRESSED": Text(size(usage.compressed_bytes)),
        "SPARE": Text(size(usage.spare_bytes)),
        "OPEN": Text(f"{len(figures.writers)}{'' if figures.knows_writers else '?'}"),
        "WAIT": Text(f"{figures.waiting_for_messages}r {figures.waiting_for_room}w"),
        "FULL": Text() if fill is None else Text(f"{fill:.0%}", style=_COLORS[fill >= 0.9]),
    }


def _consumer_cells(picture: Picture, consumer: ConsumerFigures) -> dict[str, Text]:
    pace, owned = picture.paces[consumer.name], consumer.owner is not None
    owners = consumer.members if consumer.is_group else int(owned)
    return {
        "MSG/S": Text(_rate(pace.per_second)),
        "BYTES/S": Text(size(int(pace.bytes_per_second))),
        "MESSAGES": Text(_count(consumer.lag_messages)),
        "BYTES": Text(size(consumer.lag_bytes)),
        "OPEN": Text(str(owners) if consumer.knows_owner else "?", style="" if owned else "dim"),
        "WAIT": Text(_short(picture.idle(consumer)), style="dim"),
    }


def _history(pace: Pace, width: int, unicode: bool) -> Text:
    values = list(pace.history)[-width:] if width else []
    return Text(sparkline(values, unicode=unicode), style="cyan")


def sparkline(values: Sequence[float], *, unicode: bool = True) -> str:
    """Return values as a line of bars, scaled to the largest value."""
    bars, most = _BARS if unicode else _PLAIN_BARS, max(values, default=0.0)
    if most <= 0:
        return bars[0] * len(values)
    return "".join(bars[min(int(value / most * len(bars)), len(bars) - 1)] for value in values)


def _rate(per_second: float) -> str:
    return f"{per_second:.1f}" if 0 < per_second < 10 else _count(round(per_second))


def _count(number: int) -> str:
    """Return a number in at most seven characters."""
    if number < 100 * _MANY:
        return f"{number:,}"
    return f"{number / 1e6:.1f}M" if number < 1e9 else f"{number / 1e9:.1f}G"


def _short(seconds: float) -> str:
    """Return a duration in at most four characters."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds)}s"
