"""`python -m benchmarks`: run the measurements and report them."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from filechannel._format import PURE

from . import (
    backlog,
    batch,
    capacity,
    compression,
    consumers,
    fairness,
    fanout,
    fanout_local,
    fsync,
    groups,
    idle,
    latency,
    machine,
    memory,
    opening,
    peers,
    plots,
    processes,
    queue,
    raw,
    recycling,
    report,
    seeking,
    serving,
    serving_group,
    writers,
)
from .harness import Bench
from .report import Finding

Measure: TypeAlias = Callable[[Bench], Coroutine[object, object, list[Finding]]]

GROUPS: dict[str, tuple[str, Measure]] = {
    module.__name__.rpartition(".")[2]: (module.TITLE, module.measure)
    for module in (
        queue,
        batch,
        raw,
        capacity,
        recycling,
        consumers,
        serving,
        fanout_local,
        seeking,
        opening,
        backlog,
        compression,
        fsync,
        memory,
        fairness,
        processes,
        fanout,
        groups,
        writers,
        serving_group,
        latency,
        idle,
    )
}
ACROSS_PROCESSES = {"processes", "fanout", "groups", "writers", "serving_group", "latency", "idle"}


def parse_arguments() -> argparse.Namespace:
    shared = Path("/dev/shm")
    directory = shared if shared.is_dir() else Path(tempfile.gettempdir())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure filechannel on this machine.")
    parser.add_argument("--list", action="store_true", help="name the groups and do nothing else")
    parser.add_argument("--only", nargs="+", choices=GROUPS, metavar="NAME", help="measure only these groups")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about a minute, less exact")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings to a JSON file")
    parser.add_argument(
        "--write", action="store_true", help="also put the table into docs/performance.md, with its plots"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="also draw what was measured, as SVG, into a directory"
    )
    parser.add_argument("--directory", type=Path, default=directory, metavar="DIR", help="for channels (%(default)s)")
    parser.add_argument(
        "--disk", type=Path, default=Path.cwd(), metavar="DIR", help="a real disk, for FSYNC (the current directory)"
    )
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write needs the whole table: leave --only out")
    for path in (
        arguments.directory,
        arguments.disk,
        (arguments.json or plots.PAGE).parent,
        arguments.plots or plots.IMAGES,
    ):
        if not path.is_dir():  # fail now rather than after the measurement
            parser.error(f"{path} is not a directory")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.list:
        print(*(f"{name:14}{title}" for name, (title, _) in GROUPS.items()), sep="\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the directories are removed on SIGTERM too
    bench = Bench(
        arguments.directory,
        arguments.disk,
        arguments.quick,
        {package: peers.version_of(package) for package in peers.PACKAGES},
    )
    properties = machine.describe(bench)
    print(*properties, sep="\n")
    began, measured = perf_counter(), list[tuple[str, list[Finding]]]()
    for name in arguments.only or GROUPS:
        title, measure = GROUPS[name]
        if PURE and name in ACROSS_PROCESSES:
            bench.notes.append(
                f"Left out, because the pure-Python implementation allows one process per channel: '{title}'."
            )
            continue
        measured.append((title, asyncio.run(measure(bench))))
        print(f"\n{title}\n\n{report.as_text(measured[-1][1])}", flush=True)
    findings = [finding for _, group in measured for finding in group if finding.target is not None]
    missed = [finding.work for finding in findings if not finding.met]
    print(f"\n{len(findings) - len(missed)} of {len(findings)} targets met in {perf_counter() - began:.0f} s")
    for work in missed:
        print(f"missed: {work}")
    for note in bench.notes:
        print(f"note: {note}")
    if arguments.json:
        tree = {title: [finding.to_json() for finding in group] for title, group in measured}
        document = {"machine": properties, "groups": tree, "notes": bench.notes}
        arguments.json.write_text(json.dumps(document, indent=2))
    table = report.as_markdown(properties, measured, bench.notes)
    if arguments.write:
        report.write_into(plots.PAGE, table)
        plots.write(table, plots.IMAGES)
    if arguments.plots:
        plots.write(table, arguments.plots)


if __name__ == "__main__":
    main()
