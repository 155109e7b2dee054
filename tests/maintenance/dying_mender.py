"""A repair that is killed: run as a program, it forks whoever mends a channel, and kills it at every step."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from filechannel._maintenance.repair import repair
from filechannel._maintenance.verify import verify
from tests.maintenance.damage import DAMAGES, make_channel
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of
from tests.storage.dying import Counts, DyingFiles, die_in_child


def _readable(path: Path) -> set[bytes]:
    """Return what somebody can read who opens a channel just like that."""
    with opened(path, create=False) as store:
        return set(payloads_of(store, skip=True))


def die_at_every_step(directory: Path, name: str) -> int:
    """Kill whoever mends a channel at each of its steps in turn; return how many there were."""
    background = Background.install(pytest.MonkeyPatch())
    damaged = directory / "damaged"
    sent = make_channel(damaged)
    damage, _, lost = DAMAGES[name]
    damage(damaged)
    left = {payload for number, payload in enumerate(sent) if number not in lost}
    last, finished = 0, False
    while not finished:
        last += 1
        path, look = directory / "copy", directory / "look"
        # Moved and back: a copy would have another identity, and be recovered.
        shutil.copytree(damaged, path)
        counts = Counts()

        def work(path: Path = path, last: int = last, counts: Counts = counts) -> None:
            repair(path, files=DyingFiles(last, counts))

        finished = die_in_child(work)
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
    return last


def main(name: str) -> None:
    """Run one of them."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        count = die_at_every_step(Path(directory), name)
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
