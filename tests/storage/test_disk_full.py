"""A disk that is really full: a small file system, in memory or on a real one's image, mounted for the purpose."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelOptions, DiskFullError, Durability, StorageError
from filechannel._format.layout import CONTROL_IDENTITY, RECORD_HEADER_SIZE
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.file_systems import KINDS, fill, small_disk
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, reader_of
from tests.storage.faults import FaultyFiles, input_output_error
from tests.storage.reclaiming import reclaim

pytestmark = pytest.mark.disk

SIZE = 4 << 20
_CLONE = 0x40049409  # FICLONE, _IOW(0x94, 9, int)


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system of each kind."""
    with small_disk(tmp_path, request.param) as path:
        yield path


@pytest.fixture
def disk_in_memory(tmp_path: Path) -> Iterator[Path]:
    """A file system of four mebibytes, in memory."""
    with small_disk(tmp_path, "tmpfs") as path:
        yield path


@pytest.fixture(params=["ext4", "xfs"])
def real_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system that keeps files in blocks of an image."""
    with small_disk(tmp_path, request.param) as path:
        yield path


def _fill(store: Store, size: int) -> list[bytes]:
    """Send until the disk is full; return what was accepted."""
    sent: list[bytes] = []

    def send_for_ever() -> None:
        while True:
            payload = b"%d:" % len(sent) + b"." * size
            store.log.writer.append(payload)
            sent.append(payload)

    with pytest.raises(DiskFullError) as caught:
        send_for_ever()
    assert caught.value.path.is_relative_to(store.path)
    del caught  # it would keep the frames, and with them the file, until the next garbage collection
    return sent


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
@pytest.mark.parametrize("segment_size", [4096, 256 << 10, 64 << 20])
@pytest.mark.parametrize("size", [100, 3000, 50_000])
def test_a_full_disk_loses_nothing(disk_in_memory: Path, segment_size: int, size: int, durability: Durability) -> None:
    """The error is clean, what was accepted is readable, and sending works when there is space."""
    ballast = disk_in_memory / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    options = ChannelOptions(segment_size=segment_size, durability=durability)
    with opened(disk_in_memory / "channel", options) as store:
        sent = _fill(store, size)
        store.flusher.commit()
        assert payloads_of(store) == sent
        with pytest.raises(DiskFullError):
            store.log.append([b"." * size] * 100)
        ballast.unlink()
        store.log.append([b"resumes"])
        store.flusher.commit()
        assert payloads_of(store) == [*sent, b"resumes"]
    with opened(disk_in_memory / "channel", create=False) as store:
        assert payloads_of(store) == [*sent, b"resumes"]


_FILL = """
import sys
from pathlib import Path
from filechannel import ChannelOptions, DiskFullError, Durability
from tests.storage.channels import opened, payloads_of
durability = {"os": Durability.OS, "fsync": Durability.FSYNC}[sys.argv[3]]
sent = []
for _ in range(2):  # the second time it goes on in a segment that is there, where the first one has ended
    with opened(Path(sys.argv[1]), ChannelOptions(segment_size=int(sys.argv[2]), durability=durability)) as store:
        try:
            while True:
                store.log.writer.append(b"%d:" % len(sent) + bytes(3000))
                sent.append(len(sent))
        except DiskFullError:
            store.flusher.commit()
            assert [int(payload.split(b":")[0]) for payload in payloads_of(store)] == sent
print(len(sent))
"""


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("segment_size", [4 << 20, 64 << 20])
def test_a_full_disk_kills_no_process(real_disk: Path, segment_size: int, durability: str) -> None:
    """Where the kernel needs more blocks than those that are written to, they are reserved as well,
    or it is an error.
    """
    command = [sys.executable, "-c", _FILL, str(real_disk / "channel"), str(segment_size), durability]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.returncode
    assert int(done.stdout) > 500


def test_a_free_file_without_disk_space_kills_no_process(disk_in_memory: Path) -> None:
    """The process that created it may have died before it had any: it gets some before it is
    written to, or is removed.
    """
    options, channel = ChannelOptions(segment_size=256 << 10), disk_in_memory / "channel"
    with opened(channel, options) as store:
        store.log.append([b"0:"])
    with (channel / "segments" / "spare-1.seg").open("wb") as spare:
        spare.truncate(options.segment_size or 0)
    script = f"""
