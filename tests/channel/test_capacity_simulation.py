"""Capacity against a model: any sequence of sends, receives, seeks, registrations and changes keeps the limit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from anyio import WouldBlock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from filechannel import Capacity, ChannelOptions, DataExpiredError, MessageTooLargeError, Retention
from filechannel.blocking import AckReceiver, FanOutReceiver, FileChannel, open_channel

HEADER = 8
NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.sampled_from([8, 100, 1000, 3000, 5000])
KINDS = st.sampled_from(["raise", "wait", "drop_oldest"])
LIMITS = st.one_of(
    st.builds(lambda n: {"max_messages": n}, st.integers(1, 12)),
    st.builds(lambda n: {"max_bytes": n}, st.integers(16384, 40000)),
    st.builds(lambda n, m: {"max_bytes": n, "max_messages": m}, st.integers(16384, 40000), st.integers(1, 12)),
)


class Life(RuleBasedStateMachine):
    """A channel, and what should be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.sizes: list[int] = []
        """Of everything that was ever sent, headers included; the sequence of a message is its index here."""
        self.first = 0
        """Everything before it is dropped for consumers that have not read it."""
        self.positions: dict[str, int] = {}
        self.held: dict[str, int] = {}
        """How many each acknowledging consumer has been given beyond its position."""
        self.open: dict[str, FanOutReceiver[bytes] | AckReceiver[bytes]] = {}

    @initialize(limits=LIMITS, kind=KINDS)
    def create(self, limits: dict[str, int], kind: str) -> None:
        """Make the channel."""
        self.capacity = Capacity(**limits, on_full=kind)  # type: ignore[arg-type]
        keep = Retention(after_consumed="keep")  # without a registered consumer, all that is stored counts
        options = ChannelOptions(capacity=self.capacity, segment_size=4096, retention=keep)
        self.channel: FileChannel[bytes] = open_channel(Path(self.directory.name) / "c", bytes, options=options)
        self.tx = self.channel.sender()

    # The model

    @property
    def floor(self) -> int:
        """The position of the slowest consumer."""
        return max(min(self.positions.values(), default=self.first), self.first)

    @property
    def used(self) -> tuple[int, int]:
        """Bytes and messages that are not consumed."""
        return sum(self.sizes[self.floor :]), len(self.sizes) - self.floor

    def fits(self, size: int, count: int, used: tuple[int, int]) -> bool:
        """Return whether there is capacity."""
        most_bytes, most = self.capacity.max_bytes or 1 << 60, self.capacity.max_messages or 1 << 60
        return used[0] + size <= most_bytes and used[1] + count <= most

    # What may happen

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=6), batch=st.booleans())
    def send(self, sizes: list[int], batch: bool) -> None:
        """Send a message or a batch: all of it or nothing."""
        sizes = sizes if batch else sizes[:1]
        payloads = [b"%08d" % (len(self.sizes) + n) + bytes(size - 8) for n, size in enumerate(sizes)]
        total = sum(map(len, payloads)) + HEADER * len(payloads)
        drops = self.capacity.on_full == "drop_oldest"
        try:
            self.tx.send_many_nowait(payloads) if batch else self.tx.send_nowait(payloads[0])
        except MessageTooLargeError:
            assert not self.fits(total, len(payloads), (0, 0))
            return
        except WouldBlock:
            assert not drops
            assert not self.fits(total, len(payloads), self.used)
            return
        assert drops or self.fits(total, len(payloads), self.used)
        overtaken = not self.fits(total, len(payloads), self.used)
        self.sizes += [len(payload) + HEADER for payload in payloads]
        if overtaken:
            self.first = self.channel._store.lookup.earliest().sequence
            assert self.fits(0, 0, self.used)

    @rule(name=NAMES, count=st.integers(1, 8))
    def take(self, name: str, count: int) -> None:
        """Receive, and get the number of missed messages once."""
        rx = self.open.get(name)
        if rx is None:
            return
        at = self.positions[name] + self.held.get(name, 0)
        for _ in range(count):
            try:
                payload = rx.receive_nowait()
            except WouldBlock:
                assert at == len(self.sizes)
                break
            except DataExpiredError as error:
                at += error.missed
                self._check_overtaken(at, error.missed)
                self._took(name, rx, at)
                continue
            assert int(payload[:8]) == at
            at += 1
            self._took(name, rx, at)

    def _check_overtaken(self, at: int, missed: int) -> None:
        assert missed > 0
        assert at == self.first

    def _took(self, name: str, rx: object, at: int) -> None:
        if isinstance(rx, AckReceiver):
            if self.held[name]:
                self.held[name] = at - self.positions[name]
            elif int(rx.unack_count):
                self.positions[name], self.held[name] = at - 1, 1
            else:
                self.positions[name] = at
        else:
            self.positions[name] = at

    @rule(name=NAMES)
    def ack_all(self, name: str) -> None:
        """Acknowledge everything."""
        rx = self.open.get(name)
        if isinstance(rx, AckReceiver) and rx.unack_count:
            rx.ack(rx.unack_count)
            self.positions[name] += self.held[name]
            self.held[name] = 0

    @rule(name=NAMES, acks=st.booleans(), latest=st.booleans())
    def register(self, name: str, acks: bool, latest: bool) -> None:
        """Register, or open the name again."""
        if name in self.open:
            return
        make = self.channel.ack_receiver if acks else self.channel.receiver
        self.open[name] = make(name, start="latest" if latest else "earliest")
        self.positions.setdefault(name, len(self.sizes) if latest else self.first)
        self.held[name] = 0

    @rule(name=NAMES, forever=st.booleans())
    def leave(self, name: str, forever: bool) -> None:
        """Close, or unsubscribe."""
        rx = self.open.pop(name, None)
        if rx is None:
            return
        if forever:
            rx.unsubscribe()
            del self.positions[name]
        else:
            rx.close()
        self.held[name] = 0

    @rule(name=NAMES, latest=st.booleans())
    def seek(self, name: str, latest: bool) -> None:
        """Seek to one end."""
        rx = self.open.get(name)
        if rx is None or self.held[name]:
            return
        rx.seek("latest" if latest else "earliest")
        self.positions[name] = len(self.sizes) if latest else self.first

    @rule(limits=LIMITS)
    def configure(self, limits: dict[str, int]) -> None:
        """Choose another limit."""
        self.capacity = Capacity(**limits, on_full=self.capacity.on_full)  # type: ignore[arg-type]
        self.channel.configure(capacity=self.capacity)

    @precondition(lambda self: len(self.sizes) > 5)
    @rule()
    def purge(self) -> None:
        """Remove everything."""
        for rx in self.open.values():
            if isinstance(rx, AckReceiver) and rx.unack_count:
                return
        self.channel.purge()
        self.first = len(self.sizes)
        self.positions = dict.fromkeys(self.positions, self.first)

    @rule()
    def reopen(self) -> None:
        """Close everything, and open it again."""
        self.channel.close()
        self.channel = open_channel(Path(self.directory.name) / "c", bytes)
        self.tx = self.channel.sender()
        self.open.clear()
        self.held = dict.fromkeys(self.held, 0)

    @invariant()
    def counted_exactly(self) -> None:
        """The statistics are those of the model."""
        if not hasattr(self, "channel"):
            return
        room = self.channel.statistics().room
        assert room is not None
        assert (room.bytes, room.messages) == self.used

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "channel"):
            self.channel.close()
        self.directory.cleanup()


Life.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCapacity = Life.TestCase
