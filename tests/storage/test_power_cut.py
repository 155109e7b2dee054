"""The power is cut, or the process killed, at any moment, again and again.

Each seed is a history of several lives of one channel; what must hold is in `lives.py`. A seed that failed is run alone
with `FILECHANNEL_SEED=123`; `FILECHANNEL_ROUNDS=10000` makes the soak test longer.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from functools import partial
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.storage.background import Background
from tests.storage.boots import Boots
from tests.storage.clocks import Ticks
from tests.storage.histories import History

SEED = os.environ.get("FILECHANNEL_SEED")
GROUPS = 10
ROUNDS = 4 if PURE else 10


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A channel that loses power a thousand times has a lot to say."""
    caplog.set_level(logging.CRITICAL, "filechannel")


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small as they are, segments are prepared ahead as large ones are."""
    monkeypatch.setattr("filechannel._storage.log.prepare_next.SMALLEST", 0)


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """A clock that is the same in every run: a seed must always header_record to the same history."""
    return Ticks.install(monkeypatch)


def _run(
    memory: Path,
    seeds: range,
    boots: Boots,
    background: Background,
    *,
    thrifty: bool = False,
    dropping: bool = False,
    remounting: bool = False,
    forgetful: bool = False,
) -> None:
    for seed in [int(SEED)] if SEED else seeds:
        root = memory / str(seed)
        root.mkdir()
        try:
            make = partial(History, thrifty=thrifty, dropping=dropping, remounting=remounting, forgetful=forgetful)
            make(root, seed, boots, background).run()
        except BaseException as error:
            error.add_note(f"FILECHANNEL_SEED={seed}")
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_channel_survives(memory: Path, boots: Boots, background: Background, group: int) -> None:
    """After a power cut with any lost or torn pages and names, batches are whole and nothing promised is missing."""
    _run(memory, range(group * ROUNDS, (group + 1) * ROUNDS), boots, background)


@pytest.mark.parametrize("group", range(GROUPS // 2))
def test_a_channel_that_writes_its_files_again_survives(
    memory: Path, boots: Boots, background: Background, group: int
) -> None:
    """After a power cut records that a recycled file held before do not come back."""
    _run(memory, range(group * ROUNDS, (group + 1) * ROUNDS), boots, background, thrifty=True)


@pytest.mark.parametrize("group", range(GROUPS // 2))
def test_a_channel_that_drops_its_oldest_messages_survives(
    memory: Path, boots: Boots, background: Background, group: int
) -> None:
    """After a power cut dropped messages may reappear, the rest is whole, and consumers get the exact missed number."""
    _run(memory, range(group * ROUNDS, (group + 1) * ROUNDS), boots, background, dropping=True)


@pytest.mark.parametrize("group", range(GROUPS // 2))
def test_a_channel_survives_that_the_disk_comes_back_within_the_boot(
    memory: Path, boots: Boots, background: Background, group: int
) -> None:
    """After a remount within one boot any mix of old and new pages is recovered as after a reboot."""
    seeds = range(group * ROUNDS, (group + 1) * ROUNDS)
    _run(memory, seeds, boots, background, thrifty=group % 2 == 0, remounting=True)


@pytest.mark.parametrize("group", range(GROUPS // 2))
def test_a_channel_survives_that_its_control_page_is_old(
    memory: Path, boots: Boots, background: Background, group: int
) -> None:
    """With an old control page of the same mount, messages beyond its tail are found, and none is overwritten."""
    seeds = range(group * ROUNDS, (group + 1) * ROUNDS)
    _run(memory, seeds, boots, background, thrifty=group % 2 == 0, forgetful=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["keeping", "thrifty", "dropping", "remounting", "forgetful"])
def test_a_channel_survives_for_long(memory: Path, boots: Boots, background: Background, kind: str) -> None:
    """After many power cuts with new seeds, batches are whole and nothing promised is missing."""
    first = secrets.randbits(40)
    rounds = int(os.environ.get("FILECHANNEL_ROUNDS", "2000"))
    seeds = range(first, first + rounds)
    _run(memory, seeds, boots, background, **({} if kind == "keeping" else {kind: True}))
