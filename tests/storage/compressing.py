"""Compressing what a store has, in blocks so small that their ends lie everywhere."""

from __future__ import annotations

from pathlib import Path

from filechannel import ChannelOptions, Compression
from filechannel._maintenance.background.compress_segment import Candidate, SegmentCompressor, Throttle
from filechannel._offset import Offset
from filechannel._policies import CompressionMethod
from filechannel._storage.segments.compressed_segment import CompressedSegment, compressed_path
from filechannel._storage.store import Store

NO_FREE_LIST = ChannelOptions(segment_size=4096, spare_segments=0)
"""Segments of one page, whose files are not recycled: what is retired is deleted."""


def compress_all(store: Store, method: CompressionMethod = "zstd", *, block_size: int = 256) -> list[Offset]:
    """Flush, compress every finished segment that is worth it, and return where those begin."""
    store.flusher.flush()
    compressor = SegmentCompressor(store, Compression(method=method), block_size=block_size)
    return [
        candidate.begin
        for candidate in list(compressor.candidates(Offset(0)))
        if compress_segment(compressor, candidate)
    ]


def compress_segment(compressor: SegmentCompressor, candidate: Candidate, throttle: Throttle = lambda: None) -> int:
    """Compress one segment, and return the size of its file; 0 if it stays plain or was reclaimed."""
    prepared = compressor.prepare(candidate, throttle)
    return prepared.size if prepared is not None and compressor.finish(prepared) else 0


def compressed_file(store: Store, begin: int) -> Path:
    """Return the path of a compressed segment."""
    return compressed_path(store.segments.path(begin))


def compressed(store: Store, begin: Offset) -> CompressedSegment:
    """Return a segment, which is compressed."""
    segment = store.segments.get(begin)
    assert isinstance(segment, CompressedSegment)
    return segment
