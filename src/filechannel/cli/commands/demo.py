"""`filechannel demo`: tests the promises of a channel on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer

from ..._format import PURE
from ..ui.failures import FINDINGS
from ..ui.humanize import counted, number, size, span
from ..ui.output import show, stdout

if TYPE_CHECKING:
    from rich.console import RenderableType

_State = TypeVar("_State")
_WIDEST: Final = 100
_ONE_PROCESS: Final = "Without the native core a channel can be used by one process at a time"


class _Result(NamedTuple):
    """What was done, the result, and whether the promise was kept."""

    done: str
    outcome: str
    is_fine: bool


def demo(
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="The Spark pipeline too, which needs Java.")] = True,
) -> int:
    """Test what a channel promises, on this machine.

    The demo kills processes with SIGKILL while they send and while they handle messages, sends a gigabyte through a
    channel that occupies a few megabytes of disk, runs a stream through Spark, and measures the speed of this machine.
    It takes less than three minutes. All files are in a temporary directory, which is removed.

    Exits with 0 if every promise was kept, and with 1 if not.

    \b
    Examples:
      filechannel demo
      filechannel demo --no-spark
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="filechannel-demo-") as name:
        directory = Path(name)
        results = [*_crashes(directory / "orders"), *_group(directory), *_bounds(directory / "bytes")]
        if spark:
            results += _pipeline(directory)
        show(_figures(directory))
    return _close(results, time.monotonic() - began)


def _crashes(path: Path) -> list[_Result]:
    from ..demo import pictures
    from ..demo.crash_act import CRASHES, crash_repeatedly

    _announce("A process sends orders as fast as it can, and is killed with SIGKILL.")
    end = _play(crash_repeatedly(path), pictures.crashes)
    show("(a step can be accepted that the killed process had no time left to report)")
    accepted, lost = (sum(getattr(outcome, name) for outcome in end.outcomes) for name in ("accepted", "lost"))
    outcome = f"{counted(accepted, 'order')} accepted, {number(lost)} lost"
    return [_Result(f"{CRASHES} kills of a sender", outcome, end.is_fine)]


def _group(directory: Path) -> list[_Result]:
    from ..demo import pictures
    from ..demo.group_act import ORDERS, WORKERS, share_work

    _announce(f"{WORKERS} processes share {counted(ORDERS, 'order')}, and one of them is killed while it holds some.")
    if PURE:
        return _leave_out(_ONE_PROCESS)
    end = _play(share_work(directory), pictures.workers)
    outcome = f"{number(end.total)} of {number(ORDERS)} handled, {number(end.repeated)} of them twice"
    return [_Result("a worker killed", outcome, end.is_fine)]


def _bounds(path: Path) -> list[_Result]:
    from ..demo import pictures
    from ..demo.capacity_act import CAPACITY, TOTAL, stay_small

    limit = f"a channel with a capacity of {size(CAPACITY)}"
    _announce(
        f"{size(TOTAL)} go through {limit}: the sender waits while it is full, and consumed messages are deleted."
    )
    end = _play(stay_small(path), pictures.bounds)
    outcome = f"{size(end.received)} went through, at most {size(end.most)} on disk"
    return [_Result("a channel with a limit", outcome, end.is_fine)]


def _pipeline(directory: Path) -> list[_Result]:
    from ..demo.spark_act import run_pipeline, what_is_missing

    _announce("A stream goes through Spark, windowed second by second; its producer is killed on the way.")
    missing = _ONE_PROCESS if PURE else what_is_missing()
    if missing is not None:
        return _leave_out(missing)
    is_fine = run_pipeline(directory)
    outcome = "nothing lost, nothing counted twice" if is_fine else "it failed: see above"
    return [_Result("a producer killed before Spark", outcome, is_fine)]


def _figures(directory: Path) -> RenderableType:
    from ..demo import pictures
    from ..demo.speed_act import measure

    _announce("The speed on this machine. filechannel encodes each order, adds a checksum and stores it in a file.")
    return pictures.figures(measure(directory))


def _leave_out(why: str) -> list[_Result]:
    show(f"Skipped. {why}.")
    return []


def _announce(story: str) -> None:
    from rich.text import Text

    show("", _rule(), Text(story, style="bold"), "")


def _rule() -> RenderableType:
    """Return a line across the screen. Its length is limited, because a file has no width."""
    from rich.text import Text

    return Text("─" * min(stdout().width, _WIDEST), style="dim")


def _play(states: Iterator[_State], draw: Callable[[_State], RenderableType]) -> _State:
    """Draw the states as they happen, and return the last one."""
    from rich.live import Live

    state = next(states)
    with Live(draw(state), console=stdout(), refresh_per_second=10) as live:
        for state in states:
            live.update(draw(state))
    if not stdout().is_terminal:
        show("")  # Live does not end the last line there
    return state


def _close(results: list[_Result], seconds: float) -> int:
    from ..demo.pictures import promises, verdict

    is_fine = all(result.is_fine for result in results)
    words = verdict(is_fine, "Every promise was kept.", "A PROMISE WAS BROKEN.")
    show("", _rule(), promises(results), "", words, f"That took {span(seconds)}.")
    return 0 if is_fine else FINDINGS
