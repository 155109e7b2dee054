"""Handlers that do nothing: what `serve` costs compared with a loop written by hand."""

from __future__ import annotations

from filechannel import AckReceiver, FileChannel, Service, open_channel

from .consumers import fill
from .harness import Bench, run_interleaved
from .harness import working_ns as now
from .messages import BATCH, Order
from .report import Finding

TITLE = "handlers, 5-field Struct"
_REPEAT = 4
_MESSAGES = _REPEAT * BATCH


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory:
        async with (
            open_channel(directory / "by-hand", Order) as by_hand,
            open_channel(directory / "ordered", Order) as ordered,
            open_channel(directory / "concurrent", Order) as concurrent,
        ):
            with by_hand.ack_receiver() as rx:

                async def loop() -> float:
                    await fill(by_hand, _REPEAT)
                    return await _by_hand(rx)

                async def serve() -> float:
                    await fill(ordered, _REPEAT)
                    return await _serve(ordered, concurrency=1)

                async def serve_at_once() -> float:
                    await fill(concurrent, _REPEAT)
                    return await _serve(concurrent, concurrency=4)

                contestants = {"by hand": loop, "ordered": serve, "concurrent": serve_at_once}
                found = await run_interleaved(contestants, bench.rounds(200))

    bare, in_order, at_once = found["by hand"], found["ordered"], found["concurrent"]
    return [
        Finding("a loop of receive, await handler, ack", bare.per(bare), "x the loop", time=bare),
        Finding("serve, ordered", in_order.per(bare), "x the loop", 2, time=in_order),
        Finding("serve, concurrency=4", at_once.per(bare), "x the loop", time=at_once),
    ]


class Handler:
    """Counts messages, and reads the clock at the first and at the last one."""

    def __init__(self) -> None:
        self.left = _MESSAGES
        self.began = self.ended = 0
        self.service: Service | None = None

    async def handle(self, order: Order) -> None:
        self.left -= 1
        if not self.left:
            self.ended = now()
            if self.service is not None:
                self.service.stop()
        elif not self.began:
            self.began = now()

    @property
    def figure(self) -> float:
        return (self.ended - self.began) / (_MESSAGES - 1)


async def _by_hand(rx: AckReceiver[Order]) -> float:
    handler = Handler()
    handle = handler.handle
    for _ in range(_MESSAGES):
        await handle(await rx.receive())
        rx.ack()
    return handler.figure


async def _serve(channel: FileChannel[Order], concurrency: int) -> float:
    handler = Handler()
    handler.service = channel.serve(handler.handle, ordered=concurrency == 1, concurrency=concurrency)
    await handler.service
    return handler.figure
