"""Reading ahead: another thread takes the next from an iterator while somebody is busy with what came before it."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Final, TypeVar

R = TypeVar("R", bound=object)

# One that is used and one that waits: who takes them is on the way to the next before it has to ask for anything.
_AHEAD: Final = 2


def taken_ahead(items: Generator[R]) -> Generator[R]:
    """Return the same items; what fails, fails behind those that came before. When it is closed, so are they."""
    found, room, failed = SimpleQueue[R | None](), Semaphore(_AHEAD), list[BaseException]()
    is_over = False

    def take() -> None:
        try:
            while room.acquire() and not is_over and (item := next(items, None)) is not None:
                found.put(item)
        except BaseException as error:
            failed.append(error)
        finally:
            items.close()
            found.put(None)

    thread = Thread(target=take, name="filechannel-ahead", daemon=True)
    thread.start()
    try:
        while (item := found.get()) is not None:
            room.release()
            yield item
    finally:
        is_over = True
        room.release()
        thread.join()
    if failed:
        raise failed[0]
