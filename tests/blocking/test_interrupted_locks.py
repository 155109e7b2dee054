"""Calls that hold a lock of the kernel, and are interrupted by exceptions of signal handlers.

The exceptions are kept, as a program that logs them later does: their tracebacks keep what their frames refer to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from anyio import ClosedResourceError

from filechannel import ChannelOptions, Retention
from filechannel._format import PURE, holds_mutex
from filechannel._format.layout import OPENING_BYTE
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from filechannel._wakeup.send_queue import QueueEntry, send_queue_of
from filechannel.blocking import FanOutReceiver, FileChannel, open_channel
from tests.blocking.interruptions import Attempt, InterruptError, elsewhere
from tests.blocking.threads import in_thread, until
from tests.storage.channels import SMALL, opened

pytestmark = pytest.mark.skipif(PURE, reason="the pure implementation promises nothing here; see mutex.py")


class Keeping:
    """Does something, and keeps the exceptions that interrupt it."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.kept: list[InterruptError] = []

    def __call__(self) -> None:
        """Do it."""
        try:
            self._work()
        except InterruptError as error:
            self.kept.append(error)
            raise


def test_an_interrupted_lock_holder_blocks_no_other_process(path: Path) -> None:
    """A thread that is interrupted at any line releases its lock for other threads and processes."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        keeping = Keeping(lambda: store.maintenance_lock.run_locked(lambda: None))
        for number in count(1):
            attempt = Attempt(number, keeping)
            assert not holds_mutex(), attempt.where
            other.maintenance_lock.run_locked(lambda: None)  # `Busy` if the first one is not over
            elsewhere(lambda: store.maintenance_lock.run_locked(lambda: None), attempt.where)
            if attempt.where is None:
                break
        assert keeping.kept


def test_an_interrupted_thread_does_not_overtake_senders_that_wait_for_capacity(path: Path) -> None:
    """A sender that is interrupted while it waits for capacity sends only when it is the first in the send queue."""
    with open_channel(path, bytes) as channel:
        store = channel._store
        line = send_queue_of(store)

        def be_served() -> None:
            with line.serving():
                pass

        keeping = Keeping(be_served)
        with line.joined(QueueEntry(lambda: False)):
            for number in count(1):
                attempt = Attempt(number, keeping)
                assert not store.capacity.may_pass(), attempt.where
                if attempt.where is None:
                    break
        assert keeping.kept


def test_closing_ends_a_configure_that_waits_for_another_process(path: Path) -> None:
    """`close` ends a `configure` that waits for a stopped process: it raises an error and changes nothing."""
    with open_channel(path, bytes) as channel:
        locks = KernelLocks(Files(), path / "lock")
        try:
            assert locks.take(OPENING_BYTE)
            with in_thread(lambda: channel.configure(retention=Retention(max_bytes=1 << 20))) as configured:
                until(lambda: bool(channel._blocking_calls._running))
                channel.close()
            assert isinstance(configured.exception(), ClosedResourceError)
        finally:
            locks.close()
    with open_channel(path, bytes) as channel:
        assert channel._store.manifest.options.retention == Retention()


def _count_open(path: Path) -> int:
    """Return how many descriptors of this process are those of a file."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.parametrize("what", ["configure", "purge", "remove_consumer", "consumers", "unsubscribe"])
def test_an_interrupted_call_holds_no_lock_of_the_kernel(path: Path, what: str) -> None:
    """After an interrupted call names and channels can be opened again, although the exception is kept."""
    with (
        open_channel(path, bytes, options=ChannelOptions(segment_size=4096)) as channel,
        channel.sender() as tx,
    ):
        locks = KernelLocks(Files(), path / "lock")
        try:
            before = _count_open(path / "lock")
            interrupted: list[Keeping] = []
            for number in count(1):
                tx.send(b"one")
                rx = channel.receiver("r", expires=1e-9)
                if what != "unsubscribe":
                    rx.close()
                interrupted.append(Keeping(_call(channel, rx, what)))
                attempt = Attempt(number, interrupted[-1])
                rx.close()
                until(lambda: not locks.is_taken(OPENING_BYTE))
                until(lambda: _count_open(path / "lock") == before)
                if attempt.where is None:
                    break
            assert len(interrupted) > 1
        finally:
            locks.close()


def _call(channel: FileChannel[bytes], rx: FanOutReceiver[bytes], what: str) -> Callable[[], object]:
    calls: dict[str, Callable[[], object]] = {
        "configure": lambda: channel.configure(retention=Retention(max_bytes=1 << 20)),
        "purge": channel.purge,
        "remove_consumer": lambda: channel.remove_consumer("r"),
        "consumers": channel.consumers,
        "unsubscribe": rx.unsubscribe,
    }
    return calls[what]