from pathlib import Path
from filechannel import DiskFullError
from tests.storage.channels import opened
with opened(Path({str(channel)!r}), create=False) as store:
    store.log.append([b"1:"])
    try:
        Path({str(disk_in_memory / "ballast")!r}).write_bytes(bytes({SIZE}))
    except OSError:
        pass
    store.log.append([bytes(100)] * 2400)
    try:
        store.log.append([bytes(10000)])
    except DiskFullError:
        print("full")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "full\n", done.stderr or done.returncode


def test_most_of_the_disk_is_used(disk_in_memory: Path) -> None:
    """Small messages fill the disk to the last pages before they are refused."""
    with opened(disk_in_memory / "channel", ChannelOptions(segment_size=64 << 20)) as store:
        sent = _fill(store, 1000)
        assert sum(map(len, sent)) > SIZE - (300 << 10)


def test_a_channel_can_be_opened_on_a_full_disk(disk: Path) -> None:
    """What is stored can be read and consumed without space for more."""
    with opened(disk / "channel") as store:
        sent = _fill(store, 1000)
    with opened(disk / "channel", create=False) as store:
        assert payloads_of(store) == sent


@pytest.mark.parametrize("segment_size", [4096, 256 << 10, 64 << 20])
def test_a_purge_frees_disk_space(disk: Path, segment_size: int) -> None:
    """A channel that filled the disk can empty itself, however few segments it has."""
    with opened(disk / "channel", ChannelOptions(segment_size=segment_size)) as store:
        _fill(store, 1000)
        store.purge()
        store.log.append([b"after"])
        assert payloads_of(store) == [b"after"]


def test_consumers_register_and_move_on_a_full_disk(disk: Path) -> None:
    """Disk space is kept for names, so that a consumer can register to free some; positions need none."""
    with opened(disk / "channel") as store:
        sent = _fill(store, 1000)
        for name in "abcdefgh":
            cursor = store.cursors.open(name)
            reader = reader_of(store, cursor)
            reader.move(store.lookup.earliest())
            for expected in sent[:10]:
                assert reader.native.take() == expected
            reader.close()
            store.cursors.close(cursor)
        store.flusher.flush()
    with opened(disk / "channel", create=False) as store:
        positions = [each.position.sequence for each in store.consumer_listing.registrations()]
        assert positions == [10] * 8
        assert payloads_of(store) == sent


def test_the_free_list_makes_space_for_a_group(disk_in_memory: Path) -> None:
    """Its ring needs more than is kept for names; then files of the free list are deleted."""
    with opened(disk_in_memory / "channel", ChannelOptions(segment_size=512 << 10)) as store:
        for _ in range(3):
            store.log.append([bytes(300 << 10)])
        store.flusher.flush()
        reclaim(store, store.segments.begins[-1])
        assert store.segments.free_list is not None
        assert store.segments.free_list.names()
        with pytest.raises(OSError, match="No space left"):
            (disk_in_memory / "ballast").write_bytes(bytes(SIZE))
        assert store.processes is not None
        store.cursors.close(store.cursors.join("group", store.processes))
        assert not store.segments.free_list.names()


def test_options_can_be_changed_on_a_full_disk(disk: Path) -> None:
    """Options can be changed on a full disk, because that may free space."""
    with opened(disk / "channel") as store:
        _fill(store, 1000)
        capacity = Capacity(max_messages=5)
        changed = replace(store.manifest.options, capacity=capacity)
        store.configure(lambda stored: stored.with_changes(schema=stored.schema, options=changed))
    with opened(disk / "channel", create=False) as store:
        assert store.manifest.options.capacity == capacity


def test_a_full_disk_that_refuses_a_flush_is_left_at_once(disk_in_memory: Path, background: Background) -> None:
    """There is space for the beginning of the file that the log resumes in."""
    files = FaultyFiles()
    with opened(disk_in_memory / "channel", files=files) as store:
        sent = _fill(store, 1000)
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()
        assert not store.control.is_gap_pending
        assert store.log.append([b"resumes"]) == store.control.poisoned_before
        assert payloads_of(store) == [*sent, b"resumes"]


