"""Appending to the active segment and publishing it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import struct
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from filechannel._format.layout import (
    APPEND_TAIL,
    BATCH_CONTINUES,
    CONTROL_RECORD,
    CONTROL_SIZE,
    EPOCH,
    FLUSHES,
    FLUSHES_STEP,
    FLUSHING_SEGMENTS,
    INDEX_CHECKED,
    LARGEST_OFFSET,
    MAX_PAYLOAD,
    REGISTRATIONS,
    RESERVED_END,
    SEGMENT_HEADER_SIZE,
    STATE,
    STATE_DEFERRED,
    STATE_SEALED,
    TAIL_SLOT,
    TAIL_SLOTS,
    WAKE,
    WAKE_LOOPS,
    WAKE_THREADS,
    WRITE_TAIL,
    WRITER_LOCK,
)
from tests.format.pages import (
    FOREVER,
    new_control,
    new_segment,
    packed_record,
    packed_records,
    packed_tail_slot,
    set_tail,
    size_of,
    tail_of,
)

OWNER = 7
OVERFLOWED = 123456789


class Bench:
    """A writer, its pages, and what it asked for."""

    def __init__(
        self,
        impl: SimpleNamespace,
        *,
        room: int = 4096,
        window: int | None = None,
        begin: int = 0,
        end: int | None = None,
        sequence: int = 0,
        index_due: int = FOREVER,
        max_payload: int = MAX_PAYLOAD,
        control: bytearray | None = None,
    ) -> None:
        self.impl = impl
        self.control = new_control(begin if end is None else end, sequence, begin) if control is None else control
        self.segment = new_segment(room)
        self.overflowed: list[list[bytes]] = []
        self.locked_at_overflow: list[int] = []
        self.notified: list[tuple[int, int]] = []
        self.writer = impl.Writer(self.control, OWNER, max_payload, self.overflow, self.notify)
        self.writer.bind(self.segment, begin)
        self.writer.open_window(begin + (room if window is None else window), index_due)

    def overflow(self, payloads: list[bytes]) -> int:
        """Note what overflowed and the holder of the writer lock."""
        self.overflowed.append(payloads)
        self.locked_at_overflow.append(self.word(WRITER_LOCK, 4))
        return OVERFLOWED

    def notify(self) -> None:
        """Note what was published and the holder of the writer lock."""
        self.notified.append((self.word(WRITE_TAIL), self.word(WRITER_LOCK, 4)))

    def word(self, position: int, width: int = 8) -> int:
        """Read a word of the control page."""
        return int.from_bytes(self.control[position : position + width], "little")

    def set_word(self, position: int, value: int, width: int = 8) -> None:
        """Write a word of the control page."""
        self.control[position : position + width] = value.to_bytes(width, "little")

    def take(self) -> None:
        """Acquire the writer lock and continue at the tail, as `Log` does."""
        assert self.impl.take_word(self.control, WRITER_LOCK, OWNER, 0)
        self.writer.start()

    def release(self) -> None:
        """Release the writer lock."""
        self.impl.release_word(self.control, WRITER_LOCK)

    def defer(self, deferred: bool) -> None:
        """Let the writer and the control page agree on what publishes."""
        self.writer.defer(deferred)
        self.set_word(STATE, STATE_DEFERRED if deferred else 0, 4)

    @property
    def records(self) -> bytes:
        """The bytes behind the header of the segment."""
        return bytes(self.segment[SEGMENT_HEADER_SIZE:])


def batch_of(payloads: list[bytes], offset: int = 0) -> bytes:
    """Return payloads as the records of one batch."""
    content = b""
    for index, payload in enumerate(payloads):
        more = BATCH_CONTINUES if index + 1 < len(payloads) else 0
        content += packed_record(payload, offset + len(content), more)
    return content


# The fast path


def test_append_writes_a_record_and_publishes_it(impl: SimpleNamespace) -> None:
    """The record lies behind the header, the tail behind the record, and the lock is free."""
    bench = Bench(impl)
    assert bench.writer.append(b"hello") == 0
    assert bench.records.startswith(packed_record(b"hello", 0))
    assert tail_of(bench.control) == (13, 1, 0)
    assert bench.word(WRITER_LOCK, 4) == 0
    assert (bench.writer.pending, bench.writer.pending_sequence) == (13, 1)
    assert bench.overflowed == bench.notified == []


def test_offsets_and_sequences_continue_from_the_tail(impl: SimpleNamespace) -> None:
    """A later writer begins where the last one ended, whatever the segment's offset."""
    begin = 3 << 40
    bench = Bench(impl, begin=begin, end=begin + 100, sequence=55)
    assert bench.writer.append(b"abc") == begin + 100
    assert bench.records[100:].startswith(packed_record(b"abc", begin + 100))
    assert tail_of(bench.control) == (begin + 111, 56, begin)


def test_every_length_is_appended(impl: SimpleNamespace) -> None:
    """Payloads of 0 to 1100 bytes are appended one behind the other without a gap."""
    payloads = [random.Random(length).randbytes(length) for length in range(1101)]
    bench = Bench(impl, room=size_of(*payloads))
    offset = 0
    for payload in payloads:
        assert bench.writer.append(payload) == offset
        offset += size_of(payload)
    assert bench.records == packed_records(payloads, 0)
    assert tail_of(bench.control) == (offset, len(payloads), 0)
    assert bench.overflowed == []


def test_a_list_is_appended_as_one_batch(impl: SimpleNamespace) -> None:
    """Every record but the last says that the batch continues; the tail moves once."""
    bench = Bench(impl)
    payloads = [b"", b"a", b"bb", b"\xff" * 300]
    assert bench.writer.append_all(payloads) == 0
    assert bench.records.startswith(batch_of(payloads))
    assert tail_of(bench.control) == (size_of(*payloads), 4, 0)
    assert bench.writer.append_all([b"one"]) == size_of(*payloads)
    assert bench.records[size_of(*payloads) :].startswith(packed_record(b"one", size_of(*payloads)))


@pytest.mark.parametrize("remainder", range(17))
def test_every_remainder_at_the_end_of_the_window(impl: SimpleNamespace, remainder: int) -> None:
    """A record that fits the window to the byte is written, and a longer one is passed to overflow."""
    payloads = [b"abc", b"0123456789"]
    used = size_of(*payloads)
    bench = Bench(impl, room=200, window=used + remainder)
    for payload in payloads:
        bench.writer.append(payload)
    before, control = bench.records, bytes(bench.control)
    too_long = bytes(max(remainder - 7, 0))
    assert bench.writer.append(too_long) == OVERFLOWED
    assert bench.writer.append_all([too_long]) == OVERFLOWED
    assert bench.records == before
    assert bytes(bench.control) == control
    if remainder >= 8:
        assert bench.writer.append(b"x" * (remainder - 8)) == used
        assert tail_of(bench.control) == (used + remainder, 3, 0)
        assert bench.records[used + remainder :] == bytes(200 - used - remainder)
    assert bench.overflowed == [[too_long], [too_long]]


