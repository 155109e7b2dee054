"""Lock words, sleeping on a word, and sets of bits that processes share."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from filechannel._format.layout import CONTENDED
from filechannel._format.memory import futex
from tests.blocking.threads import until
from tests.format.sleepers import wait_until_asleep

OWNER = 7 << 22 | 9 << 1
LONG = 60.0
"""Longer than any test: a thread that sleeps so long was not woken."""
ALL = (1 << 31) - 1
AT = 8


@pytest.fixture
def page() -> bytearray:
    """Some words."""
    return bytearray(64)


@contextmanager
def running(*work: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Run each piece of work in a thread of its own, and wait for all of them."""
    with ThreadPoolExecutor(len(work)) as threads:
        yield [threads.submit(piece) for piece in work]


def wake_until_done(impl: SimpleNamespace, page: Any, futures: list[Future[Any]], count: int = ALL) -> None:
    """Wake all sleepers until all have returned: they may not have fallen asleep yet."""
    until = time.monotonic() + LONG / 2
    while not all(future.done() for future in futures) and time.monotonic() < until:
        impl.wake_word(page, AT, count)
        time.sleep(0)


def wait_for_sleeper(impl: SimpleNamespace, page: Any, count: int = 1) -> None:
    """Return when so many threads sleep on the word, with all of them awake again."""
    woken = 0
    while woken < count:
        woken += impl.wake_word(page, AT, count - woken)


# Lock words


def test_a_free_lock_is_acquired_and_a_held_one_is_not(impl: SimpleNamespace, page: bytearray) -> None:
    """A free lock is acquired and a held one is not, even by its holder; the words beside it are unchanged."""
    assert impl.take_word(page, AT, OWNER, 0) is True
    assert impl.load_u32(page, AT) == OWNER
    assert impl.take_word(page, AT, OWNER, 0) is False
    assert impl.take_word(page, AT, 1 << 22, 0.001) is False
    assert impl.load_u32(page, AT) == OWNER
    assert page[:AT] == bytes(AT)
    assert page[AT + 4 :] == bytes(64 - AT - 4)


@pytest.mark.parametrize("word", [OWNER, OWNER | CONTENDED, CONTENDED, 0xFFFFFFFF, 0])
def test_releasing_frees_the_word(impl: SimpleNamespace, page: bytearray, word: int) -> None:
    """`release` frees the word, whatever value it has."""
    impl.store_u32(page, AT, word)
    assert impl.release_word(page, AT) is None
    assert impl.load_u32(page, AT) == 0


def test_a_lock_that_becomes_free_is_acquired(impl: SimpleNamespace, page: bytearray) -> None:
    """A thread that tries to acquire gets a lock that becomes free, although the releasing thread needs the GIL."""
    impl.store_u32(page, AT, OWNER)
    with running(lambda: impl.take_word(page, AT, 99, LONG)) as [taken]:
        impl.release_word(page, AT)
        assert taken.result(LONG) is True
    assert impl.load_u32(page, AT) == 99


def test_releasing_a_contended_lock_wakes_one_sleeper(impl: SimpleNamespace, page: bytearray) -> None:
    """Each release of a contended lock wakes one sleeper, which marks the lock as contended again."""
    word = OWNER | CONTENDED
    impl.store_u32(page, AT, word)
    with running(*[lambda: impl.wait_word(page, AT, word, LONG)] * 2) as sleepers:
        while not all(sleeper.done() for sleeper in sleepers):
            impl.release_word(page, AT)
            impl.store_u32(page, AT, word)
        assert [sleeper.result() for sleeper in sleepers] == [True, True]


