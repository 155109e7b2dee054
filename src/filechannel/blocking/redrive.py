"""Redrive for threads: sending the messages of dead letters again."""

from __future__ import annotations

from typing import TypeVar

from .._channel.base.dead_letter import DeadLetter
from .._channel.base.redrive import Letters, check_channels
from .channel import FileChannel

T = TypeVar("T")


def redrive(dead: FileChannel[DeadLetter], target: FileChannel[T], *, name: str = "redrive") -> int:
    """Send the messages of all dead letters that exist now to a channel, unchanged. Return how many.

    Each letter is acknowledged after its message was sent: see the async `filechannel.redrive`.
    """
    check_channels(FileChannel, "filechannel.blocking.FileChannel", dead, target)
    with dead.ack_receiver(name) as receiver, target.sender() as sender:
        letters = Letters(receiver)
        while (payload := letters.next()) is not None:
            sender.send_payload(payload)
            letters.sent()
        return letters.count
