"""The file of a group: a process that dies in the middle of a change leaves a state that the next one can continue."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Any

import pytest

from filechannel._errors import Busy
from filechannel._format import load_u32, load_u64, store_u32, store_u64
from filechannel._format.layout import (
    ENTRY_DEADLINE,
    GROUP_DUE,
    GROUP_ENTRIES,
    GROUP_HEAD,
    GROUP_INITIALIZED,
    GROUP_LOCK,
    GROUP_NEXT_SEQUENCE,
    GROUP_READY,
    GROUP_RING,
    GROUP_TAIL,
    LOCK_GENERATION_SHIFT,
    LOCK_SLOT_SHIFT,
)
from filechannel._format.read import group_ring, store_position
from filechannel._format.read.group_ring import Claim, Ring, entry_start
from filechannel._storage.store import Store
from filechannel._storage.system.os_calls import Files
from filechannel.blocking import GroupReceiver, open_channel
from tests.storage.boots import Boots
from tests.storage.channels import opened
from tests.storage.resources import descriptors_under

DEAD = 900 << LOCK_SLOT_SHIFT | 1 << LOCK_GENERATION_SHIFT
"""The lock word of a process that is not there."""
ALL = set(range(12))
LEASE = 10**12
SIZE = 9  # of a record that holds a small number


class KilledError(Exception):
    """The process dies here."""


def _die(_: int) -> bool:
    raise KilledError


class Dying(Ring):
    """A member in a process that dies: its changes are made here, and everything before each one is remembered."""

    def take(self, count: int) -> list[Claim]:
        """Have so many of the messages that come next."""
        claims = []
        for _ in range(count):
            claim = self.claim_ready() if self.ready else None
            if not isinstance(claim, Claim):
                offset, sequence = self.next
                claim = self.claim((offset, sequence), offset, offset + SIZE, sequence)
            assert isinstance(claim, Claim)
            claims.append(claim)
        return claims


class Moments:
    """What a file held before and after each store of the reference, as if its process had been killed there."""

    def __init__(self, content: mmap.mmap, monkeypatch: pytest.MonkeyPatch) -> None:
        self._content = content
        self.found: list[tuple[bytes, int]] = []
        self.settled = 0
        for name in ("store_u64", "swap_if_u32", "swap_if_u64", "add_u64", "take_word", "release_word"):
            monkeypatch.setattr(group_ring, name, self._watched(getattr(group_ring, name)))
        for module, name in ((group_ring, "ENTRY"), (store_position, "CURSOR")):
            monkeypatch.setattr(module, name, self._torn(getattr(module, name)))

    def remember(self) -> None:
        """Let this be a moment to die in."""
        moment = bytes(self._content), self.settled
        if not self.found or self.found[-1] != moment:
            self.found.append(moment)

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self.remember()
            result = call(*arguments)
            self.remember()
            return result

        return watched

    def _torn(self, struct: Struct) -> Any:
        remember = self.remember

        class Torn:
            """Fills a structure field by field."""

            unpack_from = struct.unpack_from
            size = struct.size

            @staticmethod
            def pack_into(buffer: memoryview, position: int, *fields: int) -> None:
                whole = struct.pack(*fields)
                for end in range(0, len(whole), 4):
                    buffer[position : position + end] = whole[:end]
                    remember()
                struct.pack_into(buffer, position, *fields)

        return Torn


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map the file of the group."""
    with (path / "consumers/g.group").open("r+b") as file:
        yield mmap.mmap(file.fileno(), 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A channel of twelve numbers, and a group that has taken none of them."""
    with open_channel(tmp_path / "channel", int) as channel:
        with channel.sender() as tx:
            tx.send_many(range(12))
        channel.group("g").close()
    return tmp_path / "channel"


def everything(rx: GroupReceiver[int]) -> list[int]:
    """Receive and ack all messages; if a check of the entries would be due later, do it now."""
    found, native = list[int](), rx._subscription.reader.native
    while True:
        while items := rx.receive_many_nowait(1):
            found += items
            rx.ack()
        if not native.next_due:
            return found
        content = rx._member._group.map
        for number in range(load_u64(content, GROUP_HEAD), load_u64(content, GROUP_TAIL)):
            store_u64(content, entry_start(number) + ENTRY_DEADLINE, 1)
        store_u64(content, GROUP_DUE, 0)


def test_a_member_may_die_at_every_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a member dies at any step nothing is lost, and no acked message is redelivered."""
    group = path / "consumers/g.group"
    steps: list[tuple[set[int], set[int]]] = []
    with mapped(path) as content:
        moments, dying = Moments(content, monkeypatch), Dying(content, DEAD, LEASE, lambda: None)
        settled = set[int]()

        def ack_or_nack(claim: Claim) -> None:
            steps.append((set(settled), {claim.sequence}))
            moments.settled = len(steps) - 1
            assert dying.acknowledge(claim.offset, claim.word)
            settled.add(claim.sequence)
            steps.append((set(settled), set()))
            moments.settled = len(steps) - 1

        steps.append((set(), set()))
        moments.remember()
        first = dying.take(4)
        for index in (0, 2, 1):
            ack_or_nack(first[index])
        dying.redeliver(first[3].offset, first[3].word, 0, counted=True)
        again = dying.take(3)
        assert [claim.attempt for claim in again] == [2, 1, 1]
        dying.redeliver(again[1].offset, again[1].word, 1, counted=True)
        ack_or_nack(again[2])
        ack_or_nack(again[0])
        moments.remember()
        monkeypatch.undo()
    assert len(moments.found) > 100
    for number, (moment, step) in enumerate(moments.found):
        group.write_bytes(moment)
        done, may_be = steps[step]
        with open_channel(path, int) as channel, channel.group("g") as rx:
            found = everything(rx)
            assert sorted(found) in (sorted(ALL - done), sorted(ALL - done - may_be)), number
            [consumer] = channel.consumers()
            assert (consumer.next_sequence, consumer.lag_messages) == (12, 0), number


def test_the_lock_is_taken_over_from_a_dead_process(path: Path) -> None:
    """After a lock holder died its entries are found, and the position and counts are computed again."""
    with mapped(path) as content:
        dying = Dying(content, DEAD, LEASE, lambda: None)
        dying.take(3)
        store_u64(content, GROUP_TAIL, 2)  # killed just before
        store_u64(content, GROUP_NEXT_SEQUENCE, 77)
        store_u64(content, GROUP_READY, 5)
        store_u32(content, GROUP_LOCK, DEAD)
    with open_channel(path, int) as channel, channel.group("g") as rx:
        deliveries = [rx.receive_delivery() for _ in range(12)]
        assert [(each.value, each.attempt) for each in deliveries[:4]] == [(0, 2), (1, 2), (2, 2), (3, 1)]
        rx.ack(12)
        assert channel.consumers()[0].next_sequence == 12


def test_a_live_lock_holder_is_not_robbed(path: Path) -> None:
    """While a live process holds the group lock, a call that may not wait raises."""
    with open_channel(path, int) as channel, channel.group("g") as rx:
        group = rx._member._group
        with mapped(path) as content:
            holder = channel._store.processes
            assert holder is not None
            rx.receive()
            store_u64(content, GROUP_DUE, 0)
            store_u32(content, GROUP_LOCK, holder.own_word ^ 1 << LOCK_SLOT_SHIFT)
            group._processes.is_alive = lambda _: True  # type: ignore[method-assign]
            with pytest.raises(Busy):
                group.redelivery.run(lambda: False)
            store_u32(content, GROUP_LOCK, 0)
            assert group.redelivery.run(lambda: False) == 0


def test_another_boot_begins_at_the_position(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reboot the group begins at its position, without acks out of order and with attempts from 1."""
    boots = Boots.install(monkeypatch)
    with open_channel(path, int) as channel, channel.group("g") as rx:
        deliveries = [rx.receive_delivery() for _ in range(5)]
        for number in (0, 1, 3):
            deliveries[number].ack()
        deliveries[2].nack()
    with mapped(path) as content:
        store_u32(content, GROUP_LOCK, DEAD)
    boots.again()
    with open_channel(path, int) as channel, channel.group("g") as rx:
        deliveries = [rx.receive_delivery() for _ in range(10)]
        assert [(each.value, each.attempt) for each in deliveries] == [(number, 1) for number in range(2, 12)]


def test_garbage_in_the_ring_is_forgotten_with_it(path: Path) -> None:
    """After another boot garbage in the ring is dropped, and every message after the position is delivered."""
    with mapped(path) as content:
        content[512:700] = b"\xff" * 188
        content[4096:] = b"\x09" * (len(content) - 4096)
        store_u64(content, GROUP_INITIALIZED, 0)
        store_u32(content, GROUP_LOCK, 0)
    with open_channel(path, int) as channel, channel.group("g") as rx:
        assert everything(rx) == list(range(12))


def test_numbers_wrap_around_the_ring(path: Path) -> None:
    """Entry numbers wrap around the ring repeatedly while the oldest message stays unacked."""
    with open_channel(path, int) as channel, channel.group("g") as rx, channel.sender() as tx:
        rx.ack(len(rx.receive_many(20)))
        tx.send_many(range(3 * GROUP_ENTRIES))
        for first in range(0, 3 * GROUP_ENTRIES, GROUP_ENTRIES):
            left, *others = [rx.receive_delivery() for _ in range(GROUP_ENTRIES)]
            assert [left.value, others[-1].value] == [first, first + GROUP_ENTRIES - 1]
            for delivery in reversed(others):
                delivery.ack()
            assert (rx.receive_many_nowait(1), channel.consumers()[0].next_sequence) == ([], 12 + first)
            left.ack()
        with mapped(path) as content:
            assert load_u64(content, GROUP_HEAD) == load_u64(content, GROUP_TAIL) == 12 + 3 * GROUP_ENTRIES
            assert load_u32(content, GROUP_LOCK) == 0
        assert channel.consumers()[0].lag_messages == 0


def test_a_process_killed_during_a_check_is_followed_by_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the entries whose process is killed is due again within a second, whatever its result."""
    with open_channel(path, int) as channel, channel.group("g", lease=LEASE / 1e9) as rx, mapped(path) as content:
        rx.receive()
        group = rx._member._group
        store_u64(content, GROUP_DUE, 0)
        with monkeypatch.context() as patch:
            patch.setattr(group._processes, "is_alive", _die)
            with pytest.raises(KilledError):
                group.redelivery.run(lambda: True)
        due = load_u64(content, GROUP_DUE)
        assert due <= time.monotonic_ns() + group_ring.LIVENESS_CHECK_NS
        rx.ack()
        store_u64(content, GROUP_DUE, 0)
        assert group.redelivery.run(lambda: True) == 0
        assert rx._subscription.reader.native.next_due == 0


def test_a_short_delay_does_not_end_the_lease_it_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check during a nack with a delay does not count the message as one whose lease expired."""
    with open_channel(path, int) as channel, channel.group("g") as rx, mapped(path) as content:
        group, seen = rx._member._group, list[int]()
        member = Ring(content, DEAD, LEASE, lambda: None)
        claim = member.claim(member.next, 0, SIZE, 0)
        assert isinstance(claim, Claim)

        def look(call: Callable[..., Any]) -> Callable[..., Any]:
            def looking(buffer: Any, position: int, *values: int) -> Any:
                if position >= GROUP_RING:
                    with monkeypatch.context() as patch:
                        patch.setattr(group._processes, "is_alive", lambda _: True)
                        store_u64(content, GROUP_DUE, 0)
                        seen.append(group.redelivery.run(lambda: True))
                return call(buffer, position, *values)

            return looking

        for delay in (-1, 1):
            due = time.monotonic_ns() + delay * 10 * LEASE if delay > 0 else time.monotonic_ns()
            with monkeypatch.context() as patch:
                patch.setattr(group_ring, "swap_if_u64", look(group_ring.swap_if_u64))
                assert member.redeliver(claim.offset, claim.word, due, counted=True)
            store_u64(content, entry_start(claim.number) + ENTRY_DEADLINE, 0)
            store_u64(content, GROUP_DUE, 0)
            group.redelivery.run(lambda: True)
            claim = member.claim_ready()
            assert isinstance(claim, Claim)
        assert sum(seen) == 0
        assert claim.attempt == 3


class FailingFiles(Files):
    """Fails at the n-th call that opens, locks, allocates, writes to or maps a file of a consumer."""

    def __init__(self) -> None:
        self.left = -1

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KilledError


def _failing(name: str) -> Callable[..., object]:
    def method(self: FailingFiles, *arguments: object, **options: object) -> object:
        self._count()
        return getattr(Files, name)(self, *arguments, **options)

    return method


for _name in ("open", "lock", "allocate", "write_at", "map", "exists", "identity"):
    setattr(FailingFiles, _name, _failing(_name))


def test_joining_may_fail_at_every_step(tmp_path: Path) -> None:
    """If joining fails at any step nothing stays locked or open, and the next member joins."""
    files, step, joined = FailingFiles(), 0, False
    with opened(tmp_path / "channel", files=files) as store:
        store.log.append([b"a", b"b"])
        while not joined:
            step += 1
            joined = _joins(store, files, step)
            assert descriptors_under(tmp_path / "channel/consumers") == 0, step
            _join_and_remove(store)
    assert step > 8


def _joins(store: Store, files: FailingFiles, step: int) -> bool:
    assert store.processes is not None
    try:
        files.left = step
        group = store.cursors.join("g", store.processes)
    except KilledError:
        return False
    finally:
        files.left = -1
    store.cursors.leave_after_failed_join(group)
    return True


def _join_and_remove(store: Store) -> None:
    assert store.processes is not None
    group = store.cursors.join("g", store.processes)
    group.begin(store.lookup.earliest())
    assert (group.members, group.position and group.position.sequence) == (1, 0)
    store.cursors.remove(group)
    assert store.consumer_listing.registrations() == []


def test_an_idle_group_is_not_due(tmp_path: Path) -> None:
    """When the message with the next deadline is acked, the check that was due for it is not repeated."""
    with open_channel(tmp_path / "channel", int) as channel, channel.group("workers") as group:
        channel.sender().send(1)
        group.receive_delivery().ack()
        content = group._member._group.map
        store_u64(content, GROUP_DUE, 1)
        with pytest.raises(TimeoutError):
            group.receive_delivery(timeout=0)
        assert load_u64(content, GROUP_DUE) == (1 << 64) - 1
