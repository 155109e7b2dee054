"""Where producers left off in a channel: the newest control record of each, and a small file that says where it is.

A producer is whoever appends batches that must not be there twice: a transaction, with its position in the input, or
a sink, with the number of its batch. In front of every batch goes a control record with that, so that both are kept or
cut together. The file `producers/<key>.position` has two slots. One of them counts; the other is filled under the
writer word, with the record written but nothing published, and counts from then on *if the record is there*. So whoever
asks where the producer left off looks at one place, however much others have written since. Only where that is not
enough is the log searched, from the record of the slot that counts: the newer slot speaks of a record that is not there
(its writer died or the disk refused it), or the power may have been cut since, and with it the slot was lost.

A slot whose record was removed is believed. Therefore whoever removes segments, for whatever reason, first calls
`Producers.settle`, which makes the newest slot of every file the one that counts, and brings them to disk.
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

from .._errors import CorruptRecordError, UnexpectedFileError
from .._format import Mutex, crc32c
from .._format.layout import (
    CONTROL_IDENTITY,
    CONTROL_RECORD,
    POSITION,
    POSITION_CHECKED,
    POSITION_SIZE,
    POSITION_SLOTS,
    PRODUCER_RECORD,
    RECORD_HEADER_SIZE,
    SEAL,
)
from .._offset import Offset
from .control import Control
from .cursor_file import read_heads
from .files import Files, directory_mode
from .segments import Segments

PRODUCERS = "producers"
POSITION_SUFFIX = ".position"
"""What the name of a producer's file ends with."""
_logger = logging.getLogger("filechannel")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a producer left off: its newest record, and what that says."""

    record: Offset
    """Where the record begins; for a producer that has none, where to begin looking."""
    origin: int
    """What the other numbers are relative to: those of another origin mean nothing."""
    offset: int
    """Of what comes next in the input; 0 for a producer that has no record yet."""
    sequence: int


_LARGEST_GENERATION = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Slot:
    """One of the two places in a position file."""

    generation: int
    index: int
    place: Place
    life: int
    """Of the control page when it was written: with another one, power may have been lost since."""


@final
class Producer:
    """One producer and its position file. Whoever calls holds the writer word."""

    def __init__(self, files: Files, path: Path, key: str, content: mmap.mmap, log: _Records) -> None:
        self._files = files
        self._path = path
        self._key = key.encode()
        self._map = content
        self._log = log

    def find(self, *, past_damage: bool = False) -> Place | None:
        """Return where the producer left off, and make the newest slot say so. Everything appended is visible.

        Raises `CorruptRecordError` if damage lies where the log has to be searched; *past_damage*, the search ends
        there.
        """
        slots = self._slots()
        counts = next((slot for slot in reversed(slots) if self._is_there(slot.place)), None)
        if counts is not None and counts is slots[-1] and counts.life == self._log.life:
            return counts.place
        found = None if counts is None else counts.place
        try:
            for place in self._records(0 if found is None else found.record):
                found = place
        except CorruptRecordError as error:
            if not past_damage:
                raise
            _logger.warning("%s: what comes behind damage is not known: %s", self._path, error)
        if found is not None:
            self._store(found, slots, counts)
        return found

    def settle(self, before: Offset) -> None:
        """Let the file say by itself, on disk, where the producer left off, if its record lies before an offset."""
        slots = self._slots()
        if slots and slots[-1].place.offset and slots[-1].place.record >= self._log.end:
            # Of a batch that is not visible yet, or never will be: the other one counts, and stays as it is.
            found = next((slot.place for slot in slots[:-1] if self._is_there(slot.place)), None)
        else:
            found = self.find(past_damage=True)
        if found is None or found.record < before:
            self.flush()

    def begin(self, place: Place) -> None:
        """Begin with a new origin, of which there is no record yet."""
        self._store(place, self._slots(), None)

    @property
    def newest(self) -> Place | None:
        """What the newest slot says, whether or not it counts: another one, and somebody else has appended since."""
        slots = self._slots()
        return slots[-1].place if slots else None

    @property
    def record_size(self) -> int:
        """How long the payload of a control record is."""
        return PRODUCER_RECORD.size + len(self._key)

    def record(self, kind: int, place: Place, last: Place) -> bytes:
        """Return the control record for a batch that is about to be written, having filled the slot that will count.

        *last* is where the producer left off before.
        """
        slots = self._slots()
        self._store(place, slots, next((slot for slot in reversed(slots) if slot.place == last), None))
        previous = last.record if last.offset else 0
        return PRODUCER_RECORD.pack(kind, bytes(7), previous, place.origin, place.offset, place.sequence) + self._key

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
        """Return those that are whole, the newest last."""
        return slots_in(self._map)

    def _store(self, place: Place, slots: list[Slot], counting: Slot | None) -> None:
        """Fill the slot that does not count; it is the newest then."""
        index = 0 if counting is None else 1 - counting.index
        generation = slots[-1].generation + 1 if slots else 1
        if generation > _LARGEST_GENERATION:  # which only a damaged file reaches: the next one would not be read
            generation = self._renumber(counting, 1 - index)
        self._fill(index, generation, place, self._log.life)

    def _renumber(self, counting: Slot | None, index: int) -> int:
        """Let generations start over in the slot that is kept, or erase it if neither counts; return the next one."""
        if counting is None:
            self._map[POSITION_SLOTS[index] : POSITION_SLOTS[index] + POSITION.size] = bytes(POSITION.size)
            return 1
        self._fill(index, 1, counting.place, counting.life)
        return 2

    def _fill(self, index: int, generation: int, place: Place, life: int) -> None:
        fields = (generation, place.record, place.origin, place.offset, place.sequence, life)
        POSITION.pack_into(self._map, POSITION_SLOTS[index], *fields, crc32c(POSITION_CHECKED.pack(*fields)))

    # Records

    def _is_there(self, place: Place) -> bool:
        if not place.offset or place.record < self._log.oldest:
            return True
        payload = self._log.at(place.record)
        return payload is not None and self._read(place.record, payload) == place

    def _records(self, start: int) -> Generator[Place]:
        for at, payload in self._log.since(start):
            place = self._read(at, payload)
            if place is not None:
                yield place

    def _read(self, at: Offset, payload: bytes) -> Place | None:
        """Return what a control record says; None if it is not one of this producer's."""
        if payload == SEAL or payload[PRODUCER_RECORD.size :] != self._key:
            return None
        _, _, _, origin, offset, sequence = PRODUCER_RECORD.unpack_from(payload)
        return Place(at, origin, offset, sequence)


