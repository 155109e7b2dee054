"""Channels that are damaged anywhere, and repaired: run as a program, with seeds."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest

from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.verification import verify
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import opened, read_all
from tests.storage.damaging import damage_one, make

_BATCH = 3  # messages of the largest batch, without the last one


def repair_all(directory: Path, seeds: range, *, copied: bool) -> int:
    """Damage one thing for each seed and repair it; return how many there were.

    *copied*: much of it was never flushed, and the control page is not believed, as in a copy.
    """
    background = Background.install(pytest.MonkeyPatch())
    original, copy = directory / "original", directory / "copy"
    sent = make(original, background, flushed=not copied)
    status = (original / "control").stat()
    if not copied:
        Files.identity = lambda *_: (status.st_dev, status.st_ino)  # type: ignore[method-assign]
    for seed in seeds:
        shutil.copytree(original, copy)
        random = Random(seed)
        damages = [damage_one(copy, random)]
        names = [file.name.removesuffix(".z") for file in (original / "segments").iterdir()]
        begins = [int(name[:20]) for name in names if name[:20].isdigit()]
        was = verify(copy)
        repaired = repair(copy, like=original)
        assert repaired.report.is_clean, f"seed {seed}, {damages}: {was.findings}, {repaired.report.findings}"
        with opened(copy, create=False) as store:
            found = {message.offset: message for message in read_all(store)}
            spared = [message for message in sent if all(damage.is_readable(message, begins) for damage in damages)]
            missing = [message.offset for message in spared if found.get(message.offset) != message]
            if copied and missing == [message.offset for message in spared[-_BATCH:]][-len(missing) :]:
                missing = []  # the beginning of a batch whose end is lost
            assert not missing, f"seed {seed}, {damages}, {was.findings}: lost {missing}"
            assert all(message in sent for message in found.values()), f"seed {seed}, {damages}: not sent"
            store.log.append([b"resumes"])
            assert read_all(store)[-1].payload == b"resumes"
        shutil.rmtree(copy)
    return len(seeds)


def main(first: str, count: str, kind: str) -> None:
    """Try some seeds."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        done = repair_all(Path(directory), range(int(first), int(first) + int(count)), copied=kind == "copied")
    sys.stdout.write(f"{done}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
