"""Handlers for the tests, and waiting for what they do."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from filechannel import RetryPolicy

AT_ONCE = RetryPolicy(max_attempts=None, delay=0)
NEVER = RetryPolicy(max_attempts=1)
LATER = RetryPolicy(max_attempts=None, delay=1000, max_delay=1000)


class Book:
    """A handler that writes down what it gets, and can be waited for."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self._changed = anyio.Event()

    async def __call__(self, number: int) -> None:
        """Write it down."""
        self.add(number)

    def add(self, number: int) -> None:
        """Write something down."""
        self.got.append(number)
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, count: int) -> list[int]:
        """Wait until there is so much, and return it."""
        with anyio.fail_after(30):
            while len(self.got) < count:
                await self._changed.wait()
        return self.got


async def until(condition: Callable[[], object]) -> None:
    """Let others run until something is so."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 (threads make it so)
            await anyio.sleep(0.001)
