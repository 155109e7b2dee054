"""A file system that shuts down while processes send: a store through a map must not kill them.

XFS refuses to make a page writable then, and a store to a page that a flush has made read-only ends the process with
SIGBUS. Under FSYNC that is every page soon after it was written.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._format import PURE, populate
from filechannel._format.layout import FLUSHING_SEGMENTS
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from tests.file_systems import MountedImage, mounted_image
from tests.storage.channels import opened, payloads_of

pytestmark = pytest.mark.disk

FSYNC = ChannelOptions(durability=Durability.FSYNC, segment_size=64 << 10)
_DEADLINE = 120.0
_SENDER = """
import sys
from pathlib import Path
from filechannel import ChannelOptions, Durability, StorageError, blocking

options = ChannelOptions(durability=Durability.FSYNC, segment_size=64 << 10)
with blocking.open_channel(Path(sys.argv[1]), bytes, options=options) as channel, channel.sender() as sender:
    sent = 0
    try:
        while True:
            sender.send(f"{sys.argv[2]}:{sent}:".encode() + bytes(100))
            sent += 1
            if sent == 3:
                print("ready", flush=True)
    except StorageError:
        print(sent, flush=True)
    for _ in range(3):  # and the errors stay errors
        try:
            sender.send(b"late")
        except StorageError:
            pass
        else:
            raise AssertionError("sent on a file system that has shut down")
"""
_TASKS = """
import asyncio
import sys
from pathlib import Path
from filechannel import ChannelOptions, Durability, StorageError, open_channel

async def send(sender, task, sent):
    try:
        while True:
            await sender.send(f"{sys.argv[2]}-{task}:{len(sent)}:".encode() + bytes(100))
            sent.append(task)
            if len(sent) == 100:
                print("ready", flush=True)
    except StorageError:
        pass

async def main():
    options = ChannelOptions(durability=Durability.FSYNC, segment_size=64 << 10)
    sent = []
    async with open_channel(Path(sys.argv[1]), bytes, options=options) as channel, channel.sender() as sender:
        async with asyncio.TaskGroup() as tasks:
            for task in range(16):
                tasks.create_task(send(sender, task, sent))
    print(len(sent), flush=True)

asyncio.run(main())
"""


@pytest.fixture(params=["ext4", "xfs"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MountedImage]:
    """A mounted file system that can be shut down."""
    with mounted_image(tmp_path, request.param) as mounted:
        yield mounted


def _shut_down_under(image: MountedImage, rng: random.Random, script: str, places: list[str]) -> list[int]:
    """Shut the file system down while a process sends to each of these channels; return how much each has sent."""
    if PURE:  # there only one process may have a channel open
        places = [f"{place}{number}" if places.count(place) > 1 else place for number, place in enumerate(places)]
    senders = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", script, str(image.path / place), str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, place in enumerate(places)
    ]
    try:
        for sender in senders:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "ready\n", sender.communicate()
        time.sleep(rng.random() / 5)  # not to wait for anything: any moment will do
        image.shut_down()
        outcomes = [(*sender.communicate(timeout=_DEADLINE), sender.returncode) for sender in senders]
    finally:
        for sender in senders:
            sender.kill()
            sender.wait()
    assert [code for _, _, code in outcomes] == [0] * len(places), [error[-2000:] for _, error, _ in outcomes]
    return [int(output) for output, _, _ in outcomes]


@pytest.mark.parametrize(
    ("script", "places"),
    [(_SENDER, ["a", "b", "c", "d"]), (_SENDER, ["same", "same", "same"]), (_TASKS, ["a", "same", "same"])],
    ids=["alone", "same", "tasks"],
)
def test_no_sender_is_killed(image: MountedImage, rng: random.Random, script: str, places: list[str]) -> None:
    """When the file system shuts down each sender gets a StorageError for what is not on disk, and no signal."""
    assert all(_shut_down_under(image, rng, script, places))


@pytest.mark.soak
@pytest.mark.parametrize("script", [_SENDER, _TASKS], ids=["processes", "tasks"])
def test_no_sender_is_ever_killed(tmp_path: Path, rng: random.Random, script: str) -> None:
    """When the file system shuts down at dozens of moments hundreds of senders get a StorageError, and no signal."""
    for attempt in range(24):
        (tmp_path / str(attempt)).mkdir()
        with mounted_image(tmp_path / str(attempt), "xfs") as image:
            assert all(_shut_down_under(image, rng, script, ["a", "b", "c", "d", "same", "same"]))


def _idle_then_shut_down(image: MountedImage, body: str, meanwhile: Callable[[], object] = lambda: None) -> str:
    """Run a script that sends, has the file system shut down by writing a line, and does *body* then."""
    script = f"""
import sys
from pathlib import Path
from filechannel import ChannelOptions, Durability, FileChannelError, StorageError, blocking
options = ChannelOptions(durability=Durability.FSYNC, segment_size=64 << 10, cursor_flush="fsync")
with blocking.open_channel(Path({str(image.path / "channel")!r}), bytes, options=options) as channel:
    with channel.sender() as sender:
        sender.send(b"one")
        {body}
