"""The disk space of the control file."""

from __future__ import annotations

from pathlib import Path

from filechannel._format.layout import CONTROL_RESERVE, CONTROL_SIZE
from filechannel._storage.control.control_page import Control
from filechannel._storage.system.os_calls import Files


def test_a_short_file_is_completed(tmp_path: Path) -> None:
    """A control file that was cut off is completed, with disk space."""
    files = Files()
    descriptor = files.open(tmp_path / "control", create=True)
    Control(files, descriptor)
    assert files.size(descriptor) == CONTROL_SIZE + CONTROL_RESERVE
    files.close(descriptor)