def test_threads_that_take_and_release_exclude_each_other(impl: SimpleNamespace, page: bytearray) -> None:
    """Threads that count under the lock count right, whether they spin or sleep for it."""
    counted, rounds = [0], 300

    def count() -> None:
        for _ in range(rounds):
            while not impl.take_word(page, AT, OWNER, 1e-5):
                seen = impl.load_u32(page, AT)
                if seen and (seen & CONTENDED or impl.swap_if_u32(page, AT, seen, seen | CONTENDED)):
                    impl.wait_word(page, AT, seen | CONTENDED, 0.01)
            seen = counted[0]
            time.sleep(0)
            counted[0] = seen + 1
            impl.release_word(page, AT)

    with running(*[count] * 4) as threads:
        for thread in threads:
            thread.result(LONG)
    assert counted == [4 * rounds]


# Sleeping


@pytest.mark.parametrize("value", [0, 1, OWNER, 0xFFFFFFFF])
def test_waiting_for_a_word_that_is_different_returns_at_once(
    impl: SimpleNamespace, page: bytearray, value: int
) -> None:
    """Waiting for a word that has another value returns True at once."""
    impl.store_u32(page, AT, value)
    assert impl.wait_word(page, AT, value ^ 1, LONG) is True
    assert impl.wait_word(page, AT, value ^ 0x80000000, LONG) is True


@pytest.mark.parametrize("seconds", [0, 0.0, 0.01, True])
def test_waiting_ends_when_the_time_is_up(impl: SimpleNamespace, page: bytearray, seconds: float) -> None:
    """A wait whose time is up returns False, and not before."""
    before = time.monotonic()
    assert impl.wait_word(page, AT, 0, seconds) is False
    assert time.monotonic() - before >= seconds


@pytest.mark.parametrize("seconds", [-1, -1e-9, float("nan"), float("inf"), -float("inf"), 1e6 + 1, 1 << 70])
def test_a_time_is_between_nothing_and_a_million_seconds(
    impl: SimpleNamespace, page: bytearray, seconds: float
) -> None:
    """A waiting time that is negative, not a number or longer than a million seconds is refused."""
    for call in (
        lambda: impl.wait_word(page, AT, 0, seconds),
        lambda: impl.take_word(page, AT, OWNER, seconds),
        lambda: impl.spin_above(page, AT, 0, seconds),
    ):
        with pytest.raises(ValueError, match="seconds must be between 0 and a million"):
            call()
    assert page == bytes(64)


def test_a_sleeper_is_woken_by_another_thread(impl: SimpleNamespace, page: bytearray) -> None:
    """A sleeper is woken by another thread although the word is unchanged."""
    with running(lambda: impl.wait_word(page, AT, 0, LONG)) as [sleeper]:
        wait_for_sleeper(impl, page)
        assert sleeper.result(LONG / 2) is True
    assert page == bytes(64)


def test_as_many_are_woken_as_asked_for(impl: SimpleNamespace, page: bytearray) -> None:
    """`wake` wakes as many sleepers as requested, and returns how many there were."""
    assert impl.wake_word(page, AT, ALL) == 0
    with running(*[lambda: impl.wait_word(page, AT, 0, LONG)] * 3) as sleepers:
        assert impl.wake_word(page, AT, 0) == 0
        wait_for_sleeper(impl, page, 3)
        assert [sleeper.result(LONG / 2) for sleeper in sleepers] == [True] * 3
    assert impl.wake_word(page, AT, ALL) == 0


def test_a_sleeper_on_another_word_keeps_sleeping(impl: SimpleNamespace, page: bytearray) -> None:
    """A sleeper is not woken by a wake of the word beside it, or of the same position in another buffer."""
    with running(lambda: impl.wait_word(page, AT, 0, LONG)) as [sleeper]:
        assert impl.wake_word(page, AT + 4, ALL) == 0
        assert impl.wake_word(page, AT - 4, ALL) == 0
        assert impl.wake_word(bytearray(64), AT, ALL) == 0
        wait_for_sleeper(impl, page)
        assert sleeper.result(LONG / 2) is True


