"""The table of processes: a slot each, kept alive by the kernel."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from filechannel import StorageError
from filechannel._format import load_u32, store_u32
from filechannel._format.layout import (
    CONTENDED,
    CONTROL_SIZE,
    LOCK_GENERATION_BITS,
    LOCK_GENERATION_SHIFT,
    LOCK_SLOT_SHIFT,
    MAINTENANCE_BYTE,
    MODE_BYTE,
    OPENING_BYTE,
    PROCESS,
    PROCESS_SLOT_COUNT,
    PROCESS_SLOT_SIZE,
    PROCESS_SLOTS,
)
from filechannel._storage.control.live_processes import Processes
from filechannel._storage.control.lock_holder import Holder
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.forks import Fork

files = Files()
MOST_GENERATIONS = (1 << LOCK_GENERATION_BITS) - 1


def _slot_offset(slot: int) -> int:
    return PROCESS_SLOTS + slot * PROCESS_SLOT_SIZE


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """An empty control file."""
    path = tmp_path / "control"
    path.write_bytes(bytes(CONTROL_SIZE))
    return path


def _open(control: Path) -> tuple[Processes, KernelLocks]:
    descriptor = files.open(control)
    locks = KernelLocks(files, control)
    words = files.map(descriptor, CONTROL_SIZE)
    files.close(descriptor)
    return Processes(words, locks), locks


@pytest.fixture
def table(control: Path) -> Iterator[Callable[[], Processes]]:
    """How to look at the table as another process would."""
    opened: list[KernelLocks] = []

    def look() -> Processes:
        processes, locks = _open(control)
        opened.append(locks)
        return processes

    yield look
    for locks in opened:
        locks.close()


def _joined(control: Path) -> Processes:
    processes, _ = _open(control)
    processes.join()
    return processes


def test_processes_have_different_slots(table: Callable[[], Processes]) -> None:
    """Each process gets the lowest free slot, and slot 0 is never used."""
    joined = [table() for _ in range(4)]
    assert [processes.slot for processes in joined] == [0] * 4
    assert [processes.own_word for processes in joined] == [0] * 4
    for processes in joined:
        processes.join()
    assert [processes.slot for processes in joined] == [1, 2, 3, 4]
    assert [processes.others() for processes in joined] == [[2, 3, 4], [1, 3, 4], [1, 2, 4], [1, 2, 3]]
    assert table().others() == [1, 2, 3, 4]


def test_the_owner_says_slot_and_generation(table: Callable[[], Processes]) -> None:
    """The owner word consists of slot and generation, without the contended bit."""
    table().join()
    processes = table()
    processes.join()
    assert processes.own_word == 2 << LOCK_SLOT_SHIFT | 1 << LOCK_GENERATION_SHIFT
    assert not processes.own_word & CONTENDED
    assert processes.generation(2) == 1


def test_the_bytes_beside_the_slots_are_not_processes(control: Path, table: Callable[[], Processes]) -> None:
    """A process that is opening the channel does not count as one that has it open."""
    locks = KernelLocks(files, control)
    locks.take(MODE_BYTE)
    locks.take(OPENING_BYTE)
    locks.take(MAINTENANCE_BYTE)
    assert table().others() == []
    locks.close()


# Life and death


@pytest.mark.parametrize("how", ["kill", "end"])
def test_a_dead_slot_is_free_and_gets_another_generation(
    control: Path, table: Callable[[], Processes], how: str
) -> None:
    """The slot of a dead process gets another generation, and locks with the old one have no live holder."""
    looking = table()
    other = Fork(lambda: _joined(control))
    assert looking.others() == [1]
    word = 1 << LOCK_SLOT_SHIFT | looking.generation(1) << LOCK_GENERATION_SHIFT
    assert looking.is_alive(word)
    assert looking.is_alive(word | CONTENDED)
    getattr(other, how)()
    assert looking.others() == []
    assert not looking.is_alive(word)
    following = table()
    following.join()
    assert following.slot == 1
    assert following.own_word != word
    assert not looking.is_alive(word)
    assert looking.is_alive(following.own_word)
    assert following.is_alive(following.own_word)
    assert not following.is_alive(word)


def test_a_stopped_process_is_alive(control: Path, table: Callable[[], Processes]) -> None:
    """A stopped process is alive, however long it is stopped."""
    other = Fork(lambda: _joined(control))
    os.kill(other.pid, signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    looking = table()
    assert looking.others() == [1]
    assert looking.is_alive(1 << LOCK_SLOT_SHIFT | 1 << LOCK_GENERATION_SHIFT)
    other.kill()
    assert looking.others() == []


def test_the_generation_is_announced_before_the_byte_is_locked(
    control: Path, table: Callable[[], Processes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation is announced before the byte is locked, so that a dead process never looks alive."""
    Fork(lambda: _joined(control)).kill()
    looking, dead = table(), 1 << LOCK_SLOT_SHIFT | 1 << LOCK_GENERATION_SHIFT
    seen: list[tuple[int, list[int], bool]] = []
    take = KernelLocks.take

    def watch() -> None:
        seen.append((looking.generation(1), looking.others(), looking.is_alive(dead)))

    def taking(locks: KernelLocks, byte: int, *, shared: bool = False) -> bool:
        watch()
        taken = take(locks, byte, shared=shared)
        watch()
        return taken

    monkeypatch.setattr(KernelLocks, "take", taking)
    table().join()
    assert seen == [(2, [], False), (2, [1], False)]


