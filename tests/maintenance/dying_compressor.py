"""Who compresses dies at each step: run as a program, it forks, kills and looks at what is left."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from filechannel._storage.files import Files
from tests.storage.background import Background
from tests.storage.channels import opened, read_all
from tests.storage.compressing import compress_all
from tests.storage.dying import Counts, DyingFiles, die_in_child


def _fill(path: Path) -> None:
    with opened(path) as store:
        for number in range(40):
            store.log.append([b"%d " % number + b"text " * 60])
        store.flusher.flush()


def _compress(path: Path, files: Files) -> None:
    with opened(path, files=files) as store:
        compress_all(store)


def die_at_every_step(directory: Path) -> int:
    """Kill who compresses at each of its steps in turn; return how many there were."""
    background = Background.install(pytest.MonkeyPatch())
    last = 0
    while True:
        last += 1
        path, counts = directory / f"{last}", Counts()
        _fill(path)
        background.forget()
        with opened(path) as store:
            before = read_all(store)
        files = DyingFiles(last, counts)
        finished = die_in_child(lambda: _compress(path, files))  # noqa: B023
        with opened(path) as store:
            assert read_all(store) == before
            compress_all(store)
            assert read_all(store) == before
            count = len(store.segments.begins)
        names = [file.name for file in (path / "segments").iterdir()]
        assert sum(name.endswith(".z") for name in names) == count - 1, names
        assert sum(name.endswith(".seg") for name in names if name[0] == "0") == 1, names
        assert not [name for name in names if name.startswith("new-")], names
        background.forget()
        shutil.rmtree(path)
        if finished:
            return last


def main() -> None:
    """Run it in memory where that is possible: a process crash has nothing to do with the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        sys.stdout.write(f"{die_at_every_step(Path(directory))}\n")


if __name__ == "__main__":
    main()
