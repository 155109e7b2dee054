"""Steps: what is sent and what is acknowledged take effect together."""

# ruff: noqa: PT012 - what raises is the end of a block
from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import ClosedResourceError, EndOfStream

import filechannel.blocking
from filechannel import (
    AckError,
    AckReceiver,
    ChannelOptions,
    ChannelSealedError,
    CodecError,
    ConsumerMismatchError,
    DiskFullError,
    Durability,
    FileChannel,
    MessageTooLargeError,
    Sender,
    StorageError,
    open_channel,
    transaction,
)
from filechannel._format.layout import RECORD_HEADER_SIZE
from filechannel._storage.system.os_calls import Files
from tests.backends import one_loop
from tests.blocking.threads import until
from tests.channel.aio.test_ack_receiver import stored

pytestmark = pytest.mark.anyio
DURABILITIES = pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])


@dataclass
class Pair:
    """An input of numbers and an output of texts."""

    numbers: FileChannel[int]
    texts: FileChannel[str]
    rx: AckReceiver[int]
    tx: Sender[str]

    async def fill(self, *numbers: int) -> None:
        """Send numbers into the input."""
        with self.numbers.sender() as tx:
            await tx.send_many(numbers)

    async def step(self) -> int:
        """Take one number and send its text."""
        async with transaction(self.rx, self.tx) as step:
            number = await step.receive()
            step.send(str(number))
        return number

    async def output(self) -> list[str]:
        """Return everything that was sent."""
        with self.texts.replay() as replay:
            return [text async for text in replay]


@asynccontextmanager
async def pair(path: Path, durability: Durability = Durability.OS, **options: Any) -> AsyncIterator[Pair]:
    """Open both channels, a receiver and a sender."""
    chosen = ChannelOptions(durability=durability, **options)
    async with (
        open_channel(path / "numbers", int, options=chosen) as numbers,
        open_channel(path / "texts", str, options=chosen) as texts,
        numbers.ack_receiver() as rx,
        texts.sender() as tx,
    ):
        yield Pair(numbers, texts, rx, tx)


# What takes effect


@DURABILITIES
async def test_outputs_and_ack_take_effect_together(path: Path, durability: Durability) -> None:
    """Outputs and ack of a step take effect at the end of the block, and not before."""
    async with pair(path, durability) as it:
        await it.fill(1, 2, 3)
        async with transaction(it.rx, it.tx) as step:
            assert await step.receive_many(2) == [1, 2]
            step.send("one")
            step.send_many(["two", "and a half"])
            assert (await it.output(), stored(it.numbers), it.rx.unack_count) == ([], 0, 2)
        assert (await it.output(), stored(it.numbers), it.rx.unack_count) == (["one", "two", "and a half"], 2, 0)
        assert await it.step() == 3
        assert (await it.output())[3:] == ["3"]


async def test_what_the_receiver_hands_out_in_the_block_belongs_to_the_step(path: Path) -> None:
    """Whatever the receiver hands out in the block belongs to the step, whichever method receives it."""
    async with pair(path) as it:
        await it.fill(1, 2, 3, 4)
        async with transaction(it.rx, it.tx) as step:
            assert await step.receive() == 1
            assert it.rx.receive_nowait() == 2
            assert (await it.rx.receive_delivery()).value == 3
            step.send("three of them")
        assert (it.rx.unack_count, stored(it.numbers)) == (0, 3)


async def test_an_error_undoes_the_step(path: Path) -> None:
    """An error in the block sends nothing, and the inputs are redelivered with another attempt counted."""
    async with pair(path) as it:
        await it.fill(1, 2)
        with pytest.raises(ZeroDivisionError):
            async with transaction(it.rx, it.tx) as step:
                assert await step.receive_many(2) == [1, 2]
                step.send("never")
                1 / 0
        assert (await it.output(), stored(it.numbers)) == ([], 0)
        async with transaction(it.rx, it.tx) as step:
            deliveries = [await it.rx.receive_delivery() for _ in range(2)]
            assert [(delivery.value, delivery.attempt) for delivery in deliveries] == [(1, 2), (2, 2)]
            step.send("now")
        assert (await it.output(), stored(it.numbers)) == (["now"], 2)


async def test_a_cancelled_step_does_not_count_as_an_attempt(path: Path) -> None:
    """A cancelled step redelivers its inputs as if they had not been handed out."""
    async with pair(path) as it:
        await it.fill(1)
        with anyio.CancelScope() as scope:
            async with transaction(it.rx, it.tx) as step:
                step.send(str(await step.receive()))
                scope.cancel()
                await step.receive()
        assert await it.output() == []
        delivery = await it.rx.receive_delivery()
        assert (delivery.value, delivery.attempt) == (1, 1)


