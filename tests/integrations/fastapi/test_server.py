"""What an app promises behind a real uvicorn, when that is stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
import msgspec
import pytest

from filechannel._format import PURE
from filechannel.blocking import open_channel
from tests.integrations.fastapi.server import Listener, Server, events
from tests.integrations.fastapi.shop import Done, Order
from tests.processes.workers import until


def read_done(directory: Path) -> list[Done]:
    """Return everything that has happened."""
    with open_channel(directory / "done", Done) as channel, channel.replay() as past:
        return list(past)


def read_orders(directory: Path) -> list[int]:
    """Return every order, in order."""
    with open_channel(directory / "orders", Order) as channel, channel.replay() as past:
        return [order.id for order in past]


def id_of(data: str) -> int:
    """Return the number of the order of an event."""
    return msgspec.json.decode(data, type=Order).id


def order_until_killed(server: Server, numbers: Iterator[int]) -> list[int]:
    """Order one item after another, kill the server while it answers, and return what was accepted."""
    accepted: list[int] = []
    killing = threading.Thread(target=lambda: (until(lambda: len(accepted) >= 50), server.process.kill()))
    killing.start()
    while server.place(number := next(numbers)):
        accepted.append(number)
    killing.join()
    return accepted


def test_what_was_answered_before_a_kill_is_done_after_the_restart(tmp_path: Path) -> None:
    """After a server was killed, acknowledged orders and tasks are processed, and a stream has every order once."""
    accepted: list[int] = []
    numbers, listener = count(), Listener("/events?since=earliest", id_of)
    for _ in range(2):
        with Server(tmp_path) as server, listener.listening(server):
            accepted += order_until_killed(server, numbers)
    with Server(tmp_path) as server, listener.listening(server):
        assert server.place(next(numbers))
        until(lambda: server.ask("/done") >= 2 * len(set(accepted)) + 2)
        stored = next(numbers)
        assert server.place(stored)
        until(lambda: listener.received[-1:] == [stored])
        assert "Traceback" not in server.stop()
    happened = read_done(tmp_path)
    for what in ("billed", "packed"):
        assert set(accepted) <= {done.id for done in happened if done.what == what}
    assert listener.received == read_orders(tmp_path)


def test_a_stream_does_not_hold_up_a_graceful_stop(tmp_path: Path) -> None:
    """When it is stopped, the server ends streams in order, and exits with the expected code."""
    with Server(tmp_path) as server, httpx.Client(base_url=server.url) as client:
        stream = events(client, "/events")
        assert next(stream).keys() == {"id"}
        said = server.stop()
        assert list(stream) == []
    assert "Finished server process" in said
    assert "ERROR" not in said
    assert server.process.returncode == -signal.SIGTERM


def test_a_client_that_disconnects_ends_its_stream(tmp_path: Path) -> None:
    """The server does not keep the receiver of a client that disconnected, although nothing is sent."""
    with Server(tmp_path) as server:
        before = server.ask("/receivers")
        with httpx.Client(base_url=server.url) as client:
            stream = events(client, "/events")
            next(stream)
            assert server.ask("/receivers") == before + 1
        until(lambda: server.ask("/receivers") == before)


@pytest.mark.skipif(
    PURE, reason="the pure implementation has no compare-and-swap: a process has the channel for itself"
)
def test_workers_share_the_work_and_survive_one_another(tmp_path: Path) -> None:
    """Two workers send and handle messages, and the survivor handles what a killed one had."""
    with Server(tmp_path, workers=2) as server, ThreadPoolExecutor(4) as pool:
        first = list(pool.map(server.place, range(60)))
        os.kill(server.ask("/pid"), signal.SIGKILL)
        second = list(pool.map(server.place, range(60, 120)))
        accepted = {number for number, answer in enumerate(first + second) if answer}
        assert len(accepted) > 60

        def is_done() -> bool:
            return all(accepted <= ids for ids in by_kind(tmp_path).values())

        until(is_done)
        server.stop()
    pids = {done.pid for done in read_done(tmp_path)}
    assert len(pids) >= 2


def by_kind(directory: Path) -> dict[str, set[int]]:
    """Return which orders something of each kind has happened to."""
    found: dict[str, set[int]] = {"billed": set(), "packed": set()}
    for done in read_done(directory):
        found[done.what].add(done.id)
    return found
