"""`filechannel bench`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.shell import error, report, run


def test_a_few_figures(memory: Path) -> None:
    """`bench` prints a line for each thing it measures, and leaves nothing behind."""
    found = report("bench", memory, "--seconds", "0.05")
    assert found["directory"] == str(memory)
    assert [each["what"].partition(":")[0] for each in found["figures"]] == [
        "asyncio.Queue",
        "channel",
        "channel",
        "on disk",
        "on disk",
    ]
    assert all(each["per_second"] > 0 for each in found["figures"])
    assert run("bench", memory, "--seconds", "0.05").stdout.splitlines()[0].split()[0] == "WHAT"
    assert os.listdir(memory) == []


def test_no_directory(memory: Path) -> None:
    """`bench` in a missing directory is wrong usage."""
    assert "is not a directory" in error("bench", memory / "nothing", code=2)
