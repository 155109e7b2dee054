"""What may be reclaimed: when it is consumed, too old or too much, and never before a registered
consumer has read it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelFullError, ChannelOptions, DataExpiredError, Durability, Pin, Retention
from filechannel._errors import Busy
from filechannel._format import PURE, load_u32, store_u32
from filechannel._format.layout import CAPACITY_WAKE, CURSOR_SIZE, WAKE_LOOPS
from filechannel._maintenance.background.plan_reclaim import IDLE, find_plan
from filechannel._offset import LogPosition
from filechannel._storage.control.maintenance_lock import MaintenanceLock
from filechannel._storage.store import Store
from tests.maintenance.stores import consume, consumer, files_of, fill, reclaim, set_retention
from tests.storage.background import Background
from tests.storage.channels import SMALL, opened, payloads_of, reader_of, take_all
from tests.storage.clocks import Clock

KEEP = Retention(after_consumed="keep")
DAY = 86400.0
shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


def pin_of(store: Store) -> Pin | None:
    """Return what holds back the oldest segment."""
    return find_plan(store).pin


# Consumed


def test_a_consumed_segment_is_reclaimed_with_its_index(path: Path) -> None:
    """A consumed segment is deleted with its index, and segments with unread messages stay."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        assert consume(store, 7) == sent[:7]
        reclaim(store)
        assert payloads_of(store) == sent[6:]
        assert len(store.segments.begins) == 2
        begins = {name.partition(".")[0] for name in files_of(store)}
        assert begins == {f"{begin:020}" for begin in store.segments.begins}


def test_nothing_is_reclaimed_while_no_consumer_is_registered(path: Path) -> None:
    """Without a registered consumer no segment is reclaimed, however much is stored and however old it is."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        reclaim(store, 0.0)
        assert payloads_of(store) == sent
        assert pin_of(store) == Pin(reason="nobody")


def test_the_slowest_consumer_keeps_its_data(path: Path) -> None:
    """The slowest consumer, open or closed, keeps the segments that it has not read."""
    with opened(path, SMALL) as store:
        sent = fill(store, 5)
        consume(store, 4, "slow")
        consume(store, None, "fast")
        reclaim(store)
        assert payloads_of(store) == sent[3:]
        assert pin_of(store) == Pin(reason="consumer", consumer="slow")
        assert consume(store, None, "slow") == sent[4:]


def test_a_slow_consumer_keeps_its_data_although_limits_are_exceeded(path: Path, clock: Clock) -> None:
    """A slow consumer keeps its segments although the limits of age and size are exceeded."""
    retention = Retention(max_age=DAY, max_bytes=1)
    with opened(path, ChannelOptions(segment_size=4096, retention=retention)) as store:
        sent = fill(store, 4)
        consume(store, 1, "slow")
        reclaim(store)
        clock.pass_seconds(2 * DAY)
        reclaim(store)
        assert payloads_of(store) == sent
        assert pin_of(store) == Pin(reason="consumer", consumer="slow")


def test_a_removed_consumer_releases_its_data(path: Path) -> None:
    """When a consumer is removed, the others decide what is reclaimed."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        consume(store, 0, "slow")
        consume(store, 7, "fast")
        reclaim(store)
        assert payloads_of(store) == sent
        store.cursors.remove_unowned("slow")
        reclaim(store)
        assert payloads_of(store) == sent[6:]