def test_the_word_is_found_through_any_view_of_it(impl: SimpleNamespace) -> None:
    """A sleeper is woken through any map of the same memory in the process."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    with running(lambda: impl.wait_word(page, AT, 0, LONG)) as [sleeper]:
        while not impl.wake_word(memoryview(page)[AT:], 0, 1):
            time.sleep(0)
        assert sleeper.result(LONG / 2) is True
    page.close()


def test_no_view_stays_behind(impl: SimpleNamespace) -> None:
    """After any call, also a failed one, the map can be closed, and a closed map is refused."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("take_word", (OWNER, 0)),
        ("release_word", ()),
        ("wait_word", (0, 0)),
        ("wake_word", (1,)),
        ("spin_above", (5, 0)),
        ("set_bit", (5,)),
        ("take_bits", (2,)),
    ]
    for name, arguments in calls:
        getattr(impl, name)(page, AT, *arguments)
        with pytest.raises(ValueError, match="aligned word"):
            getattr(impl, name)(page, AT + 1, *arguments)
    page.close()
    for name, arguments in calls:
        with pytest.raises(ValueError, match="closed"):
            getattr(impl, name)(page, AT, *arguments)


@pytest.mark.parametrize("position", [1, 2, 3, 61, 64, 1 << 40, (1 << 64) - 4])
def test_a_position_is_an_aligned_word_inside(impl: SimpleNamespace, page: bytearray, position: int) -> None:
    """A position that is not aligned, or not wholly inside, is refused as for loads and stores."""
    for call in (
        lambda: impl.take_word(page, position, OWNER, 0),
        lambda: impl.release_word(page, position),
        lambda: impl.wait_word(page, position, 0, 0),
        lambda: impl.wake_word(page, position, 1),
        lambda: impl.spin_above(page, position, 0, 0),
        lambda: impl.set_bit(page, position, 0),
        lambda: impl.take_bits(page, position, 1),
    ):
        with pytest.raises(ValueError, match="position is not an aligned word inside the buffer"):
            call()
    assert page == bytes(64)


def test_a_read_only_buffer_can_only_be_watched(impl: SimpleNamespace) -> None:
    """A thread cannot sleep on a word of a read-only buffer, in which it cannot announce itself."""
    page = bytes(64)
    for call in (
        lambda: impl.take_word(page, AT, OWNER, 0),
        lambda: impl.release_word(page, AT),
        lambda: impl.wait_word(page, AT, 0, 0),
        lambda: impl.wake_word(page, AT, 1),
        lambda: impl.set_bit(page, AT, 0),
        lambda: impl.take_bits(page, AT, 1),
    ):
        with pytest.raises(BufferError):
            call()
    assert impl.spin_above(page, AT, 0, 0) is False


# Other threads, signals


@pytest.mark.parametrize("call", ["wait_word", "take_word", "spin_above"])
def test_other_threads_run_in_between(impl: SimpleNamespace, page: bytearray, call: str) -> None:
    """A sleeping thread releases the GIL, so that this thread can end its wait of an hour."""
    impl.store_u64(page, AT, 1)
    arguments = {"wait_word": (1,), "take_word": (OWNER,), "spin_above": (1 << 40,)}[call]
    started = threading.Event()

    def wait() -> bool:
        started.set()
        return bool(getattr(impl, call)(page, AT, *arguments, 3600))

    with running(wait) as [waiting]:
        assert started.wait(LONG)
        turns = 0
        while turns < 1000:
            turns += 1
            time.sleep(0)
        if call == "wait_word":
            wake_until_done(impl, page, [waiting])
        elif call == "take_word":
            impl.release_word(page, AT)
        else:
            impl.store_u64(page, AT, 1 << 41)
        assert waiting.result(LONG) is True


class Interrupted(BaseException):
    """As Ctrl-C would be."""


