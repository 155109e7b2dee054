"""Channels that were made long ago are read today, and what is made today is what was made then."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from filechannel import UnsupportedFormatError
from filechannel._format.layout import (
    COMPRESSED_TABLE,
    CONTROL_SIZE,
    CURSOR,
    CURSOR_SLOTS,
    FLUSHES,
    FORMAT_VERSION,
    INDEX_ENTRY,
)
from filechannel._maintenance.repair.repair import repair
from filechannel._storage.manifest import MANIFEST
from filechannel._storage.segments.compressed_segment import CompressedSegment
from filechannel._storage.segments.compression_codecs import NUMBERS
from filechannel._storage.system.os_calls import Files
from tests.data.make_golden import AFTER_THE_JUMP, COMPRESSIBLE, CONSUMED, GOLDEN, MESSAGES, METHODS, make
from tests.storage.channels import open_store, opened, payloads_of, read_all

DATA = GOLDEN.parent
SEALED = [payload for batch in AFTER_THE_JUMP for payload in batch]


@pytest.fixture(params=range(1, FORMAT_VERSION + 1), ids=lambda version: f"format {version}")
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the golden channels of each format version."""
    shutil.copytree(DATA / f"golden-{request.param}", tmp_path / "golden")
    return tmp_path / "golden"


def _is_old(golden: Path) -> bool:
    content = json.loads((golden / "open" / MANIFEST).read_text())
    return bool(content["format"] < FORMAT_VERSION)


def test_an_old_channel_is_read(golden: Path) -> None:
    """A channel of the golden files is read with every message, offset gap and sequence."""
    with opened(golden / "open", create=False, readonly=_is_old(golden)) as store:
        assert payloads_of(store) == MESSAGES
        assert [message.sequence for message in read_all(store)] == list(range(len(MESSAGES)))
        assert not store.control.sealed


def test_a_channel_of_this_version_is_written_to(tmp_path: Path) -> None:
    """In a golden channel of this version consumers resume and messages are appended."""
    shutil.copytree(GOLDEN, tmp_path / "golden")
    with opened(tmp_path / "golden" / "open", create=False) as store:
        cursor = store.cursors.open("a consumer")
        assert cursor.position is not None
        assert cursor.position.sequence == CONSUMED
        assert store.lookup.at(cursor.position.offset).sequence == CONSUMED
        store.cursors.close(cursor)
        store.log.append([b"resumes"])
        assert payloads_of(store) == [*MESSAGES, b"resumes"]


@pytest.mark.parametrize("name", ["open", "sealed", "compressed"])
def test_a_channel_of_an_older_version_is_not_written_to(tmp_path: Path, name: str) -> None:
    """A golden channel of an older version is refused for writing, and the error says how to copy it."""
    shutil.copytree(DATA / "golden-1" / name, tmp_path / name)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(UnsupportedFormatError, match=r"export .* --header.*filechannel import") as caught:
        open_store(tmp_path / name, create=False)
    assert (caught.value.found, caught.value.supported) == (1, FORMAT_VERSION)
    with pytest.raises(UnsupportedFormatError):
        repair(tmp_path / name)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_an_old_sealed_channel_is_read(golden: Path) -> None:
    """A golden sealed channel is sealed."""
    with opened(golden / "sealed", create=False, readonly=_is_old(golden)) as store:
        assert payloads_of(store) == SEALED
        assert store.control.sealed


def test_old_compressed_segments_are_read(golden: Path) -> None:
    """Golden compressed segments of every method are read, with a plain one after them."""
    expected = [payload for batch in COMPRESSIBLE for payload in batch] * len(METHODS)
    with opened(golden / "compressed", create=False, readonly=_is_old(golden)) as store:
        found = read_all(store)
        assert [message.payload for message in found] == expected
        segments = [store.segments.get(begin) for begin in store.segments.begins]
        methods = {segment.method for segment in segments if isinstance(segment, CompressedSegment)}
        assert methods == set(NUMBERS.values())
        for message in found:
            assert store.lookup.numbered(message.sequence).offset == message.offset


def test_an_old_channel_is_read_without_writing(golden: Path) -> None:
    """A golden channel that is opened read-only shows what its last checkpoint covers."""
    with opened(golden / "sealed", readonly=True, create=False) as store:
        assert payloads_of(store) == SEALED
    with opened(golden / "open", readonly=True, create=False) as store:
        found = payloads_of(store)
        assert found == MESSAGES[: len(found)]
        assert len(found) >= len(MESSAGES) - len(SEALED)


def test_the_same_input_makes_the_same_bytes(tmp_path: Path) -> None:
    """The same input creates the same bytes, except for times and random ids."""
    make(tmp_path / "again")
    names = _names(GOLDEN)
    assert _names(tmp_path / "again") == names
    for name in names:
        assert _without_times(tmp_path / "again" / name) == _without_times(GOLDEN / name), name


def _names(directory: Path) -> list[str]:
    return sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())


def _without_times(file: Path) -> bytes:
    content = bytearray(file.read_bytes())
    if file.suffix in (".seg", ".z"):
        content[12:16] = content[56:60] = bytes(4)  # the id, which is random, and the checksum of the header
    if file.suffix == ".idx":
        for position in range(0, len(content), INDEX_ENTRY.size):
            content[position + 16 : position + 28] = bytes(12)  # time and checksum
    elif file.suffix == ".cursor":
        for slot in CURSOR_SLOTS:
            content[slot + 24 : slot + CURSOR.size] = bytes(CURSOR.size - 24)
    elif file.suffix == ".z":
        # What comes out at the other end: another version of a library may compress a little better.
        segment = CompressedSegment.open(Files(), file)
        return content[: COMPRESSED_TABLE - 4] + segment.span(segment.begin, segment.end)[0]
    elif file.name == "channel.json":
        manifest = json.loads(content)
        return json.dumps(manifest).encode()
    elif file.name == "control":
        del content[CONTROL_SIZE:]  # disk space that is kept: as much as there is
        content[FLUSHES : FLUSHES + 4] = bytes(4)  # counts the flushes of files, not part of what is stored
    return bytes(content)


def test_golden_channels_are_small() -> None:
    """Golden channels are small, because they stay in the repository."""
    assert sum(os.stat(file).st_size for file in GOLDEN.rglob("*") if file.is_file()) < 350_000
