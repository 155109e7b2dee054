"""Words of mapped files, overwritten while the channel is in use: an error, never a loop, a stall or a signal."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from filechannel._errors import ConsumerDamagedError, StorageError
from filechannel._format import load_u32, load_u64, store_u32, store_u64
from filechannel._format.layout import (
    FLUSH_LOCK,
    GROUP_DUE,
    GROUP_HEAD,
    GROUP_INITIALIZED,
    GROUP_LOCK,
    GROUP_NEXT,
    GROUP_READY,
    GROUP_RING,
    GROUP_TAIL,
    TAIL_SLOTS,
    WRITE_TAIL,
    WRITER_LOCK,
)
from filechannel._maintenance.repair.repair import repair
from filechannel._maintenance.verify.verification import verify
from filechannel.blocking import open_channel

ROOT = Path(__file__).parents[2]
SAMPLE = 50
NEVER = (1 << 64) - 1


@contextmanager
def mapped(file: Path) -> Generator[mmap.mmap]:
    """Map a file that is in use."""
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), 0) as words:
        yield words


def _run(*arguments: object, timeout: float = 600) -> int:
    command = [sys.executable, "-m", "tests.storage.live_damage", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return int(done.stdout.splitlines()[-1].split()[0])


def test_damage_in_use_is_an_error(rng: Random) -> None:
    """With damage in any shared word each operation returns, or raises an error that it documents."""
    assert _run(SAMPLE, rng.getrandbits(32)) == SAMPLE


@pytest.mark.parametrize(
    "place",
    [
        *(f"consumers/many.group:{word}:8" for word in (GROUP_HEAD, GROUP_TAIL, GROUP_NEXT)),
        *(f"{file}:{word}:4:1" for file, word in (("control", WRITER_LOCK), ("control", FLUSH_LOCK))),
        f"consumers/many.group:{GROUP_LOCK}:4:1",
    ],
)
def test_words_that_decide_how_to_continue(place: str) -> None:
    """No value of the words that decide how to continue makes a process loop or wait for ever."""
    assert _run(place, "plain") > 0


@pytest.mark.soak
def test_each_word_and_value() -> None:
    """With every value in every shared word each operation returns, or raises an error that it documents."""
    assert _run("all", timeout=4 * 3600) > 9000


# What a group says


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (GROUP_HEAD, NEVER),
        (GROUP_HEAD, 2),
        (GROUP_TAIL, 1 << 63),
        (GROUP_TAIL, 0),
        (GROUP_NEXT, NEVER),
        (GROUP_NEXT, 1),
        (GROUP_INITIALIZED, NEVER),
        (GROUP_RING, 7 | 1 << 3),
        (GROUP_RING + 8, NEVER),
    ],
)
def test_a_damaged_group_is_named_and_repaired(path: Path, position: int, value: int) -> None:
    """A damaged group raises an error with file and command, and after the command no message is missing."""
    file = path / "consumers" / "g.group"
    with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g") as rx:
        tx.send_many(range(5))
        rx.receive()
        with mapped(file) as words:
            store_u64(words, position, value)
            store_u64(words, GROUP_DUE, 0)  # a look at the entries is due
        for call in (rx.receive_delivery, lambda: channel.group("g")):
            with pytest.raises(ConsumerDamagedError, match="filechannel repair") as caught:
                call()
            assert (caught.value.file, caught.value.path) == (file, path)
            assert str(file) in str(caught.value)
    assert [finding.kind for finding in verify(path).findings if finding.severity != "note"] == ["group"]
    repair(path)
    with open_channel(path, int) as channel, channel.group("g") as rx:
        assert rx.receive_many(10) == list(range(5))


@pytest.mark.parametrize("also", [None, GROUP_TAIL, GROUP_NEXT])
def test_a_ring_that_disappears_while_members_use_it_is_damage(path: Path, also: int | None) -> None:
    """If the ring of a group in use disappears members get a typed error, and the next one resumes at the position."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g") as rx:
        tx.send_many(range(5))
        rx.receive()
        with mapped(path / "consumers" / "g.group") as words:
            store_u64(words, GROUP_INITIALIZED, 0)
            if also is not None:
                store_u64(words, also, load_u64(words, also) + 1)
            store_u64(words, GROUP_DUE, 0)
        for call in (rx.receive_delivery, rx.receive_nowait, lambda: channel.group("g")):
            with pytest.raises(ConsumerDamagedError, match="filechannel repair"):
                call()
    with open_channel(path, int) as channel, channel.group("g") as rx:
        assert rx.receive_many(10) == list(range(5))


def test_words_that_the_group_can_compute_again(path: Path) -> None:
    """Damaged counts and deadlines of a group are computed again, and every message is delivered within a second."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g") as rx:
        tx.send(7)
        rx.receive_delivery().nack()
        with mapped(path / "consumers" / "g.group") as words:
            assert load_u64(words, GROUP_READY) == 1
            store_u64(words, GROUP_READY, 0)
            store_u64(words, GROUP_DUE, NEVER)
        assert rx.receive_delivery(timeout=60).value == 7


def test_a_lock_word_that_names_no_process_is_taken_over(path: Path) -> None:
    """A lock word with slot 0, which belongs to no process, is taken over."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        with mapped(path / "control") as words:
            store_u32(words, WRITER_LOCK, 1)
            tx.send(1, timeout=60)
            assert load_u32(words, WRITER_LOCK) == 0


def test_a_tail_that_no_slot_agrees_with(path: Path) -> None:
    """If no slot agrees with the offset of the tail, senders and statistics raise, and the next open recovers."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many(range(5))
        with mapped(path / "control") as words:
            store_u64(words, WRITE_TAIL + TAIL_SLOTS[0] + 24, 0)
            store_u64(words, WRITE_TAIL + TAIL_SLOTS[1] + 24, 0)
        tx.send(5)  # this process knows the tail
        for distance in TAIL_SLOTS:
            with mapped(path / "control") as words:
                store_u64(words, WRITE_TAIL + distance + 24, 0)
        for call in (channel.statistics, channel.consumers, channel.flush):
            with pytest.raises(StorageError, match="filechannel repair") as caught:
                call()
            assert str(path / "control") in str(caught.value)
    with open_channel(path, int) as channel, channel.receiver() as rx:
        assert rx.receive_many(10) == list(range(6))
