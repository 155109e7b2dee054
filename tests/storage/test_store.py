"""One channel directory, opened."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from weakref import ref

import pytest
from anyio import ClosedResourceError

from filechannel import ChannelOptions, Durability, StorageError
from filechannel._format import NOTHING
from filechannel._format.layout import OLDEST_OFFSET, WRITE_TAIL
from filechannel._storage import open_directory as opening
from filechannel._storage.control.control_page import Control
from filechannel._storage.manifest import Manifest
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.store import ReadOnlyStore, Store
from filechannel._storage.writable_store import writable
from tests.storage.background import Background
from tests.storage.channels import SMALL, open_store, opened, payloads_of, read_all, reader_of, take_all
from tests.storage.faults import FaultyFiles, FewDescriptors, input_output_error
from tests.storage.handling import handle
from tests.storage.resources import descriptors_under, maps_under


def _send(store: Store, count: int) -> None:
    for number in range(count):
        store.log.append([b"%d:" % number + b"." * 1000])


def _flip(path: Path, position: int) -> None:
    with (path / "control").open("r+b") as control:
        control.seek(position)
        byte = control.read(1)[0]
        control.seek(position)
        control.write(bytes([byte ^ 0x40]))


# Opening and closing


def test_a_channel_resumes_where_it_was(path: Path) -> None:
    """After reopening messages, offsets, sequences and consumers are the same."""
    with opened(path) as store:
        _send(store, 10)
        before = read_all(store)
    with opened(path) as store:
        assert read_all(store) == before
        _send(store, 1)
        last = read_all(store)[-1]
        assert last.sequence == 10
        assert last.offset == before[-1].offset + 8 + len(before[-1].payload)


def test_closing_releases_everything(path: Path, background: Background) -> None:
    """A closed store keeps no descriptor and no map."""
    before = descriptors_under(path)
    store = open_store(path)
    _send(store, 20)
    cursor = store.cursors.open("consumer")
    reader = reader_of(store, cursor)
    reader.move(store.lookup.earliest())
    take_all(reader)
    reader.close()
    store.flusher.flush()
    background.run()
    store.close()
    del store, cursor, reader
    assert descriptors_under(path) == before
    assert maps_under(path) == 0


def test_opening_again_and_again_keeps_descriptors_flat(path: Path) -> None:
    """Opening repeatedly, with success or failure, leaves no descriptor open."""
    counts = set()
    for _ in range(5):
        files = FaultyFiles()
        with opened(path) as store:
            store.log.append([b"one"])
        files.fail(frozenset({"map"}), input_output_error, at=2)
        with pytest.raises(OSError, match="Input/output"):
            open_store(path, files=files)
        counts.add(descriptors_under(path))
    assert len(counts) == 1


def test_the_manifest_is_checked_before_anything_is_touched(path: Path) -> None:
    """An open that is refused because of the manifest changes nothing."""
    with opened(path) as store:
        store.log.append([b"one"])

    def refuse(_: Manifest) -> None:
        raise LookupError

    times = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    with pytest.raises(LookupError):
        opening.open_store(
            FaultyFiles(), path, check=refuse, new=None, readonly=False, max_mapped_segments=8, wanted=lambda: True
        )
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == times


@pytest.mark.parametrize("durability", [Durability.OS, Durability.interval(3600), Durability.FSYNC])
def test_closing_flushes_what_was_promised(path: Path, durability: Durability, background: Background) -> None:
    """Closing flushes nothing under OS, and everything under other durabilities."""
    files = FaultyFiles()
    with opened(path, ChannelOptions(segment_size=4096, durability=durability), files=files) as store:
        store.log.append([b"one"])
        files.flushed.clear()
    assert bool(files.flushed) == (durability != Durability.OS)
    with opened(path, create=False) as store:
        assert payloads_of(store) == [b"one"]


def test_a_last_flush_that_fails_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the last flush fails the error is logged, and the channel is closed."""
    files = FaultyFiles()
    store = open_store(path, ChannelOptions(segment_size=4096, durability=Durability.interval(3600)), files=files)
    store.log.append([b"one"])
    files.fail(frozenset({"flush"}), input_output_error)
    store.close()
    assert "the last flush failed" in caplog.text
    with opened(path, create=False) as store:
        assert payloads_of(store) == [b"one"]


def test_a_closed_store_is_collected(path: Path, background: Background) -> None:
    """A closed store is collected, because no background work refers to it."""
    store = open_store(path, ChannelOptions(segment_size=4096, durability=Durability.interval(3600)))
    _send(store, 5)
    background.run()
    store.close()
    gone = ref(store)
    del store
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("mapped", [2, 3, 8])
def test_the_number_of_mapped_segments_is_bounded(path: Path, mapped: int, background: Background) -> None:
    """The number of mapped segments is limited, whatever is read."""
    with opened(path, mapped=mapped) as store:
        _send(store, 60)
        store.flusher.flush()
        for message in read_all(store)[::5]:
            store.lookup.at(message.offset)
            assert store.segments.mapped <= mapped
        background.forget()
        assert maps_under(path / "segments") <= mapped + 1  # and the one that a reader may still be in


