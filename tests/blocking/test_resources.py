"""What a closed channel leaves behind in its process: nothing, with the garbage collector switched off."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from anyio import ClosedResourceError

from filechannel import Capacity, ChannelOptions, CorruptRecordError, Durability, FileChannelError
from filechannel._format import PURE
from filechannel.blocking import FileChannel, open_channel, transaction
from tests.blocking.threads import until
from tests.file_systems import mounted_image, mounted_tmpfs
from tests.storage.compressing import compress_all
from tests.storage.resources import held_under

TIMEOUT = 60  # seconds; nothing here takes as long
Channel = FileChannel[bytes]


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    """Nothing is freed but by reference counting, and by closing."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def do_nothing(_: Channel) -> None:
    """Only open it."""


def send_and_receive(channel: Channel) -> None:
    """With every kind of receiver, some of which are left open."""
    channel.sender().send(b"1")
    with channel.sender() as tx:
        tx.send_many([b"2", b"3"])
    with channel.receiver("fan-out") as rx:
        assert rx.receive() == b"1"
    kept = [channel.receiver("fan-out"), channel.ack_receiver("acked"), channel.group("group", lease=60)]
    for each in kept:
        each.receive()
        each.peek(2)
    assert channel.replay().receive_many(2) == [b"1", b"2"]
    clone = kept[2].clone()
    clone.receive()
    channel.seal()


def look_around(channel: Channel) -> None:
    """Call statistics, consumers, positions, purge and flush."""
    channel.sender().send(b"1")
    channel.receiver("name").close()
    channel.statistics()
    channel.consumers()
    channel.offset_of(0)
    channel.flush()
    channel.receiver("name").statistics()
    channel.purge()
    channel.remove_consumer("name")


def roll(channel: Channel) -> None:
    """Through more segments than are mapped at once."""
    with channel.sender() as tx, channel.receiver("name") as rx:
        for number in range(40):
            tx.send(bytes(3000))
            if number % 2:
                rx.receive()


def configure(channel: Channel) -> None:
    """Set a capacity, for which consumers are watched."""
    channel.configure(capacity=Capacity(max_messages=5, on_full="drop_oldest"), durability=Durability.interval(0.01))
    rx = channel.receiver("name")
    for _ in range(9):
        channel.sender().send(b"1")
    with suppress(FileChannelError):
        rx.receive()


def commit(channel: Channel) -> None:
    """As a producer that may not append a batch twice, in a transaction, and with everything on disk."""
    channel.configure(durability=Durability.FSYNC)
    with channel.sender() as tx:
        tx.send(b"1")
        tx.send_many([b"2"] * 3)
    with channel.ack_receiver("input") as rx, channel.sender() as tx, transaction(rx, tx) as step:
        step.send(rx.receive())


def read_damage(channel: Channel) -> None:
    """With an error that refers to the frames in which it was raised, and lives on."""
    with channel.sender() as tx:
        tx.send(b"damaged" * 10)
    segment = next(channel.path.glob("segments/*.seg"))
    with segment.open("r+b") as file:
        file.seek(90)
        file.write(b"!")
    with pytest.raises(CorruptRecordError) as raised, channel.receiver("name") as rx:
        rx.receive()
    errors.append(raised.value)


errors: list[BaseException] = []
USES = [do_nothing, send_and_receive, look_around, roll, configure, commit, read_damage]


@pytest.mark.parametrize("use", USES)
def test_a_closed_channel_holds_nothing(path: Path, use: Callable[[Channel], None]) -> None:
    """A closed channel holds no map and no descriptor, whatever it was used for, although it is still referenced."""
    if PURE and use is read_damage:
        pytest.skip("the frames of the pure implementation, which the error refers to, hold views of the segment")
    with open_channel(path, bytes, options=ChannelOptions(segment_size=65536)) as channel:
        use(channel)
        assert held_under(path)
    assert held_under(path) == []


@pytest.mark.parametrize("use", [do_nothing, lambda channel: channel.replay().receive_many(3)])
def test_a_closed_channel_that_was_read_only_holds_nothing(path: Path, use: Callable[[Channel], object]) -> None:
    """A closed read-only channel holds no map and no descriptor, alone or beside one that is open for writing."""
    with open_channel(path, bytes) as writer:
        send_and_receive(writer)
        with open_channel(path, bytes, readonly=True) as channel:
            use(channel)
        assert writer.statistics().write_offset > 0
    assert held_under(path) == []
    with open_channel(path, bytes, readonly=True) as channel:
        use(channel)
    assert held_under(path) == []


def test_the_last_of_several_handles_releases_the_channel(path: Path) -> None:
    """Closing one of several handles keeps what the others need."""
    first, second = open_channel(path, bytes), open_channel(path, bytes)
    tx, rx = second.sender(), second.receiver("name")
    first.sender().send(b"1")
    first.close()
    tx.send(b"2")
    assert rx.receive_many(2) == [b"1", b"2"]
    second.close()
    assert held_under(path) == []


def test_compressed_segments_are_closed(path: Path) -> None:
    """Closing a channel closes the descriptors of compressed segments."""
    with open_channel(path, bytes, options=ChannelOptions(segment_size=65536)) as channel:
        roll(channel)
        assert compress_all(channel._store, "gzip")
        channel.replay().receive_many(10)
        assert [held for held in held_under(path) if held.endswith(".z")]
    assert held_under(path) == []


