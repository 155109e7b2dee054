"""Background work under the test's control: it is done when the test says so, or never."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest


class Background:
    """Replaces the threads that flush; keeps the work until the test asks for it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def do(self, work: Callable[[], object]) -> None:
        """Take a piece of work."""
        self.waiting.append(work)

    def run(self) -> None:
        """Do what is waiting."""
        while self.waiting:
            self.waiting.pop(0)()

    def forget(self) -> None:
        """Never do what is waiting."""
        self.waiting.clear()

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> Background:
        """Replace the threads by this object."""
        background = cls()
        for module in ("durability.flusher", "durability.group_commit", "log.prepare_next"):
            monkeypatch.setattr(f"filechannel._storage.{module}.background_threads", lambda: background)
        monkeypatch.setattr("filechannel._storage.durability.flusher.FINISHED_FLUSH_DELAY_SECONDS", 0)
        for module in ("durability.flusher", "segments.catalog", "consumers.cursors"):
            monkeypatch.setattr(f"filechannel._storage.{module}.do_in_parallel", _do_in_order)
        return background


@contextmanager
def no_more_threads() -> Iterator[None]:
    """A process that can start no thread as long as the block lasts."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as limited:
        limited.setattr(Thread, "start", refuse)
        limited.setattr("filechannel._runtime.threads.start_new_thread", refuse)
        yield


def _do_in_order(work: list[Callable[[], object]]) -> None:
    """Do several things always in the same order."""
    for each in work:
        each()
