"""A flipped bit, a file cut off, a block overwritten, anywhere: a typed error or the rest readable, never worse."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from filechannel._format import PURE

ROOT = Path(__file__).parents[2]
SEEDS = 25 if PURE else 40


def _run(first: int, count: int, timeout: float = 100) -> int:
    command = [sys.executable, "-m", "tests.storage.damaging", str(first), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("group", range(2))
def test_damage_is_named_or_skipped(group: int) -> None:
    """Random damage causes no signal, hang, huge allocation or wrong message, and the readable rest is kept."""
    assert _run(group * SEEDS, SEEDS) == 3 * SEEDS


@pytest.mark.soak
def test_damage_is_named_or_skipped_for_long() -> None:
    """Random damage with new seeds causes no signal, hang, huge allocation or wrong message."""
    count = int(os.environ.get("FILECHANNEL_ROUNDS", "5000"))
    assert _run(secrets.randbits(40), count, timeout=7200) == 3 * count