def test_a_process_that_dies_while_joining_blocks_no_other(control: Path, table: Callable[[], Processes]) -> None:
    """If a process dies while it joins, the next one gets its slot with another generation."""

    def die_before_the_byte() -> object:
        processes, locks = _open(control)
        locks.take = lambda *_: os._exit(0)  # type: ignore[method-assign]
        processes.join()
        return None

    with pytest.raises(AssertionError, match="failed"):
        Fork(die_before_the_byte)
    looking = table()
    assert (looking.generation(1), looking.others()) == (1, [])
    looking.join()
    assert (looking.slot, looking.generation(1)) == (1, 2)


def test_generations_wrap_around(control: Path, table: Callable[[], Processes]) -> None:
    """After the largest generation comes 1, because 0 does not occur in a lock word."""
    looking = table()
    store_u32(looking._words, _slot_offset(1), MOST_GENERATIONS - 1)
    for expected in (MOST_GENERATIONS, 1, 2):
        other = Fork(lambda: _joined(control))
        assert looking.generation(1) == expected
        assert looking.is_alive(1 << LOCK_SLOT_SHIFT | expected << LOCK_GENERATION_SHIFT)
        other.kill()


@pytest.mark.parametrize("damage", [MOST_GENERATIONS + 1, 0xFFFFFFFF])
def test_a_damaged_generation_is_fixed(table: Callable[[], Processes], damage: int) -> None:
    """A stored generation that is wider than its 21 bits is corrected."""
    processes = table()
    store_u32(processes._words, _slot_offset(1), damage)
    processes.join()
    assert 1 <= processes.generation(1) <= MOST_GENERATIONS
    assert processes.is_alive(processes.own_word)
    assert processes.own_word >> LOCK_SLOT_SHIFT == 1


def test_slots_are_used_again(table: Callable[[], Processes]) -> None:
    """The lowest free slot is used again, each time with another generation."""
    joined = [table() for _ in range(5)]
    for processes in joined:
        processes.join()
    for turn in range(3):
        joined[2]._locks.close()
        assert joined[0].others() == [2, 4, 5]
        joined[2] = table()
        joined[2].join()
        assert joined[2].slot == 3
        assert joined[2].generation(3) == turn + 2


def test_a_word_without_an_owner_is_not_alive(table: Callable[[], Processes]) -> None:
    """A word with an unused slot or generation has no live owner."""
    processes = table()
    processes.join()
    for slot in (0, 1, 2, PROCESS_SLOT_COUNT - 1):
        for generation in (2, MOST_GENERATIONS):
            assert not processes.is_alive(slot << LOCK_SLOT_SHIFT | generation << LOCK_GENERATION_SHIFT)
    assert not processes.is_alive(CONTENDED)


# The most


def test_as_many_processes_as_there_are_slots(control: Path, table: Callable[[], Processes]) -> None:
    """1,023 processes have a slot, and the next one gets an error until one of them ends."""
    holders = [KernelLocks(files, control) for _ in range(8)]
    for slot in range(1, PROCESS_SLOT_COUNT):
        assert holders[slot % 8].take(slot)
    late = table()
    assert late.others() == list(range(1, PROCESS_SLOT_COUNT))
    generations = [late.generation(slot) for slot in range(PROCESS_SLOT_COUNT)]
    with pytest.raises(StorageError, match="1023 processes have the channel open"):
        late.join()
    assert late.slot == late.own_word == 0
    assert [late.generation(slot) for slot in range(PROCESS_SLOT_COUNT)] == generations, (
        "a live process would seem dead"
    )
    holders[1023 % 8].release(1023)
    late.join()
    assert late.slot == 1023
    assert late.own_word == 1023 << LOCK_SLOT_SHIFT | 1 << LOCK_GENERATION_SHIFT
    assert late.own_word < 1 << 32
    for locks in holders:
        locks.close()


# Notes for people


def test_processes_describe_themselves(table: Callable[[], Processes]) -> None:
    """The note of a process has pid, host and start time."""
    first, second = table(), table()
    before = datetime.now(UTC)
    first.join()
    second.join()
    holder = second.holder(1)
    assert (holder.pid, holder.host) == (os.getpid(), socket.gethostname()[:40])
    assert holder.since is not None
    assert before.timestamp() - 1 <= holder.since.timestamp() <= time.time()
    assert second.holder_of(first.own_word | CONTENDED) == holder
    assert second.holder_of(0) is None
    assert first.alive() == second.alive() == table().alive() == [first.holder(1), first.holder(2)]


def test_a_long_host_name_is_cut(table: Callable[[], Processes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A long host name in the note of a slot is cut off at the end of the slot."""
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 64)
    processes = table()
    processes.join()
    assert processes.holder(1).host == "h" * 40
    assert bytes(processes._words[_slot_offset(2) : _slot_offset(3)]) == bytes(PROCESS_SLOT_SIZE)
    assert load_u32(processes._words, _slot_offset(1)) == 1


@pytest.mark.parametrize(
    "note",
    [
        bytes(PROCESS.size),
        PROCESS.pack(0, 0, 5, 5, b"\xff\xfe"),
    ],
    ids=["none", "host"],
)
def test_a_damaged_note_names_no_process(table: Callable[[], Processes], note: bytes) -> None:
    """A damaged note in a slot names no process, and is not an error."""
    processes = table()
    processes._words[_slot_offset(3) : _slot_offset(4)] = note
    assert processes.holder(3) == Holder(None, None, None)


def test_a_generation_that_is_too_wide_names_no_other_slot(table: Callable[[], Processes]) -> None:
    """A generation that is too wide, as after damage, is cut to its bits, and never names another slot."""
    processes = table()
    processes.join()
    processes.set_queued(True)
    store_u32(processes._words, _slot_offset(processes.slot), 0xFFFFFFFF)
    [word] = processes.queued_slots()
    assert word >> LOCK_SLOT_SHIFT == processes.slot
    assert processes.is_alive(word)
    processes.remove_from_queue(word)
    assert list(processes.queued_slots()) == []
