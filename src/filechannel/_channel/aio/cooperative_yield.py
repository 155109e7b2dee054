"""Cooperative yielding to the event loop.

Sending and receiving complete without suspending if they can, since a checkpoint costs more than a message. After about
a millisecond of continuous work they yield to the event loop, which is also when a cancellation is raised.
"""

from __future__ import annotations

from anyio.lowlevel import checkpoint

from ..._format import begin_slice, slice_is_over


async def yield_if_due() -> None:
    """Yield if this thread has worked for a while. May raise the cancellation, before anything was done."""
    if slice_is_over():
        await checkpoint()
        begin_slice()


__all__ = ["begin_slice", "slice_is_over", "yield_if_due"]
