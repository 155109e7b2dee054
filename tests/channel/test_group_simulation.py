"""A group against a model of it: a list of messages, the member that has each, and how often it was delivered."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from anyio import WouldBlock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from filechannel import AckError, ChannelOptions, ConsumerBusyError, Delivery, LeaseExpiredError, Retention
from filechannel._format import load_u64, store_u64
from filechannel._format.layout import ENTRY_DEADLINE, ENTRY_OUT, ENTRY_STATE, GROUP_DUE, GROUP_HEAD, GROUP_TAIL
from filechannel._format.read.group_ring import entry_start
from filechannel._storage.consumers.cursors import read_position
from filechannel.blocking import FileChannel, GroupReceiver, open_channel

WAITING, DELAYED = -1, -2
FOREVER = 1e6


@dataclass
class Model:
    """What the members should see."""

    sent: int = 0
    oldest: int = 0
    front: int = 0
    """The number of the next message that is new."""
    held: dict[int, int] = field(default_factory=dict)
    """The members of outstanding messages: the number of a member, or none."""
    attempts: dict[int, int] = field(default_factory=dict)
    order: dict[int, list[int]] = field(default_factory=dict)
    """What each member has, in the order in which it was handed out."""

    @property
    def stored(self) -> int:
        """The number of the group's position."""
        return min(self.held, default=self.front)

    def coming(self, many: int) -> list[int]:
        """The next message, for any member."""
        waiting = sorted(number for number, holder in self.held.items() if holder == WAITING)
        return (waiting + list(range(self.front, self.sent)))[:many]

    def take(self, member: int, numbers: list[int]) -> None:
        """They are handed out."""
        for number in numbers:
            self.attempts.setdefault(number, 1)
            self.held[number] = member
            self.order.setdefault(member, []).append(number)
            self.front = max(self.front, number + 1)

    def redeliver(self, number: int, state: int = WAITING, *, counted: bool = True) -> None:
        """The message is redelivered."""
        self.order[self.held[number]].remove(number)
        self.held[number] = state
        self.attempts[number] += counted

    def acknowledge(self, number: int) -> None:
        """The message is acked."""
        self.order[self.held[number]].remove(number)
        del self.held[number], self.attempts[number]

    def leave(self, member: int) -> None:
        """The messages of a member are redelivered."""
        for number in list(self.order.pop(member, [])):
            self.held[number] = WAITING

    def forget(self, front: int) -> None:
        """No member has a message."""
        self.held, self.attempts, self.order, self.front = {}, {}, {}, front


