"""Giving way to the event loop.

Sending and receiving complete without suspending while they can, since a checkpoint costs more than a message. About
every millisecond of continuous work they give way, which is also when they notice cancellation.
"""

from __future__ import annotations

from anyio.lowlevel import checkpoint

from .._format import begin_turn, turn_is_over


async def give_way_if_due() -> None:
    """Let other tasks run if this thread has worked for a while. May raise the cancellation; nothing is done yet."""
    if turn_is_over():
        await checkpoint()
        begin_turn()


__all__ = ["begin_turn", "give_way_if_due", "turn_is_over"]
