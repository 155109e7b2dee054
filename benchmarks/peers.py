"""Other ways to send messages between processes. Those from PyPI run in their own environment, made by `make bench`.

Imports only the standard library and, in each role, the peer.
"""

from __future__ import annotations

import multiprocessing
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns as now
from typing import Any

from .child_processes import TIMEOUT, Child, ChildProcesses, answer, orders, play

PYTHON = Path(__file__).parent.parent / ".venvs" / "peers" / "bin" / "python"
PACKAGES = {"pyzmq": "zmq", "faster-fifo": "faster_fifo"}
"""The packages that are installed there, and the module to import."""
_RAW = [f"{number:012}".encode() for number in range(1_000)]


def version_of(package: str) -> str | None:
    """Return the installed version of a peer; None if it is not installed, or cannot be imported."""
    code = f"import {PACKAGES[package]}, importlib.metadata as m; print(m.version({package!r}))"
    try:
        found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def run_pair(child: Child, count: int) -> float:
    """Let a process and its child pass messages. Return the nanoseconds per message."""
    child.send(count)
    began, ended = child.receive()
    return (ended - began) / count


# A process passes its multiprocessing.Queue or faster-fifo queue to the child that it starts.


def multiprocessing_raw() -> None:
    _pair(multiprocessing.get_context("fork").Queue(), _RAW)


def multiprocessing_struct() -> None:
    from .messages import ORDERS

    _pair(multiprocessing.get_context("fork").Queue(), ORDERS)


def faster_fifo() -> None:
    import faster_fifo

    _pair(faster_fifo.Queue(), _RAW)


def _pair(queue: Any, items: list[Any]) -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    writer = context.Process(target=_put, args=(queue, here, there, items), daemon=True)
    writer.start()
    there.close()
    for (count,) in orders():
        here.send(count)
        for _ in range(count):
            queue.get()
        ended = now()
        answer(here.recv(), ended)
    here.close()
    writer.join(TIMEOUT)


def _put(queue: Any, here: Connection[int, int], there: Connection[int, int], items: list[Any]) -> None:
    here.close()  # so that the end of the parent is noticed
    if cancel := getattr(queue, "cancel_join_thread", None):
        cancel()  # if no process reads any more, there is nothing to wait for
    for count in _until_closed(there):
        began = now()
        for _ in range(count // len(items)):
            for item in items:
                queue.put(item)
        there.send(began)


def _until_closed(connection: Connection[int, int]) -> Iterator[int]:
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


# pyzmq: PUSH and PULL over ipc.


class ZmqPair:
    """A process that pushes and one that pulls."""

    def __init__(self, processes: ChildProcesses, directory: Path) -> None:
        self._reader = processes.start(__name__, "zmq_pull", directory / "zmq", python=PYTHON)
        self._writer = processes.start(__name__, "zmq_push", directory / "zmq", python=PYTHON)

    def run(self, count: int) -> float:
        self._reader.send(count)
        self._reader.receive()
        self._writer.send(count)
        (began,), (ended,) = self._writer.receive(), self._reader.receive()
        return (ended - began) / count


def zmq_pull(path: str) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.setsockopt(zmq.RCVTIMEO, int(TIMEOUT * 1000))
        socket.bind(f"ipc://{path}")
        for (count,) in orders():
            answer()
            for _ in range(count):
                socket.recv()
            answer(now())


def zmq_push(path: str) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDTIMEO, int(TIMEOUT * 1000))
        socket.connect(f"ipc://{path}")
        for (count,) in orders():
            began = now()
            for _ in range(count // len(_RAW)):
                for message in _RAW:
                    socket.send(message)
            answer(began)


ROLES: dict[str, Callable[..., None]] = {
    "multiprocessing_raw": multiprocessing_raw,
    "multiprocessing_struct": multiprocessing_struct,
    "faster_fifo": faster_fifo,
    "zmq_pull": zmq_pull,
    "zmq_push": zmq_push,
}

if __name__ == "__main__":
    play(ROLES)
