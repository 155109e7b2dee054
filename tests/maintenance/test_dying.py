"""A process that maintains a channel is killed with SIGKILL, at every step."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from filechannel._format import PURE

ROOT = Path(__file__).parents[2]


SOME = [
    ("busy", "os", "watched", "kinds"),
    ("busy", "fsync", "afterwards", "kinds"),
    ("idle", "os", "afterwards", "kinds"),
    ("idle", "fsync", "watched", "kinds"),
]
"""Every two of these meet."""
EACH = product(["busy", "idle"], ["os", "fsync"], ["afterwards", "watched"], ["each"])


@pytest.mark.parametrize(
    ("mode", "durability", "who", "which"), [*SOME, *(pytest.param(*each, marks=pytest.mark.soak) for each in EACH)]
)
def test_maintenance_may_die_at_every_step(mode: str, durability: str, who: str, which: str) -> None:
    """If a process dies at any step of maintenance no unconsumed message is lost, and the next one finishes it."""
    if PURE and who == "watched":
        pytest.skip("the pure implementation has a channel for itself")
    command = [sys.executable, "-m", "tests.maintenance.dying", mode, durability, who, which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stderr}"
    assert int(done.stdout) > (60 if which == "each" else 40)
