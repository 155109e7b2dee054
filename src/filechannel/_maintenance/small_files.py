"""Checking everything but the segments: manifest, control file, positions, and what does not belong there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISFIFO, S_ISREG

from .._format import crc32c
from .._format.layout import (
    CHECKPOINT,
    CHECKPOINT_CHECKED,
    CHECKPOINT_SLOTS,
    CONTROL_IDENTITY,
    CONTROL_MAGIC,
    CURSOR_OWNER,
    CURSOR_SIZE,
    ENTRY,
    ENTRY_PASSED,
    ENTRY_STATE,
    GROUP_BEGUN,
    GROUP_ENTRIES,
    GROUP_ENTRY_SIZE,
    GROUP_HEAD,
    GROUP_RING,
    GROUP_SIZE,
    GROUP_TAIL,
    POSITION,
    POSITION_CHECKED,
    POSITION_SIZE,
    POSITION_SLOTS,
)
from .._offset import Offset
from .._storage.bells import WAKE_FIFOS
from .._storage.compressed import compressed_begin_of
from .._storage.control import CONTROL
from .._storage.cursor_file import CONSUMERS, is_group, name_of, read_position
from .._storage.files import Files
from .._storage.manifest import MANIFEST
from .._storage.producers import PRODUCERS
from .._storage.quarantine import QUARANTINE
from .._storage.segment import begin_of
from .._storage.segments import SEGMENTS
from .._storage.spares import SPARE
from .._storage.staging import STAGING
from .chain import Chain, segment_begins
from .findings import Finding, Severity
from .survey import End, Survey

HALF_MADE = "new-"
"""What the name of a segment begins with that is being made."""
REPLACING = ".new"
"""What the name of a file ends with that is to replace another."""
_DIRECTORIES = {SEGMENTS, CONSUMERS, PRODUCERS, WAKE_FIFOS, QUARANTINE, STAGING}
_LOOKS = 100  # at a position that somebody may be writing


def check_small_files(survey: Survey, chain: Chain) -> list[Finding]:
    """Look at all of them."""
    return [
        *_manifest(survey),
        *_control(survey),
        *_consumers(survey, chain.end),
        *_producers(survey),
        *_strays(survey),
        *_put_aside(survey),
    ]


def _found(
    survey: Survey, severity: Severity, kind: str, path: Path, what: str, position: int | None = None
) -> Finding:
    return Finding(severity=severity, kind=kind, file=survey.relative(path), what=what, position=position)


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
    identity = CONTROL_IDENTITY.unpack_from(control.map)
    magic, channel_id, crc = identity[0], identity[3], identity[-1]
    if magic != CONTROL_MAGIC or crc != crc32c(control.map[: CONTROL_IDENTITY.size - 4]):
        yield _found(survey, "warning", "control", path, "the identity does not match its checksum", 0)
    elif survey.manifest is not None and channel_id != bytes.fromhex(survey.manifest.id):
        yield _found(survey, "warning", "control", path, "it belongs to another channel", 16)
    elif not control.has_tail:
        yield _found(survey, "warning", "control", path, "nothing in it says where the log ends", 192)
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


# Consumers and producers


def _consumers(survey: Survey, end: End | None) -> Iterator[Finding]:
    directory = survey.path / CONSUMERS
    for file in survey.files.list(directory):
        path = directory / file
        if name_of(file) is None or not survey.files.is_file(path):
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
        if any(content[:CURSOR_OWNER]):
            what = f"the position of consumer {name_of(path.name)!r} is damaged, and holds back everything"
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


def _word(content: bytes, position: int) -> int:
    return int.from_bytes(content[position : position + 8], "little")


def _ring_problem(path: Path, content: bytes) -> str | None:
    """Say what cannot be in the ring of a group."""
    if not is_group(path) or len(content) < GROUP_SIZE or not _word(content, GROUP_BEGUN):
        return None
    head, tail = _word(content, GROUP_HEAD), _word(content, GROUP_TAIL)
    if not head <= tail <= head + GROUP_ENTRIES:
        return f"entries {head} to {tail}"
    for number in range(head, min(tail, head + GROUP_ENTRIES)):
        at = GROUP_RING + number % GROUP_ENTRIES * GROUP_ENTRY_SIZE
        word, offset, stop, _, _ = ENTRY.unpack_from(content, at)
        if word & ENTRY_STATE > ENTRY_PASSED:
            return f"entry {number} has no known state"
        if word & ENTRY_STATE != ENTRY_PASSED and offset > stop:
            return f"entry {number} goes from offset {offset} to {stop}"
    return None


def _producers(survey: Survey) -> Iterator[Finding]:
    directory = survey.path / PRODUCERS
    for file in survey.files.list(directory):
        path = directory / file
        if not file.endswith(".position") or not survey.files.is_file(path):
            continue
        content = survey.files.read(path)
        if len(content) < POSITION_SIZE and any(content):
            yield _found(
                survey, "warning", "producer", path, f"the file is cut off: {len(content)} bytes", len(content)
            )
        elif any(content[: POSITION_SLOTS[-1] + POSITION.size]) and not any(map(_is_slot, _slots(content))):
            what = "where the producer left off is damaged; it is looked for in the log"
            yield _found(survey, "error", "producer", path, what, 0)


def _slots(content: bytes) -> list[bytes]:
    return [content[slot : slot + POSITION.size] for slot in POSITION_SLOTS]


def _is_slot(slot: bytes) -> bool:
    *fields, crc = POSITION.unpack(slot)
    return bool(fields[0]) and crc == crc32c(POSITION_CHECKED.pack(*fields))


# Names


def _strays(survey: Survey) -> Iterator[Finding]:
    for name in survey.files.list(survey.path):
        path = survey.path / name
        if name == MANIFEST + REPLACING and not survey.slots:
            yield _found(survey, "warning", "half-made", path, "somebody died while replacing the manifest")
        elif name not in _DIRECTORIES | {MANIFEST, CONTROL, MANIFEST + REPLACING}:
            yield _found(survey, "note", "stray", path, "not a file of the channel")
    begins = set(segment_begins(survey))
    for name in survey.files.list(survey.segments):
        yield from _stray_segment(survey, survey.segments / name, begins)
    for name in survey.files.list(survey.path / CONSUMERS):
        if name_of(name) is None:
            yield _found(survey, "note", "stray", survey.path / CONSUMERS / name, "not a file of the channel")
    for name in survey.files.list(survey.path / PRODUCERS):
        if not name.endswith(".position"):
            yield _found(survey, "note", "stray", survey.path / PRODUCERS / name, "not a file of the channel")
    for name in survey.files.list(survey.path / WAKE_FIFOS):
        path = survey.path / WAKE_FIFOS / name
        mode = _mode(path)
        if mode and not (name.isdigit() and S_ISFIFO(mode)):
            yield _found(survey, "note", "stray", path, "not a file of the channel")


def _stray_segment(survey: Survey, path: Path, begins: set[Offset]) -> Iterator[Finding]:
    name, mode = path.name, _mode(path)
    if not mode:
        return  # gone since
    if name.startswith(HALF_MADE):
        if not survey.slots:
            yield _found(survey, "warning", "half-made", path, "somebody died while making it; it is worth nothing")
    elif name.startswith(SPARE):
        if S_ISREG(mode) and survey.manifest is not None and not survey.slots:
            size = path.stat().st_size
            if size != survey.manifest.options.segment_size:
                yield _found(survey, "note", "spare", path, f"a spare file of {size} bytes is of no use")
    elif name.endswith(".idx"):
        if begin_of(name.removesuffix(".idx") + ".seg") not in begins and not survey.slots:
            yield _found(survey, "warning", "orphan", path, "an index whose segment is gone")
    elif begin_of(name) is None and compressed_begin_of(name) is None:
        yield _found(survey, "note", "stray", path, "not a file of the channel")


def _put_aside(survey: Survey) -> Iterator[Finding]:
    names = set(survey.files.list(survey.path / QUARANTINE))
    count = sum(name.removesuffix(".json") not in names - {name} for name in names)
    if count:
        what = f"{count} files that were put aside; each has a .json that says why"
        yield _found(survey, "note", "quarantine", survey.path / QUARANTINE, what)


@contextmanager
def _opened(files: Files, path: Path) -> Generator[int | None]:
    """Open a file that may be gone."""
    try:
        descriptor = files.open(path, writable=False)
    except (FileNotFoundError, IsADirectoryError):
        yield None
        return
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def _mode(path: Path) -> int:
    """Return the mode of a file; 0 if it is gone."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0
