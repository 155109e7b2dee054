"""Run a page in a process and a directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from .pages import ROOT


def run(page: Path, directory: Path, *options: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """Run a page from top to bottom; whatever it left running is ended with it."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    process = subprocess.Popen(
        [sys.executable, *options, "-m", "tests.docs", str(page)],
        cwd=directory,
        env=os.environ | {"PATH": tools, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=timeout)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, errors)