def test_a_batch_that_does_not_fit_as_a_whole_is_not_started(impl: SimpleNamespace) -> None:
    """A batch that does not fit the window as a whole is passed to overflow, and nothing of it is written."""
    bench = Bench(impl, room=100)
    payloads = [b"x" * 40, b"y" * 40, b"z"]
    assert bench.writer.append_all(payloads) == OVERFLOWED
    assert bench.overflowed == [payloads]
    assert bench.records == bytes(100)
    assert tail_of(bench.control) == (0, 0, 0)


@pytest.mark.parametrize("kind", [bytes, type("Payload", (bytes,), {})])
def test_a_subclass_of_bytes_is_bytes(impl: SimpleNamespace, kind: type[bytes]) -> None:
    """A subclass of bytes is appended like bytes."""
    bench = Bench(impl)
    bench.writer.append(kind(b"abc"))
    bench.writer.append_all([kind(b"de")])
    assert bench.records.startswith(packed_records([b"abc", b"de"], 0))


@pytest.mark.parametrize("appended", [1, 2, 3])
def test_a_window_may_end_with_a_number_of_messages(impl: SimpleNamespace, appended: int) -> None:
    """A window may end with a number of messages: a record or batch beyond it overflows as a whole."""
    bench = Bench(impl, sequence=5)
    bench.writer.limit_window(5 + appended, 0)
    assert bench.writer.append_all([b"x"] * (appended + 1)) == OVERFLOWED
    bench.writer.append_all([b"x"] * (appended - 1))
    assert bench.writer.append(b"y") == size_of(*[b"x"] * (appended - 1))
    assert bench.writer.append(b"z") == OVERFLOWED
    assert tail_of(bench.control)[1] == 5 + appended
    bench.writer.open_window(4096, FOREVER)
    assert bench.writer.append(b"z") == size_of(*[b"x"] * appended)


def test_a_limited_window_closes_when_registrations_change(impl: SimpleNamespace) -> None:
    """A window with a message limit closes when the registrations change, because capacity may have decreased."""
    bench = Bench(impl)
    bench.control[REGISTRATIONS] = 1
    bench.writer.append(b"a")
    bench.writer.limit_window(100, 1)
    bench.writer.append(b"b")
    bench.control[REGISTRATIONS] = 2
    assert bench.writer.append(b"c") == OVERFLOWED
    assert bench.writer.append_all([b"c"]) == OVERFLOWED
    bench.writer.limit_window(100, 2)
    assert bench.writer.append(b"c") == 18


def test_write_stops_where_the_messages_end(impl: SimpleNamespace) -> None:
    """`write` stops at the message limit of the window, which control records do not count for."""
    bench = Bench(impl)
    bench.writer.start()
    bench.writer.limit_window(2, 0)
    assert bench.writer.write([b"a", b"b", b"c"], 0, 0) == 2
    assert bench.writer.write([b"seal"], 0, CONTROL_RECORD) == 1
    assert bench.writer.pending_sequence == 2


def test_records_are_copied(impl: SimpleNamespace) -> None:
    """Records that were written elsewhere are copied into a batch, as far as the window and the messages allow."""
    bench = Bench(impl, end=40, sequence=3)
    payloads = [b"a", b"", b"ccc", b"d" * 100]
    content = impl.join_records(payloads)
    bench.take()
    assert bench.writer.copy(content, 0, len(content), 0, BATCH_CONTINUES) == len(content)
    bench.writer.limit_window(9, 0)
    assert bench.writer.copy(content, 0, len(content), 0, 0) == size_of(b"a", b"")
    bench.writer.open_window(bench.writer.pending + 20, FOREVER)
    assert bench.writer.copy(content, 17, len(content), 17, 0) == size_of(b"a", b"", b"ccc")
    bench.writer.open_window(4096, FOREVER)
    assert bench.writer.copy(content, 28, len(content), 28, 0) == len(content)
    bench.writer.publish()
    bench.release()
    assert bench.records[40:].startswith(batch_of(payloads * 2, 40))
    assert tail_of(bench.control) == (40 + 2 * len(content), 11, 0)


@pytest.mark.parametrize("place", [0, 4, 8, 9, 12])
def test_damaged_records_are_not_copied(impl: SimpleNamespace, place: int) -> None:
    """Copying stops before a damaged record, one that ends elsewhere and one with flags."""
    content = bytearray(impl.join_records([b"a", b"bcd"]))
    content[place] ^= 1
    bench = Bench(impl)
    bench.take()
    with pytest.raises(ValueError, match=r"checksum mismatch|record reaches beyond the end"):
        bench.writer.copy(content, 0, len(content), 0, 0)
    assert bench.writer.pending == (9 if place >= 9 else 0)
    for stop in (5, 8, 11):
        with pytest.raises(ValueError, match="record reaches beyond the end"):
            bench.writer.copy(packed_record(b"abcd", 0), 0, stop, 0, 0)
    with pytest.raises(ValueError, match="record reaches beyond the end"):
        bench.writer.copy(packed_record(b"abcd", 0, CONTROL_RECORD), 0, 12, 0, 0)
    bench.release()


# Overflow: called exactly when something is not simple


def test_overflow_gets_a_list_of_the_payload_and_its_answer_is_the_answer(impl: SimpleNamespace) -> None:
    """Overflow is called with the list of payloads and without the writer lock, and its result is returned."""
    bench = Bench(impl, window=0)
    assert bench.writer.append(b"abc") == OVERFLOWED
    assert bench.overflowed == [[b"abc"]]
    assert bench.locked_at_overflow == [0]


def test_an_error_of_overflow_is_the_error(impl: SimpleNamespace) -> None:
    """An error of overflow is raised unchanged."""

    def overflow(payloads: list[bytes]) -> int:
        raise OSError(28, "no room")

    writer = impl.Writer(new_control(), OWNER, 100, overflow, None)
    with pytest.raises(OSError, match="no room"):
        writer.append(b"")
    with pytest.raises(OSError, match="no room"):
        writer.append_all([b""])


def test_an_empty_list_is_for_overflow_to_answer(impl: SimpleNamespace) -> None:
    """An empty list is passed to overflow, because there is no record whose offset could be returned."""
    bench = Bench(impl)
    assert bench.writer.append_all([]) == OVERFLOWED
    assert bench.overflowed == [[]]


