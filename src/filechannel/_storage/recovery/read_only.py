"""Opens a channel read-only: with the control page as it is, or with a private copy that shows the recovered state.

A process that only reads may find a channel that no writer has recovered yet. It must not change a byte, so it
recovers in a private copy of the control page.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from ..._errors import CorruptRecordError, StorageError, repair_command
from ..._format.layout import CONTROL_SIZE
from ..control.checkpoints import Checkpoint
from ..control.control_file import CONTROL
from ..control.control_page import Control, Tail
from ..control.live_processes import living_in
from ..manifest import Manifest
from ..segments.catalog import Segments
from ..segments.free_list import FreeList
from ..segments.segment import SegmentLimits
from ..segments.segment_names import SEGMENTS
from ..system.machine import boot_id
from ..system.os_calls import Files
from .find_end import Cut, find_end, not_before_compressed
from .stale_control import is_stale
from .unreachable_records import Unreachable, find_unreachable

_MAPPED = 4  # segments


@dataclass(frozen=True, slots=True)
class OpenedToRead:
    """What a read-only process sees of a channel."""

    control: Control
    segments: Segments | None
    """The segments, if they had to be listed; the caller closes them."""
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
    """Return the control page for a read-only process: a private copy if the channel needs recovery.

    In that copy the log ends where recovery would end it, unless intact records follow after damage. Then it ends after
    those, and a reader encounters the damage as anywhere else.
    """
    if files.size(descriptor) < CONTROL_SIZE:
        raise StorageError(f"{path / CONTROL} is truncated; {repair_command(path)} finds the end of the log")
    with ExitStack() as undo:
        control = Control(files, descriptor, writable=False, path=path / CONTROL)
        undo.callback(control.close)
        control.identity.check_channel(manifest.id)
        if control.identity.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail:
            if living_in(files, path, descriptor).slots:
                undo.pop_all()
                return OpenedToRead(control, None, None)
            segments = list_segments(files, path, control, manifest, mapped, writable=False)
            undo.callback(segments.close)
            if _is_current(files, path, descriptor, control, manifest, segments):
                undo.pop_all()
                return OpenedToRead(control, segments, None)
    with ExitStack() as undo:
        copy = Control(files, descriptor, private=True, path=path / CONTROL)
        undo.callback(copy.close)
        with closing(list_segments(files, path, copy, manifest, _MAPPED, writable=False)) as segments:
            recovered, unreachable = _as_recovered(files, path, copy, segments)
        undo.pop_all()
        return OpenedToRead(recovered, None, unreachable)


def list_segments(
    files: Files,
    path: Path,
    control: Control,
    manifest: Manifest,
    mapped: int,
    *,
    writable: bool,
    free_list: FreeList | None = None,
) -> Segments:
    """List the segments of a channel."""
    return Segments(
        files,
        path / SEGMENTS,
        writable=writable,
        most_mapped=mapped,
        epoch=lambda: control.epoch,
        limits=SegmentLimits.of(manifest.options),
        free_list=free_list,
    )


def _is_current(
    files: Files, path: Path, descriptor: int, control: Control, manifest: Manifest, segments: Segments
) -> bool:
    """Return whether the page can be trusted; see `stale_control`. A live writer proves that it is current."""
    while True:
        seen = control.write_offset
        is_newest = not is_stale(files, path, control, segments)
        if is_newest and (control.identity.is_same_mount or _is_reached(control, segments)):
            return True
        is_open = bool(living_in(files, path, descriptor).slots)
        if control.write_offset == seen and not is_open:
            return False
        # A writer has opened the channel in the meantime, and changed what was compared.
        if not (control.identity.belongs_to(bytes.fromhex(manifest.id), boot_id()) and control.has_tail):
            return False
        if is_open:
            return True
        segments.scan()


def _is_reached(control: Control, segments: Segments) -> bool:
    """Return whether valid records lead from the checkpoint to the tail."""
    checkpoint = control.checkpoints.newest()
    with suppress(CorruptRecordError):
        return checkpoint is not None and find_end(segments, checkpoint).offset >= control.write_offset
    return False


def _end_after(segments: Segments, checkpoint: Checkpoint, *, finished: bool) -> Cut:
    """Return what `find_end` returns; the checkpoint if the segment there has no valid header."""
    try:
        return find_end(segments, checkpoint, finished=finished)
    except CorruptRecordError:
        return Cut(checkpoint.offset, checkpoint.sequence, checkpoint.sealed, checkpoint.offset)


def _as_recovered(files: Files, path: Path, control: Control, segments: Segments) -> tuple[Control, Unreachable | None]:
    """Publish, in a private copy of the page, the valid records that follow the last checkpoint."""
    checkpoint = control.checkpoints.newest()
    if checkpoint is None:
        raise StorageError(f"{path / CONTROL} does not say where the log ends; {repair_command(path)} finds it")
    checkpoint = not_before_compressed(segments, checkpoint)
    unreachable = find_unreachable(files, segments, _end_after(segments, checkpoint, finished=False))
    cut = _end_after(segments, checkpoint, finished=True) if unreachable is None else unreachable.end
    tail = Tail(cut.offset, cut.sequence, segments.covering(cut.offset) or cut.offset)
    control.identity.disown(boot_id())
    control.poisoned_before = 0  # as recovery sets it
    control.start_over(tail, checkpoint.oldest, sealed=cut.sealed)
    return control, unreachable
