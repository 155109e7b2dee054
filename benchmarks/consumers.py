"""Other ways to consume than plain `receive`, compared with it."""

from __future__ import annotations

from filechannel import FileChannel, open_channel

from .harness import Bench, run_interleaved
from .harness import working_ns as now
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "ways to consume, 5-field Struct"
_REPEAT = 4
_DISK_SPACE = 256 << 20


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory:
        async with (
            open_channel(directory / "plain", Order) as plain,
            open_channel(directory / "acked", Order) as acked,
            open_channel(directory / "delivered", Order) as delivered,
        ):
            async with plain.receiver() as rx, acked.ack_receiver() as ack_rx, delivered.ack_receiver() as delivery_rx:

                async def receive() -> float:
                    await fill(plain, _REPEAT)
                    began = now()
                    for _ in range(_REPEAT * BATCH):
                        await rx.receive()
                    return (now() - began) / (_REPEAT * BATCH)

                async def receive_and_ack() -> float:
                    await fill(acked, _REPEAT)
                    began = now()
                    for _ in range(_REPEAT * BATCH):
                        await ack_rx.receive()
                        ack_rx.ack()
                    return (now() - began) / (_REPEAT * BATCH)

                async def receive_deliveries() -> float:
                    await fill(delivered, _REPEAT)
                    began = now()
                    for _ in range(_REPEAT * BATCH):
                        delivery = await delivery_rx.receive_delivery()
                        delivery.ack()
                    return (now() - began) / (_REPEAT * BATCH)

                contestants = {"plain": receive, "ack": receive_and_ack, "delivery": receive_deliveries}
                found = await run_interleaved(contestants, bench.rounds(400))

    alone, with_ack, delivery = found["plain"], found["ack"], found["delivery"]
    return [
        Finding("await receive", alone.per(alone), "x receive", time=alone),
        Finding("await receive, ack, one by one", with_ack.per(alone), "x receive", 1.5, time=with_ack),
        Finding("await receive_delivery, its ack, one by one", delivery.per(alone), "x receive", time=delivery),
    ]


async def fill(channel: FileChannel[Order], batches: int) -> None:
    """Add messages, without using more files than needed. Not timed."""
    if channel.statistics().bytes_on_disk > _DISK_SPACE:
        await channel.purge()
    with channel.sender() as tx:
        for _ in range(batches):
            await tx.send_many(ORDERS)
