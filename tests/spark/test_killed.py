"""A driver that is killed, Spark and all, and started again: no row is lost, and none is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.spark.conftest import ROOT, java
from tests.spark.messages import fill, orders, received

MESSAGES = 2000


@pytest.mark.soak
@pytest.mark.skipif(java() is None, reason="no Java 17 or newer: install one or set JAVA_HOME")
def test_a_killed_query_resumes_exactly_where_it_was(tmp_path: Path, rng: Random) -> None:
    """After each of three kills at any step a query continues where it was."""
    source, target = tmp_path / "source", tmp_path / "target"
    fill(source, orders(MESSAGES))
    fill(target, [])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    command = [sys.executable, "-m", "tests.spark.copying", str(tmp_path)]
    for kills in range(4):
        there = len(received(target))
        driver = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
        if kills == 3:
            assert driver.wait() == 0
            break
        while driver.poll() is None and len(received(target)) < there + 200:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 0.3))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert sorted(order.id for order in received(target)) == list(range(MESSAGES))
