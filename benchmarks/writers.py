"""Four writer processes and one reader process on one channel: the cost of agreeing on one order.

A single writer sends as many messages as the four together. 12 bytes raw, by the wall clock.
"""

from __future__ import annotations

from .child_processes import ChildProcesses
from .harness import Bench, Round, run_interleaved
from .report import Finding
from .workers import Workers

TITLE = "4 processes -> 1 process, 12 bytes raw"
_WRITERS = 4
_BATCHED = 200_000
_ONE_BY_ONE = 80_000


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, ChildProcesses() as processes:
        workers = Workers(processes, directory / "raw", "raw", writers=_WRITERS)

        def contestant(writers: int, count: int, *, batched: bool) -> Round:
            async def run() -> float:
                return workers.transfer(count, batched=batched, writers=writers).elapsed

            return run

        contestants = {
            "one, batched": contestant(1, _BATCHED, batched=True),
            "four, batched": contestant(_WRITERS, _BATCHED, batched=True),
            "one": contestant(1, _ONE_BY_ONE, batched=False),
            "four": contestant(_WRITERS, _ONE_BY_ONE, batched=False),
        }
        found = await run_interleaved(contestants, bench.rounds(80))

    one, four, single, many = (found[name] for name in ("one, batched", "four, batched", "one", "four"))
    unit = "x rate of one"
    return [
        Finding("one writer, send_many, 1,000 per call", one.per(one), unit, time=one),
        Finding("four writers, send_many", one.per(four), unit, 0.7, True, four),
        Finding("one writer, send", single.per(single), unit, time=single),
        Finding("four writers, send", single.per(many), unit, 0.7, True, many),
    ]
