"""Opening and closing a channel: alone, while another process has it open, and compared with SQLite.

The yardstick (D) is one open of a database file: `sqlite3.connect` in WAL mode, one read, close. The channel is on a
real disk, where flushes make opening slowest.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

from filechannel import blocking
from filechannel._format import PURE

from .harness import Bench, Round, run_interleaved
from .report import Finding

TITLE = "opening and closing a channel"
_OPENS = 10
_KEEP_OPEN = """
import sys
from filechannel import blocking
with blocking.open_channel(sys.argv[1], bytes) as channel:
    print("open", flush=True)
    sys.stdin.read()
"""


async def measure(bench: Bench) -> list[Finding]:
    with bench.scratch(disk=True) as directory:
        for name in ("alone", "shared"):
            _make_channel(directory / name)
        database = directory / "database"
        _make_database(database)
        contestants: dict[str, Round] = {
            "database": _timed(lambda: _open_database(database)),
            "alone": _timed(lambda: _open_channel(directory / "alone")),
        }
        with _kept_open(directory / "shared"):
            if not PURE:
                contestants["shared"] = _timed(lambda: _open_channel(directory / "shared"))
            found = await run_interleaved(contestants, bench.rounds(80))
    titles = {"database": "open SQLite in WAL mode", "alone": "open alone", "shared": "open beside another process"}
    return [Finding(titles[name], series.per(found["database"]), "D", time=series) for name, series in found.items()]


def _timed(work: Callable[[], None]) -> Round:
    async def run() -> float:
        began = perf_counter_ns()
        for _ in range(_OPENS):
            work()
        return (perf_counter_ns() - began) / _OPENS

    return run


def _open_channel(path: Path) -> None:
    with blocking.open_channel(path, bytes, create=False):
        pass


def _make_channel(path: Path) -> None:
    with blocking.open_channel(path, bytes) as channel, channel.sender() as tx, channel.receiver() as rx:
        tx.send_many([b"%d" % number for number in range(1000)])
        rx.receive()


def _open_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("select count(*) from messages").fetchone()
    database.close()


def _make_database(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode=wal")
    database.execute("create table messages (payload blob)")
    database.executemany("insert into messages values (?)", [(b"%d" % number,) for number in range(1000)])
    database.commit()
    database.close()


@contextmanager
def _kept_open(path: Path) -> Iterator[None]:
    if PURE:
        yield
        return
    command = [sys.executable, "-c", _KEEP_OPEN, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield
        process.stdin.close()
