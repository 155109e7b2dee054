"""A channel that several processes maintain while others register, seek, receive, die and are stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from filechannel import Pin, blocking
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE
from tests.processes.maintainers import (
    SMALL,
    maintain_for_ever,
    payload,
    receive_in_order,
    register_and_leave,
    send_numbers,
    stop_while_maintaining,
)
from tests.processes.workers import Workers, until

SECONDS = 4.0
SOON = 60.0


def _make(path: Path) -> None:
    with blocking.open_channel(path, bytes, options=SMALL) as channel:
        channel.receiver("in order").close()


@pytest.mark.parametrize("seed", [1, 2])
def test_no_registered_consumer_finds_its_data_reclaimed(workers: Workers, path: Path, seed: int) -> None:
    """While two processes maintain a channel no consumer that registers or seeks back finds its messages reclaimed."""
    _make(path)
    sender = workers.start(send_numbers, path)
    steady = workers.start(receive_in_order, path, "in order")
    visitors = [workers.start(register_and_leave, path, f"visitor {number}", seed + number) for number in range(2)]
    maintainers = [workers.start(maintain_for_ever, path, idle) for idle in (0.0, 10.0)]
    for child in (sender, steady, *visitors, *maintainers):
        child.meet()
    for child in (sender, steady, *visitors):
        child.send("go")
    time.sleep(SECONDS)  # as many races as fit
    for visitor in visitors:
        visitor.send("end")
    for visitor in visitors:  # while the sender runs: each waits for one more message before it leaves
        came, went_back = visitor.result()
        assert came > 10, seed
        assert went_back > 0, seed
    for child in (sender, steady, *maintainers):
        child.send("end")
    assert sender.result() >= steady.result() > 0
    for maintainer in maintainers:
        maintainer.result()
    with blocking.open_channel(path, bytes) as channel:
        assert channel.statistics().maintenance.reclaimed_segments > 10
        assert channel.statistics().maintenance.errors == 0


def test_maintenance_may_be_killed_at_any_moment(workers: Workers, path: Path) -> None:
    """After a process is killed in its maintenance another one finishes it, and senders and receivers never notice."""
    _make(path)
    sender, steady = workers.start(send_numbers, path), workers.start(receive_in_order, path, "in order")
    for child in (sender, steady):
        child.meet()
    for child in (sender, steady):
        child.send("go")
    for life in range(15):
        maintainer = workers.start(maintain_for_ever, path, 0.0)
        maintainer.meet()
        time.sleep(0.01 * (life % 5))  # any moment will do
        maintainer.kill()
        workers.dismiss(maintainer)
    for child in (sender, steady):
        child.send("end")
    assert sender.result() >= steady.result() > 0
    with blocking.open_channel(path, bytes) as channel:
        with channel.receiver("in order") as rx:
            rx.receive_many_nowait(10**6)
        until(lambda: channel.statistics().segments <= 1)
        statistics = channel.statistics()
        assert statistics.maintenance.reclaimed_segments > 10
        assert statistics.maintenance.errors == 0


@pytest.mark.parametrize("where", ["storing", "flush", "unlink"])
def test_a_stopped_maintenance_process_blocks_no_other(workers: Workers, path: Path, where: str) -> None:
    """While a maintenance process is stopped without the writer lock others send, register, seek and receive."""
    with blocking.open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        MAINTENANCE.forget(channel._store)
        for number in range(60):
            tx.send(payload(number))
        channel.flush()
        with channel.receiver("fast") as fast:
            maintainer = workers.start(stop_while_maintaining, path, where)
            maintainer.meet()
            assert fast.receive_many_nowait(40) == [payload(number) for number in range(40)]
            maintainer.send("go")
            maintainer.until_stopped()
            maintenance = channel.statistics().maintenance
            assert maintenance.running
            assert maintenance.runner is not None
            assert maintenance.runner.pid == maintainer.pid
            with channel.receiver("new") as new:
                tx.send(payload(60))
                first = new.receive_record(timeout=SOON)
                assert first.value == payload(first.sequence)
                rest = new.receive_many(100, timeout=SOON)
                new.seek(first.offset)
                assert new.receive_many(100, timeout=SOON) == [first.value, *rest]
                assert fast.receive_many(100, timeout=SOON) == [payload(number) for number in range(40, 61)]
                new.seek(first.offset)
                maintainer.resume()
                maintainer.result()
                assert new.receive_many(100, timeout=SOON) == [first.value, *rest]
                assert channel.statistics().pinned_by in (Pin(reason="active"), None)
                assert not channel.statistics().maintenance.running


def test_a_decision_of_a_stopped_maintenance_process_holds(workers: Workers, path: Path) -> None:
    """After a maintenance process stops after its decision no consumer gets a position before it."""
    with blocking.open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        MAINTENANCE.forget(channel._store)
        for number in range(60):
            tx.send(payload(number))
        channel.flush()
        with channel.receiver("fast") as fast:
            maintainer = workers.start(stop_while_maintaining, path, "decided")
            maintainer.meet()
            fast.receive_many_nowait(40)
            maintainer.send("go")
            maintainer.until_stopped()
            oldest = channel.statistics().oldest_offset
            assert oldest > 0
            with channel.receiver("new") as new:
                assert new.read_offset == oldest
                record = new.receive_record(timeout=SOON)
                assert record.value == payload(record.sequence)
                with pytest.raises(ValueError, match="not in the channel"):
                    new.seek(0)  # type: ignore[arg-type]
                maintainer.resume()
                maintainer.result()
                assert channel.statistics().oldest_offset == oldest
                new.seek("earliest")
                assert new.receive_record(timeout=SOON) == record
