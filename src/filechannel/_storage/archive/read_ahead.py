"""Reading ahead: another thread takes the next from an iterator while somebody is busy with what came before it."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue
from typing import Final, TypeVar

from .background import start_thread

R = TypeVar("R", bound=object)

# One that is used and one that waits: who takes them is on the way to the next before it has to ask for anything.
_AHEAD: Final = 2


def taken_ahead(items: Generator[R]) -> Generator[R]:
    """Return the same items; what fails, fails behind those that came before. When it is closed, so are they."""
    found, room, failed = SimpleQueue[R | None](), SimpleQueue[None](), list[BaseException]()
    is_over = has_ended = False

    def take() -> None:
        try:
            while room.get() is None and not is_over and (item := next(items, None)) is not None:
                found.put(item)
        except BaseException as error:
            failed.append(error)
        finally:
            items.close()
            found.put(None)

    for _ in range(_AHEAD):
        room.put(None)
    start_thread(take, "filechannel-ahead")
    try:
        while (item := found.get()) is not None:
            room.put(None)
            yield item
        has_ended = True
    finally:
        is_over = True
        room.put(None)
        while not has_ended:
            has_ended = found.get() is None
    if failed:
        raise failed[0]
