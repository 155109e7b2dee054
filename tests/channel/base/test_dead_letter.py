"""Dead letters: where they are sent, what they contain, and how they are redriven."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio import EndOfStream

from filechannel import (
    AckReceiver,
    ChannelSealedError,
    CodecError,
    ConsumerBusyError,
    DeadLetter,
    DecodeError,
    FileChannel,
    Retention,
    RetryPolicy,
    Sender,
    open_channel,
    redrive,
)
from tests.channel.aio.test_ack_receiver import SMALL, fill, stored
from tests.channel.handling import NEVER, Book
from tests.channel.messages import Order

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def graveyard(path: Path) -> AsyncIterator[tuple[FileChannel[DeadLetter], Sender[DeadLetter]]]:
    """Open the dead-letter channel beside a channel."""
    async with open_channel(path.with_name("dead"), DeadLetter) as dead, dead.sender() as box:
        yield dead, box


async def letters(dead: FileChannel[DeadLetter]) -> list[DeadLetter]:
    """Return everything in it."""
    with dead.replay() as rx:
        return [letter async for letter in rx]


async def refuse(number: int) -> None:
    """Fail on every number that three divides."""
    if number % 3 == 0:
        raise ValueError(f"three divides\n{number}")


async def mixed(path: Path) -> None:
    """Make a channel of Orders in which the numbers 0, 5 and 9 are something else."""
    async with open_channel(path, object) as channel, channel.sender() as tx:
        await tx.send_many(["no order" if n in (0, 5, 9) else {"id": n, "sku": "pen", "qty": 1} for n in range(10)])
        await channel.configure(schema=Order)
        await channel.seal()


async def test_a_letter_contains_all_there_is_to_know(path: Path) -> None:
    """A dead letter has the stored message, the error, attempts, position and time; later messages are handled in
    order.
    """
    kept = replace(SMALL, retention=Retention(after_consumed="keep"))
    async with open_channel(path, int, options=kept) as channel, graveyard(path) as (dead, box):
        await fill(channel, 1000)
        handled = list[int]()

        async def handle(number: int) -> None:
            await refuse(number)
            handled.append(number)

        await channel.seal()
        service = channel.serve(handle, name="mail", retry=RetryPolicy(max_attempts=2, delay=0), dead_letter=box)
        await service
        assert handled == [n for n in range(1000) if n % 3]
        found = await letters(dead)
        assert [msgspec.msgpack.decode(letter.payload) for letter in found] == list(range(0, 1000, 3))
        for letter in found:
            assert letter.offset == await channel.offset_of(letter.sequence)
        letter = found[2]
        assert (letter.attempts, letter.reason) == (2, "ValueError: three divides")
        assert (letter.channel, letter.consumer, letter.sequence) == (str(path), "mail", 6)
        assert timedelta(0) <= datetime.now(UTC) - letter.time < timedelta(minutes=1)
        assert "in refuse" in letter.traceback
        statistics = service.statistics()
        assert (statistics.dead, statistics.failed, statistics.retried, statistics.handled) == (334, 668, 334, 666)
        assert stored(channel, "mail") == 1000


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_an_undecodable_message_is_skipped(path: Path, concurrency: int) -> None:
    """Each undecodable message becomes one dead letter, also the first and the last one, and with several workers."""
    await mixed(path)
    async with open_channel(path, Order) as channel, graveyard(path) as (dead, box):
        got = list[int]()

        async def handle(order: Order) -> None:
            await anyio.lowlevel.checkpoint()
            got.append(order.id)

        service = channel.serve(handle, ordered=concurrency == 1, concurrency=concurrency, dead_letter=box)
        await service
        assert sorted(got) == [1, 2, 3, 4, 6, 7, 8]
        found = await letters(dead)
        assert [(letter.sequence, letter.attempts) for letter in found] == [(0, 0), (5, 0), (9, 0)]
        assert {letter.payload for letter in found} == {msgspec.msgpack.encode("no order")}
        assert "not an Order" in found[0].reason
        assert (service.statistics().dead, service.statistics().failed) == (3, 0)
        with channel.ack_receiver() as rx, pytest.raises(EndOfStream):  # the position is behind the last one
            await rx.receive()


async def test_without_a_dead_letter_channel_it_is_an_error(path: Path) -> None:
    """Without a dead-letter channel an undecodable message ends the service with the error of a receive, and stays."""
    await mixed(path)
    async with open_channel(path, Order) as channel:
        for _ in range(2):
            with pytest.raises(DecodeError) as caught:
                await channel.serve(Book())  # type: ignore[arg-type]
            assert caught.value.offset == 0


async def test_a_letter_that_cannot_be_sent_loses_nothing(path: Path) -> None:
    """If a dead letter cannot be sent the service ends with that error, and the message stays the next one."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await fill(channel, 5)
        await dead.seal()
        with pytest.raises(ChannelSealedError):
            await channel.serve(refuse, retry=NEVER, dead_letter=box)
        assert stored(channel) == 0


