"""How much a task reads."""

from __future__ import annotations

import pytest

from filechannel.spark.read.read_tasks import tasks_for

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "cores", "tasks"),
    [
        (0, 4, 1),
        (1, 4, 1),
        (17 * MIB, 4, 2),
        (290 * MIB, 2, 2),
        (290 * MIB, 64, 19),
        (2048 * MIB, 64, 64),
        (600 * MIB, 2, 4),
        (2560 * MIB, 4, 12),
    ],
)
def test_few_tasks_that_keep_every_core_busy(size: int, cores: int, tasks: int) -> None:
    """A small channel is read by one task, a larger one by one for each core, and the largest by several for each."""
    assert tasks_for(size, cores) == tasks
