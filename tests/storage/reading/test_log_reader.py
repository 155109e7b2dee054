"""Reading the log through segments, gaps and damage."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Thread

import pytest

from filechannel import ChannelOptions, CorruptRecordError, DataExpiredError
from filechannel._format import NOTHING
from filechannel._offset import LogPosition, Offset
from filechannel._storage.segments.segment import segment_name
from filechannel._storage.store import Store
from tests.storage.channels import SMALL, Message, open_store, opened, read_all, reader_of, take_all


def _fill(store: Store, count: int = 20) -> list[Message]:
    for number in range(count):
        store.log.append([b"%d:" % number + b"." * 1000])
    return read_all(store)


def _numbers(messages: list[Message]) -> list[int]:
    return [int(message.payload.split(b":")[0]) for message in messages]


def test_a_reader_reads_across_segments(path: Path) -> None:
    """Everything is read in order, with its sequence."""
    with opened(path, mapped=2) as store:
        messages = _fill(store)
        assert _numbers(messages) == [message.sequence for message in messages] == list(range(20))
        assert store.segments.mapped <= 2


def test_a_reader_continues_when_there_is_more(path: Path) -> None:
    """A reader at the end finds what is sent afterwards, also in segments that are created later."""
    with opened(path) as store:
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        assert reader.native.take() is NOTHING
        _fill(store, 10)
        assert _numbers(take_all(reader)) == list(range(10))
        store.log.append([b"10:"])
        assert _numbers(take_all(reader)) == [10]
        reader.close()


def test_a_readonly_store_finds_segments_that_are_created_later(path: Path) -> None:
    """A store that was opened for reading follows a writer from segment to segment."""
    with opened(path) as writer, opened(path, readonly=True) as store:
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        for number in range(20):
            writer.log.append([b"%d:" % number + b"." * 1500])
            assert _numbers(take_all(reader)) == [number]
        reader.close()


def test_a_readonly_store_notices_a_replaced_file(path: Path) -> None:
    """An empty segment that was mapped is replaced by a larger one, and the reader reads that."""
    with opened(path) as writer:
        writer.log.append([b"first"])
        writer.purge()
        with opened(path, readonly=True) as store:
            begin = store.segments.begins[-1]
            held = store.segments.get(begin)
            writer.log.append([b"x" * 10_000])
            reader = reader_of(store)
            reader.move(store.lookup.earliest())
            assert [message.payload for message in take_all(reader)] == [b"x" * 10_000]
            assert store.segments.get(begin) is not held
            reader.close()


def test_a_missing_segment_is_named(path: Path) -> None:
    """The error says where reading stopped and up to where messages are missing; the cursor stays."""
    with opened(path) as store:
        messages, begins = _fill(store), store.segments.begins
    (path / "segments" / segment_name(begins[2])).unlink()
    with opened(path) as store:
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match=f"the records up to {begins[3]} are missing") as caught:
                take_all(reader)
            assert caught.value.segment == segment_name(begins[1])
            assert reader.native.offset == begins[2]
        reader.close()
        left = read_all(store, skip=True)
        assert left == [message for message in messages if not begins[2] <= message.offset < begins[3]]


def test_the_missing_last_segment_is_named(path: Path) -> None:
    """If a visible segment is missing the error says so, and skipping moves to the end."""
    with opened(path) as store:
        messages, begins = _fill(store), store.segments.begins
    (path / "segments" / segment_name(begins[-1])).unlink()
    with opened(path) as store:
        with pytest.raises(CorruptRecordError, match="are missing"):
            read_all(store)
        assert read_all(store, skip=True) == [message for message in messages if message.offset < begins[-1]]
        store.log.append([b"20:"])
        with pytest.raises(CorruptRecordError, match="are missing"):
            read_all(store)
        assert _numbers(read_all(store, skip=True))[-1] == 20


@pytest.mark.parametrize("which", [0, 2, -2])
def test_a_damaged_header_is_named(path: Path, which: int) -> None:
    """A segment that cannot be opened is an error that names it, or is left out."""
    with opened(path) as store:
        messages, begins = _fill(store), store.segments.begins
    damaged = path / "segments" / segment_name(begins[which])
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    with opened(path) as store:
        with pytest.raises(CorruptRecordError, match="no segment header") as caught:
            read_all(store)
        assert caught.value.segment == damaged.name
        end = begins[begins.index(begins[which]) + 1]
        assert read_all(store, skip=True) == [
            message for message in messages if not begins[which] <= message.offset < end
        ]


@pytest.mark.parametrize("size", [64, 100, 1500, 4095])
def test_a_segment_that_was_cut_off_is_named(path: Path, size: int) -> None:
    """Reading stops where the file does, or skips to the next one; it never loops."""
    with opened(path) as store:
        messages, begins = _fill(store), store.segments.begins
    os.truncate(path / "segments" / segment_name(begins[1]), size)
    with opened(path) as store:
        if size < 4095:
            with pytest.raises(CorruptRecordError, match=r"missing|beyond the end"):
                read_all(store)
        left = read_all(store, skip=True)
        assert set(left) <= set(messages)
        assert [message for message in messages if not begins[1] <= message.offset < begins[2]] == [
            message for message in left if not begins[1] <= message.offset < begins[2]
        ]


def test_after_a_cut_off_active_segment_the_log_resumes_in_another(path: Path) -> None:
    """The missing part is named, and what is sent afterwards is stored."""
    with opened(path, ChannelOptions(segment_size=1 << 20)) as store:
        _fill(store)
    os.truncate(path / "segments" / segment_name(0), 5000)
    with opened(path) as store:
        store.log.append([b"20:"])
        with pytest.raises(CorruptRecordError):
            read_all(store)
        assert _numbers(read_all(store, skip=True)) == [0, 1, 2, 3, 20]


def test_skipping_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything that is skipped is logged."""
    with opened(path) as store:
        messages = _fill(store)
        segment = store.segments.get(store.segments.begins[0])
        segment.map[segment.position(messages[1].offset) + 20] ^= 1
        with caplog.at_level(logging.WARNING, "filechannel"):
            assert len(read_all(store, skip=True)) == 19
    assert f"skipped from offset {messages[1].offset} to {messages[2].offset}: checksum mismatch" in caplog.text


