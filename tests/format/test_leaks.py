"""The C core counts its references right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif("FILECHANNEL_SANITIZED" in os.environ, reason="the sanitizers keep freed memory for a while")
@pytest.mark.usefixtures("both")
def test_nothing_stays_behind_after_many_calls() -> None:
    """Repeated calls that succeed or fail leave neither memory nor references behind."""
    script = [sys.executable, "-m", "tests.format.leaks"]
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
