"""Act two: a group of processes shares the work, one of them is killed, and the others do what it had taken.

Each worker receives an order, sends that it is done into another channel and acknowledges the order. The killed one
leaves orders behind that it had taken: they come again, to the others, within a second.
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
"""So many orders the victim handles before it is killed."""
_HELD: Final = 16
_WORK: Final = 0.000_5
"""Seconds that it takes to handle an order."""
_PATIENCE: Final = 30.0


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """How far the crew is."""

    done: dict[int, int]
    """Orders that each worker has handled."""
    repeated: int
    """Orders that were handled twice: done by the killed one, but not acknowledged any more."""
    killed: int | None
    """The worker that is dead."""

    @property
    def total(self) -> int:
        """Different orders that were handled."""
        return sum(self.done.values()) - self.repeated

    @property
    def is_fine(self) -> bool:
        """Whether every order was handled, and only those again that were in the hands of the dead."""
        return self.total == ORDERS and self.killed is not None and self.repeated <= _HELD


def share_work(directory: Path) -> Iterator[Progress]:
    """Yield how far the crew is, often, until all is done."""
    todo, results = directory / "todo", directory / "done"
    with blocking.open_channel(todo, Order) as orders, blocking.open_channel(results, Done) as done:
        orders.group("crew").close()  # so that nothing is taken for consumed before the crew is there
        with orders.sender() as tx:
            tx.send_many(make_batch(0, ORDERS))
        with done.receiver() as rx, ExitStack() as stack:
            crew = [stack.enter_context(started(__name__, todo, results, number)) for number in range(WORKERS)]
            seen, by_worker = Counter[int](), dict.fromkeys(range(WORKERS), 0)
            killed = None
            while len(seen) < ORDERS:
                for one in rx.receive_many(1_000, timeout=_PATIENCE):
                    seen[one.number] += 1
                    by_worker[one.worker] += 1
                if killed is None and by_worker[_KILLED] > _KILL_AFTER:
                    crew[_KILLED].kill()
                    killed = _KILLED
                yield Progress(dict(by_worker), seen.total() - len(seen), killed)


# The child


def _work(todo: Path, results: Path, number: int) -> None:
    with blocking.open_channel(todo, Order) as orders, blocking.open_channel(results, Done) as done:
        with orders.group("crew") as rx, done.sender() as tx:
            while True:
                for order in rx.receive_many(_HELD):
                    time.sleep(_WORK)
                    tx.send(Done(order.number, number))
                    rx.ack()


if __name__ == "__main__":
    _work(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
