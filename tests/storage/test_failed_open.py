"""An open that fails releases what it had opened, without waiting for the garbage collector."""

from __future__ import annotations

import errno
import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, FileChannelError
from filechannel._format import PURE, populate_wait
from tests.storage.boots import Boots
from tests.storage.channels import SMALL, open_store, opened
from tests.storage.refusing import RefusingFiles
from tests.storage.resources import held_under

MOST_CALLS = 2000
FLUSHED = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    """Nothing is freed but by reference counting, and by closing."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("options", [SMALL, FLUSHED], ids=["os", "fsync"])
@pytest.mark.parametrize("state", ["closed", "in use", "after a boot", "read-only", "new"])
def test_an_open_that_fails_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch, state: str, options: ChannelOptions
) -> None:
    """Whichever call of an open the system refuses, no descriptor and no map of the channel is left."""
    if PURE and state == "in use":
        pytest.skip("the pure-Python implementation does not share a channel")
    boots = Boots.install(monkeypatch)
    files = RefusingFiles()
    if state != "new":
        with opened(path, options) as store:
            for _ in range(3):
                store.log.append([b"x" * 2000])
    if state == "after a boot":
        boots.again()
    holder = open_store(path, options) if state == "in use" else None
    kept = held_under(path)
    for at in range(1, MOST_CALLS):
        files.refuse(at, errno.EMFILE)
        with suppress(FileChannelError, OSError):
            store = open_store(path, options, files=files, readonly=state == "read-only")
            files.work()
            store.close()
            if files.refused is None:
                break
        populate_wait()
        assert held_under(path) == kept, files.refused
    else:
        pytest.fail(f"an open takes more than {MOST_CALLS} calls")
    if holder is not None:
        holder.close()
