"""The tests of waiting, repeated with polling forced, as where no process can be woken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
LEFT_OUT = ("-k", "not a_cancelled_waiter_consumes_no_wakeup")  # it checks before a waiter can have polled


@pytest.mark.parametrize("file", ["blocking/test_receiver.py", "channel/test_wakeup.py", "channel/test_close.py"])
def test_waiting_with_polling(file: str) -> None:
    """With polling, without futex and FIFOs, everything that waits still works, only later."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS / file), *LEFT_OUT],
        env=os.environ | {"FILECHANNEL_POLL": "1"},
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
