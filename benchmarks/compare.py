"""`python -m benchmarks.compare BASE`: compare this checkout with a build of another commit in interleaved runs.

BASE is a commit. It is exported below `.venvs/base`, built there with the interpreter of this run, and measured with
its own benchmarks, because benchmarks use internal modules that other commits may not have. Base and this checkout
run alternately, group by group, so that other load on the machine affects both alike. The ratio of each line is
computed within a pair of runs; the report shows the median of the pairs.

If both sides have the same number of lines in a group, they are compared in order, so that a line may be reworded;
otherwise by name, and the report names the lines that only one side has. With `--figures` it compares not the times but
what the benchmarks themselves report, most of which is a ratio to other work that was measured in the same run: that
leaves out more of the noise of a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_BASES = _ROOT / ".venvs" / "base"
Figures = dict[str, float]
"""What is compared, by line."""


def build(commit: str) -> Path:
    """Export a commit and build its core, unless that was done before. Return the directory of the checkout."""
    name = subprocess.run(
        ["git", "rev-parse", "--short=12", f"{commit}^{{commit}}"],
        cwd=_ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    directory = _BASES / name
    stamp = directory / ".built"
    if not stamp.exists():
        archive = subprocess.run(["git", "archive", name], cwd=_ROOT, check=True, capture_output=True).stdout
        directory.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(directory, filter="data")
        environment = {**os.environ, "FILECHANNEL_REQUIRE_NATIVE": "1"}
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(command, cwd=directory, check=True, env=environment)
        stamp.touch()
    return directory


def measure(checkout: Path, group: str, *, quick: bool, figures: bool) -> Figures | None:
    """Run one group of a checkout's benchmarks on its own sources; None if the run fails, with a message."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", "--only", group, "--json", str(output)]
        if quick:
            command.append("--quick")
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{group}: not measured in {checkout}: {done.stderr.strip().splitlines()[-1:]}")
            return None
        groups = json.loads(output.read_text())["groups"]
    return {
        line["work"]: line["figure"] if figures else line["nanoseconds"] or line["figure"]
        for lines in groups.values()
        for line in lines
    }


def compare(base: Path, group: str, pairs: int, *, quick: bool, figures: bool) -> list[tuple[str, float, list[float]]]:
    """Return (line, median ratio, every ratio) for each line of a group: this checkout over base."""
    ratios: dict[str, list[float]] = {}
    for number in range(pairs):
        sides = [base, _ROOT]
        found = {
            side: measure(side, group, quick=quick, figures=figures) for side in (sides if number % 2 else sides[::-1])
        }
        before, after = (found[side] for side in sides)
        if before is None or after is None:
            return []
        if len(before) == len(after):
            before = dict(zip(after, before.values(), strict=True))
        if not number:
            for work in before.keys() ^ after.keys():
                print(f"        {group}: {work}: only one of the two has this line")
        for work in before.keys() & after.keys():
            if before[work]:
                ratios.setdefault(work, []).append(after[work] / before[work])
    return [(work, statistics.median(values), values) for work, values in sorted(ratios.items())]


def main() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"], cwd=_ROOT, check=True, capture_output=True, text=True
    )
    groups = [line.split()[0] for line in listed.stdout.splitlines()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--only", nargs="+", choices=groups, metavar="NAME", help="only these groups")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side (%(default)s)")
    parser.add_argument("--figures", action="store_true", help="compare what the benchmarks report instead of times")
    parser.add_argument("--full", action="store_true", help="all rounds of each group, not those of --quick")
    arguments = parser.parse_args()
    base = build(arguments.base)
    medians: list[float] = []
    for group in arguments.only or groups:
        for work, median, values in compare(
            base, group, arguments.pairs, quick=not arguments.full, figures=arguments.figures
        ):
            medians.append(median)
            spread = " ".join(f"{value:.2f}" for value in sorted(values))
            print(f"{median:6.3f}  {group}: {work}  ({spread})", flush=True)
    if medians:
        print(f"median of {len(medians)} lines: {statistics.median(medians):.3f}")


if __name__ == "__main__":
    main()
