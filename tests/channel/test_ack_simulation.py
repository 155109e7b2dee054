"""Acknowledging against a model of it: a list of messages, and what became of each."""

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

from filechannel import AckError, ChannelOptions, ConsumerBusyError, Delivery, Retention
from filechannel._storage.consumers.cursors import read_position
from filechannel.blocking import AckReceiver, FileChannel, open_channel
from tests.channel.doomed import acknowledge, live_and_be_killed

OUT, WAITING, DELAYED = "out", "waiting", "delayed"
FOREVER = 1e6


@dataclass
class Model:
    """What one consumer should see."""

    sent: int = 0
    oldest: int = 0
    front: int = 0
    """The number of the next message that is new."""
    held: dict[int, str] = field(default_factory=dict)
    """What became of those that were handed out and not acked."""
    attempts: dict[int, int] = field(default_factory=dict)

    @property
    def out(self) -> list[int]:
        """Those that are outstanding, oldest first."""
        return sorted(number for number, state in self.held.items() if state == OUT)

    @property
    def waiting(self) -> list[int]:
        """The messages to be redelivered now."""
        return sorted(number for number, state in self.held.items() if state == WAITING)

    @property
    def stored(self) -> int:
        """The sequence at which the consumer would resume after a crash."""
        return min(self.held, default=self.front)

    def coming(self, many: int) -> list[int]:
        """What comes next."""
        return (self.waiting + list(range(self.front, self.sent)))[:many]

    def take(self, numbers: list[int]) -> None:
        """They are handed out."""
        for number in numbers:
            self.attempts.setdefault(number, 1)
            self.held[number] = OUT
            self.front = max(self.front, number + 1)

    def redeliver(self, number: int, state: str = WAITING, *, counted: bool = True) -> None:
        """The message is redelivered."""
        self.held[number] = state
        self.attempts[number] += counted

    def acknowledge(self, number: int) -> None:
        """The message is acked."""
        del self.held[number]
        del self.attempts[number]

    def plan(self, what: str, number: int) -> tuple[str, int]:
        """Do what another process is to do, if that is possible, and return the command for it."""
        out = self.out
        match what:
            case "send":
                number = self.sent = self.sent + number
            case "receive":
                taken = self.coming(number)
                number = len(taken)
                self.take(taken)
            case "ack" | "nack" if number <= len(out):
                for each in out[:number] if what == "ack" else out[-number:]:
                    self.acknowledge(each) if what == "ack" else self.redeliver(each)
            case "acknowledge" if out:
                number = out[number % len(out)]
                self.acknowledge(number)
            case _:
                what, number = "seek", self.oldest + (self.sent - self.oldest) * number // 10
                self.seek(number)
        return what, number

    def seek(self, number: int) -> None:
        """Resume elsewhere: messages that begin there or later are forgotten."""
        self.held = {held: state for held, state in self.held.items() if held < number}
        self.attempts = {held: count for held, count in self.attempts.items() if held in self.held}
        self.front = number


