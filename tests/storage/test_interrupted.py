"""A thread that is interrupted while it writes, by a signal handler or a finalizer that writes too, or forks."""

from __future__ import annotations

import os
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from weakref import ref

import pytest

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._errors import Busy
from filechannel._format import PURE
from filechannel._runtime.threads import background_threads
from filechannel._storage.durability.group_commit import Ticket
from filechannel._storage.durability.interval_flush import _flush
from filechannel._storage.log import log
from filechannel._storage.log.active_segment import ActiveSegment
from filechannel._storage.log.append_and_roll_back import Appender
from filechannel._storage.manifest import Manifest
from filechannel._storage.open_stores import STORES
from filechannel._storage.segments.catalog import Segments
from filechannel._storage.segments.segment import Segment
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import SMALL, open_store, opened, payloads_of
from tests.storage.handling import handle

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
FSYNC = ChannelOptions(segment_size=4096, durability=Durability.FSYNC)


def test_a_nested_append_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append inside of another one in the same thread, in the middle of a roll, raises and harms no message."""
    begin, refused = Appender.begin_segment, list[str]()

    def interrupted(self: Appender, *arguments: int) -> None:
        begin(self, *arguments)
        with pytest.raises(RuntimeError, match="nothing was sent: the same thread is already inside") as error:
            store.log.writer.append(b"nested")
        refused.append(str(error.value))

    with opened(path, SMALL) as store:
        monkeypatch.setattr(Appender, "begin_segment", interrupted)
        sent = [bytes(1000) + b"%d" % number for number in range(20)]
        for payload in sent:
            store.log.writer.append(payload)
        monkeypatch.undo()
        store.log.writer.append(b"afterwards")
        assert payloads_of(store) == [*sent, b"afterwards"]
    assert len(refused) > 3
    assert str(path) in refused[0]


@pytest.mark.skipif(not PURE, reason="nothing interrupts the C core in the middle of an append")
def test_a_nested_append_of_the_pure_implementation_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pure implementation an append inside of the fast path of another one raises instead of deadlocking."""
    from filechannel._format.append.writer import Writer

    publish = Writer.publish

    def interrupted(self: Writer) -> None:
        with pytest.raises(RuntimeError, match="already inside an append"):
            self.append(b"nested")
        publish(self)

    with opened(path, SMALL) as store:
        store.log.writer.append(b"one")
        monkeypatch.setattr(Writer, "publish", interrupted)
        store.log.writer.append(b"two")
        assert payloads_of(store) == [b"one", b"two"]


@pytest.mark.skipif(not PURE, reason="nothing interrupts the C core in the middle of an append")
def test_a_nested_append_of_the_pure_implementation_is_refused_in_a_roll(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pure implementation an append inside of a roll raises instead of deadlocking."""
    from filechannel._format.append.roll import PreparedSegment

    begin, refused = PreparedSegment.become_segment, list[str]()

    def interrupted(self: PreparedSegment, *arguments: object) -> bool:
        with pytest.raises(RuntimeError, match="already inside an append") as error:
            store.log.writer.append(b"nested")
        refused.append(str(error.value))
        return begin(self, *arguments)  # type: ignore[arg-type]

    with opened(path, SMALL) as store:
        store.log.writer.append(bytes(1000))
        active = store.segments.get(store.segments.begins[-1])
        assert isinstance(active, Segment)
        store.log.writer.append(bytes(active.space_end - store.log.writer.pending - 8))
        store.segments.prepare_free_file(active)
        store.log.prepare_next_segment()
        monkeypatch.setattr(PreparedSegment, "become_segment", interrupted)
        store.log.writer.append(b"next")
        assert payloads_of(store)[-1] == b"next"
    assert refused


def test_a_batch_that_is_interrupted_leaves_no_segment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that Ctrl-C interrupts after its segment got a name leaves no segment behind."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    options = ChannelOptions(segment_size=8192)
    with opened(path, options) as store:
        sent = [b"first" * 200]
        store.log.writer.append(sent[0])
        with monkeypatch.context() as patched:
            patched.setattr(Segments, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.log.writer.append_all([bytes(1000)] * 10)
        for number in range(30):
            sent.append(b"%d" % number * 410)
            store.log.writer.append(sent[-1])
    with opened(path, options) as store:
        assert payloads_of(store) == sent
        offsets = [store.lookup.numbered(number).offset for number in range(len(sent))]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("what", ["commit", "flush"])
def test_a_nested_flush_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A flush inside of another one in the same thread raises, because it would publish what is not flushed."""
    flush = Segment.flush

    def interrupted(self: Segment) -> None:
        flush(self)
        with pytest.raises(RuntimeError, match="nothing was flushed"):
            getattr(store.flusher, what)()

    with opened(path, FSYNC) as store:
        store.log.append([b"one"])
        monkeypatch.setattr(Segment, "flush", interrupted)
        store.flusher.commit()
        assert payloads_of(store) == [b"one"]


def test_deferred_work_is_started_without_the_writer_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are started without the writer lock, because that takes locks whose holder may wait for it."""
    with opened(path, SMALL) as store:
        free: list[bool] = []
        handle(store.events.segment_finished, lambda: free.append(not store.log._lock.is_held))
        for _ in range(10):
            store.log.append([bytes(1000)])
    assert free
    assert all(free)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_leaves_everything_to_the_parent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that a signal handler forks in the middle of an append writes nothing and releases nothing."""
    begin = Appender.begin_segment
    child = -1

    def interrupted(self: Appender, *arguments: int) -> None:
        nonlocal child
        if child < 0 and store.segments.begins:
            child = os.fork()
        begin(self, *arguments)

    store = STORES.open(path, check=lambda _: None, new=_new, readonly=False, max_mapped_segments=8)
    monkeypatch.setattr(Appender, "begin_segment", interrupted)
    outcome, sent = 9, list[bytes]()
    try:
        for number in range(12):
            store.log.append([bytes(1000) + b"%d" % number])
            sent.append(bytes(1000) + b"%d" % number)
    except StorageError as error:
        outcome = 3 if "forked" in str(error) else 4
    finally:
        if child == 0:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert payloads_of(store) == sent
    STORES.close(store)


def _new() -> Manifest:
    return Manifest.new("machine", "raw", None, SMALL.resolve())


@shares
def test_a_rollback_that_fails_is_left_to_the_next_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a rollback fails the next process cleans up before it writes."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        store.log.append([b"first"])
        other.log.append([b"second"])

        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Segment, "reopen", fail)
        monkeypatch.setattr(ActiveSegment, "open_window", fail)
        with pytest.raises(KeyboardInterrupt):
            store.log.append([bytes(3000), bytes(3000)])
        monkeypatch.undo()
        for number in range(20):
            other.log.writer.append(b"%d" % number)
        store.log.append([b"last"])
        expected = [b"first", b"second", *(b"%d" % number for number in range(20)), b"last"]
        assert payloads_of(store) == payloads_of(other) == expected