async def test_a_step_receives_some_of_the_redelivered_messages(path: Path) -> None:
    """After a step that received some redelivered messages, the position is the first one still to be redelivered."""
    async with pair(path) as it:
        await it.fill(1, 2, 3)
        with pytest.raises(KeyError):
            async with transaction(it.rx, it.tx) as step:
                assert await step.receive_many(3) == [1, 2, 3]
                raise KeyError
        assert await it.step() == 1
        assert stored(it.numbers) == 1
        assert await it.step() == 2
        assert (await it.output(), stored(it.numbers)) == (["1", "2"], 2)


async def test_a_step_without_outputs_acknowledges(path: Path) -> None:
    """A step without outputs acknowledges without a control record, because repeating it sends nothing."""
    async with pair(path) as it:
        await it.fill(1, 2)
        async with transaction(it.rx, it.tx) as step:
            assert await step.receive() == 1
        assert (stored(it.numbers), it.tx.write_offset) == (1, 0)
        assert await it.step() == 2


async def test_a_step_without_inputs_sends(path: Path) -> None:
    """A step without inputs sends its outputs as one batch, without a control record."""
    async with pair(path) as it:
        async with transaction(it.rx, it.tx) as step:
            step.send_many(["a", "b"])
        assert await it.output() == ["a", "b"]
        assert it.tx.write_offset == 2 * (RECORD_HEADER_SIZE + 2)
        async with transaction(it.rx, it.tx):
            pass


@DURABILITIES
async def test_input_and_output_may_be_one_channel(path: Path, durability: Durability) -> None:
    """A step can send to its input channel, and a later step receives that."""
    options = ChannelOptions(durability=durability)
    async with (
        open_channel(path, int, options=options) as channel,
        channel.ack_receiver() as rx,
        channel.sender() as tx,
    ):
        await tx.send(1)
        for number in range(1, 20):
            async with transaction(rx, tx) as step:
                assert await step.receive() == number
                step.send(number + 1)
        with channel.replay() as replay:
            assert [number async for number in replay] == list(range(1, 21))


async def test_readers_of_the_output_see_messages_only(path: Path) -> None:
    """Sequences, lag and the end of the output are the same for readers, because control records are not messages."""
    async with pair(path) as it:
        await it.fill(*range(5))
        with it.texts.receiver("reader") as reader:
            for number in range(5):
                assert await it.step() == number
            records = [await reader.receive_record() for _ in range(5)]
            assert [record.sequence for record in records] == [0, 1, 2, 3, 4]
            assert reader.statistics().lag_bytes == 0
            assert it.texts.statistics().messages == 5
            assert await it.texts.offset_of(3) == records[3].offset
            await it.texts.join("reader")
            await it.texts.seal()
            with pytest.raises(EndOfStream):
                await reader.receive()


async def test_large_steps_span_segments(path: Path) -> None:
    """The outputs of a large step are one batch, across as many segments as it needs."""
    async with pair(path, segment_size=4096) as it:
        await it.fill(*range(3000))
        for first in range(0, 3000, 1000):
            async with transaction(it.rx, it.tx) as step:
                numbers = await step.receive_many(1000)
                assert numbers == list(range(first, first + 1000))
                step.send_many([str(number) for number in numbers])
        assert await it.output() == [str(number) for number in range(3000)]
    async with pair(path) as it:
        assert stored(it.numbers) == 3000


# Where it resumes


@DURABILITIES
async def test_the_position_follows_the_output(path: Path, durability: Durability) -> None:
    """If a process dies between appending the batch and moving the cursor, the next one resumes after the input."""
    cursor = path / "numbers" / "consumers" / "default.cursor"
    async with pair(path, durability) as it:
        await it.fill(1, 2, 3)
        await it.step()
        before = cursor.read_bytes()
        await it.step()
    cursor.write_bytes(before)
    async with pair(path, durability) as it:
        assert stored(it.numbers) == 1
        assert await it.step() == 3
        assert await it.output() == ["1", "2", "3"]