def test_a_writer_without_a_segment_overflows(impl: SimpleNamespace) -> None:
    """A writer without a segment, before the first bind or after an unbind, passes everything to overflow."""
    bench = Bench(impl)
    bench.writer.unbind()
    assert bench.writer.append(b"x") == OVERFLOWED
    fresh = impl.Writer(bench.control, OWNER, 100, bench.overflow, bench.notify)
    assert fresh.append(b"x") == OVERFLOWED
    assert bench.word(WRITER_LOCK, 4) == 0


def test_a_bound_segment_has_no_window_until_one_is_opened(impl: SimpleNamespace) -> None:
    """After a bind the writer has no window until one is opened."""
    bench = Bench(impl)
    bench.writer.bind(new_segment(4096), 0)
    assert bench.writer.append(b"x") == OVERFLOWED


def test_a_sealed_channel_overflows(impl: SimpleNamespace) -> None:
    """In a sealed channel every append goes to overflow."""
    for state in (STATE_SEALED, 2, 0xFFFFFFFF):
        bench = Bench(impl)
        bench.set_word(STATE, state, 4)
        assert bench.writer.append(b"x") == OVERFLOWED
        assert bench.writer.append_all([b"x"]) == OVERFLOWED
        assert bench.records == bytes(4096)


def test_a_due_index_overflows(impl: SimpleNamespace) -> None:
    """An append overflows when an index entry is due by the wall clock."""
    for due, simple in ((0, False), (1, False), (1_600_000_000 * 10**9, False), (FOREVER, True)):
        bench = Bench(impl, index_due=due)
        assert (bench.writer.append(b"x") == 0) is simple


def test_a_payload_beyond_the_limit_overflows(impl: SimpleNamespace) -> None:
    """A payload of exactly the limit is appended, and a longer one goes to overflow, alone or in a batch."""
    bench = Bench(impl, max_payload=10)
    assert bench.writer.append(b"x" * 10) == 0
    assert bench.writer.append(b"x" * 11) == OVERFLOWED
    assert bench.writer.append_all([b"", b"x" * 11, b""]) == OVERFLOWED
    assert bench.writer.append_all([b"x" * 10, b""]) == 18


def test_a_held_writer_lock_overflows(impl: SimpleNamespace) -> None:
    """An append overflows while another process holds the writer lock, and the holder keeps it."""
    bench = Bench(impl)
    bench.set_word(WRITER_LOCK, 99, 4)
    assert bench.writer.append(b"x") == OVERFLOWED
    assert bench.writer.append_all([b"x"]) == OVERFLOWED
    assert bench.locked_at_overflow == [99, 99]
    assert bench.records == bytes(4096)


@pytest.mark.parametrize("end", [0, 99, 1000 + 4097, (1 << 64) - 8, (1 << 64) - 1])
def test_a_tail_outside_the_window_overflows(impl: SimpleNamespace, end: int) -> None:
    """An append overflows if the tail is outside the window, also where adding a length would wrap around."""
    bench = Bench(impl, begin=1000, end=end)
    assert bench.writer.append(b"") == OVERFLOWED
    assert bench.writer.append(bytes(100)) == OVERFLOWED
    assert bench.writer.append_all([b"", bytes(100)]) == OVERFLOWED
    assert bench.records == bytes(4096)


def test_a_torn_tail_overflows(impl: SimpleNamespace) -> None:
    """If no slot agrees with the offset an append overflows and writes nothing, and an explicit start raises."""
    bench = Bench(impl)
    bench.control[WRITE_TAIL + TAIL_SLOTS[0] + 8] ^= 1
    assert bench.writer.append(b"x") == OVERFLOWED
    assert bench.locked_at_overflow == [0]
    with pytest.raises(ValueError, match="no tail slot agrees with the offset"):
        bench.writer.start()


def test_another_epoch_overflows(impl: SimpleNamespace) -> None:
    """An append overflows after the epoch changed, because the bound segment may not be written to any more."""
    bench = Bench(impl)
    for epoch in (1, 0xFFFFFFFF):
        bench.set_word(EPOCH, epoch, 4)
        assert bench.writer.current is False
        assert bench.writer.append(b"x") == OVERFLOWED
        assert bench.writer.append_all([b"x"]) == OVERFLOWED
    assert bench.locked_at_overflow == [0] * 4
    assert bench.records == bytes(4096)
    bench.writer.bind(bench.segment, 0)
    bench.writer.open_window(4096, FOREVER)
    assert bench.writer.current is True
    assert bench.writer.append(b"x") == 0


@pytest.mark.parametrize("epoch", [0, 5, 0xFFFFFFFE, 0xFFFFFFFF])
def test_a_change_is_seen_by_every_writer_but_the_one_that_makes_it(impl: SimpleNamespace, epoch: int) -> None:
    """`change` increments the epoch, from the largest to zero, and every other writer notices."""
    bench = Bench(impl)
    bench.set_word(EPOCH, epoch, 4)
    other = impl.Writer(bench.control, OWNER + 1, 100, bench.overflow, bench.notify)
    for writer in (bench.writer, other):
        writer.bind(bench.segment, 0)
        writer.open_window(4096, FOREVER)
    bench.writer.change()
    assert bench.word(EPOCH, 4) == (epoch + 1) % (1 << 32)
    assert (bench.writer.current, other.current) == (True, False)
    assert other.append(b"x") == OVERFLOWED
    assert bench.writer.append(b"x") == 0


def test_a_writer_is_current_as_long_as_nothing_changed(impl: SimpleNamespace) -> None:
    """A writer is current if it has a segment and neither the epoch nor the state has changed."""
    bench = Bench(impl)
    assert bench.writer.current is True
    bench.set_word(STATE, STATE_SEALED, 4)
    assert bench.writer.current is False
    bench.set_word(STATE, STATE_DEFERRED, 4)
    assert bench.writer.current is False
    bench.writer.defer(True)
    assert bench.writer.current is True
    bench.set_word(STATE, STATE_DEFERRED | STATE_SEALED, 4)
    assert bench.writer.current is False
    bench.set_word(STATE, STATE_DEFERRED, 4)
    bench.writer.unbind()
    assert bench.writer.current is False


# Publishing


def test_the_slots_of_the_tail_alternate(impl: SimpleNamespace) -> None:
    """Each publish fills the slot that does not count, and leaves the other as it was."""
    bench = Bench(impl)
    places = [WRITE_TAIL + distance for distance in TAIL_SLOTS]
    previous = [bytes(bench.control[place : place + TAIL_SLOT.size]) for place in places]
    for count in range(1, 8):
        bench.writer.append(b"12")
        filled, kept = (1, 0) if count % 2 else (0, 1)
        now = [bytes(bench.control[place : place + TAIL_SLOT.size]) for place in places]
        assert now[kept] == previous[kept]
        assert now[filled] == packed_tail_slot(10 * count, count, 0)
        assert bench.word(WRITE_TAIL) == 10 * count
        previous = now