def test_many_cycles_leave_no_map(path: Path) -> None:
    """A process that opened and closed a channel a hundred times has as many maps as before."""
    before = Path("/proc/self/maps").read_text().count("\n")
    for _ in range(100):
        with open_channel(path, bytes) as channel, channel.receiver("name"):
            channel.sender().send(b"1")
    assert held_under(path) == []
    assert Path("/proc/self/maps").read_text().count("\n") < before + 50  # what the allocator has


def test_a_file_system_can_be_unmounted_after_close(tmp_path: Path) -> None:
    """A file system can be unmounted after the channel was closed: nothing of it is open or mapped."""
    with mounted_image(tmp_path, "ext4") as image:
        with open_channel(image.path / "channel", bytes, options=ChannelOptions(segment_size=65536)) as channel:
            send_and_receive(channel)
        image.unmount()


def test_a_tmpfs_can_be_unmounted_after_close(tmp_path: Path) -> None:
    """A tmpfs can be unmounted after the channel on it was closed."""
    with mounted_tmpfs(tmp_path, 64 << 20) as directory:
        with open_channel(directory / "channel", bytes, options=ChannelOptions(segment_size=65536)) as channel:
            roll(channel)
        assert os.spawnlp(os.P_WAIT, "umount", "umount", str(directory)) == 0


def test_a_forked_child_frees_what_it_opens(path: Path) -> None:
    """A forked child releases what it opens and closes itself; inherited maps stay until it ends."""
    with open_channel(path, bytes) as channel:
        channel.sender().send(b"1")
        child = os.fork()
        if not child:
            code = 1
            try:
                before = sorted(held_under(path))
                with open_channel(path, bytes, readonly=True) as again:
                    again.statistics()
                code = 0 if sorted(held_under(path)) == before else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held_under(path) == []


# Threads that are inside


def run_into_close(
    channel: Channel, works: list[Callable[[], object]], started: threading.Barrier
) -> list[BaseException]:
    """Run threads until the channel, which is closed in between, refuses; return what each thread ended with."""
    ends: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        started.wait(TIMEOUT)
        try:
            while True:
                work()
        except BaseException as error:
            ends.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    started.wait(TIMEOUT)
    channel.close()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    return ends


def test_closing_under_running_threads(path: Path) -> None:
    """Threads that use a channel while it closes get an error that it is closed, and what they used is released."""
    for _ in range(30):
        channel = open_channel(path, bytes, options=ChannelOptions(segment_size=65536))
        tx, rx, acked, group = channel.sender(), channel.receiver("a"), channel.ack_receiver("b"), channel.group("c")
        tx.send(b"")  # a replay of nothing would end at once
        works: list[Callable[[], object]] = [
            lambda tx=tx: tx.send(bytes(500)),
            lambda tx=tx: tx.send_many([b"1"] * 20),
            rx.receive,
            acked.receive,
            group.receive,
            lambda rx=rx: rx.statistics(),
            channel.statistics,
            channel.consumers,
            channel.flush,
            lambda channel=channel: channel.replay().receive_many(3),
        ]
        ends = run_into_close(channel, works, threading.Barrier(len(works) + 1))
        assert [type(end) for end in ends] == [ClosedResourceError] * len(works)
        del works, ends, tx, rx, acked, group
        until(lambda: not held_under(path))  # a thread that was preparing the next segment releases it when it is done


def test_closing_under_threads_that_wait(path: Path) -> None:
    """Threads that wait for a message or for capacity get an error when the channel is closed."""
    channel = open_channel(path, bytes, options=ChannelOptions(capacity=Capacity(max_messages=1)))
    full, empty = channel.receiver("full"), channel.receiver("empty", start="latest")
    channel.sender().send(b"1")
    empty.receive()
    works: list[Callable[[], object]] = [
        lambda: channel.sender().send(b"2"),
        empty.receive,
        lambda: empty.receive(timeout=TIMEOUT),
        channel.group("group", start="latest").receive,
    ]
    ends = run_into_close(channel, works, threading.Barrier(len(works) + 1))
    assert [type(end) for end in ends] == [ClosedResourceError] * len(works)
    full.close()
    assert held_under(path) == []


# Receivers that were not closed


@pytest.mark.parametrize("kind", ["receiver", "ack_receiver"])
def test_a_deleted_receiver_gives_its_name_up(path: Path, kind: str) -> None:
    """A deleted receiver releases its name and its file at once; its position stays stored."""
    with open_channel(path, bytes) as channel:
        channel.sender().send(b"1")
        rx = getattr(channel, kind)("name")
        del rx
        assert channel.consumers()[0].owner is None
        assert not [held for held in held_under(path) if "consumers" in held]
        with channel.receiver("name") as rx:
            assert rx.receive() == b"1"


def test_a_deleted_member_leaves_its_group(path: Path) -> None:
    """The outstanding messages of a deleted member are redelivered to the other members."""
    with open_channel(path, bytes) as channel:
        channel.sender().send(b"1")
        member, other = channel.group("group"), channel.group("group")
        assert member.receive() == b"1"
        del member
        assert other.receive(timeout=TIMEOUT) == b"1"


def test_a_clone_keeps_the_name(path: Path) -> None:
    """The name is released when the last clone is deleted."""
    with open_channel(path, bytes) as channel, ExitStack():
        channel.sender().send(b"1")
        rx = channel.receiver("name")
        clone = rx.clone()
        del rx
        assert clone.receive() == b"1"
        assert channel.consumers()[0].owner is not None
        del clone
        assert channel.consumers()[0].owner is None
