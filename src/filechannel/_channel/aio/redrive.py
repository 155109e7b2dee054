"""Redrive for event loops: sending the messages of dead letters again."""

from __future__ import annotations

from typing import TypeVar

from ..base.dead_letter import DeadLetter
from ..base.redrive import Letters, check_channels
from .channel import FileChannel

T = TypeVar("T")


async def redrive(dead: FileChannel[DeadLetter], target: FileChannel[T], *, name: str = "redrive") -> int:
    """Send the messages of all dead letters that exist now to a channel, unchanged. Return how many.

    Each letter is acknowledged, under *name*, after its message was sent, so another call resumes after it. If the
    process is killed in between, the message is sent again: redriving is at least once. If it is cancelled, nothing is
    sent twice. A payload that is not a message of the target raises `CodecError`; its letter and those after it are
    kept. Raises `ConsumerBusyError` while another redrive is running.
    """
    check_channels(FileChannel, "filechannel.FileChannel", dead, target)
    with dead.ack_receiver(name) as receiver, target.sender() as sender:
        letters = Letters(receiver)
        while (payload := letters.next()) is not None:
            await sender.send_payload(payload)
            letters.sent()
        return letters.count
