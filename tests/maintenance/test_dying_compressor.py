"""A process that compresses is killed with SIGKILL at every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.deaths import WHICH

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", WHICH)
def test_a_compressing_process_may_die_at_every_step(which: str) -> None:
    """If a process dies at any call of a compression every message is stored, and the next one finishes it."""
    command = [sys.executable, "-m", "tests.maintenance.dying_compressor", which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (100 if which == "each" else 30)
