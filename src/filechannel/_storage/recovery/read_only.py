"""How a process comes to share a channel with others, one at a time.

A process that opens a channel holds the opening byte of the lock file meanwhile. If no other process has the channel
open, whatever the control page says was left by the dead, and may be recovered; otherwise it is in use, and nothing in
it may be touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .._errors import ChannelLockedError, CorruptRecordError, StorageError, repair_command
from .._format import PURE
from .._format.layout import CONTROL_SIZE, MODE_BYTE, OPENING_BYTE
from .bells import WAKE_FIFOS, remove_fifo
from .control import CONTROL, Checkpoint, Control, Tail
from .files import Files
from .holder import Holder
from .kernel_locks import KernelLocks
from .lock_file import LOCK, open_lock_file
from .machine import boot_id
from .manifest import Manifest
from .processes import Processes, describe_opener, forget_opener, living_in, opener_of
from .segment import SegmentLimits
from .segments import SEGMENTS, Segments
from .staleness import is_stale
from .unreachable import Unreachable, find_unreachable
from .walk import Cut, find_end, not_before_compressed

_MAPPED = 4  # segments
_logger = logging.getLogger("filechannel")


@dataclass(frozen=True, slots=True)
class Membership:
    """Our place among the processes that have a channel open for writing."""

    locks: KernelLocks
    """On the lock file."""
    marks: KernelLocks
    """On the control file."""
    processes: Processes

    def close(self) -> None:
        """Leave."""
        self.locks.close()
        self.marks.close()


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a process that opens a channel finds."""

    control: Control
    membership: Membership
    is_alone: bool
    """No other process has the channel open for writing."""


@contextmanager
def entering(files: Files, path: Path, descriptor: int, wanted: Callable[[], bool]) -> Generator[Entrance]:
    """Join the processes that have a channel open, one at a time; after an error in the block, leave again."""
    while True:
        with ExitStack() as leaving:
            locks = open_lock_file(files, path, descriptor)
            leaving.callback(locks.close)
            marks = KernelLocks(files, path / CONTROL)
            leaving.callback(marks.close)
            with opening(files, path, descriptor, locks, wanted):
                entrance = _enter(files, path, descriptor, locks, marks)
                if entrance is not None:
                    with described_opener(entrance.control):
                        yield entrance
                    leaving.pop_all()
                    return


def _enter(files: Files, path: Path, descriptor: int, locks: KernelLocks, marks: KernelLocks) -> Entrance | None:
    """Take a slot; None if the lock file was deleted meanwhile, and other processes may hold another one."""
    if not locks.are_named():
        return None
    control = Control(files, descriptor, path=path / CONTROL)
    processes = Processes(control.map, locks, marks)
    if control.lock_file != locks.inode:
        strangers = processes.strangers()
        if strangers:
            raise _locked(path, processes.holder(strangers[0]), f"{path / LOCK} was deleted while it was in use")
        control.lock_file = locks.inode  # before the name is looked at for the last time: see below
    others = processes.others()
    # The pure-Python implementation has no compare-and-swap: it shares a channel with no other process.
    if not locks.take(MODE_BYTE, shared=not PURE):
        raise _locked(path, processes.holder(others[0]) if others else Holder(None, None, None))
    try:
        processes.join(lambda slot: remove_fifo(files, path / WAKE_FIFOS, slot))
    except StorageError as error:
        raise StorageError(f"{path}: {error}") from error
    # With our mark and the number of our file stored, a process that makes another file from now on sees both.
    entrance = Entrance(control, Membership(locks, marks, processes), not others)
    return entrance if locks.are_named() else None


def _locked(path: Path, holder: Holder, reason: str | None = None) -> ChannelLockedError:
    holder = holder.unless_ended()
    return ChannelLockedError(path, holder.pid, holder.host, holder.since, reason)


@contextmanager
def opening(
    files: Files, path: Path, descriptor: int, locks: KernelLocks, wanted: Callable[[], bool] = lambda: True
) -> Generator[None]:
    """Hold the opening byte. Waiting for it for seconds is logged once, with the process that has it."""

    def warn() -> None:
        holder = opener_of(files, descriptor).unless_ended()
        who = "another process" if holder.pid is None else f"process {holder.pid} on {holder.host}"
        _logger.warning("%s: waiting for %s, which opens, configures or repairs the channel", path, who)

    with locks.holding(OPENING_BYTE, wanted, warn):
        yield


@contextmanager
def described_opener(control: Control) -> Generator[None]:
    """Say that this process holds the opening byte, for those who wait for it."""
    describe_opener(control.map)
    try:
        yield
    finally:
        forget_opener(control.map)


