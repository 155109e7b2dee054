"""Waiting until a thread sleeps on a word, which the kernel shows in `/proc`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

TIMEOUT = 60  # seconds; no test takes as long


def wait_until_asleep(thread: int, is_word: Callable[[int], bool]) -> None:
    """Wait until a thread, given by its native id, is in a system call whose first argument is the address of a word.

    The argument of a thread that runs is 0.
    """
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until and not is_word(_first_argument(thread)):
        time.sleep(0)


def _first_argument(thread: int) -> int:
    _, *arguments = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    return int(arguments[0], 16) if arguments else 0
