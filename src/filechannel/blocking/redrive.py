"""Sending dead letters again, without an event loop."""

from __future__ import annotations

from typing import TypeVar

from .._channel.dead_letter import DeadLetter
from .._channel.redrive import Letters, check_channels
from .channel import FileChannel

T = TypeVar("T")


def redrive(dead: FileChannel[DeadLetter], target: FileChannel[T], *, name: str = "redrive") -> int:
    """Send the messages of all dead letters that are there now to a channel, as they were; return how many.

    Each letter is acknowledged when its message was sent: see the async `filechannel.redrive`.
    """
    check_channels(FileChannel, "filechannel.blocking.FileChannel", dead, target)
    with dead.ack_receiver(name) as receiver, target.sender() as sender:
        letters = Letters(receiver)
        while (payload := letters.next()) is not None:
            sender.send_payload(payload)
            letters.sent()
        return letters.count
