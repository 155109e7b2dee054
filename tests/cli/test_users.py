"""What the command line says to a user who may only read a channel, and while it has to wait."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from filechannel import ChannelOptions, blocking
from filechannel._format import PURE
from filechannel._storage.control import joining
from filechannel._storage.system.os_calls import Files
from tests.blocking.users import READER, as_root, run_as, share_with_group
from tests.cli.shell import TIMEOUT, Order, fill, run, start
from tests.storage.forks import Fork

OPTIONS = ChannelOptions(segment_size=4096, mode=0o640)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A channel that a group may read, with a consumer."""
    share_with_group(tmp_path)
    path = fill(tmp_path / "shared", 100, OPTIONS)
    with blocking.open_channel(path, Order, options=OPTIONS) as channel, channel.receiver("bill") as rx:
        rx.receive()
    return path


@as_root
def test_a_reader_sees_what_is_unknown(shared: Path) -> None:
    """For a user without write access every reading command works, and names what it cannot know."""
    with blocking.open_channel(shared, Order, options=OPTIONS) as channel, channel.receiver("bill"):
        mine, theirs = _both("consumers", shared)
        assert f"process {os.getpid()}" in mine
        assert "unknown" in theirs
        assert "nobody" not in mine + theirs
        mine, theirs = _both("info", shared)
        assert f"process {os.getpid()}" in mine
        assert f"process {os.getpid()}" in theirs
        assert [" (this user has read permission only, and may not see all)" in each for each in (mine, theirs)] == [
            False,
            True,
        ]
        for known, text in zip((True, False), _both("top", shared, "--json", "--once", "-i", "0.05"), strict=True):
            [figures] = json.loads(text)["channels"]
            assert figures["writers_known"] is figures["consumers"][0]["owner_known"] is known
            assert len(figures["writers"]) == 1
        for command in ("doctor", "verify"):
            mine, theirs = _both(command, shared)
            assert mine == theirs


def test_widened_permissions_are_reported(channel: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning does not name an argument that the command line does not have."""
    (channel / "segments").chmod(0o777)
    run("info", channel)
    [message] = [record.getMessage() for record in caplog.records]
    assert message.endswith("it grants access to more users than its mode, 0600: segments has 0777")


def _both(*arguments: object) -> tuple[str, str]:
    """Return what a command says to root, and to a user who may only read.

    To root first, which imports what it needs: the other user may not be able to read the interpreter's files.
    """
    mine = run(*arguments).stdout
    return mine, run_as(READER, lambda: run(*arguments).stdout)


@pytest.mark.skipif(PURE, reason="the pure implementation shares with no other process")
def test_a_command_that_waits_names_the_lock_holder(channel: Path) -> None:
    """A command that waits for a process that is opening the channel names it on stderr within seconds."""

    def stop_inside() -> object:
        files = Files()
        inside = joining.joining(files, channel, files.open(channel / "control"), lambda: True)
        inside.__enter__()
        return inside

    holding = Fork(stop_inside)
    waiting = start("gc", channel)
    assert waiting.stderr is not None
    line = waiting.stderr.readline().decode()
    holding.kill()
    assert f"waiting for process {holding.pid} on " in line
    assert waiting.wait(TIMEOUT) == 0