def test_the_space_that_is_kept_serves_many_names(disk: Path) -> None:
    """A name that uses some of it leaves the rest; with none left a name is refused, and later it is kept again."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    (disk / "more").touch()  # while a file can be created
    with opened(disk / "channel", ChannelOptions(segment_size=256 << 10)) as store:
        sent = _fill(store, 1000)
        assert store.control.reserve.is_complete
        served = _register_until_refused(store, disk / "more")
        assert served >= 3  # a real disk takes some of it for itself
        assert not store.control.reserve.is_complete
        assert payloads_of(store) == sent
        (disk / "more").unlink()
        ballast.unlink()
        while not store.control.reserve.is_complete:
            store.log.append([bytes(10_000)])
        store.cursors.close(store.cursors.open("refused"))


def _use_all_space(ballast: Path) -> None:
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _register_until_refused(store: Store, ballast: Path) -> int:
    """Register names while another process uses all free disk space; return how many."""
    for number in range(100):
        _use_all_space(ballast)
        try:
            store.cursors.close(store.cursors.open(f"{number}"))
        except DiskFullError:
            return number
    raise AssertionError("more names than there is room for")


# Not a block is free


def test_allocating_what_is_allocated_needs_no_space(disk: Path) -> None:
    """Only blocks that are missing count, written or not; without space for those the error names the file."""
    files = Files()
    path, other = disk / "file", disk / "other"
    descriptor, sparse = files.open(path, create=True), files.open(other, create=True)
    files.allocate(path, descriptor, 0, 1 << 20)
    files.write_at(descriptor, b"some", 8192)
    files.grow(sparse, 1 << 20)
    for position in range(0, 1 << 20, 1 << 15):  # more extents than are asked for at once
        files.allocate(other, sparse, position, 1 << 14)
    ballast = fill(disk)
    files.allocate(path, descriptor, 0, 1 << 20)
    files.allocate(path, descriptor, 100, 5000)
    files.allocate(other, sparse, 7 << 15, 1 << 14)
    with pytest.raises(DiskFullError) as caught:
        files.allocate(other, sparse, 0, 1 << 20)
    assert caught.value.path == other
    with pytest.raises(DiskFullError):
        files.allocate(path, descriptor, 0, 2 << 20)
    ballast.unlink()
    files.allocate(other, sparse, 0, 1 << 20)
    assert os.fstat(sparse).st_blocks * 512 >= 1 << 20
    files.close(descriptor)
    files.close(sparse)


def test_blocks_of_a_copy_count_as_missing(tmp_path: Path) -> None:
    """A file that shares its blocks with another one needs blocks of its own before it is stored to."""
    files = Files()
    with small_disk(tmp_path, "xfs") as disk:
        path, clone = disk / "file", disk / "clone"
        descriptor, copy = files.open(path, create=True), files.open(clone, create=True)
        files.write_at(descriptor, b"." * (1 << 20), 0)
        files.flush(descriptor)
        fcntl.ioctl(copy, _CLONE, descriptor)
        fill(disk)
        with pytest.raises(DiskFullError):
            files.allocate(clone, copy, 0, 1 << 20)
        files.close(descriptor)
        files.close(copy)


def _join_groups(store: Store, count: int) -> None:
    assert store.processes is not None
    for number in range(count):
        store.cursors.close(store.cursors.join(f"group {number}", store.processes))


@pytest.mark.parametrize("segment_size", [64 << 10, 64 << 20])
def test_a_channel_is_used_without_a_free_block(disk: Path, segment_size: int) -> None:
    """What has its disk space already works as ever; what needs more is a clean error, and works when there is some."""
    path, options = disk / "channel", ChannelOptions(segment_size=segment_size)
    with opened(path, options) as store:
        store.log.append([bytes(1000)] * 30)
        assert store.processes is not None
        store.cursors.close(store.cursors.join("group", store.processes))
        store.cursors.close(store.cursors.open("known"))
        store.producers.open("producer")
    ballast = fill(disk)
    with opened(path, create=False) as store:
        sent = [b"%d:" % number + bytes(1000) for number in range(10)]
        for payload in sent:
            store.log.append([payload])  # into the space that the segment has
        store.flusher.flush()
        assert payloads_of(store)[30:] == sent
        assert store.processes is not None
        store.cursors.close(store.cursors.join("group", store.processes))
        store.producers.open("producer")
        for name in ("known", "new"):
            cursor = store.cursors.open(name)
            reader = reader_of(store, cursor)
            reader.move(store.lookup.earliest())
            assert reader.native.take() == bytes(1000)
            reader.close()
            store.cursors.close(cursor)
        changed = replace(store.manifest.options, capacity=Capacity(max_messages=10**6))
        store.configure(lambda stored: stored.with_changes(schema=stored.schema, options=changed))
        sent += _fill(store, 1000)
        assert payloads_of(store)[30:] == sent
        with pytest.raises(DiskFullError):
            _join_groups(store, 100)
    ballast.unlink()
    with opened(path, create=False) as store:
        store.log.append([b"resumed"])
        assert payloads_of(store)[30:] == [*sent, b"resumed"]


def test_a_producer_without_disk_space_keeps_no_process_from_freeing_some(disk_in_memory: Path) -> None:
    """Nothing is left of it, and what has been consumed can be removed."""
    with opened(disk_in_memory / "channel", ChannelOptions(segment_size=256 << 10)) as store:
        _fill(store, 1000)
        _register_until_refused(store, disk_in_memory / "ballast")
        with pytest.raises(DiskFullError):
            store.producers.open("key")
        assert not list((store.path / "producers").iterdir())
        reclaim(store, store.segments.begins[-1])
        store.producers.open("key")


@pytest.mark.parametrize("size", [56, 4088, 100])
def test_a_channel_is_recovered_on_a_full_disk(disk: Path, size: int) -> None:
    """Nothing is read, through a map, where the file has a hole: without space for a page that kills the process.

    Records of these sizes end with a page, where the hole begins, or before.
    """
    with opened(disk / "channel", ChannelOptions(segment_size=64 << 20)) as store:
        sent = _fill(store, size)
    with pytest.raises(OSError, match="No space left"):
        (disk / "ballast").write_bytes(bytes(SIZE))
    with (disk / "channel" / "control").open("r+b") as control:
        control.write(bytes(CONTROL_IDENTITY.size))  # as after a power cut
    script = f"""
