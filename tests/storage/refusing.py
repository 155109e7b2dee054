"""A file system that refuses one call, whichever it is."""

from __future__ import annotations

import os
from threading import get_ident
from typing import Any

from filechannel._storage.system.os_calls import Files

NEVER_FAIL = frozenset(
    {"close", "closing", "forget_pages", "watch_roll", "confine", "leads_to", "is_found_at", "unpin", "unlock"}
) | frozenset({"size", "links", "has_name", "inode", "identity"})
"""What the kernel does not refuse, such as a look at a file that is open, and what asks it for nothing."""


class RefusingFiles(Files):
    """The real file system, in which one call, counted from a moment, is refused."""

    def __init__(self) -> None:
        self._is_on = False
        self._thread: int | None = None
        self._countdown = 0
        self._error = 0
        self.refused: str | None = None

    def refuse(self, at: int, error: int, *, everywhere: bool = False) -> None:
        """Let the n-th call of this thread, or of any, fail, once."""
        self._is_on, self._thread = True, None if everywhere else get_ident()
        self._countdown, self._error, self.refused = at, error, None

    def work(self) -> None:
        """Let everything work again."""
        self._is_on = False

    def __getattribute__(self, name: str) -> Any:
        """Return a method that may refuse."""
        found = super().__getattribute__(name)
        if name.startswith("_") or name in NEVER_FAIL or not callable(found) or not hasattr(Files, name):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_on and self._thread in (None, get_ident()):
                self._countdown -= 1
                if self._countdown == 0:
                    self.refused = name
                    raise OSError(self._error, os.strerror(self._error), str(args[0]) if args else None)
            return found(*args, **kwargs)

        return call
