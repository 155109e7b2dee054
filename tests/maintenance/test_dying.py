"""Whoever maintains a channel is killed with SIGKILL, at every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from filechannel._format import PURE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("who", ["afterwards", "watched"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("mode", ["busy", "idle"])
def test_maintenance_may_die_at_every_step(mode: str, durability: str, who: str) -> None:
    """Nothing unconsumed is lost, nobody is held up, and the next one finishes what it began."""
    if PURE and who == "watched":
        pytest.skip("the pure twin shares with nobody")
    command = [sys.executable, "-m", "tests.maintenance.dying", mode, durability, who]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stderr}"
    assert int(done.stdout) > 50
