"""How a process comes to share a channel with others, one at a time.

Whoever opens a channel holds the opening byte meanwhile. If nobody else has the channel open, whatever the control page
says was left by the dead, and may be recovered; if somebody has, it is in use and nothing in it may be touched.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .._errors import ChannelLockedError, StorageError, repair_command
from .._format import PURE
from .._format.layout import CONTROL_SIZE, MODE_BYTE, OPENING_BYTE
from .bells import WAKE_FIFOS, remove_fifo
from .control import CONTROL, Control, Tail
from .files import Files
from .holder import Holder
from .kernel_locks import KernelLocks
from .machine import boot_id
from .manifest import Manifest
from .processes import Processes


@dataclass(frozen=True, slots=True)
class Membership:
    """Our place among the processes that have a channel open for writing."""

    locks: KernelLocks
    processes: Processes

    def close(self) -> None:
        """Leave."""
        self.locks.close()


@dataclass(frozen=True, slots=True)
class Entrance:
    """What whoever comes in finds."""

    control: Control
    membership: Membership
    is_alone: bool
    """Nobody else has the channel open for writing."""


@contextmanager
def entering(files: Files, path: Path, descriptor: int, wanted: Callable[[], bool]) -> Generator[Entrance]:
    """Come in, with nobody else coming in meanwhile; an error in the block means not to stay."""
    locks = KernelLocks(files, path / CONTROL)
    try:
        with locks.holding(OPENING_BYTE, wanted):
            control = Control(files, descriptor)
            processes = Processes(control.map, locks)
            others = processes.others()
            # The pure twin has no compare-and-swap: it shares with nobody.
            if not locks.take(MODE_BYTE, shared=not PURE):
                holder = processes.holder(others[0]) if others else Holder(None, None, None)
                raise ChannelLockedError(path, holder.pid, holder.host, holder.since)
            try:
                processes.join(lambda slot: remove_fifo(files, path / WAKE_FIFOS, slot))
            except StorageError as error:
                raise StorageError(f"{path}: {error}") from error
            yield Entrance(control, Membership(locks, processes), not others)
    except BaseException:
        locks.close()
        raise


def open_control_to_read(files: Files, path: Path, descriptor: int, manifest: Manifest) -> Control:
    """Return the control page for somebody who changes nothing."""
    if files.size(descriptor) < CONTROL_SIZE:
        raise StorageError(f"{path / CONTROL} is cut off; {repair_command(path)} finds the end of the log anew")
    control = Control(files, descriptor, writable=False)
    if control.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail:
        return control
    # Nobody has recovered it yet: show what the last checkpoint covers, in a copy of our own.
    control = Control(files, descriptor, private=True)
    checkpoint = control.checkpoint()
    if checkpoint is None:
        raise StorageError(f"{path / CONTROL} does not say where the log ends; {repair_command(path)} finds it")
    tail = Tail(checkpoint.offset, checkpoint.sequence, checkpoint.offset)
    control.given_up = 0  # as recovery will say
    control.start_over(tail, checkpoint.oldest, sealed=checkpoint.sealed)
    return control
