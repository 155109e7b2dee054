"""The positions of idempotent producers: the newest header record of each, and a small file that locates it.

A producer appends batches that must not exist twice: a transaction, with its position in the input, or a sink, with the
number of its batch. A header record with that information precedes every batch, so that both are kept or cut off
together. The file `producers/<key>.position` has two slots. One of them is valid. The other one is filled under the
writer lock, when the record is written but nothing is published, and is the valid one from then on *if the record
exists*. So the position of a producer is found with one lookup, however much other processes have written since. The
log is searched, from the record of the valid slot on, only where that is not enough: the newer slot refers to a record
that does not exist (its writer died, or its flush failed), or there may have been a power cut since, in which the slot
was lost.

A slot whose record was removed is trusted. Therefore every process calls `Producers.release_before` before it
removes segments for any reason. It makes the newest slot of every file the valid one, and flushes the files.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from typing_extensions import Buffer

from ..._errors import CorruptRecordError, UnexpectedFileError
from ..._format import Mutex, crc32c
from ..._format.layout import (
    CONTROL_IDENTITY,
    CONTROL_RECORD,
    LARGEST_GENERATION,
    LARGEST_OFFSET,
    POSITION,
    POSITION_CHECKED,
    POSITION_SIZE,
    POSITION_SLOTS,
    PRODUCER_RECORD,
    RECORD_HEADER_SIZE,
    SEAL,
)
from ..._offset import Offset
from ..consumers.cursor_file_format import read_heads
from ..control.control_page import Control
from ..segments.catalog import Segments
from ..system.os_calls import Files, directory_mode

PRODUCERS = "producers"
POSITION_SUFFIX = ".position"
"""The suffix of a producer's file."""
_logger = logging.getLogger("filechannel")


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """The position of a producer: its newest header record, and the content of that."""

    record: Offset
    """The offset of the record; for a producer without one, where a search starts."""
    origin: int
    """What the other numbers are relative to; numbers of another origin have no meaning."""
    offset: int
    """The next offset in the input; 0 for a producer that has no record yet."""
    sequence: int

    @property
    def is_possible(self) -> bool:
        """Whether there can be such offsets and sequences; others are damage."""
        return max(self.record, self.offset, self.sequence) <= LARGEST_OFFSET


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the two slots of a position file."""

    generation: int
    index: int
    position: ProducerPosition
    identity: int
    """The checksum of the control page's identity when the slot was written.

    If it differs from the current one, there may have been a power cut since.
    """


@final
class Producer:
    """One producer and its position file. The caller of each method holds the writer lock."""

    def __init__(self, files: Files, path: Path, key: str, content: mmap.mmap, log: _Records) -> None:
        self._files = files
        self._path = path
        self._key = key.encode()
        self._map = content
        self._log = log

    def find(self, *, past_damage: bool = False) -> ProducerPosition | None:
        """Return the position of the producer, and store it in the newest slot. All appended records must be visible.

        Raises `CorruptRecordError` if there is damage where the log has to be searched; with *past_damage*, the search
        ends there.
        """
        slots = self._slots()
        valid = next((slot for slot in reversed(slots) if self._exists(slot.position)), None)
        if valid is not None and valid is slots[-1] and valid.identity == self._log.identity:
            return valid.position
        found = None if valid is None else valid.position
        try:
            for position in self._records(0 if found is None else found.record):
                found = position
        except CorruptRecordError as error:
            if not past_damage:
                raise
            _logger.warning("%s: producer positions after damage are unknown: %s", self._path, error)
        if found is not None:
            self._store(found, slots, valid)
        return found

    def release_before(self, before: Offset) -> None:
        """If the newest record lies before an offset, make the file valid without it, and flush the file."""
        slots = self._slots()
        if slots and slots[-1].position.offset and slots[-1].position.record >= self._log.end:
            # The record belongs to a batch that is not visible yet, or never will be: the other slot is valid, and
            # stays as it is.
            found = next((slot.position for slot in slots[:-1] if self._exists(slot.position)), None)
        else:
            found = self.find(past_damage=True)
        if found is None or found.record < before:
            self.flush()

    def begin(self, position: ProducerPosition) -> None:
        """Start with a new origin, for which there is no record yet."""
        self._store(position, self._slots(), None)

    @property
    def newest(self) -> ProducerPosition | None:
        """The content of the newest slot, valid or not.

        If it has changed, another thread or process has appended since.
        """
        slots = self._slots()
        return slots[-1].position if slots else None

    @property
    def record_size(self) -> int:
        """The size of the payload of a header record."""
        return PRODUCER_RECORD.size + len(self._key)

    def record(self, kind: int, position: ProducerPosition, last: ProducerPosition) -> bytes:
        """Return the header record for a batch that is about to be written, and fill the slot that becomes valid.

        *last* is the previous position of the producer.
        """
        slots = self._slots()
        self._store(position, slots, next((slot for slot in reversed(slots) if slot.position == last), None))
        previous = last.record if last.offset else 0
        return (
            PRODUCER_RECORD.pack(kind, bytes(7), previous, position.origin, position.offset, position.sequence)
            + self._key
        )

    def flush(self) -> None:
        """Wait until the file is on disk."""
        descriptor = self._files.open(self._path, writable=False)
        try:
            self._files.flush(descriptor)
        finally:
            self._files.close(descriptor)

    def close(self) -> None:
        """Close the file."""
        self._map.close()

    # Slots

    def _slots(self) -> list[Slot]:
        """Return the slots with a valid checksum, the newest last."""
        return slots_in(self._map)

    def _store(self, position: ProducerPosition, slots: list[Slot], valid: Slot | None) -> None:
        """Fill the slot that is not *valid*, and make it the newest one."""
        index = 0 if valid is None else 1 - valid.index
        generation = slots[-1].generation + 1 if slots else 1
        if generation > LARGEST_GENERATION:  # reached only by a damaged file: a larger generation would not be read
            generation = self._renumber(valid, 1 - index)
        self._fill(index, generation, position, self._log.identity)

    def _renumber(self, valid: Slot | None, index: int) -> int:
        """Restart the generations in the slot that is kept, or erase it if neither is valid.

        Return the next generation.
        """
        if valid is None:
            self._map[POSITION_SLOTS[index] : POSITION_SLOTS[index] + POSITION.size] = bytes(POSITION.size)
            return 1
        self._fill(index, 1, valid.position, valid.identity)
        return 2

    def _fill(self, index: int, generation: int, position: ProducerPosition, identity: int) -> None:
        fields = (
            generation,
            position.record,
            position.origin,
            position.offset,
            position.sequence,
            identity,
        )
        POSITION.pack_into(self._map, POSITION_SLOTS[index], *fields, crc32c(POSITION_CHECKED.pack(*fields)))

    # Records

    def _exists(self, position: ProducerPosition) -> bool:
        if not position.offset or position.record < self._log.oldest:
            return True
        payload = self._log.at(position.record)
        return payload is not None and self._read(position.record, payload) == position

    def _records(self, start: int) -> Generator[ProducerPosition]:
        for at, payload in self._log.since(start):
            position = self._read(at, payload)
            if position is not None:
                yield position

    def _read(self, at: Offset, payload: bytes) -> ProducerPosition | None:
        """Return the content of a control record; None if it is not a valid header record of this producer."""
        if payload == SEAL or payload[PRODUCER_RECORD.size :] != self._key:
            return None
        _, _, _, origin, offset, sequence = PRODUCER_RECORD.unpack_from(payload)
        position = ProducerPosition(at, origin, offset, sequence)
        return position if position.is_possible else None


def slots_in(content: Buffer) -> list[Slot]:
    """Return the slots of a position file with a valid checksum and possible content, the newest last."""
    found: list[Slot] = []
    for index, slot in enumerate(POSITION_SLOTS):
        *fields, crc = POSITION.unpack_from(content, slot)
        if 0 < fields[0] <= LARGEST_GENERATION and crc == crc32c(POSITION_CHECKED.pack(*fields)):
            generation, record, origin, offset, sequence, identity = fields
            position = ProducerPosition(Offset(record), origin, offset, sequence)
            found += [Slot(generation, index, position, identity)] if position.is_possible else []
    return sorted(found, key=lambda slot: slot.generation)


def offsets_in_producers(files: Files, directory: Path) -> list[Offset]:
    """Return the offsets of the newest header records of every producer, written or about to be written."""
    found: list[Offset] = []
    for content in read_heads(files, directory, lambda name: name.endswith(POSITION_SUFFIX), POSITION_SIZE):
        if len(content) == POSITION_SIZE:
            found += [slot.position.record for slot in slots_in(content)]
    return found


def erase_unpublished(files: Files, directory: Path, end: Offset) -> None:
    """Erase the slots whose records lie beyond the end of the log and will never be written.

    Only for a process that has the channel open alone and trusts that end. Later the slots would look like evidence for
    a stale control page: see `stale_control`.
    """
    for name in files.list(directory):
        if name.endswith(POSITION_SUFFIX):
            # Not the file of a producer, or lost.
            with suppress(FileNotFoundError, PermissionError, UnexpectedFileError):
                _erase_unpublished_in(files, directory / name, end)


def _erase_unpublished_in(files: Files, path: Path, end: Offset) -> None:
    descriptor = files.open(path)
    try:
        content = files.read_at(descriptor, POSITION_SIZE, 0)
        if len(content) == POSITION_SIZE:
            for slot in slots_in(content):
                if slot.position.record > end:
                    files.write_at(descriptor, bytes(POSITION.size), POSITION_SLOTS[slot.index])
    finally:
        files.close(descriptor)


@final
class _Records:
    """The control records of a log that are visible to readers."""

    def __init__(self, control: Control, segments: Segments) -> None:
        self._control = control
        self._segments = segments

    @property
    def identity(self) -> int:
        """The CRC of the control page's identity. It changes when the control page is rebuilt, as after a power cut."""
        *_, crc = CONTROL_IDENTITY.unpack_from(self._control.map)
        identity: int = crc
        return identity

    @property
    def oldest(self) -> Offset:
        """The offset of the oldest record."""
        return self._control.oldest_offset

    @property
    def end(self) -> Offset:
        """The end of the log."""
        return self._control.write_offset

    def at(self, offset: Offset) -> bytes | None:
        """Return the control record at an offset; None if there is none."""
        begin = self._segments.covering(offset)
        try:
            segment = None if begin is None else self._segments.get(begin)
            if segment is None or offset >= min(segment.limit, self.end):
                return None
            word, payload = segment.read(offset, min(segment.limit, self.end))
        except (CorruptRecordError, ValueError):
            return None
        return payload if word & CONTROL_RECORD else None

    def since(self, start: int) -> Generator[tuple[Offset, bytes]]:
        """Yield offset and payload of every control record from a record boundary on."""
        at, end = max(Offset(start), self.oldest), self.end
        while at < end:
            begin = self._segments.covering(at)
            segment = None if begin is None else self._segments.get(begin)
            if segment is None or at >= segment.limit:
                following = self._segments.following(at)
                if following is None:
                    return
                at = self._bridge(at, following)
                continue
            try:
                word, payload = segment.read(at, min(segment.limit, end))
            except ValueError as error:
                reason, channel = segment.explain(at, str(error)), self._segments.directory.parent
                raise CorruptRecordError(segment.path.name, at, reason, path=channel) from error
            if word & CONTROL_RECORD:
                yield at, payload
            at = Offset(at + RECORD_HEADER_SIZE + len(payload))

    def _bridge(self, at: Offset, following: Offset) -> Offset:
        """Return the offset after an offset gap; `CorruptRecordError` if records are missing."""
        previous_end = self._segments.get(following).header.previous_end
        if previous_end > at:
            name, channel = self._segments.path(following).name, self._segments.directory.parent
            raise CorruptRecordError(name, at, f"the records up to {previous_end} are missing", path=channel)
        return following