def slots_in(content: Buffer) -> list[Slot]:
    """Return the slots of a position file that are whole, the newest last."""
    found: list[Slot] = []
    for index, slot in enumerate(POSITION_SLOTS):
        *fields, crc = POSITION.unpack_from(content, slot)
        if 0 < fields[0] <= _LARGEST_GENERATION and crc == crc32c(POSITION_CHECKED.pack(*fields)):
            generation, record, origin, offset, sequence, life = fields
            found.append(Slot(generation, index, Place(Offset(record), origin, offset, sequence), life))
    return sorted(found, key=lambda slot: slot.generation)


def offsets_in_producers(files: Files, directory: Path) -> list[Offset]:
    """Return where the newest record of every producer is, or is to be."""
    found: list[Offset] = []
    for content in read_heads(files, directory, lambda name: name.endswith(POSITION_SUFFIX), POSITION_SIZE):
        if len(content) == POSITION_SIZE:
            found += [slot.place.record for slot in slots_in(content)]
    return found


def forget_unpublished(files: Files, directory: Path, end: Offset) -> None:
    """Erase the slots whose records lie beyond the end of the log, and will never be there.

    Only for a process that is alone and trusts that end. Later the slots would look like evidence for an old control
    page: see `staleness`.
    """
    for name in files.list(directory):
        if name.endswith(POSITION_SUFFIX):
            with suppress(FileNotFoundError, PermissionError, UnexpectedFileError):  # no file of a producer, or lost
                _forget_unpublished_in(files, directory / name, end)


def _forget_unpublished_in(files: Files, path: Path, end: Offset) -> None:
    descriptor = files.open(path)
    try:
        content = files.read_at(descriptor, POSITION_SIZE, 0)
        if len(content) == POSITION_SIZE:
            for slot in slots_in(content):
                if slot.place.record > end:
                    files.write_at(descriptor, bytes(POSITION.size), POSITION_SLOTS[slot.index])
    finally:
        files.close(descriptor)


@final
class _Records:
    """The control records of a log, as far as readers see it."""

    def __init__(self, control: Control, segments: Segments) -> None:
        self._control = control
        self._segments = segments

    @property
    def life(self) -> int:
        """What changes when the words of the control page are made anew, as after a power cut: its identity's CRC."""
        *_, crc = CONTROL_IDENTITY.unpack_from(self._control.map)
        life: int = crc
        return life

    @property
    def oldest(self) -> Offset:
        """Where the oldest record begins."""
        return self._control.oldest_offset

    @property
    def end(self) -> Offset:
        """Where the log ends."""
        return self._control.write_offset

    def at(self, offset: Offset) -> bytes | None:
        """Return the control record that begins at an offset; None if none does."""
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
        """Return offset and payload of every control record from one boundary on."""
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
        """Pass offsets that were left out on purpose."""
        previous_end = self._segments.get(following).header.previous_end
        if previous_end > at:
            name, channel = self._segments.path(following).name, self._segments.directory.parent
            raise CorruptRecordError(name, at, f"the records up to {previous_end} are missing", path=channel)
        return following


@final
class Producers:
    """The producers of one channel."""

    def __init__(self, files: Files, directory: Path, control: Control, segments: Segments, mode: int) -> None:
        self._files = files
        self._directory = directory
        self._mode = mode
        self._log = _Records(control, segments)
        self._lock = Mutex()
        self._open: dict[str, Producer] = {}
        self.check_place: Callable[[], object] = lambda: None
        """Called before a file is looked for; raises if the directory is not the channel's any more."""
        self.register: Callable[[Callable[[], Producer]], Producer] = lambda register: register()
        """Opens a file, which may have to be made; who knows of disk space that is kept for that knows a better way."""

    def open(self, key: str) -> Producer:
        """Return a producer; its file is made if it is not there. The key has only what a file name may have."""
        with self._lock.held():
            producer = self._open.get(key)
            if producer is None:
                self.check_place()
                producer = self._open[key] = self.register(lambda: self._map(key))
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
                self._files.flush(descriptor)  # so that one which is not whole never spoke of a record
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

    def settle(self, before: Offset) -> None:
        """Let the files say by themselves, on disk, what records before an offset say, which are to be removed.

        The caller keeps everybody from appending. That needs no room: removing is what makes some.
        """
        names = [name for name in self._files.list(self._directory) if name.endswith(POSITION_SUFFIX)]
        for name in names:
            if self._is_whole(self._directory / name):
                self.open(name.removesuffix(POSITION_SUFFIX)).settle(before)

    def close(self) -> None:
        """Close every file."""
        with self._lock.held():
            for producer in self._open.values():
                producer.close()
            self._open.clear()

    def flush(self) -> None:
        """Wait until the positions of the producers that were used here are on disk."""
        with self._lock.held():
            producers = list(self._open.values())
        for producer in producers:
            producer.flush()
