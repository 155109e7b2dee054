"""Raw messages of 12 bytes, without encoding and without `await`: the cost of the log itself."""

from __future__ import annotations

from pathlib import Path

from filechannel import FileChannel, Sender, open_channel

from .harness import Bench, run_interleaved
from .harness import working_ns as now
from .in_turn import through_queue
from .messages import BATCH, RAW
from .populate import ActiveSegment
from .report import Finding

TITLE = "raw, 12 bytes"
_QUEUE_REPEAT = 3
_REPEAT = 100
_ONE_BY_ONE_REPEAT = 10
_RECORD_SIZE = 20
_DISK_SPACE = 256 << 20


async def measure(bench: Bench) -> list[Finding]:
    touched: set[Path] = set()

    def touch_ahead(path: Path, tx: Sender[bytes]) -> None:
        """Make sure that the next round writes only to pages of one segment that were touched before."""
        tx.send_many_nowait(RAW)
        while (segment := ActiveSegment(path)).space(tx.write_offset) < _REPEAT * BATCH * _RECORD_SIZE:
            tx.send_many_nowait(RAW)
        if segment.path not in touched:
            touched.add(segment.path)
            segment.populate(tx.write_offset)

    with bench.scratch() as directory:
        async with (
            open_channel(directory / "fresh", bytes) as channel,
            open_channel(directory / "touched", bytes) as ready,
        ):
            async with channel.sender() as tx, channel.receiver() as rx, ready.sender() as touched_tx:

                async def send_fresh() -> float:
                    return _send_batches(tx)

                async def send_touched() -> float:
                    await _keep_small(ready)
                    touch_ahead(ready.path, touched_tx)
                    return _send_batches(touched_tx)

                async def send_one_by_one() -> float:
                    began = now()
                    for _ in range(_ONE_BY_ONE_REPEAT):
                        for message in RAW:
                            tx.send_nowait(message)
                    return (now() - began) / (_ONE_BY_ONE_REPEAT * BATCH)

                async def receive() -> float:
                    began, count = now(), 0
                    while messages := rx.receive_many_nowait(BATCH):
                        count += len(messages)
                    elapsed = now() - began
                    await _keep_small(channel)
                    return elapsed / count

                contestants = {
                    "queue": through_queue(RAW, _QUEUE_REPEAT),
                    "fresh": send_fresh,
                    "touched": send_touched,
                    "one by one": send_one_by_one,
                    "receive": receive,
                }
                found = await run_interleaved(contestants, bench.rounds(600))

    q, fresh, ready_made = found["queue"], found["fresh"], found["touched"]
    mean, mean_q = fresh.as_mean(), q.as_mean()
    one, receiving = found["one by one"], found["receive"]
    return [
        Finding("asyncio.Queue: await put, await get", q.per(q), "Q", time=q),
        Finding("send_many_nowait, 1,000 per batch, fresh pages", fresh.per(q), "Q", 0.05, time=fresh),
        Finding("the same as a mean, with every allocation and new segment", mean.per(mean_q), "Q", time=mean),
        Finding("send_many_nowait, 1,000 per batch, warm pages", ready_made.per(q), "Q", 0.02, time=ready_made),
        Finding("send_nowait, one by one, fresh pages", one.per(q), "Q", 0.2, time=one),
        Finding("receive_many_nowait, 1,000 per call", receiving.per(q), "Q", 0.05, time=receiving),
    ]


def _send_batches(tx: Sender[bytes]) -> float:
    began = now()
    for _ in range(_REPEAT):
        tx.send_many_nowait(RAW)
    return (now() - began) / (_REPEAT * BATCH)


async def _keep_small(channel: FileChannel[bytes]) -> None:
    if channel.statistics().bytes_on_disk > _DISK_SPACE:
        await channel.purge()
