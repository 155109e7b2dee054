"""Steps against a model of them: a list of inputs, how many of them were taken, and a list of outputs."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from filechannel import ChannelOptions, Durability, Retention
from filechannel._channel.subscription.transaction_position import TransactionPosition
from filechannel._storage.log.append_and_roll_back import Appender
from filechannel.blocking import AckReceiver, FileChannel, Sender, open_channel, transaction


class DiedError(BaseException):
    """Raised in a step that ends in the middle; a process that survives it has to cope as well."""


def dying(fate: str) -> AbstractContextManager[object]:
    """Let a step die: with a slot filled and nothing written, appended and not flushed, or visible and not acked."""
    if fate == "noted":
        return patch.object(Appender, "_write", side_effect=DiedError)
    if fate == "appended":
        return patch.object(Sender, "_flush_now", side_effect=DiedError)
    if fate == "visible":
        return patch.object(TransactionPosition, "acknowledge", side_effect=DiedError)
    return nullcontext()


class Simulation(RuleBasedStateMachine):
    """Does the same to two channels and to their model, and compares."""

    @initialize(durability=st.sampled_from([Durability.OS, Durability.FSYNC]))
    def begin(self, durability: Durability) -> None:
        """Make both channels."""
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(dir=memory))
        keep = Retention(after_consumed="keep")  # what was acknowledged can be sought again
        self.options = ChannelOptions(segment_size=4096, durability=durability, retention=keep)
        self.sent = self.oldest = self.taken = 0
        self.in_doubt = False
        self.outputs: list[str] = []
        self.open()

    def open(self) -> None:
        """Open both channels, the receiver and the sender."""
        self.numbers: FileChannel[int] = open_channel(self.directory / "numbers", int, options=self.options)
        self.texts: FileChannel[str] = open_channel(self.directory / "texts", str, options=self.options)
        self.rx: AckReceiver[int] = self.numbers.ack_receiver()
        self.tx: Sender[str] = self.texts.sender()

    @rule(count=st.one_of(st.integers(1, 5), st.just(300)))
    def send(self, count: int) -> None:
        """Send numbers."""
        with self.numbers.sender() as tx:
            tx.send_many(range(self.sent, self.sent + count))
        self.sent += count

    @rule(count=st.integers(1, 3))
    def send_other(self, count: int) -> None:
        """Another sender sends into the output."""
        with self.texts.sender() as tx:
            tx.send_many(["other"] * count)
        self.outputs += ["other"] * count

    @rule(
        most=st.one_of(st.integers(1, 5), st.just(100)),
        outputs=st.integers(0, 3),
        fate=st.sampled_from(["well", "well", "well", "error", "noted", "appended", "visible"]),
    )
    def step(self, most: int, outputs: int, fate: str) -> None:
        """Take a step, which may end well or in the middle."""
        taken = list(range(self.taken, min(self.taken + most, self.sent)))
        made = [f"{number}.{output}" for number in taken for output in range(outputs)]
        try:
            with dying(fate), transaction(self.rx, self.tx) as step:
                found = self.rx.receive_many_nowait(most)
                assert found == taken
                step.send_many(made)
                if fate == "error":
                    raise DiedError
        except DiedError:
            happened = bool(made) and fate in ("appended", "visible")
            self.in_doubt = happened
        else:
            happened, self.in_doubt = True, False
        if happened:
            self.outputs += made
            self.taken += len(taken)

    @precondition(lambda self: not self.in_doubt)
    @rule()
    def process(self) -> None:
        """Take one without a transaction."""
        if self.taken < self.sent:
            with transaction(self.rx, self.tx):
                pass  # whether the step took effect is known now
            with self.rx.processing() as number:
                assert number == self.taken
            self.taken += 1

    @rule(place=st.floats(0, 1), elsewhere=st.booleans())
    def seek(self, place: float, elsewhere: bool) -> None:
        """Seek elsewhere, and perhaps let another process resume from there."""
        self.taken = self.oldest + round(place * (self.sent - self.oldest))
        self.rx.nack()
        self.rx.seek(self.numbers.offset_of(self.taken))
        self.skip_redelivered()
        self.flush_pending()
        if elsewhere:
            self.reopen(flush=False)

    def skip_redelivered(self) -> None:
        """Messages that were nacked, and begin before the position, are redelivered first."""
        while self.rx.peek() and self.rx.peek()[0] < self.taken:
            self.rx.receive()
            self.rx.ack()

    @rule()
    def purge_input(self) -> None:
        """Remove every number."""
        self.numbers.purge()
        self.oldest = self.taken = self.sent

    @rule()
    def purge_output(self) -> None:
        """Remove every text."""
        self.texts.purge()
        self.outputs.clear()

    @rule(flush=st.booleans())
    def reopen(self, flush: bool) -> None:
        """Let another process continue."""
        if flush:
            self.texts.flush()
        self.numbers.close()
        self.texts.close()
        self.open()

    @rule()
    def remove(self) -> None:
        """Remove the name: it starts from the beginning."""
        self.rx.unsubscribe()
        self.rx = self.numbers.ack_receiver()
        self.taken = self.oldest
        self.flush_pending()

    def flush_pending(self) -> None:
        """Flush what a step appended that died before it did so: no other process may do it."""
        if self.in_doubt:
            self.texts.flush()
        self.in_doubt = False

    @precondition(lambda self: hasattr(self, "rx") and not self.in_doubt)
    @invariant()
    def agrees(self) -> None:
        """The outputs are those of the model, and nothing is outstanding."""
        assert list(self.texts.replay()) == self.outputs
        assert self.rx.unack_count == 0

    def teardown(self) -> None:
        """Receive what is left, and close everything."""
        if not hasattr(self, "rx"):
            return
        with transaction(self.rx, self.tx):
            assert self.rx.receive_many_nowait(1 << 20) == list(range(self.taken, self.sent))
        self.numbers.close()
        self.texts.close()
        shutil.rmtree(self.directory)


TestStepsSimulation = Simulation.TestCase
TestStepsSimulation.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
