"""Batches of a 5-field Struct, compared with plain msgspec, which only encodes and decodes."""

from __future__ import annotations

import msgspec

from filechannel import open_channel

from .harness import Bench, run_interleaved
from .harness import working_ns as now
from .messages import BATCH, ORDERS, Order
from .report import Finding

TITLE = "5-field Struct, batches of 1,000"
_REPEAT = 10


async def measure(bench: Bench) -> list[Finding]:
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Order).decode
    payloads = [encode(order) for order in ORDERS]

    async def bare_encode() -> float:
        began = now()
        for _ in range(_REPEAT):
            for order in ORDERS:
                encode(order)
        return (now() - began) / (_REPEAT * BATCH)

    async def bare_decode() -> float:
        began = now()
        for _ in range(_REPEAT):
            for payload in payloads:
                decode(payload)
        return (now() - began) / (_REPEAT * BATCH)

    with bench.scratch() as directory:
        async with open_channel(directory / "orders", Order) as channel:
            async with channel.sender() as tx, channel.receiver() as rx:

                async def send() -> float:
                    began = now()
                    for _ in range(_REPEAT):
                        await tx.send_many(ORDERS)
                    return (now() - began) / (_REPEAT * BATCH)

                async def receive() -> float:
                    began = now()
                    for _ in range(_REPEAT):
                        orders = await rx.receive_many(BATCH)
                        assert len(orders) == BATCH
                    return (now() - began) / (_REPEAT * BATCH)

                contestants = {"encode": bare_encode, "send": send, "decode": bare_decode, "receive": receive}
                found = await run_interleaved(contestants, bench.rounds(600))

    encoding, decoding, sending, receiving = (found[name] for name in ("encode", "decode", "send", "receive"))
    return [
        Finding("msgspec encode in a loop", encoding.per(encoding), "x encode", time=encoding),
        Finding("await send_many", sending.per(encoding), "x encode", 1.5, time=sending),
        Finding("msgspec decode in a loop", decoding.per(decoding), "x decode", time=decoding),
        Finding("await receive_many", receiving.per(decoding), "x decode", 1.5, time=receiving),
    ]
