"""Processes killed with SIGKILL: at every step, and at any moment."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.storage.deaths import WHICH

ROOT = Path(__file__).parents[2]


def _run(*arguments: str, timeout: float = 100) -> int:
    command = [sys.executable, "-m", "tests.storage.dying", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{arguments}:\n{done.stderr}"
    return int(done.stdout)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_writer_may_die_at_every_step(durability: str, which: str) -> None:
    """If a writer dies before any call no accepted message is lost or duplicated, and the next writer continues."""
    assert _run("steps", durability, which, timeout=1800) > (200 if which == "each" else 60)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_writer_may_die_at_every_step_after_a_failed_flush(durability: str, which: str) -> None:
    """If a writer dies before any call after a failed flush, the next one resumes beyond every used offset."""
    assert _run("failure", durability, which, timeout=1800) > 40


@pytest.mark.parametrize("seed", [1, 2])
def test_a_busy_process_may_die_at_any_moment(seed: int) -> None:
    """If a busy process is killed at any moment messages, batches and cursors are as it announced them."""
    times = 25 if PURE else 60
    assert _run("any-moment", str(seed), str(times)) >= times


@pytest.mark.soak
def test_a_busy_process_may_die_thousands_of_times() -> None:
    """After ten thousand kills with a new seed messages, batches and cursors are as the processes announced them."""
    seed = secrets.randbits(32)
    assert _run("any-moment", str(seed), "10000", timeout=3600) >= 10000, seed
