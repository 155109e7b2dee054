"""Sending dead letters again."""

from __future__ import annotations

from typing import TypeVar, cast, final

from anyio import WouldBlock

from .any_ack_receiver import AnyAckReceiver
from .any_channel import AnyChannel
from .channel import FileChannel
from .dead_letter import DeadLetter

T = TypeVar("T")


def check_channels(kind: type[AnyChannel[object]], path: str, dead: object, target: object) -> None:
    """Refuse what is no channel, or carries no letters: its messages would be held back for a name it never had."""
    for name, channel in (("dead", dead), ("target", target)):
        if not isinstance(channel, kind):
            raise TypeError(f"{name}={channel!r}: must be a {path}, not {type(channel).__name__}")
    carried = cast("AnyChannel[object]", dead).message_type
    if carried is not DeadLetter:
        raise TypeError(f"dead={dead!r}: must be a channel of DeadLetter, not of {carried!r}")


@final
class Letters:
    """The letters that are there now, one after the other. What becomes dead meanwhile waits for the next time."""

    def __init__(self, receiver: AnyAckReceiver[DeadLetter]) -> None:
        self._receiver = receiver
        self._left = receiver.statistics().lag_messages
        self.count = 0
        """How many were sent."""

    def next(self) -> bytes | None:
        """Return the payload of the next letter; None after the last."""
        if self.count == self._left:
            return None
        try:
            return self._receiver.receive_nowait().payload
        except WouldBlock:  # somebody has removed the rest
            return None

    def sent(self) -> None:
        """It was sent: acknowledge the letter."""
        self._receiver.ack()
        self.count += 1


async def redrive(dead: FileChannel[DeadLetter], target: FileChannel[T], *, name: str = "redrive") -> int:
    """Send the messages of all dead letters that are there now to a channel, as they were; return how many.

    Each letter is acknowledged, under *name*, when its message was sent: called again, this goes on behind it. If it is
    killed in between, the message is sent again: at least once; if it is cancelled, nothing is sent twice. A payload
    that is no message of the target raises `CodecError`; its letter and what follows stay. `ConsumerBusyError` while
    another one is at work.
    """
    check_channels(FileChannel, "filechannel.FileChannel", dead, target)
    with dead.ack_receiver(name) as receiver, target.sender() as sender:
        letters = Letters(receiver)
        while (payload := letters.next()) is not None:
            await sender.send_payload(payload)
            letters.sent()
        return letters.count
