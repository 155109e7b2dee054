"""Processes that consume, transform and produce in steps, killed with SIGKILL: nothing is lost and nothing doubled."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.storage.deaths import WHICH

ROOT = Path(__file__).parents[2]
DURABILITIES = pytest.mark.parametrize("durability", ["os", "fsync"])


def _run(*arguments: str, timeout: float = 100) -> int:
    command = [sys.executable, "-m", "tests.channel.steps", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{arguments}:\n{done.stderr}"
    return int(done.stdout)


@pytest.mark.parametrize("which", WHICH)
@DURABILITIES
def test_a_chain_may_die_at_every_call(durability: str, which: str) -> None:
    """After a kill before any system call in either stage every input has its outputs once."""
    assert _run("every-call", durability, which, timeout=1800) > (100 if which == "each" else 30)


@DURABILITIES
def test_a_step_may_die_at_every_line(durability: str) -> None:
    """After a kill at every few lines of a step, also of the first of a process, every input has its outputs once."""
    assert _run("every-line", durability, "1", "41" if PURE else "13", timeout=1800) > 20


@pytest.mark.parametrize("seed", [1, 2])
def test_a_chain_may_die_at_any_moment(seed: int) -> None:
    """After a kill at full speed the outputs are those of a prefix of the inputs, and finally of all of them."""
    times = 24 if PURE else 80
    assert _run("any-moment", str(seed), str(times)) >= times


@pytest.mark.soak
@DURABILITIES
def test_a_step_may_die_at_each_and_every_line(durability: str) -> None:
    """After a kill at each line of a step every input has its outputs once."""
    assert _run("every-line", durability, "1", "1", timeout=1800) > 500


@pytest.mark.soak
def test_a_chain_may_die_thousands_of_times() -> None:
    """After each of five thousand kills at full speed, with a new seed, the outputs are those of a prefix of the
    inputs.
    """
    seed = secrets.randbits(32)
    assert _run("any-moment", str(seed), "5000", timeout=3600) >= 5000, seed