"""
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "idle\n", process.communicate()
        meanwhile()
        image.shut_down()
        output, error = process.communicate("go on\n", timeout=_DEADLINE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, error[-2000:] or process.returncode
    return output


_IDLE = 'print("idle", flush=True); sys.stdin.readline()'


@pytest.mark.parametrize("before", ["pass", "channel.flush()"], ids=["committed", "flushed"])
@pytest.mark.parametrize("first", ["sender.send(b'two')", "channel.flush()"], ids=["send", "flush"])
def test_a_shut_down_while_idle_is_an_error(image: MountedImage, before: str, first: str) -> None:
    """After a shutdown of the file system an idle channel raises, although all its pages are read-only."""
    body = f"""{before}
        {_IDLE}
        try:
            {first}
        except StorageError:
            pass
        for send in (lambda: sender.send(b"two"), lambda: sender.send_many([b"two"] * 1000), channel.purge):
            try:
                send()
            except StorageError as error:
                print(type(error).__name__)
"""
    assert _idle_then_shut_down(image, body).startswith("StorageError\n" * 3)


_SENDS = f"""{_IDLE}
        for send in (lambda: sender.send(b"two"), channel.flush, channel.purge):
            try:
                send()
            except StorageError as error:
                print(type(error).__name__)
"""


@pytest.mark.skipif(PURE, reason="there only one process may have a channel open")
def test_a_flush_by_another_process_is_noticed(image: MountedImage) -> None:
    """A sender notices that a flush by another process made the control page read-only."""

    def flush() -> None:
        with opened(image.path / "channel", create=False) as store:
            store.flusher.flush()

    assert _idle_then_shut_down(image, _SENDS, flush).startswith("StorageError\n" * 3)


def test_what_the_kernel_wrote_out_is_noticed_after_a_second(image: MountedImage) -> None:
    """A sender notices after a second that the kernel wrote the control page out."""

    def write_out() -> None:
        for path in (image.path / "channel" / "control", *(image.path / "channel" / "segments").iterdir()):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        time.sleep(1.1)  # not to wait for anything: so long a page is believed to be writable

    assert _idle_then_shut_down(image, _SENDS, write_out).startswith("StorageError\n" * 3)


def test_a_position_that_is_flushed_each_time_is_an_error(image: MountedImage) -> None:
    """With cursor_flush="fsync" a receiver gets a StorageError after a shutdown, and no signal."""
    body = f"""
        sender.send_many([b"more"] * 1000)
        with channel.receiver("name") as receiver:
            receiver.receive()
            {_IDLE}
            try:
                for _ in range(1000):
                    receiver.receive()
            except StorageError as error:
                print(type(error).__name__)
"""
    assert _idle_then_shut_down(image, body).startswith("StorageError")


# A file that was cut off


def _cut(store: Store) -> None:
    """Cut the active segment off after its header, and note that a flush has happened since it was written to."""
    os.truncate(store.segments.path(store.segments.begins[-1]), 4096)
    store.control.running_flushes.begin(FLUSHING_SEGMENTS)
    store.control.running_flushes.end(FLUSHING_SEGMENTS)


def test_a_segment_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    """Under FSYNC a message beyond the end of a segment that was cut off is refused before it is stored."""
    with opened(tmp_path / "channel", FSYNC) as store:
        store.log.append([bytes(5000)])
        store.flusher.commit()
        segment = store.segments.get(store.segments.begins[-1])
        if not populate(segment.map, 0, 1):  # type: ignore[union-attr]
            pytest.skip("this kernel cannot tell")
        _cut(store)
        with pytest.raises(StorageError, match="nothing was sent"):
            store.log.writer.append(bytes(5000))


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_all_that_was_acknowledged_is_there_after_a_remount(tmp_path: Path, rng: random.Random, kind: str) -> None:
    """After a shutdown and a remount every message whose send returned is stored."""
    _lose_nothing(tmp_path, kind, rng, attempts=4)


def test_a_flush_that_reports_success_on_a_file_system_that_has_shut_down_fails(
    image: MountedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that runs while ext4 or XFS shuts down fails, although the system reports success."""
    path = image.path / "file"
    path.write_bytes(bytes(4096))
    files, descriptor = Files(), os.open(path, os.O_RDWR)
    try:
        files.flush(descriptor)
        image.shut_down()
        monkeypatch.setattr(os, "fdatasync", lambda _: None)
        with pytest.raises(OSError, match="Input/output error"):
            files.flush(descriptor)
    finally:
        os.close(descriptor)


def _lose_nothing(directory: Path, kind: str, rng: random.Random, attempts: int) -> None:
    for attempt in range(attempts):
        (directory / str(attempt)).mkdir()
        with mounted_image(directory / str(attempt), kind) as image:
            sent = _shut_down_under(image, rng, _SENDER, ["a", "b"])
            image.remount()
            for place, count in zip("ab", sent, strict=True):
                with opened(image.path / place, create=False) as store:
                    numbers = [int(payload.split(b":")[1]) for payload in payloads_of(store)]
                assert numbers[:count] == list(range(count)), attempt


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_nothing_acknowledged_is_ever_lost_by_a_shutdown(tmp_path: Path, rng: random.Random, kind: str) -> None:
    """Whenever the file system shuts down, messages whose sends returned are stored after a remount."""
    _lose_nothing(tmp_path, kind, rng, attempts=100)
