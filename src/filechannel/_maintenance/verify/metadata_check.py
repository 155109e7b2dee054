"""Checking everything but the segments: manifest, control file, positions, and unexpected files."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISFIFO, S_ISREG

from ..._errors import UnexpectedFileError
from ..._format.layout import (
    CHECKPOINT_SLOTS,
    CONTROL_CHANNEL,
    CURSOR_SIZE,
    GROUP_HEAD,
    GROUP_SIZE,
    POSITION,
    POSITION_SIZE,
    POSITION_SLOTS,
    WRITE_TAIL,
)
from ..._offset import Offset
from ..._shell_quoting import removing
from ..._storage.consumers.cursor_file_format import CONSUMERS, is_damaged, is_group, name_of, read_position
from ..._storage.consumers.group_file_format import ring_problem
from ..._storage.control.control_file import CONTROL
from ..._storage.control.lock_file import LOCK
from ..._storage.control.wake_fifos import WAKE_FIFOS
from ..._storage.manifest import MANIFEST
from ..._storage.producers.producer_positions import POSITION_SUFFIX, PRODUCERS, slots_in
from ..._storage.producers.staging import STAGING
from ..._storage.segments.compressed_segment import compressed_begin_of
from ..._storage.segments.free_list import FREE_FILE_PREFIX
from ..._storage.segments.segment import HALF_MADE, begin_of
from ..._storage.segments.segment_index import INDEX_SUFFIX, indexed_begin_of
from ..._storage.segments.segment_names import SEGMENTS
from ..._storage.system.os_calls import QUARANTINE, REPLACING, Files
from .directory_scan import DirectoryScan, End
from .findings import Finding, Severity
from .segment_chain import Chain, segment_begins

_DIRECTORIES = {SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS, QUARANTINE, STAGING}
LINKS = "links"
"""The kind of a finding about a file with hard links outside of the channel. A repair replaces it with a copy."""
DIRECTORY = "directory"
"""The kind of a finding about something else in place of a directory."""
MISPLACED = "misplaced"
"""The kind of a finding about something other than a regular file, which can be quarantined."""
_READ_ATTEMPTS = 100  # for a position that a process may be writing


def check_metadata(scan: DirectoryScan, chain: Chain) -> list[Finding]:
    """Check all files except the segments."""
    return [
        *_manifest(scan),
        *_control(scan),
        *_lock(scan),
        *_directories(scan),
        *_consumers(scan, chain.end),
        *_producers(scan),
        *_links(scan),
        *_strays(scan),
        *_quarantined(scan),
    ]


def _found(
    scan: DirectoryScan,
    severity: Severity,
    kind: str,
    path: Path,
    what: str,
    position: int | None = None,
    mend: str | None = None,
) -> Finding:
    return Finding(severity=severity, kind=kind, file=scan.relative(path), what=what, position=position, mend=mend)


# Manifest and control file


def _manifest(scan: DirectoryScan) -> Iterator[Finding]:
    if scan.manifest_problem is not None:
        what = f"the channel cannot be opened: {scan.manifest_problem}"
        yield _found(scan, "error", "manifest", scan.path / MANIFEST, what)


def _control(scan: DirectoryScan) -> Iterator[Finding]:
    path, control = scan.path / CONTROL, scan.control
    if control is None:
        what = f"{scan.control_problem}; the next process that opens the channel has to find the end of the log"
        yield _found(scan, "error", "control", path, what)
        return
    channel_id = control.identity.channel_id
    if channel_id is None:
        yield _found(scan, "warning", "control", path, "the identity does not match its checksum", 0)
    elif scan.manifest is not None and control.identity.is_foreign(scan.manifest.id):
        yield _found(scan, "error", "control", path, "it belongs to another channel", CONTROL_CHANNEL)
    elif not control.has_tail:
        yield _found(scan, "warning", "control", path, "nothing in it says where the log ends", WRITE_TAIL)
    elif not scan.is_trusted and not scan.slots:
        what = "the machine was restarted, or this is a copy: the next process that opens it finds the end of the log"
        yield _found(scan, "note", "restarted", path, what)
    if control.checkpoints.newest() is None:
        yield _found(scan, "error", "checkpoint", path, "no checkpoint is valid", CHECKPOINT_SLOTS[0])
        return
    for slot in control.checkpoints.damaged_slots():
        yield _found(scan, "note", "checkpoint", path, "one of two checkpoints is not valid", slot)


def _directories(scan: DirectoryScan) -> Iterator[Finding]:
    """Report what is in place of a directory. A repair does not touch it: a link may lead to the right directory."""
    for name in sorted(_DIRECTORIES):
        path = scan.path / name
        if (found := scan.files.other_directory(path)) is None:
            continue
        is_needed = name in (SEGMENTS, CONSUMERS, PRODUCERS)
        what = f"{found}, not a directory: its target is not read"
        mend = f"replace {path} with the directory itself" if is_needed else removing(path)
        yield _found(scan, "error" if is_needed else "warning", DIRECTORY, path, what, mend=mend)


# Consumers and producers


def _lock(scan: DirectoryScan) -> Iterator[Finding]:
    path = scan.path / LOCK
    if (found := scan.files.other_kind(path)) is not None:
        what = f"{found}, not a regular file: the channel cannot be opened for writing or repaired until you remove it"
        mend = removing(path, is_directory=found == "a directory")
        yield _found(scan, "warning", LOCK, path, what, mend=mend)


def _consumers(scan: DirectoryScan, end: End | None) -> Iterator[Finding]:
    directory = scan.path / CONSUMERS
    for file in scan.list(directory):
        path = directory / file
        if name_of(file) is None:
            continue
        if (found := scan.files.other_kind(path)) is not None:
            lost = f"the position of consumer {name_of(file)!r} is lost, so nothing is deleted"
            yield _found(scan, "error", "cursor", path, f"{found}, not a regular file: {lost}")
            continue
        with _opened(scan.files, path) as descriptor:
            if descriptor is not None:
                yield from _consumer(scan, path, descriptor, end)


def _consumer(scan: DirectoryScan, path: Path, descriptor: int, end: End | None) -> Iterator[Finding]:
    size = GROUP_SIZE if is_group(path) else CURSOR_SIZE
    content = scan.files.read_at(descriptor, size, 0)
    for _ in range(_READ_ATTEMPTS if scan.slots else 0):  # a process may be writing to it
        if read_position(content) is not None and _ring_problem(path, content) is None:
            break
        content = scan.files.read_at(descriptor, size, 0)
    position = read_position(content)
    if position is None:
        if is_damaged(content):
            cut = f": {len(content)} of {size} bytes are left" if len(content) < size else ""
            what = f"the position of consumer {name_of(path.name)!r} is damaged, so nothing is deleted{cut}"
            yield _found(scan, "error", "cursor", path, what, 0)
        return
    if len(content) < size:
        what = f"the file is truncated: {len(content)} of {size} bytes"
        yield _found(scan, "warning", "cursor", path, what, len(content))
    if end is not None and end.is_trusted and position.offset > _end_now(scan, end):
        what = f"consumer {name_of(path.name)!r} is at offset {position.offset}, beyond the end of the log"
        yield _found(scan, "error", "cursor", path, what, 0)
    if (problem := _ring_problem(path, content)) is not None:
        yield _found(scan, "warning", "group", path, f"the ring of the group is damaged: {problem}", GROUP_HEAD)


def _end_now(scan: DirectoryScan, end: End) -> int:
    """Return the current end of the log: a consumer may have read further by now."""
    return max(end.offset, end.offset if scan.control is None else scan.control.write_offset)


def _ring_problem(path: Path, content: bytes) -> str | None:
    """Return what is wrong with the ring of a group."""
    return ring_problem(content) if is_group(path) else None


def _producers(scan: DirectoryScan) -> Iterator[Finding]:
    directory = scan.path / PRODUCERS
    for file in scan.list(directory):
        path = directory / file
        if not file.endswith(POSITION_SUFFIX):
            continue
        if (found := scan.files.other_kind(path)) is not None:
            what = f"{found}, not a regular file: the producer's position is searched for in the log, and nothing is"
            yield _found(scan, "error", "producer", path, f"{what} deleted until then")
            continue
        with _opened(scan.files, path) as descriptor:
            content = b"" if descriptor is None else scan.files.read_at(descriptor, POSITION_SIZE, 0)
        if len(content) < POSITION_SIZE and any(content):
            yield _found(
                scan, "warning", "producer", path, f"the file is truncated: {len(content)} bytes", len(content)
            )
        elif any(content[: POSITION_SLOTS[-1] + POSITION.size]) and not slots_in(content):
            what = "the producer's position is damaged; it is searched for in the log"
            yield _found(scan, "error", "producer", path, what, 0)


# Names


def _links(scan: DirectoryScan) -> Iterator[Finding]:
    """Report the files that cannot be opened for writing because they have names outside of the channel.

    Finished segments and indexes may have such names, as in a backup by hard links: they are not written in place.
    """
    paths = [scan.path / CONTROL, scan.path / LOCK]
    paths += [scan.segments / name for name in scan.list(scan.segments) if begin_of(name) is not None][-1:]
    for directory in (scan.path / CONSUMERS, scan.path / PRODUCERS):
        names = scan.list(directory)
        paths += [directory / name for name in names if name_of(name) is not None or name.endswith(POSITION_SUFFIX)]
    for path in paths:
        problem = scan.files.link_problem(path)
        if problem is not None:
            what = f"{problem}: it cannot be opened for writing until `repair` has replaced it with a copy"
            yield _found(scan, "warning", LINKS, path, what)


def _strays(scan: DirectoryScan) -> Iterator[Finding]:
    for name in scan.list(scan.path):
        path = scan.path / name
        if name == MANIFEST + REPLACING and not scan.slots:
            yield _found(scan, "warning", "half-made", path, "a process died while it replaced the manifest")
        elif name not in _DIRECTORIES | {MANIFEST, CONTROL, LOCK, MANIFEST + REPLACING}:
            yield _found(scan, "note", "stray", path, "not a file of the channel")
    begins = set(segment_begins(scan))
    for name in scan.list(scan.segments):
        yield from _stray_segment(scan, scan.segments / name, begins)
    for name in scan.list(scan.path / CONSUMERS):
        if name_of(name) is None:
            yield _found(scan, "note", "stray", scan.path / CONSUMERS / name, "not a file of the channel")
    for name in scan.list(scan.path / PRODUCERS):
        if not name.endswith(POSITION_SUFFIX):
            yield _found(scan, "note", "stray", scan.path / PRODUCERS / name, "not a file of the channel")
    for name in scan.list(scan.path / WAKE_FIFOS):
        path = scan.path / WAKE_FIFOS / name
        mode = scan.files.mode_of(path)
        if mode and not (name.isascii() and name.isdigit() and S_ISFIFO(mode)):
            yield _found(scan, "note", "stray", path, "not a file of the channel")


def _stray_segment(scan: DirectoryScan, path: Path, begins: set[Offset]) -> Iterator[Finding]:
    name, mode = path.name, scan.files.mode_of(path)
    if not mode:
        return  # removed since
    if name.startswith(HALF_MADE):
        if not scan.slots:
            yield _found(
                scan, "warning", "half-made", path, "a process died while it created the file, which is not used"
            )
    elif name.startswith(FREE_FILE_PREFIX):
        if S_ISREG(mode) and scan.manifest is not None and not scan.slots:
            size = scan.files.size_of(path)
            if size != scan.manifest.options.segment_size:
                yield _found(scan, "note", "spare", path, f"a file of {size} bytes in the free list cannot be reused")
    elif name.endswith(INDEX_SUFFIX):
        if indexed_begin_of(name) not in begins and not scan.slots:
            yield _found(scan, "warning", "orphan", path, "an index without a segment")
        elif (found := scan.files.other_kind(path)) is not None:
            what = f"{found}, not a regular file: seeking takes longer, and nothing is lost"
            yield _found(scan, "warning", MISPLACED, path, what)
    elif begin_of(name) is None and compressed_begin_of(name) is None:
        yield _found(scan, "note", "stray", path, "not a file of the channel")


def _quarantined(scan: DirectoryScan) -> Iterator[Finding]:
    names = set(scan.list(scan.path / QUARANTINE))
    count = sum(name.removesuffix(".json") not in names - {name} for name in names)
    if count:
        what = f"{count} file{'s' * (count > 1)} in quarantine, each with a .json file that gives the reason"
        yield _found(scan, "note", "quarantine", scan.path / QUARANTINE, what)


@contextmanager
def _opened(files: Files, path: Path) -> Generator[int | None]:
    """Open a file that may be missing; yield None in this case."""
    try:
        descriptor = files.open(path, writable=False)
    except (FileNotFoundError, UnexpectedFileError):
        yield None
        return
    try:
        yield descriptor
    finally:
        files.close(descriptor)
