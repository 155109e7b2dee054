"""The checkpoints, which survive a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel._format.layout import CHECKPOINT, CHECKPOINT_SLOTS
from filechannel._offset import Offset
from filechannel._storage.control.checkpoints import Checkpoint
from filechannel._storage.control.control_page import Control, Tail
from filechannel._storage.system.os_calls import Files
from tests.storage.faults import FaultyFiles


def _checkpoint(offset: int, sequence: int = 0, oldest: int = 0, *, sealed: bool = False) -> Checkpoint:
    return Checkpoint(Offset(offset), sequence, Offset(oldest), sealed)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A control file that says the log is at its beginning."""
    files = Files()
    descriptor = files.open(tmp_path / "control", create=True)
    control = Control(files, descriptor)
    control.start_over(Tail(Offset(0), 0, Offset(0)), 0, sealed=False)
    yield control
    files.close(descriptor)


# Checkpoints


def test_without_a_flush_there_is_no_checkpoint(control: Control) -> None:
    """A fresh control file has no checkpoint."""
    assert control.checkpoints.newest() is None


def test_the_newest_checkpoint_counts(control: Control) -> None:
    """A new checkpoint replaces the last but one, and the newest counts."""
    for number in range(1, 6):
        control.checkpoints.write(_checkpoint(number * 100, number, number * 10, sealed=number == 5))
        assert control.checkpoints.newest() == _checkpoint(number * 100, number, number * 10, sealed=number == 5)


@pytest.mark.parametrize("position", range(0, CHECKPOINT.size, 5))
def test_a_torn_checkpoint_does_not_count(control: Control, position: int) -> None:
    """If the newest checkpoint is damaged the one before counts."""
    control.checkpoints.write(_checkpoint(100, 1, 10))
    control.checkpoints.write(_checkpoint(200, 2, 20))
    control.map[CHECKPOINT_SLOTS[0] + position] ^= 0x10
    assert control.checkpoints.newest() == _checkpoint(100, 1, 10)
    control.checkpoints.write(_checkpoint(300, 3, 30))
    assert control.checkpoints.newest() == _checkpoint(300, 3, 30)


def test_the_checkpoints_never_share_a_sector() -> None:
    """The two checkpoints share no sector, so that writing one cannot tear the other."""
    first, second = CHECKPOINT_SLOTS
    assert second - first >= 512
    assert first % 512 == second % 512 == 0


def test_a_checkpoint_is_on_disk_when_it_is_written(tmp_path: Path) -> None:
    """Writing a checkpoint flushes the control file."""
    files = FaultyFiles()
    descriptor = files.open(tmp_path / "control", create=True)
    Control(files, descriptor).checkpoints.write(_checkpoint(1))
    assert files.flushed == [tmp_path / "control"]
    files.close(descriptor)
