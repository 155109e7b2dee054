"""A channel that is maintained by several processes while others register, seek, receive, die and stand still."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from filechannel import Pin, blocking
from filechannel._maintenance.worker import WORKER
from tests.processes.caretakers import (
    SMALL,
    come_and_go,
    maintain_for_ever,
    payload,
    receive_in_order,
    send_numbers,
    stop_while_maintaining,
)
from tests.processes.crew import Crew, until

SECONDS = 4.0
SOON = 5.0


def _make(path: Path) -> None:
    with blocking.open_channel(path, bytes, options=SMALL) as channel:
        channel.receiver("in order").close()


@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_who_is_registered_finds_its_data_gone(crew: Crew, path: Path, seed: int) -> None:
    """Two maintain the channel as fast as they can, while others come, go back, receive and leave."""
    _make(path)
    sender = crew.start(send_numbers, path)
    steady = crew.start(receive_in_order, path, "in order")
    visitors = [crew.start(come_and_go, path, f"visitor {number}", seed + number) for number in range(2)]
    caretakers = [crew.start(maintain_for_ever, path, idle) for idle in (0.0, 10.0)]
    for child in (sender, steady, *visitors, *caretakers):
        child.meet()
    for child in (sender, steady, *visitors):
        child.tell("go")
    time.sleep(SECONDS)  # as many races as fit
    for visitor in visitors:
        visitor.tell("end")
    for visitor in visitors:  # while somebody sends: each waits for one more message before it leaves
        came, went_back = visitor.result()
        assert came > 10, seed
        assert went_back > 0, seed
    for child in (sender, steady, *caretakers):
        child.tell("end")
    assert sender.result() >= steady.result() > 0
    for caretaker in caretakers:
        caretaker.result()
    with blocking.open_channel(path, bytes) as channel:
        assert channel.statistics().maintenance.reclaimed_segments > 10
        assert channel.statistics().maintenance.errors == 0


def test_maintenance_may_be_killed_at_any_moment(crew: Crew, path: Path) -> None:
    """Again and again: what it began is finished by another, and those who send and receive never notice."""
    _make(path)
    sender, steady = crew.start(send_numbers, path), crew.start(receive_in_order, path, "in order")
    for child in (sender, steady):
        child.meet()
    for child in (sender, steady):
        child.tell("go")
    for life in range(15):
        caretaker = crew.start(maintain_for_ever, path, 0.0)
        caretaker.meet()
        time.sleep(0.01 * (life % 5))  # any moment will do
        caretaker.kill()
        crew.dismiss(caretaker)
    for child in (sender, steady):
        child.tell("end")
    assert sender.result() >= steady.result() > 0
    with blocking.open_channel(path, bytes) as channel:
        with channel.receiver("in order") as rx:
            rx.receive_many_nowait(10**6)
        until(lambda: channel.statistics().segments <= 1)
        statistics = channel.statistics()
        assert statistics.maintenance.reclaimed_segments > 10
        assert statistics.maintenance.errors == 0


@pytest.mark.parametrize("where", ["storing", "flush", "unlink"])
def test_a_stopped_caretaker_holds_nobody_up(crew: Crew, path: Path, where: str) -> None:
    """Wherever it stands still without the writer word: others send, register, seek and receive meanwhile."""
    with blocking.open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        WORKER.forget(channel._store)
        for number in range(60):
            tx.send(payload(number))
        channel.flush()
        with channel.receiver("fast") as fast:
            caretaker = crew.start(stop_while_maintaining, path, where)
            caretaker.meet()
            assert fast.receive_many_nowait(40) == [payload(number) for number in range(40)]
            caretaker.tell("go")
            caretaker.until_stopped()
            maintenance = channel.statistics().maintenance
            assert maintenance.running
            assert maintenance.runner is not None
            assert maintenance.runner.pid == caretaker.pid
            begun = time.monotonic()
            with channel.receiver("new") as new:
                tx.send(payload(60))
                first = new.receive_record(timeout=SOON)
                assert first.value == payload(first.sequence)
                rest = new.receive_many(100, timeout=SOON)
                new.seek(first.offset)
                assert new.receive_many(100, timeout=SOON) == [first.value, *rest]
                assert fast.receive_many(100, timeout=SOON) == [payload(number) for number in range(40, 61)]
                assert time.monotonic() < begun + SOON
                new.seek(first.offset)
                caretaker.go_on()
                caretaker.result()
                assert new.receive_many(100, timeout=SOON) == [first.value, *rest]
                assert channel.statistics().pinned_by in (Pin(reason="active"), None)
                assert not channel.statistics().maintenance.running


def test_a_decision_of_a_stopped_caretaker_holds(crew: Crew, path: Path) -> None:
    """Nobody is put before what is decided to go, although it was not written down."""
    with blocking.open_channel(path, bytes, options=SMALL) as channel, channel.sender() as tx:
        WORKER.forget(channel._store)
        for number in range(60):
            tx.send(payload(number))
        channel.flush()
        with channel.receiver("fast") as fast:
            caretaker = crew.start(stop_while_maintaining, path, "decided")
            caretaker.meet()
            fast.receive_many_nowait(40)
            caretaker.tell("go")
            caretaker.until_stopped()
            oldest = channel.statistics().oldest_offset
            assert oldest > 0
            with channel.receiver("new") as new:
                assert new.read_offset == oldest
                record = new.receive_record(timeout=SOON)
                assert record.value == payload(record.sequence)
                with pytest.raises(ValueError, match="not in the channel"):
                    new.seek(0)  # type: ignore[arg-type]
                caretaker.go_on()
                caretaker.result()
                assert channel.statistics().oldest_offset == oldest
                new.seek("earliest")
                assert new.receive_record(timeout=SOON) == record
