"""A map of a file that can be closed while threads use it: the pure-Python implementation of closable_map.c.

Python has no hook for the release of a view. So a map that another thread was using when it was closed is unmapped a
little later than by the C core: when the next reader, writer or map is closed. Nor can a closed map choose what
`struct` raises, which is `ValueError`; subscripts, and the functions of the modules beside this one, raise
`ClosedResourceError`.
"""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, overload

from anyio import ClosedResourceError
from typing_extensions import Buffer

if TYPE_CHECKING:
    Slice: TypeAlias = slice[SupportsIndex | None, SupportsIndex | None, SupportsIndex | None]

_closing: list[Map] = []
"""Maps that were in use when they were closed."""


class Map(mmap):
    """A map of a file that can be closed while it is in use."""

    is_closing: bool = False
    """Whether `close` was called."""

    def close(self) -> None:
        """Unmap now or, if another thread uses the memory, when it is done. Closing twice has no further effect."""
        self.is_closing = True
        _closing.append(self)
        close_pending()

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: Slice, /) -> bytes: ...
    def __getitem__(self, key: SupportsIndex | Slice, /) -> int | bytes:
        """Return a byte or a slice; `ClosedResourceError` if the map is closed."""
        check_open(self)
        return super().__getitem__(key)

    @overload
    def __setitem__(self, key: SupportsIndex, value: int, /) -> None: ...
    @overload
    def __setitem__(self, key: Slice, value: Buffer, /) -> None: ...
    def __setitem__(self, key: SupportsIndex | Slice, value: int | Buffer, /) -> None:
        """Store a byte or a slice; `ClosedResourceError` if the map is closed."""
        check_open(self)
        super().__setitem__(key, value)  # type: ignore[index, assignment]  # pyright: ignore[reportCallIssue, reportArgumentType]


def check_open(map_: Map) -> None:
    """Raise `ClosedResourceError` if a map is closed, or will be as soon as no thread uses it."""
    if map_.is_closing:
        raise ClosedResourceError


def close_pending() -> None:
    """Unmap the maps that were in use when they were closed, and no longer are."""
    still_used: list[Map] = []
    while _closing:
        map_ = _closing.pop()
        try:
            mmap.close(map_)
        except BufferError:
            still_used.append(map_)
    _closing.extend(still_used)
