"""Steps under FSYNC, and the power is cut at any moment: nothing is lost and nothing doubled.

Both channels of a chain are in one watched file tree. A life sends and steps at random, images are taken at random
calls to the operating system, and the next life begins with what a kill or a power cut leaves of one of them. A seed
that failed is run alone with `FILECHANNEL_SEED=123`.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from filechannel import Durability
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE
from filechannel._maintenance.background.plan_reclaim import reclaim_after
from filechannel._storage import open_stores
from filechannel._storage.open_stores import STORES
from tests.channel.steps import Chain, chain, made_of_all
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.compressing import compress_all
from tests.storage.conftest import background, boots
from tests.storage.lives import _release_processes
from tests.storage.power import Directory, Image, PowerFiles

__all__ = ["background", "boots"]

SEED = os.environ.get("FILECHANNEL_SEED")
GROUPS = 5
ROUNDS = 2 if PURE else 8


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels that lose power repeatedly log a lot, and no thread runs in the background."""
    caplog.set_level(logging.CRITICAL, "filechannel")
    monkeypatch.setattr(MAINTENANCE, "register", lambda _: None)


class Life:
    """One process's time with a chain."""

    def __init__(self, root: Path, random: Random, background: Background, sent: int, tree: Directory | None) -> None:
        self.moments: list[tuple[Image, int]] = []
        self.sent = sent
        self._random = random
        self._background = background
        self._files = PowerFiles(root, tree)
        self._files.on_call = self._on_call
        open_stores.Files = lambda: self._files  # type: ignore[assignment, misc]
        self.chain = Chain(root, Durability.FSYNC, thrifty=True)

    def _on_call(self, name: str) -> None:
        if self._random.random() < 0.05:
            self.remember()

    def remember(self) -> None:
        """Take an image."""
        self.moments.append((self._files.image(), self.sent))

    def spend(self) -> None:
        """Send and step, flush, purge, reclaim and compress."""
        for _ in range(self._random.randint(3, 20)):
            act = self._random.random()
            if act < 0.4:
                size = self._random.choice((1, 2, 20, 200))
                self.chain.subscription.send_many(range(self.sent, self.sent + size))
                self.sent += size
            elif act < 0.88:
                self.chain.step(self._random.choice((0, 0, 1)), self._random.choice((1, 3, 50)))
            elif act < 0.9:
                self.chain.purge()
            elif act < 0.93:
                self.chain.channels[self._random.randrange(3)].flush()
            elif act < 0.97:
                self._maintain()
            else:
                self._background.run()
            self._files.observe()
        self.remember()

    def _maintain(self) -> None:
        """Reclaim consumed segments of the middle, whose files are recycled, and compress the rest."""
        for channel in self.chain.channels:
            with channel._store.maintenance_lock.held():
                with suppress(Busy):  # no part of a batch without a checkpoint is reclaimed: the worker retries
                    reclaim_after(channel._store, self._random.choice((0.0, 1e9)))
                compress_all(channel._store)

    def check(self) -> None:
        """What is there was made of what was taken, and nothing is missing at the end."""
        self.sent = self.chain.check(self.sent)
        if self._random.random() < 0.5:
            self.chain.finish()
            self.chain.check(self.sent)
            self.chain.check_finished()

    def end(self) -> None:
        """Release everything as the kernel does when a process dies: nothing is written any more."""
        self._background.forget()
        for channel in self.chain.channels:
            store, channel._closed = channel._store, True
            store.cursors.close_all()
            store.segments.close()
            _release_processes(store, self._files)
            self._files.close(store._directory.descriptor)
        STORES._open.clear()
        self._files.stop_watching()


def _run(memory: Path, seeds: range, boots: Boots, background: Background) -> None:
    for seed in [int(SEED)] if SEED else seeds:
        root = memory / str(seed)
        root.mkdir()
        try:
            _history(root, Random(seed), boots, background)
        except BaseException as error:
            error.add_note(f"FILECHANNEL_SEED={seed}")
            raise
        shutil.rmtree(root)


def _history(root: Path, random: Random, boots: Boots, background: Background) -> None:
    (root / "0").mkdir()
    life = Life(root / "0", random, background, 0, None)
    for number in range(1, 5):
        try:
            life.spend()
        finally:
            life.end()
        image, sent = random.choice(life.moments)
        place = root / str(number)
        if random.random() < 0.75:
            boots.again()
            tree = image.cut_power(place, random)
        else:
            tree = image.materialize(place)
        life = Life(place, random, background, sent, tree)
        try:
            life.check()
        except BaseException:
            life.end()
            raise
    life.end()


@pytest.fixture(autouse=True)
def _own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the real file system afterwards."""
    monkeypatch.setattr(open_stores, "Files", open_stores.Files)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_chain_survives(memory: Path, boots: Boots, background: Background, group: int) -> None:
    """After a power cut that loses or tears any unflushed pages and names, every input has its outputs once."""
    _run(memory, range(group * ROUNDS, (group + 1) * ROUNDS), boots, background)


@pytest.mark.soak
def test_a_chain_survives_for_long(memory: Path, boots: Boots, background: Background) -> None:
    """After many power cuts with new seeds every input has its outputs once."""
    first = secrets.randbits(40)
    _run(memory, range(first, first + int(os.environ.get("FILECHANNEL_ROUNDS", "1000"))), boots, background)


def test_an_input_that_lost_its_end_continues(memory: Path, boots: Boots) -> None:
    """After an input channel lost its end, its outputs stay, and what is sent later is received."""
    with chain(memory, Durability.OS) as it:
        it.subscription.send_many(range(4))
        it.channels[0].flush()
        store = it.channels[0]._store
        end, segment = store.control.write_offset, store.segments.get(store.segments.begins[0])
        it.subscription.send_many(range(4, 12))
        it.finish()
        it.channels[1].flush()
        it.channels[2].flush()
        before = it.contents()
        segment.wipe(end, segment.space_end)
    boots.again()
    with chain(memory, Durability.OS) as it:
        assert it.contents() == [[0, 1, 2, 3], *before[1:]]
        it.subscription.send_many(range(20, 24))
        it.finish()
        made = made_of_all([20, 21, 22, 23])
        assert it.contents()[1:] == [before[1] + made, before[2] + made_of_all(made)]


def test_an_output_that_lost_its_end_loses_the_position_with_it(memory: Path, boots: Boots) -> None:
    """If an output lost its end and the cursor was not flushed, inputs are received again, and outputs stored once."""
    cursor = memory / "a" / "consumers" / "first.cursor"
    with chain(memory, Durability.OS) as it:
        it.subscription.send_many(range(12))
        it.step(0, 4)
        for channel in it.channels:
            channel.flush()
        on_disk = cursor.read_bytes()
        store = it.channels[1]._store
        end, segment = store.control.write_offset, store.segments.get(store.segments.begins[0])
        it.step(0, 4)
        segment.wipe(end, segment.space_end)
    cursor.write_bytes(on_disk)
    boots.again()
    with chain(memory, Durability.OS) as it:
        assert it.contents()[1] == made_of_all(list(range(4)))
        it.finish()
        assert it.contents()[1] == made_of_all(list(range(12)))
