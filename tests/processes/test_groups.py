"""Members of a group in several processes: they share, die, stand still, come and go."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from anyio import EndOfStream

from filechannel.blocking import FileChannel, open_channel
from tests.processes.crew import PATIENCE, Child, Crew, until
from tests.processes.tasks import (
    SMALL,
    churn_in_group,
    hold_in_group,
    process_in_group,
    wait_in_group,
    work_in_group,
)

LONG, SHORT = 600.0, 0.3
NOTICED = 1.0
TRIES = 20
"""A busy machine may be late again and again; who is not told is so every time."""
"""Seconds after which the death of a member is known; more on a slow machine."""


def fill(channel: FileChannel[int], total: int, first: int = 0) -> None:
    """Send so many numbers."""
    with channel.sender() as tx:
        for number in range(first, first + total, 100):
            tx.send_many(range(number, min(number + 100, first + total)))


def holding(crew: Crew, path: Path, many: int, lease: float = LONG) -> tuple[Child, list[int]]:
    """Start a member that takes so many messages, and return it with them."""
    child = crew.start(hold_in_group, path, lease, many)
    return child, child.hear()


def order(member: Child, call: str, index: int) -> str:
    """Let a member settle one of its messages, and return what came of it."""
    member.tell((call, index))
    return member.hear()


def test_each_message_goes_to_one_member(crew: Crew, path: Path) -> None:
    """Of four processes at full speed, while more is sent; each gets its own in order, and none gets another's."""
    total = 20_000
    with open_channel(path, int, options=SMALL) as channel:
        members = [crew.start(work_in_group, path, LONG) for _ in range(4)]
        for member in members:
            member.meet()
        for member in members:
            member.tell("go")
        fill(channel, total)
        channel.seal()
        done = [member.result() for member in members]
        assert sorted(item for each in done for item in each) == [(number, 1) for number in range(total)]
        assert all(each == sorted(each) for each in done)
        assert channel.consumers()[0].next_sequence == total


def test_members_come_and_go(crew: Crew, path: Path) -> None:
    """Also with messages in hand: each is processed once, by somebody."""
    total, seed = 4000, secrets.randbits(32)
    with open_channel(path, int, options=SMALL) as channel:
        fill(channel, total)
        members = [crew.start(work_in_group, path, LONG, seed + number) for number in range(3)]
        for member in members:
            member.meet()
            member.tell("go")
        channel.seal()
        done = [item for member in members for item in member.result()]
        assert sorted(done) == [(number, 1) for number in range(total)], seed


def test_what_a_killed_member_had_comes_again_soon(crew: Crew, path: Path) -> None:
    """Long before its lease ends, once, with the attempt counted; what it had acked does not."""
    with open_channel(path, int) as channel, channel.group("workers", lease=LONG) as rx:
        fill(channel, 6)
        member, held = holding(crew, path, 4)
        assert held == [0, 1, 2, 3]
        assert order(member, "ack", 1) == "done"
        assert channel.consumers()[0].next_sequence == 0
        assert len(channel.consumers()[0].members) == 2
        assert [rx.receive(), rx.receive()] == [4, 5]
        assert order(member, "extend", 2) == "done"
        member.kill()
        begun = time.monotonic()
        again = [rx.receive_delivery(timeout=PATIENCE) for _ in range(3)]
        assert time.monotonic() - begun < LONG / 2
        assert [(each.value, each.attempt) for each in again] == [(0, 2), (2, 2), (3, 2)]
        assert rx.receive_many_nowait(1) == []
        assert len(channel.consumers()[0].members) == 1
        rx.ack(5)
        assert channel.consumers()[0].next_sequence == 6


def test_busy_members_notice_too(crew: Crew, path: Path) -> None:
    """Who never waits, since there is always something new, finds what the dead had within a second or so."""
    with open_channel(path, int) as channel, channel.group("workers", lease=LONG) as rx:
        fill(channel, 1)
        member, _ = holding(crew, path, 1)
        member.kill()
        begun, number = time.monotonic(), 1
        while True:
            fill(channel, 1, number)
            delivery = rx.receive_delivery()
            delivery.ack()
            if delivery.value == 0:
                break
            number += 1
            assert time.monotonic() - begun < PATIENCE
        assert delivery.attempt == 2


