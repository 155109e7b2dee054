"""From one process to another, through `filechannel.blocking`, compared with Python's other ways without a broker.

The time is wall-clock time, from the first send in one process to the last receive in the other; both are started and
warm before. Waiting for the other process is part of the work here, so all time is counted, for every contestant.
"""

from __future__ import annotations

from time import perf_counter_ns as now

from . import peers
from .child_processes import ChildProcesses
from .harness import Bench, Round, run_interleaved
from .in_turn import through_queue
from .messages import RAW
from .report import Finding
from .workers import Workers

TITLE = "1 process -> 1 process"
_QUEUE_REPEAT = 3
_BATCHED = 200_000
_ONE_BY_ONE = 50_000
_STRUCTS = 20_000
_PEERS = 5_000


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch() as directory, ChildProcesses() as processes:
        raw, struct = Workers(processes, directory / "raw", "raw"), Workers(processes, directory / "struct", "struct")
        multiprocessing_raw = processes.start(peers.__name__, "multiprocessing_raw")
        multiprocessing_struct = processes.start(peers.__name__, "multiprocessing_struct")

        async def raw_batched() -> float:
            return raw.transfer(_BATCHED, batched=True).elapsed

        async def raw_one_by_one() -> float:
            return raw.transfer(_ONE_BY_ONE, batched=False).elapsed

        async def struct_batched() -> float:
            return struct.transfer(_STRUCTS, batched=True).elapsed

        async def struct_one_by_one() -> float:
            return struct.transfer(_STRUCTS, batched=False).elapsed

        async def through_multiprocessing() -> float:
            return peers.run_pair(multiprocessing_raw, _PEERS)

        async def structs_through_multiprocessing() -> float:
            return peers.run_pair(multiprocessing_struct, _PEERS)

        contestants: dict[str, Round] = {
            "queue": through_queue(RAW, _QUEUE_REPEAT, now),
            "raw, batched": raw_batched,
            "raw": raw_one_by_one,
            "struct, batched": struct_batched,
            "struct": struct_one_by_one,
            "multiprocessing": through_multiprocessing,
            "multiprocessing, struct": structs_through_multiprocessing,
        }

        if bench.has_peer("pyzmq", TITLE):
            zmq = peers.ZmqPair(processes, directory)

            async def through_zmq() -> float:
                return zmq.run(_PEERS)

            contestants["pyzmq"] = through_zmq
        if bench.has_peer("faster-fifo", TITLE):
            fifo = processes.start(peers.__name__, "faster_fifo", python=peers.PYTHON)

            async def through_faster_fifo() -> float:
                return peers.run_pair(fifo, _PEERS)

            contestants["faster-fifo"] = through_faster_fifo

        found = await run_interleaved(contestants, bench.rounds(80))

    q, batched, one = found["queue"], found["raw, batched"], found["raw"]
    structs, one_struct, pickled = found["struct, batched"], found["struct"], found["multiprocessing, struct"]
    findings = [
        Finding("asyncio.Queue in one process: await put, await get", q.per(q), "Q", time=q),
        Finding("12 B raw, send_many, receive_many, 1,000 per call", batched.per(q), "Q", 0.15, time=batched),
        Finding("12 B raw, send, receive", one.per(q), "Q", 0.35, time=one),
        Finding("5-field Struct, send_many, receive_many", structs.per(q), "Q", 1.1, time=structs),
        Finding("5-field Struct, send, receive", one_struct.per(q), "Q", 1.1, time=one_struct),
    ]
    for name, least in (("pyzmq", 10.0), ("faster-fifo", None), ("multiprocessing", 50.0)):
        if name in found:
            peer, label = found[name], _LABELS[name]
            findings += [
                Finding(f"12 B raw against {label}: batched", peer.per(batched), "x as fast", least, True, peer),
                Finding(f"12 B raw against {label}: one by one", peer.per(one), "x as fast", time=peer),
            ]
    label = _LABELS["multiprocessing"]
    return [
        *findings,
        Finding(f"5-field Struct against {label}: batched", pickled.per(structs), "x as fast", 10, True, pickled),
        Finding(f"5-field Struct against {label}: one by one", pickled.per(one_struct), "x as fast", time=pickled),
    ]


_LABELS = {
    "pyzmq": "pyzmq PUSH, PULL over ipc",
    "faster-fifo": "faster-fifo",
    "multiprocessing": "multiprocessing.Queue",
}