class Simulation(RuleBasedStateMachine):
    """Does the same to a channel and to its model, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.model = Model()
        self.deliveries: list[tuple[int, Delivery[int]]] = []
        self.settled: list[Delivery[int]] = []
        self.lost: list[Delivery[int]] = []
        self.joined = 0
        self.open()

    def open(self) -> None:
        """Open the channel, and join."""
        keep = Retention(after_consumed="keep")  # what was acked can be sought again
        options = ChannelOptions(segment_size=4096, retention=keep)
        self.channel: FileChannel[int] = open_channel(self.directory / "channel", int, options=options)
        self.members: dict[int, GroupReceiver[int]] = {}
        self.join()

    def one(self, data: st.DataObject) -> tuple[int, GroupReceiver[int]]:
        """Return one of the members."""
        return data.draw(st.sampled_from(sorted(self.members.items())), label="member")

    def outdate(self) -> None:
        """Sort out deliveries of what its member does not have any more."""
        self.settled += [each for member, each in self.deliveries if not self.has(member, each)]
        self.deliveries = [(member, each) for member, each in self.deliveries if self.has(member, each)]

    def has(self, member: int, delivery: Delivery[int]) -> bool:
        """Return whether a member still has its delivery."""
        return self.model.held.get(delivery.value) == member and (
            self.model.attempts[delivery.value] == delivery.attempt
        )

    @rule()
    def join(self) -> None:
        """Become one more."""
        if len(self.members) < 4:
            self.members[self.joined] = self.channel.group("g")
            self.joined += 1

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """One member less: its messages are redelivered, as if they had not been handed out."""
        member, rx = self.one(data)
        rx.close()
        del self.members[member]
        self.model.leave(member)
        self.deliveries = [pair for pair in self.deliveries if pair[0] != member]
        self.settled, self.lost = [], []

    @rule(count=st.one_of(st.integers(1, 5), st.just(400)))
    def send(self, count: int) -> None:
        """Send numbers."""
        with self.channel.sender() as tx:
            tx.send_many(range(self.model.sent, self.model.sent + count))
        self.model.sent += count

    @rule(data=st.data(), many=st.one_of(st.integers(1, 6), st.just(500)))
    def receive(self, data: st.DataObject, many: int) -> None:
        """Receive what can be acked by number only."""
        member, rx = self.one(data)
        room = 4096 - (self.model.front - self.model.stored)
        expected = [n for n in self.model.coming(many) if n < self.model.front + room]
        assert rx.receive_many_nowait(many) == expected
        self.model.take(member, expected)

    @rule(data=st.data())
    def receive_delivery(self, data: st.DataObject) -> None:
        """Receive a delivery that can be acked separately."""
        member, rx = self.one(data)
        expected = self.model.coming(1)
        if not expected or (expected[0] == self.model.front and self.model.front - self.model.stored >= 4096):
            with pytest.raises(WouldBlock):
                rx.receive_nowait()
            return
        delivery = rx.receive_delivery()
        self.model.take(member, expected)
        assert [delivery.value] == [delivery.sequence] == expected
        assert delivery.attempt == self.model.attempts[delivery.value]
        self.deliveries.append((member, delivery))

    @rule(data=st.data(), count=st.integers(1, 5))
    def ack(self, data: st.DataObject, count: int) -> None:
        """Ack what a member was given first, or too many."""
        member, rx = self.one(data)
        mine = self.model.order.get(member, [])
        if count > len(mine):
            with pytest.raises(AckError):
                rx.ack(count)
            return
        rx.ack(count)
        for number in mine[:count]:
            self.model.acknowledge(number)
        self.outdate()

    @rule(data=st.data(), count=st.one_of(st.none(), st.integers(1, 5)))
    def nack(self, data: st.DataObject, count: int | None) -> None:
        """Nack what a member was given last, or too many."""
        member, rx = self.one(data)
        mine = list(self.model.order.get(member, []))
        if count is not None and count > len(mine):
            with pytest.raises(AckError):
                rx.nack(count)
            return
        rx.nack(count)
        for number in mine if count is None else mine[-count:]:
            self.model.redeliver(number)
        self.outdate()

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), way=st.sampled_from(["ack", "nack", "delay", "extend"]))
    def acknowledge(self, data: st.DataObject, way: str) -> None:
        """Ack or nack one delivery, or keep it."""
        _, delivery = data.draw(st.sampled_from(self.deliveries))
        if way == "ack":
            delivery.ack()
            self.model.acknowledge(delivery.value)
        elif way == "extend":
            delivery.extend()
        else:
            delivery.nack(FOREVER if way == "delay" else 0)
            self.model.redeliver(delivery.value, DELAYED if way == "delay" else WAITING)
        self.outdate()

    @precondition(lambda self: self.settled)
    @rule(data=st.data(), way=st.sampled_from(["ack", "nack", "extend"]))
    def settle_again(self, data: st.DataObject, way: str) -> None:
        """A delivery that was acked is refused."""
        with pytest.raises(AckError):
            getattr(data.draw(st.sampled_from(self.settled)), way)()

    @precondition(lambda self: self.lost)
    @rule(data=st.data(), way=st.sampled_from(["ack", "nack", "extend"]))
    def ack_too_late(self, data: st.DataObject, way: str) -> None:
        """A delivery that was redelivered is fenced."""
        with pytest.raises(LeaseExpiredError):
            getattr(data.draw(st.sampled_from(self.lost)), way)()

    @rule(way=st.sampled_from(["ack", "nack", "extend"]))
    def let_leases_end(self, way: str) -> None:
        """Let every lease expire: all outstanding messages are redelivered with another attempt, and belong to no
        member.
        """
        group = next(iter(self.members.values()))._member._group
        for number in range(load_u64(group.map, GROUP_HEAD), load_u64(group.map, GROUP_TAIL)):
            if load_u64(group.map, entry_start(number)) & ENTRY_STATE == ENTRY_OUT:
                store_u64(group.map, entry_start(number) + ENTRY_DEADLINE, 1)
                store_u64(group.map, GROUP_DUE, 1)
        assert group.redelivery.run(lambda: True) == sum(map(len, self.model.order.values()))
        lost, self.deliveries = self.deliveries, []
        for _, delivery in lost:
            with pytest.raises(LeaseExpiredError):
                getattr(delivery, way)()
        self.lost += [delivery for _, delivery in lost]
        for member, numbers in self.model.order.items():
            without = len(numbers) - sum(holder == member for holder, _ in lost)
            if without:
                with pytest.raises(LeaseExpiredError):
                    self.members[member].ack(without)
            for number in list(numbers):
                self.model.redeliver(number)

    @rule(data=st.data(), way=st.sampled_from([None, LookupError, KeyboardInterrupt]))
    def process(self, data: st.DataObject, way: type[BaseException] | None) -> None:
        """Process one, well or not."""
        member, rx = self.one(data)
        expected = self.model.coming(1)
        if not expected or (expected[0] == self.model.front and self.model.front - self.model.stored >= 4096):
            return
        self.model.take(member, expected)
        try:
            with rx.processing() as item:
                assert [item] == expected
                if way is not None:
                    raise way
        except (LookupError, KeyboardInterrupt) as error:
            self.model.redeliver(item, counted=isinstance(error, LookupError))
        else:
            self.model.acknowledge(item)

    @rule(data=st.data(), many=st.integers(1, 9))
    def peek(self, data: st.DataObject, many: int) -> None:
        """Look without taking."""
        assert self.one(data)[1].peek(many) == self.model.coming(many)

    @rule(data=st.data(), fraction=st.floats(0, 1))
    def seek(self, data: st.DataObject, fraction: float) -> None:
        """Let all seek elsewhere, if no message is outstanding."""
        number = self.model.oldest + round(fraction * (self.model.sent - self.model.oldest))
        offset = self.channel.offset_of(number)
        if self.model.held:
            with pytest.raises(AckError):
                self.one(data)[1].seek(offset)
        else:
            self.one(data)[1].seek(offset)
            self.model.forget(number)

    @rule()
    def purge(self) -> None:
        """Remove everything."""
        self.channel.purge()
        self.model.oldest = self.model.sent
        self.model.forget(self.model.sent)
        self.outdate()

    @rule()
    def reopen(self) -> None:
        """Close the channel: outstanding messages are redelivered, acked ones are not, and counts are kept."""
        self.channel.close()
        for member in list(self.model.order):
            self.model.leave(member)
        self.deliveries, self.settled, self.lost = [], [], []
        self.open()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """Forget the group, if there is but one member."""
        member, rx = self.one(data)
        if len(self.members) > 1:
            with pytest.raises(ConsumerBusyError):
                rx.unsubscribe()
            return
        rx.unsubscribe()
        del self.members[member]
        self.model.forget(self.model.oldest)
        self.deliveries, self.settled, self.lost = [], [], []
        self.join()

    @invariant()
    def agrees(self) -> None:
        """What each member has, what would come, and what is stored are as in the model."""
        for member, rx in self.members.items():
            found = rx.statistics()
            assert rx.unack_count == found.unacked == len(self.model.order.get(member, []))
            assert found.next_sequence == self.model.front
            assert found.lag_messages == len(self.model.coming(1 << 60))
        position = read_position((self.directory / "channel/consumers/g.group").read_bytes())
        assert position is not None
        assert position.sequence == self.model.stored

    def teardown(self) -> None:
        """Close everything."""
        self.channel.close()
        shutil.rmtree(self.directory)


TestGroupSimulation = Simulation.TestCase
TestGroupSimulation.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
