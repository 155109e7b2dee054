"""Act one: a sending process is killed with SIGKILL, again and again, and no accepted message is lost.

The child sends numbered orders as fast as it can, one by one and in batches, and reports after each `send` how many
were accepted. It is killed in the middle of that. Then the parent receives: every accepted order must be there, once
and in order, and every batch must be complete.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import anyio

from ... import open_channel
from .children import numbers_from, started
from .messages import Order, make_batch

CRASHES: Final = 5
_SECONDS: Final = 0.5
_BATCH: Final = 10


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one kill."""

    accepted: int
    received: int
    in_order: bool
    torn_batches: int

    @property
    def lost(self) -> int:
        """The number of orders that were accepted and not received."""
        return max(0, self.accepted - self.received)

    @property
    def is_fine(self) -> bool:
        """Whether the promise was kept."""
        # The channel may have accepted one more step that the child could not report any more.
        unreported = self.received - self.accepted
        return self.accepted > 0 and self.in_order and not self.torn_batches and 0 <= unreported <= _BATCH


@final
@dataclass(frozen=True, slots=True)
class CrashProgress:
    """The outcomes so far, and how many orders the running process has sent."""

    outcomes: tuple[Outcome, ...]
    accepted: int | None

    @property
    def is_fine(self) -> bool:
        """Whether the promise was kept each time."""
        return len(self.outcomes) == CRASHES and all(outcome.is_fine for outcome in self.outcomes)


def crash_repeatedly(path: Path) -> Iterator[CrashProgress]:
    """Yield the state, often, until the last kill."""
    outcomes: tuple[Outcome, ...] = ()
    first = 0
    for _ in range(CRASHES):
        accepted = 0
        with started(__name__, path, first) as child:
            end = None
            for number in numbers_from(child):
                accepted = number - first
                end = end or time.monotonic() + _SECONDS
                if time.monotonic() > end:
                    child.kill()  # what it reported before the kill is still read
                elif accepted % 1_000 < _BATCH:
                    yield CrashProgress(outcomes, accepted)
        received = anyio.run(_receive_all, path)
        outcomes += (_check(first, accepted, received),)
        yield CrashProgress(outcomes, None)
        first += len(received)


async def _receive_all(path: Path) -> list[Order]:
    """Open the channel, receive everything this consumer has not received yet, and close it."""
    received: list[Order] = []
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        while some := rx.receive_many_nowait(1_000):
            received += some
    return received


def _check(first: int, accepted: int, received: list[Order]) -> Outcome:
    numbers = [order.number for order in received]
    members = Counter((order.batch, order.batch_size) for order in received)
    return Outcome(
        accepted=accepted,
        received=len(received),
        in_order=numbers == list(range(first, first + len(numbers))),
        torn_batches=sum(count != size for (_, size), count in members.items()),
    )


# The child


async def _send_until_killed(path: Path, number: int) -> None:
    """Send orders starting at a number, and report the next number after each step."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        while True:
            await tx.send(make_batch(number, 1)[0])
            number += 1
            _report(number)
            await tx.send_many(make_batch(number, _BATCH))
            number += _BATCH
            _report(number)


def _report(number: int) -> None:
    os.write(sys.stdout.fileno(), b"%d\n" % number)


if __name__ == "__main__":
    anyio.run(_send_until_killed, Path(sys.argv[1]), int(sys.argv[2]))
