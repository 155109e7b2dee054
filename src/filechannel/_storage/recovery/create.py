"""Creates a channel, and checks that a directory is a channel before anything in it is changed."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from ..._errors import NotAChannelError, StorageError, UnexpectedFileError, repair_command
from ..._offset import Offset
from ..consumers.cursor_file_format import CONSUMERS
from ..control.checkpoints import Checkpoint
from ..control.control_file import CONTROL
from ..control.control_page import Control, Tail
from ..control.lock_file import LOCK
from ..control.wake_fifos import WAKE_FIFOS, remove_fifos
from ..manifest import MANIFEST, Manifest
from ..producers.producer_positions import PRODUCERS
from ..segments.segment import HALF_MADE
from ..segments.segment_index import indexed_begin_of
from ..segments.segment_names import SEGMENTS
from ..system.machine import boot_id, machine_id
from ..system.os_calls import REPLACING, Files, directory_mode

_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "afs")
_CREATION_SECONDS = 1.0  # seconds
_OURS = {MANIFEST, MANIFEST + REPLACING, CONTROL, LOCK, SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS}


def refuse_other_content(files: Files, path: Path) -> None:
    """Raise `NotAChannelError` if a path has foreign content; an incomplete channel is accepted.

    A process that was creating a channel may have died before it wrote the manifest.
    """
    if path.exists() and not path.is_dir():
        raise NotAChannelError(path, "it is a file, and a channel is a directory")
    error = _other_content(files, path)
    # The manifest is checked after the content: another process may have just created the channel.
    if error is not None and not files.exists(path / MANIFEST):
        raise error


def _other_content(files: Files, path: Path) -> NotAChannelError | None:
    foreign = [name for name in files.list(path) if name not in _OURS]
    if foreign:
        return NotAChannelError(path, f"the directory has other content ({foreign[0]}) and no {MANIFEST}")
    # The manifest is created last. So if there are segments but no manifest, the manifest was lost.
    lost = [f"{parts}/{name}" for parts in (SEGMENTS, CONSUMERS) for name in files.list(path / parts)]
    return NotAChannelError.without_manifest(path, f"{MANIFEST} is missing, but not {lost[0]}") if lost else None


def prepare_directory(files: Files, path: Path, manifest: Manifest) -> None:
    """Create the directory of the channel."""
    files.make_directory(path, directory_mode(manifest.options.mode))


def refuse_remote(files: Files, path: Path) -> None:
    """Raise `StorageError` for a network file system: memory maps are shared memory only within one kernel."""
    kind = files.file_system(path)
    if is_remote(kind):
        raise StorageError(
            f"{path} is on {kind}: maps and locks are not coherent there; put the channel on a local disk"
        )


def is_remote(kind: str) -> bool:
    """Return whether several kernels can share a file system of this type."""
    return kind in _REMOTE or kind.startswith("fuse")


def is_being_made(path: Path) -> bool:
    """Return whether another process may be creating the channel right now, and has not set its permissions yet."""
    for part in (path, path / CONTROL, path / LOCK):
        with suppress(OSError):
            if time.time() - part.stat().st_ctime < _CREATION_SECONDS:
                return True
    return False


def open_control_file(files: Files, path: Path, readonly: bool, mode: int) -> int:
    """Return a descriptor of the control file, which is created unless *readonly*."""
    try:
        return files.open(path / CONTROL, create=not readonly, writable=not readonly, mode=mode)
    except FileNotFoundError as error:
        hint = f"{repair_command(path)} finds the end of the log and creates it again"
        raise NotAChannelError(path, f"{CONTROL} is missing", hint) from error
    except UnexpectedFileError as error:
        recreates = "moves that to quarantine, finds the end of the log and creates it again"
        hint = f"{repair_command(path)} {'replaces it with a copy' if error.linked else recreates}"
        raise NotAChannelError(path, f"{CONTROL} is {error.found}", hint) from error


def create(files: Files, path: Path, descriptor: int, control: Control, manifest: Manifest) -> None:
    """Create a channel. The manifest is written last; the channel exists as soon as the manifest does."""
    mode = directory_mode(manifest.options.mode)
    files.set_mode(descriptor, manifest.options.mode)
    for name in (SEGMENTS, CONSUMERS, WAKE_FIFOS):
        files.make_directory(path / name, mode)
    control.start_over(Tail(Offset(0), 0, Offset(0)), 0, sealed=False)
    control.identity.adopt(bytes.fromhex(manifest.id), boot_id())
    control.checkpoints.write(Checkpoint(Offset(0), 0, Offset(0)))
    manifest.write(files, path)
    files.flush_directory(path.parent)


def complete_directories(files: Files, path: Path, manifest: Manifest) -> None:
    """Create directories that are missing because the process that created the channel was killed."""
    mode = directory_mode(manifest.options.mode)
    for name in (SEGMENTS, CONSUMERS, WAKE_FIFOS):
        files.make_directory(path / name, mode)


def remove_leftovers(files: Files, path: Path, manifest: Manifest) -> Manifest:
    """Remove files that processes left incomplete when they died, and return the manifest for this machine.

    The channel is recovered, and no other process has it open.
    """
    names = files.list(path / SEGMENTS)
    segments = {name.partition(".")[0] for name in names if indexed_begin_of(name) is None}
    for name in names:
        # An index without its segment is left over from a power cut.
        is_orphan = indexed_begin_of(name) is not None and name.partition(".")[0] not in segments
        if is_orphan or name.startswith(HALF_MADE):
            files.unlink(path / SEGMENTS / name)
    remove_fifos(files, path / WAKE_FIFOS)
    if manifest.machine != machine_id():
        manifest = manifest.on_machine(machine_id())
        manifest.write(files, path)
    files.flush_directory(path)  # the process that created it may have died before the manifest's name was on disk
    return manifest
