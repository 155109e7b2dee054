"""What happens when the process forks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from threading import Lock

import pytest

import filechannel
from filechannel._runtime import fork_registry
from filechannel._runtime.fork_registry import Phase, reset_in_child
from tests.blocking.threads import all_at_once

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def resets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered in a test is forgotten afterwards."""
    monkeypatch.setattr(fork_registry, "_resets", {phase: list(fork_registry._resets[phase]) for phase in Phase})


def _in_child(read: int, write: int) -> bytes:
    """Return what a forked child, and a child of that, write to a pipe while they are forked."""
    child = os.fork()
    if not child:
        try:
            grandchild = os.fork()
            if grandchild:
                os.waitpid(grandchild, 0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 1000)


@pytest.mark.usefixtures("resets")
def test_functions_are_called_in_the_order_of_their_phases() -> None:
    """Fork functions are called in the order of their phases, however they were registered, also in grandchildren."""
    read, write = os.pipe()
    for phase in (Phase.CHANNELS, Phase.DESCRIPTORS, Phase.STORES, Phase.PRIMITIVES, Phase.THREADS):
        reset_in_child(phase, lambda phase=phase: os.write(write, b"%d" % phase))  # type: ignore[misc]
    assert _in_child(read, write) == b"12345" * 2
    os.close(read)
    os.close(write)


def test_an_error_keeps_no_other_function_from_being_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error every other fork function is called, and the first error is reported at the end."""
    # Only the functions of this test: they are called in this process, which keeps its threads.
    monkeypatch.setattr(fork_registry, "_resets", {phase: [] for phase in Phase})
    read, write = os.pipe()

    def fail() -> None:
        os.write(write, b"x")
        raise ValueError("a mistake of ours")

    for phase in (Phase.PRIMITIVES, Phase.THREADS):
        reset_in_child(phase, fail)
    reset_in_child(Phase.CHANNELS, lambda: os.write(write, b"y"))
    with pytest.raises(ValueError, match="a mistake of ours"):
        fork_registry._reset_all()
    assert os.read(read, 10) == b"xxy"
    os.close(read)
    os.close(write)


def test_a_lock_is_held_while_the_process_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is registered with fork functions is held during the fork, and released in both processes."""
    lock = Lock()
    kept: dict[str, object] = {}
    monkeypatch.setattr(fork_registry.os, "register_at_fork", lambda **functions: kept.update(functions))
    monkeypatch.setattr(fork_registry, "_resets", {phase: [] for phase in Phase})
    fork_registry.hold_while_forking(lock.acquire, lock.release)
    assert kept == {"before": lock.acquire, "after_in_parent": lock.release}
    assert fork_registry._resets[Phase.DESCRIPTORS] == [lock.release]


def test_threads_fork_at_the_same_time() -> None:
    """When several threads fork at the same time each child resets everything and ends."""

    def fork() -> None:
        for _ in range(10):
            child = os.fork()
            if not child:
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    all_at_once(fork, fork, fork)


def test_no_other_module_registers_functions_with_the_interpreter() -> None:
    """No other module calls `os.register_at_fork`, because the order would depend on imports."""
    source = Path(filechannel.__file__).parent
    found = [path.name for path in source.rglob("*.py") if re.search(r"register_at_fork\(", path.read_text())]
    assert found == ["fork_registry.py"]
