"""A lock that threads and processes share."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel._errors import Busy, StorageError
from filechannel._format import PURE, load_u32, load_u64, store_u32, store_u64
from filechannel._format.layout import CONTENDED, CONTROL_SIZE, FLUSH_LOCK, OPENING_BYTE, WRITER_LOCK
from filechannel._storage.control.live_processes import Processes
from filechannel._storage.control.shared_lock import SharedLock
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.forks import Fork

files = Files()
COUNTED = 64
"""Where in the file the tests count: a word that is not used otherwise."""
shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


class Member:
    """One process that has a lock: another open file is another process to the kernel."""

    def __init__(self, control: Path, position: int = WRITER_LOCK) -> None:
        descriptor = files.open(control)
        self.locks = KernelLocks(files, control)
        self.words = files.map(descriptor, CONTROL_SIZE)
        files.close(descriptor)
        self.processes = Processes(self.words, self.locks)
        with self.locks.holding(OPENING_BYTE):  # two that join at once would count up the generation of one slot
            self.processes.join()
        self.entered: list[bool] = []
        self.lock = SharedLock(self.words, position, self.processes, self.entered.append)
        self.position = position

    @property
    def word(self) -> int:
        """The value of the lock word."""
        return load_u32(self.words, self.position)


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """An empty control file."""
    path = tmp_path / "control"
    path.write_bytes(bytes(CONTROL_SIZE))
    return path


@pytest.fixture
def member(control: Path) -> Iterator[Callable[[], Member]]:
    """How to become a member; all leave afterwards."""
    members: list[Member] = []

    def join() -> Member:
        members.append(Member(control))
        return members[-1]

    yield join
    for each in members:
        each.locks.close()


def never() -> bool:
    """Say that the thread may not sleep."""
    return False


# One process


def test_the_word_names_the_lock_holder(member: Callable[[], Member]) -> None:
    """The lock word names the holder, and is free before and afterwards."""
    me = member()
    assert not me.lock.is_held
    with me.lock.held():
        assert me.word == me.processes.own_word
        assert me.lock.is_held
    assert me.word == 0
    assert not me.lock.is_held
    assert me.entered == [False]


def test_the_lock_is_reentrant(member: Callable[[], Member]) -> None:
    """The lock is reentrant: the word is acquired and freed once, and the callback is called once."""
    me = member()
    with me.lock.held():
        with me.lock.held(never):
            assert me.lock.is_held
        assert me.word == me.processes.own_word
        with me.lock.held():
            pass
        assert me.word == me.processes.own_word
    assert me.word == 0
    assert me.entered == [False]


def test_an_error_inside_frees_it(member: Callable[[], Member]) -> None:
    """An error inside frees the lock at any depth, and the next holder cleans up unless it was a typed error."""
    me, calls = member(), list[bool]()
    lock = SharedLock(me.words, WRITER_LOCK, me.processes, calls.append)
    for error, from_the_dead in ((StorageError("no"), False), (KeyboardInterrupt(), True), (LookupError(), True)):
        with pytest.raises(type(error)), lock.held(), lock.held():
            raise error
        assert not lock.is_held
        assert (me.word != 0) is from_the_dead
        assert not me.processes.is_alive(me.word)
        calls.clear()
        with lock.held(never):
            assert me.word & ~CONTENDED == me.processes.own_word
        assert calls == [from_the_dead]
        assert me.word == 0


def test_an_error_of_the_callback_frees_it(member: Callable[[], Member]) -> None:
    """An error of the callback, such as that of a closed log, frees the lock."""
    me = member()

    def refuse(from_the_dead: bool) -> None:
        assert not from_the_dead
        raise StorageError("closed")

    lock = SharedLock(me.words, WRITER_LOCK, me.processes, refuse)
    with pytest.raises(StorageError), lock.held():
        raise AssertionError
    assert me.word == 0
    assert not lock.is_held


def test_two_words_are_two_locks(control: Path, member: Callable[[], Member]) -> None:
    """Holding the lock of one word does not block that of another."""
    me = member()
    flush = SharedLock(me.words, FLUSH_LOCK, me.processes)
    with me.lock.held(), flush.held(never):
        assert load_u32(me.words, FLUSH_LOCK) == me.word == me.processes.own_word
    assert load_u32(me.words, FLUSH_LOCK) == me.word == 0


def test_threads_exclude_each_other(member: Callable[[], Member]) -> None:
    """Threads that count under the lock count right."""
    me, rounds = member(), 200

    def count() -> None:
        for _ in range(rounds):
            with me.lock.held(), me.lock.held():
                seen = load_u64(me.words, COUNTED)
                time.sleep(0)
                store_u64(me.words, COUNTED, seen + 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert load_u64(me.words, COUNTED) == 4 * rounds
    assert me.word == 0


@shares
def test_a_word_left_by_an_interrupted_thread_is_taken_over(member: Callable[[], Member]) -> None:
    """A word that names this process, but whose lock no thread holds, as after a signal, is taken over."""
    me = member()
    for word in (me.processes.own_word, me.processes.own_word | CONTENDED):
        store_u32(me.words, WRITER_LOCK, word)
        with me.lock.held(never):
            assert me.word & ~CONTENDED == me.processes.own_word
        assert me.word == 0
    assert me.entered == [True, True], "what it guards may be half done"


def test_an_interrupt_on_the_way_in_leaves_nothing_locked(member: Callable[[], Member]) -> None:
    """Ctrl-C while a thread waits for another process leaves the lock as it was."""
    me = member()
    stranger = 1000 << 22 | 1 << 1
    store_u32(me.words, WRITER_LOCK, stranger)
    me.processes.is_alive = lambda _: True  # type: ignore[method-assign]

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), me.lock.held(interrupt):
        raise AssertionError
    assert me.word == stranger
    assert not me.lock.is_held
    assert me.entered == []


# Several processes


@shares
def test_a_caller_that_may_not_sleep_gets_busy(member: Callable[[], Member]) -> None:
    """A caller that may not sleep, such as an event loop, gets `Busy`, and leaves nothing behind."""
    me, other = member(), member()
    with other.lock.held():
        with pytest.raises(Busy), me.lock.held(never):
            raise AssertionError
        assert me.word == other.processes.own_word, "not contended: no process sleeps"
        assert not me.lock.is_held
    with me.lock.held(never):
        assert me.word == me.processes.own_word


@shares
def test_a_caller_that_may_sleep_gets_it_when_it_is_free(member: Callable[[], Member]) -> None:
    """A caller that sleeps gets the lock when it is free, and marks the word as contended."""
    me, other = member(), member()
    got = threading.Event()

    def wait() -> None:
        with me.lock.held():
            got.set()

    with other.lock.held():
        thread = threading.Thread(target=wait)
        thread.start()
        while other.word != other.processes.own_word | CONTENDED:
            time.sleep(0.001)
        assert not got.is_set()
    thread.join(60)
    assert got.is_set()
    assert me.word == 0
    assert me.entered == [False]


@shares
def test_a_lock_is_taken_over_from_a_dead_process(control: Path, member: Callable[[], Member]) -> None:
    """A lock is taken over from a dead process, also by a caller that may not sleep, and cleaned up once."""
    me = member()
    held = Fork(lambda: _hold(control))
    word = me.word
    assert word >> 22 == 2
    with pytest.raises(Busy), me.lock.held(never):
        raise AssertionError
    held.kill()
    assert me.word == word
    with me.lock.held(never):
        assert me.word == me.processes.own_word | CONTENDED, "others may sleep for it"
    with me.lock.held():
        pass
    assert me.entered == [True, False]


def _hold(control: Path) -> object:
    other = Member(control)
    held = other.lock.held()
    held.__enter__()
    return other, held


@shares
def test_a_sleeping_caller_notices_that_the_holder_died(control: Path, member: Callable[[], Member]) -> None:
    """A sleeping caller notices that the holder died, although no process wakes it."""
    me = member()
    held = Fork(lambda: _hold(control))
    entered = threading.Event()

    def wait() -> None:
        with me.lock.held():
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not me.word & CONTENDED:
        time.sleep(0.001)
    held.kill()
    assert entered.wait(60)
    thread.join()
    assert me.entered == [True]


@shares
def test_nothing_is_taken_from_a_process_that_is_stopped(control: Path, member: Callable[[], Member]) -> None:
    """A stopped process keeps the lock until it resumes or dies."""
    me = member()
    held = Fork(lambda: _hold(control))
    os.kill(held.pid, signal.SIGSTOP)
    os.waitpid(held.pid, os.WUNTRACED)
    for _ in range(20):
        with pytest.raises(Busy), me.lock.held(never):
            raise AssertionError
    held.kill()
    with me.lock.held(never):
        pass
    assert me.entered == [True]


@shares
def test_a_reused_slot_does_not_keep_the_lock_of_a_dead_process(control: Path, member: Callable[[], Member]) -> None:
    """The lock of a dead process is free although another process uses its slot."""
    me = member()
    held = Fork(lambda: _hold(control))
    held.kill()
    following = member()
    assert following.processes.slot == me.word >> 22
    with me.lock.held(never):
        pass
    with following.lock.held(never):
        pass
    assert (me.entered, following.entered) == ([True], [False])


@shares
def test_the_next_process_in_a_slot_may_take_over_from_the_old_one(control: Path, member: Callable[[], Member]) -> None:
    """The next process in a slot may take over the lock that its predecessor held with another generation."""
    Fork(lambda: _hold(control)).kill()
    me = member()
    assert me.processes.slot == me.word >> 22 == 1
    with me.lock.held(never):
        assert me.word == me.processes.own_word | CONTENDED
    assert me.entered == [True]


@shares
def test_one_of_many_takes_over(control: Path, member: Callable[[], Member]) -> None:
    """Of many processes one takes over the lock of a dead one, and the others find a live holder."""
    members = [member() for _ in range(8)]
    for _ in range(5):
        Fork(lambda: _hold(control)).kill()
        owners: list[int] = []

        def take(me: Member, owners: list[int] = owners) -> None:
            with me.lock.held():
                owners.append(me.word & ~CONTENDED)

        for me in members:
            me.entered.clear()
        threads = [threading.Thread(target=take, args=(me,)) for me in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(owners) == [me.processes.own_word for me in members]
        assert sorted(dead for me in members for dead in me.entered) == [False] * 7 + [True]


@shares
def test_processes_exclude_each_other(control: Path, member: Callable[[], Member]) -> None:
    """Threads in four processes count right under the lock."""
    me, rounds = member(), 100

    def count() -> object:
        mine = Member(control)

        def work() -> None:
            for _ in range(rounds):
                with mine.lock.held():
                    seen = load_u64(mine.words, COUNTED)
                    os.sched_yield()
                    store_u64(mine.words, COUNTED, seen + 1)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return mine

    starting = [threading.Thread(target=lambda: forks.append(Fork(count))) for _ in range(4)]
    forks: list[Fork] = []
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    for fork in forks:
        fork.end()
    assert load_u64(me.words, COUNTED) == 4 * 2 * rounds
    assert me.word == 0