@final
class Producers:
    """The producers of one channel."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        control: Control,
        segments: Segments,
        mode: int,
        *,
        create: Callable[[Callable[[], Producer]], Producer],
        check_directory: Callable[[], object],
    ) -> None:
        """*create* calls a function that creates a file, on a full disk with the disk reserve.

        *check_directory* is called before a file is looked up; it raises if the path leads to another directory now.
        """
        self._files = files
        self._directory = directory
        self._mode = mode
        self._create = create
        self._check_directory = check_directory
        self._log = _Records(control, segments)
        self._lock = Mutex()
        self._open: dict[str, Producer] = {}

    def open(self, key: str) -> Producer:
        """Return a producer; its file is created if it is missing. The key must be a valid file name."""
        with self._lock.held():
            producer = self._open.get(key)
            if producer is None:
                self._check_directory()
                producer = self._open[key] = self._create(lambda: self._map(key))
            return producer

    def _map(self, key: str) -> Producer:
        path = self._directory / f"{key}{POSITION_SUFFIX}"
        self._files.make_directory(self._directory, directory_mode(self._mode))
        is_new = not self._is_whole(path)
        if is_new:
            self._files.make(path, POSITION_SIZE, b"", 0, self._mode)
        descriptor = self._files.open(path)
        try:
            self._files.allocate(path, descriptor, 0, POSITION_SIZE)
            content = self._files.map(descriptor, POSITION_SIZE)
            if is_new:
                self._files.flush(descriptor)  # then a file without a valid slot never referred to a record
        finally:
            self._files.close(descriptor)
        if is_new:
            self._files.flush_directory(self._directory)
        return Producer(self._files, path, key, content, self._log)

    def _is_whole(self, path: Path) -> bool:
        try:
            descriptor = self._files.open(path, writable=False)
        except FileNotFoundError:
            return False
        try:
            return self._files.size(descriptor) >= POSITION_SIZE
        finally:
            self._files.close(descriptor)

    def release_before(self, before: Offset) -> None:
        """Make the position files valid without the records before an offset, which are to be removed, and flush them.

        The caller keeps other threads and processes from appending. Needs no disk space, because removal is what frees
        it.
        """
        names = [name for name in self._files.list(self._directory) if name.endswith(POSITION_SUFFIX)]
        for name in names:
            if self._is_whole(self._directory / name):
                self.open(name.removesuffix(POSITION_SUFFIX)).release_before(before)

    def close(self) -> None:
        """Close every file."""
        with self._lock.held():
            for producer in self._open.values():
                producer.close()
            self._open.clear()

    def flush(self) -> None:
        """Flush the positions of the producers that this process has used."""
        with self._lock.held():
            producers = list(self._open.values())
        for producer in producers:
            producer.flush()