async def test_a_name_that_is_registered_again_starts_from_the_beginning(path: Path) -> None:
    """A name that is removed and registered again starts from the beginning, whatever its predecessor did."""
    async with pair(path) as it:
        await it.fill(1, 2)
        assert [await it.step(), await it.step()] == [1, 2]
        await it.rx.unsubscribe()
        with it.numbers.ack_receiver() as rx:
            it.rx = rx
            assert await it.step() == 1
    async with pair(path) as it:
        assert await it.step() == 2
        assert await it.output() == ["1", "2", "1", "2"]


async def test_a_seek_is_not_undone(path: Path) -> None:
    """A seek redelivers messages of earlier steps, also to another process."""
    async with pair(path) as it:
        await it.fill(1, 2, 3)
        for _ in range(3):
            await it.step()
        await it.rx.seek("earliest")
    async with pair(path) as it:
        assert await it.step() == 1
        await it.rx.seek("earliest")
        assert await it.step() == 1
        assert await it.output() == ["1", "2", "3", "1", "1"]


@pytest.mark.parametrize("again", [False, True])
async def test_a_seek_in_the_block_undoes_the_step(path: Path, again: bool) -> None:
    """A seek in the block undoes the step, because its inputs are not before the position any more."""
    async with pair(path) as it:
        await it.fill(1, 2)
        with pytest.raises(AckError, match="a seek moved"):
            async with transaction(it.rx, it.tx) as step:
                step.send(str(await step.receive()))
                await it.rx.seek("earliest")
                if again:
                    await step.receive()
        assert await it.output() == []
        assert await it.step() == 1


async def test_the_output_may_change_in_one_process(path: Path) -> None:
    """A process may change the output of its steps; in another process the former output is searched first."""
    async with pair(path) as it, open_channel(path / "other", str) as other, other.sender() as otx:
        await it.fill(1, 2, 3, 4)
        assert await it.step() == 1
        async with transaction(it.rx, otx) as step:
            step.send(str(await step.receive()))
        assert await it.step() == 3
        with other.replay() as replay:
            assert [text async for text in replay] == ["2"]
    async with pair(path) as it, open_channel(path / "other", str) as other, other.sender() as otx:
        with pytest.raises(ConsumerMismatchError, match="into channel"):
            async with transaction(it.rx, otx) as step:
                raise AssertionError
        assert await it.step() == 4
        async with transaction(it.rx, otx) as step:
            step.send("nothing came in")


async def test_a_lost_output_can_be_ignored(path: Path) -> None:
    """After a seek, even to the current position, a lost output channel is ignored."""
    async with pair(path) as it:
        await it.fill(1, 2)
        assert await it.step() == 1
    shutil.rmtree(path / "texts")
    async with pair(path) as it:
        with pytest.raises(ConsumerMismatchError):
            await it.step()
        await it.rx.seek(it.rx.read_offset)
        assert await it.step() == 2
        assert await it.output() == ["2"]


@pytest.mark.parametrize("which", ["numbers", "texts"])
async def test_purged_channels_forget_nothing(path: Path, which: str) -> None:
    """After a purge of inputs and outputs a step resumes where the last one stopped."""
    cursor = path / "numbers" / "consumers" / "default.cursor"
    async with pair(path) as it:
        await it.fill(1, 2)
        await it.step()
        before = cursor.read_bytes()
        await it.step()
        await (it.numbers if which == "numbers" else it.texts).purge()
        await it.fill(3)
    cursor.write_bytes(before)
    async with pair(path) as it:
        assert await it.step() == 3
        assert await it.output() == (["1", "2", "3"] if which == "numbers" else ["3"])


# What is refused


async def test_only_receivers_that_acknowledge_and_senders_will_do(path: Path) -> None:
    """`transaction` refuses other receivers and senders, and the error names what to use instead."""
    async with pair(path) as it:
        with it.numbers.receiver("other") as fan_out, pytest.raises(TypeError, match=r"ack_receiver\(\)"):
            transaction(fan_out, it.tx)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"sender\(\)"):
            transaction(it.rx, it.rx)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"use filechannel\.transaction\(\)"):
            filechannel.blocking.transaction(it.rx, it.tx)  # type: ignore[arg-type]


async def test_closed_ones_are_refused(path: Path) -> None:
    """A closed receiver or sender is refused before anything is received."""
    async with pair(path) as it:
        await it.fill(1)
        with it.texts.sender() as other:
            pass
        with pytest.raises(ClosedResourceError):
            async with transaction(it.rx, other):
                raise AssertionError
        async with transaction(it.rx, it.tx) as step:
            pass
        with pytest.raises(ClosedResourceError):
            step.send("too late")
        with pytest.raises(ClosedResourceError):
            await step.receive()
        it.rx.close()
        with pytest.raises(ClosedResourceError):
            async with transaction(it.rx, it.tx):
                raise AssertionError


