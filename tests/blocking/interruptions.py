"""Exceptions raised between any two bytecodes, as signal handlers do."""

from __future__ import annotations

import _weakrefset
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, final

TIMEOUT = 60.0
_CALLBACKS = {weakref.__file__, _weakrefset.__file__}


class InterruptError(Exception):
    """What a signal handler raises: not an error of the package, nor one that every `except` lets pass."""


@final
class Attempt:
    """Runs something, and raises `InterruptError` before the bytecode with this number, counted from 1.

    With *within*, only bytecodes of files below that directory count, and what is raised may be caught outside of it.

    This is harder than what a signal handler can do: Python calls those after calls, at loops and at the beginning of
    functions only.
    """

    def __init__(self, number: int, work: Callable[[], object], within: str = "") -> None:
        self._left = number
        self._within = within
        self.where: str | None = None
        """Where it was raised; None if there were fewer bytecodes."""
        self.is_done = False
        """Whether *work* has returned, rather than raised this."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
            self.is_done = True
        except InterruptError:
            pass
        finally:
            sys.settrace(before)
        assert within or not (self.where and self.is_done), f"the exception was swallowed at {self.where}"

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._left -= frame.f_code.co_filename.startswith(self._within)
            if not self._left and _is_in_finalizer(frame):
                self._left = 1  # Python reports what is raised there, and no caller can get it
            if not self._left and self.where is None:
                self.where = _stack(frame)
                raise InterruptError
        return self._trace


def _is_in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename in _CALLBACKS:
            return True
        frame = frame.f_back
    return False


def _stack(frame: FrameType | None) -> str:
    frames: list[str] = []
    while frame is not None and len(frames) < 12:
        frames.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(frames)


def elsewhere(work: Callable[[], object], where: object) -> None:
    """Do something in another thread, which must end."""
    errors: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive(), f"another thread hangs after an exception at {where}"
    if errors:
        raise AssertionError(f"another thread failed after an exception at {where}") from errors[0]
