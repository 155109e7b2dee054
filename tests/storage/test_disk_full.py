"""A disk that is really full: a small file system, in memory or on a real one's image, mounted for the purpose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelOptions, DiskFullError, Durability, StorageError
from filechannel._format.layout import CONTROL_IDENTITY, RECORD_HEADER_SIZE
from filechannel._storage.store import Store
from tests.storage.background import Background
from tests.storage.channels import opened, payloads_of, reader_of
from tests.storage.faults import FaultyFiles, input_output_error
from tests.storage.reclaiming import reclaim

pytestmark = pytest.mark.disk

SIZE = 4 << 20
IMAGE = 24 << 20
"""What a file system with a journal needs besides."""


def _do(*command: object) -> None:
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"a small disk cannot be mounted here: there is no {command[0]}")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")


@contextmanager
def _mounted(tmp_path: Path, *arguments: object) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    _do("mount", *arguments, disk)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four mebibytes, in memory."""
    with _mounted(tmp_path, "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs") as disk:
        yield disk


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """A real one, with room for a little more than that."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE)
    _do("mkfs.ext4", "-q", "-m", "0", "-b", "4096", image)
    with _mounted(tmp_path, "-o", "loop", image) as disk:
        yield disk


@pytest.fixture(params=["small_disk", "small_ext4"])
def disk(request: pytest.FixtureRequest) -> Path:
    """Either of them."""
    path: Path = request.getfixturevalue(request.param)
    return path


def _fill(store: Store, size: int) -> list[bytes]:
    """Send until there is no room; return what was accepted."""
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
def test_a_full_disk_loses_nothing(small_disk: Path, segment_size: int, size: int, durability: Durability) -> None:
    """The error is clean, what was accepted is readable, and it goes on when there is room."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    options = ChannelOptions(segment_size=segment_size, durability=durability)
    with opened(small_disk / "channel", options) as store:
        sent = _fill(store, size)
        store.flusher.commit()
        assert payloads_of(store) == sent
        with pytest.raises(DiskFullError):
            store.log.append([b"." * size] * 100)
        ballast.unlink()
        store.log.append([b"goes on"])
        store.flusher.commit()
        assert payloads_of(store) == [*sent, b"goes on"]
    with opened(small_disk / "channel", create=False) as store:
        assert payloads_of(store) == [*sent, b"goes on"]


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
def test_a_full_disk_kills_nobody(small_ext4: Path, segment_size: int, durability: str) -> None:
    """Where the kernel needs more blocks than those that are written to, they are there as well, or it is an error."""
    command = [sys.executable, "-c", _FILL, str(small_ext4 / "channel"), str(segment_size), durability]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.returncode
    assert int(done.stdout) > 500


def test_a_spare_without_disk_space_kills_nobody(small_disk: Path) -> None:
    """Whoever made it may have died before it had any: it gets some before it is written to, or is removed."""
    options, channel = ChannelOptions(segment_size=256 << 10), small_disk / "channel"
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
        Path({str(small_disk / "ballast")!r}).write_bytes(bytes({SIZE}))
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


def test_most_of_the_disk_is_used(small_disk: Path) -> None:
    """Small messages fill the disk to the last pages before they are refused."""
    with opened(small_disk / "channel", ChannelOptions(segment_size=64 << 20)) as store:
        sent = _fill(store, 1000)
        assert sum(map(len, sent)) > SIZE - (300 << 10)


def test_a_channel_can_be_opened_on_a_full_disk(disk: Path) -> None:
    """What is stored can be read and consumed without room for more."""
    with opened(disk / "channel") as store:
        sent = _fill(store, 1000)
    with opened(disk / "channel", create=False) as store:
        assert payloads_of(store) == sent


@pytest.mark.parametrize("segment_size", [4096, 256 << 10, 64 << 20])
def test_a_purge_makes_room(disk: Path, segment_size: int) -> None:
    """A channel that filled the disk can empty itself, however few segments it has."""
    with opened(disk / "channel", ChannelOptions(segment_size=segment_size)) as store:
        _fill(store, 1000)
        store.purge()
        store.log.append([b"after"])
        assert payloads_of(store) == [b"after"]


def test_consumers_come_and_move_on_a_full_disk(disk: Path) -> None:
    """Disk space is kept for names, so that whoever comes to make room can; positions need none."""
    with opened(disk / "channel") as store:
        sent = _fill(store, 1000)
        for name in "abcdefgh":
            cursor = store.cursors.open(name)
            reader = reader_of(store, cursor)
            reader.move(store.places.earliest())
            for expected in sent[:10]:
                assert reader.native.take() == expected
            reader.close()
            store.cursors.close(cursor)
        store.flusher.flush()
    with opened(disk / "channel", create=False) as store:
        positions = [each.position.sequence for each in store.roster.registrations()]
        assert positions == [10] * 8
        assert payloads_of(store) == sent