def test_a_signal_interrupts_a_sleeper(impl: SimpleNamespace, page: bytearray) -> None:
    """A signal interrupts a sleeper: its handler runs, and what that raises is raised."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    signalling = partial(_signal_when_asleep, impl, page, threading.get_ident(), threading.get_native_id())
    try:
        with running(signalling), pytest.raises(Interrupted):
            impl.wait_word(page, AT, 0, LONG)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert impl.wake_word(page, AT, ALL) == 0
    assert impl.wait_word(page, AT, 0, 0) is False


def _signal_when_asleep(impl: SimpleNamespace, page: bytearray, thread: int, native_id: int) -> None:
    """Send a signal to a thread once it sleeps on the word of the page."""
    if impl.name == "pure":
        until(lambda: thread in futex._sleeping)
    else:
        word = ctypes.addressof(ctypes.c_char.from_buffer(page, AT))
        wait_until_asleep(native_id, word.__eq__)
    signal.pthread_kill(thread, signal.SIGUSR1)


def test_a_signal_that_raises_nothing_lets_the_caller_look_again(impl: SimpleNamespace, page: bytearray) -> None:
    """After a signal whose handler raises nothing, the wait returns at the latest when its time is up."""
    ran: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: ran.append(number))
    signalling = partial(_signal_when_asleep, impl, page, threading.get_ident(), threading.get_native_id())
    try:
        with running(signalling):
            while not ran:
                impl.wait_word(page, AT, 0, 0.2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ran == [signal.SIGUSR1]


@pytest.mark.parametrize("pure", ["", "1"])
def test_control_c_ends_a_program_that_sleeps(pure: str) -> None:
    """Ctrl-C ends a program that sleeps on a word."""
    program = """
        import os, signal, sys, threading
        from filechannel._format import wait_word
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background sets it to be ignored
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                wait_word(bytearray(4), 0, 0, 600)
        except KeyboardInterrupt:
            sys.exit(5)
    """
    lines = [line[8:] for line in program.splitlines()]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        env={**os.environ, "FILECHANNEL_PURE": pure},
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 5


# Watching


def test_a_double_word_is_watched(impl: SimpleNamespace, page: bytearray) -> None:
    """A wait for a double word ends when it is above a value."""
    impl.store_u64(page, AT, 5)
    assert impl.spin_above(page, AT, 4, 0) is True
    assert impl.spin_above(page, AT, 5, 0) is False
    assert impl.spin_above(page, AT, 5, 0.01) is False
    impl.store_u64(page, AT, (1 << 64) - 1)
    assert impl.spin_above(page, AT, (1 << 64) - 2, 0) is True
    assert impl.spin_above(page, AT, (1 << 64) - 1, 0) is False


# Bits


def test_bits_are_set_and_taken(impl: SimpleNamespace, page: bytearray) -> None:
    """Bits are set and taken once each, in order, and only inside the range."""
    for bit in (0, 5, 63):
        assert impl.set_bit(page, AT, bit) is None
        impl.set_bit(page, AT, bit)
        impl.set_bit(page, AT + 16, bit)
    impl.set_bit(page, 0, 3)
    impl.set_bit(page, 48, 3)
    assert impl.load_u64(page, AT) == 1 << 63 | 1 << 5 | 1
    assert impl.take_bits(page, AT, 0) == []
    assert impl.take_bits(page, AT, 5) == [0, 5, 63, 128, 133, 191]
    assert impl.take_bits(page, AT, 5) == []
    assert page == b"\x08" + bytes(47) + b"\x08" + bytes(15)


@pytest.mark.parametrize("bit", [-1, 64, 1 << 40, 1 << 64])
def test_a_double_word_has_64_bits(impl: SimpleNamespace, page: bytearray, bit: int) -> None:
    """A bit beyond 64 is refused and does not belong to the next word."""
    with pytest.raises(OverflowError, match="value does not fit the word"):
        impl.set_bit(page, AT, bit)
    assert page == bytes(64)


@pytest.mark.parametrize("words", [8, 9, 1 << 61, (1 << 64) - 1])
def test_bits_are_taken_inside_the_buffer(impl: SimpleNamespace, words: int) -> None:
    """A range that does not lie inside the buffer, also where its length would wrap around, clears nothing."""
    page = bytearray(b"\x01" * 64)
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        impl.take_bits(page, AT, words)
    assert page == b"\x01" * 64
    assert len(impl.take_bits(page, AT, 7)) == 7 * 8


def test_no_bit_is_lost_between_threads(impl: SimpleNamespace, page: bytearray) -> None:
    """A bit that is set while another thread takes bits is taken then or later."""
    rounds = 200
    found: list[int] = []

    def set_bits(bit: int) -> None:
        for _ in range(rounds):
            impl.set_bit(page, AT, bit)
            while impl.load_u64(page, AT) >> bit & 1:
                time.sleep(0)

    with running(*[lambda bit=bit: set_bits(bit) for bit in (0, 1, 63)]) as setting:
        until = time.monotonic() + LONG
        while not all(thread.done() for thread in setting) and time.monotonic() < until:
            found += impl.take_bits(page, AT, 1)
    assert sorted(found) == [0] * rounds + [1] * rounds + [63] * rounds


# Other processes: the native core only


ECHO = """
import mmap, sys
from filechannel._format import load_u32, store_u32, wait_word, wake_word
with open(sys.argv[1], "r+b") as file:
    page = mmap.mmap(file.fileno(), 4096)
