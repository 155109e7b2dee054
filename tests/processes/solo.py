"""A writer as a program of its own, for tests that start it where other processes cannot reach it but by a pipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from tests.processes.tasks import send_for_ever


class Alone:
    """Replaces the link to a test: reports that it is ready, and never gets a message."""

    has_message = False

    def send(self, message: object) -> None:
        """Print a message."""
        sys.stdout.write(f"{message} {os.getpid()}\n")
        sys.stdout.flush()


def main(path: str, accepted: str, writer: str, seed: str) -> None:
    """Send until killed."""
    anyio.run(send_for_ever, Alone(), Path(path), Path(accepted), int(writer), int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
