"""The file of a consumer: what its name means, where it stands, and how long it stays without an owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from typing_extensions import Buffer

from .._errors import UnexpectedFileError
from .._format import crc32c, load_u64
from .._format.layout import (
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_DEPARTURE,
    CURSOR_ORIGIN,
    CURSOR_OWNER,
    CURSOR_SIZE,
    CURSOR_SLOTS,
    CURSOR_TERM,
    DEPARTURE,
    DEPARTURE_CHECKED,
    GROUP_BEGUN,
    GROUP_NEXT,
    HOLDER,
    ORIGIN,
    ORIGIN_CHECKED,
    TERM,
    TERM_CHECKED,
)
from .._offset import Offset
from .files import Files
from .holder import Holder

CONSUMERS = "consumers"
HEAD_SIZE = CURSOR_DEPARTURE + DEPARTURE.size
"""Everything that counts lies in so many bytes."""
_SUFFIX = ".cursor"
_GROUP_SUFFIX = ".group"
_LONGEST_NAME = 200
_LARGEST = (1 << 63) - 1


def file_name(name: str) -> str:
    """Return the file name for a consumer's name; `ValueError` if it cannot be one."""
    return encoded_name(name) + _SUFFIX


def group_file_name(name: str) -> str:
    """Return the file name that the name would have as that of a group."""
    return encoded_name(name) + _GROUP_SUFFIX


def encoded_name(name: str) -> str:
    """Return a consumer's name as it stands in file names; `ValueError` if it cannot be one."""
    if not name:
        raise ValueError("a consumer's name must not be empty")
    try:
        encoded = quote(name, safe="").replace(".", "%2E")
    except UnicodeEncodeError:
        raise ValueError(f"consumer name {name[:20]!r} cannot be stored: it has a lone surrogate") from None
    if len(encoded) > _LONGEST_NAME:
        raise ValueError(f"consumer name {name[:20]!r}… is too long: at most {_LONGEST_NAME} bytes once encoded")
    return encoded


def name_of(file: str) -> str | None:
    """Return the consumer's name in a file name; None if it is some other file."""
    try:
        name = unquote(file.removesuffix(_SUFFIX).removesuffix(_GROUP_SUFFIX), errors="strict")
        return name if file in (file_name(name), group_file_name(name)) else None
    except ValueError:
        return None


def path_of(files: Files, directory: Path, name: str) -> Path:
    """Return the file of a name, whichever kind it is of."""
    group = directory / group_file_name(name)
    return group if files.exists(group) else directory / file_name(name)


def is_group(path: Path) -> bool:
    """Tell whether a file is that of a group."""
    return path.name.endswith(_GROUP_SUFFIX)


