"""A sender that drops the oldest messages is killed with SIGKILL, at every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.storage.deaths import WHICH

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize(("durability", "who"), [("os", "watched"), ("os", "afterwards"), ("fsync", "watched")])
def test_a_sender_that_drops_may_die_at_every_step(durability: str, who: str, which: str) -> None:
    """After a dropping sender dies at any step the rest has no gap, and no producer forgets its position."""
    if PURE and who == "watched":
        pytest.skip("the pure implementation has a channel for itself")
    command = [sys.executable, "-m", "tests.maintenance.dying_dropper", durability, who, which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stderr}"
    assert int(done.stdout) > (90 if which == "each" else 50)
