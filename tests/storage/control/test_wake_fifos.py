"""FIFOs by which one process wakes the event loops of another."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from filechannel import DiskFullError
from filechannel._storage.control import wake_fifos as bells_module
from filechannel._storage.control.wake_fifos import WakeFifos, remove_fifo
from filechannel._storage.system.os_calls import Files
from tests.storage.forks import Fork
from tests.storage.resources import descriptors_under

files = Files()


class Table:
    """Replaces the table of processes: our slot, and the generation of each."""

    def __init__(self, slot: int, generations: dict[int, int]) -> None:
        self.slot = slot
        self._generations = generations

    def generation(self, slot: int) -> int:
        """Return how often a slot was taken."""
        return self._generations.get(slot, 1)


@pytest.fixture
def generations() -> dict[int, int]:
    """The generation of each slot that has another one than the first."""
    return {}


@pytest.fixture
def wake_fifos(tmp_path: Path, generations: dict[int, int]) -> Iterator[Callable[[int], WakeFifos]]:
    """How a process in a slot has its FIFO; all are closed afterwards."""
    made: list[WakeFifos] = []

    def make(slot: int, files: Files = files) -> WakeFifos:
        made.append(WakeFifos(files, tmp_path / "wake", 0o640, Table(slot, generations)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def _is_rung(descriptor: int) -> bool:
    """Return whether a loop that watches a FIFO would wake up, and empty it."""
    poll = select.poll()  # which takes a descriptor of any number
    poll.register(descriptor, select.POLLIN)
    ready = poll.poll(0)
    files.read_fifo(descriptor)
    return bool(ready)


def _taken(wake_fifos: WakeFifos) -> int:
    own = wake_fifos.take_own()
    assert own is not None
    return own


def test_a_process_has_its_own_fifo(tmp_path: Path, wake_fifos: Callable[[int], WakeFifos]) -> None:
    """A process has a FIFO with the number of its slot and the mode of the channel, in a matching directory."""
    wake_fifos(7)
    assert stat.S_ISFIFO((tmp_path / "wake" / "7").stat().st_mode)
    assert (tmp_path / "wake" / "7").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "wake").stat().st_mode & 0o777 == 0o750


def test_a_signalled_process_is_woken(wake_fifos: Callable[[int], WakeFifos]) -> None:
    """Signalling wakes the processes that are requested and no others, repeatedly."""
    ringing = wake_fifos(1)
    owns = {slot: _taken(wake_fifos(slot)) for slot in (2, 3, 4)}
    for _ in range(3):
        assert not any(_is_rung(own) for own in owns.values())
        ringing.ring([2, 4])
        assert {slot: _is_rung(own) for slot, own in owns.items()} == {2: True, 3: False, 4: True}
        ringing.ring([])
        assert not any(_is_rung(own) for own in owns.values())
    for own in owns.values():
        files.close(own)


def test_a_fifo_that_is_full_has_been_rung(wake_fifos: Callable[[int], WakeFifos]) -> None:
    """Signalling a full FIFO does not wait, and the other processes are signalled."""
    ringing = wake_fifos(1)
    full, other = _taken(wake_fifos(2)), _taken(wake_fifos(3))
    with suppress(BlockingIOError):
        while os.write(full, b"!" * 4096):
            pass
    ringing.ring([2, 3])
    assert _is_rung(full)
    assert not _is_rung(full), "everything was taken out"
    assert _is_rung(other)
    files.close(full)
    files.close(other)


def test_a_process_that_has_ended_is_skipped(wake_fifos: Callable[[int], WakeFifos]) -> None:
    """A process without a FIFO, or without a reader of it, is skipped."""
    ringing, other = wake_fifos(1), wake_fifos(3)
    own = _taken(other)
    ringing.ring([2, 900, 3])
    assert _is_rung(own)
    files.close(own)
    other.close()
    ringing.ring([3, 3, 2])


def test_something_else_under_the_name_is_left_alone(tmp_path: Path, wake_fifos: Callable[[int], WakeFifos]) -> None:
    """A file or link in place of a FIFO is not written to."""
    ringing = wake_fifos(1)
    (tmp_path / "wake" / "2").write_text("precious")
    (tmp_path / "wake" / "3").symlink_to(tmp_path / "wake" / "2")
    held = descriptors_under(tmp_path)
    ringing.ring([2, 3])
    assert (tmp_path / "wake" / "2").read_text() == "precious"
    assert descriptors_under(tmp_path) == held


# Slots that are used again


def test_the_next_process_in_a_slot_is_woken(
    tmp_path: Path, wake_fifos: Callable[[int], WakeFifos], generations: dict[int, int]
) -> None:
    """A process in the slot of a killed one is woken, although the old FIFO is still open."""
    ringing, killed = wake_fifos(1), wake_fifos(2)
    old = _taken(killed)
    ringing.ring([2])
    assert _is_rung(old)
    remove_fifo(files, tmp_path / "wake", 2)
    generations[2] = 2
    new = _taken(wake_fifos(2))
    ringing.ring([2])
    assert (_is_rung(old), _is_rung(new)) == (False, True)
    files.close(old)
    files.close(new)


def test_a_fifo_left_by_a_dead_process_is_replaced(tmp_path: Path, wake_fifos: Callable[[int], WakeFifos]) -> None:
    """The FIFO of a dead process is replaced, so that its bytes wake no other process."""
    killed = Fork(lambda: WakeFifos(files, tmp_path / "wake", 0o600, Table(2, {})))  # type: ignore[arg-type]
    ringing = wake_fifos(1)
    before = (tmp_path / "wake" / "2").stat().st_ino
    ringing.ring([2])
    killed.kill()
    remove_fifo(files, tmp_path / "wake", 2)
    own = _taken(wake_fifos(2))
    assert not _is_rung(own)
    assert os.fstat(own).st_ino == (tmp_path / "wake" / "2").stat().st_ino
    assert (tmp_path / "wake" / "2").stat().st_mode & 0o777 == 0o600
    assert before
    files.close(own)


# Descriptors


def test_the_fifos_of_others_are_kept_open_but_not_too_many(
    tmp_path: Path, wake_fifos: Callable[[int], WakeFifos]
) -> None:
    """FIFOs of other processes stay open for the next signal, up to a limit."""
    ringing = wake_fifos(1)
    owns = {slot: _taken(wake_fifos(slot)) for slot in range(2, 202)}
    for own in owns.values():
        assert not _is_rung(own)
    held = descriptors_under(tmp_path)
    for _ in range(2):
        ringing.ring(list(owns))
        assert all(_is_rung(own) for own in owns.values())
        assert held < descriptors_under(tmp_path) <= held + 64
    ringing.close()
    assert descriptors_under(tmp_path) < held
    for own in owns.values():
        files.close(own)


def test_closing_releases_everything_and_removes_our_own(
    tmp_path: Path, wake_fifos: Callable[[int], WakeFifos]
) -> None:
    """Closing removes the FIFO and its descriptor, unless a caller has that, which then closes it."""
    untaken, taken = wake_fifos(1), wake_fifos(2)
    own = _taken(taken)
    assert taken.take_own() is None
    untaken.ring([2])
    taken.ring([1])
    untaken.close()
    taken.close()
    assert os.listdir(tmp_path / "wake") == []
    assert descriptors_under(tmp_path) == 1
    files.close(own)


def test_closing_twice_is_closing_once(wake_fifos: Callable[[int], WakeFifos]) -> None:
    """Closing twice is closing once, and not an error."""
    one = wake_fifos(1)
    one.close()
    one.close()


# Signal handlers


class Interrupted:
    """Does something, once, at one line of the module, as a signal handler may at any of them."""

    def __init__(self, line: int, handler: Callable[[], object]) -> None:
        self._left = line
        self._handler = handler

    @property
    def came(self) -> bool:
        """Whether there were so many lines."""
        return self._left == 0

    def run(self, work: Callable[[], object]) -> None:
        """Do this, and the other thing in the middle of it, in a thread that is abandoned if it deadlocks."""
        done = list[bool]()

        def traced() -> None:
            sys.settrace(self._trace)
            try:
                work()
            finally:
                sys.settrace(None)
            done.append(True)

        thread = threading.Thread(target=traced, daemon=True)
        thread.start()
        thread.join(30)
        assert done, f"it waits for itself, or failed: {self._left}"

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != bells_module.__file__:
            return None
        if event == "line" and self._left:
            self._left -= 1
            if not self._left:
                self._handler()  # which is not traced itself
        return self._trace


@pytest.mark.parametrize("before", ["unknown", "of another generation", "known"])
def test_a_signal_handler_may_wake_while_its_thread_wakes(
    tmp_path: Path, wake_fifos: Callable[[int], WakeFifos], generations: dict[int, int], before: str
) -> None:
    """A signal handler may wake at any line of a wake: no deadlock, no open descriptor, every process is woken."""
    owns = {slot: _taken(wake_fifos(slot)) for slot in (2, 3)}
    held, line, came = descriptors_under(tmp_path), 0, True
    while came:
        line += 1
        ringing = WakeFifos(files, tmp_path / "wake", 0o640, Table(1, generations))  # type: ignore[arg-type]
        if before != "unknown":
            ringing.ring([2, 3])
            assert all(_is_rung(own) for own in owns.values())
        if before == "of another generation":
            generations.update(dict.fromkeys(owns, line + 1))
        interrupted = Interrupted(line, partial(ringing.ring, [3, 2]))
        interrupted.run(partial(ringing.ring, [2, 3]))
        came = interrupted.came
        assert all(_is_rung(own) for own in owns.values()), line
        ringing.close()
        assert descriptors_under(tmp_path) == held, line
    assert line > 10, "there were that many lines"
    for own in owns.values():
        files.close(own)


# Without FIFOs


class NoFifos(Files):
    """A file system without them."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def make_fifo(self, path: Path, mode: int) -> None:
        """Fail."""
        raise self._error


@pytest.mark.parametrize(
    "error", [PermissionError("not allowed"), OSError(95, "not supported"), DiskFullError(Path("wake"), 0)]
)
def test_without_fifos_there_is_none_to_watch(
    tmp_path: Path, wake_fifos: Callable[..., WakeFifos], error: Exception
) -> None:
    """Without FIFOs there is no descriptor to watch: waiters poll, and can still wake others."""
    own = _taken(wake_fifos(2))
    without = wake_fifos(1, NoFifos(error))
    assert without.take_own() is None
    without.ring([2])
    assert _is_rung(own)
    files.close(own)
    without.close()
    assert descriptors_under(tmp_path) == 0
