"""What a redrive does without waiting: iterating over dead letters, and acknowledging them."""

from __future__ import annotations

from typing import cast, final

from anyio import WouldBlock

from .ack_receiver import BaseAckReceiver
from .channel import BaseChannel
from .dead_letter import DeadLetter


def check_channels(kind: type[BaseChannel[object]], path: str, dead: object, target: object) -> None:
    """Raise `TypeError` unless both are channels and *dead* carries dead letters.

    Registering a name in any other channel would retain its messages for a consumer it never had.
    """
    for name, channel in (("dead", dead), ("target", target)):
        if not isinstance(channel, kind):
            raise TypeError(f"{name}={channel!r}: must be a {path}, not {type(channel).__name__}")
    carried = cast("BaseChannel[object]", dead).message_type
    if carried is not DeadLetter:
        raise TypeError(f"dead={dead!r}: must be a channel of DeadLetter, not of {carried!r}")


@final
class Letters:
    """Iterates over the dead letters that exist now. Letters added meanwhile are left for the next redrive."""

    def __init__(self, receiver: BaseAckReceiver[DeadLetter]) -> None:
        self._receiver = receiver
        self._left = receiver.statistics().lag_messages
        self.count = 0
        """The number of messages sent."""

    def next(self) -> bytes | None:
        """Return the payload of the next letter; None after the last."""
        if self.count == self._left:
            return None
        try:
            return self._receiver.receive_nowait().payload
        except WouldBlock:  # another process or thread has removed the rest
            return None

    def sent(self) -> None:
        """Acknowledge the letter whose message was just sent."""
        self._receiver.ack()
        self.count += 1