@pytest.mark.parametrize("slot", [0, 1])
def test_the_slot_that_agrees_with_the_offset_counts(impl: SimpleNamespace, slot: int) -> None:
    """The slot that agrees with the offset counts, and the other one is filled next."""
    bench = Bench(impl, end=80, sequence=4)
    set_tail(bench.control, WRITE_TAIL, 80, 4, 0, slot)
    torn = WRITE_TAIL + TAIL_SLOTS[1 - slot]
    bench.control[torn : torn + TAIL_SLOT.size] = b"\xdd" * TAIL_SLOT.size
    assert bench.writer.append(b"x") == 80
    assert tail_of(bench.control) == (89, 5, 0)
    assert bench.control[torn : torn + TAIL_SLOT.size] == packed_tail_slot(89, 5, 0)


def test_a_slot_with_the_right_end_and_a_wrong_checksum_does_not_count(impl: SimpleNamespace) -> None:
    """A slot with the right end and a wrong checksum, left by a dead writer, does not count."""
    bench = Bench(impl, end=80, sequence=4)
    torn = bytearray(packed_tail_slot(80, 9, 0))
    torn[-1] ^= 1
    place = WRITE_TAIL + TAIL_SLOTS[0]
    bench.control[place : place + len(torn)] = torn
    set_tail(bench.control, WRITE_TAIL, 80, 4, 0, slot=1)
    bench.writer.append(b"")
    assert tail_of(bench.control) == (88, 5, 0)


def test_the_tail_of_another_writer_is_followed(impl: SimpleNamespace) -> None:
    """Two writers of one channel alternate without losing a record, because each follows the other's tail."""
    first = Bench(impl)
    second = impl.Writer(first.control, OWNER + 1, 100, first.overflow, first.notify)
    second.bind(first.segment, 0)
    second.open_window(4096, FOREVER)
    payloads = [bytes([number]) * number for number in range(20)]
    for number, payload in enumerate(payloads):
        (first.writer if number % 3 else second).append(payload)
    assert first.records.startswith(packed_records(payloads, 0))
    assert tail_of(first.control) == (size_of(*payloads), 20, 0)


def test_the_reserved_end_covers_what_was_written(impl: SimpleNamespace) -> None:
    """The reserved end covers everything that was written, so that a process that takes over can wipe it."""
    bench = Bench(impl)
    bench.writer.append(b"abc")
    assert bench.word(RESERVED_END) == 11
    bench.writer.append_all([b"d", b"e"])
    assert bench.word(RESERVED_END) == 29


# Deferred publishing


def test_deferred_moves_only_the_append_tail(impl: SimpleNamespace) -> None:
    """A deferred writer moves only the append tail, so that readers see nothing and no waiter is woken."""
    bench = Bench(impl)
    bench.writer.append(b"seen")
    set_tail(bench.control, APPEND_TAIL, 12, 1, 0)
    visible = bytes(bench.control[WRITE_TAIL:APPEND_TAIL])
    bench.set_word(WAKE, WAKE_LOOPS, 4)
    bench.defer(True)
    assert bench.writer.deferred is True
    assert bench.writer.append(b"unseen") == 12
    assert bench.writer.append_all([b"a", b"b"]) == 26
    assert bytes(bench.control[WRITE_TAIL:APPEND_TAIL]) == visible
    assert tail_of(bench.control, APPEND_TAIL) == (44, 4, 0)
    assert bench.notified == []
    assert bench.word(WAKE, 4) == WAKE_LOOPS


def test_a_deferred_writer_can_still_wake_waiters_explicitly(impl: SimpleNamespace) -> None:
    """The flusher can wake waiters explicitly through a deferred writer."""
    bench = Bench(impl)
    bench.defer(True)
    bench.set_word(WAKE, WAKE_LOOPS, 4)
    bench.writer.wake_receivers()
    assert len(bench.notified) == 1


def test_deferring_can_end(impl: SimpleNamespace) -> None:
    """When deferring ends, the writer looks up the visible tail again."""
    bench = Bench(impl)
    bench.defer(True)
    assert bench.writer.append(b"abc") == 0
    bench.defer(False)
    assert bench.writer.deferred is False
    set_tail(bench.control, WRITE_TAIL, 11, 1, 0, slot=1)
    assert bench.writer.append(b"d") == 11
    assert tail_of(bench.control) == (20, 2, 0)
    assert bench.control[WRITE_TAIL + TAIL_SLOTS[0] :].startswith(packed_tail_slot(20, 2, 0))


class CutOff:
    """A deferred writer whose segment is a file that is cut off, as if its file system had shut down."""

    def __init__(self, impl: SimpleNamespace, directory: Path) -> None:
        self.bench = Bench(impl)
        self.path = directory / "segment"
        self.path.write_bytes(self.bench.segment)
        with self.path.open("r+b") as file:
            self.pages = mmap.mmap(file.fileno(), 0)
        if not impl.populate(self.pages, 0, 1):
            pytest.skip("this kernel cannot tell")
        self.bench.writer.bind(self.pages, 0)
        self.bench.writer.open_window(len(self.bench.segment) - SEGMENT_HEADER_SIZE, FOREVER)
        self.bench.defer(True)
        assert self.bench.writer.append(b"abc") == 0

    def cut(self) -> None:
        """Let every store kill, also to a page that was writable until now."""
        os.truncate(self.path, 0)


@pytest.mark.parametrize("running", [FLUSHING_SEGMENTS, FLUSHES_STEP])
def test_a_segment_that_cannot_be_stored_to_overflows(impl: SimpleNamespace, tmp_path: Path, running: int) -> None:
    """An append overflows if a page of the segment cannot be stored to, such as during a flush."""
    cut_off = CutOff(impl, tmp_path)
    bench = cut_off.bench
    bench.set_word(FLUSHES, running, 4)
    assert bench.writer.append(b"abc") == 11
    cut_off.cut()
    bench.set_word(FLUSHES, bench.word(FLUSHES, 4) + FLUSHES_STEP, 4)
    reserved = bench.word(RESERVED_END)
    assert bench.writer.append(b"abc") == OVERFLOWED
    assert bench.locked_at_overflow == [0]
    bench.take()
    with pytest.raises(OSError, match="Input/output error"):
        bench.writer.write([b"abc"], 0, 0)
    with pytest.raises(OSError, match="Input/output error"):
        bench.writer.copy(packed_record(b"abc", 0), 0, 11, 0, 0)
    assert bench.word(RESERVED_END) == reserved
    assert bench.writer.write([], 0, 0) == 0
    with pytest.raises(OSError, match="Input/output error"):  # nothing was found out by storing nothing
        bench.writer.write([b"abc"], 0, 0)


