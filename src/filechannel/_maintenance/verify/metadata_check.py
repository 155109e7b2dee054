"""Checking everything but the segments: manifest, control file, positions, and what does not belong there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISFIFO, S_ISREG

from .._errors import UnexpectedFileError
from .._format import crc32c
from .._format.layout import (
    CHECKPOINT,
    CHECKPOINT_CHECKED,
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
from .._offset import Offset
from .._shell import removing
from .._storage.bells import WAKE_FIFOS
from .._storage.compressed import compressed_begin_of
from .._storage.control import CONTROL
from .._storage.cursor_file import CONSUMERS, is_damaged, is_group, name_of, read_position
from .._storage.files import QUARANTINE, REPLACING, Files
from .._storage.group import ring_problem
from .._storage.index import INDEX_SUFFIX, indexed_begin_of
from .._storage.lock_file import LOCK
from .._storage.manifest import MANIFEST
from .._storage.producers import POSITION_SUFFIX, PRODUCERS, slots_in
from .._storage.segment import HALF_MADE, begin_of
from .._storage.segments import SEGMENTS
from .._storage.spares import SPARE
from .._storage.staging import STAGING
from .chain import Chain, segment_begins
from .findings import Finding, Severity
from .survey import End, Survey

_DIRECTORIES = {SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS, QUARANTINE, STAGING}
LINKS = "links"
"""The kind of a finding about a file with names outside of the channel. A repair replaces it by a copy."""
DIRECTORY = "directory"
"""The kind of a finding about something else in place of a directory."""
MISPLACED = "misplaced"
"""The kind of a finding about something else than a regular file, which can be put aside."""
_LOOKS = 100  # at a position that somebody may be writing


def check_small_files(survey: Survey, chain: Chain) -> list[Finding]:
    """Look at all of them."""
    return [
        *_manifest(survey),
        *_control(survey),
        *_lock(survey),
        *_directories(survey),
        *_consumers(survey, chain.end),
        *_producers(survey),
        *_links(survey),
        *_strays(survey),
        *_put_aside(survey),
    ]


def _found(
    survey: Survey,
    severity: Severity,
    kind: str,
    path: Path,
    what: str,
    position: int | None = None,
    mend: str | None = None,
) -> Finding:
    return Finding(severity=severity, kind=kind, file=survey.relative(path), what=what, position=position, mend=mend)


# Manifest and control file


def _manifest(survey: Survey) -> Iterator[Finding]:
    if survey.manifest_problem is not None:
        what = f"the channel cannot be opened: {survey.manifest_problem}"
        yield _found(survey, "error", "manifest", survey.path / MANIFEST, what)


def _control(survey: Survey) -> Iterator[Finding]:
    path, control = survey.path / CONTROL, survey.control
    if control is None:
        what = f"{survey.control_problem}; whoever opens the channel next has to find the end of the log"
        yield _found(survey, "error", "control", path, what)
        return
    channel_id = control.channel_id
    if channel_id is None:
        yield _found(survey, "warning", "control", path, "the identity does not match its checksum", 0)
    elif survey.manifest is not None and control.is_foreign(survey.manifest.id):
        yield _found(survey, "error", "control", path, "it belongs to another channel", CONTROL_CHANNEL)
    elif not control.has_tail:
        yield _found(survey, "warning", "control", path, "nothing in it says where the log ends", WRITE_TAIL)
    elif not survey.is_believed and not survey.slots:
        what = "the machine was restarted, or this is a copy: the next one who opens it looks for the end of the log"
        yield _found(survey, "note", "restarted", path, what)
    if control.checkpoint() is None:
        yield _found(survey, "error", "checkpoint", path, "no checkpoint is whole", CHECKPOINT_SLOTS[0])
        return
    for slot in CHECKPOINT_SLOTS:
        *fields, crc = CHECKPOINT.unpack_from(control.map, slot)
        if any(fields) and crc != crc32c(CHECKPOINT_CHECKED.pack(*fields)):
            yield _found(survey, "note", "checkpoint", path, "one of two checkpoints is not whole", slot)


def _directories(survey: Survey) -> Iterator[Finding]:
    """Report what is in the place of a directory. A repair leaves it alone: a link may lead to what belongs there."""
    for name in sorted(_DIRECTORIES):
        path = survey.path / name
        if (found := survey.files.other_directory(path)) is None:
            continue
        is_needed = name in (SEGMENTS, CONSUMERS, PRODUCERS)
        what = f"{found}, not a directory: what it leads to is not read"
        mend = f"put the directory itself in place of {path}" if is_needed else removing(path)
        yield _found(survey, "error" if is_needed else "warning", DIRECTORY, path, what, mend=mend)


# Consumers and producers


def _lock(survey: Survey) -> Iterator[Finding]:
    path = survey.path / LOCK
    if (found := survey.files.other_kind(path)) is not None:
        what = f"{found}, not a regular file: the channel cannot be opened for writing or repaired until you remove it"
        mend = removing(path, is_directory=found == "a directory")
        yield _found(survey, "warning", LOCK, path, what, mend=mend)


def _consumers(survey: Survey, end: End | None) -> Iterator[Finding]:
    directory = survey.path / CONSUMERS
    for file in survey.list(directory):
        path = directory / file
        if name_of(file) is None:
            continue
        if (found := survey.files.other_kind(path)) is not None:
            what = f"{found}, not a regular file: the position of consumer {name_of(file)!r} is lost, and holds back"
            yield _found(survey, "error", "cursor", path, f"{what} everything")
            continue
        with _opened(survey.files, path) as descriptor:
            if descriptor is not None:
                yield from _consumer(survey, path, descriptor, end)


def _consumer(survey: Survey, path: Path, descriptor: int, end: End | None) -> Iterator[Finding]:
    size = GROUP_SIZE if is_group(path) else CURSOR_SIZE
    content = survey.files.read_at(descriptor, size, 0)
    for _ in range(_LOOKS if survey.slots else 0):  # somebody may be writing to it
        if read_position(content) is not None and _ring_problem(path, content) is None:
            break
        content = survey.files.read_at(descriptor, size, 0)
    position = read_position(content)
    if position is None:
        if is_damaged(content):
            cut = f": {len(content)} of {size} bytes are left" if len(content) < size else ""
            what = f"the position of consumer {name_of(path.name)!r} is damaged, and holds back everything{cut}"
            yield _found(survey, "error", "cursor", path, what, 0)
        return
    if len(content) < size:
        what = f"the file is cut off: {len(content)} of {size} bytes"
        yield _found(survey, "warning", "cursor", path, what, len(content))
    if end is not None and end.is_believed and position.offset > _end_now(survey, end):
        what = f"consumer {name_of(path.name)!r} stands at offset {position.offset}, behind the end of the log"
        yield _found(survey, "error", "cursor", path, what, 0)
    if (problem := _ring_problem(path, content)) is not None:
        yield _found(survey, "warning", "group", path, f"the ring of the group is damaged: {problem}", GROUP_HEAD)


def _end_now(survey: Survey, end: End) -> int:
    """Return where the log ends by now: a consumer may have read on since."""
    return max(end.offset, end.offset if survey.control is None else survey.control.write_offset)


def _ring_problem(path: Path, content: bytes) -> str | None:
    """Return what is wrong with the ring of a group."""
    return ring_problem(content) if is_group(path) else None


def _producers(survey: Survey) -> Iterator[Finding]:
    directory = survey.path / PRODUCERS
    for file in survey.list(directory):
        path = directory / file
        if not file.endswith(POSITION_SUFFIX):
            continue
        if (found := survey.files.other_kind(path)) is not None:
            what = f"{found}, not a regular file: where the producer left off is looked for in the log, and nothing is"
            yield _found(survey, "error", "producer", path, f"{what} removed until then")
            continue
        with _opened(survey.files, path) as descriptor:
            content = b"" if descriptor is None else survey.files.read_at(descriptor, POSITION_SIZE, 0)
        if len(content) < POSITION_SIZE and any(content):
            yield _found(
                survey, "warning", "producer", path, f"the file is cut off: {len(content)} bytes", len(content)
            )
        elif any(content[: POSITION_SLOTS[-1] + POSITION.size]) and not slots_in(content):
            what = "where the producer left off is damaged; it is looked for in the log"
            yield _found(survey, "error", "producer", path, what, 0)


# Names


def _links(survey: Survey) -> Iterator[Finding]:
    """Report the files that cannot be opened for writing because they have names outside of the channel.

    Finished segments and indexes may have some, as those of a backup by hard links: they are not written in place.
    """
    paths = [survey.path / CONTROL, survey.path / LOCK]
    paths += [survey.segments / name for name in survey.list(survey.segments) if begin_of(name) is not None][-1:]
    for directory in (survey.path / CONSUMERS, survey.path / PRODUCERS):
        names = survey.list(directory)
        paths += [directory / name for name in names if name_of(name) is not None or name.endswith(POSITION_SUFFIX)]
    for path in paths:
        problem = survey.files.link_problem(path)
        if problem is not None:
            what = f"{problem}: it cannot be opened for writing until `repair` has replaced it by a copy"
            yield _found(survey, "warning", LINKS, path, what)


def _strays(survey: Survey) -> Iterator[Finding]:
    for name in survey.list(survey.path):
        path = survey.path / name
        if name == MANIFEST + REPLACING and not survey.slots:
            yield _found(survey, "warning", "half-made", path, "somebody died while replacing the manifest")
        elif name not in _DIRECTORIES | {MANIFEST, CONTROL, LOCK, MANIFEST + REPLACING}:
            yield _found(survey, "note", "stray", path, "not a file of the channel")
    begins = set(segment_begins(survey))
    for name in survey.list(survey.segments):
        yield from _stray_segment(survey, survey.segments / name, begins)
    for name in survey.list(survey.path / CONSUMERS):
        if name_of(name) is None:
            yield _found(survey, "note", "stray", survey.path / CONSUMERS / name, "not a file of the channel")
    for name in survey.list(survey.path / PRODUCERS):
        if not name.endswith(POSITION_SUFFIX):
            yield _found(survey, "note", "stray", survey.path / PRODUCERS / name, "not a file of the channel")
    for name in survey.list(survey.path / WAKE_FIFOS):
        path = survey.path / WAKE_FIFOS / name
        mode = survey.files.mode_of(path)
        if mode and not (name.isascii() and name.isdigit() and S_ISFIFO(mode)):
            yield _found(survey, "note", "stray", path, "not a file of the channel")


def _stray_segment(survey: Survey, path: Path, begins: set[Offset]) -> Iterator[Finding]:
    name, mode = path.name, survey.files.mode_of(path)
    if not mode:
        return  # gone since
    if name.startswith(HALF_MADE):
        if not survey.slots:
            yield _found(survey, "warning", "half-made", path, "somebody died while making it; it is worth nothing")
    elif name.startswith(SPARE):
        if S_ISREG(mode) and survey.manifest is not None and not survey.slots:
            size = survey.files.size_of(path)
            if size != survey.manifest.options.segment_size:
                yield _found(survey, "note", "spare", path, f"a spare file of {size} bytes is of no use")
    elif name.endswith(INDEX_SUFFIX):
        if indexed_begin_of(name) not in begins and not survey.slots:
            yield _found(survey, "warning", "orphan", path, "an index whose segment is gone")
        elif (found := survey.files.other_kind(path)) is not None:
            what = f"{found}, not a regular file: seeking takes longer, and nothing is lost"
            yield _found(survey, "warning", MISPLACED, path, what)
    elif begin_of(name) is None and compressed_begin_of(name) is None:
        yield _found(survey, "note", "stray", path, "not a file of the channel")


def _put_aside(survey: Survey) -> Iterator[Finding]:
    names = set(survey.list(survey.path / QUARANTINE))
    count = sum(name.removesuffix(".json") not in names - {name} for name in names)
    if count:
        what = f"{count} file{'s' * (count > 1)} put aside; {'each' if count > 1 else 'it'} has a .json that says why"
        yield _found(survey, "note", "quarantine", survey.path / QUARANTINE, what)


@contextmanager
def _opened(files: Files, path: Path) -> Generator[int | None]:
    """Open a file that may be gone."""
    try:
        descriptor = files.open(path, writable=False)
    except (FileNotFoundError, UnexpectedFileError):
        yield None
        return
    try:
        yield descriptor
    finally:
        files.close(descriptor)
