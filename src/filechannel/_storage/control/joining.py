"""Joining: how a process becomes one of those that have a channel open, one process at a time.

A process that opens a channel holds the open lock, a kernel lock on a byte of the lock file, until it has joined. If no
other process has the channel open, dead processes left the control page, and it may be recovered. Otherwise it is in
use, and recovery must not touch it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..._errors import ChannelLockedError, StorageError
from ..._format import PURE
from ..._format.layout import MODE_BYTE, OPENING_BYTE
from ..system.kernel_locks import KernelLocks
from ..system.os_calls import Files
from .control_file import CONTROL
from .control_page import Control
from .live_processes import Processes, describe_opener, forget_opener, opener_of
from .lock_file import LOCK, open_lock_file
from .lock_holder import Holder
from .wake_fifos import WAKE_FIFOS, remove_fifo

_logger = logging.getLogger("filechannel")


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of this process among those that have a channel open for writing."""

    locks: KernelLocks
    """Locks on the lock file."""
    marks: KernelLocks
    """Locks on the control file, which mark the slot."""
    processes: Processes

    def close(self) -> None:
        """Leave the channel: release all locks."""
        self.locks.close()
        self.marks.close()


@dataclass(frozen=True, slots=True)
class Joined:
    """The state in which a process finds a channel that it has joined."""

    control: Control
    membership: Membership
    is_alone: bool
    """Whether no other process has the channel open for writing."""


@contextmanager
def joining(files: Files, path: Path, descriptor: int, wanted: Callable[[], bool]) -> Generator[Joined]:
    """Join the processes that have a channel open, one at a time; an error in the block leaves the channel again.

    Raises `ChannelLockedError` if the channel cannot be shared, and `UnwantedError` if *wanted* returns False while
    this process waits for the open lock.
    """
    while True:
        with ExitStack() as leaving:
            locks = open_lock_file(files, path, descriptor)
            leaving.callback(locks.close)
            marks = KernelLocks(files, path / CONTROL)
            leaving.callback(marks.close)
            with opening(files, path, descriptor, locks, wanted):
                joined = _enter(files, path, descriptor, locks, marks)
                if joined is not None:
                    leaving.callback(joined.control.close)
                    with described_opener(joined.control):
                        yield joined
                    leaving.pop_all()
                    return


def _enter(files: Files, path: Path, descriptor: int, locks: KernelLocks, marks: KernelLocks) -> Joined | None:
    """Take a slot; return None if the lock file was deleted meanwhile: other processes may hold another one."""
    if not locks.are_named():
        return None
    control = Control(files, descriptor, path=path / CONTROL)
    try:
        joined = _take_slot(files, path, control, locks, marks)
        # Our mark and the inode number of our lock file are stored: a process that makes another lock file from now on
        # sees both.
        if locks.are_named():
            return joined
    except BaseException:
        control.close()
        raise
    control.close()
    return None


def _take_slot(files: Files, path: Path, control: Control, locks: KernelLocks, marks: KernelLocks) -> Joined:
    """Join the processes that have the channel open; raise `ChannelLockedError` if the channel cannot be shared."""
    processes = Processes(control.map, locks, marks)
    if control.identity.lock_file != locks.inode:
        strangers = processes.strangers()
        if strangers:
            raise _locked(path, processes.holder(strangers[0]), f"{path / LOCK} was deleted while it was in use")
        control.identity.lock_file = locks.inode  # before the caller checks the lock file's name for the last time
    others = processes.others()
    # The pure-Python implementation has no compare-and-swap: it shares a channel with no other process.
    if not locks.take(MODE_BYTE, shared=not PURE):
        raise _locked(path, processes.holder(others[0]) if others else Holder(None, None, None))
    try:
        processes.join(lambda slot: remove_fifo(files, path / WAKE_FIFOS, slot))
    except StorageError as error:
        raise StorageError(f"{path}: {error}") from error
    return Joined(control, Membership(locks, marks, processes), not others)


def _locked(path: Path, holder: Holder, reason: str | None = None) -> ChannelLockedError:
    holder = holder.unless_ended()
    return ChannelLockedError(path, holder.pid, holder.host, holder.since, reason)


@contextmanager
def opening(
    files: Files, path: Path, descriptor: int, locks: KernelLocks, wanted: Callable[[], bool] = lambda: True
) -> Generator[None]:
    """Hold the open lock. A wait of seconds is logged once, with the process that holds the lock."""

    def warn() -> None:
        holder = opener_of(files, descriptor).unless_ended()
        who = "another process" if holder.pid is None else f"process {holder.pid} on {holder.host}"
        _logger.warning("%s: waiting for %s, which opens, configures or repairs the channel", path, who)

    with locks.holding(OPENING_BYTE, wanted, warn):
        yield


@contextmanager
def described_opener(control: Control) -> Generator[None]:
    """Store that this process holds the open lock, for the processes that wait for it."""
    describe_opener(control.map)
    try:
        yield
    finally:
        forget_opener(control.map)
