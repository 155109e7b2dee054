"""What the tests of maintenance share."""

from __future__ import annotations

from tests.storage.conftest import background, boots, memory, path

__all__ = ["background", "boots", "memory", "path"]
