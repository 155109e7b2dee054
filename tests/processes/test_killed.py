"""Processes killed with SIGKILL while others continue: at any moment, and at every step."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Event

import anyio
import pytest

from filechannel import ChannelOptions, DataExpiredError, Durability, StorageError, open_channel
from filechannel._format import NOTHING, load_u32, load_u64
from filechannel._format.layout import PROCESS_SLOT_COUNT, WAITING_LOOPS, WAKE, WAKE_LOOPS
from filechannel._storage.store import Store
from filechannel._wakeup.waiters import waiters_of
from tests.processes.order_checker import Accepted, Message, OrderChecker
from tests.processes.tasks import SMALL, act_at, create, publish_and_die, read_to_the_end, send_for_ever, wait_for_one
from tests.processes.workers import Child, Workers, until
from tests.storage.channels import opened, reader_of

DURABILITIES = pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])


class Arena:
    """Writers and readers of one channel, some of which are killed."""

    def __init__(self, workers: Workers, path: Path, rng: Random, durability: Durability) -> None:
        self._workers, self._path, self._rng = workers, path, rng
        self._accepted = path.parent / f"accepted-{path.name}"
        self._writers: dict[int, Child] = {}
        self._readers: list[Child] = []
        self._all: list[Accepted] = []
        anyio.run(create, path, ChannelOptions(segment_size=16384, durability=durability))

    def fill(self) -> None:
        """Let there be three writers and two readers."""
        while len(self._writers) < 3:
            writer = len(self._all)
            self._all.append(Accepted(self._accepted, writer))
            task = (self._path, self._accepted, writer, self._rng.getrandbits(32))
            self._writers[writer] = self._workers.start(send_for_ever, *task)
            self._writers[writer].meet()
        while len(self._readers) < 2:
            reader = self._workers.start(read_to_the_end, self._path)
            reader.meet()
            reader.send("go")
            self._readers.append(reader)

    def kill_some(self) -> None:
        """Kill one of them or, seldom, all, at a random moment."""
        Event().wait(self._rng.uniform(0, 0.02))
        victims = [self._rng.choice([*self._writers.values(), *self._readers])]
        if self._rng.random() < 0.1:
            victims = [*self._writers.values(), *self._readers]
        for victim in victims:
            assert not victim.has_message, victim.receive()
            self._workers.dismiss(victim)
        self._writers = {writer: child for writer, child in self._writers.items() if child not in victims}
        self._readers = [child for child in self._readers if child not in victims]

    def check_progress(self) -> None:
        """Check that every live writer gets a message accepted."""
        for writer, child in self._writers.items():
            reported, seen = self._all[writer], self._all[writer].count
            until(lambda: reported.count > seen or child.has_message, "a survivor continues")  # noqa: B023
            assert not child.has_message, child.receive()

    def end(self) -> None:
        """Let all processes finish; every accepted message is stored, in one order."""
        for child in self._writers.values():
            child.send("end")
        for child in self._writers.values():
            child.result()
        anyio.run(self._seal)
        checker = OrderChecker()
        with opened(self._path) as store:
            add_all(store, checker)
        for reader in self._readers:
            assert reader.result() == (checker.digest, checker.counts)
        for writer, reported in enumerate(self._all):
            found = checker.counts.get(writer, 0)
            assert reported.count <= found <= reported.count + 30, f"{writer}: {reported.count} accepted, {found} found"

    async def _seal(self) -> None:
        async with open_channel(self._path, bytes) as channel:
            await channel.seal()


def add_all(store: Store, checker: OrderChecker) -> None:
    """Take down everything that is stored."""
    reader = reader_of(store)
    reader.move(store.lookup.earliest())
    while (payload := reader.native.take()) is not NOTHING:
        checker.add(payload)
    reader.close()


@DURABILITIES
def test_any_process_may_be_killed_at_any_moment(
    workers: Workers, path: Path, rng: Random, durability: Durability
) -> None:
    """After a kill at any moment no accepted message is lost or duplicated, and the others continue at once."""
    arena = Arena(workers, path, rng, durability)
    for _ in range(12):
        arena.fill()
        arena.kill_some()
        arena.check_progress()
    arena.end()


@pytest.mark.soak
@DURABILITIES
def test_thousands_are_killed(workers: Workers, path: Path, rng: Random, durability: Durability) -> None:
    """After kills in FILECHANNEL_ROUNDS rounds, 40 for each channel, no accepted message is lost or duplicated."""
    rounds = int(os.environ.get("FILECHANNEL_ROUNDS") or 3000)
    for number in range(rounds // 40):
        arena = Arena(workers, path.with_name(f"channel-{number}"), rng, durability)
        for _ in range(40):
            arena.fill()
            arena.kill_some()
            arena.check_progress()
        arena.end()


# At every step


class Survivor:
    """The process of the test: has the channel open while others die, reads everything and keeps sending."""

    def __init__(self, store: Store, path: Path) -> None:
        self.accepted = path.parent / "accepted"
        self._store = store
        self._reader = reader_of(store)
        self._reader.move(store.lookup.earliest())
        self._checker = OrderChecker()
        self._sent = 0

    def check(self, dead: int) -> None:
        """Send, flush and read: all of it works, and what the dead processes got accepted is stored, and whole."""
        self._store.log.append([Message(0, self._sent, 0, 1).pack()])
        self._sent += 1
        self._store.flusher.flush()
        purged = self._read()
        assert self._checker.digest
        assert self._checker.counts[0] == self._sent
        assert purged or self._checker.counts.get(dead, 0) >= Accepted(self.accepted, dead).count, "lost"

    def _read(self) -> bool:
        """Read what is stored, and return whether some of it was reclaimed."""
        purged = False
        while True:
            try:
                payload = self._reader.native.take()
            except DataExpiredError:
                self._checker.skip()
                purged = True
            else:
                if payload is NOTHING:
                    return purged
                self._checker.add(payload)

    def close(self) -> None:
        """Close everything."""
        self._reader.close()


@contextmanager
def surviving(path: Path, options: ChannelOptions) -> Iterator[Survivor]:
    """Have the channel open."""
    with opened(path, options) as store:
        survivor = Survivor(store, path)
        try:
            yield survivor
        finally:
            survivor.close()


STEPS = {"roll": 8, "allocate": 4, "flush": 8, "open": 8, "configure": 20, "purge": 12}
"""How many calls to the file system each piece of work makes, at the least."""
STRIDES = pytest.mark.parametrize(
    "stride", [pytest.param(1, marks=pytest.mark.soak, id="each"), pytest.param(4, id="some")]
)


def steps_of(rng: Random, stride: int) -> Iterator[int]:
    """Return which steps to die at: each, or some of them, of which the last ones are beyond any work's end."""
    return iter(range(rng.randrange(stride), 1000, stride))


