"""Channels that are damaged: run as a program, it overwrites, cuts off and removes, and forks processes that read.

Reading happens in separate processes, so that one that dies of a signal, takes too long or wants too much memory is
noticed and does not take the tests with it.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from filechannel import ConsumerDamagedError, FileChannelError
from filechannel._format.layout import (
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_EXTRA,
    COMPRESSED_TABLE,
    RECORD_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
)
from filechannel._storage.segments.segment import begin_of
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.storage.background import Background
from tests.storage.channels import Message, opened, read_all, reader_of
from tests.storage.compressing import compress_all

_BLOCK = 700
_SECONDS = 30
_MEMORY = 2 << 30
_KINDS = (".seg", ".seg", ".seg", ".seg.z", ".seg.z", ".seg.z", ".idx", "channel.json", "control", "control", ".cursor")


@dataclass(frozen=True)
class Damage:
    """What was done to which bytes of which file."""

    file: Path
    what: str
    start: int
    stop: int
    table: tuple[tuple[int, int], ...] = ()
    """Of a compressed segment: position and length of each block, before it was damaged."""

    def is_readable(self, message: Message, begins: list[int]) -> bool:
        """Return whether a message must still be readable."""
        begin = begin_of(self.file.name.removesuffix(".z"))
        if begin is None:
            return self.file.name != "channel.json"
        following = min((other for other in begins if other > begin), default=1 << 63)
        if not begin <= message.offset < following:
            return True
        if self.table:
            return self.start >= self.table[0][0] and not any(map(self._hits, self._blocks_of(message, begin)))
        start = SEGMENT_HEADER_SIZE + message.offset - begin
        stop = start + RECORD_HEADER_SIZE + len(message.payload)
        return self.start >= SEGMENT_HEADER_SIZE and (stop <= self.start or start >= self.stop)

    def _blocks_of(self, message: Message, begin: int) -> tuple[tuple[int, int], ...]:
        first, end = message.offset - begin, message.offset - begin + RECORD_HEADER_SIZE + len(message.payload)
        return self.table[first // _BLOCK : -(-end // _BLOCK)]

    def _hits(self, block: tuple[int, int]) -> bool:
        return block[0] < self.stop and self.start < block[0] + block[1]


def _table_of(file: Path) -> tuple[tuple[int, int], ...]:
    if not file.name.endswith(".z"):
        return ()
    content = file.read_bytes()
    count = COMPRESSED.unpack_from(content, COMPRESSED_EXTRA)[3]
    entries = COMPRESSED_BLOCK.iter_unpack(content[COMPRESSED_TABLE : COMPRESSED_TABLE + count * COMPRESSED_BLOCK.size])
    return tuple((position, length) for position, length, _ in entries)


def make(path: Path, background: Background, *, flushed: bool) -> list[Message]:
    """Make a channel that has some of everything."""
    random = Random(5)
    with opened(path) as store:
        for number in range(60):
            sizes = random.choices((0, 5, 50, 300, 1000, 6000), k=random.choice((1, 1, 4)))
            store.log.append([b"%d %d:" % (number, place) + _noise(random, size) for place, size in enumerate(sizes)])
            if number % 20 == 10:
                background.run()
            if number == 25:
                compress_all(store, block_size=_BLOCK)
                assert store.segments.usage().compressed > 5
        cursor = store.cursors.open("consumer")
        reader = reader_of(store, cursor)
        reader.move(store.lookup.earliest())
        for _ in range(10):
            reader.native.take()
        reader.close()
        store.cursors.close(cursor)
        if flushed:
            store.flusher.flush()
        background.forget()
        return read_all(store)


def _noise(random: Random, size: int) -> bytes:
    return bytes(random.choices(b"ab", k=size))


def damage_one(path: Path, random: Random) -> Damage:
    """Damage one thing somewhere."""
    kind = random.choice(_KINDS)
    file = random.choice(sorted(file for file in path.rglob("*") if file.name.endswith(kind)))
    size, table = file.stat().st_size, _table_of(file)
    what = random.choice(("flip", "flip", "flip near the beginning", "cut", "overwrite", "zero", "remove"))
    if what == "remove":
        file.unlink()
        return Damage(file, what, 0, 1 << 63, table)
    start = random.randrange(min(size, 900) if what.endswith("beginning") else size)
    with file.open("r+b") as content:
        if what == "cut":
            content.truncate(start)
            return Damage(file, what, start, 1 << 63, table)
        if what in ("overwrite", "zero"):
            start -= start % 512
            stop = min(start + 4096, size)
            replacement = random.randbytes(stop - start) if what == "overwrite" else bytes(stop - start)
        else:
            content.seek(start)
            stop, replacement = start + 1, bytes([content.read(1)[0] ^ 1 << random.randrange(8)])
        content.seek(start)
        content.write(replacement)
    return Damage(file, what, start, stop, table)


def _look(path: Path, damage: Damage, sent: list[Message], *, readonly: bool, skip: bool, all_left: bool) -> None:
    """Open and read it all: an error is one of ours, what is read was sent, and nothing that was spared is missing."""
    names = [file.name.removesuffix(".z") for file in (path / "segments").iterdir()]
    begins = [begin for name in names if (begin := begin_of(name)) is not None]
    try:
        with opened(path, readonly=readonly) as store:
            found = [message[:2] for message in read_all(store, skip=skip)]
            missing = [message for message in sent if message[:2] not in found and damage.is_readable(message, begins)]
            remaining = iter([message[:2] for message in sent])
            assert all(message in remaining for message in found), "a message that was never sent"
            assert not (all_left and missing), f"lost without need: {[message.offset for message in missing]}"
            assert not all_left or store.control.tail().sequence >= len(sent), "numbers are used twice"
            if not readonly:
                _open_consumer(store, is_damaged=damage.file.suffix == ".cursor")
                store.log.append([b"resumes"])
                assert read_all(store, skip=True)[-1].payload == b"resumes"
    except FileChannelError:
        if skip and not readonly and damage.file.name != "channel.json":
            raise


def _open_consumer(store: Store, *, is_damaged: bool) -> None:
    try:
        store.cursors.close(store.cursors.open("consumer"))
    except ConsumerDamagedError:
        assert is_damaged, "its file is whole"


def _in_child(work: Callable[[], object]) -> str:
    """Run in a separate process; return what went wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(_SECONDS)
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            work()
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        text = report.read().decode()
    _, status = os.waitpid(child, 0)
    return f"died of signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def damage_and_look(directory: Path, seeds: range) -> int:
    """Damage one thing for each seed; return in how many ways that was looked at."""
    background = Background.install(pytest.MonkeyPatch())
    originals = [(directory / f"{flushed}", flushed) for flushed in (True, False)]
    sent = {original: make(original, background, flushed=flushed) for original, flushed in originals}
    looks = 0
    for seed in seeds:
        for readonly, skip in ((False, False), (False, True), (True, True)):
            random, copy = Random(seed), directory / "copy"
            original = random.choice(originals)[0]
            shutil.copytree(original, copy)
            identity = original if random.random() < 0.7 else copy  # else the control file's words are not believed
            damage = damage_one(copy, random)
            # Damage in what was neither flushed nor believed ends the log: the rest is in quarantine.
            all_left = skip and not readonly and (original.name == "True" or identity is original)

            def look() -> None:
                status = (identity / "control").stat() if (identity / "control").exists() else os.stat(copy)  # noqa: B023
                Files.identity = lambda *_: (status.st_dev, status.st_ino)  # type: ignore[method-assign]
                _look(copy, damage, sent[original], readonly=readonly, skip=skip, all_left=all_left)  # noqa: B023

            problem = _in_child(look)
            assert not problem, f"seed {seed}, {damage}, {readonly=}, {skip=}: {problem}"
            shutil.rmtree(copy)
            looks += 1
    return looks


def main(first: str, count: str) -> None:
    """Try some seeds."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        looks = damage_and_look(Path(directory), range(int(first), int(first) + int(count)))
    sys.stdout.write(f"{looks}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
