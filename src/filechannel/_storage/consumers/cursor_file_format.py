"""The format of a consumer's file: its name, stored position, owner and expiry time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from typing_extensions import Buffer

from ..._errors import UnexpectedFileError
from ..._format import crc32c, load_u64
from ..._format.layout import (
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
    GROUP_INITIALIZED,
    GROUP_NEXT,
    HOLDER,
    LARGEST_GENERATION,
    LARGEST_OFFSET,
    ORIGIN,
    ORIGIN_CHECKED,
    TERM,
    TERM_CHECKED,
)
from ..._offset import LogPosition, Offset
from ..control.lock_holder import Holder
from ..system.os_calls import Files

CONSUMERS = "consumers"
HEAD_SIZE = CURSOR_DEPARTURE + DEPARTURE.size
"""All fields lie in this many bytes."""
_SUFFIX = ".cursor"
_GROUP_SUFFIX = ".group"
_LONGEST_NAME = 200


def file_name(name: str) -> str:
    """Return the file name of a consumer; `ValueError` if the name is not valid."""
    return encoded_name(name) + _SUFFIX


def group_file_name(name: str) -> str:
    """Return the file name that the name would have as a group."""
    return encoded_name(name) + _GROUP_SUFFIX


def encoded_name(name: str) -> str:
    """Return a consumer's name as encoded in file names; `ValueError` if it is not valid."""
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
    """Return the consumer's name encoded in a file name; None for any other file."""
    try:
        name = unquote(file.removesuffix(_SUFFIX).removesuffix(_GROUP_SUFFIX), errors="strict")
        return name if file in (file_name(name), group_file_name(name)) else None
    except ValueError:
        return None


def path_of(files: Files, directory: Path, name: str) -> Path:
    """Return the file of a name, be it a single consumer or a group."""
    group = directory / group_file_name(name)
    return group if files.exists(group) else directory / file_name(name)


def is_group(path: Path) -> bool:
    """Return whether a file belongs to a group."""
    return path.name.endswith(_GROUP_SUFFIX)


# Positions


class StoredPosition(NamedTuple):
    """The log position of a consumer, and when it was stored (ns since the epoch)."""

    offset: Offset
    sequence: int
    time: int

    @property
    def log_position(self) -> LogPosition:
        """Where the consumer resumes."""
        return LogPosition(self.offset, self.sequence)


def read_position(content: Buffer) -> StoredPosition | None:
    """Return the newest valid position in a cursor file."""
    if memoryview(content).nbytes < CURSOR_SLOTS[-1] + CURSOR.size:
        found = read_slots(content)
        return StoredPosition(Offset(max(found)[1]), *max(found)[2:]) if found else None
    newer, older = (CURSOR.unpack_from(content, slot) for slot in CURSOR_SLOTS)
    if newer[0] < older[0]:
        newer, older = older, newer
    for slot in (newer, older):
        if _is_whole(*slot):
            return StoredPosition(Offset(slot[1]), *slot[2:4])
    return None


def _is_whole(generation: int, offset: int, sequence: int, time: int, crc: int) -> bool:
    """Return whether a slot is valid: completely written, and every field in range."""
    fits = 0 < generation <= LARGEST_GENERATION and offset <= LARGEST_OFFSET and sequence <= LARGEST_OFFSET
    return fits and crc == crc32c(CURSOR_CHECKED.pack(generation, offset, sequence, time))


def offsets_in_consumers(files: Files, directory: Path) -> list[Offset]:
    """Return the position of every consumer and group that has one, and how far each group has handed out."""
    found: list[Offset] = []
    for content in read_heads(files, directory, lambda name: name_of(name) is not None, CURSOR_SIZE):
        position = read_position(content)
        found += [] if position is None else [position.offset]
        if len(content) == CURSOR_SIZE and load_u64(content, GROUP_INITIALIZED):
            found.append(Offset(load_u64(content, GROUP_NEXT)))
    return found


def read_heads(files: Files, directory: Path, is_wanted: Callable[[str], bool], size: int) -> Iterator[bytes]:
    """Yield the first *size* bytes of every readable file whose name is wanted."""
    for name in files.list(directory):
        if is_wanted(name):
            try:
                content = files.read(directory / name, size)
            except (FileNotFoundError, IsADirectoryError, PermissionError, UnexpectedFileError):
                continue
            yield content


def is_being_registered(content: bytes) -> bool:
    """Return whether a name is being registered, or was when its owner died: it has no position yet."""
    return not any(content[:CURSOR_OWNER]) and any(content[CURSOR_OWNER : CURSOR_OWNER + HOLDER.size])


def is_damaged(content: bytes) -> bool:
    """Return whether a position was stored but is unreadable. A file has its owner before it has its name."""
    return read_position(content) is None and not is_being_registered(content)


def read_slots(content: Buffer) -> list[tuple[int, int, int, int]]:
    """Return (generation, offset, sequence, time) of each valid slot."""
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
    """Return the process that recorded itself as owner. Only the kernel lock decides whether it is alive."""
    return Holder.unpack(content[CURSOR_OWNER : CURSOR_OWNER + HOLDER.size])


def pack_term(expires: int) -> bytes:
    """Return the bytes for the file of a name that expires after *expires* nanoseconds without a live owner."""
    return TERM.pack(expires, crc32c(TERM_CHECKED.pack(expires)))


def read_term(content: Buffer) -> int | None:
    """Return after how many nanoseconds without a live owner a name expires; None if it never does."""
    if memoryview(content).nbytes < CURSOR_TERM + TERM.size:
        return None
    expires, crc = TERM.unpack_from(content, CURSOR_TERM)
    return expires if crc == crc32c(TERM_CHECKED.pack(expires)) else None


def pack_departure(content: Buffer, departed: int) -> bytes:
    """Return the bytes for a file that say when (ns since the epoch) its owner was gone."""
    fields = (departed, _since(content))
    return DEPARTURE.pack(*fields, crc32c(DEPARTURE_CHECKED.pack(*fields)))


def read_departure(content: Buffer) -> int | None:
    """Return when the last owner was known to be gone (ns since the epoch); None if that was not noted yet."""
    if memoryview(content).nbytes < HEAD_SIZE:
        return None
    departed, since, crc = DEPARTURE.unpack_from(content, CURSOR_DEPARTURE)
    whole = crc == crc32c(DEPARTURE_CHECKED.pack(departed, since))
    return departed if whole and since == _since(content) else None


def _since(content: Buffer) -> int:
    since: int = HOLDER.unpack_from(content, CURSOR_OWNER)[1]
    return since


def is_overdue(content: Buffer, now: int) -> bool:
    """Return whether a name had no live owner for its expiry time. The caller knows that it has no owner now."""
    expires, departed = read_term(content), read_departure(content)
    return expires is not None and departed is not None and departed + expires <= now


# Transactions


@dataclass(frozen=True, slots=True)
class Origin:
    """Which header records carry a position: those with this number, in that channel."""

    number: int
    output: bytes
    """The id of the channel."""


def pack_origin(origin: Origin) -> bytes:
    """Return the bytes of an origin for a cursor file."""
    fields = (origin.number, origin.output)
    return ORIGIN.pack(*fields, crc32c(ORIGIN_CHECKED.pack(*fields)))


def read_origin(content: Buffer) -> Origin | None:
    """Return the origin in a cursor file; None for a position that no header record carries."""
    number, output, crc = ORIGIN.unpack_from(content, CURSOR_ORIGIN)
    whole = number and crc == crc32c(ORIGIN_CHECKED.pack(number, output))
    return Origin(number, output) if whole else None
