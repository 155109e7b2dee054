"""The bases of `Sender` and `Receiver`: `send` and `receive`, which the C core does without a Python frame.

The async ones do their work when they are awaited: at once if they can, and the slow way otherwise. Detached, which is
closed, they always go the slow way, which knows what is wrong.
"""

# The C core checks the types of its arguments, and so does its twin.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from .nothing import NOTHING
from .reader import Reader
from .send_path import SendPath

_Class = TypeVar("_Class", bound=type)


class SendCore:
    """The base of a sender: `send`, fast."""

    _path: SendPath | None = None
    _send_slowly: Callable[[object], Awaitable[None]]
    _send_nowait_slowly: Callable[[object], int]

    async def send(self, item: object) -> None:
        """Send one item; a coroutine."""
        path = self._path  # once: another thread may detach us
        if path is None or path.put_in_turn(item) is None:
            await self._send_slowly(item)

    def send_nowait(self, item: object) -> int:
        """Send one item and return its offset."""
        path = self._path
        return self._send_nowait_slowly(item) if path is None or path.deferred else path.put(item)

    def _attach(self, path: SendPath, /) -> None:
        """Send along this path."""
        if not isinstance(path, SendPath):
            raise TypeError(f"expected SendPath, not {type(path).__name__}")
        self._path = path

    def _detach(self) -> None:
        """Go the slow way from now on, which says what is wrong."""
        self._path = None


class ReceiveCore:
    """The base of a receiver: `receive`, fast."""

    _reader: Reader | None = None
    _receive_slowly: Callable[[], Awaitable[object]]
    _receive_nowait_slowly: Callable[[], object]

    async def receive(self) -> object:
        """Receive one item; a coroutine."""
        reader = self._reader  # once: another thread may detach us
        item = NOTHING if reader is None else reader.take_in_turn()
        return await self._receive_slowly() if item is NOTHING else item

    def receive_nowait(self) -> object:
        """Receive one item that is there."""
        reader = self._reader
        item = NOTHING if reader is None else reader.take()
        return self._receive_nowait_slowly() if item is NOTHING else item

    def _attach(self, reader: Reader, /) -> None:
        """Receive from this reader."""
        if not isinstance(reader, Reader):
            raise TypeError(f"expected Reader, not {type(reader).__name__}")
        self._reader = reader

    def _detach(self) -> None:
        """Go the slow way from now on, which says what is wrong."""
        self._reader = None


def own_send(cls: _Class, /) -> _Class:
    """Give a subclass of SendCore public methods of its own, which are called faster."""
    return _checked(cls, SendCore)


def own_receive(cls: _Class, /) -> _Class:
    """Give a subclass of ReceiveCore public methods of its own, which are called faster."""
    return _checked(cls, ReceiveCore)


def _checked(cls: _Class, base: type) -> _Class:
    given: object = cls
    if not (isinstance(given, type) and issubclass(given, base)):
        raise TypeError(f"expected a subclass of {base.__name__}")
    return cls
