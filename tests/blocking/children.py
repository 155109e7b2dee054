"""Other processes that the tests talk to."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEAD = """
import os, signal, sys, threading, time
from filechannel import *
from filechannel.blocking import open_channel
from filechannel._format import PURE

path = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background

def say(text):
    os.write(1, text.encode() + b"\\n")

def until(condition):
    while not condition():
        time.sleep(0.0005)

def waits_for_the_writer_word():
    "Return whether the main thread sleeps for it."
    return sys._current_frames()[threading.main_thread().ident].f_code.co_name == "_sleep"
"""

HOLDER = """
with open_channel(path, int) as channel:
    with channel._store.log.writing():
        say("held")
        sys.stdin.readline()
    say("released")
    sys.stdin.readline()
"""
"""Holds the writer lock until the test resumes it."""


class Child:
    """A process that runs a program and talks through its standard streams."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def expect(self, line: str) -> None:
        """Wait until it says this."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        if said != line + "\n":
            self.process.kill()
            raise AssertionError(f"{said!r} instead of {line!r}: {self.process.communicate()[1]}")

    def resume(self) -> None:
        """Let the child continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until it has ended well."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors


@contextmanager
def running(program: str, path: Path, **environment: str) -> Iterator[Child]:
    """Run a program with a channel's path in another process, which has exited when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + textwrap.dedent(program), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.communicate()
