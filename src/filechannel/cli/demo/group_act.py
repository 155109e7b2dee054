"""Act two: a group of processes shares the work, one of them is killed, and the others redo what it had received.

Each worker receives an order, sends a confirmation to another channel and acknowledges the order. The killed worker
leaves unacknowledged orders behind: they are redelivered to the others within a second.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ... import blocking
from .children import started
from .messages import Done, Order, make_batch

WORKERS: Final = 3
ORDERS: Final = 6_000
_KILLED: Final = 1
_KILL_AFTER: Final = 500
"""How many orders the worker handles before it is killed."""
_HELD: Final = 16
_WORK: Final = 0.000_5
"""Seconds that it takes to handle an order."""
_TIMEOUT: Final = 30.0


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """How far the workers are."""

    done: dict[int, int]
    """The number of orders that each worker has handled."""
    repeated: int
    """Orders that were handled twice: the killed worker had handled, but not acknowledged them."""
    killed: int | None
    """The worker that was killed."""

    @property
    def total(self) -> int:
        """The number of different orders that were handled."""
        return sum(self.done.values()) - self.repeated

    @property
    def is_fine(self) -> bool:
        """Whether every order was handled, and only orders that the killed worker held were handled again."""
        return self.total == ORDERS and self.killed is not None and self.repeated <= _HELD


def share_work(directory: Path) -> Iterator[Progress]:
    """Yield the progress, often, until all orders are handled."""
    todo, results = directory / "todo", directory / "done"
    with blocking.open_channel(todo, Order) as orders, blocking.open_channel(results, Done) as done:
        orders.group("workers").close()  # registered first: nothing counts as consumed before the workers start
        with orders.sender() as tx:
            tx.send_many(make_batch(0, ORDERS))
        with done.receiver() as rx, ExitStack() as stack:
            workers = [stack.enter_context(started(__name__, todo, results, number)) for number in range(WORKERS)]
            seen, by_worker = Counter[int](), dict.fromkeys(range(WORKERS), 0)
            killed = None
            while len(seen) < ORDERS:
                for one in rx.receive_many(1_000, timeout=_TIMEOUT):
                    seen[one.number] += 1
                    by_worker[one.worker] += 1
                if killed is None and by_worker[_KILLED] > _KILL_AFTER:
                    workers[_KILLED].kill()
                    killed = _KILLED
                yield Progress(dict(by_worker), seen.total() - len(seen), killed)


# The child


def _work(todo: Path, results: Path, number: int) -> None:
    with blocking.open_channel(todo, Order) as orders, blocking.open_channel(results, Done) as done:
        with orders.group("workers") as rx, done.sender() as tx:
            while True:
                for order in rx.receive_many(_HELD):
                    time.sleep(_WORK)
                    tx.send(Done(order.number, number))
                    rx.ack()


if __name__ == "__main__":
    _work(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
