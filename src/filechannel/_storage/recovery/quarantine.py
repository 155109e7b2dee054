"""The directory `quarantine/`: what recovery cut off or a repair replaced, and why. Only people read it."""

from __future__ import annotations

import json
import logging
import struct
import time
from functools import partial
from pathlib import Path

from ..._errors import DiskFullError, repair_command, verify_command
from ..._format import crc32c
from ..._format.layout import RECORD_HEADER_SIZE
from ..._offset import Offset
from ..control.control_page import Control
from ..reading.record_walk import Run, walk_records
from ..segments.compressed_segment import StoredSegment
from ..segments.segment_index import read_entries
from ..system.os_calls import QUARANTINE, REPLACING, Files, directory_mode

QUARANTINED = struct.Struct("<Q")
"""The offset, before each record in a `.records` file."""
_CHUNK = 4 << 20  # bytes to copy at a time
_logger = logging.getLogger("filechannel")


class Quarantine:
    """Moves or copies data to the quarantine. When a method returns, the data is on disk there."""

    def __init__(self, files: Files, channel: Path, mode: int, control: Control | None = None) -> None:
        """If the disk is full, the reserve of *control* is used to create the directory."""
        self._files = files
        self._channel = channel
        self._directory = channel / QUARANTINE
        self._mode = mode
        self._records = self._bytes = self._segments = 0
        self._control = control

    def move_and_log(self, path: Path, reason: str) -> None:
        """Move a whole file to the quarantine, and log that."""
        target = self.move(path, reason)
        _logger.warning("%s is not a segment (%s); moved to %s", path, reason, target)

    def move(self, path: Path, reason: str) -> Path:
        """Move a whole file to the quarantine, and return its new path."""
        target = self._new_path(path.name)
        self._files.replace(path, target)
        self._files.flush_directory(self._directory)
        self._note(target, reason)
        return target

    def keep(self, path: Path, reason: str) -> None:
        """Keep the current content of a file that is about to be replaced. Idempotent."""
        identity = self._files.identity_of(path)
        for name in self._files.list(self._directory):
            target = self._directory / name
            if name.endswith(path.name) and self._files.identity_of(target) == identity:
                self._note(target, reason)  # an earlier process may have died before it stored the reason
                return
        target = self._new_path(path.name)
        try:
            self._files.link(path, target)
        except OSError:  # not every file system supports hard links
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
        """Keep bytes that are about to be overwritten."""
        # Named after the content: a repetition after a crash or on a full disk finds the file that exists already.
        target = self._new_path(name, f"{crc32c(content):08x}")
        if not self._files.exists(target):
            self._files.write_atomically(target, content, self._mode)
        self._note(target, reason)

    def keep_records(self, segment: StoredSegment, start: Offset, end: Offset) -> None:
        """Keep every valid record between two offsets of a segment, in a new file.

        On a full disk, the file of the segment itself is kept instead.
        """
        found = self._valid_records(segment, start, end)
        if found:
            self._records += len(found)
            self._bytes += sum(len(record) - QUARANTINED.size for record in found)
            self._segments += 1
            reason = f"{len(found)} records after the valid end of the log"
            try:
                self.keep_content(f"{start:020}.records", b"".join(found), reason)
            except DiskFullError:
                segment.flush()
                self.keep(segment.path, f"{reason}, from offset {start} on; there was no disk space for a copy")

    def _valid_records(self, segment: StoredSegment, start: Offset, end: Offset) -> list[bytes]:
        found: list[bytes] = []
        entries = read_entries(self._files, segment.path)
        for run in walk_records(segment, start, end, entries, certain=start):
            if isinstance(run, Run):
                for offset, _, payload in run.records():
                    position = run.position + offset - run.start
                    record = memoryview(run.content)[position : position + RECORD_HEADER_SIZE + len(payload)]
                    found.append(QUARANTINED.pack(offset) + record)
        return found

    def report(self, cut: Offset, *, damaged: bool = False) -> None:
        """Log once what was cut off: as an error if it was after damage, because a repair would have kept it."""
        if not self._records:
            return
        hint = f"; {verify_command(self._channel)} and {repair_command(self._channel)} before opening would keep them"
        _logger.log(
            logging.ERROR if damaged else logging.WARNING,
            "%s: %d records after the valid end at offset %d (%d bytes in %d segments) were moved to %s%s",
            self._channel,
            self._records,
            cut,
            self._bytes,
            self._segments,
            self._directory,
            hint if damaged else "",
        )

    def _new_path(self, name: str, mark: str | None = None) -> Path:
        make = partial(self._files.make_directory, self._directory, directory_mode(self._mode))
        if self._control is None:
            make()
        else:
            self._control.reserve.using(make)
        return self._directory / f"{mark or time.time_ns()}-{name}"

    def _note(self, target: Path, reason: str) -> None:
        text = json.dumps({"reason": reason, "file": target.name}, indent=2) + "\n"
        try:
            self._files.write_atomically(target.with_name(target.name + ".json"), text.encode(), self._mode)
        except DiskFullError:  # the data is safe, and a missing note must not prevent an open
            _logger.warning("%s: there was no disk space to store the reason: %s", target, reason)