class OddError(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OddError(), "OddError: its text is not available"),
        (ValueError("no \udcff character"), "ValueError: no \\udcff character"),
        (ValueError("x" * 10**6), "ValueError: " + "x" * 988),
        (ValueError(" \n"), "ValueError"),
    ],
    ids=["odd", "surrogate", "long", "blank"],
)
async def test_an_error_that_is_hard_to_show(path: Path, error: Exception, reason: str) -> None:
    """An error whose text is missing, blank, too long or not encodable becomes a short reason in the dead letter."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await fill(channel, 1)
        await channel.seal()

        async def handle(number: int) -> None:
            raise error

        await channel.serve(handle, retry=NEVER, dead_letter=box)
        [letter] = await letters(dead)
        assert letter.reason == reason
        assert len(letter.traceback) < 10_000


async def test_a_handler_that_ruins_its_message(path: Path) -> None:
    """A dead letter has the message that was sent, although the handler changed the object."""
    async with open_channel(path, list[int]) as channel, graveyard(path) as (dead, box):
        with channel.sender() as tx:
            await tx.send([1, 2])
        await channel.seal()

        async def handle(numbers: list[int]) -> None:
            numbers.clear()
            raise ValueError

        await channel.serve(handle, retry=NEVER, dead_letter=box)
        assert [letter.payload for letter in await letters(dead)] == [msgspec.msgpack.encode([1, 2])]


async def test_many_at_once_write_letters(path: Path) -> None:
    """With many workers each message without attempts left becomes one dead letter, and the others are handled."""
    async with open_channel(path, int, options=SMALL) as channel, graveyard(path) as (dead, box):
        await fill(channel, 300)
        await channel.seal()
        retry = RetryPolicy(max_attempts=3, delay=0)
        await channel.serve(refuse, ordered=False, concurrency=8, retry=retry, dead_letter=box)
        found = await letters(dead)
        assert sorted(letter.sequence for letter in found) == list(range(0, 300, 3))
        assert {letter.attempts for letter in found} == {3}


# Redriving


async def make_letters(channel: FileChannel[int], box: Sender[DeadLetter], count: int) -> None:
    """Let so many messages become dead letters, one by one."""
    async with channel.serve(refuse, retry=NEVER, dead_letter=box) as service:
        await fill(channel, count)
        await channel.join()
    assert service.statistics().lag == 0


async def test_redriven_messages_are_what_they_were(path: Path) -> None:
    """`redrive` sends each message once with unchanged bytes; a second call has nothing to do."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await make_letters(channel, box, 10)
        async with open_channel(path.with_name("other"), int) as other:
            assert await redrive(dead, other) == 4
            assert await redrive(dead, other) == 0
            with other.replay() as rx:
                assert [number async for number in rx] == [0, 3, 6, 9]
        async with open_channel(path.with_name("other"), int) as again:
            assert again.statistics().messages == 4


async def test_what_fails_again_is_not_redriven_again(path: Path) -> None:
    """Dead letters that are written during a redrive wait for the next one."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await make_letters(channel, box, 10)
        async with channel.serve(refuse, retry=NEVER, dead_letter=box) as service:
            for _ in range(2):
                assert await redrive(dead, channel) == 4
                await channel.join()
        assert service.statistics().dead == 8


async def test_a_payload_that_does_not_fit_stays(path: Path) -> None:
    """At a payload that does not fit `redrive` raises an error that names the letter, after the letters before it were
    sent.
    """
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await make_letters(channel, box, 4)
        good = (await letters(dead))[0]
        await box.send(msgspec.structs.replace(good, payload=msgspec.msgpack.encode("no number")))
        await box.send(good)
        async with open_channel(path.with_name("other"), int) as other:
            for _ in range(2):
                with pytest.raises(CodecError, match="not a valid int"):
                    await redrive(dead, other)
                assert (other.statistics().messages, stored_letters(dead)) == (2, 2)


def stored_letters(dead: FileChannel[DeadLetter]) -> int:
    """Return how many letters were acknowledged."""
    [consumer] = dead.consumers()
    return consumer.next_sequence


async def test_redriving_the_wrong_way_round_takes_no_name(path: Path) -> None:
    """`redrive` refuses arguments that are not a dead-letter channel and its target, and registers no consumer."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await make_letters(channel, box, 4)
        known = [consumer.name for consumer in channel.consumers()]
        for wrong in ((channel, dead), (None, channel), (dead, box)):
            with pytest.raises(TypeError, match="must be a "):
                await redrive(*wrong)  # type: ignore[arg-type]
        assert ([consumer.name for consumer in channel.consumers()], dead.consumers()) == (known, ())


async def test_redriving_under_another_name(path: Path) -> None:
    """Redrives under different names resume separately, and do not disturb each other."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await make_letters(channel, box, 4)
        with dead.ack_receiver("redrive") as rx:
            assert isinstance(rx, AckReceiver)
            with pytest.raises(ConsumerBusyError):
                await redrive(dead, channel)
        assert await redrive(dead, channel, name="second") == 2
        assert await redrive(dead, channel) == 2


async def test_redriving_can_be_cancelled(path: Path, rng: random.Random) -> None:
    """A redrive that is cancelled repeatedly sends every message once."""
    async with open_channel(path, int) as channel, graveyard(path) as (dead, box):
        await make_letters(channel, box, 600)
        good = (await letters(dead))[0]
        await box.send_many([msgspec.structs.replace(good, payload=bytes([n])) for n in range(100)] * 20)
        async with open_channel(path.with_name("other"), int) as other:
            ended = False
            while not ended:
                with anyio.move_on_after(rng.uniform(0, 0.003)):
                    ended = not await redrive(dead, other)
            with other.replay() as rx:
                assert [number async for number in rx] == [*range(0, 600, 3), *[*range(100)] * 20]


async def test_raw_letters(path: Path) -> None:
    """A channel of bytes has dead letters with any bytes."""
    async with open_channel(path, bytes) as channel, graveyard(path) as (dead, box):
        with channel.sender() as tx:
            await tx.send_many([b"", b"\xc1", b"x" * 5000])
        await channel.seal()

        async def handle(message: bytes) -> None:
            raise ValueError

        await channel.serve(handle, retry=NEVER, dead_letter=box)
        async with open_channel(path.with_name("other"), bytes) as other:
            assert await redrive(dead, other) == 3
            with other.replay() as rx:
                assert [message async for message in rx] == [b"", b"\xc1", b"x" * 5000]