def test_expired_names_are_removed_first(path: Path, clock: Clock) -> None:
    """Expired consumers are removed before segments are reclaimed, and hold nothing back."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        cursor = store.cursors.open("brief")
        cursor.store(0, 0, clock.now)
        cursor.expire_after(60.0)
        store.cursors.close(cursor)
        consume(store, 6)
        reclaim(store)
        assert payloads_of(store) == sent
        clock.pass_seconds(61)
        reclaim(store)
        assert store.cursors.names() == ["consumer"]
        assert payloads_of(store) == sent[6:]


def test_what_is_not_acknowledged_stays(path: Path) -> None:
    """The oldest unacknowledged message of a consumer holds back its segment."""
    with opened(path, SMALL) as store:
        sent = fill(store, 4)
        with consumer(store) as reader:
            reader.native.track_acks()
            for _ in sent:
                reader.native.take()
            reader.native.ack(4)
            reclaim(store, 0.0)
            assert payloads_of(store) == sent[3:]
            reader.native.ack(8)
            reclaim(store, 0.0)
            assert payloads_of(store) == []


@pytest.mark.parametrize("content", [b"", bytes(CURSOR_SIZE), b"?" * CURSOR_SIZE, b"?" * 20])
def test_a_consumer_whose_file_is_damaged_keeps_everything(path: Path, content: bytes) -> None:
    """A consumer with a damaged file holds back everything; one without a position holds back nothing."""
    with opened(path, SMALL) as store:
        sent = fill(store, 3)
        consume(store)
        store.cursors.close(store.cursors.open("new"))
        damaged = path / "consumers" / "damaged.cursor"
        damaged.write_bytes(content)
        store.control.count_registration()
        reclaim(store, 0.0)
        assert payloads_of(store) == sent
        assert pin_of(store) == Pin(reason="consumer", consumer="damaged")
        damaged.unlink()
        reclaim(store, 0.0)
        assert payloads_of(store) == []


def test_a_consumer_whose_sequence_is_too_high_keeps_what_it_has_not_read(path: Path) -> None:
    """A consumer whose sequence is too high, as after skipped damage, holds back what it has not read."""
    with opened(path, SMALL) as store:
        sent = fill(store, 3)
        cursor = store.cursors.open("skipped damage")
        cursor.store(store.lookup.numbered(8).offset, 9, 0)
        store.cursors.close(cursor)
        reclaim(store, 0.0)
        assert payloads_of(store) == sent[6:]
        assert pin_of(store) == Pin(reason="consumer", consumer="skipped damage")
    with opened(path.with_name("batch"), SMALL) as store:
        store.log.append([bytes(2000)] * 6)  # the first segments hold no end of a batch
        cursor = store.cursors.open("skipped damage")
        cursor.store(0, 6, 0)
        store.cursors.close(cursor)
        reclaim(store, 0.0)
        assert len(payloads_of(store)) == 6


def test_what_is_consumed_need_not_be_on_disk(path: Path, background: Background) -> None:
    """Consumed segments are reclaimed without being flushed: only positions and the checkpoint are flushed."""
    with opened(path, SMALL) as store:
        for number in range(10):
            store.log.append([bytes([number]) * 1300])
        consume(store, 7)
        reclaim(store)
        assert len(payloads_of(store)) == 4
        assert store.control.durable_offset == 0
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.offset == checkpoint.oldest == store.control.oldest_offset
        assert checkpoint.sequence == 6


def test_a_batch_is_reclaimed_only_as_far_as_it_is_on_disk(path: Path) -> None:
    """A batch across segments is reclaimed only as far as it is on disk, so that a power cut cannot cut its end."""
    with opened(path, SMALL) as store:
        store.log.append([bytes([number]) * 2000 for number in range(12)])
        consume(store, 9)
        with pytest.raises(Busy):
            reclaim(store)  # the writer flushes it, in a moment
        assert len(payloads_of(store)) == 12
        reclaim(store, 0.0)
        assert 3 <= len(payloads_of(store)) <= 4
        checkpoint = store.control.checkpoints.newest()
        assert checkpoint is not None
        assert checkpoint.offset == store.control.write_offset
        assert checkpoint.oldest == store.control.oldest_offset


# The segment that is written to


def test_an_idle_channel_gives_its_disk_back(path: Path, clock: Clock) -> None:
    """An idle channel whose messages are consumed frees its last segment, and the next message creates another."""
    with opened(path, SMALL) as store:
        store.log.append([b"one"])
        consume(store)
        reclaim(store)
        assert pin_of(store) == Pin(reason="active")
        clock.pass_seconds(IDLE - 1)
        reclaim(store)
        assert files_of(store) != []
        clock.pass_seconds(1)
        reclaim(store)
        assert files_of(store) == []
        assert store.is_empty
        assert pin_of(store) is None
        store.log.append([b"two"])
        assert consume(store) == [b"two"]
        reclaim(store)
        assert files_of(store) != []  # it is not idle any more
    with opened(path, SMALL) as store:
        store.log.append([b"three"])
        assert consume(store) == [b"three"]


def test_an_idle_channel_with_nothing_in_it_can_be_opened(path: Path) -> None:
    """A channel without any segment can be opened, and the log continues where it ended."""
    with opened(path, SMALL) as store:
        fill(store, 2)
        consume(store)
        reclaim(store, 0.0)
        end = store.control.tail()
    with opened(path, SMALL) as store:
        assert files_of(store) == []
        assert store.control.tail() == end
        assert payloads_of(store) == []
        assert store.log.append([b"next"]) == end.offset
        assert consume(store) == [b"next"]


@pytest.mark.parametrize("durability", [Durability.OS, Durability.FSYNC])
def test_a_sealed_channel_frees_everything(path: Path, durability: Durability) -> None:
    """A sealed channel frees every segment once all messages are consumed, and stays sealed."""
    with opened(path, ChannelOptions(segment_size=4096, durability=durability)) as store:
        fill(store, 2)
        store.seal()
        consume(store, 6)
        consume(store, None, "to the end")
        reclaim(store, 0.0)
        assert files_of(store) == []
    for _ in range(2):
        with opened(path, SMALL) as store:
            assert store.control.sealed
            assert consume(store) == []
            assert store.has_ended(store.control.oldest_offset)


@shares
def test_a_sender_continues_when_another_process_has_reclaimed_its_segment(path: Path) -> None:
    """A sender whose segment another process has reclaimed continues in a new one, and its readers follow."""
    with opened(path, SMALL) as store, opened(path, SMALL) as other:
        with consumer(store) as reader:
            for number in range(20):
                store.log.writer.append(b"%d" % number)
                assert reader.native.take() == b"%d" % number
                reclaim(other, 0.0)
                assert files_of(store) == []
        assert other.maintenance_lock.reclaimed[0] == 20


def test_a_consumer_before_an_offset_gap_misses_nothing(path: Path) -> None:
    """A consumer at the end of the log before an offset gap gets no error, and misses nothing."""
    with opened(path, SMALL) as store:
        fill(store, 1)
        consume(store)
        with store.log.writing():
            store.log.abandon_active()
        reclaim(store, 0.0)
        assert store.is_empty
        store.log.append([b"behind"])
        assert consume(store) == [b"behind"]


# Keeping, age and size


def test_what_is_to_be_kept_is_kept(path: Path) -> None:
    """With retention, consumed messages are kept, and a name that registers late gets all of them."""
    with opened(path, ChannelOptions(segment_size=4096, retention=KEEP)) as store:
        sent = fill(store, 4)
        consume(store)
        reclaim(store, 0.0)
        assert pin_of(store) == Pin(reason="keep")
        assert consume(store, None, "late") == sent


@pytest.mark.parametrize("after_consumed", ["keep", "delete"])
def test_old_segments_are_reclaimed(path: Path, clock: Clock, after_consumed: str) -> None:
    """A segment is reclaimed by age, which is that of the first message in the next one, or of the last message."""
    retention = Retention(after_consumed=after_consumed, max_age=DAY)  # type: ignore[arg-type]
    with opened(path, ChannelOptions(segment_size=4096, retention=retention)) as store:
        sent = fill(store, 2)
        clock.pass_seconds(DAY / 2)
        sent += fill(store, 2)
        reclaim(store)
        clock.pass_seconds(DAY / 2 - 1)
        reclaim(store)
        assert payloads_of(store) == sent
        clock.pass_seconds(1)
        reclaim(store)
        assert payloads_of(store) == sent[3:]  # the second ended half a day later
        clock.pass_seconds(DAY / 2)
        reclaim(store)
        assert payloads_of(store) == []
        assert files_of(store) == []


def test_a_message_that_comes_in_the_middle_is_not_too_old(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that arrives during a check of a quiet channel keeps the active segment."""
    with opened(path, ChannelOptions(segment_size=4096, retention=Retention(max_age=DAY))) as store:
        sent = fill(store, 1)
        reclaim(store)
        clock.pass_seconds(DAY)
        quiet = MaintenanceLock.quiet

        def send_first(self: MaintenanceLock, end: int) -> int:
            found = quiet(self, end)
            monkeypatch.setattr(MaintenanceLock, "quiet", quiet)
            store.log.append([b"young"])
            return found

        monkeypatch.setattr(MaintenanceLock, "quiet", send_first)
        with suppress(Busy):
            reclaim(store)
        assert payloads_of(store)[-1] == b"young"
        assert payloads_of(store)[:-1] in ([], sent)


