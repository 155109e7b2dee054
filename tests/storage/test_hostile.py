"""A directory that an attacker wrote to: nothing outside of it is touched, and every part of it may be anything."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import (
    ChannelOptions,
    CorruptRecordError,
    FileChannelError,
    NotAChannelError,
    StorageError,
    UnexpectedFileError,
)
from filechannel._format import crc32c
from filechannel._format.layout import (
    BLOCK_SIZE,
    COMPRESSED,
    COMPRESSED_BLOCK,
    COMPRESSED_MAGIC,
    COMPRESSED_TABLE,
    LARGEST_OFFSET,
    MAX_PAYLOAD,
    RECORD_HEADER,
)
from filechannel._policies import CompressionMethod
from filechannel._storage.log.batch_parts import Records
from filechannel._storage.manifest import MANIFEST_LIMIT
from filechannel._storage.producers.staging import Staging
from filechannel._storage.segments.compressed_segment import CompressedSegment, table_crc
from filechannel._storage.segments.compression_codecs import NUMBERS, codec
from filechannel._storage.segments.segment import ANY_SIZE, Header, Segment, SegmentLimits
from filechannel._storage.segments.segment_index import INDEX_LIMIT, IndexWriter, read_entries
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import opened, payloads_of
from tests.storage.compressing import compress_all

DAY = 24 * 3600
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
MAKE: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)),  # /dev/zero
    "directory": os.mkdir,
}
NAMED = {"fifo": "FIFO"}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory with files of another user of the machine, whose names look like ours."""
    victim = tmp_path / "victim"
    (victim / "group").mkdir(parents=True)
    for name in ("1", "2", "precious", f"{0:020}.seg", f"{0:020}.idx", "a.cursor", "group/precious"):
        (victim / name).write_bytes(b"precious")
    os.mkfifo(victim / "3")
    return victim


