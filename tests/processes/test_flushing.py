"""Flushing across processes: one process flushes for all, and a failed flush concerns all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from filechannel import ChannelOptions, CorruptRecordError, Durability, Offset, StorageError, open_channel
from filechannel._storage import open_stores
from tests.processes.tasks import SMALL, create, obey_until_a_flush_fails, obey_without_flushing
from tests.processes.test_changes import FSYNC, all_of, order
from tests.processes.workers import TIMEOUT, Child, Workers, until
from tests.storage.faults import FLUSHING, FaultyFiles, input_output_error


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> FaultyFiles:
    """The file system interface of this process, which records what was flushed."""
    files = FaultyFiles()
    monkeypatch.setattr(open_stores, "Files", lambda: files)
    return files


@contextmanager
def listening(files: FaultyFiles) -> Iterator[list[str]]:
    """Collect the names of what is flushed."""
    files.flushed.clear()
    names = list[str]()
    yield names
    names += [flushed.name for flushed in files.flushed]


def names_of(path: Path) -> set[str]:
    """Return the names of the segments."""
    return {name.name for name in (path / "segments").iterdir() if name.suffix == ".seg"}


@pytest.mark.parametrize("fate", ["alive", "ended", "killed"])
def test_a_flush_includes_what_other_processes_wrote(
    workers: Workers, path: Path, files: FaultyFiles, fate: str
) -> None:
    """After `flush` segments that other processes wrote are on disk, whichever of them died."""

    async def run() -> None:
        async with open_channel(path, bytes, options=SMALL) as channel:
            await channel.flush()
            writers = [workers.start(obey_without_flushing, path) for _ in range(2)]
            for number, writer in enumerate(writers):
                writer.meet()
                for _ in range(3 + number):
                    order(writer, "send", bytes(3000))
            for writer in writers:
                if fate == "killed":
                    workers.dismiss(writer)
                elif fate == "ended":
                    writer.send(("end",))
                    writer.result()
            assert len(names_of(path)) > 5
            with listening(files) as flushed:
                await channel.flush()
            assert names_of(path) | {"segments", "control"} <= set(flushed)
            assert channel.statistics().durable_offset == channel.statistics().write_offset
            with listening(files) as flushed:
                await channel.flush()
            assert len(set(flushed) & names_of(path)) <= 1, "flushed again"

    anyio.run(run)


def test_a_failed_flush_concerns_every_process(workers: Workers, path: Path) -> None:
    """After a failed flush under OS each flush in any process raises."""
    anyio.run(create, path)

    async def run() -> None:
        async with open_channel(path, bytes) as channel, channel.sender() as tx:
            other = workers.start(obey_until_a_flush_fails, path)
            other.meet()
            await channel.flush()
            order(other, "send", b"1")
            assert "StorageError" in failing(other, "flush")
            for _ in range(2):
                with pytest.raises(StorageError, match="flush failed"):
                    await channel.flush()
            await tx.send(b"2")
            order(other, "send", b"3")
            assert await all_of(channel) == [b"1", b"2", b"3"]
            assert channel.statistics().durable_offset < channel.statistics().write_offset

    anyio.run(run)


@pytest.mark.parametrize("fate", ["alive", "ended"])
def test_a_failed_flush_concerns_later_processes(workers: Workers, path: Path, files: FaultyFiles, fate: str) -> None:
    """A process that opens the channel after a failed flush gets an error, and never flushes that file."""
    anyio.run(create, path)
    other = workers.start(obey_until_a_flush_fails, path)
    other.meet()
    order(other, "send", b"1")
    failed = next(iter(names_of(path)))
    assert "StorageError" in failing(other, "flush")
    if fate == "ended":
        other.send(("end",))
        other.result()

    async def run() -> None:
        async with open_channel(path, bytes) as channel:
            with listening(files) as flushed:
                for _ in range(2):
                    with pytest.raises(StorageError, match="flush failed"):
                        await channel.flush()
            assert failed not in flushed

    anyio.run(run)


def failing(child: Child, *words: object) -> str:
    """Let a child do something in which a flush fails, and return its error."""
    child.send(words)
    assert child.receive() == "flushing"
    child.send("fail")
    return child.receive()


def test_a_sender_whose_message_was_lost_elsewhere_gets_an_error(
    workers: Workers, path: Path, files: FaultyFiles
) -> None:
    """A failed flush under FSYNC fails the senders of other processes that waited for it, and only those."""
    anyio.run(create, path, FSYNC)

    async def run() -> None:
        async with open_channel(path, bytes) as channel, channel.sender() as tx:
            await tx.send(b"before")
            other = workers.start(obey_until_a_flush_fails, path)
            other.meet()
            other.send(("send", b"theirs"))
            assert other.receive() == "flushing"
            failed = next(iter(names_of(path)))
            errors = list[StorageError]()

            async def send() -> None:
                with pytest.raises(StorageError, match="another process") as caught:
                    await tx.send(b"ours")
                errors.append(caught.value)

            appended = channel._store.control.tail(deferred=True).offset
            async with anyio.create_task_group() as group:
                group.start_soon(send)
                moved = lambda: channel._store.control.tail(deferred=True).offset > appended  # noqa: E731
                await run_sync(until, moved, "appended")
                other.send("fail")
                assert "StorageError" in other.receive()
            assert len(errors) == 1
            with listening(files) as flushed:
                await tx.send(b"after")
            assert failed not in flushed, "what the disk has refused once must not be flushed again"
            assert await all_of(channel) == [b"before", b"after"]
            order(other, "send", b"theirs again")
            assert await all_of(channel) == [b"before", b"after", b"theirs again"]
            assert channel.statistics().durable_offset == channel.statistics().write_offset

    anyio.run(run)


def test_every_waiter_gets_an_answer(
    workers: Workers, path: Path, files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No waiting process waits for ever after a failed flush of another one, even if its result is unknown."""
    anyio.run(create, path, FSYNC)

    async def run() -> None:
        async with open_channel(path, bytes) as channel, channel.sender() as tx:
            other = workers.start(obey_until_a_flush_fails, path)
            other.meet()
            assert "StorageError" in failing(other, "send", b"theirs")
            with monkeypatch.context() as broken:
                broken.setattr("filechannel._storage.durability.group_commit._is_lost", damaged)
                for _ in range(2):
                    with anyio.fail_after(TIMEOUT), pytest.raises(StorageError, match="it is not known what is lost"):
                        await tx.send(b"ours")
            await tx.send(b"again")
            assert files.failures == 0

    anyio.run(run)


def damaged(_control: object, _segments: object, offset: int) -> bool:
    """Fail as a look at a damaged segment does."""
    raise CorruptRecordError("x.seg", Offset(offset), "damaged")


def test_a_failed_flush_is_reported_to_other_processes(workers: Workers, path: Path, files: FaultyFiles) -> None:
    """A flush that fails in this process is raised by the next flush of another process."""
    anyio.run(create, path, ChannelOptions(durability=Durability.OS))

    async def run() -> None:
        async with open_channel(path, bytes) as channel, channel.sender() as tx:
            other = workers.start(obey_without_flushing, path)
            other.meet()
            await tx.send(b"1")
            files.fail(FLUSHING, input_output_error, once=True)
            with pytest.raises(StorageError):
                await channel.flush()
            other.send(("flush",))
            assert "StorageError" in other.receive()

    anyio.run(run)
