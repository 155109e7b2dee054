"""The content of a channel's directory, in any state, read without opening the channel.

Nothing is changed, no lock is waited for, and other processes are not affected. Every part may be damaged: then it is
None, and there is a reason instead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ..._errors import ChannelNotFoundError, FileChannelError, NotAChannelError, UnexpectedFileError
from ..._format.layout import CONTROL_SIZE
from ..._offset import Offset
from ..._storage.control.checkpoints import Checkpoint
from ..._storage.control.control_file import CONTROL
from ..._storage.control.control_page import Control
from ..._storage.control.live_processes import holder_at, living_in
from ..._storage.control.lock_holder import Holder
from ..._storage.manifest import MANIFEST, Manifest
from ..._storage.recovery.stale_control import is_older_than_log
from ..._storage.segments.catalog import Segments
from ..._storage.segments.segment import ANY_SIZE, SegmentLimits
from ..._storage.segments.segment_names import SEGMENTS
from ..._storage.system.machine import boot_id
from ..._storage.system.os_calls import Files

_MAPPED = 4  # segments


@final
@dataclass(frozen=True, slots=True)
class End:
    """The end of the log, as far as it is known without recovery."""

    offset: Offset
    sequence: int
    oldest: Offset
    sealed: bool
    is_trusted: bool
    """Whether it comes from the current control page; else from a checkpoint, and more records may follow."""


@final
@dataclass(slots=True)
class DirectoryScan:
    """The content of a directory. Close it."""

    files: Files
    path: Path
    manifest: Manifest | None
    manifest_problem: str | None
    control: Control | None
    control_problem: str | None
    writers: list[Holder] = field(default_factory=list[Holder])
    """The processes that have the channel open for writing."""
    slots: list[int] = field(default_factory=list[int])
    """Their process slots."""
    knows_writers: bool = True
    """Whether the list is complete. It may not be for a user with read permission only: another reader can hide one."""
    _descriptor: int | None = None
    _stale: bool | None = None

    @classmethod
    def of(cls, path: Path, files: Files | None = None) -> DirectoryScan:
        """Scan a directory; `ChannelNotFoundError` or `NotAChannelError` if there is nothing of a channel in it."""
        files = files or Files()
        files.confine(path)
        manifest, manifest_problem = _manifest(files, path)
        scan = cls(files, path, manifest, manifest_problem, None, None)
        scan._open_control()
        return scan

    def _open_control(self) -> None:
        try:
            descriptor = self.files.open(self.path / CONTROL, writable=False)
        except FileNotFoundError:
            self.control_problem = "it is missing"
            return
        except UnexpectedFileError as error:
            self.control_problem = f"it is {error.found}"
            return
        self._descriptor = descriptor
        living = living_in(self.files, self.path, descriptor)
        self.slots, self.knows_writers = living.slots, living.is_complete
        size = self.files.size(descriptor)
        if size < CONTROL_SIZE:
            self.control_problem = f"it is truncated: {size} of {CONTROL_SIZE} bytes"
            return
        self.control = Control(self.files, descriptor, writable=False, path=self.path / CONTROL)
        self.writers = [holder_at(self.control.map, slot) for slot in self.slots]

    @property
    def limits(self) -> SegmentLimits:
        """The limits of a segment; without a manifest, any size."""
        return ANY_SIZE if self.manifest is None else SegmentLimits.of(self.manifest.options)

    @property
    def segments(self) -> Path:
        """The directory of the segments."""
        return self.path / SEGMENTS

    @property
    def is_trusted(self) -> bool:
        """Whether the control page was written in this boot, in this very file, and is not stale."""
        control = self.control
        if control is None:
            return False
        known = control.identity.channel_id if self.manifest is None else bytes.fromhex(self.manifest.id)
        if known is None or not control.identity.belongs_to(known, boot_id()) or not control.has_tail:
            return False
        return bool(self.slots) or not self._is_stale(control)

    def _is_stale(self, control: Control) -> bool:
        if self._stale is None:
            self._stale = False
            with suppress(OSError, FileChannelError):  # what cannot be read is reported elsewhere
                segments = Segments(self.files, self.segments, writable=False, most_mapped=_MAPPED, limits=self.limits)
                try:
                    self._stale = is_older_than_log(control, segments)
                finally:
                    segments.close()
        return self._stale

    def end(self) -> End | None:
        """Return the end of the log; None if it is not known."""
        control = self.control
        if control is None or (self.manifest is not None and control.identity.is_foreign(self.manifest.id)):
            return None
        if self.is_trusted:
            tail = control.tail()
            return End(tail.offset, tail.sequence, control.oldest_offset, control.sealed, is_trusted=True)
        checkpoint = control.checkpoints.newest()
        return None if checkpoint is None else _end_at(checkpoint)

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; none if it does not exist or is not a directory."""
        try:
            return self.files.list(directory)
        except UnexpectedFileError:
            return []

    def relative(self, path: Path) -> str:
        """Return the path of a file, relative to the channel's directory."""
        return str(path.relative_to(self.path))

    def close(self) -> None:
        """Close the control file."""
        if self._descriptor is not None:
            self.files.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> DirectoryScan:
        """Use it in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _end_at(checkpoint: Checkpoint) -> End:
    return End(checkpoint.offset, checkpoint.sequence, checkpoint.oldest, checkpoint.sealed, is_trusted=False)


def _manifest(files: Files, path: Path) -> tuple[Manifest | None, str | None]:
    if not files.exists(path):
        raise ChannelNotFoundError(path)
    if not path.is_dir():
        raise NotAChannelError(path, "it is a file, and a channel is a directory")
    try:
        return Manifest.read(files, path), None
    except FileNotFoundError:
        if not files.is_file(path / CONTROL) and not files.exists(path / SEGMENTS):
            raise NotAChannelError(path, f"it has no {MANIFEST}") from None
        return None, f"{MANIFEST} is missing"
    except NotAChannelError as error:
        return None, error.reason
