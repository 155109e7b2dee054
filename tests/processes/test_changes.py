"""What one process does to the channel as a whole, and what the others make of it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import anyio
import pytest

from filechannel import ChannelOptions, ChannelSealedError, Durability, FileChannel, open_channel
from tests.backends import BACKENDS
from tests.processes.order_checker import Accepted, OrderChecker
from tests.processes.tasks import SMALL, create, obey, read_to_the_end, read_what_is_left, send_for_ever
from tests.processes.workers import Child, Workers, until

FSYNC = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)


def order(child: Child, *words: object) -> None:
    """Have a child do something, which succeeds."""
    child.send(words)
    assert child.receive() is None


async def all_of(channel: FileChannel[bytes]) -> list[bytes]:
    """Return every message."""
    with channel.replay() as rx:
        return [payload async for payload in rx]


def test_one_process_chooses_fsync_for_all(workers: Workers, path: Path) -> None:
    """After one process configures FSYNC, `send` of another one returns when the message is on disk, until it is
    undone.
    """

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel:
            other = workers.start(obey, path)
            other.meet()
            order(other, "send", b"1")
            await channel.configure(durability=Durability.FSYNC)
            order(other, "send", b"2")
            assert channel.statistics().durable_offset == channel.statistics().write_offset
            await channel.configure(durability=Durability.OS)
            durable = channel.statistics().durable_offset
            order(other, "send", b"3")
            assert channel.statistics().durable_offset == durable
            assert await all_of(channel) == [b"1", b"2", b"3"]

    anyio.run(run)


@pytest.mark.parametrize("last", ["flush", "end", "seal", "purge"])
def test_a_process_that_has_not_noticed_the_change_rolls_nothing_back(workers: Workers, path: Path, last: str) -> None:
    """A process that did not notice the end of FSYNC rolls nothing back when it flushes or ends."""

    async def run() -> None:
        async with open_channel(path, bytes, options=FSYNC) as channel, channel.sender() as tx:
            other = workers.start(obey, path)
            other.meet()
            order(other, "send", b"1")
            await channel.configure(durability=Durability.OS)
            await tx.send_many([b"2", b"3"])
            assert await all_of(channel) == [b"1", b"2", b"3"]
            other.send((last,))
            assert other.result() is None if last == "end" else other.receive() is None
            assert await all_of(channel) == ([] if last == "purge" else [b"1", b"2", b"3"])
            if last == "flush":
                assert channel.statistics().durable_offset == channel.statistics().write_offset

    anyio.run(run)


@pytest.mark.parametrize("last", ["flush", "seal"])
def test_a_process_that_has_not_noticed_fsync_flushes_all(workers: Workers, path: Path, last: str) -> None:
    """A message of a process that did not notice FSYNC is visible and on disk after a flush of another process."""

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
            other = workers.start(obey, path)
            other.meet()
            order(other, "send", b"1")
            await channel.configure(durability=Durability.FSYNC)
            channel._store.log.append([b"2"])  # and no process flushes it
            assert await all_of(channel) == [b"1"]
            order(other, last)
            assert await all_of(channel) == [b"1", b"2"]
            assert tx.statistics().durable_offset == tx.write_offset

    anyio.run(run)


def test_the_durability_changes_while_others_send(workers: Workers, path: Path, rng: Random) -> None:
    """While the durability changes back and forth three writers lose, duplicate and reorder nothing."""

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel:
            reported = [Accepted(path.parent / "accepted", writer) for writer in range(3)]
            writers = [
                workers.start(send_for_ever, path, path.parent / "accepted", writer, rng.getrandbits(32))
                for writer in range(3)
            ]
            reader = workers.start(read_to_the_end, path)
            reader.meet()
            reader.send("go")
            for number in range(10):
                seen = [each.count for each in reported]
                until(lambda: all(each.count > before for each, before in zip(reported, seen, strict=True)))  # noqa: B023
                await channel.configure(durability=(Durability.FSYNC, Durability.OS)[number % 2])
            for writer in writers:
                writer.meet()
                writer.send("end")
                writer.result()
            await channel.seal()
            checker = OrderChecker()
            for payload in await all_of(channel):
                checker.add(payload)
            assert checker.counts == {writer: each.count for writer, each in enumerate(reported)}
            assert reader.result() == (checker.digest, checker.counts)

    anyio.run(run)


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])
def test_sealing_ends_the_streams_of_others(workers: Workers, path: Path, durability: Durability) -> None:
    """After a seal receivers of other processes get everything and then the end, and senders are refused."""
    anyio.run(create, path, ChannelOptions(durability=durability))
    readers = [workers.start(read_to_the_end, path, backend=backend) for backend in BACKENDS]
    other = workers.start(obey, path)
    for child in (*readers, other):
        child.meet()
    for reader in readers:
        reader.send("go")
    sealer = workers.start(obey, path)
    sealer.meet()
    order(sealer, "seal")
    assert [reader.result()[1] for reader in readers] == [{}] * 3
    other.send(("send", b"late"))
    assert other.receive().startswith(ChannelSealedError.__name__)


def test_purging_while_another_process_reads(workers: Workers, path: Path, rng: Random) -> None:
    """A reader of another process gets the number of purged messages or continues, always in order."""

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel:
            reported = Accepted(path.parent / "accepted", 0)
            writer = workers.start(send_for_ever, path, path.parent / "accepted", 0, rng.getrandbits(32))
            readers = [workers.start(read_what_is_left, path, backend=backend) for backend in BACKENDS]
            for reader in readers:
                reader.meet()
                reader.send("go")
            for _ in range(20):
                seen = reported.count
                until(lambda: reported.count > seen + 50)  # noqa: B023
                await channel.purge()
                assert all(name.name.startswith(("0", "new-", "spare-")) for name in (path / "segments").iterdir())
            writer.meet()
            writer.send("end")
            writer.result()
            await channel.seal()
            for reader in readers:
                received, missed = reader.result()
                assert received + missed == channel.statistics().next_sequence

    anyio.run(run)


def test_a_purge_leaves_nothing_behind(workers: Workers, path: Path) -> None:
    """After a purge a process that wrote to a purged segment creates no files for it."""

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
            other = workers.start(obey, path)
            other.meet()
            for _ in range(5):
                order(other, "send", bytes(1000))
                await channel.purge()
                await tx.send(b"after")
            order(other, "send", b"last")
            other.send(("end",))
            other.result()
            begin = {name.stem for name in (path / "segments").iterdir() if name.suffix == ".seg"}
            assert {name.stem for name in (path / "segments").iterdir()} == begin

    anyio.run(run)
