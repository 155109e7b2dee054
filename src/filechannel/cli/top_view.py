"""What `top` shows: a line for each channel, and one below it for each of its consumers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .._maintenance.watch import ConsumerFigures, Figures
from .gallery import Pace, Picture
from .output import safe
from .wording import counted, size

_WIDE: Final = 120  # columns, from which on there is room for all
_AROUND: Final = 3  # lines that are not the table's
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = ".:-=+*#@"
_MANY: Final = 10_000
_COLORS: Final = {True: "red", False: "green"}


def view(
    pictures: Sequence[Picture], width: int, height: int, interval: float, *, unicode: bool = True
) -> RenderableType:
    """Return all that fits into so many columns and lines."""
    is_wide = width >= _WIDE
    rows = [row for picture in pictures for row in _rows(picture, is_wide, unicode)]
    room = max(1, height - _AROUND)
    left_out = len(rows) - room if len(rows) > room else 0
    shown = rows[: room - 1] if left_out else rows
    table = _table(is_wide)
    table.width = width
    for row in shown:
        table.add_row(*row)
    parts: list[RenderableType] = [_title(pictures, width, interval), table]
    if not pictures:
        parts.append(Text("no channel is there; it is shown when there is one", style="dim"))
    if left_out:
        parts.append(Text(f"{counted(left_out + 1, 'more line')}: name fewer channels, or make it higher", style="dim"))
    return Group(*parts)


def _title(pictures: Sequence[Picture], width: int, interval: float) -> Text:
    left = f"filechannel top  {counted(len(pictures), 'channel')}  {datetime.now().astimezone():%H:%M:%S}"
    right = f"every {interval:g} s  q ends"
    return Text(f"{left}{' ' * max(2, width - len(left) - len(right))}{right}", style="bold", no_wrap=True)


def _table(is_wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="reverse")
    table.add_column("CHANNEL / CONSUMER", no_wrap=True, ratio=1, overflow="ellipsis")
    right = ("MSG/S", "BYTES/S", "MESSAGES", "BYTES", *(("PLAIN", "COMPRESSED", "SPARE") if is_wide else ()))
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("OPEN", justify="right", no_wrap=True)
    table.add_column("WAIT", justify="right", no_wrap=True)
    table.add_column("FULL", justify="right", no_wrap=True)
    table.add_column("HISTORY" if not is_wide else "SENT, OR BEHIND", no_wrap=True, width=30 if is_wide else 10)
    return table


def _rows(picture: Picture, is_wide: bool, unicode: bool) -> Iterator[list[Text]]:
    figures, bars = picture.figures, 30 if is_wide else 10
    name = Text(safe(str(picture.path)), style="bold")
    if figures is None:
        yield [Text.assemble(name, f": {safe(picture.problem or '')}", style="red")]
        return
    yield [name, *_channel_cells(figures, picture.pace, is_wide), _history(picture.pace, bars, unicode)]
    for consumer in figures.consumers:
        pace = picture.paces[consumer.name]
        branch = "└ " if unicode else "- "
        cells = _consumer_cells(consumer, pace, is_wide)
        yield [Text(f"  {branch}{safe(consumer.name)}"), *cells, _history(pace, bars, unicode)]


def _channel_cells(figures: Figures, pace: Pace, is_wide: bool) -> Iterator[Text]:
    usage, fill = figures.usage, figures.fill
    yield Text(_rate(pace.per_second))
    yield Text(size(int(pace.bytes_per_second)))
    yield Text(_count(figures.messages))
    yield Text(size(usage.bytes))
    if is_wide:
        for space in (usage.plain_bytes, usage.compressed_bytes, usage.spare_bytes):
            yield Text(size(space))
    yield Text("sealed" if figures.sealed else str(len(figures.writers)))
    yield Text(f"{figures.waiting_for_messages}r {figures.waiting_for_room}w")
    yield Text("") if fill is None else Text(f"{fill:.0%}", style=_COLORS[fill >= 0.9])


def _consumer_cells(consumer: ConsumerFigures, pace: Pace, is_wide: bool) -> Iterator[Text]:
    yield Text(_rate(pace.per_second))
    yield Text(size(int(pace.bytes_per_second)))
    yield Text(_count(consumer.lag_messages))
    yield Text(size(consumer.lag_bytes))
    yield from [Text("")] * (3 * is_wide)
    owned = consumer.owner is not None
    yield Text(str(consumer.members) if consumer.is_group else str(int(owned)), style="" if owned else "dim")
    yield Text(_short(consumer.idle), style="dim")
    yield Text("")


def _history(pace: Pace, width: int, unicode: bool) -> Text:
    return Text(sparkline(list(pace.history)[-width:], unicode=unicode), style="cyan")


def sparkline(values: Sequence[float], *, unicode: bool = True) -> str:
    """Return values as bars, the largest as high as a line."""
    bars, most = _BARS if unicode else _PLAIN_BARS, max(values, default=0.0)
    if most <= 0:
        return bars[0] * len(values)
    return "".join(bars[min(int(value / most * len(bars)), len(bars) - 1)] for value in values)


def _rate(per_second: float) -> str:
    return f"{per_second:.1f}" if 0 < per_second < 10 else _count(round(per_second))


def _count(number: int) -> str:
    """Return a number that is no longer than seven characters."""
    if number < 100 * _MANY:
        return f"{number:,}"
    return f"{number / 1e6:.1f}M" if number < 1e9 else f"{number / 1e9:.1f}G"


def _short(seconds: float) -> str:
    """Return a time in four characters at most."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds)}s"