def test_the_state_of_the_channel_decides_what_publishes(impl: SimpleNamespace) -> None:
    """The durability in the control page decides how a writer publishes; one that missed a change overflows."""
    bench = Bench(impl)
    bench.set_word(STATE, STATE_DEFERRED, 4)
    assert bench.writer.append(b"x") == OVERFLOWED
    bench.writer.defer(True)
    assert bench.writer.append(b"x") == 0
    bench.set_word(STATE, 0, 4)
    assert bench.writer.append(b"x") == OVERFLOWED


# Waking


@pytest.mark.parametrize(
    ("wake", "after"),
    [(2, 4), (3, 4), (0x102, 0x104), (0x103, 0x104), (0xFFFFFFFA, 0xFFFFFFFC), (0xFFFFFFFE, 0), (0xFFFFFFFF, 0)],
)
def test_an_armed_loop_is_woken_once(impl: SimpleNamespace, wake: int, after: int) -> None:
    """Publishing clears both bits, increments the generation and calls notify once, without the writer lock."""
    bench = Bench(impl)
    bench.set_word(WAKE, wake, 4)
    bench.writer.append(b"x")
    assert bench.word(WAKE, 4) == after
    assert bench.notified == [(9, 0)]
    bench.writer.append(b"y")
    assert len(bench.notified) == 1


@pytest.mark.parametrize(("wake", "after"), [(1, 4), (0x101, 0x104), (0xFFFFFFFD, 0)])
def test_loops_are_not_notified_for_threads(impl: SimpleNamespace, wake: int, after: int) -> None:
    """Publishing clears the bit of sleeping threads and increments the generation, without calling notify."""
    bench = Bench(impl)
    bench.set_word(WAKE, wake, 4)
    bench.writer.append(b"x")
    assert bench.word(WAKE, 4) == after
    assert bench.notified == []


@pytest.mark.parametrize("call", ["append", "append_all", "wake_receivers"])
def test_a_thread_that_sleeps_is_woken(impl: SimpleNamespace, call: str) -> None:
    """A thread that sleeps on the wake word is woken by a publisher, and by the flusher that publishes for others."""
    bench = Bench(impl)
    armed = 0x100 | WAKE_THREADS
    bench.set_word(WAKE, armed, 4)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(impl.wait_word(bench.control, WAKE, armed, 60)))
    thread.start()
    arguments: dict[str, list[object]] = {"append": [b"x"], "append_all": [[b"x"]], "wake_receivers": []}
    getattr(bench.writer, call)(*arguments[call])
    thread.join(30)
    assert woken == [True]


@pytest.mark.parametrize("wake", [0, 4, 0xFFFFFFFC])
def test_no_waiter_is_woken_when_none_is_armed(impl: SimpleNamespace, wake: int) -> None:
    """Publishing without an armed waiter leaves the wake word as it is."""
    bench = Bench(impl)
    bench.set_word(WAKE, wake, 4)
    bench.writer.append(b"x")
    bench.writer.append_all([b"x", b"y"])
    bench.writer.wake_receivers()
    assert bench.notified == []
    assert bench.word(WAKE, 4) == wake


def test_overflow_wakes_no_waiter(impl: SimpleNamespace) -> None:
    """Overflow does not wake waiters: the publisher that handles it does."""
    bench = Bench(impl, window=0)
    bench.set_word(WAKE, WAKE_LOOPS, 4)
    bench.writer.append(b"x")
    assert bench.notified == []


def test_an_error_of_notify_comes_out_after_the_publish(impl: SimpleNamespace) -> None:
    """An error of notify is raised after the publish: the record is stored and the lock is free."""
    control = new_control()

    def notify() -> None:
        raise OSError("no pipe")

    writer = impl.Writer(control, OWNER, 100, None, notify)
    writer.bind(new_segment(100), 0)
    writer.open_window(100, FOREVER)
    control[WAKE] = WAKE_LOOPS
    with pytest.raises(OSError, match="no pipe"):
        writer.append(b"x")
    assert tail_of(control) == (9, 1, 0)
    assert control[WRITER_LOCK : WRITER_LOCK + 4] == bytes(4)
    assert writer.append(b"y") == 9


# The parts that Log.append is made of


def test_starting_continues_at_the_tail(impl: SimpleNamespace) -> None:
    """`start` continues at the tail that is moved, whichever writer moved it last, with the lock held by the caller."""
    bench = Bench(impl, begin=0, end=40, sequence=3)
    bench.writer.append(b"")
    set_tail(bench.control, WRITE_TAIL, 60, 5, 0)
    assert bench.writer.start() is None
    assert (bench.writer.pending, bench.writer.pending_sequence) == (60, 5)
    bench.writer.defer(True)
    bench.writer.start()
    assert (bench.writer.pending, bench.writer.pending_sequence) == (40, 3)
    assert bench.word(WRITER_LOCK, 4) == 0


def test_starting_reads_the_slots_again(impl: SimpleNamespace) -> None:
    """`start` reads the slots again, because a dead writer may have left another sequence at the same offset."""
    bench = Bench(impl)
    bench.writer.append(b"")
    set_tail(bench.control, WRITE_TAIL, 8, 7, 0, slot=0)
    bench.control[WRITE_TAIL + TAIL_SLOTS[1]] ^= 1
    bench.writer.start()
    assert bench.writer.pending_sequence == 7


def test_write_copies_without_publishing(impl: SimpleNamespace) -> None:
    """`write` copies records without publishing them, and the reserved end covers them."""
    bench = Bench(impl)
    bench.take()
    payloads = [b"a", b"bb", b"ccc"]
    assert bench.writer.write(payloads, 0, 0) == 3
    assert bench.records.startswith(batch_of(payloads))
    assert (bench.writer.pending, bench.writer.pending_sequence) == (30, 3)
    assert bench.word(RESERVED_END) == 30
    assert tail_of(bench.control) == (0, 0, 0)
    bench.writer.publish()
    assert bench.word(RESERVED_END) == 30
    assert tail_of(bench.control) == (30, 3, 0)
    bench.release()


def test_write_stops_where_the_window_ends_and_continues_in_another(impl: SimpleNamespace) -> None:
    """`write` stops where the window ends and continues in another segment, and one publish covers all of it."""
    bench = Bench(impl, room=25)
    payloads = [b"aaaa", b"bbbb", b"cccc"]
    bench.take()
    assert bench.writer.write(payloads, 0, 0) == 2
    assert bench.writer.write(payloads, 2, 0) == 2
    second = new_segment(100)
    bench.writer.bind(second, 24)
    assert bench.writer.write(payloads, 2, 0) == 2
    bench.writer.open_window(124, 0)
    assert bench.writer.write(payloads, 2, 0) == 3
    bench.writer.publish()
    bench.release()
    content = batch_of(payloads)
    assert bench.records[:24] == content[:24]
    assert second[SEGMENT_HEADER_SIZE:].startswith(content[24:])
    assert tail_of(bench.control) == (36, 3, 24)