def test_somebody_who_waits_in_an_event_loop_notices_too(crew: Crew, path: Path) -> None:
    """Nobody wakes it but its own look."""
    with open_channel(path, int) as channel:
        fill(channel, 1)
        member, _ = holding(crew, path, 1)
        waiting = crew.start(wait_in_group, path)
        waiting.meet()
        member.kill()
        assert waiting.result()[:2] == (0, 2)
        assert channel.consumers()[0].next_sequence == 1


def test_a_member_that_stood_still_is_fenced(crew: Crew, path: Path) -> None:
    """Stopped past its lease it can ack, nack and extend nothing of what has moved on, and the rest it can."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 3)
        member, held = holding(crew, path, 3, SHORT)
        assert held == [0, 1, 2]
        member.stop()
        again = [rx.receive_delivery(timeout=PATIENCE) for _ in range(3)]
        assert [(each.value, each.attempt) for each in again] == [(0, 2), (1, 2), (2, 2)]
        member.go_on()
        for call, index in (("ack", 0), ("nack", 1), ("extend", 2), ("ack", 0)):
            assert order(member, call, index) == "LeaseExpiredError"
        assert rx.unack_count == 3
        again[0].ack()
        assert channel.consumers()[0].next_sequence == 1


def test_a_stopped_member_is_not_robbed_before_its_lease_ends(crew: Crew, path: Path) -> None:
    """It is alive."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 1)
        member, _ = holding(crew, path, 1, LONG)
        member.stop()
        with pytest.raises(TimeoutError):
            rx.receive(timeout=1.5 * NOTICED)
        member.go_on()
        assert order(member, "ack", 0) == "done"


def test_processing_keeps_its_lease(crew: Crew, path: Path) -> None:
    """In another process, far longer than the lease."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 1)
        member = crew.start(process_in_group, path, SHORT)
        assert member.hear() == 0
        with pytest.raises(TimeoutError):
            rx.receive(timeout=4 * SHORT)
        member.tell("enough")
        assert member.result() == 0
        assert channel.consumers()[0].next_sequence == 1


def test_a_nack_wakes_members_of_other_processes(crew: Crew, path: Path) -> None:
    """In an event loop, long before it would look by itself."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        for number in range(TRIES):
            fill(channel, 1, number)
            delivery = rx.receive_delivery()
            waiting = crew.start(wait_in_group, path)
            waiting.meet()
            until(lambda: channel.statistics().writers and len(channel.consumers()[0].members) == 2)
            time.sleep(0.2)  # it is most likely asleep by now; either way it has to be told
            begun = time.monotonic()
            delivery.nack()
            value, attempt, came = waiting.result()
            assert (value, attempt) == (number, 2)
            if came - begun < NOTICED / 2:
                break
        else:
            pytest.fail("nobody is told")


def test_the_last_ack_of_a_sealed_channel_ends_it_for_all(crew: Crew, path: Path) -> None:
    """Members of other processes are told that nothing will come again."""
    with open_channel(path, int) as channel, channel.group("workers") as rx:
        fill(channel, 1)
        delivery = rx.receive_delivery()
        channel.seal()
        members = [crew.start(work_in_group, path, LONG) for _ in range(2)]
        for member in members:
            member.meet()
            member.tell("go")
        assert not any(member.has_spoken for member in members)
        delivery.ack()
        assert [member.result() for member in members] == [[], []]
        with pytest.raises(EndOfStream):
            rx.receive()


@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.soak)])
def test_members_may_be_killed_at_any_moment(crew: Crew, path: Path, tmp_path: Path, rounds: int) -> None:
    """While others go on: what was acked never comes again, and everything else does, until somebody acks it."""
    seed = secrets.randbits(32)
    random, total, acked = Random(seed), 0, tmp_path / "acked"
    with open_channel(path, int, options=SMALL) as channel:
        members = [crew.start(churn_in_group, path, acked, number) for number in range(3)]
        for member in members:
            member.meet()
        for number in range(rounds):
            fill(channel, 500, total)
            total += 500
            time.sleep(random.uniform(0, 0.05))
            victim = random.randrange(len(members))
            members[victim].kill()
            crew.dismiss(members[victim])
            members[victim] = crew.start(churn_in_group, path, acked, 100 + number)
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
