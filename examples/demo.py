"""What filechannel promises, shown on this machine: `make demo`.

A child process sends numbered orders as fast as it can, one by one and in batches, and says after each `send` how many
were accepted. In the middle of that it is killed with SIGKILL, which no program can catch. Then the parent opens the
channel and receives: every order that was accepted must be there, once, in order, and every batch whole. This is done
a few times on one channel. At the end comes a look at the speed, beside an `asyncio.Queue`.

Exits with 0 if the promise was kept, and with 1 if not.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO

import msgspec  # comes with filechannel

from filechannel import open_channel

KILLS = 5
SECONDS = 0.5
BATCH = 10
NUMBER_SIZE = 8
ROUNDS = 7
MESSAGES = 10_000


class Order(msgspec.Struct):
    """One order, and which batch it was sent in."""

    number: int
    sku: str
    qty: int
    batch: int
    batch_size: int


def make_batch(first: int, size: int) -> list[Order]:
    return [Order(first + i, f"SKU-{i}", 1, batch=first, batch_size=size) for i in range(size)]


# The child


async def send_until_killed(path: Path, number: int) -> None:
    """Send orders from a number on, and report after each step the number that comes next."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        while True:
            await tx.send(make_batch(number, 1)[0])
            number += 1
            report(number)
            await tx.send_many(make_batch(number, BATCH))
            number += BATCH
            report(number)


def report(number: int) -> None:
    os.write(sys.stdout.fileno(), number.to_bytes(NUMBER_SIZE, "little"))


# The parent


@dataclass(frozen=True)
class Outcome:
    """What one kill did."""

    accepted: int
    received: int
    in_order: bool
    torn_batches: int

    @property
    def lost(self) -> int:
        """Orders that were accepted and did not come."""
        return max(0, self.accepted - self.received)

    @property
    def is_fine(self) -> bool:
        """Whether the promise was kept."""
        # A step that the channel had accepted but the child could not report any more may come on top.
        unreported = self.received - self.accepted
        return self.in_order and not self.torn_batches and 0 <= unreported <= BATCH


def start_and_kill(path: Path, first: int) -> int:
    """Let a child send orders for a while, kill it, and return how many it reported as accepted."""
    command = [sys.executable, __file__, str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        reported = read_number(child.stdout, first)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            reported = read_number(child.stdout, reported)
        child.kill()
        rest = child.stdout.read()
    if rest:
        reported = int.from_bytes(rest[-NUMBER_SIZE:], "little")
    return reported - first


def read_number(pipe: IO[bytes], otherwise: int) -> int:
    content = pipe.read(NUMBER_SIZE)
    return int.from_bytes(content, "little") if content else otherwise


async def receive_all(path: Path) -> list[Order]:
    """Open the channel, receive what this consumer has not had yet, and close it."""
    received: list[Order] = []
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        while some := rx.receive_many_nowait(1_000):
            received += some
    return received


def check(first: int, accepted: int, received: list[Order]) -> Outcome:
    numbers = [order.number for order in received]
    members = Counter((order.batch, order.batch_size) for order in received)
    return Outcome(
        accepted=accepted,
        received=len(received),
        in_order=numbers == list(range(first, first + len(numbers))),
        torn_batches=sum(count != size for (_, size), count in members.items()),
    )


def survive_kills(path: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    first = 0
    for _ in range(KILLS):
        accepted = start_and_kill(path, first)
        received = asyncio.run(receive_all(path))
        outcomes.append(check(first, accepted, received))
        first += len(received)
    return outcomes


# Speed


async def compare_speed(path: Path) -> dict[str, float]:
    """Return nanoseconds for sending and receiving one message, each the median of rounds in turn."""
    queue: asyncio.Queue[Order] = asyncio.Queue()
    orders = make_batch(0, MESSAGES)
    times: dict[str, list[float]] = {}

    def note(name: str, began: int) -> None:
        times.setdefault(name, []).append((time.perf_counter_ns() - began) / MESSAGES)

    async with open_channel(path, Order) as channel, channel.sender() as tx, channel.receiver() as rx:
        for _ in range(ROUNDS):
            began = time.perf_counter_ns()
            for order in orders:
                await queue.put(order)
                await queue.get()
            note("asyncio.Queue, in memory", began)

            began = time.perf_counter_ns()
            for order in orders:
                await tx.send(order)
                await rx.receive()
            note("filechannel, one by one", began)

            began = time.perf_counter_ns()
            for start in range(0, MESSAGES, 1_000):
                await tx.send_many(orders[start : start + 1_000])
                await rx.receive_many(1_000)
            note("filechannel, batches of 1,000", began)
    return {name: median(rounds) for name, rounds in times.items()}


# The show


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="filechannel-demo-") as directory:
        print(f"A process sends orders into a channel and is killed with SIGKILL, {KILLS} times:\n", flush=True)
        outcomes = survive_kills(Path(directory, "orders"))
        print("  kill   accepted   received   lost   torn batches   in order")
        for number, outcome in enumerate(outcomes, 1):
            in_order = "yes" if outcome.in_order else "NO"
            print(
                f"  {number:4}   {outcome.accepted:8,}   {outcome.received:8,}   {outcome.lost:4}"
                f"   {outcome.torn_batches:12}   {in_order:>8}"
            )
        print("\n  (one step can be accepted that the killed process had no time left to report)")

        speed = asyncio.run(compare_speed(Path(directory, "speed")))
        print("\nNanoseconds to send and receive one order; filechannel encodes, checksums and files it:\n")
        yardstick = next(iter(speed.values()))
        for name, nanoseconds in speed.items():
            print(f"  {name:30} {nanoseconds:7,.0f}   {nanoseconds / yardstick:5.2f} x")

    kept = all(outcome.is_fine and outcome.accepted for outcome in outcomes)
    total = sum(outcome.accepted for outcome in outcomes)
    print(f"\n{'Nothing lost' if kept else 'THE PROMISE WAS BROKEN'}: {total:,} orders accepted, {KILLS} kills.")
    return 0 if kept else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(send_until_killed(Path(sys.argv[1]), int(sys.argv[2])))
    else:
        sys.exit(main())
