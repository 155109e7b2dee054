"""Touches the pages that a channel will write next, through the mapping that the channel itself uses.

Segments are recycled when a consumer consumes them, but no consumer does while the time is measured. So pages that were
touched before have to be simulated: the kernel is asked to populate them (`MADV_POPULATE_WRITE`), which faults them in
for writing and changes no byte. What is needed for that is public: the active segment is the last name in `segments/`,
its name is the offset of its first record, and records begin behind a header of 64 bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_POPULATE_WRITE = 23  # Linux 5.14
_HEADER_SIZE = 64


class ActiveSegment:
    """The segment file to which a channel of this process is writing."""

    def __init__(self, channel: Path) -> None:
        self.path = max((channel / "segments").glob("[0-9]*.seg"))

    def position(self, offset: int) -> int:
        """Return the position of an offset in the file."""
        return _HEADER_SIZE + offset - int(self.path.stem)

    def space(self, offset: int) -> int:
        """Return how many bytes the file has from an offset on."""
        return self.path.stat().st_size - self.position(offset)

    def populate(self, offset: int) -> None:
        """Touch the file from an offset on.

        Raise `OSError` if the kernel does not support it, or the file is not mapped.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        first = self.position(offset) // mmap.PAGESIZE * mmap.PAGESIZE
        length = self.path.stat().st_size - first
        for address in self._mapped_at():
            if libc.madvise(ctypes.c_void_p(address + first), ctypes.c_size_t(length), _POPULATE_WRITE):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

    def _mapped_at(self) -> list[int]:
        """Return the addresses at which the file is mapped for writing."""
        path = str(self.path.resolve())
        lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        addresses = [
            int(fields[0].split("-")[0], 16)
            for fields in lines
            if len(fields) == 6 and fields[5] == path and fields[1].startswith("rw") and int(fields[2], 16) == 0
        ]
        if not addresses:
            raise OSError(f"{path} is not mapped")
        return addresses
