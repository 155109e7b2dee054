"""Read-ahead: a thread takes the next item from an iterator while the consumer processes the one before it."""

from __future__ import annotations

from collections.abc import Generator
from queue import SimpleQueue
from typing import Final, TypeVar

from ..._runtime.threads import start_thread

R = TypeVar("R", bound=object)

# One item in use and one ready: the thread reads the next one before the consumer asks for it.
_AHEAD: Final = 2


def read_ahead(items: Generator[R]) -> Generator[R]:
    """Return the same items. An error is raised after the items before it. Closing the result closes *items*."""
    found, permits, failed = SimpleQueue[R | None](), SimpleQueue[None](), list[BaseException]()
    is_over = has_ended = False

    def take() -> None:
        try:
            while permits.get() is None and not is_over and (item := next(items, None)) is not None:
                found.put(item)
        except BaseException as error:
            failed.append(error)
        finally:
            items.close()
            found.put(None)

    for _ in range(_AHEAD):
        permits.put(None)
    start_thread(take, "filechannel-ahead")
    try:
        while (item := found.get()) is not None:
            permits.put(None)
            yield item
        has_ended = True
    finally:
        is_over = True
        permits.put(None)
        while not has_ended:
            has_ended = found.get() is None
    if failed:
        raise failed[0]
