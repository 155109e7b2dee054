"""A repair that is killed: run as a program, it forks a process that repairs a channel, and kills it at every step."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.verification import verify
from tests.maintenance.damage import DAMAGES, make_channel
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of
from tests.storage.deaths import Counts, die_at_each_step, die_in_child
from tests.storage.dying import DyingFiles


def _readable(path: Path) -> set[bytes]:
    """Return what a reader gets that opens a channel without further options."""
    with opened(path, create=False) as store:
        return set(payloads_of(store, skip=True))


def die_at_every_step(directory: Path, name: str, *, each: bool) -> int:
    """Kill a process that repairs a channel at each of its steps, or at the first of every kind; return how often."""
    background = Background.install(pytest.MonkeyPatch())
    damaged, path, look = directory / "damaged", directory / "copy", directory / "look"
    sent = make_channel(damaged)
    damage, _, lost = DAMAGES[name]
    damage(damaged)
    left = {payload for number, payload in enumerate(sent) if number not in lost}

    def live(last: int) -> Counts:
        # Moved and back: a copy would have another identity, and be recovered.
        shutil.copytree(damaged, path)
        if name == "links":  # which are not copied
            damage(path)
        counts = Counts()
        die_in_child(lambda: repair(path, files=DyingFiles(last, counts)))
        shutil.copytree(path, look, ignore=shutil.ignore_patterns("wake"))
        assert left <= _readable(look), f"worse after step {last}"
        report = repair(path).report
        assert report.is_clean, f"after step {last}: {report.findings}"
        with opened(path, create=False) as store:
            assert set(payloads_of(store)) == left, f"after step {last}"
        assert verify(path).is_clean
        background.forget()
        shutil.rmtree(path)
        shutil.rmtree(look)
        return counts

    return die_at_each_step(live, each=each)


def main(name: str, which: str) -> None:
    """Run one of them."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        count = die_at_every_step(Path(directory), name, each=which == "each")
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
