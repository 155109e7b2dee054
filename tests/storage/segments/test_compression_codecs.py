"""Each method returns what it compressed, and never more than it was asked for."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator

import pytest

from filechannel import UnsupportedFormatError
from filechannel._format.layout import BLOCK_SIZE
from filechannel._policies import CompressionMethod
from filechannel._storage.segments.compression_codecs import NUMBERS, codec, require

METHODS: list[CompressionMethod] = ["zstd", "lz4", "gzip"]
LEVELS = {"zstd": (-7, 1, 22), "lz4": (0, 2, 3, 16), "gzip": (1, 9)}


@pytest.mark.parametrize("method", METHODS)
def test_a_block_comes_back(method: CompressionMethod) -> None:
    """A block of any content is decompressed unchanged, at the default level and both extremes."""
    noise = random.Random(1).randbytes(5000)
    for level in (None, *LEVELS[method]):
        for raw in (b"x", b"text " * 1000, noise, bytes(10_000)):
            block = codec(NUMBERS[method]).compressor(level)(raw)
            assert codec(NUMBERS[method]).decompress(block, len(raw)) == raw


@pytest.mark.parametrize("method", METHODS)
def test_a_block_of_another_size_is_refused(method: CompressionMethod) -> None:
    """A block that is shorter, longer, cut off or garbage is refused."""
    raw = b"text " * 1000
    block = codec(NUMBERS[method]).compressor(None)(raw)
    for size in (0, 1, len(raw) - 1, len(raw) + 1, BLOCK_SIZE):
        with pytest.raises(ValueError, match=r".+"):
            codec(NUMBERS[method]).decompress(block, size)
    for other in (b"", block[:-1], b"\xff" + block[1:], bytes(100)):
        with pytest.raises(ValueError, match=r".+"):
            codec(NUMBERS[method]).decompress(other, len(raw))


@pytest.mark.parametrize("method", ["zstd", "gzip"])
def test_a_block_that_would_explode_does_not(method: CompressionMethod) -> None:
    """A small block that claims a gibibyte is refused before it is decompressed completely."""
    chunk, known = bytes(64 << 20), codec(NUMBERS[method])
    block = known.compressor(1)(chunk)
    with pytest.raises(ValueError, match=r".+"):
        known.decompress(block, 4096)


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation that has nothing but itself."""
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> object:
        if name.startswith(("lz4", "backports", "compression")):
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr("filechannel._storage.segments.compression_codecs.import_module", import_module)
    codec.cache_clear()
    yield
    codec.cache_clear()


@pytest.mark.usefixtures("without_extras")
def test_a_method_that_is_not_installed_names_what_to_install() -> None:
    """A method that is not installed raises an error with the package to install, and gzip is always available."""
    with pytest.raises(UnsupportedFormatError, match=r"lz4.*install filechannel\[lz4\]"):
        require("lz4")
    with pytest.raises(UnsupportedFormatError, match=r"install backports\.zstd"):
        require("zstd")
    require("gzip")
    require("none")


def test_a_method_of_the_future_is_refused() -> None:
    """An unknown method is refused, with the advice to install a newer version."""
    with pytest.raises(UnsupportedFormatError, match=r"method 4.*newer filechannel"):
        codec(4)
