"""The compression methods: their numbers in the file format, and the libraries that implement them.

A library is imported when its method is first needed. Each codec compresses and decompresses one block at a time, with
the GIL released, and never decompresses more than the given size of a block.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Final, Protocol, cast, final

from ..._errors import UnsupportedFormatError
from ..._format.layout import BLOCK_SIZE, METHOD_GZIP, METHOD_LZ4, METHOD_ZSTD
from ..._policies import CompressionMethod

NUMBERS: Final[dict[str, int]] = {"zstd": METHOD_ZSTD, "lz4": METHOD_LZ4, "gzip": METHOD_GZIP}
"""The number of each method in a compressed segment."""
MISSING_METHOD: Final = " compression"
"""Follows the name of a method that is not installed, where an error names the format."""
_GZIP_FORMAT: Final = 31  # a header as in RFC 1952, and the largest window
_GZIP_LEVEL: Final = 6
_LZ4_SLOW: Final = 3  # from this level on lz4 uses its slow, high-compression mode
_WINDOW_LOG: Final = BLOCK_SIZE.bit_length() - 1


class Codec(Protocol):
    """One compression method."""

    def compressor(self, level: int | None) -> Callable[[bytes], bytes]:
        """Return a function that compresses a block; *level* is in the method's own scale, None for its default."""
        ...

    def decompress(self, block: bytes, size: int) -> bytes:
        """Return the bytes of a block; raise `ValueError` if they are damaged or do not have this size."""
        ...


@cache
def codec(number: int) -> Codec:
    """Return a codec by its number; raise `UnsupportedFormatError`, which says what to install, if it is missing."""
    name = next((name for name, known in NUMBERS.items() if known == number), None)
    if name is None:
        raise UnsupportedFormatError(f"segments compressed by method {number}", "methods 1 to 3")
    try:
        return _CODECS[name]()
    except ImportError as error:
        advice = f"install filechannel[{name}]" if name == "lz4" else "install backports.zstd"
        raise UnsupportedFormatError(f"{name}{MISSING_METHOD}", "what is installed", advice) from error


def require(method: CompressionMethod) -> None:
    """Raise `UnsupportedFormatError` if a method is not available here."""
    if method != "none":
        codec(NUMBERS[method])


class _ZstdLibrary(Protocol):
    """The part of `compression.zstd` that is used."""

    ZstdError: type[Exception]

    def compress(self, data: bytes, level: int | None) -> bytes: ...

    def ZstdDecompressor(self, *, options: dict[int, int]) -> _ZstdDecompressor: ...  # noqa: N802


class _ZstdDecompressor(Protocol):
    eof: bool

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


@final
class _Zstd:
    def __init__(self) -> None:
        library = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        self._zstd = cast("_ZstdLibrary", library)
        # A block that needs more memory than the size of a block was not written by us.
        self._bounded: dict[int, int] = {library.DecompressionParameter.window_log_max: _WINDOW_LOG}

    def compressor(self, level: int | None) -> Callable[[bytes], bytes]:
        return lambda block: self._zstd.compress(block, level)

    def decompress(self, block: bytes, size: int) -> bytes:
        decompressor = self._zstd.ZstdDecompressor(options=self._bounded)
        try:
            raw = decompressor.decompress(block, size + 1)
        except self._zstd.ZstdError as error:
            raise ValueError(str(error)) from error
        return _checked(raw, size, ended=decompressor.eof)


class _Lz4Library(Protocol):
    """The part of `lz4.block` that is used."""

    LZ4BlockError: type[Exception]

    def compress(self, source: bytes, *, mode: str, compression: int, store_size: bool) -> bytes: ...

    def decompress(self, source: bytes, *, uncompressed_size: int) -> bytes: ...


@final
class _Lz4:
    def __init__(self) -> None:
        self._lz4 = cast("_Lz4Library", import_module("lz4.block"))

    def compressor(self, level: int | None) -> Callable[[bytes], bytes]:
        chosen = level or 0
        mode = "high_compression" if chosen >= _LZ4_SLOW else "default"
        return lambda block: self._lz4.compress(block, mode=mode, compression=chosen, store_size=False)

    def decompress(self, block: bytes, size: int) -> bytes:
        try:
            return _checked(self._lz4.decompress(block, uncompressed_size=size), size, ended=True)
        except self._lz4.LZ4BlockError as error:
            raise ValueError(str(error)) from error


@final
class _Gzip:
    def compressor(self, level: int | None) -> Callable[[bytes], bytes]:
        return lambda block: zlib.compress(block, _GZIP_LEVEL if level is None else level, wbits=_GZIP_FORMAT)

    def decompress(self, block: bytes, size: int) -> bytes:
        decompressor = zlib.decompressobj(wbits=_GZIP_FORMAT)
        try:
            raw = decompressor.decompress(block, size + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        return _checked(raw, size, ended=decompressor.eof)


_CODECS: Final[dict[str, Callable[[], Codec]]] = {"zstd": _Zstd, "lz4": _Lz4, "gzip": _Gzip}


def _checked(raw: bytes, size: int, *, ended: bool) -> bytes:
    if len(raw) != size or not ended:
        raise ValueError(f"it does not have {size} bytes, as it should")
    return raw