def test_old_segments_are_reclaimed_although_a_header_is_damaged(path: Path, clock: Clock) -> None:
    """If the header of an old segment is damaged, the next segment gives its minimum age."""
    with opened(path, ChannelOptions(segment_size=4096, retention=Retention(max_age=DAY)), mapped=2) as store:
        sent = fill(store, 5)
        with store.segments.path(store.segments.begins[1]).open("r+b") as file:
            file.write(b"damaged!")
        store.segments.scan()
        clock.pass_seconds(DAY)
        fill(store, 1)
        reclaim(store)
        clock.pass_seconds(1)
        assert payloads_of(store)[0] not in sent[:12]


def test_segments_beyond_the_size_limit_are_reclaimed(path: Path) -> None:
    """Segments beyond the size limit are reclaimed, the oldest first, and never the active one."""
    size = 3 * 1308
    retention = Retention(after_consumed="keep", max_bytes=2 * size)
    with opened(path, ChannelOptions(segment_size=4096, retention=retention)) as store:
        sent = fill(store, 5)
        reclaim(store)
        assert payloads_of(store) == sent[9:]
        set_retention(store, Retention(max_bytes=1))
        reclaim(store, 0.0)
        assert payloads_of(store) == sent[12:]
        assert pin_of(store) == Pin(reason="nobody")


