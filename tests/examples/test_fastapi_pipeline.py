"""`examples/fastapi_pipeline.py` behind a real uvicorn, killed and started again."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import httpx
import msgspec
import pytest

from filechannel._format import PURE
from filechannel.blocking import open_channel
from tests.integrations.fastapi.server import Server, events
from tests.processes.crew import PATIENCE, until

APP = "fastapi_pipeline:app"
BILLS = "/bills?since=earliest"


class Bill(msgspec.Struct):
    """What a client makes of an event."""

    order: int
    cents: int


class Watcher:
    """Somebody who sees the bills, and comes back with the id of the last one."""

    def __init__(self) -> None:
        self.bills: list[Bill] = []
        self._last_id: str | None = None

    def watch(self, server: Server) -> None:
        """Watch until the connection ends."""
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            try:
                for event in events(client, BILLS, self._last_id):
                    assert "event" not in event, event
                    if "data" in event:
                        self.bills.append(msgspec.json.decode(event["data"], type=Bill))
                    self._last_id = event.get("id", self._last_id)
            except httpx.TransportError:
                pass


def serve(directory: Path, workers: int = 1) -> Server:
    """Start it as its page says."""
    return Server(directory, workers, APP, "PIPELINE", "--app-dir=examples")


def order_until_killed(server: Server, numbers: count[int]) -> list[int]:
    """Order from several clients at once, kill the server in the middle, and return what was answered with 202."""
    accepted: list[int] = []

    def order() -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            try:
                while True:
                    number = next(numbers)
                    response = client.post("/orders", json={"id": number, "sku": "pen", "qty": 2})
                    assert response.status_code == 202
                    accepted.append(number)
            except httpx.TransportError:
                pass

    clients = [threading.Thread(target=order) for _ in range(3)]
    for client in clients:
        client.start()
    until(lambda: len(accepted) >= 40)
    server.process.kill()
    for client in clients:
        client.join()
    return accepted


def stored_bills(directory: Path) -> list[Bill]:
    """Return every bill, in order."""
    with open_channel(directory / "bills", Bill) as channel, channel.replay() as past:
        return list(past)


def test_what_was_answered_before_a_kill_is_done_after_it(tmp_path: Path) -> None:
    """Every order that got a 202 has a bill and a receipt, and whoever watches has every bill once, in order."""
    numbers, accepted, watcher = count(1), [0], Watcher()
    for _ in range(2):
        with serve(tmp_path) as server:
            watching = threading.Thread(target=watcher.watch, args=[server])
            watching.start()
            accepted += order_until_killed(server, numbers)
            watching.join()
    with serve(tmp_path) as server:
        watching = threading.Thread(target=watcher.watch, args=[server])
        watching.start()
        server.client.post("/orders", json={"id": 0, "sku": "cap"}).raise_for_status()
        until(lambda: set(accepted) <= {bill.order for bill in list(watcher.bills)})
        until(lambda: all((tmp_path / "written" / f"{number}.txt").exists() for number in accepted))
        assert server.client.get("/refused").json() == []
        said = server.stop()
        watching.join()
    assert "Traceback" not in said
    assert watcher.bills == stored_bills(tmp_path)
    assert {bill.cents for bill in watcher.bills} == {500, 1900}
    assert (tmp_path / "written" / "0.txt").read_text() == "1 x cap\n"


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    """At once what is no order, and later what is not sold; both leave the pipeline at work."""
    with serve(tmp_path) as server:
        response = server.client.post("/orders", json={"id": 1, "sku": "pen", "qty": 0})
        assert response.status_code == 422
        assert server.client.post("/orders", json={"id": 2, "sku": "fish"}).status_code == 202
        assert server.client.post("/orders", json={"id": 3, "sku": "ink"}).status_code == 202
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            seen = (event for event in events(client, BILLS) if "data" in event)
            assert msgspec.json.decode(next(seen)["data"], type=Bill) == Bill(3, 1200)
            seen.close()
        assert server.client.get("/refused").json() == ["KeyError: 'fish'"]
        assert "Traceback" not in server.stop()


@pytest.mark.skipif(PURE, reason="the pure twin lets one process at a time have a channel")
def test_several_workers_are_one_pipeline(tmp_path: Path) -> None:
    """Whichever answers, each order has one bill, and a client of any of them sees all."""
    with serve(tmp_path, workers=2) as server:
        for number in range(40):
            server.client.post("/orders", json={"id": number, "sku": "ink"}).raise_for_status()
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            seen = (msgspec.json.decode(event["data"], type=Bill) for event in events(client, BILLS) if "data" in event)
            billed = [next(seen).order for _ in range(40)]
            seen.close()
        server.stop()
    assert sorted(billed) == list(range(40))
