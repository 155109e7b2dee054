"""A channel's directory as it lies there: what can be read of it without opening it, whatever state it is in.

Nothing is changed, nobody is waited for, and whoever has the channel open does not notice. Every part may be damaged:
then it is None, and a reason is there instead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from .._errors import ChannelNotFoundError, FileChannelError, NotAChannelError, UnexpectedFileError
from .._format.layout import CONTROL_SIZE
from .._offset import Offset
from .._storage.control import CONTROL, Checkpoint, Control
from .._storage.files import Files
from .._storage.holder import Holder
from .._storage.machine import boot_id
from .._storage.manifest import MANIFEST, Manifest
from .._storage.processes import holder_at, living_in
from .._storage.segment import ANY_SIZE, SegmentLimits
from .._storage.segments import SEGMENTS, Segments
from .._storage.staleness import is_older_than_log

_MAPPED = 4  # segments


@final
@dataclass(frozen=True, slots=True)
class End:
    """Where the log ends, as far as that is known without recovering it."""

    offset: Offset
    sequence: int
    oldest: Offset
    sealed: bool
    is_believed: bool
    """Whether the words of the control file say so; else it is a checkpoint, and there may be more behind it."""


@final
@dataclass(slots=True)
class Survey:
    """What lies in a directory. Close it."""

    files: Files
    path: Path
    manifest: Manifest | None
    manifest_problem: str | None
    control: Control | None
    control_problem: str | None
    writers: list[Holder] = field(default_factory=list[Holder])
    """The processes that have the channel open for writing."""
    slots: list[int] = field(default_factory=list[int])
    """Where they are in the table of processes."""
    knows_writers: bool = True
    """Whether those are all; not for a user who may only read, from whom another reader can hide one."""
    _descriptor: int | None = None
    _stale: bool | None = None

    @classmethod
    def of(cls, path: Path, files: Files | None = None) -> Survey:
        """Look at a directory; `ChannelNotFoundError` or `NotAChannelError` if there is nothing of a channel in it."""
        files = files or Files()
        files.confine(path)
        manifest, manifest_problem = _manifest(files, path)
        survey = cls(files, path, manifest, manifest_problem, None, None)
        survey._open_control()
        return survey

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
            self.control_problem = f"it is cut off: {size} of {CONTROL_SIZE} bytes"
            return
        self.control = Control(self.files, descriptor, writable=False, path=self.path / CONTROL)
        self.writers = [holder_at(self.control.map, slot) for slot in self.slots]

    @property
    def limits(self) -> SegmentLimits:
        """What a segment may have; without a manifest, anything."""
        return ANY_SIZE if self.manifest is None else SegmentLimits.of(self.manifest.options)

    @property
    def segments(self) -> Path:
        """Where the segments are."""
        return self.path / SEGMENTS

    @property
    def is_believed(self) -> bool:
        """Whether the words of the control file were written in this boot, into this very file, and are not stale."""
        control = self.control
        if control is None:
            return False
        known = control.channel_id if self.manifest is None else bytes.fromhex(self.manifest.id)
        if known is None or not control.belongs_to(known, boot_id()) or not control.has_tail:
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
        """Return where the log ends; None if nothing says so."""
        control = self.control
        if control is None or (self.manifest is not None and control.is_foreign(self.manifest.id)):
            return None
        if self.is_believed:
            tail = control.tail()
            return End(tail.offset, tail.sequence, control.oldest_offset, control.sealed, is_believed=True)
        checkpoint = control.checkpoint()
        return None if checkpoint is None else _end_at(checkpoint)

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; none if it is not there, or something else is in its place."""
        try:
            return self.files.list(directory)
        except UnexpectedFileError:
            return []

    def relative(self, path: Path) -> str:
        """Return the name of a file as seen from the channel's directory."""
        return str(path.relative_to(self.path))

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            self.files.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Survey:
        """Use it in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _end_at(checkpoint: Checkpoint) -> End:
    return End(checkpoint.offset, checkpoint.sequence, checkpoint.oldest, checkpoint.sealed, is_believed=False)


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