# Reading only


def test_a_readonly_store_cannot_write(path: Path) -> None:
    """A read-only store has no parts that write."""
    open_store(path).close()
    with opened(path, readonly=True) as store:
        assert isinstance(store, ReadOnlyStore)
        for part in ("log", "cursors", "flusher", "purge"):
            assert not hasattr(store, part)
        with pytest.raises(io.UnsupportedOperation, match="read-only"):
            writable(store)


def test_a_readonly_store_changes_nothing(path: Path) -> None:
    """A read-only store changes no byte and no time of a file, whether or not another process writes."""
    with opened(path) as store:
        _send(store, 10)
        store.seal()
    before = {file: (file.stat().st_mtime_ns, file.is_file() and file.read_bytes()) for file in path.rglob("*")}
    with opened(path, readonly=True) as store:
        assert len(read_all(store)) == 10
        assert store.has_ended(store.control.write_offset)
    assert {file: (file.stat().st_mtime_ns, file.is_file() and file.read_bytes()) for file in path.rglob("*")} == before


def test_a_readonly_store_needs_a_complete_control_file(path: Path) -> None:
    """A file that was cut off is a typed error that says how to repair it."""
    open_store(path).close()
    os.truncate(path / "control", 100)
    with pytest.raises(StorageError, match=f"filechannel repair {path} --apply"), opened(path, readonly=True):
        pass
    open_store(path).close()
    with opened(path, readonly=True) as store:
        assert payloads_of(store) == []


# Words that cannot be believed


@pytest.mark.parametrize(
    "position", [0, 20, 40, WRITE_TAIL, WRITE_TAIL + 7, OLDEST_OFFSET, OLDEST_OFFSET + 4], ids=lambda p: f"byte {p}"
)
def test_a_damaged_word_is_noticed_when_the_channel_is_opened(path: Path, position: int) -> None:
    """Opening a channel with a damaged word recovers it, and every message is stored."""
    with opened(path) as store:
        _send(store, 10)
        before = read_all(store)
    _flip(path, position)
    with opened(path) as store:
        assert read_all(store) == before
        assert store.log.append([b"next"]) >= 1 << 40


def test_a_lost_active_segment_does_not_lock_the_channel(path: Path) -> None:
    """If the active segment cannot be opened, it is quarantined and the channel continues."""
    with opened(path) as store:
        _send(store, 10)
        active = store.segments.begins[-1]
        before = [message for message in read_all(store) if message.offset < active]
    (path / "segments" / segment_name(active)).write_bytes(b"nothing")
    with opened(path) as store:
        assert read_all(store, skip=True) == before
        store.log.append([b"next"])
        assert payloads_of(store, skip=True)[-1] == b"next"
    assert list((path / "quarantine").iterdir())


# Purging


def test_a_purge_removes_everything_sent_before(path: Path) -> None:
    """A purge deletes every message and old segment, and sequences and offsets continue."""
    with opened(path) as store:
        _send(store, 20)
        end = store.control.write_offset
        store.purge()
        assert payloads_of(store) == []
        assert store.segments.begins == [end]
        store.log.append([b"after"])
        assert read_all(store)[0][:3] == (b"after", end, 20)
    with opened(path) as store:
        assert payloads_of(store) == [b"after"]


def test_an_idle_reader_in_a_purged_segment_releases_it(path: Path) -> None:
    """An idle reader in a purged segment keeps its file until maintenance releases it."""
    with opened(path) as store:
        requested: list[None] = []
        handle(store.events.maintenance_due, lambda: requested.append(None))
        store.purge()
        assert requested


def test_purging_twice_is_purging_once(path: Path) -> None:
    """Purging an empty channel changes nothing."""
    with opened(path) as store:
        store.purge()
        _send(store, 3)
        store.purge()
        store.purge()
        assert payloads_of(store) == []
        assert len(store.segments.begins) == 1


def test_a_purge_moves_every_consumer(path: Path) -> None:
    """Owned or not, a consumer continues with what is sent afterwards."""
    with opened(path) as store:
        _send(store, 20)
        owned, unowned = store.cursors.open("owned"), store.cursors.open("unowned")
        reader = reader_of(store, owned)
        store.adopt(reader)
        for cursor in (owned, unowned):
            cursor.store(0, 0, 0)
        store.cursors.close(unowned)
        reader.move(store.lookup.earliest())
        reader.native.take()
        store.purge()
        store.log.append([b"after"])
        assert [message.payload for message in take_all(reader)] == [b"after"]
        unowned = store.cursors.open("unowned")
        position = unowned.position
        assert position is not None
        found = read_all(store, start=position.log_position)
        assert [message.payload for message in found] == [b"after"]
        reader.close()
        store.cursors.close_all()


