"""A channel that an attacker wrote to, and every command: each ends soon and touches nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.cli.hostile import KINDS

ROOT = Path(__file__).parents[2]


def _run(choice: str) -> None:
    command = [sys.executable, "-m", "tests.cli.hostile", choice]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stdout


def test_any_part_of_a_channel_may_be_something_else(rng: Random) -> None:
    """Every command ends and changes nothing outside, if a part of a channel is a link, FIFO, device, directory or huge
    file.
    """
    _run(str(rng.randrange(1 << 32)))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_a_channel_may_be_something_else(kind: str) -> None:
    """Every command ends and changes nothing outside, for every part of a channel and every kind of replacement."""
    _run(kind)
