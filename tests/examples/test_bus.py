"""The buses of `examples/`, in as many processes as there would be terminals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.processes.workers import TIMEOUT

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

needs_native = pytest.mark.skipif(PURE, reason="the pure implementation lets one process at a time have a channel")


class Bus:
    """One of the examples, on a directory."""

    def __init__(self, example: str, directory: Path) -> None:
        self.directory = directory
        self.command = [sys.executable, str(EXAMPLES / example), "--bus", str(directory)]

    def run(self, *words: str, typed: str = "") -> str:
        """Return what a command prints, when some text is typed."""
        command = [*self.command, *words]
        done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert not done.returncode, done.stderr
        assert not done.stderr
        return done.stdout

    def fail(self, *words: str) -> str:
        """Return what a command says that fails."""
        done = subprocess.run([*self.command, *words], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    @contextmanager
    def terminal(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Have a command running, and end it with Ctrl-C, which it takes quietly."""
        command = [*self.command, *words]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
                process.send_signal(signal.SIGINT)
                if not _ends(process):
                    # asyncio sets no wakeup descriptor for Ctrl-C: if it comes just before the event loop sleeps, it is
                    # handled when the loop wakes up, at the latest because of the next signal.
                    process.send_signal(signal.SIGINT)
                printed, said = process.communicate(timeout=TIMEOUT)
                assert (process.returncode, printed, said) == (0, "", "")
            finally:
                process.kill()


def _ends(process: subprocess.Popen[str]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    return process.returncode is not None


def read(terminal: subprocess.Popen[str], count: int) -> list[str]:
    """Wait for so many lines that a terminal shows."""
    assert terminal.stdout is not None
    return [terminal.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.fixture
def raw(tmp_path: Path) -> Bus:
    """The bus of bytes."""
    return Bus("bus_raw.py", tmp_path / "bus")


@pytest.fixture
def typed(tmp_path: Path) -> Bus:
    """The bus of events."""
    return Bus("bus_typed.py", tmp_path / "bus")


@needs_native
def test_a_line_is_seen_in_every_terminal(raw: Bus) -> None:
    """A line that one terminal types is shown in every terminal, also in one that is opened later."""
    with raw.terminal("receive", "ann") as ann, raw.terminal("receive", "ben") as ben:
        with raw.terminal("send") as sender:
            assert sender.stdin is not None
            for line in ("hello", "", "ünïcode"):
                sender.stdin.write(f"{line}\n")
                sender.stdin.flush()
                assert read(ann, 1) == read(ben, 1) == [line]
    assert raw.run("replay") == "hello\n\nünïcode\n"


@needs_native
def test_a_name_has_one_terminal(raw: Bus) -> None:
    """A second terminal under a name that is in use gets an error of one line."""
    raw.run("send", typed="here\n")
    with raw.terminal("receive", "ann") as ann:
        assert read(ann, 1) == ["here"]
        assert raw.fail("receive", "ann").count("\n") == 1


def test_a_name_resumes_where_it_stopped(raw: Bus) -> None:
    """A name that returns gets what was sent since then, once, and another name gets everything."""
    raw.run("send", typed="one\ntwo\n")
    with raw.terminal("receive", "ann") as ann:
        assert read(ann, 2) == ["one", "two"]
    raw.run("send", typed="three\n")
    with raw.terminal("receive", "ann") as ann:
        assert read(ann, 1) == ["three"]
    with raw.terminal("receive", "late") as late:
        assert read(late, 3) == ["one", "two", "three"]


def test_bytes_are_passed_through_unchanged(raw: Bus) -> None:
    """The bus passes any bytes through unchanged."""
    anything = bytes(range(256)) + b"\n"
    subprocess.run([*raw.command, "send"], input=anything, timeout=TIMEOUT, check=True)
    assert subprocess.run([*raw.command, "replay"], capture_output=True, timeout=TIMEOUT, check=True).stdout == anything


@needs_native
def test_events_arrive_as_what_they_were(typed: Bus) -> None:
    """Each terminal gets every event of either type."""
    with typed.terminal("receive", "stock") as stock, typed.terminal("receive", "billing") as billing:
        typed.run("place", "1", "pen", "3")
        typed.run("place", "2", "ink")
        typed.run("cancel", "1")
        shown = ["order 1: 3 x pen", "order 2: 1 x ink", "order 1 is cancelled"]
        assert read(stock, 3) == read(billing, 3) == shown


def test_a_late_reader_replays_the_events(typed: Bus) -> None:
    """A reader without a name replays the events, and changes nothing for readers with names."""
    typed.run("place", "1", "pen")
    with typed.terminal("receive", "stock") as stock:
        assert read(stock, 1) == ["order 1: 1 x pen"]
    typed.run("cancel", "1")
    for _ in range(2):
        assert typed.run("replay") == "order 1: 1 x pen\norder 1 is cancelled\n"
    with typed.terminal("receive", "stock") as stock:
        assert read(stock, 1) == ["order 1 is cancelled"]


def test_another_type_is_refused(typed: Bus) -> None:
    """A bus of events refuses to be opened as a bus of bytes, with an error of one line."""
    typed.run("place", "1", "pen")
    said = Bus("bus_raw.py", typed.directory).fail("send")
    assert "bytes" in said
    assert said.count("\n") == 1


@needs_native
def test_what_was_sent_survives_a_kill(raw: Bus) -> None:
    """A killed sender loses nothing that a receiver has seen."""
    with raw.terminal("receive", "ann") as ann:
        command = [*raw.command, "send"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as sender:
            assert sender.stdin is not None
            sender.stdin.write("last words\n")
            sender.stdin.flush()
            assert read(ann, 1) == ["last words"]
            sender.kill()
    assert raw.run("replay") == "last words\n"
