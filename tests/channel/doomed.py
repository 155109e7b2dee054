"""Consumers in another process, which execute commands and are killed at any step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from filechannel import Delivery
from filechannel.blocking import FanOutReceiver, open_channel
from tests.processes.workers import Child, Link

Commands = list[tuple[Any, ...]]


def live_and_be_killed(task: Callable[..., None], path: Path, commands: Commands) -> list[Any]:
    """Let a process do all of it, kill it, and return what it saw of each command."""
    child = Child(task, (path, commands), "asyncio")
    try:
        return list(child.receive())
    finally:
        child.close()


def acknowledge(link: Link, path: Path, commands: Commands) -> None:
    """Send, receive, ack, nack and seek as a consumer that acknowledges; check after each how much is outstanding."""
    channel = open_channel(path, int)
    rx, tx, deliveries = channel.ack_receiver(), channel.sender(), dict[int, Delivery[int]]()

    def do(what: str, argument: int) -> list[int]:
        match what:
            case "send":
                tx.send_many(range(channel.statistics().next_sequence, argument))
            case "receive":
                taken = [rx.receive_delivery() for _ in range(argument)]
                deliveries.update({delivery.sequence: delivery for delivery in taken})
                return [delivery.value for delivery in taken]
            case "acknowledge":
                deliveries[argument].ack()
            case "seek":
                rx.seek(channel.offset_of(argument))
            case _:
                getattr(rx, what)(argument)
        return []

    link.send([(do(*command), rx.unack_count) for command in commands])
    link.receive()  # which never comes


def consume(link: Link, path: Path, commands: Commands) -> None:
    """Receive and seek under several names, and send in between; see what came."""
    channel = open_channel(path, bytes)
    tx, receivers = channel.sender(), dict[str, FanOutReceiver[bytes]]()

    def do(name: str, most: int, to: int | None, sent: list[bytes]) -> tuple[list[bytes], int]:
        if name not in receivers:
            receivers[name] = channel.receiver(name)
        rx = receivers[name]
        if to is not None:
            rx.seek(channel.offset_of(to))
        return rx.receive_many_nowait(most), tx.send_many(sent)

    link.send([do(*command) for command in commands])
    link.receive()
