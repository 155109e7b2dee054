"""Descriptors that a forked child does not keep."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Two descriptors."""
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        if is_open(descriptor):
            os.close(descriptor)


_before: dict[int, tuple[int, int] | None] = {}
"""Which file each descriptor was of, before the fork: code that starts over in a child may open others instead."""


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_open(descriptor: int) -> bool:
    """Return whether this process has a descriptor, of the file that it was of before the fork."""
    file = _file_of(descriptor)
    return file is not None and _before.get(descriptor, file) == file


def in_child(look: Callable[[], bool]) -> bool:
    """Fork, and return what the child sees."""
    _before.clear()
    _before.update({descriptor: _file_of(descriptor) for descriptor in map(int, os.listdir("/proc/self/fd"))})
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = int(look())
        finally:
            os._exit(code)
    _before.clear()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return bool(code)


def test_a_child_does_not_keep_what_it_shall_close(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """A forked child closes the registered descriptor, and the parent and other descriptors keep theirs."""
    read, write = pipe
    number = impl.close_in_child(read)
    for _ in range(2):
        assert in_child(lambda: not is_open(read) and is_open(write))
        assert is_open(read)
    assert impl.keep_in_child(number)


def test_a_withdrawn_descriptor_is_kept(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """A descriptor that is withdrawn stays open in children, and can be withdrawn once."""
    read, write = pipe
    numbers = [impl.close_in_child(descriptor) for descriptor in pipe]
    assert impl.keep_in_child(numbers[0]) is True
    assert impl.keep_in_child(numbers[0]) is False
    assert in_child(lambda: is_open(read) and not is_open(write))
    assert impl.keep_in_child(numbers[1]) is True


def test_a_number_is_never_used_twice(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """A handle is never reused, so that a closed one cannot close the descriptor that got its number."""
    first = impl.close_in_child(pipe[0])
    assert impl.keep_in_child(first)
    second = impl.close_in_child(pipe[0])
    assert second != first
    assert impl.keep_in_child(first) is False
    assert impl.keep_in_child(second) is True


def test_a_child_starts_with_nothing_to_close(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """A forked child starts without registered descriptors, and keeps what it opens under the same numbers."""
    number = impl.close_in_child(pipe[0])

    def look() -> bool:
        again = os.dup2(pipe[1], pipe[0])
        return not impl.keep_in_child(number) and in_child(lambda: is_open(again))

    assert in_child(look)
    assert impl.keep_in_child(number)


def test_a_child_can_have_something_closed_in_its_children(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """A forked child can register descriptors for its own children."""

    def look() -> bool:
        number = impl.close_in_child(pipe[0])
        gone = in_child(lambda: not is_open(pipe[0]))
        return gone and is_open(pipe[0]) and bool(impl.keep_in_child(number))

    assert in_child(look)


def test_many_descriptors(impl: SimpleNamespace) -> None:
    """Of many descriptors some are withdrawn in any order, and a child closes the rest."""
    descriptors = [os.dup(0) for _ in range(100)]
    numbers = [impl.close_in_child(descriptor) for descriptor in descriptors]
    for number in numbers[::3]:
        assert impl.keep_in_child(number)
    kept = set(descriptors[::3])
    assert in_child(lambda: all(is_open(descriptor) is (descriptor in kept) for descriptor in descriptors))
    assert [impl.keep_in_child(number) for number in numbers] == [index % 3 != 0 for index in range(100)]
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_descriptor_that_is_not_open_does_no_harm(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """A registered descriptor that is closed already does not keep a child from closing the others."""
    numbers = [impl.close_in_child(1 << 20), impl.close_in_child(pipe[0])]
    assert in_child(lambda: not is_open(pipe[0]))
    assert [impl.keep_in_child(number) for number in numbers] == [True, True]


@pytest.mark.parametrize("wrong", [-1, 1 << 31, 1 << 64, -(1 << 70)])
def test_a_descriptor_is_a_small_number(impl: SimpleNamespace, wrong: int) -> None:
    """A number that is not a small descriptor is refused, and nothing is registered."""
    with pytest.raises(OverflowError, match="value does not fit the word"):
        impl.close_in_child(wrong)
    with pytest.raises(TypeError):
        impl.close_in_child("1")
    with pytest.raises(TypeError):
        impl.keep_in_child(None)
    assert impl.keep_in_child(0) is False
    assert impl.keep_in_child((1 << 64) - 1) is False


def test_forking_while_threads_start_and_end(impl: SimpleNamespace, pipe: tuple[int, int]) -> None:
    """Forking while threads start and end leaves no child hanging, and each closes the registered descriptors."""
    number = impl.close_in_child(pipe[0])
    enough = threading.Event()

    def start_and_end() -> None:
        while not enough.is_set():
            assert impl.keep_in_child(impl.close_in_child(1 << 20))

    threads = [threading.Thread(target=start_and_end) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            assert in_child(lambda: not is_open(pipe[0]) and impl.close_in_child(1 << 20) > 0)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert impl.keep_in_child(number)


def test_a_fork_that_python_does_not_know_of_closes_too(impl: SimpleNamespace) -> None:
    """A fork by the C library, which Python does not notice, closes the descriptors in the native core too."""
    if impl.name == "pure":
        pytest.skip("the pure implementation hears only of os.fork")
    program = """
import ctypes, os, sys
from filechannel._format import close_in_child
libc = ctypes.CDLL(None)
descriptor = os.dup(0)
close_in_child(descriptor)
child = libc.fork()
if child == 0:
    libc._exit(3 if libc.fcntl(descriptor, 1) == -1 else 4)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os.fstat(descriptor)
sys.exit(code)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 3