def test_a_purge_is_on_disk_before_the_first_file_is_deleted(path: Path, background: Background) -> None:
    """A purge is on disk before the first file is deleted."""
    files = FaultyFiles()
    with opened(path, files=files) as store:
        _send(store, 20)
        files.fail(frozenset({"unlink"}), input_output_error)
        with pytest.raises(OSError, match="Input/output"):
            store.purge()
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.oldest == store.control.oldest_offset == store.control.write_offset
        files.work()
        assert list((path / "segments").glob("*.seg"))
    with opened(path) as store:
        assert payloads_of(store) == []
        assert store.segments.begins == []
        assert not list((path / "segments").iterdir())


# The end


def test_a_sealed_channel_ends_after_its_last_message(path: Path) -> None:
    """A reader at the end of a sealed channel has reached its end, and one before it has not."""
    with opened(path) as store:
        store.log.append([b"one"])
        assert not store.has_ended(store.control.write_offset)
        store.seal()
        assert store.has_ended(store.control.write_offset)
        assert not store.has_ended(0)


def test_all_messages_are_visible_before_a_channel_is_sealed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing under FSYNC publishes every message first, because the sealing process may die."""
    with opened(path, ChannelOptions(segment_size=4096, durability=Durability.FSYNC)) as store:
        mark_sealed, seen = Control.mark_sealed, list[list[bytes]]()

        def looked_at(control: Control) -> None:
            assert control.tail() == control.tail(deferred=True)
            seen.append(payloads_of(store))
            mark_sealed(control)

        monkeypatch.setattr(Control, "mark_sealed", looked_at)
        store.log.append([b"one"])
        assert payloads_of(store) == []
        store.seal()
        store.seal()
        assert seen == [[b"one"]]
        assert store.has_ended(store.control.write_offset)


def test_configuring_is_durable(path: Path) -> None:
    """A configuration applies to every later open."""
    with opened(path, SMALL) as store:
        options = store.manifest.options
        changed = ChannelOptions(segment_size=4096, durability=Durability.FSYNC).resolve()
        store.configure(lambda manifest: replace(manifest, schema={"root": "int"}, options=changed))
        assert store.log.writer.deferred
        store.configure(lambda manifest: replace(manifest, options=options))
        assert not store.log.writer.deferred
    with opened(path, create=False) as store:
        assert (store.manifest.schema, store.manifest.options) == ({"root": "int"}, options)


def test_what_the_system_refuses_is_a_storage_error(path: Path) -> None:
    """An operating system error in configuring or registering is a `StorageError`, and the call can be repeated."""
    files = FewDescriptors()
    with opened(path, SMALL, files=files) as store:
        assert store.processes is not None
        attempts: list[Callable[[], object]] = [
            partial(store.configure, lambda manifest: replace(manifest, schema={"root": "int"})),
            store.options,
            partial(store.cursors.open, "single"),
            partial(store.cursors.join, "group", store.processes),
        ]
        files.has_none = True
        for attempt in attempts:
            with pytest.raises(StorageError, match="Too many open files") as caught:
                attempt()
            assert isinstance(caught.value.__cause__, OSError)
        files.has_none = False
        for attempt in attempts:
            attempt()
        store.cursors.close_all()


def test_a_replaced_interval_does_not_flush_any_more(path: Path) -> None:
    """Configuring another durability stops the timer of the interval."""
    with opened(path, ChannelOptions(segment_size=4096, durability=Durability.interval(3600))) as store:
        store.configure(lambda manifest: replace(manifest, options=SMALL.resolve()))
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        assert reader.native.take() is NOTHING
        reader.close()


def test_a_closed_channel_uses_no_descriptor_again(path: Path, tmp_path: Path) -> None:
    """A closed channel writes to and locks none of its descriptors, whose numbers may be reused."""
    store = open_store(path)
    control, locks = store.control, store._membership.locks
    numbers = [control.file.descriptor, locks._descriptor]
    store.close()
    other = tmp_path / "other"
    opened_again = os.open(other, os.O_RDWR | os.O_CREAT)
    try:
        for number in set(numbers) - {opened_again}:
            os.dup2(opened_again, number)
        for use in (control.reserve.allocate, lambda: locks.take(1), store.check_directory):
            with pytest.raises(ClosedResourceError):
                use()
        assert other.stat().st_size == 0
    finally:
        for number in {*numbers, opened_again}:
            os.close(number)
