"""One writer process and eight reader processes, each of which receives all messages.

How much the readers cost the writer, and how long the slowest one takes on the available cores. By the wall clock.
"""

from __future__ import annotations

from .child_processes import ChildProcesses
from .harness import Bench, Round, Series, run_interleaved
from .report import Finding
from .workers import Transfer, Workers

TITLE = "1 process -> 8 processes, 12 bytes raw"
_READERS = 8
_MESSAGES = 200_000
_ONE_BY_ONE = 20_000


async def measure(bench: Bench) -> list[Finding]:
    cpu: dict[str, list[float]] = {}

    def contestant(name: str, workers: Workers, count: int, *, batched: bool) -> Round:
        async def run() -> float:
            transfer: Transfer = workers.transfer(count, batched=batched)
            cpu.setdefault(name, []).append(transfer.cpu)
            return transfer.elapsed

        return run

    with bench.scratch() as directory, ChildProcesses() as processes:
        alone = Workers(processes, directory / "one", "raw")
        all_of_them = Workers(processes, directory / "eight", "raw", readers=_READERS)
        contestants = {
            "one": contestant("one", alone, _MESSAGES, batched=True),
            "eight": contestant("eight", all_of_them, _MESSAGES, batched=True),
            "one, one by one": contestant("one, one by one", alone, _ONE_BY_ONE, batched=False),
            "eight, one by one": contestant("eight, one by one", all_of_them, _ONE_BY_ONE, batched=False),
        }
        found = await run_interleaved(contestants, bench.rounds(80))

    one, eight = found["one"], found["eight"]
    costs = {name: Series(tuple(values[-len(one.values) :])) for name, values in cpu.items()}
    single, many = found["one, one by one"], found["eight, one by one"]
    return [
        Finding("until 1 reader has everything, batched", one.per(one), "x 1 -> 1", time=one),
        Finding("until all 8 have everything, batched", eight.per(one), "x 1 -> 1", 6, time=eight),
        Finding(
            "CPU time of the writer, batched", costs["eight"].per(costs["one"]), "x 1 -> 1", 1.5, time=costs["eight"]
        ),
        Finding("until all 8 have everything, one by one", many.per(single), "x 1 -> 1", time=many),
        Finding(
            "CPU time of the writer, one by one",
            costs["eight, one by one"].per(costs["one, one by one"]),
            "x 1 -> 1",
            time=costs["eight, one by one"],
        ),
    ]
