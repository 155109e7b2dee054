"""Descriptors that a forked child does not keep: the cases of `forking_cases.py`, in a separate process.

What other tests leave behind in this one (channels, event loops, threads) starts over in a child too, and may open
files under the very numbers that are checked.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_child_keeps_what_it_shall_and_nothing_else() -> None:
    """Every case of fork descriptors holds with every implementation."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "tests/format/forking_cases.py"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
