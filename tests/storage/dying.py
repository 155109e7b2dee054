"""Processes that die: run as a program, it forks writers, kills them and looks at what they leave behind.

A program of its own, because a process with threads, such as the one that runs the tests, should not fork.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._format import NOTHING
from filechannel._format.layout import OFFSET_GAP
from filechannel._storage.segments.compressed_segment import StoredSegment
from filechannel._storage.segments.segment import Segment
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import SMALL, open_store, opened, payloads_of, read_all, reader_of, take_all
from tests.storage.deaths import NEVER, Counts, die_at_each_step, die_in_child

CONSUMER = "consumer"


# Death at every step


class DyingFiles(Files):
    """Dies before the n-th call to the operating system that changes anything."""

    def __init__(self, last: int, counts: Counts) -> None:
        self._last = last
        self._counts = counts

    @property
    def watch_roll(self) -> Callable[[str], object]:
        """Die at each step of it that is taken."""
        return lambda step: self._counts.step(self._last, step)


def _dying(name: str) -> Callable[..., object]:
    def method(self: DyingFiles, *arguments: object, **options: object) -> object:
        self._counts.step(self._last)
        return getattr(Files, name)(self, *arguments, **options)

    return method


_CHANGING = (
    *("make_directory", "make", "open", "create", "write_at", "grow", "allocate", "map"),
    *("flush", "flush_directory", "flush_names", "replace", "unlink", "lock", "unlock"),
    *("make_fifo", "open_fifo"),
)
for _name in _CHANGING:
    setattr(DyingFiles, _name, _dying(_name))


class Step(NamedTuple):
    """One message of the scenario: its payload contains its index."""

    number: int
    size: int

    @property
    def payload(self) -> bytes:
        """The bytes that are sent."""
        return b"%08d" % self.number + b"." * self.size


def _batches() -> list[list[bytes]]:
    """Return what the scenario sends: single messages, one larger than a segment, batches over several segments."""
    sizes = [[10], [600], [600] * 3, [9000], [10] * 5, [1500] * 5, [3000], [4032 - 8 - 8], [0], [700] * 12, [20]]
    numbers = iter(range(1000))
    return [[Step(next(numbers), size).payload for size in batch] for batch in sizes]


def _scenario(path: Path, files: Files, counts: Counts, background: Background, durability: Durability) -> None:
    """Everything that writes to the disk, in a fixed order."""
    with opened(path, ChannelOptions(segment_size=4096, durability=durability), files=files) as store:
        _send(store, _batches(), counts)
        background.run()
        _consume(store, 7, counts)
        store.flusher.flush()
        _send(store, _batches()[:4], counts)
        store.purge()
        counts["purged"] = 1
        _send(store, _batches()[4:], counts)
    with opened(path, SMALL, files=files) as store:
        _consume(store, 3, counts)
        store.seal()
        store.flusher.flush()
        counts["sealed"] = 1


def _send(store: Store, batches: list[list[bytes]], counts: Counts) -> None:
    for batch in batches:
        if len(batch) == 1 and len(batch[0]) > 3000 and isinstance(active := _active(store), Segment):
            store.segments.prepare_free_file(active)  # into which it rolls
            store.log.prepare_next_segment()
        store.log.append(batch)
        if store.log.writer.deferred:
            store.flusher.commit()
        counts["sent"] += 1


def _active(store: Store) -> StoredSegment | None:
    begins = store.segments.begins
    return store.segments.get(begins[-1]) if begins else None


def _consume(store: Store, most: int, counts: Counts) -> None:
    cursor = store.cursors.open(CONSUMER)
    position = cursor.position
    reader = reader_of(store, cursor)
    reader.move(store.lookup.earliest() if position is None else position.log_position)
    for _ in range(most):
        if reader.native.take() is not NOTHING:
            counts["consumed"] = reader.native.sequence
    reader.close()
    store.cursors.close(cursor)


def _check_scenario(path: Path, counts: Counts) -> None:
    """Whatever step it died at: no accepted message is lost, none is duplicated, batches are whole, sending works."""
    everything = [*_batches(), *_batches()[:4], *_batches()[4:]]
    with opened(path) as store:
        found = payloads_of(store)
        total = store.control.tail().sequence
        ends = {sum(map(len, everything[:count])): count for count in range(len(everything) + 1)}
        assert total in ends, "half a batch"
        assert counts["sent"] <= ends[total] <= counts["sent"] + 1, "lost or doubled"
        messages = [payload for batch in everything for payload in batch][:total]
        purged = sum(map(len, everything[: len(_batches()) + 4]))
        assert found in (messages, messages[purged:]), "not what was sent"
        assert not counts["purged"] or found == messages[purged:]
        cursor = store.cursors.open(CONSUMER)
        assert (cursor.position.sequence if cursor.position else 0) >= counts["consumed"]
        store.cursors.close(cursor)
        assert store.control.sealed or not counts["sealed"]
        if not store.control.sealed:
            _send(store, [[b"resumes"]], counts)
            assert payloads_of(store) == [*found, b"resumes"]


def die_at_every_step(directory: Path, durability: Durability, *, each: bool) -> int:
    """Kill a writer at each of its steps, one by one, or at the first of every kind; return how often."""
    background = Background.install(pytest.MonkeyPatch())

    def live(last: int) -> Counts:
        path, counts = directory / f"{last}", Counts()
        files = DyingFiles(last, counts)
        finished = die_in_child(lambda: _scenario(path, files, counts, background, durability))
        assert finished == (last == NEVER)
        _check_scenario(path, counts)
        background.forget()
        shutil.rmtree(path)
        return counts

    return die_at_each_step(live, each=each)


# Death after a flush has failed


class BrokenFiles(DyingFiles):
    """Fails one flush, when the test asks for it."""

    is_broken = False

    def flush(self, descriptor: int) -> None:
        """Refuse it, or flush."""
        if self.is_broken:
            self.is_broken = False
            self._counts["flushed"] = 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().flush(descriptor)


def _fail(path: Path, files: BrokenFiles, counts: Counts, durability: Durability) -> None:
    with opened(path, ChannelOptions(segment_size=4096, durability=durability), files=files) as store:
        _send(store, [[b"before"]], counts)
        store.log.append([b"." * 3000] * 3)
        files.is_broken = True
        with suppress(StorageError):
            store.flusher.commit()
        _send(store, [[b"after"]], counts)


def _check_failed(path: Path, counts: Counts) -> None:
    """Once a flush has failed, wherever it died: what readers saw is stored, and the log resumes far beyond it."""
    with opened(path) as store:
        found = payloads_of(store)
        assert len(found) >= counts["sent"]
        if counts["flushed"]:
            assert store.log.append([b"resumes"]) >= OFFSET_GAP, "an offset is used twice"
            assert payloads_of(store) == [*found, b"resumes"]
        store.log.append([b"and on"])


def die_after_a_failure(directory: Path, durability: Durability, *, each: bool) -> int:
    """The same in a life in which a flush fails."""
    background = Background.install(pytest.MonkeyPatch())

    def live(last: int) -> Counts:
        path, counts = directory / f"{last}", Counts()
        files = BrokenFiles(last, counts)
        finished = die_in_child(lambda: _fail(path, files, counts, durability))
        assert finished == (last == NEVER)
        _check_failed(path, counts)
        background.forget()
        shutil.rmtree(path)
        return counts

    return die_at_each_step(live, each=each)


# Death at any moment


def _live(path: Path, counts: Counts, random: Random, durability: Durability) -> None:
    """Send numbered messages as fast as possible, alone and in batches, while another thread consumes."""
    store = open_store(path, ChannelOptions(segment_size=4096, durability=durability))
    number = store.control.tail().sequence
    counts["sent"] = number
    threading.Thread(target=_consume_for_ever, args=(store, counts), daemon=True).start()
    while True:
        size = random.choice((1, 1, 1, 2, 30))
        batch = [b"%d %d %d " % (number + index, index, size) + b"." * random.randrange(300) for index in range(size)]
        if size == 1:
            store.log.writer.append(batch[0])
        else:
            store.log.writer.append_all(batch)
        if store.log.writer.deferred:
            store.flusher.commit()
        number += size
        counts["sent"] = number


def _consume_for_ever(store: Store, counts: Counts) -> None:
    cursor = store.cursors.open(CONSUMER)
    position = cursor.position
    reader = reader_of(store, cursor)
    reader.move(store.lookup.earliest() if position is None else position.log_position)
    while True:
        if reader.native.take() is not NOTHING:
            counts["consumed"] = reader.native.sequence


def _check_life(path: Path, counts: Counts) -> None:
    with opened(path, create=False) as store:
        messages = read_all(store)
        for number, message in enumerate(messages):
            written, index, size = map(int, message.payload.split()[:3])
            assert written == number == message.sequence, f"message {written} at place {number}"
            assert number - index + size <= len(messages), "half a batch"
        assert len(messages) >= counts["sent"], f"{counts['sent'] - len(messages)} accepted messages are lost"
        cursor = store.cursors.open(CONSUMER)
        if cursor.position is not None:
            assert counts["consumed"] <= cursor.position.sequence <= counts["consumed"] + 1
            reader = reader_of(store)
            reader.move(cursor.position.log_position)
            assert len(take_all(reader)) == len(messages) - cursor.position.sequence
            reader.close()
        store.cursors.close(cursor)


def die_at_any_moment(directory: Path, seed: int, times: int) -> int:
    """Kill a busy process at random moments, so many times or a few more; return how often."""
    background = Background.install(pytest.MonkeyPatch())
    random, deaths = Random(seed), 0
    while deaths < times:
        path = directory / f"{deaths}"
        durability = random.choice((Durability.OS, Durability.OS, Durability.FSYNC))
        counts = Counts()
        for _ in range(5):
            life_seed = random.getrandbits(32)
            lived = random.uniform(0.0, 0.04)
            die_in_child(lambda: _live(path, counts, Random(life_seed), durability), after=lived)  # noqa: B023
            deaths += 1
            if (path / "channel.json").exists():
                _check_life(path, counts)
            background.forget()
        shutil.rmtree(path, ignore_errors=True)
    return deaths


def main(mode: str, *arguments: str) -> None:
    """Run one of them."""
    # In memory where that is possible: a process crash has nothing to do with the disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        if mode in ("steps", "failure"):
            die = die_at_every_step if mode == "steps" else die_after_a_failure
            durability = Durability.FSYNC if arguments[0] == "fsync" else Durability.OS
            count = die(Path(directory), durability, each=arguments[1] == "each")
        else:
            count = die_at_any_moment(Path(directory), int(arguments[0]), int(arguments[1]))
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