for turn in range(1, 101):
    while load_u32(page, 0) != turn:
        if not wait_word(page, 0, turn - 1, 30):
            sys.exit(9)
    store_u32(page, 64, turn)
    wake_word(page, 64, 1)
"""


def test_processes_wake_each_other_through_a_file(impl: SimpleNamespace, tmp_path: Path) -> None:
    """Two processes wake each other a hundred times through a mapped file."""
    if impl.name == "pure":
        pytest.skip("the pure implementation has a channel for itself")
    path = tmp_path / "words"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        page = mmap.mmap(file.fileno(), 4096)
    other = subprocess.Popen([sys.executable, "-c", ECHO, str(path)])
    for turn in range(1, 101):
        impl.store_u32(page, 0, turn)
        impl.wake_word(page, 0, 1)
        while impl.load_u32(page, 64) != turn:
            assert impl.wait_word(page, 64, turn - 1, 30), "a wakeup was lost"
    assert other.wait(30) == 0
    page.close()


def test_processes_exclude_each_other_with_a_lock(impl: SimpleNamespace) -> None:
    """Four processes count right under a lock in shared memory."""
    if impl.name == "pure":
        pytest.skip("the pure implementation has a channel for itself")
    page, rounds = mmap.mmap(-1, mmap.PAGESIZE), 500
    children = [child for child in (_fork_to_count(impl, page, rounds) for _ in range(4)) if child]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 4
    assert struct.unpack_from("<Q", page, 64) == (4 * rounds,)
    page.close()


def _fork_to_count(impl: SimpleNamespace, page: mmap.mmap, rounds: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for _ in range(rounds):
            while not impl.take_word(page, AT, OWNER, 1e-5):
                seen = impl.load_u32(page, AT)
                if seen and (seen & CONTENDED or impl.swap_if_u32(page, AT, seen, seen | CONTENDED)):
                    impl.wait_word(page, AT, seen | CONTENDED, 0.01)
            seen = struct.unpack_from("<Q", page, 64)[0]
            os.sched_yield()
            struct.pack_into("<Q", page, 64, seen + 1)
            impl.release_word(page, AT)
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("word", [0, 1, 2, 3, 4, 7, 0xFFFFFFFF])
def test_waiters_are_taken_once(impl: SimpleNamespace, word: int) -> None:
    """Taking waiters clears their bits and starts another generation; without waiters nothing changes."""
    words = bytearray(8)
    words[4:] = word.to_bytes(4, "little")
    assert impl.wake_waiters(words, 4) == word & 3
    expected = (word + 4) & 0xFFFFFFFC if word & 3 else word
    assert int.from_bytes(words[4:], "little") == expected
    assert impl.wake_waiters(words, 4) == 0
