"""Steps without async: what is sent and what is acknowledged take effect together."""

# ruff: noqa: PT012 - what raises is the end of a block
from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from anyio import EndOfStream

import filechannel
from filechannel import AckError, ChannelOptions, Durability
from filechannel.blocking import AckReceiver, FileChannel, Sender, open_channel, transaction

DURABILITIES = pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC], ids=["os", "fsync"])


@contextmanager
def pair(
    path: Path, durability: Durability = Durability.OS
) -> Iterator[tuple[FileChannel[int], FileChannel[str], AckReceiver[int], Sender[str]]]:
    """Open an input of numbers and an output of texts."""
    options = ChannelOptions(durability=durability)
    with (
        open_channel(path / "numbers", int, options=options) as numbers,
        open_channel(path / "texts", str, options=options) as texts,
        numbers.ack_receiver() as rx,
        texts.sender() as tx,
    ):
        yield numbers, texts, rx, tx


@DURABILITIES
def test_outputs_and_ack_take_effect_together(path: Path, durability: Durability) -> None:
    """Outputs and ack of a step take effect at the end of its block; an error undoes both."""
    with pair(path, durability) as (numbers, texts, rx, tx):
        numbers.sender().send_many(range(5))
        with transaction(rx, tx) as step:
            assert step.receive_many(2) == [0, 1]
            step.send_many(["0", "1"])
            assert (texts.statistics().messages, rx.unack_count) == (0, 2)
        assert (texts.statistics().messages, rx.unack_count) == (2, 0)
        with pytest.raises(ZeroDivisionError), transaction(rx, tx) as step:
            step.send(str(1 // (step.receive(timeout=1) - 2)))
        with pytest.raises(KeyboardInterrupt), transaction(rx, tx) as step:
            assert rx.receive_delivery().attempt == 2
            raise KeyboardInterrupt
        with transaction(rx, tx) as step:
            delivery = rx.receive_delivery()
            assert (delivery.value, delivery.attempt) == (2, 2)
            step.send("2")
        assert list(texts.replay()) == ["0", "1", "2"]
    with pair(path, durability) as (_, texts, rx, tx):
        with transaction(rx, tx) as step:
            step.send_many(map(str, step.receive_many(9)))
        assert list(texts.replay()) == ["0", "1", "2", "3", "4"]


def test_an_exit_stack_holds_a_step(path: Path) -> None:
    """`ExitStack` can enter a step, because `__exit__` is a method of its class."""
    with pair(path) as (numbers, texts, rx, tx):
        numbers.sender().send(7)
        with ExitStack() as stack:
            step = stack.enter_context(transaction(rx, tx))
            step.send(str(step.receive()))
        assert list(texts.replay()) == ["7"]


def test_a_loop_ends_with_its_input(path: Path) -> None:
    """The end of a sealed channel leaves the block of the step and the loop around it."""
    with pair(path) as (numbers, texts, rx, tx):
        numbers.sender().send_many(range(100))
        numbers.seal()
        with pytest.raises(EndOfStream):
            while True:
                with transaction(rx, tx) as step:
                    step.send(str(step.receive()))
        assert list(texts.replay()) == [str(number) for number in range(100)]


def test_receiving_in_a_step_may_take_too_long(path: Path) -> None:
    """A receive in a step that times out leaves the step without effect."""
    with pair(path) as (_, _, rx, tx):
        with pytest.raises(TimeoutError), transaction(rx, tx) as step:
            step.send("never")
            step.receive(timeout=0)
        with pytest.raises(TimeoutError), transaction(rx, tx) as step:
            step.receive_many(5, timeout=0)
        assert tx.write_offset == 0


def test_threads_take_their_own_consumers(path: Path) -> None:
    """Several consumers write into one output, and each of their steps is stored once, as a whole."""
    with open_channel(path / "numbers", int) as numbers, open_channel(path / "texts", str) as texts:
        numbers.sender().send_many(range(200))

        def work(name: str) -> None:
            with numbers.ack_receiver(name) as rx, texts.sender() as tx:
                for _ in range(20):
                    with transaction(rx, tx) as step:
                        step.send_many(f"{name} {number}" for number in step.receive_many(10))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [text.split() for text in texts.replay()]
        for name in "abcd":
            assert [int(number) for owner, number in found if owner == name] == list(range(200))


def test_only_blocking_ones_will_do(path: Path) -> None:
    """A blocking step refuses async receivers and senders by naming the other function, and refuses nested steps."""
    with pair(path) as (numbers, _, rx, tx):
        with pytest.raises(TypeError, match=r"use filechannel\.blocking\.transaction\(\)"):
            filechannel.transaction(rx, tx)  # type: ignore[arg-type]
        with numbers.receiver("other") as fan_out, pytest.raises(TypeError, match=r"ack_receiver\(\)"):
            transaction(fan_out, tx)  # type: ignore[arg-type]
        with transaction(rx, tx), pytest.raises(AckError), transaction(rx, tx):
            raise AssertionError