async def test_a_receiver_that_is_closed_in_the_block_sends_nothing(path: Path) -> None:
    """A step whose receiver is closed in the block sends nothing, because another process may own the name by then."""
    async with pair(path) as it:
        await it.fill(1)
        with pytest.raises(ClosedResourceError):
            async with transaction(it.rx, it.tx) as step:
                step.send(str(await step.receive()))
                it.rx.close()
        assert await it.output() == []
        with it.numbers.ack_receiver() as rx:
            assert await rx.receive() == 1


async def test_messages_received_before_must_be_acked_first(path: Path) -> None:
    """`transaction` refuses a receiver with outstanding messages, which the step would acknowledge."""
    async with pair(path) as it:
        await it.fill(1, 2)
        assert await it.rx.receive() == 1
        with pytest.raises(AckError, match="1 message was received before the transaction; ack or nack it first"):
            async with transaction(it.rx, it.tx):
                raise AssertionError
        it.rx.ack()
        assert await it.step() == 2


async def test_one_step_at_a_time(path: Path) -> None:
    """A receiver or its clones can be in one step at a time."""
    async with pair(path) as it:
        await it.fill(1)
        with it.rx.clone() as clone:
            async with transaction(it.rx, it.tx) as step:
                with pytest.raises(AckError, match="already"):
                    async with transaction(clone, it.tx):
                        raise AssertionError
                step.send(str(await step.receive()))
                with pytest.raises(AckError, match="received before"):
                    async with transaction(clone, it.tx):
                        raise AssertionError
            async with transaction(clone, it.tx):
                pass
        assert await it.output() == ["1"]


async def test_a_step_that_was_lost_is_over(path: Path) -> None:
    """A step whose end was never called, because Ctrl-C came before its block, does not keep the next one from
    starting.
    """
    async with pair(path) as it:
        await it.fill(1)
        lost = transaction(it.rx, it.tx)
        await lost.__aenter__()
        is_gone = weakref.ref(lost)
        del lost
        until(lambda: gc.collect() >= 0 and is_gone() is None)  # it does nothing while another thread collects
        assert await it.step() == 1


async def test_a_loop_of_steps_lets_others_run(path: Path) -> None:
    """A loop of steps that never waits yields to other tasks now and then."""
    async with pair(path) as it, anyio.create_task_group() as group:
        await it.fill(*range(20000))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        started, before = anyio.current_time(), turns
        while anyio.current_time() < started + 0.3:
            await it.step()
        assert turns > before + 10
        group.cancel_scope.cancel()


async def test_acknowledging_is_in_order(path: Path) -> None:
    """A step that would skip a nacked message with a delay is refused, because acks are in order."""
    async with pair(path) as it:
        await it.fill(1, 2)
        with pytest.raises(AckError, match="in order"):
            async with transaction(it.rx, it.tx) as step:
                delivery = await it.rx.receive_delivery()
                assert await step.receive() == 2
                delivery.nack(delay=100)
                step.send("2")
        assert await it.output() == []
        with pytest.raises(AckError, match="delay"):
            async with transaction(it.rx, it.tx):
                raise AssertionError


async def test_bad_values_are_refused_at_once(path: Path) -> None:
    """A bad value is refused where it is sent, and the step can continue without it."""
    async with pair(path, max_message_size=100) as it:
        await it.fill(1)
        async with transaction(it.rx, it.tx) as step:
            step.send(str(await step.receive()))
            with pytest.raises(CodecError, match="item 1 of the batch"):
                step.send_many(["a", 2])  # type: ignore[list-item]
            with pytest.raises(MessageTooLargeError):
                step.send("x" * 1000)
        assert await it.output() == ["1"]


async def test_a_sealed_output_refuses_a_step(path: Path) -> None:
    """A step with a sealed output is refused, and its inputs are redelivered."""
    async with pair(path) as it:
        await it.fill(1)
        await it.texts.seal()
        with pytest.raises(ChannelSealedError):
            await it.step()
        assert (it.rx.unack_count, stored(it.numbers)) == (0, 0)
        async with transaction(it.rx, it.tx) as step:
            assert await step.receive() == 1
        assert stored(it.numbers) == 1