class Simulation(RuleBasedStateMachine):
    """Does the same to a channel and to its model, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.model = Model()
        self.deliveries: list[Delivery[int]] = []
        self.stale: list[Delivery[int]] = []
        self.open()

    def open(self) -> None:
        """Open the channel and its receiver."""
        keep = Retention(after_consumed="keep")  # what was acked can be sought again
        options = ChannelOptions(segment_size=4096, retention=keep)
        self.channel: FileChannel[int] = open_channel(self.directory / "channel", int, options=options)
        self.receivers: list[AckReceiver[int]] = [self.channel.ack_receiver()]

    @property
    def rx(self) -> AckReceiver[int]:
        """One of those that share the position."""
        return self.receivers[self.model.sent % len(self.receivers)]

    def outdate(self) -> None:
        """Sort out deliveries of what is not outstanding any more."""
        out = self.model.out
        self.stale += [delivery for delivery in self.deliveries if delivery.sequence not in out]
        self.deliveries = [delivery for delivery in self.deliveries if delivery.sequence in out]

    @rule(count=st.one_of(st.integers(1, 5), st.just(400)))
    def send(self, count: int) -> None:
        """Send numbers."""
        with self.channel.sender() as tx:
            tx.send_many(range(self.model.sent, self.model.sent + count))
        self.model.sent += count

    @rule(many=st.one_of(st.integers(1, 6), st.just(500)), way=st.sampled_from(["many", "one", "record"]))
    def receive(self, many: int, way: str) -> None:
        """Receive in one of the ways there are."""
        expected = self.model.coming(many if way == "many" else 1)
        if way == "many" or not expected:
            found = self.rx.receive_many_nowait(many if way == "many" else 1)
        elif way == "one":
            found = [self.rx.receive()]
        else:
            record = self.rx.receive_record()
            assert record.sequence == record.value
            found = [record.value]
        assert found == expected
        self.model.take(found)

    @rule()
    def receive_delivery(self) -> None:
        """Receive a delivery that can be acked separately."""
        expected = self.model.coming(1)
        if not expected:
            with pytest.raises(WouldBlock):
                self.rx.receive_nowait()
            return
        delivery = self.rx.receive_delivery()
        self.model.take(expected)
        assert [delivery.value] == [delivery.sequence] == expected
        assert delivery.attempt == self.model.attempts[delivery.value]
        self.deliveries.append(delivery)

    @rule(count=st.integers(1, 5))
    def ack(self, count: int) -> None:
        """Ack the oldest ones, or too many."""
        out = self.model.out
        if count > len(out):
            with pytest.raises(AckError):
                self.rx.ack(count)
            return
        self.rx.ack(count)
        for number in out[:count]:
            self.model.acknowledge(number)
        self.outdate()

    @rule(count=st.one_of(st.none(), st.integers(1, 5)))
    def nack(self, count: int | None) -> None:
        """Nack the newest ones, or too many."""
        out = self.model.out
        if count is not None and count > len(out):
            with pytest.raises(AckError):
                self.rx.nack(count)
            return
        self.rx.nack(count)
        for number in out if count is None else out[-count:]:
            self.model.redeliver(number)
        self.outdate()

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), way=st.sampled_from(["ack", "nack", "delay"]))
    def acknowledge(self, data: st.DataObject, way: str) -> None:
        """Ack or nack one delivery."""
        delivery = data.draw(st.sampled_from(self.deliveries))
        if way == "ack":
            delivery.ack()
            self.model.acknowledge(delivery.value)
        else:
            delivery.nack(FOREVER if way == "delay" else 0)
            self.model.redeliver(delivery.value, DELAYED if way == "delay" else WAITING)
        self.outdate()

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), way=st.sampled_from(["ack", "nack"]))
    def settle_again(self, data: st.DataObject, way: str) -> None:
        """A delivery that was acked, or redelivered since, is refused."""
        came_again = [delivery for delivery in self.stale if delivery.sequence in self.model.out]
        with pytest.raises(AckError):
            getattr(data.draw(st.sampled_from(came_again or self.stale)), way)()

    @rule(way=st.sampled_from([None, LookupError, KeyboardInterrupt]))
    def process(self, way: type[BaseException] | None) -> None:
        """Process one, well or not."""
        expected = self.model.coming(1)
        if not expected:
            return
        self.model.take(expected)
        try:
            with self.rx.processing() as item:
                assert [item] == expected
                if way is not None:
                    raise way
        except (LookupError, KeyboardInterrupt) as error:
            self.model.redeliver(item, counted=isinstance(error, LookupError))
        else:
            self.model.acknowledge(item)

    @rule(many=st.integers(1, 9))
    def peek(self, many: int) -> None:
        """Look without taking."""
        assert self.rx.peek(many) == self.model.coming(many)

    @rule(place=st.floats(0, 1))
    def seek(self, place: float) -> None:
        """Seek elsewhere."""
        number = self.model.oldest + round(place * (self.model.sent - self.model.oldest))
        self.rx.seek(self.channel.offset_of(number))
        self.model.seek(number)
        self.outdate()

    @rule()
    def clone(self) -> None:
        """Share the position."""
        self.receivers.append(self.rx.clone())

    @precondition(lambda self: len(self.receivers) > 1)
    @rule()
    def close_clone(self) -> None:
        """Close one of those that share the position: nothing changes."""
        self.receivers.pop().close()

    @rule()
    def purge(self) -> None:
        """Remove everything."""
        self.channel.purge()
        self.model.oldest = self.model.sent
        self.model.held.clear()
        self.model.attempts.clear()
        self.model.front = self.model.sent
        self.outdate()

    @rule(whole=st.booleans())
    def reopen(self, whole: bool) -> None:
        """Close all receivers, or the channel: everything from the oldest unacked on is redelivered."""
        if whole:
            self.channel.close()
            self.open()
        else:
            for rx in self.receivers:
                rx.close()
            self.receivers = [self.channel.ack_receiver()]
        self.model.seek(self.model.stored)
        self.deliveries, self.stale = [], []

    @rule(
        steps=st.lists(
            st.tuples(st.sampled_from(["send", "receive", "ack", "nack", "acknowledge", "seek"]), st.integers(1, 9)),
            min_size=1,
        )
    )
    def crash(self, steps: list[tuple[str, int]]) -> None:
        """Another process continues, and is killed: everything from the oldest unacked on is redelivered."""
        self.channel.close()
        self.model.seek(self.model.stored)
        commands, expected = [], []
        for step in steps:
            before = self.model.coming(9)
            commands.append(self.model.plan(*step))
            what, number = commands[-1]
            expected.append((before[:number] if what == "receive" else [], len(self.model.out)))
        assert live_and_be_killed(acknowledge, self.directory / "channel", commands) == expected
        self.open()
        self.model.seek(self.model.stored)
        self.deliveries, self.stale = [], []

    @rule(owned=st.booleans())
    def remove(self, owned: bool) -> None:
        """Remove the name: it starts from the beginning."""
        if owned:
            with pytest.raises(ConsumerBusyError):
                self.channel.remove_consumer("default")
            self.rx.unsubscribe()
        else:
            for rx in self.receivers:
                rx.close()
            self.channel.remove_consumer("default")
        self.receivers = [self.channel.ack_receiver()]
        self.model.held.clear()
        self.model.attempts.clear()
        self.model.front = self.model.oldest
        self.deliveries, self.stale = [], []

    @invariant()
    def agrees(self) -> None:
        """What is outstanding, what would come, and what is stored are as in the model."""
        found = self.rx.statistics()
        assert self.rx.unack_count == found.unacked == len(self.model.out)
        assert found.next_sequence == self.model.front
        assert found.lag_messages == len(self.model.coming(1 << 60))
        position = read_position((self.directory / "channel/consumers/default.cursor").read_bytes())
        assert position is not None
        assert position.sequence == self.model.stored

    def teardown(self) -> None:
        """Close everything."""
        self.channel.close()
        shutil.rmtree(self.directory)


TestAckSimulation = Simulation.TestCase
TestAckSimulation.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
