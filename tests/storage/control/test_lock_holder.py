"""The holder of a lock, as far as a note says."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from filechannel._format.layout import HOLDER
from filechannel._storage.control.lock_holder import Holder, describe_this_process
from tests.storage.forks import Fork


def test_a_process_describes_itself() -> None:
    """The note of a lock holder has the pid, the host and the time."""
    holder = Holder.unpack(describe_this_process())
    assert (holder.pid, holder.host) == (os.getpid(), socket.gethostname())
    assert holder.since is not None
    assert abs(datetime.now(UTC) - holder.since) < timedelta(minutes=1)


def test_a_long_host_name_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name that is too long for the note is cut off."""
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 300)
    assert Holder.unpack(describe_this_process()).host == "h" * 64


@pytest.mark.parametrize(
    "note", [b"", b"x", bytes(HOLDER.size), b"\xff" * HOLDER.size], ids=["none", "torn", "empty", "damaged"]
)
def test_an_unreadable_note_names_no_process(note: bytes) -> None:
    """A damaged or missing note names no process, and is not an error."""
    assert Holder.unpack(note) == Holder(None, None, None)


def test_a_process_that_has_ended_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has ended is not named; a live one, also of another user or host, is."""
    ended = Fork(lambda: None)
    ended.kill()
    now, here = datetime.now(UTC), socket.gethostname()
    unknown = Holder(None, None, None)
    assert Holder(ended.pid, here, now).unless_ended() == unknown
    assert Holder(1 << 40, here, now).unless_ended() == unknown
    assert unknown.unless_ended() == unknown
    for alive in (Holder(os.getpid(), here, now), Holder(1, here, now), Holder(ended.pid, "elsewhere", now)):
        assert alive.unless_ended() == alive
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 300)
    assert Holder(ended.pid, "h" * 40, now).unless_ended() == unknown
    assert Holder(ended.pid, "h" * 39, now).unless_ended().pid == ended.pid


def test_no_note_is_an_error() -> None:
    """Any bytes of a note are either read or ignored."""
    random = Random(3)
    for _ in range(500):
        Holder.unpack(random.randbytes(HOLDER.size))
