"""Whoever compresses is killed with SIGKILL at every step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_who_compresses_may_die_at_every_step() -> None:
    """Before each call to the operating system: every message is there, and the next one finishes the work."""
    command = [sys.executable, "-m", "tests.maintenance.dying_compressor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40
