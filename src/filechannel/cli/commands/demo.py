"""`filechannel demo`: what a channel promises, shown on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer

from .._format import PURE
from .failures import FINDINGS
from .output import show, stdout
from .wording import counted, number, size, span

if TYPE_CHECKING:
    from rich.console import RenderableType

_State = TypeVar("_State")
_WIDEST: Final = 100
_ONE_PROCESS: Final = "Without the native core a channel can be used by one process at a time"


class _Result(NamedTuple):
    """What was done, what came of it, and whether that was promised."""

    done: str
    came_of_it: str
    is_fine: bool


def demo(
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="The Spark pipeline too, which needs Java.")] = True,
) -> int:
    """Show what a channel promises, on this machine.

    It takes less than three minutes. Processes are killed with SIGKILL while they send and while they work, a gigabyte
    goes through a few megabytes of disk, a stream goes through Spark, and the figures of this machine close the show.
    Everything happens in a temporary directory, which is removed.

    Exits with 0 if every promise was kept, and with 1 if not.

    \b
    Examples:
      filechannel demo
      filechannel demo --no-spark
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="filechannel-demo-") as name:
        directory = Path(name)
        results = [*_kills(directory / "orders"), *_crew(directory), *_bounds(directory / "bytes")]
        if spark:
            results += _pipeline(directory)
        show(_figures(directory))
    return _close(results, time.monotonic() - began)


def _kills(path: Path) -> list[_Result]:
    from .show import pictures
    from .show.kills import KILLS, survive_kills

    _announce("A process sends orders as fast as it can, and is killed with SIGKILL.")
    end = _play(survive_kills(path), pictures.kills)
    show("(a step can be accepted that the killed process had no time left to report)")
    accepted, lost = (sum(getattr(outcome, name) for outcome in end.outcomes) for name in ("accepted", "lost"))
    came_of_it = f"{counted(accepted, 'order')} accepted, {number(lost)} lost"
    return [_Result(f"{KILLS} kills of a sender", came_of_it, end.is_fine)]


def _crew(directory: Path) -> list[_Result]:
    from .show import pictures
    from .show.crew import ORDERS, WORKERS, share_work

    _announce(f"{WORKERS} processes share {counted(ORDERS, 'order')}, and one of them is killed while it holds some.")
    if PURE:
        return _leave_out(_ONE_PROCESS)
    end = _play(share_work(directory), pictures.crew)
    came_of_it = f"{number(end.total)} of {number(ORDERS)} handled, {number(end.repeated)} of them twice"
    return [_Result("a worker killed", came_of_it, end.is_fine)]


def _bounds(path: Path) -> list[_Result]:
    from .show import pictures
    from .show.bounds import CAPACITY, TOTAL, stay_small

    limit = f"in which {size(CAPACITY)} may wait to be received: the sender waits then"
    _announce(f"{size(TOTAL)} go through a channel {limit}. What was received leaves the disk.")
    end = _play(stay_small(path), pictures.bounds)
    came_of_it = f"{size(end.received)} went through, at most {size(end.most)} on disk"
    return [_Result("a channel with a limit", came_of_it, end.is_fine)]


def _pipeline(directory: Path) -> list[_Result]:
    from .show.pipeline import run_pipeline, what_is_missing

    _announce("A stream goes through Spark, windowed second by second; its producer is killed on the way.")
    missing = _ONE_PROCESS if PURE else what_is_missing()
    if missing is not None:
        return _leave_out(missing)
    is_fine = run_pipeline(directory)
    came_of_it = "nothing lost, nothing counted twice" if is_fine else "it failed: see above"
    return [_Result("a producer killed before Spark", came_of_it, is_fine)]


def _figures(directory: Path) -> RenderableType:
    from .show import pictures
    from .show.figures import measure

    _announce("What that costs on this machine; filechannel encodes, checks and files every order.")
    return pictures.figures(measure(directory))


def _leave_out(why: str) -> list[_Result]:
    show(f"Left out. {why}.")
    return []


def _announce(story: str) -> None:
    from rich.text import Text

    show("", _rule(), Text(story, style="bold"), "")


def _rule() -> RenderableType:
    """Return a line across the screen; a file is not as wide as its lines may be long."""
    from rich.text import Text

    return Text("─" * min(stdout().width, _WIDEST), style="dim")


def _play(states: Iterator[_State], draw: Callable[[_State], RenderableType]) -> _State:
    """Show what happens while it happens, and return how it ended."""
    from rich.live import Live

    state = next(states)
    with Live(draw(state), console=stdout(), refresh_per_second=10) as live:
        for state in states:
            live.update(draw(state))
    if not stdout().is_terminal:
        show("")  # the last line has no end there
    return state


def _close(results: list[_Result], seconds: float) -> int:
    from .show.pictures import promises, verdict

    is_fine = all(result.is_fine for result in results)
    words = verdict(is_fine, "Every promise was kept.", "A PROMISE WAS BROKEN.")
    show("", _rule(), promises(results), "", words, f"That took {span(seconds)}.")
    return 0 if is_fine else FINDINGS
