"""Other processes for a test: forked ones that hold something, until they are released or killed."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_TIMEOUT = 60


class Fork:
    """A forked child that does some work, reports that it is done, and waits until it is killed or released."""

    def __init__(self, work: Callable[[], object]) -> None:
        done, tell = os.pipe()
        wait, self._let_go = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _live(work, tell, wait, (done, self._let_go))
        os.close(tell)
        os.close(wait)
        try:
            poll = select.poll()  # which takes a descriptor of any number
            poll.register(done, select.POLLIN)
            assert poll.poll(_TIMEOUT * 1000), "the child is late"
            assert os.read(done, 1) == b"!", "the child failed"
        finally:
            os.close(done)

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._let_go)

    def end(self) -> None:
        """Let it end as it likes, without closing anything."""
        os.write(self._let_go, b"!")
        os.close(self._let_go)
        os.waitpid(self.pid, 0)


def _live(work: Callable[[], object], tell: int, wait: int, others: tuple[int, int]) -> NoReturn:
    try:
        for descriptor in others:
            os.close(descriptor)
        kept = work()
        os.write(tell, b"!")
        os.read(wait, 1)
        del kept
    finally:
        os._exit(1)


@contextmanager
def killed_with_a_child(work: Callable[[], object]) -> Iterator[None]:
    """Work in a process that forks and is killed; its child lives on during the block."""
    tell_pid, pid = os.pipe()

    def work_and_fork() -> object:
        kept = work()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(_TIMEOUT)
                os.write(pid, b"%d" % os.getpid())
                signal.pause()
            os._exit(0)
        return kept

    Fork(work_and_fork).kill()
    os.close(pid)
    orphan = int(os.read(tell_pid, 20))
    os.close(tell_pid)
    try:
        yield
    finally:
        os.kill(orphan, signal.SIGKILL)
