"""The event loops that the tests run on."""

from __future__ import annotations

import pytest

BACKENDS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}

one_loop = pytest.mark.parametrize("anyio_backend", [BACKENDS["asyncio"]], ids=["asyncio"])
"""For a test with many variants of something that has nothing to do with the loop."""