def state(victim: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that must not change in a directory."""
    found = dict[str, tuple[object, ...]]()
    for path in (victim, *sorted(victim.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = status.st_mode, status.st_ino, status.st_nlink, status.st_size, content
    return found


def filled(path: Path) -> Path:
    """Return a channel with some segments."""
    with opened(path) as store:
        for number in range(200):
            store.log.append([b"%0100d" % number])
        store.cursors.close(store.cursors.open("a"))
    return path


# The interface


@pytest.mark.parametrize(
    ("name", "swapped"),
    [(name, part) for name in ("file", "directory/file", "a/b/c/file") for part in name.split("/")],
)
def test_no_component_below_a_channel_is_followed(tmp_path: Path, victim: Path, name: str, swapped: str) -> None:
    """Whichever part of a channel is a link, nothing outside is written, deleted, renamed or listed."""
    channel, files = tmp_path / "channel", Files()
    path = channel / name
    parts = path.relative_to(channel).parts
    files.confine(channel)
    at = channel.joinpath(*parts[: parts.index(swapped)])
    at.mkdir(parents=True)
    rest = parts[parts.index(swapped) + 1 :]
    target = victim if rest else victim / "precious"
    victim.joinpath(*rest[:-1]).mkdir(parents=True, exist_ok=True)
    if rest:
        victim.joinpath(*rest).write_bytes(b"precious")
    (at / swapped).symlink_to(target)
    before = state(victim)
    for refused in (
        lambda: files.open(path),
        lambda: files.open(path, create=True),
        lambda: files.open(path, writable=False),
        lambda: files.read(path, 10),
    ):
        with pytest.raises(UnexpectedFileError, match="is a symbolic link"):
            refused()
    if rest:
        for changed in (
            lambda: files.create(path, 0o600),
            lambda: files.make(path, 10, b"", 0, 0o600),
            lambda: files.make_fifo(path.with_name("fifo"), 0o600),
            lambda: files.make_directory(path.with_name("new"), 0o700),
            lambda: files.unlink(path),
            lambda: files.replace(path, channel / "moved"),
            lambda: files.replace(path, path.with_name("moved")),
            lambda: files.link(path, path.with_name("moved")),
            lambda: files.write_atomically(path, b"", 0o600),
            lambda: files.flush_directory(path.parent),
            lambda: files.list(path.parent),
        ):
            with pytest.raises(UnexpectedFileError, match="is a symbolic link, not a directory"):
                changed()
        files.remove_tree(path.parent if len(rest) > 1 else path)
        files.remove_if_empty(path)
        assert not files.exists(path)
    assert state(victim) == before


def test_the_path_of_a_channel_may_be_a_link(tmp_path: Path) -> None:
    """The path of the channel itself may be a link, because it belongs to the user."""
    filled(tmp_path / "channel")
    (tmp_path / "link").symlink_to(tmp_path / "channel")
    with opened(tmp_path / "link") as store:
        assert len(payloads_of(store)) == 200


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory"])
@pytest.mark.parametrize("writable", [False, True])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, writable: bool) -> None:
    """Only regular files are opened, so that no FIFO is waited for and no device is read."""
    path = tmp_path / "file"
    if kind == "device" and os.geteuid():
        pytest.skip("only root can make one")
    MAKE[kind](path)
    with pytest.raises(UnexpectedFileError, match=f"is a {NAMED.get(kind, kind)}, not a regular file"):
        Files().open(path, writable=writable)


def test_a_file_with_a_name_outside_is_not_written_to(tmp_path: Path, victim: Path) -> None:
    """A file with a name outside of the channel and its quarantine may be read, and is not written to."""
    channel, files = tmp_path / "channel", Files()
    (channel / "quarantine").mkdir(parents=True)
    files.confine(channel)
    path = channel / "file"
    path.hardlink_to(victim / "precious")
    files.close(files.open(path, writable=False))
    with pytest.raises(UnexpectedFileError, match="2 hard links, some of them outside"):
        files.open(path)
    (victim / "precious").unlink()
    (channel / "quarantine" / "1-file").hardlink_to(path)
    (channel / "file.0123456789abcdef.new").hardlink_to(path)
    files.close(files.open(path))


def test_finished_segments_may_have_names_in_a_backup(path: Path, victim: Path) -> None:
    """Finished segments may have names in a backup, and the active segment may not."""
    filled(path)
    finished = sorted((path / "segments").glob("0*.seg"))
    active = finished.pop()
    for segment in finished:
        (victim / f"backup-{segment.name}").hardlink_to(segment)
    before = state(victim)
    with opened(path) as store:
        store.log.append([b"more"])
        assert len(payloads_of(store)) == 201
    assert state(victim) == before
    (victim / "backup").hardlink_to(active)
    with pytest.raises(UnexpectedFileError, match=r"2 hard links, some of them outside of the channel"), opened(path):
        pass
    with opened(path, readonly=True) as store:
        assert len(payloads_of(store)) == 201


def test_a_temporary_file_is_never_one_that_is_there(tmp_path: Path, victim: Path) -> None:
    """A link or file at the name of a temporary file is removed, not written to."""
    files, before = Files(), state(victim)
    (tmp_path / "file.new").symlink_to(victim / "precious")
    files.write_atomically(tmp_path / "file", b"content", 0o600)
    assert (tmp_path / "file").read_bytes() == b"content"
    (tmp_path / "other.new").hardlink_to(victim / "precious")
    files.write_atomically(tmp_path / "other", b"content", 0o600)
    assert state(victim) == before


# Directories that header_record elsewhere


def test_a_link_instead_of_the_wake_directory_removes_nothing(path: Path, victim: Path) -> None:
    """If the wake directory is a link, opening removes nothing in its target."""
    filled(path)
    (path / "wake").rmdir()
    (path / "wake").symlink_to(victim)
    before = state(victim)
    with opened(path) as store:
        assert len(payloads_of(store)) == 200
    assert state(victim) == before


@pytest.mark.parametrize("name", ["segments", "consumers", "wake", "producers"])
def test_a_directory_may_become_a_link_at_any_moment(path: Path, victim: Path, name: str) -> None:
    """If a directory becomes a link at any moment, calls use the open directory instead of the path."""
    filled(path)
    (path / name).mkdir(exist_ok=True)
    link = path.with_name("link")
    link.symlink_to(victim)
    before, done = state(victim), threading.Event()
    exchange = ctypes.CDLL(None, use_errno=True).renameat2

    def swap() -> None:
        while not done.is_set():
            assert not exchange(_HERE, bytes(path / name), _HERE, bytes(link), _EXCHANGE), ctypes.get_errno()

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        for number in range(30):
            with suppress(FileChannelError, OSError), opened(path) as store:
                store.log.append([b"%0100d" % number] * 50)
                store.cursors.close(store.cursors.open(f"other-{number}"))
                store.cursors.remove(store.cursors.open("a"))
                store.producers.open("other").flush()
    finally:
        done.set()
        attacker.join()
    assert state(victim) == before


def test_only_fifos_with_the_name_of_a_slot_are_removed_from_wake(path: Path) -> None:
    """Only FIFOs with the name of a slot are removed from the wake directory."""
    filled(path)
    for name in ("7", "precious"):
        os.mkfifo(path / "wake" / name)
    (path / "wake" / "8").write_bytes(b"precious")
    with opened(path):
        pass
    assert sorted(os.listdir(path / "wake")) == ["8", "precious"]


def test_a_link_instead_of_the_staging_directory_removes_nothing(path: Path, victim: Path) -> None:
    """If the staging directory is a link, no day-old group in its target is removed."""
    filled(path)
    long_ago = time.time() - 2 * DAY
    for each in (victim, *victim.rglob("*")):
        os.utime(each, (long_ago, long_ago))
    before = state(victim)
    (path / "staging").symlink_to(victim)
    with pytest.raises(UnexpectedFileError, match="staging is a symbolic link"):
        Staging(Files(), path, "group", 0o600).sweep()
    (path / "staging").unlink()
    (path / "staging").mkdir()
    (path / "staging" / "group").symlink_to(victim)
    (path / "staging" / "old").symlink_to(victim)
    os.utime(path / "staging" / "old", (long_ago, long_ago), follow_symlinks=False)
    Staging(Files(), path, "group", 0o600).sweep()
    assert state(victim) == before
    assert not (path / "staging" / "group").exists()


def test_directories_inside_of_one_another_do_not_end_a_sweep(path: Path) -> None:
    """Directories that are nested too deeply for Python's recursion stay, and the sweep continues."""
    deep = path.joinpath("staging", "group", *["a"] * 300)
    deep.mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        Staging(Files(), path, "group", 0o600).sweep()
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../channel.json"},
        {"name": "/etc/passwd"},
        {"name": "0" * 24 + ".rows\0"},
        {"name": 5},
        {"group": ".."},
        {"size": -1},
        {"size": "1"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_list_that_names_other_files_is_refused(path: Path, change: dict[str, object]) -> None:
    """A staging list with names outside of its directory is refused."""
    staging = Staging(Files(), path, "group", 0o600)
    staging.list_for_later([staging.write([Records.of([b"a"])])])
    assert len(staging.listed()) == 1
    file = path / "staging" / "group" / "list.json"
    fields = json.loads(file.read_bytes())[0]
    file.write_text(json.dumps([fields | change]))
    with pytest.raises(StorageError, match="was changed after it was written"):
        staging.listed()


@pytest.mark.parametrize("content", ["", "{", "5", "[5]", '{"a": 1}', "[" * 100_000])
def test_a_damaged_list_is_refused(path: Path, content: str) -> None:
    """A damaged staging list is refused, whatever the damage is."""
    staging = Staging(Files(), path, "group", 0o600)
    staging.list_for_later([])
    (path / "staging" / "group" / "list.json").write_text(content)
    with pytest.raises(StorageError, match="was changed after it was written"):
        staging.listed()


def test_a_part_that_claims_more_than_its_file_is_not_read(path: Path) -> None:
    """A staged part that claims more than its file has is refused before memory is allocated."""
    staging = Staging(Files(), path, "group", 0o600)
    staged = staging.write([Records.of([b"a"])])
    file = path / "staging" / "group" / staged.name
    file.write_bytes((1).to_bytes(8, "little") + (1 << 40).to_bytes(8, "little"))
    os.truncate(file, 1 << 41)
    with pytest.raises(StorageError, match="was changed after it was written"):
        list(staging.read(replace(staged, size=1 << 41)))


# Files that are too long


def test_a_manifest_that_is_too_long_is_refused(path: Path) -> None:
    """A manifest of a terabyte of zeros is refused, and not read into memory."""
    filled(path)
    os.truncate(path / "channel.json", 1 << 40)
    with pytest.raises(NotAChannelError, match=f"more than {MANIFEST_LIMIT:,} bytes"), opened(path):
        pass


def test_an_index_that_is_too_long_is_read_in_part(path: Path) -> None:
    """An index that is too long is read up to the possible number of entries, and the writer cuts the rest off."""
    filled(path)
    segment = max((path / "segments").glob("0*.seg"))
    index = segment.with_suffix(".idx")
    index.touch()
    os.truncate(index, 1 << 40)
    read_entries(Files(), segment)
    with opened(path) as store:
        store.log.append([b"more"])
        store.log.store_index_entries()
    assert index.stat().st_size <= INDEX_LIMIT + 64


@pytest.mark.parametrize("begin", [LARGEST_OFFSET + 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1, 10**20 - 1])
@pytest.mark.parametrize("has_header", [False, True])
def test_a_segment_that_begins_where_no_log_gets_is_ignored(path: Path, begin: int, has_header: bool) -> None:
    """A segment whose name or header has an offset that does not fit a word is ignored."""
    if has_header and begin >= 1 << 64:
        pytest.skip("no header has such an offset")
    filled(path)
    content = Header.new(begin, 300, begin - 4096).pack().ljust(4096, b"\0") if has_header else b""
    (path / "segments" / f"{begin:020}.seg").write_bytes(content)
    with (path / "control").open("r+b") as control:
        control.write(bytes(64))  # as in a copy: the end of the log has to be found
    with opened(path, readonly=True) as store:
        assert payloads_of(store)
    with opened(path) as store:
        store.log.append([b"more"])
        assert payloads_of(store)[-1] == b"more"


def test_an_index_that_is_a_hole_takes_no_memory(path: Path) -> None:
    """An index with a hole is read in parts, so that neither a reader nor the writer needs memory for it."""
    filled(path)
    segment = max((path / "segments").glob("0*.seg"))
    segment.with_suffix(".idx").touch()
    os.truncate(segment.with_suffix(".idx"), 1 << 40)
    tracemalloc.start()
    try:
        read_entries(Files(), segment)
        IndexWriter(Files(), segment, 0o600, 1 << 30).close()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_segment_that_is_too_long_is_mapped_in_part(path: Path) -> None:
    """A segment with a terabyte after its records is mapped in part, read, and appended to."""
    expected = [b"%0100d" % number for number in range(200)]
    filled(path)
    for file in (path / "segments").glob("0*.seg"):
        os.truncate(file, 1 << 40)
    with opened(path, readonly=True) as store:
        assert payloads_of(store) == expected
        for segment in map(store.segments.get, store.segments.begins):
            assert isinstance(segment, Segment)
            assert len(segment.map) == SegmentLimits.of(store.manifest.options).size
    with opened(path) as store:
        store.log.append([b"more"])
        assert payloads_of(store) == [*expected, b"more"]


@pytest.mark.parametrize("method", ["none", "gzip"])
def test_a_record_that_is_longer_than_a_message_may_be_is_damaged(path: Path, method: str) -> None:
    """A record longer than a message may be is damaged, also if its checksum is right."""
    with opened(path, ChannelOptions(segment_size=1 << 16)) as store:
        store.log.append([b"short", b"long" * 10_000, b"short"])
        store.log.append([b"long" * 10_000])
        assert method == "none" or compress_all(store, "gzip")
    manifest = json.loads((path / "channel.json").read_text())
    manifest["options"]["max_message_size"] = 5000
    (path / "channel.json").write_text(json.dumps(manifest))
    for readonly in (True, False):
        with opened(path, readonly=readonly) as store:
            with pytest.raises(CorruptRecordError, match=r"longer than a message may be|beyond the end"):
                payloads_of(store)


# Compressed segments that claim too much


def bomb(path: Path, method: str, blocks: int, *, begin: int = 0, payload: int = 0, shared: bool = False) -> Path:
    """Write a compressed segment whose blocks are zeros, but for the header of a record that claims a payload."""
    header, chosen = Header.new(begin, 0, begin), codec(NUMBERS[method])
    first = RECORD_HEADER.pack(payload, 1).ljust(BLOCK_SIZE, b"\0")
    compress = chosen.compressor(None)
    stored = [compress(first), *[compress(bytes(BLOCK_SIZE))] * (blocks - 1)]
    table, content, position = b"", b"", COMPRESSED_TABLE + blocks * COMPRESSED_BLOCK.size
    for number, block in enumerate(stored):
        if shared and number > 1:
            table += table[-COMPRESSED_BLOCK.size :]
            continue
        table += COMPRESSED_BLOCK.pack(position + len(content), len(block), crc32c(block))
        content += block
    extra = COMPRESSED.pack(blocks, NUMBERS[method], BLOCK_SIZE, blocks, 0)[:-4]
    head = header.pack(COMPRESSED_MAGIC, begin + blocks * BLOCK_SIZE) + extra
    path.write_bytes(head + table_crc(extra, table).to_bytes(4, "little") + table + content)
    return path


@pytest.fixture
def few_megabytes() -> Iterator[None]:
    """Fail if the test takes far more memory than a block."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


METHODS = ["zstd", "lz4", "gzip"]
NAME = f"{0:020}.seg.z"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("few_megabytes")
def test_a_compressed_segment_that_claims_more_than_a_segment_may_have_is_refused(tmp_path: Path, method: str) -> None:
    """A compressed segment that claims to expand beyond the largest segment is refused."""
    file = bomb(tmp_path / NAME, method, 300)
    limits = SegmentLimits.of(ChannelOptions(segment_size=1 << 20, max_message_size=1 << 20).resolve())
    with pytest.raises(ValueError, match="more than a segment may have"):
        CompressedSegment.open(Files(), file, limits)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("few_megabytes")
def test_one_block_does_not_stand_for_many(tmp_path: Path, method: str) -> None:
    """A table that uses one block for several positions is refused."""
    with pytest.raises(ValueError, match="not adjacent"):
        CompressedSegment.open(Files(), bomb(tmp_path / NAME, method, 300, shared=True))


@pytest.mark.usefixtures("few_megabytes")
def test_a_table_that_is_a_hole_takes_no_memory(tmp_path: Path) -> None:
    """A table with a hole is checked as it is read, so that it needs no memory."""
    file, size = tmp_path / NAME, 60 << 20
    extra = COMPRESSED.pack(1, NUMBERS["gzip"], 1, size, 0)
    file.write_bytes(Header.new(0, 0, 0).pack(COMPRESSED_MAGIC, size) + extra)
    os.truncate(file, COMPRESSED_TABLE + size * COMPRESSED_BLOCK.size)
    with pytest.raises(ValueError, match="not adjacent"):
        CompressedSegment.open(Files(), file)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [1 << 20, MAX_PAYLOAD])
@pytest.mark.usefixtures("few_megabytes")
def test_a_record_that_claims_gigabytes_is_not_put_together(tmp_path: Path, method: str, limit: int) -> None:
    """A record that claims gigabytes is refused, or found damaged block by block, without being put together."""
    file = bomb(tmp_path / NAME, method, 300, payload=299 << 20)
    segment = CompressedSegment.open(Files(), file, replace(ANY_SIZE, payload=limit))
    with pytest.raises(ValueError, match="record reaches beyond the end"):
        segment.read(0, segment.end)
    assert segment.window(0).end == BLOCK_SIZE


@pytest.mark.parametrize("method", METHODS)
def test_a_long_record_is_read_from_many_blocks(path: Path, method: CompressionMethod) -> None:
    """A long record in many blocks is read as it was written, after a check block by block."""
    payload = b"".join(b"%08d" % number for number in range(40_000))
    with opened(path, ChannelOptions(segment_size=1 << 19)) as store:
        store.log.append([b"short", payload])
        store.log.append([payload])
        assert compress_all(store, method, block_size=4096)
        assert payloads_of(store) == [b"short", payload, payload]
