"""Consumers of other processes: their owners, what happens when those are killed, and waiting for them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import filechannel
from filechannel import ConsumerBusyError, UnknownConsumerError
from filechannel._storage.consumers.cursor_file_format import file_name, read_departure
from filechannel.blocking import FileChannel, open_channel
from tests.processes.tasks import SMALL
from tests.processes.workers import Link, Workers, until
from tests.storage.clocks import Clock


def own(link: Link, path: Path, name: str, expires: float | None) -> None:
    """Own a name, and take as many messages as the test says, until it says None."""
    with open_channel(path, bytes, create=False) as channel:
        with channel.receiver(name, expires=expires) as rx:
            link.send(rx.read_offset)
            while (count := link.receive()) is not None:
                link.send(rx.receive_many(count))


def remove_and_register(link: Link, path: Path, rounds: int) -> int:
    """Remove a name and register it again, as others do; return how often it was there to be removed."""
    removed = 0
    with open_channel(path, bytes, create=False) as channel:
        link.meet()
        for _ in range(rounds):
            try:
                channel.remove_consumer("name")
                removed += 1
            except (UnknownConsumerError, ConsumerBusyError):
                pass
            try:
                channel.receiver("name").close()
            except ConsumerBusyError:
                pass
            channel.consumers()
    return removed


def list_for_ever(link: Link, path: Path) -> None:
    """List the consumers, which removes the expired ones, until the test ends it."""
    with open_channel(path, bytes, create=False) as channel:
        link.send("ready")
        while not link.has_message:
            channel.consumers()


def test_the_owner_of_another_process_is_named(workers: Workers, path: Path) -> None:
    """The owner of a name in another process is listed by its pid and not removed; after its death the name is free."""
    with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        tx.send_many([b"1", b"2", b"3"])
        other = workers.start(own, path, "name", None)
        other.receive()
        other.send(1)
        assert other.receive() == [b"1"]
        [found] = channel.consumers()
        assert found.owner is not None
        assert (found.owner.pid, found.lag_messages) == (other.pid, 2)
        with pytest.raises(ConsumerBusyError) as caught:
            channel.remove_consumer("name")
        assert caught.value.pid == other.pid
        other.kill()
        [found] = channel.consumers()
        assert (found.owner, found.lag_messages) == (None, 2)
        with channel.receiver("name") as rx:
            assert rx.receive_many_nowait(5) == [b"2", b"3"]
        channel.remove_consumer("name")
        assert channel.consumers() == ()


def test_names_of_other_processes_appear_and_disappear(workers: Workers, path: Path) -> None:
    """The list of consumers shows what other processes register and remove."""
    with open_channel(path, bytes, options=SMALL) as channel:
        assert channel.consumers() == ()
        other = workers.start(own, path, "theirs", None)
        other.receive()
        assert [consumer.name for consumer in channel.consumers()] == ["theirs"]
        other.send(None)
        other.result()
        remover = workers.start(remove_and_register, path, 0)
        remover.meet()
        channel.remove_consumer("theirs")
        assert channel.consumers() == ()


def test_a_killed_owner_expires_from_when_that_was_noticed(
    workers: Workers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expiry time of a killed owner starts when a check notices its death, and a stopped owner is alive."""
    with open_channel(path, bytes, options=SMALL) as channel:
        other = workers.start(own, path, "name", 60)
        other.receive()
        clock = Clock.install(monkeypatch)
        other.stop()
        clock.pass_seconds(1000)
        assert [consumer.name for consumer in channel.consumers()] == ["name"]
        other.kill()
        clock.pass_seconds(1000)
        assert [consumer.name for consumer in channel.consumers()] == ["name"]
        assert read_departure((path / "consumers" / file_name("name")).read_bytes()) == clock.now
        clock.pass_seconds(59)
        assert [consumer.name for consumer in channel.consumers()] == ["name"]
        clock.pass_seconds(1)
        assert channel.consumers() == ()


def test_a_new_owner_is_not_mistaken_for_the_one_that_was_killed(
    workers: Workers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The death of one owner does not count for the next owner, which is killed later."""
    with open_channel(path, bytes, options=SMALL) as channel:
        clock = Clock.install(monkeypatch)
        for _ in range(3):
            other = workers.start(own, path, "name", 60)
            other.receive()
            other.kill()
            assert len(channel.consumers()) == 1
            clock.pass_seconds(50)
            assert len(channel.consumers()) == 1
        clock.pass_seconds(10)
        assert channel.consumers() == ()


@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_join_waits_for_another_process(workers: Workers, path: Path, backend: str) -> None:
    """`join` returns when the consumer of another process has read everything, and raises when it is removed."""
    with open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        other = workers.start(own, path, "name", None)
        other.receive()
        tx.send_many([b"1", b"2", b"3"])
        joiner = workers.start(join, path, "name", backend=backend)
        joiner.meet()
        other.send(2)
        assert other.receive() == [b"1", b"2"]
        assert not joiner.has_message
        other.send(1)
        assert other.receive() == [b"3"]
        assert joiner.result() is None


async def join(link: Link, path: Path, name: str) -> None:
    """Wait for a consumer."""
    async with filechannel.open_channel(path, bytes, create=False) as channel:
        async with anyio.create_task_group() as group:
            group.start_soon(channel.join, name)
            await anyio.wait_all_tasks_blocked()
            link.send("ready")


def test_removing_and_registering_at_once(workers: Workers, path: Path) -> None:
    """Three processes that remove and register one name, while another lists, never fail and leave one file."""
    with open_channel(path, bytes, options=SMALL) as channel:
        lister = workers.start(list_for_ever, path)
        lister.meet()
        others = [workers.start(remove_and_register, path, 300) for _ in range(3)]
        for other in others:
            other.meet()
        for other in others:
            other.send("go")
        # Most attempts meet a process that has the name; what counts is that none fails in another way.
        assert sum(other.result() for other in others) >= 100
        lister.send("end")
        lister.result()
        channel.receiver("name").close()
        assert _names(channel) == ["name"]
        assert [file.name for file in (path / "consumers").iterdir()] == [file_name("name")]


def _names(channel: FileChannel[bytes]) -> list[str]:
    return [consumer.name for consumer in channel.consumers()]


def test_checking_a_name_does_not_make_it_busy(workers: Workers, path: Path) -> None:
    """A check of expired consumers does not refuse an owner that registers at the same time."""
    with open_channel(path, bytes, options=SMALL) as channel:
        listers = [workers.start(list_for_ever, path) for _ in range(2)]
        for lister in listers:
            lister.meet()
        for _ in range(200):
            channel.receiver("name", expires=1e-6).close()
        for lister in listers:
            lister.send("end")
            lister.result()
        until(lambda: channel.consumers() == (), "it has expired")
