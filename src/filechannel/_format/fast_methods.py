"""The bases of `Sender` and `Receiver`: `send` and `receive`, which the C core does without a Python frame.

The async ones do their work when they are awaited: at once if they can, and the slow way otherwise. Detached, which is
closed, they always go the slow way, which knows what is wrong. Those that end in `_here` let the thread wait instead.
"""

# The C core checks the types of its arguments, and so does its twin.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from .._errors import Busy
from .nothing import NOTHING
from .reader import Reader
from .send_path import SendPath

_Class = TypeVar("_Class", bound=type)
_LONGEST = 1e9


class SendCore:
    """The base of a sender: `send`, fast."""

    _path: SendPath | None = None
    _send_slowly: Callable[[object], Awaitable[None]]
    _send_nowait_slowly: Callable[[object], int]
    _send_here_slowly: Callable[[object, float | None], None]

    async def send(self, item: object) -> None:
        """Send one item; a coroutine."""
        path = self._path  # once: another thread may detach us
        if path is None or path.put_in_turn(item) is None:
            await self._send_slowly(item)

    def send_nowait(self, item: object) -> int:
        """Send one item and return its offset."""
        path = self._path
        return self._send_nowait_slowly(item) if path is None or path.deferred else path.put(item)

    def _send_here(self, item: object, timeout: float | None = None) -> None:
        """Send one item, and let the thread wait if need be."""
        path = self._path
        if path is None or path.deferred or timeout is not None:
            self._send_here_slowly(item, timeout)
            return
        try:
            path.put(item)
        except Busy:  # the thread runs an event loop, which is its own affair
            self._send_here_slowly(item, timeout)

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
    _receive_here_slowly: Callable[[float | None], object]

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

    def _receive_here(self, timeout: float | None = None) -> object:
        """Receive one item, and let the thread wait if need be."""
        reader = self._reader
        item = NOTHING if reader is None or not _is_time(timeout) else reader.take()
        return self._receive_here_slowly(timeout) if item is NOTHING else item

    def _begin_wait(self) -> object:
        """Return a future of asyncio that is done when there is something to take, if that can be had.

        The C core sleeps for it, once, before it turns to `_receive_slowly`, which does the same in Python.
        """
        return None

    def _end_wait(self, future: object, /) -> None:
        """Forget a future that nobody waits for any more."""

    def _attach(self, reader: Reader, /) -> None:
        """Receive from this reader."""
        if not isinstance(reader, Reader):
            raise TypeError(f"expected Reader, not {type(reader).__name__}")
        self._reader = reader

    def _detach(self) -> None:
        """Go the slow way from now on, which says what is wrong."""
        self._reader = None


class AckCore(ReceiveCore):
    """The base of a receiver that acknowledges: `ack` too, fast."""

    _ack_slowly: Callable[[int], None]
    _drained: Callable[[], None]

    def ack(self, n: int = 1) -> None:
        """Settle the oldest ones outstanding."""
        reader = self._reader
        if reader is None or type(n) is not int or n < 1 or not reader.ack(n):
            self._ack_slowly(n)
        elif reader.must_tell():
            self._drained()


def _is_time(timeout: float | None) -> bool:
    """Tell whether it is a timeout for certain; what is odd goes the slow way, which says so."""
    return timeout is None or (type(timeout) in (int, float) and 0 <= timeout <= _LONGEST)


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