@shares
def test_an_event_loop_does_not_flush_because_another_process_chose_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first append of an event loop after another process chose FSYNC raises instead of flushing."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        store.log.append([b"one"])
        other.log.append([b"two"])
        other.configure(lambda manifest: manifest.with_changes(schema=manifest.schema, options=FSYNC.resolve()))
        monkeypatch.setattr(log, "may_sleep", lambda: False)
        handle(store.events.flush_needed, pytest.fail)
        with pytest.raises(Busy):
            store.log.append([b"three"])
        assert store.log.writer.deferred
        store.log.append([b"three"])
        store.flusher.commit()
        assert payloads_of(other) == [b"one", b"two", b"three"]


class _Bell:
    """A sender that waits for a commit."""

    def __init__(self) -> None:
        self.rung = Event()

    def wake(self) -> None:
        """Let it continue."""
        self.rung.set()


@shares
def test_background_threads_do_not_wait_for_another_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stopped process flushes many channels, background threads of others wait only for those channels."""
    monkeypatch.setattr("filechannel._runtime.may_sleep._LOCK_WAIT_SECONDS", 0.01)
    count = 6
    stores = [open_store(path / str(number), FSYNC) for number in range(count)]
    others = [open_store(path / str(number), FSYNC) for number in range(count)]
    wake_fifos = [_Bell() for _ in stores]
    try:
        words = [other.flusher._lock.held() for other in others]
        for word in words:
            word.__enter__()
        for store, bell in zip(stores, wake_fifos, strict=True):
            store.group_commit.commit_later(Ticket(store.log.append([b"waits"]), bell))
        done = SimpleQueue[str]()
        background_threads().do(lambda: done.put("done"))
        assert done.get(timeout=60) == "done"
        assert not any(bell.rung.is_set() for bell in wake_fifos)
        for word in words:
            word.__exit__(None, None, None)
        assert all(bell.rung.wait(60) for bell in wake_fifos)
        assert [payloads_of(other) for other in others] == [[b"waits"]] * count
    finally:
        for store in stores + others:
            store.close()


@shares
def test_the_timer_does_not_wait_for_another_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a stopped process flushes one channel, the timer flushes the others."""
    monkeypatch.setattr("filechannel._runtime.may_sleep._LOCK_WAIT_SECONDS", 0.01)
    with opened(path / "a", SMALL) as stuck, opened(path / "a", SMALL) as stopped, opened(path / "b", SMALL) as fine:
        stuck.log.append([b"one"])
        fine.log.append([b"one"])
        with stopped.flusher._lock.held():
            _flush(ref(stuck.flusher), 1.0)
            _flush(ref(fine.flusher), 1.0)
        assert stuck.control.durable_offset == 0
        assert fine.control.durable_offset == fine.control.write_offset
        _flush(ref(stuck.flusher), 1.0)
        assert stuck.control.durable_offset == stuck.control.write_offset


def test_files_know_whether_a_path_is_that_of_an_open_file(tmp_path: Path) -> None:
    """A path is compared with an open file by identity, not by name."""
    files, path = Files(), tmp_path / "a"
    descriptor = files.open(path, create=True)
    assert files.leads_to(path, descriptor)
    path.rename(tmp_path / "b")
    assert not files.leads_to(path, descriptor)
    assert files.leads_to(tmp_path / "b", descriptor)
    path.touch()
    assert not files.leads_to(path, descriptor)
    files.close(descriptor)
