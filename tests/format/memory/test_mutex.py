"""Mutexes, their guards, and calls that are ensured, on both implementations."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from filechannel._errors import Busy, StorageError
from filechannel._format import PURE, populate
from filechannel._format.layout import (
    CONTENDED,
    CONTROL_FLUSHES_STEP,
    FLUSHES_STEP,
    FLUSHING_CONTROL,
    FLUSHING_SEGMENTS,
    LOCK_GENERATION_SHIFT,
    LOCK_SLOT_SHIFT,
    PAGE,
)
from filechannel._format.memory import atomics, mutex

TIMEOUT = 60.0
PROCESS = 3 << LOCK_SLOT_SHIFT | 5 << LOCK_GENERATION_SHIFT
AT = 8
_CORES: list[Any] = [mutex] if PURE else [mutex, import_module("filechannel._format._core")]


@pytest.fixture(params=_CORES, ids=lambda core: core.__name__.rsplit(".", 1)[-1])
def core(request: pytest.FixtureRequest) -> Any:
    """One of the implementations."""
    return cast("ModuleType", request.param)


def in_thread(work: Callable[[], object]) -> object:
    """Return what another thread returns or raises."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    return found[0]


def is_free(lock: Any) -> bool:
    """Return whether another thread can lock it."""

    def take() -> bool:
        with lock.held(0):
            return True

    return in_thread(take) is True


class Shared:
    """A mutex with a word, and what its callbacks were asked."""

    def __init__(self, core: Any) -> None:
        self.words = bytearray(64)
        self.lock = core.Mutex()
        self.lock.share(self.words, AT, PROCESS, None)
        self.slept: list[int] = []
        self.is_pure = core is mutex

    @property
    def word(self) -> int:
        """The value of the lock word."""
        return atomics.load_u32(self.words, AT)

    def take(self, _slept: bool) -> int:
        """Acquire the lock if it is free or names no process."""
        seen = self.word
        if seen >> LOCK_SLOT_SHIFT:
            return seen
        atomics.store_u32(self.words, AT, PROCESS)
        if self.is_pure:
            self.lock.took()
        return 0

    def held(self, may_sleep: Callable[[], bool] = lambda: True) -> Any:
        """Hold it."""
        return self.lock.held_shared(self.take, may_sleep, lambda: None, self.sleep)

    def sleep(self, seen: int) -> None:
        """Let the other process free it."""
        self.slept.append(seen)
        atomics.store_u32(self.words, AT, 0)


def test_one_thread_holds_it_as_often_as_it_likes(core: Any) -> None:
    """One thread can hold the mutex repeatedly, and others get `Busy` until the outermost block ends."""
    lock = core.Mutex()
    with lock.held():
        assert lock.owner == threading.get_ident()
        with lock.held(0):
            assert not is_free(lock)
        assert isinstance(in_thread(lambda: lock.held(0)), Busy)
    assert lock.owner == 0
    assert is_free(lock)


@pytest.mark.parametrize(
    "error", [StorageError("no"), KeyboardInterrupt(), LookupError()], ids=lambda e: type(e).__name__
)
def test_an_exception_unlocks_it(core: Any, error: BaseException) -> None:
    """An exception unlocks the mutex, whichever it is, and at any depth."""
    lock = core.Mutex()
    with pytest.raises(type(error)), lock.held(), lock.held():
        raise error
    assert is_free(lock)


def test_a_guard_that_is_dropped_unlocks_it(core: Any) -> None:
    """A guard that is dropped between locking and its block unlocks the mutex."""
    lock = core.Mutex()
    lock.held()
    assert is_free(lock)


def test_a_thread_knows_whether_it_holds_any(core: Any) -> None:
    """A thread knows whether it holds any mutex, also two at once; those of other threads do not count."""
    first, second = core.Mutex(), core.Mutex()
    assert not core.holds_mutex()
    with first.held():
        with second.held(), first.held():
            assert core.holds_mutex()
        assert core.holds_mutex()
        assert in_thread(core.holds_mutex) is False
    assert not core.holds_mutex()


def test_the_word_is_freed_with_the_outermost_guard(core: Any) -> None:
    """The lock word names the process until the outermost guard ends."""
    shared = Shared(core)
    with shared.held():
        with shared.held():
            assert shared.word == PROCESS
        assert shared.word == PROCESS
        assert shared.lock.user == threading.get_ident()
    assert shared.word == shared.lock.user == 0


def test_a_held_lock_is_slept_for_without_the_mutex(core: Any) -> None:
    """A thread waits for a held lock word without the mutex, or gets `Busy` if it may not sleep."""
    shared = Shared(core)
    atomics.store_u32(shared.words, AT, 9 << LOCK_SLOT_SHIFT)
    with pytest.raises(Busy), shared.held(lambda: False):
        raise AssertionError
    assert shared.word == 9 << LOCK_SLOT_SHIFT
    assert is_free(shared.lock)
    with shared.held():
        assert shared.slept == [9 << LOCK_SLOT_SHIFT]
    assert shared.word == 0


@pytest.mark.parametrize("contended", [0, CONTENDED])
def test_a_word_whose_block_was_interrupted_names_no_process(core: Any, contended: int) -> None:
    """After an interrupted block the word names no process and the next holder cleans up; a typed error cleans up
    itself.
    """
    shared = Shared(core)

    def interrupted() -> None:
        with shared.held():
            atomics.store_u32(shared.words, AT, PROCESS | contended)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shared.word == 1 << LOCK_GENERATION_SHIFT
    assert is_free(shared.lock)
    with shared.held():
        assert shared.word == PROCESS
    assert shared.word == 0
    with pytest.raises(StorageError), shared.held():
        raise StorageError("no")
    assert shared.word == 0


