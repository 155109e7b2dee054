"""`quarantine/`: what recovery cut off or a repair replaced, and why. Nobody reads it but people."""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Callable
from pathlib import Path

from .._errors import DiskFullError, repair_command, verify_command
from .._format import crc32c
from .._format.layout import LENGTH_MASK, RECORD_HEADER, RECORD_HEADER_SIZE
from .._offset import Offset
from .compressed import StoredSegment
from .damage import UNWRITTEN, next_record
from .files import QUARANTINE, REPLACING, Files, directory_mode
from .index import read_marks

QUARANTINED = struct.Struct("<Q")
"""The offset, before each record in a `.records` file."""
_CHUNK = 4 << 20  # bytes that are copied at a time
_logger = logging.getLogger("filechannel")


class Quarantine:
    """Puts things aside. What it has taken is on disk when its methods return."""

    def __init__(self, files: Files, channel: Path, mode: int) -> None:
        self._files = files
        self._channel = channel
        self._directory = channel / QUARANTINE
        self._mode = mode
        self._records = self._bytes = self._segments = 0
        self.make: Callable[[Callable[[], None]], None] = lambda make: make()
        """Makes the directory; who knows of disk space that is kept for that knows a better way."""

    def keep_file(self, path: Path, reason: str) -> None:
        """Move a whole file here."""
        target = self.take(path, reason)
        _logger.warning("%s is not a segment (%s); moved to %s", path, reason, target)

    def take(self, path: Path, reason: str) -> Path:
        """Move a whole file here, and return where it is now."""
        target = self._path(path.name)
        self._files.replace(path, target)
        self._files.flush_directory(self._directory)
        self._note(target, reason)
        return target

    def keep(self, path: Path, reason: str) -> None:
        """Keep what a file is now, which is about to be replaced under its name. Doing it twice is doing it once."""
        identity = self._files.identity_of(path)
        for name in self._files.list(self._directory):
            target = self._directory / name
            if name.endswith(path.name) and self._files.identity_of(target) == identity:
                self._note(target, reason)  # whoever did it may have died before it could say why
                return
        target = self._path(path.name)
        try:
            self._files.link(path, target)
        except OSError:  # not every file system can
            self._copy(path, target)
        self._files.flush_directory(self._directory)
        self._note(target, reason)

    def _copy(self, path: Path, target: Path) -> None:
        temporary = target.with_name(target.name + REPLACING)
        source, copied = self._files.open(path, writable=False), 0
        try:
            descriptor = self._files.create(temporary, self._mode)
            try:
                while chunk := self._files.read_at(source, _CHUNK, copied):
                    self._files.write_at(descriptor, chunk, copied)
                    copied += len(chunk)
                self._files.flush(descriptor)
            finally:
                self._files.close(descriptor)
            self._files.replace(temporary, target)
        except BaseException:
            self._files.unlink(temporary)
            raise
        finally:
            self._files.close(source)

    def keep_content(self, name: str, content: bytes, reason: str) -> None:
        """Keep bytes that are about to be written over."""
        # Named after the content: whoever does it again, having died or found no room, finds what is there already.
        target = self._path(name, f"{crc32c(content):08x}")
        if not self._files.exists(target):
            self._files.write_atomically(target, content, self._mode)
        self._note(target, reason)

    def keep_records(self, segment: StoredSegment, start: Offset, end: Offset) -> None:
        """Keep every valid record between two offsets of a segment: in a file of its own, or on a full disk in its."""
        found = self._valid_records(segment, start, end)
        if found:
            self._records += len(found)
            self._bytes += sum(len(record) - QUARANTINED.size for record in found)
            self._segments += 1
            reason = f"{len(found)} records behind the valid end of the log"
            try:
                self.keep_content(f"{start:020}.records", b"".join(found), reason)
            except DiskFullError:
                segment.flush()
                self.keep(segment.path, f"{reason}, from offset {start} on; there was no room for a copy")

    def _valid_records(self, segment: StoredSegment, start: Offset, end: Offset) -> list[bytes]:
        found: list[bytes] = []
        marks = read_marks(self._files, segment.path)
        at = next_record(segment, start, end, marks, UNWRITTEN)
        while at is not None:
            word, _ = RECORD_HEADER.unpack_from(*segment.span(at, at + RECORD_HEADER_SIZE))
            size = RECORD_HEADER_SIZE + (word & LENGTH_MASK)
            content, position = segment.span(at, at + size)
            found.append(QUARANTINED.pack(at) + memoryview(content)[position : position + size])
            at = next_record(segment, at + size, end, marks, UNWRITTEN)
        return found

    def report(self, cut: Offset, *, damaged: bool = False) -> None:
        """Log what was cut off, once for all of it; as an error if it was behind damage, where a repair keeps it."""
        if not self._records:
            return
        advice = f"; {verify_command(self._channel)} and {repair_command(self._channel)} before opening keep them"
        _logger.log(
            logging.ERROR if damaged else logging.WARNING,
            "%s: %d records behind the valid end at offset %d (%d bytes in %d segments) were moved to %s%s",
            self._channel,
            self._records,
            cut,
            self._bytes,
            self._segments,
            self._directory,
            advice if damaged else "",
        )

    def _path(self, name: str, mark: str | None = None) -> Path:
        self.make(lambda: self._files.make_directory(self._directory, directory_mode(self._mode)))
        return self._directory / f"{mark or time.time_ns()}-{name}"

    def _note(self, target: Path, reason: str) -> None:
        text = json.dumps({"reason": reason, "file": target.name}, indent=2) + "\n"
        try:
            self._files.write_atomically(target.with_name(target.name + ".json"), text.encode(), self._mode)
        except DiskFullError:  # it is safe, and must not keep anybody out
            _logger.warning("%s: there was no room to note there why it was put aside: %s", target, reason)