def test_offsets_that_were_left_out_are_not_stored(path: Path) -> None:
    """Offset gaps do not count as bytes for the size limit."""
    retention = Retention(max_bytes=1 << 20)
    with opened(path, ChannelOptions(segment_size=4096, retention=retention)) as store:
        sent = fill(store, 2)
        with store.log.writing():
            store.log.abandon_active()
        store.log.append([b"behind"])
        reclaim(store)
        assert payloads_of(store) == [*sent, b"behind"]


@shares
def test_another_process_may_change_the_retention(path: Path) -> None:
    """A retention that another process configured applies at the next maintenance."""
    with opened(path, ChannelOptions(segment_size=4096, retention=KEEP)) as store, opened(path, SMALL) as other:
        sent = fill(store, 4)
        consume(store)
        reclaim(store)
        assert payloads_of(store) == sent
        set_retention(other, Retention())
        reclaim(store)
        assert payloads_of(store) == sent[9:]


# Readers


def test_a_replay_holds_nothing_back(path: Path) -> None:
    """A replay holds nothing back, gets the number of messages it missed, and continues."""
    with opened(path, SMALL) as store:
        sent = fill(store, 5)
        replay = reader_of(store)
        replay.move(store.lookup.earliest())
        assert replay.native.take() == sent[0]
        consume(store, 12)
        reclaim(store)
        assert [replay.native.take(), replay.native.take()] == sent[1:3]  # it has them mapped
        with pytest.raises(DataExpiredError) as error:
            replay.native.take()
        assert error.value.missed == 9
        assert [message.payload for message in take_all(replay)] == sent[12:]
        replay.close()


def test_a_consumer_that_was_moved_back_keeps_its_data(path: Path) -> None:
    """A consumer that moves back before the decision keeps its messages."""
    with opened(path, SMALL) as store:
        sent = fill(store, 5)
        with consumer(store) as reader:
            while reader.native.take() != sent[-1]:
                pass
            reader.move(store.lookup.at(store.segments.begins[1]))
            assert store.low_watermark.retain_from(reader.native.offset)
            reclaim(store, 0.0)
            assert [message.payload for message in take_all(reader)] == sent[3:]