@dataclass(frozen=True, slots=True)
class OpenedToRead:
    """What a process that changes nothing sees of a channel."""

    control: Control
    segments: Segments | None
    """The segments if they were listed on the way; the caller closes them."""
    unreachable: Unreachable | None
    """What recovery would move to quarantine although it is intact."""


def open_control_to_read(
    files: Files, path: Path, descriptor: int, manifest: Manifest
) -> tuple[Control, Unreachable | None]:
    """Return the control page as `open_to_read` does, and what recovery would move to quarantine."""
    found = open_to_read(files, path, descriptor, manifest, _MAPPED)
    if found.segments is not None:
        found.segments.close()
    return found.control, found.unreachable


def open_to_read(files: Files, path: Path, descriptor: int, manifest: Manifest, mapped: int) -> OpenedToRead:
    """Return the control page for a process that changes nothing: in a copy of its own if it needs recovery.

    In that copy the log ends as recovery would let it end, unless intact records lie behind damage there. Then it ends
    behind those, and a reader comes to the damage as it does anywhere else.
    """
    if files.size(descriptor) < CONTROL_SIZE:
        raise StorageError(f"{path / CONTROL} is cut off; {repair_command(path)} finds the end of the log")
    control = Control(files, descriptor, writable=False, path=path / CONTROL)
    control.check_channel(manifest.id)
    if control.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail:
        if living_in(files, path, descriptor).slots:
            return OpenedToRead(control, None, None)
        segments = list_segments(files, path, control, manifest, mapped, writable=False)
        try:
            is_current = _is_current(files, path, descriptor, control, manifest, segments)
        except BaseException:
            segments.close()
            raise
        if is_current:
            return OpenedToRead(control, segments, None)
        segments.close()
    copy = Control(files, descriptor, private=True, path=path / CONTROL)
    with closing(list_segments(files, path, copy, manifest, _MAPPED, writable=False)) as segments:
        recovered, unreachable = _as_recovered(files, path, copy, segments)
        return OpenedToRead(recovered, None, unreachable)


def list_segments(
    files: Files, path: Path, control: Control, manifest: Manifest, mapped: int, *, writable: bool
) -> Segments:
    """Return the segments of a channel, listed."""
    return Segments(
        files,
        path / SEGMENTS,
        writable=writable,
        most_mapped=mapped,
        epoch=lambda: control.epoch,
        limits=SegmentLimits.of(manifest.options),
    )


def _is_current(
    files: Files, path: Path, descriptor: int, control: Control, manifest: Manifest, segments: Segments
) -> bool:
    """Return whether the page may be trusted; see `staleness`. A live writer proves that it is current."""
    while True:
        seen = control.write_offset
        is_newest = not is_stale(files, path, control, segments)
        if is_newest and (control.is_same_mount or _is_reached(control, segments)):
            return True
        is_open = bool(living_in(files, path, descriptor).slots)
        if control.write_offset == seen and not is_open:
            return False
        # A writer has come meanwhile, and moved what was compared.
        if not (control.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail):
            return False
        if is_open:
            return True
        segments.scan()


def _is_reached(control: Control, segments: Segments) -> bool:
    """Return whether valid records lead from the checkpoint to the tail."""
    checkpoint = control.checkpoint()
    with suppress(CorruptRecordError):
        return checkpoint is not None and find_end(segments, checkpoint).offset >= control.write_offset
    return False


def _end_behind(segments: Segments, checkpoint: Checkpoint, *, finished: bool) -> Cut:
    """Return what `find_end` does; the checkpoint if the segment there has no valid header."""
    try:
        return find_end(segments, checkpoint, finished=finished)
    except CorruptRecordError:
        return Cut(checkpoint.offset, checkpoint.sequence, checkpoint.sealed, checkpoint.offset)


def _as_recovered(files: Files, path: Path, control: Control, segments: Segments) -> tuple[Control, Unreachable | None]:
    """Show, in a private copy, the valid records that follow the last checkpoint."""
    checkpoint = control.checkpoint()
    if checkpoint is None:
        raise StorageError(f"{path / CONTROL} does not say where the log ends; {repair_command(path)} finds it")
    checkpoint = not_before_compressed(segments, checkpoint)
    unreachable = find_unreachable(files, segments, _end_behind(segments, checkpoint, finished=False))
    cut = _end_behind(segments, checkpoint, finished=True) if unreachable is None else unreachable.end
    tail = Tail(cut.offset, cut.sequence, segments.covering(cut.offset) or cut.offset)
    control.disown(boot_id())
    control.given_up = 0  # as recovery will say
    control.start_over(tail, checkpoint.oldest, sealed=cut.sealed)
    return control, unreachable
