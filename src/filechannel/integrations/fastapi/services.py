"""Runs the services of an app while the app runs, and restarts a service that fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import final

import anyio

from ..._channel.aio.service import Service
from ..._errors import ConsumerBusyError

_logger = logging.getLogger("filechannel")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds


@asynccontextmanager
async def serving(services: Iterable[Callable[[], Service]]) -> AsyncGenerator[None]:
    """Run services while the body runs, and let them finish when it ends.

    An error at the first start of a service is raised here. Later errors are logged, and the service is restarted after
    a pause: the app keeps answering requests, and the messages it accepts wait in the channel.
    """
    runners = [_ServiceRunner(begin) for begin in services]
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        for runner in runners:
            tasks.start_soon(runner.run)
        try:
            yield
        except Exception as error:  # kept from the task group, which would cancel the handlers
            failure = error
        finally:
            for runner in runners:
                runner.stop()
    if failure is not None:
        raise failure


@final
class _ServiceRunner:
    """Restarts a service that has failed. Starts it when the process that owned its consumer name has ended."""

    def __init__(self, begin: Callable[[], Service]) -> None:
        self._begin = begin
        self._stopped = anyio.Event()
        self._pause = _SHORTEST_PAUSE
        self._service = self._try_to_begin()

    def _try_to_begin(self) -> Service | None:
        try:
            return self._begin()
        except ConsumerBusyError:
            return None  # another worker serves this name: stand by

    async def run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._service is None:
                    self._service = self._try_to_begin()
                if self._service is not None:
                    await self._service
                    return
            except Exception:
                _logger.exception("a service failed, and is restarted in %g s", self._next_pause())
                self._service = None
            with anyio.move_on_after(self._pause):
                await self._stopped.wait()

    def _next_pause(self) -> float:
        """Double the pause after each failure, unless the service handled messages in between."""
        has_worked = self._service is not None and self._service.statistics().handled > 0
        self._pause = _SHORTEST_PAUSE if has_worked else min(2 * self._pause, _LONGEST_PAUSE)
        return self._pause

    def stop(self) -> None:
        self._stopped.set()
        if self._service is not None:
            self._service.stop()