def test_a_consumer_that_is_moved_back_during_the_decision_keeps_its_data(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that moves back between the last check and the decision keeps its messages."""
    with opened(path, SMALL) as store:
        sent = fill(store, 5)
        with consumer(store) as reader:
            take_all(reader)
            finish = store.log.appender.finish_segment

            def seek_first() -> None:
                monkeypatch.undo()
                reader.move(LogPosition(store.control.oldest_offset, 0))
                assert store.low_watermark.retain_from(0)
                finish()

            monkeypatch.setattr(store.log.appender, "finish_segment", seek_first)
            reclaim(store, 0.0)
            assert store.control.oldest_offset == 0
            assert [message.payload for message in take_all(reader)] == sent


def test_a_position_in_reclaimed_data_is_an_error(path: Path) -> None:
    """A position in a reclaimed segment that is stored after the decision raises an error."""
    with opened(path, SMALL) as store:
        fill(store, 3)
        consume(store)
        cursor = store.cursors.open("late")
        reclaim(store)  # it has no position yet
        cursor.store(0, 0, 0)
        assert not store.low_watermark.retain_from(0)
        cursor.store(store.control.oldest_offset, 6, 0)
        assert store.low_watermark.retain_from(store.control.oldest_offset)
        store.cursors.close(cursor)


def test_seeking_by_time_and_sequence_works_behind_reclaimed_data(path: Path) -> None:
    """Behind reclaimed messages seeks by time and sequence work, and seeks into them are refused."""
    with opened(path, SMALL) as store:
        fill(store, 4)
        consume(store, 7)
        reclaim(store)
        assert store.lookup.numbered(6).offset == store.control.oldest_offset
        assert store.lookup.since(datetime(2000, 1, 1, tzinfo=UTC)).sequence == 6
        with pytest.raises(ValueError, match="not stored"):
            store.lookup.numbered(5)
        with pytest.raises(ValueError, match="not in the channel"):
            store.lookup.at(0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_consumer_that_cannot_be_read_keeps_everything(path: Path) -> None:
    """If a consumer cannot be read the reclaim raises an error and keeps everything."""
    with opened(path, SMALL) as store:
        sent = fill(store, 3)
        consume(store)
        (path / "consumers" / "consumer.cursor").chmod(0)
        with pytest.raises(PermissionError):
            reclaim(store, 0.0)
        assert payloads_of(store) == sent


@pytest.mark.parametrize(
    ("pin", "line"),
    [
        (Pin(reason="consumer", consumer="billing"), "consumer 'billing' has not read it"),
        (Pin(reason="nobody"), "no consumer is registered, so nothing counts as consumed"),
        (Pin(reason="keep"), "the retention keeps it"),
        (Pin(reason="active"), "it is the active segment"),
    ],
)
def test_a_pin_says_in_one_line_what_it_is(pin: Pin, line: str) -> None:
    """`pinned_by` describes in one line what holds back the oldest segment."""
    assert str(pin) == line


def test_a_sender_that_waits_for_capacity_is_woken_after_a_reclaim(path: Path) -> None:
    """A sender that waits for capacity is woken when the size limit frees some, without any consumer."""
    options = ChannelOptions(segment_size=4096, capacity=Capacity(max_messages=12), retention=Retention(max_bytes=8192))
    with opened(path, options) as store:
        fill(store, 4)
        with pytest.raises(ChannelFullError):
            store.log.append([b"x"])
        store_u32(store.control.map, CAPACITY_WAKE, WAKE_LOOPS)
        reclaim(store)
        assert not load_u32(store.control.map, CAPACITY_WAKE) & WAKE_LOOPS
        assert store.backlog.used().messages < 12
        store.log.append([b"x"])


def test_an_overtaken_consumer_holds_back_no_more_than_the_capacity(path: Path) -> None:
    """An overtaken consumer holds back what the capacity has kept, and not what a full channel has dropped."""
    options = ChannelOptions(segment_size=4096, capacity=Capacity(max_bytes=16384, on_full="drop_oldest"))
    with opened(path, options) as store:
        consume(store, 0)
        fill(store, 8)
        reclaim(store)
        assert store.segments.begins[0] == store.control.oldest_offset > 0
        assert pin_of(store) == Pin(reason="consumer", consumer="consumer")
        with consumer(store) as reader, pytest.raises(DataExpiredError):
            reader.native.take()
