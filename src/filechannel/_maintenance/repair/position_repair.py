"""Repair of the stored positions of consumers and producers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import final

from ..._format import write_cursor_slot
from ..._format.layout import (
    CURSOR_ORIGIN,
    CURSOR_SIZE,
    CURSOR_TERM,
    GROUP_INITIALIZED,
    GROUP_LOCK,
    GROUP_SIZE,
    ORIGIN,
    TERM,
)
from ..._storage.consumers.cursor_file_format import (
    is_group,
    name_of,
    pack_origin,
    pack_term,
    read_origin,
    read_position,
    read_term,
)
from ..._storage.recovery.quarantine import Quarantine
from ..._storage.system.os_calls import QUARANTINE
from ..verify.directory_scan import DirectoryScan
from ..verify.findings import Finding
from ..verify.segment_chain import Chain


@final
class PositionRepair:
    """Changes the files of consumers and producers of one channel, which no process has open."""

    def __init__(self, scan: DirectoryScan, quarantine: Quarantine, mode: int, chain: Chain) -> None:
        self._scan = scan
        self._files = scan.files
        self._quarantine = quarantine
        self._mode = mode
        self._chain = chain

    def repair(self, finding: Finding) -> tuple[str, Callable[[], object]]:
        """Return a description of the repair for a finding, and a function that applies it."""
        path = self._scan.path / finding.file
        if finding.kind == "producer":
            what = f"move it to {QUARANTINE}/; the producer's position is searched for in the log"
            return what, partial(self._quarantine.move, path, finding.what)
        if self._files.other_kind(path) is not None:
            what = f"move it to {QUARANTINE}/, and let consumer {name_of(path.name)!r} start again {self._where()}"
            return what, partial(self._make, path, finding)
        if finding.kind == "group":
            what = "let the group start again at its position: unacknowledged messages are redelivered"
            return what, partial(self._replace, path, finding, self._without_ring)
        position = read_position(self._files.read(path, _size_of(path)))
        if position is None:
            offset, sequence = self._oldest()
            what = f"let consumer {name_of(path.name)!r} start again {self._where()}"
            return what, partial(self._replace, path, finding, partial(self._at, path, offset, sequence))
        end = self._chain.end
        if end is not None and position.offset > end.offset:
            what = f"let consumer {name_of(path.name)!r} start at the end of the log, offset {end.offset}"
            return what, partial(self._replace, path, finding, partial(self._at, path, end.offset, end.sequence))
        return "extend it to its full size", partial(self._replace, path, finding, partial(self._grown, path))

    def _oldest(self) -> tuple[int, int]:
        """Return offset and sequence of the oldest message."""
        links, end = self._chain.links, self._chain.end
        offset = links[0].head.begin if end is None and links else 0 if end is None else end.oldest
        header = links[0].head.header if links else None
        return offset, 0 if header is None else header.first_sequence

    def _where(self) -> str:
        """Describe the oldest message, and how many messages follow."""
        end, (offset, sequence) = self._chain.end, self._oldest()
        to_come = "" if end is None else f": {max(0, end.sequence - sequence):,} messages left"
        return f"at the oldest message, offset {offset}{to_come}"

    def _make(self, path: Path, finding: Finding) -> None:
        """Write a new file in place of something that is not a regular file.

        A directory cannot be replaced in one step: if the process is killed in between, the consumer does not exist.
        """
        quarantine = self._quarantine.move if S_ISDIR(self._files.mode_of(path)) else self._quarantine.keep
        quarantine(path, finding.what)
        self._files.write_atomically(path, self._at(path, *self._oldest(), b""), self._mode)

    def _replace(self, path: Path, finding: Finding, change: Callable[[bytes], bytes]) -> None:
        content = change(self._files.read(path, _size_of(path)))
        self._quarantine.keep(path, finding.what)
        self._files.write_atomically(path, content, self._mode)

    def _at(self, path: Path, offset: int, sequence: int, old: bytes) -> bytes:
        """Return the content of a consumer's file with a new position.

        Expiry time and origin are kept: messages that its transactions have acknowledged are not redelivered.
        """
        content = bytearray(_size_of(path))
        write_cursor_slot(content, 1, offset, sequence, time.time_ns())
        if (term := read_term(old)) is not None:
            content[CURSOR_TERM : CURSOR_TERM + TERM.size] = pack_term(term)
        if (origin := read_origin(old.ljust(CURSOR_SIZE, b"\0"))) is not None:
            content[CURSOR_ORIGIN : CURSOR_ORIGIN + ORIGIN.size] = pack_origin(origin)
        return bytes(content)

    @staticmethod
    def _without_ring(old: bytes) -> bytes:
        content = bytearray(old.ljust(GROUP_SIZE, b"\0"))
        content[GROUP_INITIALIZED : GROUP_INITIALIZED + 8] = bytes(8)
        content[GROUP_LOCK : GROUP_LOCK + 4] = bytes(4)
        return bytes(content)

    @staticmethod
    def _grown(path: Path, old: bytes) -> bytes:
        return old.ljust(_size_of(path), b"\0")


def _size_of(path: Path) -> int:
    return GROUP_SIZE if is_group(path) else CURSOR_SIZE
