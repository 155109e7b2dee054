"""The base classes of `Sender` and `Receiver`: `send`, `receive` and `ack`.

The C core does these without a Python frame. The async methods do their work when they are awaited: at once if they
can, and in the slow path otherwise. After `_detach`, which closes them, they always take the slow path, which raises
the error. Methods that end in `_here` block the thread instead.
"""

# The C core checks the types of its arguments, and so does this implementation.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from .._errors import Busy
from .append.send_path import SendPath
from .read.reader import Reader
from .sentinel import NOTHING

_Class = TypeVar("_Class", bound=type)
_LONGEST = 1e9


class SendCore:
    """The base of a sender: a fast `send`."""

    _path: SendPath | None = None
    _send_slowly: Callable[[object], Awaitable[None]]
    _send_nowait_slowly: Callable[[object], int]
    _send_here_slowly: Callable[[object, float | None], None]

    async def send(self, item: object) -> None:
        """Send one item; a coroutine."""
        path = self._path  # read once: another thread may detach it
        if path is None or path.put_or_yield(item) is None:
            await self._send_slowly(item)

    def send_nowait(self, item: object) -> int:
        """Send one item and return its offset."""
        path = self._path
        return self._send_nowait_slowly(item) if path is None or path.deferred else path.put(item)

    def _send_here(self, item: object, timeout: float | None = None) -> None:
        """Send one item; block the thread if necessary."""
        path = self._path
        if path is None or path.deferred or timeout is not None:
            self._send_here_slowly(item, timeout)
            return
        try:
            path.put(item)
        except Busy:  # the thread runs an event loop: blocking it is the caller's decision
            self._send_here_slowly(item, timeout)

    def _attach(self, path: SendPath, /) -> None:
        """Send along this path."""
        if not isinstance(path, SendPath):
            raise TypeError(f"expected SendPath, not {type(path).__name__}")
        self._path = path

    def _detach(self) -> None:
        """Take the slow path from now on, which raises the error."""
        self._path = None


class ReceiveCore:
    """The base of a receiver: a fast `receive`."""

    _reader: Reader | None = None
    _receive_slowly: Callable[[], Awaitable[object]]
    _receive_nowait_slowly: Callable[[], object]
    _receive_here_slowly: Callable[[float | None], object]

    async def receive(self) -> object:
        """Receive one item; a coroutine."""
        reader = self._reader  # read once: another thread may detach it
        item = NOTHING if reader is None else reader.take_or_yield()
        return await self._receive_slowly() if item is NOTHING else item

    def receive_nowait(self) -> object:
        """Receive one item that is available now."""
        reader = self._reader
        item = NOTHING if reader is None else reader.take()
        return self._receive_nowait_slowly() if item is NOTHING else item

    def _receive_here(self, timeout: float | None = None) -> object:
        """Receive one item; block the thread if necessary."""
        reader = self._reader
        item = NOTHING if reader is None or not _is_time(timeout) else reader.take()
        return self._receive_here_slowly(timeout) if item is NOTHING else item

    def _begin_wait(self) -> object:
        """Return an asyncio future that is done when there may be an item to take, or None if it cannot provide one.

        The C core awaits it once before it falls back to `_receive_slowly`, which does the same in Python.
        """
        return None

    def _end_wait(self, future: object, /) -> None:
        """Forget a future that is no longer awaited."""

    def _attach(self, reader: Reader, /) -> None:
        """Receive from this reader."""
        if not isinstance(reader, Reader):
            raise TypeError(f"expected Reader, not {type(reader).__name__}")
        self._reader = reader

    def _detach(self) -> None:
        """Take the slow path from now on, which raises the error."""
        self._reader = None


class AckCore(ReceiveCore):
    """The base of a receiver that acknowledges: a fast `ack` as well."""

    _ack_slowly: Callable[[int], None]
    _drained: Callable[[], None]

    def ack(self, n: int = 1) -> None:
        """Acknowledge the oldest outstanding deliveries: acknowledge *n* of them."""
        reader = self._reader
        if reader is None or type(n) is not int or n < 1 or not reader.ack(n):
            self._ack_slowly(n)
        elif reader.must_wake():
            self._drained()


def _is_time(timeout: float | None) -> bool:
    """Return whether it is certainly a valid timeout; anything else takes the slow path, which raises the error."""
    return timeout is None or (type(timeout) in (int, float) and 0 <= timeout <= _LONGEST)


def own_send(cls: _Class, /) -> _Class:
    """Give a subclass of SendCore its own copies of the public methods, which are faster to call."""
    return _checked(cls, SendCore)


def own_receive(cls: _Class, /) -> _Class:
    """Give a subclass of ReceiveCore its own copies of the public methods, which are faster to call."""
    return _checked(cls, ReceiveCore)


def _checked(cls: _Class, base: type) -> _Class:
    given: object = cls
    if not (isinstance(given, type) and issubclass(given, base)):
        raise TypeError(f"expected a subclass of {base.__name__}")
    return cls
