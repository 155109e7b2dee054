"""Processes that know nothing of each other: in containers, where pids mean nothing, and of different users."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest

from filechannel import ChannelOptions
from tests.processes.order_checker import Accepted
from tests.processes.tasks import as_user, create, fail_to_open, make_and_obey
from tests.processes.test_changes import order
from tests.processes.test_killed import surviving
from tests.processes.workers import Workers, until

ROOT = Path(__file__).parents[2]
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child"]
SOON = 60.0
BIG = ChannelOptions(segment_size=1 << 20)


# Containers


@pytest.fixture
def containers() -> Iterator[Containers]:
    """Writers, each of which has pids of its own."""
    try:
        done = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if done.returncode:
        pytest.skip(f"unshare --pid is not allowed here: {done.stderr.decode().strip()}")
    containers = Containers()
    try:
        yield containers
    finally:
        containers.close()


class Containers:
    """Programs in separate pid namespaces."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a writer, and wait until it is there."""
        command = [*CONTAINER, sys.executable, "-m", "tests.processes.solo", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready 1\n", "it has the same pid as every other one"
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill it with everything inside."""
        self._running.remove(process)
        process.kill()
        assert process.stdout is not None
        process.stdout.read()  # to the end, which comes when the last one inside is dead
        process.stdout.close()
        process.wait()

    def close(self) -> None:
        """Kill all of them."""
        for process in list(self._running):
            self.kill(process)


def test_pids_do_not_count(containers: Containers, path: Path, rng: Random) -> None:
    """Writers of several containers, all with pid 1, are killed one by one, and the others lose nothing."""
    anyio.run(create, path, BIG)
    accepted = path.parent / "accepted"
    reported = {writer: Accepted(accepted, writer) for writer in range(1, 4)}
    with surviving(path, BIG) as survivor:
        running = [(writer, containers.start(path, accepted, writer, rng.getrandbits(32))) for writer in (1, 2)]
        running.append((3, containers.start(path, accepted, 3, rng.getrandbits(32))))
        until(lambda: all(reported[alive].count for alive, _ in running))
        dead, process = running.pop(0)
        containers.kill(process)
        survivor.check(dead)
        seen = {alive: reported[alive].count for alive, _ in running}
        until(lambda: all(reported[alive].count > before for alive, before in seen.items()), "all continue", SOON)
        while running:
            dead, process = running.pop()
            containers.kill(process)
            survivor.check(dead)


# Users

SHARED, ANNE, BOB = 54320, 54321, 54322
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture
def shared(memory: Path) -> Path:
    """A directory of a group, as an administrator makes it: what is made inside belongs to the group."""
    memory.chmod(0o711)
    directory = memory / "shared"
    directory.mkdir()
    os.chown(directory, 0, SHARED)
    directory.chmod(0o2770)
    return directory


@by_root
def test_two_users_share_a_channel(workers: Workers, shared: Path) -> None:
    """With mode 0o660 two users send, roll, flush and consume in each other's files, whatever the umask."""
    path, options = shared / "channel", ChannelOptions(segment_size=4096, mode=0o660)
    users = []
    for user in (ANNE, BOB):
        users.append(workers.start(as_user, user, [user, SHARED], make_and_obey, path, options))
        users[-1].meet()
    for _ in range(3):
        for user in users:
            for size in (10, 3000, 3000):
                order(user, "send", bytes(size))
            order(user, "flush")
    for item in [path, *path.rglob("*")]:
        status = item.stat()
        assert stat.S_IMODE(status.st_mode) & 0o777 == (0o770 if item.is_dir() else 0o660), item
        assert status.st_gid == SHARED, item
    owners = {item.stat().st_uid for item in (path / "segments").iterdir()}
    assert owners == {ANNE, BOB}
    for user in users:
        workers.dismiss(user)
    again = workers.start(as_user, BOB, [BOB, SHARED], make_and_obey, path, options)
    again.meet()
    order(again, "send", b"last")
    order(again, "purge")
    order(again, "seal")


@by_root
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_user_without_permission_gets_an_error(workers: Workers, shared: Path, mode: int) -> None:
    """A user without permission gets an error that names the path and says what to do."""
    path = shared / "channel"
    anne = workers.start(as_user, ANNE, [ANNE, SHARED], make_and_obey, path, ChannelOptions(mode=mode))
    anne.meet()
    message = workers.start(as_user, BOB, [BOB, SHARED], fail_to_open, path).result()
    assert str(path) in message
    assert "Permission denied" in message
    assert "check the permissions of it" in message
    order(anne, "send", b"undisturbed")