@one_loop
async def test_a_full_disk_undoes_the_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a step sends nothing and its inputs are redelivered uncounted; it succeeds when there is space."""
    async with pair(path, segment_size=4096) as it:
        await it.fill(1, 2)
        await it.step()
        allocate = Files.allocate

        def full(self: Files, where: Path, descriptor: int, position: int, size: int) -> None:
            if "texts" in str(where):
                raise DiskFullError(where, size)
            allocate(self, where, descriptor, position, size)

        monkeypatch.setattr(Files, "allocate", full)
        with pytest.raises(DiskFullError):
            async with transaction(it.rx, it.tx) as step:
                assert await step.receive() == 2
                step.send("x" * 5000)
        monkeypatch.undo()
        assert await it.output() == ["1"]
        async with transaction(it.rx, it.tx) as step:
            delivery = await it.rx.receive_delivery()
            assert (delivery.value, delivery.attempt) == (2, 1)
            step.send("2")
        assert (await it.output(), stored(it.numbers)) == (["1", "2"], 2)


@one_loop
async def test_a_refused_flush_undoes_the_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a flush fails under FSYNC the step sends nothing, and the position of the next step is right."""
    async with pair(path, Durability.FSYNC) as it:
        await it.fill(1, 2)
        await it.step()
        flush, segments, refused = Files.flush, path / "texts" / "segments", []

        def refuse(self: Files, descriptor: int) -> None:
            if not refused and str(segments) in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
                refused.append(descriptor)
                raise OSError(5, "no")
            flush(self, descriptor)

        monkeypatch.setattr(Files, "flush", refuse)
        with pytest.raises(StorageError):
            await it.step()
        monkeypatch.undo()
        assert (await it.output(), stored(it.numbers)) == (["1"], 1)
        assert await it.step() == 2
    async with pair(path, Durability.FSYNC) as it:
        await it.fill(3)
        assert await it.step() == 3
        assert await it.output() == ["1", "2", "3"]


@one_loop
async def test_a_step_that_cannot_begin_receives_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the position cannot be flushed the step raises before it receives anything, and the next step tries again."""
    async with pair(path) as it:
        await it.fill(1)

        def refuse(self: Files, descriptor: int) -> None:
            raise OSError(5, "no")

        monkeypatch.setattr(Files, "flush", refuse)
        for _ in range(2):
            with pytest.raises(StorageError, match="no transaction can start"):
                await it.step()
        monkeypatch.undo()
        assert await it.step() == 1


@one_loop
async def test_an_origin_is_on_disk_before_a_record_names_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The origin is on disk before a record names it, also if the process that created it died or failed before."""
    cursor = path / "numbers" / "consumers" / "default.cursor"
    async with pair(path) as it:
        await it.fill(1)
        flush, refusing, flushed = Files.flush, True, 0

        def refuse(self: Files, descriptor: int) -> None:
            nonlocal flushed
            if Path(f"/proc/self/fd/{descriptor}").readlink() == cursor:
                if refusing:
                    raise OSError(5, "no")
                flushed += 1
            flush(self, descriptor)

        monkeypatch.setattr(Files, "flush", refuse)
        with pytest.raises(StorageError):
            await it.step()
        refusing = False
        assert await it.step() == 1
        assert flushed == 1
        await it.fill(2)
        await it.step()
        assert flushed == 1


@one_loop
async def test_a_channel_that_was_replaced_gets_no_files(path: Path) -> None:
    """A step creates no files in a channel that replaced its own."""
    async with pair(path) as it:
        await it.fill(1)
        await anyio.Path(path / "texts").rename(path / "moved")
        async with open_channel(path / "texts", str):
            with pytest.raises(StorageError, match="moved, removed or replaced"):
                await it.step()
        assert not (path / "texts" / "producers").exists()


# Cancellation


@DURABILITIES
async def test_steps_are_cancelled_at_random_moments(path: Path, durability: Durability, rng: Random) -> None:
    """Steps that are cancelled at random moments send the outputs of every input once, in order."""
    async with pair(path, durability) as it:
        await it.fill(*range(300))
        while stored(it.numbers) < 300:
            with anyio.move_on_after(rng.choice((0.0, 0.0001, 0.0005, 0.002, 0.01))):
                while True:
                    async with transaction(it.rx, it.tx) as step:
                        for number in await step.receive_many(rng.randint(1, 5)):
                            step.send_many([str(number)] * (number % 3))
                        if rng.random() < 0.2:
                            await anyio.lowlevel.checkpoint()
        assert await it.output() == [str(number) for number in range(300) for _ in range(number % 3)]