def test_a_word_whose_guard_was_dropped_names_no_process(core: Any) -> None:
    """A dropped guard, whose block was not entered or not left, leaves a word that names no process."""
    shared = Shared(core)
    shared.held()
    assert shared.word == 1 << LOCK_GENERATION_SHIFT
    assert is_free(shared.lock)


def test_an_error_while_acquiring_the_lock_unlocks_the_mutex(core: Any) -> None:
    """An error while the lock is being acquired unlocks the mutex, and the word names no process."""
    shared = Shared(core)

    def take(slept: bool) -> int:
        shared.take(slept)
        raise LookupError

    with pytest.raises(LookupError), shared.lock.held_shared(take, lambda: True, lambda: None, shared.sleep):
        raise AssertionError
    assert shared.word == 1 << LOCK_GENERATION_SHIFT
    assert is_free(shared.lock)


def test_an_abandoned_word_is_left_alone(core: Any) -> None:
    """In a forked child an abandoned word, which is the parent's, is unchanged, and the mutex is unlocked."""
    shared = Shared(core)
    with shared.held():
        child = os.fork()
        if not child:
            shared.lock.abandon()
            break_out = 1
            try:
                shared.lock.unlock()
                break_out = 0 if shared.word == PROCESS else 2
            finally:
                os._exit(break_out)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        shared.lock.abandon()
    assert shared.word == PROCESS
    assert is_free(shared.lock)


# A page that cannot be stored to


class CutOff:
    """A mutex whose lock word is in a page that is cut off, as if its file system had shut down."""

    def __init__(self, core: Any, directory: Path, *, counted: bool) -> None:
        path = directory / "control"
        path.write_bytes(bytes(2 * PAGE))
        with path.open("r+b") as file:
            self.pages = mmap.mmap(file.fileno(), 0)
        if not populate(self.pages, 0, 1):
            pytest.skip("this kernel cannot tell")
        self.lock = core.Mutex()
        self.lock.share(self.pages, PAGE, PROCESS, 0 if counted else None)
        assert self.lock.can_store()
        os.truncate(path, PAGE)


@pytest.mark.parametrize("flushes", [CONTROL_FLUSHES_STEP, FLUSHING_CONTROL, CONTROL_FLUSHES_STEP | FLUSHING_SEGMENTS])
def test_a_look_at_the_page_counts_until_its_file_is_flushed(core: Any, tmp_path: Path, flushes: int) -> None:
    """A check that the page can be stored to is repeated after a flush of its file, and while one is running."""
    cut_off = CutOff(core, tmp_path, counted=True)
    atomics.store_u32(cut_off.pages, 0, FLUSHES_STEP | FLUSHING_SEGMENTS)
    assert cut_off.lock.can_store() is True
    atomics.store_u32(cut_off.pages, 0, flushes)
    assert cut_off.lock.can_store() is False
    assert cut_off.lock.can_store() is False


def test_a_check_of_the_page_counts_for_a_second(core: Any, tmp_path: Path) -> None:
    """A check that the page can be stored to is repeated after a second, when the kernel may have written it out."""
    cut_off = CutOff(core, tmp_path, counted=True)
    until = time.monotonic() + TIMEOUT
    while cut_off.lock.can_store():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_without_a_count_of_flushes_every_look_counts_once(core: Any, tmp_path: Path) -> None:
    """Without a count of flushes each check of the page counts once, and without a lock word none is needed."""
    assert CutOff(core, tmp_path, counted=False).lock.can_store() is False
    assert core.Mutex().can_store() is True


def test_a_lock_word_that_cannot_be_stored_to_is_not_freed(core: Any, tmp_path: Path) -> None:
    """If the lock word cannot be stored to, the block ends without freeing it."""
    cut_off = CutOff(core, tmp_path, counted=False)

    def take(_slept: bool) -> int:
        if core is mutex:
            cut_off.lock.took()
        return 0

    with cut_off.lock.held_shared(take, lambda: True, lambda: None, lambda _: None):
        pass
    assert is_free(cut_off.lock)


@pytest.mark.parametrize(("position", "flushes"), [(64, None), (0, 64), (0, 1), (1, None)])
def test_words_outside_of_the_map_are_refused(core: Any, position: int, flushes: int | None) -> None:
    """A lock word outside of the map, or not aligned, is refused."""
    with pytest.raises(ValueError, match=r"."):
        core.Mutex().share(bytearray(64), position, PROCESS, flushes)


def test_what_is_ensured_is_called_once(core: Any) -> None:
    """A function that was ensured is called once, at the end of the block or when the guard is dropped."""
    called: list[int] = []
    with core.ensured(called.append, 1):
        assert called == []
    with pytest.raises(LookupError), core.ensured(called.append, 2):
        raise LookupError
    core.ensured(called.append, 3)
    assert called == [1, 2, 3]
    with pytest.raises(ValueError), core.ensured(int, "x"):  # noqa: PT011
        pass


def test_futures_that_are_not_done_are_resolved(core: Any) -> None:
    """Resolving futures leaves those that are done or cancelled as they are."""

    async def resolve() -> None:
        loop = asyncio.get_running_loop()
        waiting, cancelled, done = loop.create_future(), loop.create_future(), loop.create_future()
        cancelled.cancel()
        done.set_result(1)
        core.resolve(cancelled, done, waiting)
        assert waiting.result() is None
        assert cancelled.cancelled()
        assert done.result() == 1
        core.resolve()
        with pytest.raises(AttributeError):
            core.resolve(1)

    asyncio.run(resolve())
