"""The shop behind a real uvicorn, in processes of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx

from tests.integrations.fastapi.shop import DIRECTORY
from tests.processes.workers import TIMEOUT, until

T = TypeVar("T")
APP = "tests.integrations.fastapi.shop:app"
ROOT = Path(__file__).parent.parent.parent.parent


class Server:
    """A shop, or another app, that runs until it is stopped or killed."""

    def __init__(
        self, directory: Path, workers: int = 1, app: str = APP, place: str = DIRECTORY, *options: str
    ) -> None:
        command = [sys.executable, "-m", "uvicorn", app, "--port=0", f"--workers={workers}", "--no-access-log"]
        command += options
        environment = os.environ | {place: str(directory)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
        self.url = self._read_url()
        lone = httpx.Limits(max_keepalive_connections=0)  # any worker may answer the next time
        self.client = httpx.Client(base_url=self.url, timeout=TIMEOUT, limits=lone)
        until(self._answers)

    def _read_url(self) -> str:
        said = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            said += line
            if found := re.search(r"running on (http://\S+)", line):
                return found[1]
        raise RuntimeError(f"the server did not start:\n{said}")

    def _answers(self) -> bool:
        with suppress(httpx.ConnectError):
            return self.client.get("/openapi.json").is_success
        return False

    def place(self, number: int) -> bool:
        """Order something, and return whether that was accepted."""
        try:
            return self.client.post("/orders", json={"id": number}).status_code == 202
        except httpx.TransportError:
            return False

    def ask(self, path: str) -> int:
        """Return a number that the shop knows."""
        return int(self.client.get(path).raise_for_status().json())

    def stop(self) -> str:
        """End it as it is meant to be ended, and return what it said since it was open."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=TIMEOUT)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        with self.process:
            self.process.kill()


class Listener(Generic[T]):
    """A client of a stream, which reconnects with the last id that it has."""

    def __init__(self, path: str, read: Callable[[str], T]) -> None:
        self.received: list[T] = []
        self._path = path
        self._read = read
        self._last_id: str | None = None

    @contextmanager
    def listening(self, server: Server) -> Iterator[None]:
        """Receive beside the block, and after it until the connection ends."""
        thread = threading.Thread(target=self._listen, args=[server])
        thread.start()
        yield
        thread.join()

    def _listen(self, server: Server) -> None:
        with suppress(httpx.TransportError), httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
            for event in events(client, self._path, self._last_id):
                assert "event" not in event, event
                if "data" in event:
                    self.received.append(self._read(event["data"]))
                self._last_id = event.get("id", self._last_id)


def events(client: httpx.Client, path: str, last_id: str | None = None) -> Iterator[dict[str, str]]:
    """Return the events of a stream; those without data have only an id."""
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    with client.stream("GET", path, headers=headers) as response:
        response.raise_for_status()
        event: dict[str, str] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                event[name] = value
            else:
                yield event
                event = {}
