"""Members of a group in several processes: they share, die, are stopped, join and leave."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from anyio import EndOfStream

from filechannel._format import load_u64
from filechannel._format.layout import GROUP_DUE
from filechannel.blocking import FileChannel, open_channel
from tests.processes.tasks import (
    SMALL,
    churn_in_group,
    hold_in_group,
    process_in_group,
    wait_in_group,
    work_in_group,
)
from tests.processes.workers import TIMEOUT, Child, Workers, until

LONG, SHORT = 600.0, 0.3
NOTICED = 1.0
"""Seconds after which the death of a member is known; more on a slow machine."""
TRIES = 20
"""A busy machine may be late repeatedly; a member that is not woken is late every time."""


def fill(channel: FileChannel[int], total: int, first: int = 0) -> None:
    """Send so many numbers."""
    with channel.sender() as tx:
        for number in range(first, first + total, 100):
            tx.send_many(range(number, min(number + 100, first + total)))


def holding(workers: Workers, path: Path, many: int, lease: float = LONG) -> tuple[Child, list[int]]:
    """Start a member that takes so many messages, and return it with them."""
    child = workers.start(hold_in_group, path, lease, many)
    return child, child.receive()


def order(member: Child, call: str, index: int) -> str:
    """Let a member ack, nack or extend one of its messages, and return the result."""
    member.send((call, index))
    return member.receive()


def test_each_message_is_delivered_to_one_member(workers: Workers, path: Path) -> None:
    """Each message is delivered to one of four processes, to each in order, while more are sent."""
    total = 20_000
    with open_channel(path, int, options=SMALL) as channel:
        members = [workers.start(work_in_group, path, LONG) for _ in range(4)]
        for member in members:
            member.meet()
        for member in members:
            member.send("go")
        fill(channel, total)
        channel.seal()
        done = [member.result() for member in members]
        assert sorted(item for each in done for item in each) == [(number, 1) for number in range(total)]
        assert all(each == sorted(each) for each in done)
        assert channel.consumers()[0].next_sequence == total


def test_members_join_and_leave(workers: Workers, path: Path) -> None:
    """While members join and leave, with outstanding messages, each message is processed once."""
    total, seed = 4000, secrets.randbits(32)
    with open_channel(path, int, options=SMALL) as channel:
        fill(channel, total)
        members = [workers.start(work_in_group, path, LONG, seed + number) for number in range(3)]
        for member in members:
            member.meet()
            member.send("go")
        channel.seal()
        done = [item for member in members for item in member.result()]
        assert sorted(done) == [(number, 1) for number in range(total)], seed


def test_the_messages_of_a_killed_member_are_redelivered_soon(workers: Workers, path: Path) -> None:
    """The messages of a killed member are redelivered once, long before their lease expires, and acked ones are not."""
    with open_channel(path, int) as channel, channel.group("workers", lease=LONG) as rx:
        fill(channel, 6)
        member, held = holding(workers, path, 4)
        assert held == [0, 1, 2, 3]
        assert order(member, "ack", 1) == "done"
        assert channel.consumers()[0].next_sequence == 0
        assert len(channel.consumers()[0].members) == 2
        assert [rx.receive(), rx.receive()] == [4, 5]
        assert order(member, "extend", 2) == "done"
        member.kill()
        started = time.monotonic()
        again = [rx.receive_delivery(timeout=TIMEOUT) for _ in range(3)]
        assert time.monotonic() - started < LONG / 2
        assert [(each.value, each.attempt) for each in again] == [(0, 2), (2, 2), (3, 2)]
        assert rx.receive_many_nowait(1) == []
        assert len(channel.consumers()[0].members) == 1
        rx.ack(5)
        assert channel.consumers()[0].next_sequence == 6


def test_busy_members_notice_too(workers: Workers, path: Path) -> None:
    """A member that never waits gets the messages of a dead member within about a second."""
    with open_channel(path, int) as channel, channel.group("workers", lease=LONG) as rx:
        fill(channel, 1)
        member, _ = holding(workers, path, 1)
        member.kill()
        started, number = time.monotonic(), 1
        while True:
            fill(channel, 1, number)
            delivery = rx.receive_delivery()
            delivery.ack()
            if delivery.value == 0:
                break
            number += 1
            assert time.monotonic() - started < TIMEOUT
        assert delivery.attempt == 2


def test_a_member_that_waits_in_an_event_loop_notices_too(workers: Workers, path: Path) -> None:
    """A member that waits in an event loop checks for dead members, although no process wakes it."""
    with open_channel(path, int) as channel:
        fill(channel, 1)
        member, _ = holding(workers, path, 1)
        waiting = workers.start(wait_in_group, path)
        waiting.meet()
        member.kill()
        assert waiting.result()[:2] == (0, 2)
        assert channel.consumers()[0].next_sequence == 1


def test_a_member_that_was_stopped_is_fenced(workers: Workers, path: Path) -> None:
    """A member that was stopped beyond its lease can ack only messages that were not redelivered."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 3)
        member, held = holding(workers, path, 3, SHORT)
        assert held == [0, 1, 2]
        member.stop()
        again = [rx.receive_delivery(timeout=TIMEOUT) for _ in range(3)]
        assert [(each.value, each.attempt) for each in again] == [(0, 2), (1, 2), (2, 2)]
        member.resume()
        for call, index in (("ack", 0), ("nack", 1), ("extend", 2), ("ack", 0)):
            assert order(member, call, index) == "LeaseExpiredError"
        assert rx.unack_count == 3
        again[0].ack()
        assert channel.consumers()[0].next_sequence == 1


