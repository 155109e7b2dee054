"""A message bus between processes: typed events and raw bytes, each in a channel of its own.

A parent starts two workers. They receive events of several types, each worker under its own name and so all of them,
and answer with raw bytes. Nobody serves the bus: it is two directories. Needs the native core.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import msgspec

from filechannel.blocking import FileChannel, open_channel


class Placed(msgspec.Struct, tag=True):
    """An order was placed."""

    id: int
    sku: str


class Cancelled(msgspec.Struct, tag=True):
    """An order was cancelled."""

    id: int


Event = Placed | Cancelled


def work(name: str, events: FileChannel[Event], answers: FileChannel[bytes]) -> None:
    """Follow the events until the bus is sealed."""
    with events, answers, events.receiver(name) as rx, answers.sender() as tx:
        for event in rx:
            match event:
                case Placed(id, sku):
                    tx.send(f"{name}: {sku} for order {id}".encode())
                case Cancelled(id):
                    tx.send(f"{name}: order {id} is off".encode())


def main(directory: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with open_channel(directory / "events", Event) as events, open_channel(directory / "answers", bytes) as answers:
        names = ("stock", "billing")
        workers = [context.Process(target=work, args=(name, events, answers)) for name in names]
        for worker in workers:
            worker.start()
        with events.sender() as tx:
            tx.send(Placed(1, "pen"))
            tx.send_many([Placed(2, "ink"), Cancelled(1)])
        events.seal()
        with answers.receiver() as rx:
            for _ in range(3 * len(workers)):
                print(rx.receive(timeout=60).decode())
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
