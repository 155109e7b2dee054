"""Worker processes: a test starts them, exchanges messages with them, stops and kills them.

They are forked from a server that has imported everything and has no threads, so that starting one takes little time.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from tests.backends import BACKENDS

TIMEOUT = 90.0
"""The longest that any wait may take, on the slowest machine."""
PRELOAD = ["trio", "uvloop", "anyio._backends._asyncio", "pytest", "tests.processes.tasks", "tests.storage.faults"]
"""What the server imports; tests/conftest.py sets it before any test starts it."""


def until(condition: Callable[[], object], what: str = "", timeout: float = TIMEOUT) -> float:
    """Poll until a condition is true, and return how long that took; fail if it never is."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + timeout, f"not after {timeout} s: {what or inspect.getsource(condition)}"
        time.sleep(0.001)
    return time.monotonic() - started


class Link:
    """A child's side of the connection to the test."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: object) -> None:
        """Send a message to the test."""
        self._connection.send(("said", message))

    def receive(self) -> Any:
        """Wait for a message of the test."""
        return self._connection.recv()

    async def receive_async(self) -> Any:
        """The same in an event loop."""
        return await run_sync(self.receive)

    def meet(self) -> Any:
        """Report that everything is prepared, and wait for the test."""
        self.send("ready")
        return self.receive()

    @property
    def has_message(self) -> bool:
        """Whether the test has said something."""
        return self._connection.poll()


def _live(connection: Connection, task: Callable[..., object], backend: str, arguments: tuple[object, ...]) -> None:
    """Do a task in a child, and say how it ended."""
    try:
        if inspect.iscoroutinefunction(task):
            name, options = BACKENDS[backend]
            result = anyio.run(partial(task, Link(connection), *arguments), backend=name, backend_options=options)
        else:
            result = task(Link(connection), *arguments)
        connection.send(("ended", result))
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
        raise


class Child:
    """A process that does one task."""

    def __init__(
        self, task: Callable[..., object], arguments: tuple[object, ...], backend: str, method: str = "forkserver"
    ) -> None:
        context = multiprocessing.get_context(method)
        self._connection, theirs = context.Pipe()
        self.task = task.__name__
        self._process = context.Process(target=_live, args=(theirs, task, backend, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: object) -> None:
        """Send a message to the child."""
        self._connection.send(message)

    def receive(self, timeout: float = TIMEOUT) -> Any:
        """Return the child's next message."""
        kind, message = self._receive(timeout)
        assert kind == "said", f"{self.task} {kind}: {message}"
        return message

    def result(self, timeout: float = TIMEOUT) -> Any:
        """Wait until it has ended, and return what its task did."""
        kind, message = self._receive(timeout)
        assert kind == "ended", f"{self.task} {kind}: {message}"
        self._process.join(TIMEOUT)
        return message

    def _receive(self, timeout: float) -> tuple[str, Any]:
        assert self._connection.poll(timeout), f"{self.task} has said nothing for {timeout} s"
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise AssertionError(f"{self.task} is dead") from None

    @property
    def has_message(self) -> bool:
        """Whether there is a message to receive, if only its end."""
        return self._connection.poll()

    def meet(self) -> None:
        """Wait until it is prepared."""
        assert self.receive() == "ready"

    def kill(self) -> None:
        """Kill it, whatever it is doing, and wait until the kernel has reaped it."""
        self._signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait for its death, and return what it died of."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"{self.task} is still alive"
        return code

    def stop(self) -> None:
        """Stop it with SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.until_stopped()

    def until_stopped(self) -> None:
        """Wait until it is stopped."""
        until(lambda: self.is_stopped, f"{self.task} is stopped")

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped."""
        return self._process.is_alive() and _state(self.pid) in ("t", "T")

    def resume(self) -> None:
        """Resume it with SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process.is_alive():
            with suppress(ProcessLookupError):  # it has ended in this moment, and the server has waited for it
                os.kill(self.pid, number)

    def close(self) -> None:
        """Let nothing of it remain."""
        self.kill()
        self._connection.close()
        self._process.close()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


class Workers:
    """The worker processes of one test."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(
        self, task: Callable[..., object], *arguments: object, backend: str = "asyncio", method: str = "forkserver"
    ) -> Child:
        """Let a new process do a task."""
        child = Child(task, arguments, backend, method)
        self._children.append(child)
        return child

    def dismiss(self, child: Child) -> None:
        """Let nothing of a child remain."""
        self._children.remove(child)
        child.close()

    def close(self) -> None:
        """Kill every child and release what it used."""
        while self._children:
            self._children.pop().close()
