"""How a process comes to share a channel with others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from filechannel import ChannelLockedError, StorageError
from filechannel._format import PURE
from filechannel._format.layout import MODE_BYTE, OPENING_BYTE
from filechannel._storage.control.joining import Joined, joining
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import opened, payloads_of
from tests.storage.forks import Fork, killed_with_a_child
from tests.storage.resources import descriptors_under

files = Files()
shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a control file, which has no content yet."""
    (tmp_path / "control").touch()
    return tmp_path


@contextmanager
def _inside(directory: Path) -> Iterator[Joined]:
    """Come in and stay for the block."""
    descriptor = files.open(directory / "control")
    try:
        with joining(files, directory, descriptor, lambda: True) as joined:
            pass
        try:
            yield joined
        finally:
            joined.membership.close()
    finally:
        files.close(descriptor)


def _stay(directory: Path) -> object:
    """Come in, for a process that will be killed."""
    descriptor = files.open(directory / "control")
    with joining(files, directory, descriptor, lambda: True) as joined:
        pass
    return joined


def test_the_first_one_is_alone(directory: Path) -> None:
    """The first process that joins is alone, and has a slot and the mode byte."""
    with _inside(directory) as joined:
        assert joined.is_alone
        assert joined.membership.processes.slot == 1
        assert joined.membership.processes.others() == []
        assert not KernelLocks(files, directory / "lock").take(MODE_BYTE)


@shares
def test_the_next_one_is_not(directory: Path) -> None:
    """The next process is alone only after all others have left or died."""
    with _inside(directory) as first:
        with _inside(directory) as second:
            assert (first.is_alone, second.is_alone) == (True, False)
            assert second.membership.processes.others() == [1]
        killed = Fork(lambda: _stay(directory))
        assert first.membership.processes.others() == [2]
        killed.kill()
        with _inside(directory) as third:
            assert not third.is_alone
            assert third.membership.processes.slot == 2
    with _inside(directory) as fourth:
        assert fourth.is_alone


def test_after_the_last_one_died_the_next_is_alone(directory: Path) -> None:
    """After the last process died the next one is alone, with another generation of the same slot."""
    killed = Fork(lambda: _stay(directory))
    killed.kill()
    with _inside(directory) as joined:
        assert joined.is_alone
        assert joined.membership.processes.slot == 1
        assert joined.membership.processes.generation(1) == 2


def test_a_child_of_the_last_process_does_not_count(directory: Path) -> None:
    """A live child of a killed process does not count, although it has all its maps."""
    with killed_with_a_child(lambda: _stay(directory)), _inside(directory) as joined:
        assert joined.is_alone


def test_one_at_a_time(directory: Path) -> None:
    """Processes join one at a time, so that no two clean up after the same dead process."""
    descriptor = files.open(directory / "control")
    inside: list[str] = []
    with ExitStack() as stack:
        with joining(files, directory, descriptor, lambda: True) as joined:
            stack.callback(joined.membership.close)
            other = KernelLocks(files, directory / "lock")
            stack.callback(other.close)
            assert not other.take(OPENING_BYTE)

            def come_in() -> None:
                try:
                    with _inside(directory):
                        inside.append("second")
                except ChannelLockedError:
                    inside.append("second was refused")

            thread = threading.Thread(target=come_in)
            thread.start()
            thread.join(0.1)
            inside.append("first")
        thread.join(60)
    assert inside == ["first", "second was refused" if PURE else "second"]
    files.close(descriptor)


def test_an_error_inside_means_not_to_stay(directory: Path) -> None:
    """If joining fails nothing is locked, and no slot or descriptor is used."""
    descriptor = files.open(directory / "control")
    held = descriptors_under(directory)
    with pytest.raises(LookupError), joining(files, directory, descriptor, lambda: True):
        raise LookupError
    locks = KernelLocks(files, directory / "lock")
    assert locks.taken(0, 1 << 20) == []
    locks.close()
    assert descriptors_under(directory) == held
    files.close(descriptor)


def test_a_process_without_a_free_slot_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is refused when no slot is free, and nothing stays locked."""
    monkeypatch.setattr("filechannel._storage.control.live_processes.PROCESS_SLOT_COUNT", 3)
    monkeypatch.setattr("filechannel._storage.control.joining.PURE", False)
    with _inside(directory), _inside(directory) as second:
        with pytest.raises(StorageError, match="2 processes have the channel open"), _inside(directory):
            pass
        assert second.membership.processes.others() == [1]
        assert not second.membership.locks.is_taken(OPENING_BYTE)
    with _inside(directory) as joined:
        assert joined.is_alone


@pytest.mark.parametrize(("there", "coming"), [(True, False), (False, True), (True, True)])
def test_a_process_that_cannot_share_does_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch, there: bool, coming: bool
) -> None:
    """A process without compare-and-swap refuses others and is refused, and the error names the other process."""
    monkeypatch.setattr("filechannel._storage.control.joining.PURE", there)
    with _inside(directory) as joined:
        monkeypatch.setattr("filechannel._storage.control.joining.PURE", coming)
        with pytest.raises(ChannelLockedError) as caught, _inside(directory):
            pass
        holder = joined.membership.processes.holder(1)
        assert (caught.value.pid, caught.value.host, caught.value.since) == (holder.pid, holder.host, holder.since)
        assert caught.value.pid == os.getpid()
        assert joined.membership.processes.others() == []
    with _inside(directory) as joined:
        assert joined.is_alone


def test_many_processes_join_at_once(path: Path) -> None:
    """Of many processes that join a new channel at once one creates it, and each has it open or gets a reason."""
    with ExitStack() as stack:
        ends: list[int] = []
        for _ in range(6):
            ends.append(os.fork())
            if not ends[-1]:
                code = 1
                try:
                    with opened(path) as store:
                        store.log.append([b"%d" % os.getpid()])
                    code = 0
                except ChannelLockedError:
                    code = 3
                finally:
                    os._exit(code)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ends]
        assert set(codes) <= ({0, 3} if PURE else {0})
        store = stack.enter_context(opened(path, create=False))
        sent = [b"%d" % child for child, code in zip(ends, codes, strict=True) if code == 0]
        assert sorted(payloads_of(store)) == sorted(sent)
        assert sent
