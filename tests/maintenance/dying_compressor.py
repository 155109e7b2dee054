"""A process that compresses dies at each step: run as a program, it forks, kills and checks what is left."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import Message, opened, read_all
from tests.storage.compressing import compress_all
from tests.storage.deaths import NEVER, Counts, die_at_each_step, die_in_child
from tests.storage.dying import DyingFiles


def _fill(path: Path) -> None:
    with opened(path) as store:
        for number in range(40):
            store.log.append([b"%d " % number + b"text " * 60])
        store.flusher.flush()


def _compress(path: Path, files: Files) -> None:
    with opened(path, files=files) as store:
        compress_all(store)


def die_at_every_step(directory: Path, *, each: bool) -> int:
    """Kill a process that compresses at each of its steps, or at the first of every kind; return how often."""
    background = Background.install(pytest.MonkeyPatch())

    def live(last: int) -> Counts:
        path, counts = directory / f"{last}", Counts()
        _fill(path)
        background.forget()
        with opened(path) as store:
            before = read_all(store)
        finished = die_in_child(lambda: _compress(path, DyingFiles(last, counts)))
        assert finished == (last == NEVER)
        _check(path, before)
        background.forget()
        shutil.rmtree(path)
        return counts

    return die_at_each_step(live, each=each)


def _check(path: Path, before: list[Message]) -> None:
    with opened(path) as store:
        assert read_all(store) == before
        compress_all(store)
        assert read_all(store) == before
        count = len(store.segments.begins)
    names = [file.name for file in (path / "segments").iterdir() if not file.name.startswith("spare-")]
    assert sum(name.endswith(".z") for name in names) == count - 1, names
    assert sum(name.endswith(".seg") for name in names if name[0] == "0") == 1, names
    assert not [name for name in names if name.startswith("new-")], names


def main(which: str) -> None:
    """Run it in memory where that is possible: a process crash has nothing to do with the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        count = die_at_every_step(Path(directory), each=which == "each")
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