def test_control_records_are_written_but_not_counted(impl: SimpleNamespace) -> None:
    """A control record moves the offset and not the sequence."""
    bench = Bench(impl, sequence=5)
    bench.take()
    assert bench.writer.write([b"\x01seal"], 0, CONTROL_RECORD) == 1
    bench.writer.publish()
    bench.release()
    assert bench.records.startswith(packed_record(b"\x01seal", 0, CONTROL_RECORD))
    assert tail_of(bench.control) == (13, 5, 0)


def test_a_batch_can_be_left_open(impl: SimpleNamespace) -> None:
    """A batch that is left open continues with a control record behind its messages."""
    bench = Bench(impl)
    bench.take()
    bench.writer.write([b"a"], 0, BATCH_CONTINUES)
    bench.writer.write([b"position"], 0, CONTROL_RECORD)
    bench.writer.publish()
    assert impl.scan_records(bench.segment, 64, 64 + 25, 0) == (64 + 25, 1, 64 + 25, 64 + 9)


def test_uncommitted_records_are_forgotten_by_the_next_writer(impl: SimpleNamespace) -> None:
    """The next writer overwrites uncommitted records and reuses their sequences."""
    bench = Bench(impl)
    bench.take()
    bench.writer.write([b"never seen"], 0, 0)
    bench.release()
    assert bench.writer.append(b"seen") == 0
    assert tail_of(bench.control) == (12, 1, 0)


def test_publishing_without_a_start_is_refused(impl: SimpleNamespace) -> None:
    """`publish` without `start` is refused, because the free slot is not known."""
    bench = Bench(impl)
    before = bytes(bench.control)
    with pytest.raises(RuntimeError, match="publish"):
        bench.writer.publish()
    bench.writer.start()
    bench.writer.defer(True)
    with pytest.raises(RuntimeError, match="publish"):
        bench.writer.publish()
    assert bytes(bench.control) == before


@pytest.mark.parametrize("flags", [1, 5, (1 << 30) - 1, 1 << 32, (1 << 64) - 1])
def test_flags_that_are_none_are_refused_before_anything_is_written(impl: SimpleNamespace, flags: int) -> None:
    """Invalid flags are refused before anything is written, because they would change the length."""
    bench = Bench(impl)
    bench.take()
    before = bytes(bench.control)
    with pytest.raises(ValueError, match="payload or flags do not fit the word"):
        bench.writer.write([b"abc"], 0, flags)
    assert bench.records == bytes(4096)
    assert bytes(bench.control) == before


def test_an_index_behind_the_list_writes_nothing(impl: SimpleNamespace) -> None:
    """An index behind the list writes nothing and is returned."""
    bench = Bench(impl)
    bench.take()
    for index in (1, 2, 1 << 40, (1 << 64) - 1):
        assert bench.writer.write([b"x"], index, 0) == index
    assert bench.records == bytes(4096)


def test_a_list_that_changes_under_its_index_does_no_harm(impl: SimpleNamespace) -> None:
    """A list that shrinks while `write` reads its arguments does no harm."""
    bench = Bench(impl)
    bench.take()
    payloads: list[object] = [b"x", b"y"]

    class Index:
        def __index__(self) -> int:
            payloads[:] = [5]
            return 0

    with pytest.raises(TypeError, match="payload 0 must be bytes"):
        bench.writer.write(payloads, Index(), 0)
    assert bench.records == bytes(4096)


# Windows and segments


