"""A channel against a model of it: a list of messages, and a number for each consumer."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from anyio import WouldBlock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from filechannel import (
    ChannelOptions,
    ConsumerBusyError,
    Durability,
    FanOutReceiver,
    FileChannel,
    Retention,
    Sender,
    UnknownConsumerError,
    open_channel,
)
from tests.channel.doomed import consume, live_and_be_killed

NAMES = st.sampled_from(["a", "b", "ü/.."])
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([1000, 4000, 4016, 4017, 4024, 4032, 9000]))
DURABILITIES = st.sampled_from([Durability.OS, Durability.FSYNC, Durability.interval(60)])


@dataclass
class Model:
    """What should be there."""

    messages: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    oldest: int = 0
    consumers: dict[str, int] = field(default_factory=dict)
    """The number of the next message of each name."""

    def rest(self, name: str, many: int) -> list[bytes]:
        """Return what a consumer should get next."""
        place = self.consumers[name]
        return self.messages[place : place + many]


class Simulation(RuleBasedStateMachine):
    """Does the same to a channel and to its model, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.model = Model()
        self.receivers: dict[str, list[FanOutReceiver[bytes]]] = {}
        self.counter = 0

    @initialize(durability=DURABILITIES)
    def begin(self, durability: Durability) -> None:
        """Make the channel."""
        # Consumed messages are reclaimed at any time: the model would not know when.
        keep = Retention(after_consumed="keep")
        self._open(ChannelOptions(segment_size=4096, durability=durability, retention=keep))

    def _open(self, options: ChannelOptions | None = None) -> None:
        async def open_() -> FileChannel[bytes]:
            return await open_channel(self.directory / "channel", bytes, options=options)

        self.channel = self.runner.run(open_())
        self.tx: Sender[bytes] = self.channel.sender()

    def _payload(self, size: int) -> bytes:
        self.counter += 1
        return (b"%d:" % self.counter).ljust(size, b".")

    def _sent(self, payloads: list[bytes], offset: int) -> None:
        self.model.messages += payloads
        self._position_sent(payloads, offset)

    def _position_sent(self, payloads: list[bytes], offset: int) -> None:
        for payload in payloads:
            self.model.offsets.append(offset)
            offset += 8 + len(payload)

    # Sending

    @rule(size=SIZES)
    def send(self, size: int) -> None:
        """Send one message and wait for it."""
        payload, before = self._payload(size), self.tx.write_offset
        self.runner.run(self._await(self.tx.send(payload)))
        self._sent([payload], before)

    @rule(sizes=st.lists(SIZES, max_size=6))
    def send_many(self, sizes: list[int]) -> None:
        """Send a batch."""
        payloads = [self._payload(size) for size in sizes]
        self._sent(payloads, self.runner.run(self._await(self.tx.send_many(payloads))))

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6))
    def send_nowait(self, sizes: list[int]) -> None:
        """Send messages without waiting, and a flush behind them."""
        for size in sizes:
            payload = self._payload(size)
            self._sent([payload], self.tx.send_nowait(payload))
        self.runner.run(self.channel.flush())

    # Receiving

    @rule(name=NAMES, place=st.floats(0, 1), latest=st.booleans())
    def register(self, name: str, place: float, latest: bool) -> None:
        """Open a receiver; where it starts counts the first time."""
        if self.receivers.get(name):
            try:
                self.channel.receiver(name)
            except ConsumerBusyError:
                return
            raise AssertionError("two owners")
        number, start = self._position(place)
        if latest:
            number, start = len(self.model.messages), "latest"
        self.receivers[name] = [self.channel.receiver(name, start=start)]  # type: ignore[arg-type]
        self.model.consumers.setdefault(name, number)

    def _number(self, place: float) -> int:
        return self.model.oldest + round(place * (len(self.model.messages) - self.model.oldest))

    def _position(self, place: float) -> tuple[int, object]:
        number = self._number(place)
        if number == len(self.model.messages):
            return number, self.tx.write_offset
        return number, "earliest" if number == self.model.oldest else self.model.offsets[number]

    @precondition(lambda self: any(self.receivers.values()))
    @rule(data=st.data(), many=st.integers(1, 10))
    def receive(self, data: st.DataObject, many: int) -> None:
        """Receive in one of the ways there are."""
        name, rx = self._some(data)
        expected = self.model.rest(name, many)
        way = data.draw(st.sampled_from(["many", "many, waiting", "slices", "one", "one, waiting", "record"]))
        if way == "many" or not expected:
            found = rx.receive_many_nowait(many)
        elif way == "many, waiting":
            found = self.runner.run(rx.receive_many(many))
        elif way == "slices":
            expected, found = self.model.rest(name, 5000), self.runner.run(rx.receive_many(5000))
        elif way == "record":
            record = self.runner.run(rx.receive_record())
            expected, found = expected[:1], [record.value]
            assert record.sequence == self.model.consumers[name]
            assert record.offset == self.model.offsets[record.sequence]
        else:
            expected = expected[:1]
            found = [rx.receive_nowait() if way == "one" else self.runner.run(self._await(rx.receive()))]
        assert found == expected
        self.model.consumers[name] += len(found)

    @precondition(lambda self: any(self.receivers.values()))
    @rule(data=st.data(), many=st.integers(1, 50))
    def peek(self, data: st.DataObject, many: int) -> None:
        """Look without taking."""
        name, rx = self._some(data)
        assert rx.peek(many) == self.model.rest(name, many)

    @precondition(lambda self: any(self.receivers.values()))
    @rule(data=st.data(), place=st.floats(0, 1))
    def seek(self, data: st.DataObject, place: float) -> None:
        """Seek elsewhere."""
        name, rx = self._some(data)
        number, start = self._position(place)
        self.runner.run(rx.seek(start))  # type: ignore[arg-type]
        self.model.consumers[name] = number

    @precondition(lambda self: any(self.receivers.values()))
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        """Share a position."""
        name, rx = self._some(data)
        self.receivers[name].append(rx.clone())

    @precondition(lambda self: any(self.receivers.values()))
    @rule(data=st.data())
    def close_receiver(self, data: st.DataObject) -> None:
        """Close one of the receivers that share a position."""
        name, rx = self._some(data)
        rx.close()
        self.receivers[name].remove(rx)

    @precondition(lambda self: any(self.receivers.values()))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        """Forget a name."""
        name, rx = self._some(data)
        self.runner.run(rx.unsubscribe())
        self.receivers[name] = []
        del self.model.consumers[name]

    def _some(self, data: st.DataObject) -> tuple[str, FanOutReceiver[bytes]]:
        name = data.draw(st.sampled_from([name for name, receivers in self.receivers.items() if receivers]))
        return name, data.draw(st.sampled_from(self.receivers[name]))

    # The channel as a whole

    @rule(durability=DURABILITIES)
    def configure(self, durability: Durability) -> None:
        """Change when messages are on disk."""
        self.runner.run(self.channel.configure(durability=durability))

    @rule()
    def purge(self) -> None:
        """Remove everything."""
        self.runner.run(self.channel.purge())
        self.model.oldest = len(self.model.messages)
        for name in self.model.consumers:
            self.model.consumers[name] = self.model.oldest

    @rule(
        lives=st.lists(
            st.tuples(NAMES, st.integers(1, 10), st.none() | st.floats(0, 1), st.lists(SIZES, max_size=2)),
            min_size=1,
            max_size=8,
        )
    )
    def crash(self, lives: list[tuple[str, int, float | None, list[int]]]) -> None:
        """Another process continues under the same names, and is killed: each resumes after what it received."""
        self.runner.run(self.channel.aclose())
        self.receivers = {}
        commands, expected = [], []
        for name, most, place, sizes in lives:
            self.model.consumers.setdefault(name, self.model.oldest)
            to = None if place is None else self._number(place)
            self.model.consumers[name] = self.model.consumers[name] if to is None else to
            payloads = [self._payload(size) for size in sizes]
            commands.append((name, most, to, payloads))
            expected.append(self.model.rest(name, most))
            self.model.consumers[name] += len(expected[-1])
            self.model.messages += payloads
        found = live_and_be_killed(consume, self.directory / "channel", commands)
        assert [received for received, _ in found] == expected
        for (*_, payloads), (_, offset) in zip(commands, found, strict=True):
            self._position_sent(payloads, offset)
        self._open()

    @rule(name=NAMES)
    def remove_consumer(self, name: str) -> None:
        """Forget a name, unless it does not exist or is handed out."""
        if name in self.model.consumers and not self.receivers.get(name):
            self.runner.run(self.channel.remove_consumer(name))
            del self.model.consumers[name]
            return
        with pytest.raises(ConsumerBusyError if name in self.model.consumers else UnknownConsumerError):
            self.runner.run(self.channel.remove_consumer(name))

    @rule()
    def reopen(self) -> None:
        """Close the channel and open it again."""
        self.runner.run(self.channel.aclose())
        self.receivers = {}
        self._open()

    @invariant()
    def agrees(self) -> None:
        """Numbers and positions are those of the model."""
        if not hasattr(self, "channel"):
            return
        found = self.channel.statistics()
        assert found.next_sequence == len(self.model.messages)
        assert found.messages == len(self.model.messages) - self.model.oldest
        assert {each.name: each.next_sequence for each in self.channel.consumers()} == self.model.consumers
        for name, receivers in self.receivers.items():
            for rx in receivers:
                assert rx.statistics().next_sequence == self.model.consumers[name]
                assert rx.statistics().lag_messages == len(self.model.messages) - self.model.consumers[name]

    def teardown(self) -> None:
        """Everything that is stored can be replayed, and each number has its offset."""
        if hasattr(self, "channel"):
            with self.channel.replay(stop=None) as rx:
                assert rx.receive_many_nowait(10**6) == self.model.messages[self.model.oldest :]
                try:
                    rx.receive_nowait()
                except WouldBlock:
                    pass
            for number in range(self.model.oldest, len(self.model.messages), 7):
                assert self.runner.run(self.channel.offset_of(number)) == self.model.offsets[number]
            self.runner.run(self.channel.aclose())
        self.runner.close()
        shutil.rmtree(self.directory)

    @staticmethod
    async def _await(awaitable: object) -> object:
        return await awaitable  # type: ignore[misc]


TestSimulation = Simulation.TestCase
TestSimulation.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