def test_skipping_the_last_segment_skips_nothing_that_is_sent_at_the_same_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a segment that cannot be opened reading resumes where the log ended when that was noticed."""
    with opened(path) as store:
        messages, last, following = _fill(store), store.segments.begins[-1], store.segments.following
        store.segments.get(last).map[:8] = bytes(8)
        store.segments.forget(last)

        def late(begin: int) -> Offset | None:
            found = following(begin)
            if found is None:
                monkeypatch.undo()
                store.log.append([b"20:" + b"." * 4000])
            return found

        monkeypatch.setattr(store.segments, "following", late)
        before = [message.sequence for message in messages if message.offset < last]
        assert _numbers(read_all(store, skip=True)) == [*before, 20]


def test_a_position_before_the_oldest_message_has_expired(path: Path) -> None:
    """The error says how many were missed, is raised once, and then reading resumes at the oldest."""
    with opened(path) as store:
        _fill(store)
        store.purge()
        store.log.append([b"20:"])
        reader = reader_of(store)
        reader.move(LogPosition(store.segments.begins[0], 5))
        reader.native.move(0, 0)
        with pytest.raises(DataExpiredError) as caught:
            reader.native.take()
        assert caught.value.missed == 20
        assert caught.value.oldest == store.control.oldest_offset
        assert _numbers(take_all(reader)) == [20]
        reader.close()


def _overtake(store: Store, segments: int) -> int:
    """Drop the oldest segments while readers are in them; return the number of the oldest message left."""
    oldest = store.segments.begins[segments]
    store.control.oldest_offset = oldest
    store.segments.remove_before(oldest)
    return store.lookup.earliest().sequence


@pytest.mark.parametrize("next_call", ["take", "take_record", "take_many"])
def test_a_batch_that_is_overtaken_comes_before_the_error(path: Path, next_call: str) -> None:
    """What was read before the gap is returned, the next call raises with the number missed, and then it continues."""
    with opened(path) as store:
        messages = _fill(store)
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        assert reader.native.take() == messages[0].payload
        oldest = _overtake(store, 3)
        before = reader.take_many(100)
        assert before == [message.payload for message in messages[1 : 1 + len(before)]]
        assert before
        ways = {"take": reader.native.take, "take_record": reader.native.take_record}
        with pytest.raises(DataExpiredError) as caught:
            ways.get(next_call, lambda: reader.take_many(100))()
        assert caught.value.missed == oldest - len(before) - 1 > 0
        assert caught.value.oldest == store.control.oldest_offset == reader.native.offset
        assert reader.take_many(100) == [message.payload for message in messages[oldest:]]
        reader.close()


def test_being_overtaken_again_is_another_error(path: Path) -> None:
    """Between an error and the next call more may be dropped: that is another error, which counts only the rest."""
    with opened(path) as store:
        messages = _fill(store)
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        missed = []
        for segments in (2, 1):
            _overtake(store, segments)
            with pytest.raises(DataExpiredError) as caught:
                reader.take_many(5)
            missed.append(caught.value.missed)
        left = reader.take_many(100)
        assert left == [message.payload for message in messages[sum(missed) :]]
        reader.close()


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_clones_of_an_overtaken_reader_get_one_error(path: Path, in_thread: bool) -> None:
    """The first call gets the error, however many wait in the middle of a batch."""
    with opened(path) as store:
        _fill(store)
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        oldest = _overtake(store, 3)
        counts: list[int] = []
        got: list[object] = []

        def take() -> None:
            try:
                got.extend(reader.take_many(1))
            except DataExpiredError as error:
                counts.append(error.missed)

        for _ in range(5):
            if in_thread:
                threads = [Thread(target=take) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            else:
                take()
        assert counts == [oldest]
        assert len(got) == min(20 - oldest, (20 if in_thread else 5) - 1)
        reader.close()


def test_a_damaged_record_in_a_batch_comes_after_what_was_before_it(path: Path) -> None:
    """A batch ends before damage; every call afterwards raises, and the position stays."""
    with opened(path) as store:
        messages = _fill(store)
        segment = store.segments.get(store.segments.begins[0])
        segment.map[segment.position(messages[2].offset) + 20] ^= 1
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        assert reader.take_many(100) == [message.payload for message in messages[:2]]
        for call in (reader.native.take, reader.native.take_record, lambda: reader.take_many(100)):
            with pytest.raises(CorruptRecordError) as caught:
                call()
            assert caught.value.offset == reader.native.offset == messages[2].offset
        reader.close()


def test_a_missing_segment_in_a_batch_comes_after_what_was_before_it(path: Path) -> None:
    """A batch ends before a gap; every call afterwards raises, and the position stays."""
    with opened(path) as store:
        messages, begins = _fill(store), store.segments.begins
    (path / "segments" / segment_name(begins[2])).unlink()
    with opened(path) as store:
        reader = reader_of(store)
        reader.move(store.lookup.earliest())
        before = [message.payload for message in messages if message.offset < begins[2]]
        assert reader.take_many(100) == before
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="are missing"):
                reader.take_many(100)
            assert reader.native.offset == begins[2]
        reader.close()


def test_a_reader_reads_to_its_stop(path: Path) -> None:
    """A reader reads up to its stop, wherever it is moved, and other readers are not affected."""
    with opened(path) as store:
        messages = _fill(store)
        for stop in (messages[0], messages[7], messages[19]):
            reader = reader_of(store, stop=LogPosition(Offset(stop.offset), stop.sequence))
            for place in (store.lookup.latest(), store.lookup.at(stop.offset)):
                reader.move(place)
                assert (reader.native.offset, reader.native.sequence) == (stop.offset, stop.sequence)
                assert reader.native.take() is reader.native.take_record() is NOTHING
                assert reader.take_many(5) == []
            reader.move(store.lookup.earliest())
            assert take_all(reader) == messages[: stop.sequence]
            assert (reader.native.offset, reader.native.sequence) == (stop.offset, stop.sequence)
            reader.close()
        assert read_all(store) == messages


@pytest.mark.parametrize("last", [8, 12, 19])
def test_skipping_damage_does_not_pass_the_stop(path: Path, last: int) -> None:
    """Where damage reaches over the stop, skipping it ends there."""
    with opened(path) as store:
        messages = _fill(store)
        reader = reader_of(store, skip=True, stop=LogPosition(Offset(messages[7].offset), 7))
        reader.move(store.lookup.earliest())
        for message in messages[5 : last + 1]:
            segment = store.segments.get(store.segments.covering(message.offset) or Offset(0))
            position = segment.position(message.offset)
            segment.map[position : position + 500] = b"\xff" * 500
        assert take_all(reader) == messages[:5]
        assert (reader.native.offset, reader.native.sequence) == (messages[7].offset, 7)
        reader.close()


def test_a_reader_holds_no_more_than_its_segment(path: Path) -> None:
    """Closing a reader releases the map it read."""
    store = open_store(path, SMALL)
    _fill(store)
    reader = reader_of(store)
    reader.move(store.lookup.earliest())
    reader.native.take()
    store.close()
    reader.close()
    assert reader._segment is None