def test_a_stopped_member_is_not_robbed_before_its_lease_ends(workers: Workers, path: Path) -> None:
    """The messages of a stopped member are not redelivered before its lease expires."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 1)
        member, _ = holding(workers, path, 1, LONG)
        member.stop()
        with pytest.raises(TimeoutError):
            rx.receive(timeout=1.5 * NOTICED)
        member.resume()
        assert order(member, "ack", 0) == "done"


def test_processing_keeps_its_lease(workers: Workers, path: Path) -> None:
    """`processing` in another process keeps its message for longer than the lease."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 1)
        member = workers.start(process_in_group, path, SHORT)
        assert member.receive() == 0
        with pytest.raises(TimeoutError):
            rx.receive(timeout=4 * SHORT)
        member.send("enough")
        assert member.result() == 0
        assert channel.consumers()[0].next_sequence == 1


def test_a_nack_wakes_members_of_other_processes(workers: Workers, path: Path) -> None:
    """A nack wakes a member in an event loop of another process before it would check."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        for number in range(TRIES):
            fill(channel, 1, number)
            delivery = rx.receive_delivery()
            waiting = workers.start(wait_in_group, path)
            waiting.meet()
            until(lambda: channel.statistics().writers and len(channel.consumers()[0].members) == 2)
            words = rx._member._group.map
            due = load_u64(words, GROUP_DUE)
            # A tenth of a second after the member has checked for dead members, it sleeps, and the next check is far.
            until(lambda: due < load_u64(words, GROUP_DUE) <= time.monotonic_ns() + 0.9 * NOTICED * 1e9)  # noqa: B023
            started = time.monotonic()
            delivery.nack()
            value, attempt, came = waiting.result()
            assert (value, attempt) == (number, 2)
            if came - started < NOTICED / 2:
                break
        else:
            pytest.fail("no member is notified")


def test_the_last_ack_of_a_sealed_channel_ends_it_for_all(workers: Workers, path: Path) -> None:
    """The last ack of a sealed channel ends the stream for members of other processes."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 1)
        delivery = rx.receive_delivery()
        channel.seal()
        members = [workers.start(work_in_group, path, LONG) for _ in range(2)]
        for member in members:
            member.meet()
            member.send("go")
        assert not any(member.has_message for member in members)
        delivery.ack()
        assert [member.result() for member in members] == [[], []]
        with pytest.raises(EndOfStream):
            rx.receive()


@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.soak)])
def test_members_may_be_killed_at_any_moment(workers: Workers, path: Path, tmp_path: Path, rounds: int) -> None:
    """After members are killed at any moment acked messages are not redelivered, and the others are until they are
    acked.
    """
    seed = secrets.randbits(32)
    random, total, acked = Random(seed), 0, tmp_path / "acked"
    with open_channel(path, int, options=SMALL) as channel:
        members = [workers.start(churn_in_group, path, acked, number) for number in range(3)]
        for member in members:
            member.meet()
        for number in range(rounds):
            fill(channel, 500, total)
            total += 500
            time.sleep(random.uniform(0, 0.05))
            victim = random.randrange(len(members))
            members[victim].kill()
            workers.dismiss(members[victim])
            members[victim] = workers.start(churn_in_group, path, acked, 100 + number)
            members[victim].meet()
        until(lambda: channel.consumers()[0].lag_messages == 0, f"all acked, seed {seed}")
        for member in members:
            member.kill()
        lines = [line for line in acked.read_text().split("\n") if line]
        tried, done = {int(line) for line in lines if line.isdigit()}, Counter(line for line in lines if "!" in line)
        assert tried == set(range(total)), seed
        assert set(done.values()) == {1}, seed
        with channel.group("workers") as rx:
            assert rx.receive_many_nowait(10) == [], seed
