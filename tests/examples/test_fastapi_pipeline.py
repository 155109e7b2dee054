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
from tests.integrations.fastapi.server import Listener, Server, events
from tests.processes.workers import TIMEOUT, until

APP = "fastapi_pipeline:app"
BILLS = "/bills?since=earliest"


class Bill(msgspec.Struct):
    """What a client makes of an event."""

    order: int
    cents: int


def bill_of(data: str) -> Bill:
    """Return the bill of an event."""
    return msgspec.json.decode(data, type=Bill)


def serve(directory: Path, workers: int = 1) -> Server:
    """Start it as its page says."""
    return Server(directory, workers, APP, "PIPELINE", "--app-dir=examples")


def order_until_killed(server: Server, numbers: count[int]) -> list[int]:
    """Order from several clients at once, kill the server in the middle, and return what was answered with 202."""
    accepted: list[int] = []

    def order() -> None:
        with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
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


def test_orders_accepted_before_a_kill_are_processed_after_it(tmp_path: Path) -> None:
    """Every order that got a 202 has a bill and a receipt, and a client of the stream has every bill once, in order."""
    numbers, accepted, watcher = count(1), [0], Listener(BILLS, bill_of)
    for _ in range(2):
        with serve(tmp_path) as server, watcher.listening(server):
            accepted += order_until_killed(server, numbers)
    with serve(tmp_path) as server, watcher.listening(server):
        server.client.post("/orders", json={"id": 0, "sku": "cap"}).raise_for_status()
        until(lambda: set(accepted) <= {bill.order for bill in list(watcher.received)})
        until(lambda: all((tmp_path / "written" / f"{number}.txt").exists() for number in accepted))
        assert server.client.get("/refused").json() == []
        said = server.stop()
    assert "Traceback" not in said
    assert watcher.received == stored_bills(tmp_path)
    assert {bill.cents for bill in watcher.received} == {500, 1900}
    assert (tmp_path / "written" / "0.txt").read_text() == "1 x cap\n"


def test_wrong_orders_are_refused(tmp_path: Path) -> None:
    """A body that is not an order is refused at once, an unknown product later, and the pipeline continues."""
    with serve(tmp_path) as server:
        response = server.client.post("/orders", json={"id": 1, "sku": "pen", "qty": 0})
        assert response.status_code == 422
        assert server.client.post("/orders", json={"id": 2, "sku": "fish"}).status_code == 202
        assert server.client.post("/orders", json={"id": 3, "sku": "ink"}).status_code == 202
        with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
            seen = (event for event in events(client, BILLS) if "data" in event)
            assert bill_of(next(seen)["data"]) == Bill(3, 1200)
            seen.close()
        assert server.client.get("/refused").json() == ["KeyError: 'fish'"]
        assert "Traceback" not in server.stop()


@pytest.mark.skipif(PURE, reason="the pure implementation lets one process at a time have a channel")
def test_several_workers_are_one_pipeline(tmp_path: Path) -> None:
    """With several workers each order has one bill, whichever answers, and a client of any of them sees all."""
    with serve(tmp_path, workers=2) as server:
        for number in range(40):
            server.client.post("/orders", json={"id": number, "sku": "ink"}).raise_for_status()
        with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
            seen = (bill_of(event["data"]) for event in events(client, BILLS) if "data" in event)
            billed = [next(seen).order for _ in range(40)]
            seen.close()
        server.stop()
    assert sorted(billed) == list(range(40))