from tests.storage.channels import opened, payloads_of
from pathlib import Path
with opened(Path({str(disk / "channel")!r}), create=False) as store:
    print(len(payloads_of(store)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.returncode
    assert int(done.stdout) == len(sent)


def test_the_quarantine_needs_no_space(disk_in_memory: Path) -> None:
    """Where there is none for a copy, the file itself is kept, and the channel can be opened."""
    path = disk_in_memory / "channel"
    with opened(path, ChannelOptions(segment_size=512 << 10)) as store:
        first = store.log.append([b"first"])
        store.flusher.flush()
        damaged = store.log.append([b"damaged"])
        behind = [b"%d:" % number + bytes(200 << 10) for number in range(5)]
        for payload in behind:
            store.log.append([payload])
        segment = store.segments.get(first)
        segment.map[segment.position(damaged) + RECORD_HEADER_SIZE] ^= 1
    with (path / "control").open("r+b") as control:
        control.write(bytes(CONTROL_IDENTITY.size))  # as after a power cut
    with pytest.raises(OSError, match="No space left"):
        (disk_in_memory / "ballast").write_bytes(bytes(SIZE))
    for _ in range(2):
        with opened(path, create=False) as store:
            assert payloads_of(store) == [b"first"]
    kept = [file.read_bytes() for file in (path / "quarantine").iterdir()]
    assert len(kept) == 3  # as many as there were segments
    assert all(any(payload in content for content in kept) for payload in behind)


def test_a_channel_cannot_be_made_on_a_full_disk(disk_in_memory: Path) -> None:
    """The error is clean, and the channel is created when there is space."""
    ballast = disk_in_memory / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(SIZE * 2))
    with pytest.raises(DiskFullError), opened(disk_in_memory / "channel"):
        pass
    ballast.unlink()
    with opened(disk_in_memory / "channel") as store:
        store.log.append([b"one"])
        assert payloads_of(store) == [b"one"]


def test_a_control_file_without_disk_space_is_named_by_its_path(disk_in_memory: Path) -> None:
    """The error says where the file is, wherever the process runs."""
    with opened(disk_in_memory / "channel"):
        pass
    control = disk_in_memory / "channel" / "control"
    os.truncate(control, 0)
    fill(disk_in_memory)
    with pytest.raises(DiskFullError) as caught, opened(disk_in_memory / "channel"):
        pass
    assert caught.value.path == control
