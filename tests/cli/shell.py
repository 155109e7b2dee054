"""Commands as tests run them: in this process, which is fast, or in a separate one, which is real."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner, Result

from filechannel import ChannelOptions, blocking
from filechannel.cli.app import app
from tests.processes.workers import Link

TIMEOUT = 60.0
STARTED: list[subprocess.Popen[bytes]] = []
"""The processes of the test that runs."""
SMALL = ChannelOptions(segment_size=4096)


class Order(msgspec.Struct):
    """What most of the channels here carry."""

    id: int
    sku: str
    qty: int = 1


def fill(path: Path, count: int, options: ChannelOptions = SMALL) -> Path:
    """Send orders, numbered from 0, in batches of ten, and return the path."""
    with blocking.open_channel(path, Order, options=options) as channel, channel.sender() as sender:
        for start in range(0, count, 10):
            sender.send_many([Order(number, "pen") for number in range(start, min(start + 10, count))])
    return path


def orders(path: Path) -> list[Order]:
    """Return everything that a channel of orders has."""
    with blocking.open_channel(path, Order, create=False) as channel, channel.replay() as receiver:
        return list(receiver)


def invoke(*arguments: object) -> Result:
    """Give a command in this process, whatever comes of it."""
    return CliRunner().invoke(app, [str(each) for each in arguments], prog_name="filechannel")


def run(*arguments: object, code: int = 0, **more: Any) -> Result:
    """Give a command in this process, and see its exit code."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], prog_name="filechannel", **more)
    assert result.exit_code == code, f"{result.exit_code}: {result.stdout}{result.stderr}{result.exception!r}"
    return result


def report(*arguments: object, code: int = 0) -> Any:
    """Give a command that reports in JSON, and return what it says."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


def error(*arguments: object, code: int = 1) -> str:
    """Give a command that fails, and return what it says about that: one line, in which nothing is traced back."""
    result = run(*arguments, code=code)
    assert "Traceback" not in result.stderr
    return result.stderr.rstrip("\n").removeprefix("filechannel: ")


def start(*arguments: object, environment: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[bytes]:
    """Give a command to a process of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    command = [sys.executable, "-m", "filechannel", *map(str, arguments)]
    process = subprocess.Popen(command, env=os.environ | (environment or {}), **pipes)
    STARTED.append(process)
    return process


def finish(process: subprocess.Popen[bytes], given: bytes | None = None) -> tuple[int, str, str]:
    """Wait for the end of a command, and return exit code, stdout and stderr; nothing in them is traced back."""
    out, err = process.communicate(given, timeout=TIMEOUT)
    assert b"Traceback" not in err, err.decode()
    return process.returncode, (out or b"").decode(), (err or b"").decode()


def real(*arguments: object, given: bytes | None = None, **more: Any) -> tuple[int, str, str]:
    """Give a command to a process of its own, and wait for its end."""
    return finish(start(*arguments, **more), given)


def in_a_terminal(*arguments: object, width: int = 80, environment: dict[str, str] | None = None) -> str:
    """Run a command that ends without input in a process with a terminal, and return its output without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {"TERM": "xterm-256color"} | (environment or {})
    start(*arguments, environment=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # this is how Linux reports that no process has the terminal any more
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Press Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return finish(process)


def run_as(_: Link, user: int, arguments: Sequence[object], rehearsal: Sequence[object]) -> tuple[int, str]:
    """Give a command as another user; return exit code and stderr. For a child.

    Another one is given before that, so that all modules are there by then: another user may not be able to read them.
    """
    runner = CliRunner()
    runner.invoke(app, [str(each) for each in rehearsal])
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    result = runner.invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.stderr