@STRIDES
@DURABILITIES
@pytest.mark.parametrize("work", list(STEPS))
def test_a_process_may_die_at_every_step(
    workers: Workers, path: Path, rng: Random, work: str, durability: Durability, stride: int
) -> None:
    """If a process dies before any call to the file system, the live process continues, and nothing is lost."""
    size = 8 << 20 if work == "allocate" else 4096
    anyio.run(create, path, ChannelOptions(segment_size=size, durability=durability))
    with surviving(path, ChannelOptions(segment_size=size)) as survivor:
        for step in steps_of(rng, stride):
            child = workers.start(act_at, path, survivor.accepted, step + 1, work, step, "die")
            if work != "open":
                child.meet()
                child.send("go")
            code = child.wait()
            survivor.check(step + 1)
            if work == "configure":
                see_one_durability(path)
            if code == 0:
                break
            workers.dismiss(child)
        assert step > STEPS[work]


def see_one_durability(path: Path) -> None:
    """A process that opens the channel finds the stored durability in force, although a change was cut short."""
    with opened(path, create=False) as store:
        assert store.control.deferred == (store.manifest.options.durability == Durability.FSYNC)


@STRIDES
@pytest.mark.parametrize("work", ["roll", "flush"])
def test_a_takeover_that_fails_is_repeated(
    workers: Workers, path: Path, rng: Random, work: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takeover from a dead process that fails is repeated by the next process."""
    anyio.run(create, path)
    with surviving(path, SMALL) as survivor, opened(path) as other:
        for step in steps_of(rng, stride):
            child = workers.start(act_at, path, survivor.accepted, step + 1, work, step, "die")
            child.meet()
            child.send("go")
            code = child.wait()
            with monkeypatch.context() as broken:
                broken.setattr(other.segments, "scan", out_of_descriptors)
                with suppress(OSError, StorageError):
                    other.log.append([Message(step + 1, 10**6, 0, 1).pack()])
                    raise AssertionError("that cannot have worked")
            survivor.check(step + 1)
            if code == 0:
                break
            workers.dismiss(child)
        assert step > STEPS[work]


def out_of_descriptors() -> None:
    """Fail as the kernel does."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


# Waiters, and the publishers that should have woken them


def is_armed(store: Store, loops: int = 1) -> bool:
    """Return whether so many processes have event loops that wait."""
    bits = (load_u64(store.control.map, WAITING_LOOPS + 8 * word) for word in range(PROCESS_SLOT_COUNT // 64))
    waiting = sum(word.bit_count() for word in bits)
    return waiting >= loops and bool(load_u32(store.control.map, WAKE) & WAKE_LOOPS)


def test_killed_waiters_concern_no_other_process(workers: Workers, path: Path) -> None:
    """Receivers that are killed while they wait block no sender, and no wakeup of other waiters."""
    anyio.run(create, path)
    with opened(path) as store:
        waiters_of(store)
        for number in range(5):
            victims = [workers.start(wait_for_one, path, backend=backend) for backend in ("asyncio", "uvloop", "trio")]
            waiting = [workers.start(wait_for_one, path, backend=backend) for backend in ("asyncio", "trio")]
            for child in (*victims, *waiting):
                child.meet()
            for child in victims[number % 3 :]:
                workers.dismiss(child)
            payload = b"%d" % number
            store.log.append([payload])
            for child in waiting:
                assert child.result() == payload


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_a_publisher_killed_before_it_wakes_any_waiter(workers: Workers, path: Path, backend: str) -> None:
    """If a publisher is killed before its wakeups, waiters get the message within a second, when they rescan."""
    anyio.run(create, path)
    waiting = [workers.start(wait_for_one, path, backend=backend) for _ in range(2)]
    for child in waiting:
        child.meet()
    with opened(path) as store:
        until(lambda: is_armed(store, 2), "they wait")
        publisher = workers.start(publish_and_die, path, b"late")
        publisher.meet()
        publisher.send("go")
        publisher.wait()
        until(lambda: all(child.has_message for child in waiting), "the watchdog looks")
    assert [child.result() for child in waiting] == [b"late"] * 2
