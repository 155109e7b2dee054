"""Processes that write to a channel and processes that read it, for the groups that measure across processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns as now
from time import process_time_ns
from typing import Any, NamedTuple

from filechannel.blocking import FileChannel, open_channel

from .child_processes import TIMEOUT, Child, ChildProcesses, answer, orders, play
from .messages import BATCH, ORDERS, RAW, Order

_DISK_SPACE = 128 << 20
_KINDS: dict[str, tuple[type, list[Any]]] = {"raw": (bytes, RAW), "struct": (Order, ORDERS)}


class Transfer(NamedTuple):
    """The result of passing messages from process to process."""

    elapsed: float
    """Nanoseconds per message, from the first send to the last receive of the slowest reader."""
    cpu: float
    """Nanoseconds of CPU time per message that the writers used."""


class Workers:
    """Writers and readers of one channel: processes that are started and wait for commands."""

    def __init__(self, processes: ChildProcesses, path: Path, kind: str, writers: int = 1, readers: int = 1) -> None:
        self._readers = [processes.start(__name__, "reader", path, kind, number) for number in range(readers)]
        self._writers = [processes.start(__name__, "writer", path, kind) for _ in range(writers)]

    def transfer(self, count: int, *, batched: bool, writers: int | None = None) -> Transfer:
        """Let all or some writers send *count* messages together, and let every reader receive them all."""
        chosen = self._writers[:writers]
        for reader in self._readers:
            reader.send(batched, count)
        _receive_all(self._readers)
        for writer in chosen:
            writer.send(batched, count // len(chosen))
        sent, received = _receive_all(chosen), _receive_all(self._readers)
        elapsed = max(ended for (ended,) in received) - min(began for began, _ in sent)
        return Transfer(elapsed / count, sum(cpu for _, cpu in sent) / count)


def _receive_all(children: Sequence[Child]) -> list[list[float]]:
    return [child.receive() for child in children]


def writer(path: str, kind: str) -> None:
    type_, items = _KINDS[kind]
    with open_channel(path, type_) as channel, channel.sender() as tx:
        send, send_many = tx.send, tx.send_many
        for batched, count in orders():
            _keep_small(channel)
            cpu, began = process_time_ns(), now()
            if batched:
                for _ in range(count // BATCH):
                    send_many(items)
            else:
                for _ in range(count // BATCH):
                    for item in items:
                        send(item)
            answer(began, process_time_ns() - cpu)


def reader(path: str, kind: str, name: str) -> None:
    type_, items = _KINDS[kind]
    with open_channel(path, type_) as channel, channel.receiver(name) as rx:
        receive, receive_many = rx.receive, rx.receive_many
        item: object = None
        for batched, count in orders():
            answer()
            if batched:
                left = count
                while left:
                    batch = receive_many(BATCH, timeout=TIMEOUT)
                    left -= len(batch)
                item = batch[-1]
            else:
                for _ in range(count):
                    item = receive(TIMEOUT)
            answer(now())
            assert item == items[-1]


def member(path: str) -> None:
    with open_channel(path, Order) as channel, channel.group("members") as rx:
        receive, ack = rx.receive, rx.ack
        for _ in orders():
            began, count = now(), -1
            item = None
            while item is None or item.id >= 0:
                item = receive(TIMEOUT)
                ack()
                count += 1
            answer(began, now(), count)


def _keep_small(channel: FileChannel[Any]) -> None:
    if channel.statistics().bytes_on_disk > _DISK_SPACE:
        channel.purge()


ROLES: dict[str, Callable[..., None]] = {"writer": writer, "reader": reader, "member": member}

if __name__ == "__main__":
    play(ROLES)