# Positions


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer stands, and since when (ns since the epoch)."""

    offset: Offset
    sequence: int
    time: int


def read_position(content: Buffer) -> Position | None:
    """Return the newest whole position in a cursor file."""
    if memoryview(content).nbytes < CURSOR_SLOTS[-1] + CURSOR.size:
        found = read_slots(content)
        return Position(Offset(max(found)[1]), *max(found)[2:]) if found else None
    newer, older = (CURSOR.unpack_from(content, slot) for slot in CURSOR_SLOTS)
    if newer[0] < older[0]:
        newer, older = older, newer
    for slot in (newer, older):
        if _is_whole(*slot):
            return Position(Offset(slot[1]), *slot[2:4])
    return None


def _is_whole(generation: int, offset: int, sequence: int, time: int, crc: int) -> bool:
    """Return whether a slot counts: it was written as a whole, and nothing in it is out of range.

    No log gets as far as half of what the numbers can hold, so what comes after them always fits, too.
    """
    fits = 0 < generation <= _LARGEST and offset <= _LARGEST and sequence <= _LARGEST
    return fits and crc == crc32c(CURSOR_CHECKED.pack(generation, offset, sequence, time))


def offsets_in_consumers(files: Files, directory: Path) -> list[Offset]:
    """Return the position of every consumer and group that has one, and how far each group has handed out."""
    found: list[Offset] = []
    for content in read_heads(files, directory, lambda name: name_of(name) is not None, CURSOR_SIZE):
        position = read_position(content)
        found += [] if position is None else [position.offset]
        if len(content) == CURSOR_SIZE and load_u64(content, GROUP_BEGUN):
            found.append(Offset(load_u64(content, GROUP_NEXT)))
    return found


def read_heads(files: Files, directory: Path, is_wanted: Callable[[str], bool], size: int) -> Iterator[bytes]:
    """Return the first bytes of every file whose name is wanted, and that can be read."""
    for name in files.list(directory):
        if is_wanted(name):
            try:
                content = files.read(directory / name, size)
            except (FileNotFoundError, IsADirectoryError, PermissionError, UnexpectedFileError):
                continue
            yield content


def is_unsettled(content: bytes) -> bool:
    """Tell whether a name is about to be registered, or was when its owner died: it stands nowhere yet."""
    return not any(content[:CURSOR_OWNER]) and any(content[CURSOR_OWNER : CURSOR_OWNER + HOLDER.size])


def is_damaged(content: bytes) -> bool:
    """Tell whether there was a position, and cannot be read any more. A file has its owner before it has its name."""
    return read_position(content) is None and not is_unsettled(content)


def read_slots(content: Buffer) -> list[tuple[int, int, int, int]]:
    """Return (generation, offset, sequence, time) of each slot that is whole."""
    found: list[tuple[int, int, int, int]] = []
    for slot in CURSOR_SLOTS:
        if slot + CURSOR.size > memoryview(content).nbytes:
            continue
        generation, offset, sequence, time, crc = CURSOR.unpack_from(content, slot)
        if _is_whole(generation, offset, sequence, time, crc):
            found.append((generation, offset, sequence, time))
    return found


# Owners and terms


def read_owner(content: bytes) -> Holder:
    """Return who described itself as the owner; whether it lives is for the kernel to say."""
    return Holder.unpack(content[CURSOR_OWNER : CURSOR_OWNER + HOLDER.size])


def pack_term(expires: int) -> bytes:
    """Return how long a name stays without a live owner, in nanoseconds, for its file."""
    return TERM.pack(expires, crc32c(TERM_CHECKED.pack(expires)))


def read_term(content: Buffer) -> int | None:
    """Return how long a name stays without a live owner, in nanoseconds; None if it stays until it is removed."""
    if memoryview(content).nbytes < CURSOR_TERM + TERM.size:
        return None
    expires, crc = TERM.unpack_from(content, CURSOR_TERM)
    return expires if crc == crc32c(TERM_CHECKED.pack(expires)) else None


def pack_departure(content: Buffer, left: int) -> bytes:
    """Return that the owner in a file was gone at a time (ns since the epoch), for that file."""
    fields = (left, _since(content))
    return DEPARTURE.pack(*fields, crc32c(DEPARTURE_CHECKED.pack(*fields)))


def read_departure(content: Buffer) -> int | None:
    """Return when the last owner was known to be gone (ns since the epoch); None if nobody has noticed yet."""
    if memoryview(content).nbytes < HEAD_SIZE:
        return None
    left, since, crc = DEPARTURE.unpack_from(content, CURSOR_DEPARTURE)
    whole = crc == crc32c(DEPARTURE_CHECKED.pack(left, since))
    return left if whole and since == _since(content) else None


def _since(content: Buffer) -> int:
    since: int = HOLDER.unpack_from(content, CURSOR_OWNER)[1]
    return since


def is_overdue(content: Buffer, now: int) -> bool:
    """Tell whether a name had no live owner for as long as its term says. The caller knows that it has none."""
    expires, left = read_term(content), read_departure(content)
    return expires is not None and left is not None and left + expires <= now


# Transactions


@dataclass(frozen=True, slots=True)
class Origin:
    """Which control records speak of a position: those with this number, in that channel."""

    number: int
    output: bytes
    """The id of the channel."""


def pack_origin(origin: Origin) -> bytes:
    """Return an origin for a cursor file."""
    fields = (origin.number, origin.output)
    return ORIGIN.pack(*fields, crc32c(ORIGIN_CHECKED.pack(*fields)))


def read_origin(content: Buffer) -> Origin | None:
    """Return the origin in a cursor file; None for a position that no control record speaks of."""
    number, output, crc = ORIGIN.unpack_from(content, CURSOR_ORIGIN)
    whole = number and crc == crc32c(ORIGIN_CHECKED.pack(number, output))
    return Origin(number, output) if whole else None