@pytest.mark.parametrize("end", [0, 999, 1101, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_a_window_must_lie_inside_the_segment(impl: SimpleNamespace, end: int) -> None:
    """A window must lie inside the segment, behind its header."""
    writer = impl.Writer(new_control(), OWNER, 100, None, None)
    with pytest.raises(ValueError, match="window is not inside the segment"):
        writer.open_window(end, FOREVER)
    writer.bind(new_segment(100), 1000)
    with pytest.raises(ValueError, match="window is not inside the segment"):
        writer.open_window(end, FOREVER)
    for inside in (1000, 1001, 1099, 1100):
        writer.open_window(inside, FOREVER)


def test_a_segment_must_have_a_header(impl: SimpleNamespace) -> None:
    """A segment shorter than a header is refused, and the writer keeps the one before."""
    bench = Bench(impl)
    for size in (0, 1, 63):
        with pytest.raises(ValueError, match="segment is shorter than its header"):
            bench.writer.bind(bytearray(size), 0)
    with pytest.raises(BufferError):
        bench.writer.bind(bytes(4096), 0)
    with pytest.raises(TypeError):
        bench.writer.bind(None, 0)
    with pytest.raises(OverflowError):
        bench.writer.bind(bytearray(4096), -1)
    assert bench.writer.append(b"x") == 0
    bench.writer.bind(bytearray(64), 9)
    bench.writer.open_window(9, FOREVER)
    assert bench.writer.append(b"") == OVERFLOWED


def test_the_longest_payload_is_found(impl: SimpleNamespace) -> None:
    """`longest` returns the length of the longest payload, and 0 for an empty list."""
    writer = Bench(impl).writer
    assert writer.longest([b"a", b"abc", b""]) == 3
    assert writer.longest([]) == 0


def test_the_last_offsets_there_are(impl: SimpleNamespace) -> None:
    """Records are appended up to the largest offset, and not one byte beyond."""
    top = LARGEST_OFFSET
    bench = Bench(impl, begin=top - 100, room=4096, window=100)
    assert bench.writer.append(b"x" * 80) == top - 100
    assert bench.writer.append(b"x" * 5) == OVERFLOWED
    assert bench.writer.append(b"x" * 4) == top - 12
    assert bench.writer.append(b"") == OVERFLOWED
    assert tail_of(bench.control) == (top, 2, top - 100)
    assert bench.records[100:] == bytes(4096 - 100)


@pytest.mark.parametrize("number", [LARGEST_OFFSET + 1, (1 << 63) + 5, (1 << 64) - 1])
def test_a_tail_with_a_number_that_is_too_large_is_not_believed(impl: SimpleNamespace, number: int) -> None:
    """A tail with an end, sequence or segment begin above the largest offset is not trusted."""
    for end, sequence, begin in ((number, 0, 0), (0, number, 0), (0, 0, number)):
        writer = impl.Writer(new_control(end, sequence, begin), OWNER, MAX_PAYLOAD, None, None)
        with pytest.raises(ValueError, match="no tail slot"):
            writer.start()
    impl.Writer(new_control(*[LARGEST_OFFSET] * 3), OWNER, MAX_PAYLOAD, None, None).start()


@pytest.mark.parametrize(("end", "sequence"), [(LARGEST_OFFSET, 0), (1000, LARGEST_OFFSET)])
def test_the_writer_does_not_roll_to_offsets_that_are_too_large(
    impl: SimpleNamespace, end: int, sequence: int, tmp_path: Path
) -> None:
    """A prepared file is not used if its offsets or sequences could become larger than the largest one."""
    spare = tmp_path / "spare"
    for beyond, expected in ((1, None), (0, 0)):
        spare.write_bytes(bytes(SEGMENT_HEADER_SIZE + 100))
        found, directory = spare.stat(), os.open(tmp_path, os.O_RDONLY)
        last, number = (end, sequence - 100 + beyond) if sequence else (end - 100 + beyond, 1)
        bench = Bench(impl, room=50, begin=last - 50, end=last - 50, sequence=number - 1)
        bench.take()
        bench.writer.bind(bench.segment, last - 50)  # no other writer has written to it
        bench.writer.open_window(last, FOREVER)
        bench.release()
        assert bench.writer.append(bytes(42)) == last - 50
        names = b"spare", b"%020d.seg" % 0
        following = bytearray(SEGMENT_HEADER_SIZE + 100)
        identity = found.st_dev, found.st_ino
        bench.writer.prepare_next(
            None, following, bytes(SEGMENT_HEADER_SIZE), *identity, *names, 0, 100, lambda: None, None, directory
        )
        os.close(directory)
        started = bench.writer.fast_roll(b"x")
        assert started == (None if expected is None else last)


def test_bound_memory_cannot_move(impl: SimpleNamespace) -> None:
    """A bytearray cannot be resized and a map cannot be closed while a writer has it bound."""
    control, segment = new_control(), mmap.mmap(-1, mmap.PAGESIZE)
    writer = impl.Writer(control, OWNER, 100, None, None)
    writer.bind(segment, 0)
    with pytest.raises(BufferError):
        segment.close()
    with pytest.raises(BufferError):
        control.extend(b"more")
    writer.unbind()
    segment.close()
    with pytest.raises(ValueError, match="closed"):
        writer.bind(segment, 0)
    del writer
    gc.collect()
    control.extend(b"more")


def test_another_bind_releases_the_first(impl: SimpleNamespace) -> None:
    """Binding another segment releases the first one, which can be closed then."""
    bench = Bench(impl)
    first = mmap.mmap(-1, mmap.PAGESIZE)
    bench.writer.bind(first, 0)
    bench.writer.bind(bench.segment, 0)
    first.close()


# Arguments


@pytest.mark.parametrize("payload", [None, "text", 5, bytearray(b"x"), memoryview(b"x"), [b"x"]])
def test_a_payload_must_be_bytes(impl: SimpleNamespace, payload: object) -> None:
    """A payload of any type but bytes is refused, with its index in the list."""
    bench = Bench(impl)
    with pytest.raises(TypeError, match=f"payload must be bytes, not {type(payload).__name__}"):
        bench.writer.append(payload)
    with pytest.raises(TypeError, match="payload 1 must be bytes"):
        bench.writer.append_all([b"", payload])
    with pytest.raises(TypeError, match="payload 0 must be bytes"):
        bench.writer.write([payload], 0, 0)
    assert bench.records == bytes(4096)
    assert bench.overflowed == []
    assert bench.word(WRITER_LOCK, 4) == 0


@pytest.mark.parametrize("payloads", [None, (), (b"x",), b"x", iter([b"x"]), type("L", (list,), {})([b"x"])])
def test_payloads_must_be_a_list(impl: SimpleNamespace, payloads: object) -> None:
    """A list of payloads must be exactly a list, because a subclass may change between two reads."""
    bench = Bench(impl)
    with pytest.raises(TypeError, match="payloads must be a list of bytes"):
        bench.writer.append_all(payloads)
    with pytest.raises(TypeError, match="payloads must be a list of bytes"):
        bench.writer.write(payloads, 0, 0)


def test_a_control_page_must_be_whole_and_writable(impl: SimpleNamespace) -> None:
    """A control page that is too short, read-only or not a buffer is refused."""
    for size in (0, 8, CONTROL_SIZE - 1):
        with pytest.raises(ValueError, match="control page is too short"):
            impl.Writer(bytearray(size), OWNER, 100, None, None)
    with pytest.raises(BufferError):
        impl.Writer(bytes(CONTROL_SIZE), OWNER, 100, None, None)
    with pytest.raises(TypeError):
        impl.Writer(None, OWNER, 100, None, None)


@pytest.mark.parametrize("owner", [-1, 1 << 32, 1 << 64])
def test_an_owner_is_a_word(impl: SimpleNamespace, owner: int) -> None:
    """An owner that does not fit 32 bits is refused, because its cut value may be that of another process."""
    with pytest.raises(OverflowError, match="value does not fit the word"):
        impl.Writer(new_control(), owner, 100, None, None)


def test_a_limit_beyond_the_format_is_that_of_the_format(impl: SimpleNamespace) -> None:
    """A message limit above 30 bits is reduced to that, and a negative one is an error."""
    impl.Writer(new_control(), OWNER, (1 << 64) - 1, None, None)
    for limit in (-1, 1 << 64):
        with pytest.raises(OverflowError, match="value does not fit the word"):
            impl.Writer(new_control(), OWNER, limit, None, None)


# Threads and life


def test_threads_share_a_writer(impl: SimpleNamespace) -> None:
    """Threads that share a writer append every record once, each thread's in its order."""
    bench = Bench(impl, room=1 << 16)
    threads, messages = 4, 200

    def overflow(payloads: list[bytes]) -> int:
        while not impl.take_word(bench.control, WRITER_LOCK, OWNER, 0.001):
            os.sched_yield()
        writer.start()
        start = writer.pending
        writer.write(payloads, 0, 0)
        writer.publish()
        impl.release_word(bench.control, WRITER_LOCK)
        return start

    writer = impl.Writer(bench.control, OWNER, 100, overflow, bench.notify)
    writer.bind(bench.segment, 0)
    writer.open_window(1 << 16, FOREVER)

    def send(name: int) -> None:
        for number in range(messages):
            writer.append(bytes([name, number]))

    running = [threading.Thread(target=send, args=(name,)) for name in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    end, sequence, _ = tail_of(bench.control)
    assert (end, sequence) == (threads * messages * 10, threads * messages)
    seen = [bench.records[position + 8 : position + 10] for position in range(0, end, 10)]
    for name in range(threads):
        assert [number for who, number in seen if who == name] == list(range(messages))
    assert impl.scan_records(bench.segment, 64, 64 + end, 0)[1] == threads * messages


def test_a_writer_in_a_cycle_is_collected(impl: SimpleNamespace) -> None:
    """A writer whose callbacks refer to its owner is collected with the cycle."""
    bench = Bench(impl)
    alive = weakref.ref(bench)
    del bench
    gc.collect()
    assert alive() is None


def test_a_writer_in_a_cycle_may_hold_views(impl: SimpleNamespace) -> None:
    """Collecting a writer in a cycle releases its views, in whatever order the collector clears objects."""
    for _ in range(3):
        bench = Bench(impl, control=memoryview(new_control()))
        bench.view = memoryview(new_segment(100))
        bench.writer.bind(bench.view, 0)
        alive = weakref.ref(bench)
        del bench
        gc.collect()
        assert alive() is None


def test_a_writer_is_created_completely_or_not_at_all(impl: SimpleNamespace) -> None:
    """A writer cannot be created without its pages, so that no method finds them missing."""
    with pytest.raises((TypeError, AttributeError)):
        impl.Writer.__new__(impl.Writer).append(b"x")
    with pytest.raises(TypeError):
        impl.Writer()
    with pytest.raises(TypeError):
        impl.Writer(control=new_control(), owner=1, max_payload=1, overflow=None, notify=None)


# Marks for the index


def taken(bench: Bench) -> list[tuple[int, int]]:
    """Take the marks, without their times."""
    return [(offset, sequence) for offset, sequence, _ in INDEX_CHECKED.iter_unpack(bench.writer.take_index_entries())]


def test_one_record_in_64_kib_is_marked(impl: SimpleNamespace) -> None:
    """A mark is due for the first record of a segment, and for each that begins 64 KiB behind the last mark."""
    bench = Bench(impl, room=300_000, sequence=5)
    for _ in range(100):
        bench.writer.append(bytes(992))  # 1,000 bytes a record
    bench.writer.append_all([bytes(992)] * 100)
    bench.take()
    assert bench.writer.write([bytes(992)] * 50, 0, 0) == 50
    assert taken(bench) == [(0, 5), (66_000, 71), (132_000, 137), (198_000, 203)]
    assert taken(bench) == []


def test_the_next_record_can_be_marked_at_once(impl: SimpleNamespace) -> None:
    """The next record is marked on request, and after a bind, which drops the marks of the former segment."""
    bench = Bench(impl)
    bench.writer.append(b"a")
    bench.writer.append(b"b")
    bench.writer.index_next()
    bench.writer.append(b"c")
    assert taken(bench) == [(0, 0), (18, 2)]
    bench.writer.append(b"d")
    bench.writer.index_next()
    bench.writer.append(b"e")
    bench.writer.bind(new_segment(100), 45)
    bench.writer.open_window(145, FOREVER)
    bench.writer.append(b"f")
    assert taken(bench) == [(45, 5)]


def test_the_time_of_a_mark_is_when_it_was_written(impl: SimpleNamespace) -> None:
    """The time of a mark lies between the times before and after its append, in nanoseconds since the epoch."""
    bench = Bench(impl)
    before = time.time_ns()
    bench.writer.append(b"a")
    [(_, _, at)] = INDEX_CHECKED.iter_unpack(bench.writer.take_index_entries())
    assert before <= at <= time.time_ns()


def test_marks_that_are_not_taken_do_not_pile_up(impl: SimpleNamespace) -> None:
    """Marks that are not taken are limited to some thousands, and the others are left out."""
    bench = Bench(impl, room=50_000)
    for _ in range(5000):
        bench.writer.index_next()
        bench.writer.append(b"")
    assert taken(bench) == [(8 * number, number) for number in range(4096)]
    bench.writer.index_next()
    bench.writer.append(b"")
    assert taken(bench) == [(40_000, 5000)]


# Pages ahead of the tail


def present_pages(map_: mmap.mmap) -> list[int]:
    """Return the pages of a map that this process has."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(map_))
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(address // mmap.PAGESIZE * 8)
        entries = struct.unpack(f"<{len(map_) // mmap.PAGESIZE}Q", pages.read(len(map_) // mmap.PAGESIZE * 8))
    return [number for number, entry in enumerate(entries) if entry >> 63]


def test_pages_are_present_before_the_tail_comes_there(impl: SimpleNamespace, tmp_path: Path) -> None:
    """Pages are populated as far ahead as was set, again when half is used, and up to the end of the segment."""
    page, size = mmap.PAGESIZE, 512 * mmap.PAGESIZE
    file = tmp_path / "segment"
    file.touch()
    os.truncate(file, size)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), size) as segment:
        if not impl.populate(segment, 0, 1):
            pytest.skip("this kernel does not populate pages")
        bench = Bench(impl)
        bench.writer.bind(segment, 0)
        bench.writer.open_window(500 * page, FOREVER)
        bench.writer.populate_ahead(200 * page, 64 * page)
        for until, reach in (0, 64), (31, 64), (32, 96), (63, 96), (130, 192), (160, 200), (199, 200):
            while bench.writer.pending < until * page:
                bench.writer.append(bytes(page - 8))
            impl.populate_wait()
            assert set(range(reach)) <= set(present_pages(segment))
        bench.writer.unbind()


def test_pages_are_asked_for_inside_the_segment_only(impl: SimpleNamespace) -> None:
    """Pages are populated neither behind the end of the segment nor before the tail."""
    bench = Bench(impl, room=100)
    bench.writer.append(bytes(30))
    for end in 20, 101:
        with pytest.raises(ValueError, match="not inside"):
            bench.writer.populate_ahead(end, 10)
    bench.writer.unbind()
    with pytest.raises(ValueError, match="not inside"):
        bench.writer.populate_ahead(50, 10)


# Others


def test_a_writer_knows_whether_others_have_written_to_its_segment(impl: SimpleNamespace) -> None:
    """A writer knows whether other writers appended to its segment since it was bound."""
    bench = Bench(impl)
    bench.take()
    bench.release()
    bench.writer.bind(bench.segment, 0)
    bench.writer.open_window(4096, FOREVER)
    bench.writer.append(b"ours")
    bench.writer.append_all([b"ours"] * 2)
    bench.take()
    bench.writer.write([b"ours"], 0, 0)
    bench.writer.publish()
    bench.release()
    assert bench.writer.alone
    set_tail(bench.control, WRITE_TAIL, 200, 7, 0, slot=0)
    bench.writer.append(b"ours")
    assert not bench.writer.alone
    bench.writer.bind(bench.segment, 0)
    assert not bench.writer.alone
    bench.writer.bind(bench.segment, bench.writer.pending)
    assert bench.writer.alone
