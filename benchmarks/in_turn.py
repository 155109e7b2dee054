"""One message at a time, sent and received: through an `asyncio.Queue`, the yardstick Q, and through a channel.

Each has a loop function of its own: the interpreter specializes code for the types it sees, and would be slower if both
used the same function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from filechannel import FanOutReceiver, Sender

from .harness import Round, working_ns

T = TypeVar("T")


def through_queue(messages: Sequence[T], repeat: int, now: Callable[[], int] = working_ns) -> Round:
    queue: asyncio.Queue[T] = asyncio.Queue()

    async def run() -> float:
        began = now()
        for _ in range(repeat):
            for message in messages:
                await queue.put(message)
                await queue.get()
        return (now() - began) / (repeat * len(messages))

    return run


def through_channel(
    tx: Sender[T], rx: FanOutReceiver[T], messages: Sequence[T], repeat: int, now: Callable[[], int] = working_ns
) -> Round:
    async def run() -> float:
        began = now()
        for _ in range(repeat):
            for message in messages:
                await tx.send(message)
                await rx.receive()
        return (now() - began) / (repeat * len(messages))

    return run