def test_files_that_wait_make_room_for_a_group(small_disk: Path) -> None:
    """Its ring needs more than is kept for names; files that are to be written again come after that."""
    with opened(small_disk / "channel", ChannelOptions(segment_size=512 << 10)) as store:
        for _ in range(3):
            store.log.append([bytes(300 << 10)])
        store.flusher.flush()
        reclaim(store, store.segments.begins[-1])
        assert store.segments.spares is not None
        assert store.segments.spares.names()
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "ballast").write_bytes(bytes(SIZE))
        assert store.processes is not None
        store.cursors.close(store.cursors.join("group", store.processes))
        assert not store.segments.spares.names()


def test_options_can_be_changed_on_a_full_disk(disk: Path) -> None:
    """They are what may make room."""
    with opened(disk / "channel") as store:
        _fill(store, 1000)
        capacity = Capacity(max_messages=5)
        changed = replace(store.manifest.options, capacity=capacity)
        store.configure(lambda stored: stored.with_changes(schema=stored.schema, options=changed))
    with opened(disk / "channel", create=False) as store:
        assert store.manifest.options.capacity == capacity


def test_a_full_disk_that_refuses_a_flush_is_left_at_once(small_disk: Path, background: Background) -> None:
    """There is room for the beginning of the file that the log goes on in."""
    files = FaultyFiles()
    with opened(small_disk / "channel", files=files) as store:
        sent = _fill(store, 1000)
        files.fail(frozenset({"flush"}), input_output_error, once=True)
        with pytest.raises(StorageError, match="may not be on disk"):
            store.flusher.flush()
        assert not store.control.owes_jump
        assert store.log.append([b"goes on"]) == store.control.given_up
        assert payloads_of(store) == [*sent, b"goes on"]


def test_the_space_that_is_kept_serves_many_names(disk: Path) -> None:
    """Whoever spends some of it leaves the rest; with none left a name is refused, and later it is kept again."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    with opened(disk / "channel", ChannelOptions(segment_size=256 << 10)) as store:
        sent = _fill(store, 1000)
        assert store.control.has_reserve
        served = _register_until_refused(store, disk / "more")
        assert served >= 3  # a real disk takes some of it for itself
        assert not store.control.has_reserve
        assert payloads_of(store) == sent
        (disk / "more").unlink()
        ballast.unlink()
        while not store.control.has_reserve:
            store.log.append([bytes(10_000)])
        store.cursors.close(store.cursors.open("refused"))


def _take_all_room(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def _register_until_refused(store: Store, ballast: Path) -> int:
    """Register names while somebody else takes whatever room there is; return how many."""
    for number in range(100):
        _take_all_room(ballast)
        try:
            store.cursors.close(store.cursors.open(f"{number}"))
        except DiskFullError:
            return number
    raise AssertionError("more names than there is room for")


def test_a_producer_without_room_keeps_nobody_from_making_some(small_disk: Path) -> None:
    """Nothing is left of it, and what has been consumed can be removed."""
    with opened(small_disk / "channel", ChannelOptions(segment_size=256 << 10)) as store:
        _fill(store, 1000)
        _register_until_refused(store, small_disk / "ballast")
        with pytest.raises(DiskFullError):
            store.producers.open("key")
        assert not list((store.path / "producers").iterdir())
        reclaim(store, store.segments.begins[-1])
        store.producers.open("key")


@pytest.mark.parametrize("size", [56, 4088, 100])
def test_a_channel_is_recovered_on_a_full_disk(disk: Path, size: int) -> None:
    """Nothing is read, through a map, where the file has a hole: without room for a page that kills the process.

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


def test_what_has_to_be_put_aside_needs_no_room(small_disk: Path) -> None:
    """Where there is none for a copy, the file itself is kept, and the channel can be opened."""
    path = small_disk / "channel"
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
        (small_disk / "ballast").write_bytes(bytes(SIZE))
    for _ in range(2):
        with opened(path, create=False) as store:
            assert payloads_of(store) == [b"first"]
    kept = [file.read_bytes() for file in (path / "quarantine").iterdir()]
    assert len(kept) == 3  # as many as there were segments
    assert all(any(payload in content for content in kept) for payload in behind)


def test_a_channel_cannot_be_made_on_a_full_disk(small_disk: Path) -> None:
    """The error is clean, and the channel is made when there is room."""
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(SIZE * 2))
    with pytest.raises(DiskFullError), opened(small_disk / "channel"):
        pass
    ballast.unlink()
    with opened(small_disk / "channel") as store:
        store.log.append([b"one"])
        assert payloads_of(store) == [b"one"]
