"""Making a channel, and making sure that a directory is one before anything in it is touched."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from .._errors import NotAChannelError, StorageError, UnexpectedFileError, repair_command
from .._offset import Offset
from .bells import WAKE_FIFOS, remove_fifos
from .control import CONTROL, Checkpoint, Control, Tail
from .cursor_file import CONSUMERS
from .files import REPLACING, Files, directory_mode
from .index import indexed_begin_of
from .lock_file import LOCK
from .machine import boot_id, machine_id
from .manifest import MANIFEST, Manifest
from .producers import PRODUCERS
from .segment import HALF_MADE
from .segments import SEGMENTS

_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "afs")
_WHILE_IT_IS_MADE = 1.0  # seconds
_OURS = {MANIFEST, MANIFEST + REPLACING, CONTROL, LOCK, SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS}


def refuse_other_content(files: Files, path: Path) -> None:
    """A directory of somebody else's is not ours to turn into a channel; one that somebody began to make is."""
    if path.exists() and not path.is_dir():
        raise NotAChannelError(path, "it is a file, and a channel is a directory")
    error = _other_content(files, path)
    # Looked for again: the others may be from whoever has made the channel in this moment.
    if error is not None and not files.exists(path / MANIFEST):
        raise error


def _other_content(files: Files, path: Path) -> NotAChannelError | None:
    foreign = [name for name in files.list(path) if name not in _OURS]
    if foreign:
        return NotAChannelError(path, f"the directory has other content ({foreign[0]}) and no {MANIFEST}")
    # The manifest is the last thing that is made: with segments but without it, it was lost.
    lost = [f"{parts}/{name}" for parts in (SEGMENTS, CONSUMERS) for name in files.list(path / parts)]
    return NotAChannelError.without_manifest(path, f"{MANIFEST} is missing, but not {lost[0]}") if lost else None


def prepare_directory(files: Files, path: Path, manifest: Manifest) -> None:
    """Make the directory itself."""
    files.make_directory(path, directory_mode(manifest.options.mode))


def refuse_remote(files: Files, path: Path) -> None:
    """Maps are shared memory: they need one kernel."""
    kind = files.file_system(path)
    if is_remote(kind):
        raise StorageError(
            f"{path} is on {kind}: maps and locks are not coherent there; put the channel on a local disk"
        )


def is_remote(kind: str) -> bool:
    """Tell whether a type of file system is one that several kernels share."""
    return kind in _REMOTE or kind.startswith("fuse")


def is_being_made(path: Path) -> bool:
    """Tell whether somebody may be making it in this moment, and has not said yet who may use it."""
    for part in (path, path / CONTROL, path / LOCK):
        with suppress(OSError):
            if time.time() - part.stat().st_ctime < _WHILE_IT_IS_MADE:
                return True
    return False


def open_control_file(files: Files, path: Path, readonly: bool, mode: int) -> int:
    """Return a descriptor of the control file, made if it may be."""
    try:
        return files.open(path / CONTROL, create=not readonly, writable=not readonly, mode=mode)
    except FileNotFoundError as error:
        advice = f"{repair_command(path)} finds the end of the log and makes it anew"
        raise NotAChannelError(path, f"{CONTROL} is missing", advice) from error
    except UnexpectedFileError as error:
        anew = "puts that aside, finds the end of the log and makes it anew"
        done = "replaces it by a copy" if error.linked else anew
        advice = f"{repair_command(path)} {done}"
        raise NotAChannelError(path, f"{CONTROL} is {error.found}", advice) from error


def create(files: Files, path: Path, descriptor: int, control: Control, manifest: Manifest) -> None:
    """Make a channel; the manifest comes last, and with it the channel exists."""
    mode = directory_mode(manifest.options.mode)
    files.set_mode(descriptor, manifest.options.mode)
    for name in (SEGMENTS, CONSUMERS, WAKE_FIFOS):
        files.make_directory(path / name, mode)
    control.start_over(Tail(Offset(0), 0, Offset(0)), 0, sealed=False)
    control.identify(bytes.fromhex(manifest.id), boot_id())
    control.write_checkpoint(Checkpoint(Offset(0), 0, Offset(0)))
    manifest.write(files, path)
    files.flush_directory(path.parent)


def complete_directories(files: Files, path: Path, manifest: Manifest) -> None:
    """Make the directories that a process which was killed may not have made."""
    mode = directory_mode(manifest.options.mode)
    for name in (SEGMENTS, CONSUMERS, WAKE_FIFOS):
        files.make_directory(path / name, mode)


def adopt(files: Files, path: Path, manifest: Manifest) -> Manifest:
    """Remove what other processes left half made. No other process has the channel open, and it is whole."""
    names = files.list(path / SEGMENTS)
    segments = {name.partition(".")[0] for name in names if indexed_begin_of(name) is None}
    for name in names:
        # An index without its segment is what a power cut left of both.
        is_orphan = indexed_begin_of(name) is not None and name.partition(".")[0] not in segments
        if is_orphan or name.startswith(HALF_MADE):
            files.unlink(path / SEGMENTS / name)
    remove_fifos(files, path / WAKE_FIFOS)
    if manifest.machine != machine_id():
        manifest = manifest.on_machine(machine_id())
        manifest.write(files, path)
    files.flush_directory(path)  # whoever made it may have died with the manifest's name not on disk yet
    return manifest
