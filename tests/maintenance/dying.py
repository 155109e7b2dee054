"""Maintenance that is killed: run as a program, it forks a process that maintains a channel, and kills it at every
step.

A step is a system call that changes anything, or a store to a word that others see. The result is checked by a process
that opens the channel afterwards, and by one that had it open all the time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability
from filechannel._format import PURE
from filechannel._maintenance.background.plan_reclaim import IDLE, reclaim_after
from filechannel._storage.consumers import low_watermark
from filechannel._storage.control import control_page, maintenance_lock
from filechannel._storage.segments import segment
from filechannel._storage.store import Store
from tests.maintenance.stores import consume, files_of, fill, reclaim
from tests.storage.background import Background
from tests.storage.channels import SMALL, opened, payloads_of
from tests.storage.deaths import NEVER, Counts, die_at_each_step, die_in_child
from tests.storage.dying import DyingFiles

SEGMENTS, CONSUMED = 5, 10
_SHARED_STORES = {
    control_page: ("store_u64", "store_u32"),
    low_watermark: ("store_u64", "swap_if_u32"),
    maintenance_lock: ("store_u64", "store_u32"),
    segment: ("store_u64",),
}


def die_at_shared_stores(last: int, counts: Counts) -> None:
    """Die before the n-th step, words included. For a child."""

    def dying(store: Callable[..., object]) -> Callable[..., object]:
        def method(*arguments: object) -> object:
            counts.step(last)
            return store(*arguments)

        return method

    for module, names in _SHARED_STORES.items():
        for name in names:
            setattr(module, name, dying(getattr(module, name)))


def _maintain(path: Path, last: int, counts: Counts, idle: float) -> None:
    die_at_shared_stores(last, counts)
    with opened(path, SMALL, files=DyingFiles(last, counts)) as store:
        counts["life"] = 1
        with store.maintenance_lock.held():
            reclaim_after(store, idle)


def _prepare(path: Path, idle: float, durability: Durability) -> list[bytes]:
    """Make a channel, and return what has to be left of it."""
    with opened(path, ChannelOptions(segment_size=4096, durability=durability)) as store:
        sent = fill(store, SEGMENTS)
        consumed = CONSUMED if idle else len(sent)
        assert consume(store, consumed) == sent[:consumed]
        consume(store, None, "fast")
        return sent[consumed:]


def _check(store: Store, left: list[bytes], idle: float) -> None:
    """Nothing that a consumer needs is reclaimed; new consumers, senders and the next maintenance are not blocked."""
    before = payloads_of(store)
    assert before[len(before) - len(left) :] == left, "lost"
    late = consume(store, 1, "late")
    assert late == before[:1], "the oldest message was not there any more"
    store.cursors.remove_unowned("late")
    reclaim(store, idle)
    assert payloads_of(store) == (left if not idle else [*before[-6:-5], *left]), "not finished"
    checkpoint = store.control.checkpoints.newest()
    assert checkpoint is not None
    assert checkpoint.oldest == store.control.oldest_offset
    assert {name.partition(".")[0] for name in files_of(store)} == {f"{begin:020}" for begin in store.segments.begins}
    store.log.append([b"resumes"])
    store.flusher.commit()
    assert consume(store) == [*left, b"resumes"]
    assert consume(store, None, "fast") == [b"resumes"]


def die_at_every_step(directory: Path, idle: float, durability: Durability, *, watched: bool, each: bool) -> int:
    """Kill a process that maintains a channel at each of its steps, or at the first of every kind; return how often."""
    background = Background.install(pytest.MonkeyPatch())

    def live(last: int) -> Counts:
        path, counts = directory / f"{last}", Counts()
        left = _prepare(path, idle, durability)
        finished = False
        if not watched:
            finished = die_in_child(lambda: _maintain(path, last, counts, idle))
        with opened(path, SMALL) as store:
            if watched:
                finished = die_in_child(lambda: _maintain(path, last, counts, idle))
            _check(store, left, idle)
        assert finished == (last == NEVER)
        background.forget()
        shutil.rmtree(path)
        return counts

    return die_at_each_step(live, each=each)


def main(mode: str, durability: str, who: str, which: str) -> None:
    """Run one of them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        idle = 0.0 if mode == "idle" else IDLE
        mode_ = Durability.FSYNC if durability == "fsync" else Durability.OS
        watched = who == "watched" and not PURE
        count = die_at_every_step(Path(directory), idle, mode_, watched=watched, each=which == "each")
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
