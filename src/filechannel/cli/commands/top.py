"""`filechannel top`: a live display of channels."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from ..ui.channel_set import ChannelSet, Picture
from ..ui.failures import USAGE, Failure
from ..ui.output import JsonOption, document, plain, show, stdout, write_line

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDEST: Final = 160
_ENDLESS: Final = 1 << 30  # lines


def top(
    channels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CHANNEL",
            help="Channels, directories with channels, or patterns; if omitted, the channels in this directory.",
            show_default=False,
        ),
    ] = None,
    updates: Annotated[
        int | None,
        typer.Option(
            "-n", "--updates", metavar="NUMBER", min=1, help="Stop after this many updates.", show_default="until q"
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option("-i", "--interval", metavar="SECONDS", min=0.05, help="Seconds between two updates.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Watch for one interval, print the result and exit.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the activity of channels, live in the terminal.

    Each channel is followed by its consumers. MESSAGES and BYTES are what is stored for a channel, and the lag for a
    consumer. OPEN is the number of processes that have the channel open for writing, or own the consumer name. WAIT is
    the number of waiting receivers (r) and of senders that wait for capacity (w), and for a consumer the time since it
    last moved. A wider terminal shows more columns. The command registers nothing and opens nothing for writing.

    Press q or Ctrl-C to stop. If stdout is not a terminal, the command prints one update; on a terminal without cursor
    control, one update below the other; with --json, one line per update.

    \b
    Examples:
      filechannel top data/orders
      filechannel top 'data/*' -i 0.5
      filechannel top data --once --json | jq '.channels[].messages'
    """
    once = once or (updates is None and not json and not stdout().is_terminal)
    with ChannelSet(channels or ["."]) as channel_set:
        try:
            if once:
                if not channel_set.update():
                    raise Failure(f"there is no channel at {', '.join(channels or ['.'])}; check the path", USAGE)
                time.sleep(interval)
                _print(channel_set.update(), interval, json=json)
            elif json or not stdout().is_terminal or stdout().is_dumb_terminal:
                for _ in _rounds(updates, interval, time.sleep):
                    _write(channel_set.update(), interval, json=json)
            else:
                _live(channel_set, updates, interval)
        except KeyboardInterrupt:
            pass  # Ctrl-C is a normal way to end it


def _rounds(updates: int | None, interval: float, pause: Callable[[float], object]) -> Generator[None]:
    """Yield once for each update. Stop early if the pause returns True."""
    yield
    while (updates := None if updates is None else updates - 1) != 0 and not pause(interval):
        yield


def _print(pictures: Sequence[Picture], interval: float, *, json: bool) -> None:
    if json:
        document(_report(pictures))
    else:
        show(_view(pictures, interval, height=_ENDLESS))


def _write(pictures: Sequence[Picture], interval: float, *, json: bool) -> None:
    if json:
        write_line(msgspec.json.encode(plain(_report(pictures))))
    else:
        show(_view(pictures, interval, height=_ENDLESS))
    sys.stdout.flush()


def _view(pictures: Sequence[Picture], interval: float, height: int | None = None) -> RenderableType:
    from ..ui.top_view import view

    console = stdout()
    width = min(console.width, _WIDEST)
    unicode = console.encoding.lower().startswith("utf")
    return view(pictures, width, height or console.height, interval, unicode=unicode)


def _live(channel_set: ChannelSet, updates: int | None, interval: float) -> None:
    from rich.live import Live

    with (
        _keys() as wait_for_q,
        Live(console=stdout(), screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        for _ in _rounds(updates, interval, wait_for_q):
            live.update(_view(channel_set.update(), interval), refresh=True)


@contextmanager
def _keys() -> Generator[Callable[[float], bool]]:
    """Read single keys while the block runs. Yield a function that waits, and returns whether q was pressed."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield lambda seconds: _wait_for_q(keyboard, seconds)
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _wait_for_q(keyboard: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([keyboard], [], [], left)[0]:
            pressed = os.read(keyboard, 100)
            if not pressed or b"q" in pressed.lower():
                return True
    return False


def _report(pictures: Sequence[Picture]) -> object:
    return {"time": time.time(), "channels": [_channel(picture) for picture in pictures]}


def _channel(picture: Picture) -> object:
    figures = picture.figures
    if figures is None:
        return {"path": picture.path, "problem": picture.problem}
    return {
        "path": picture.path,
        "sent_per_second": picture.pace.per_second,
        "bytes_per_second": picture.pace.bytes_per_second,
        "messages": figures.messages,
        "next_sequence": figures.next_sequence,
        "disk": {"bytes": figures.usage.bytes, **dict(_disk(picture))},
        "writers": figures.writers,
        "writers_known": figures.knows_writers,
        "waiting_for_messages": figures.waiting_for_messages,
        "waiting_for_room": figures.waiting_for_room,
        "fill": figures.fill,
        "sealed": figures.sealed,
        "consumers": [
            {
                "name": consumer.name,
                "kind": "group" if consumer.is_group else "single",
                "taken_per_second": picture.paces[consumer.name].per_second,
                "bytes_per_second": picture.paces[consumer.name].bytes_per_second,
                "lag_messages": consumer.lag_messages,
                "lag_bytes": consumer.lag_bytes,
                "idle": picture.idle(consumer),
                "owner": consumer.owner,
                "owner_known": consumer.knows_owner,
                "members": consumer.members,
            }
            for consumer in figures.consumers
        ],
    }


def _disk(picture: Picture) -> list[tuple[str, int]]:
    assert picture.figures is not None
    usage = picture.figures.usage
    return [("plain", usage.plain_bytes), ("compressed", usage.compressed_bytes), ("spare", usage.spare_bytes)]
