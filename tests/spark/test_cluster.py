"""Workers in separate processes, started by a cluster manager."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT, java


@pytest.mark.timeout(300)
@pytest.mark.skipif(java() is None, reason="no Java 17 or newer: install one or set JAVA_HOME")
def test_a_cluster_on_one_host(tmp_path: Path) -> None:
    """Batch, stream, sink and archive where driver and executors share nothing but the disk, without `register`.

    What only the driver can import is an error that says so.
    """
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.cluster", str(tmp_path)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
