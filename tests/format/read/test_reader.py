"""Reading one record after the other, decoded, with a cursor."""

from __future__ import annotations

import gc
import mmap
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from filechannel._format import NOTHING
from filechannel._format.layout import (
    BATCH_CONTINUES,
    CAPACITY_WAKE,
    CAPACITY_WATCHED,
    CONTROL_RECORD,
    CONTROL_SIZE,
    SEGMENT_END,
    SEGMENT_HEADER_SIZE,
    WAKE_LOOPS,
    WAKE_THREADS,
    WRITE_TAIL,
)
from tests.format.pages import (
    cursor_of,
    cursor_slots,
    new_control,
    new_cursor,
    new_segment,
    packed_record,
    packed_records,
    set_cursor,
    set_tail,
    size_of,
)


class DamagedError(Exception):
    """What the bench's `damaged` raises."""


class RefusedError(Exception):
    """What the bench's `refuse` raises."""


class StopNow(BaseException):
    """Something like KeyboardInterrupt, in the middle of decoding."""


class Bench:
    """A reader, its pages, and what it asked for."""

    def __init__(
        self,
        impl: SimpleNamespace,
        payloads: list[bytes] | None = None,
        *,
        content: bytes | None = None,
        begin: int = 0,
        room: int | None = None,
        decode: Callable[[bytes], Any] | None = None,
        cursor: bytearray | None = None,
        bound: bool = True,
    ) -> None:
        self.content = packed_records(payloads or [], begin) if content is None else content
        self.control = new_control(begin, 0, begin)
        set_tail(self.control, WRITE_TAIL, begin + len(self.content), 0, begin)
        self.segment = new_segment(len(self.content) if room is None else room, self.content)
        self.cursor = new_cursor() if cursor is None else cursor
        self.advanced = 0
        self.on_advance: Callable[[Any], object] | None = None
        self.damages: list[tuple[int, str]] = []
        self.on_damage: Callable[[Any], object] | None = None
        self.refused: list[tuple[int, int, bytes, Exception]] = []
        arguments = (self.control, self.cursor, decode, self.advance, self.damaged, self.refuse)
        self.reader = impl.Reader(*arguments)
        self.reader.move(begin, 0)
        if bound:
            self.reader.bind(self.segment, begin)

    def publish(self, offset: int) -> None:
        """Let readers read up to an offset."""
        set_tail(self.control, WRITE_TAIL, offset, 0, 0)

    def advance(self, reader: object) -> None:
        """Do what the test says, or raise."""
        assert reader is self.reader
        self.advanced += 1
        if self.on_advance is None:
            raise LookupError("no next segment")
        self.on_advance(reader)

    def damaged(self, reader: object, reason: str) -> None:
        """Note the damage, and do what the test says or raise."""
        assert reader is self.reader
        self.damages.append((self.reader.offset, reason))
        if self.on_damage is None:
            raise DamagedError(reason)
        self.on_damage(reader)

    def refuse(self, offset: int, next_offset: int, payload: bytes, error: Exception) -> None:
        """Note what did not decode, and raise."""
        self.refused.append((offset, next_offset, payload, error))
        raise RefusedError(offset) from error


# Taking


def test_messages_come_in_order_and_then_nothing(impl: SimpleNamespace) -> None:
    """Messages are read in order, and then NOTHING is returned until there are more."""
    bench = Bench(impl, [b"a", b"", b"ccc"])
    assert [bench.reader.take() for _ in range(5)] == [b"a", b"", b"ccc", NOTHING, NOTHING]
    assert bench.advanced == 0
    assert bench.damages == []


def test_every_length_is_taken(impl: SimpleNamespace) -> None:
    """Payloads of 0 to 1100 bytes are read as they were written."""
    payloads = [random.Random(length).randbytes(length) for length in range(1101)]
    bench = Bench(impl, payloads, begin=1 << 40)
    assert [bench.reader.take() for _ in payloads] == payloads
    assert bench.reader.offset == (1 << 40) + size_of(*payloads)
    assert bench.reader.sequence == len(payloads)


def test_a_record_says_where_it_was(impl: SimpleNamespace) -> None:
    """A record has its item, the offset of its first byte, and its sequence."""
    bench = Bench(impl, [b"a", b"bb"], begin=500)
    bench.reader.move(500, 9)
    bench.reader.bind(bench.segment, 500)
    assert bench.reader.take_record() == (b"a", 500, 9)
    assert bench.reader.take_record() == (b"bb", 509, 10)
    assert bench.reader.take_record() is NOTHING
    assert (bench.reader.offset, bench.reader.sequence) == (519, 11)


def test_many_are_taken_up_to_a_number(impl: SimpleNamespace) -> None:
    """`take_many` returns at most as many items as requested, and an empty list if there are none."""
    bench = Bench(impl, [bytes([n]) for n in range(10)])
    assert bench.reader.take_many(0) == []
    assert bench.reader.take_many(-5) == []
    assert bench.reader.take_many(3) == [b"\x00", b"\x01", b"\x02"]
    assert bench.reader.take_many(1 << 100) == [bytes([n]) for n in range(3, 10)]
    assert bench.reader.take_many(4) == []


@pytest.mark.parametrize("most", [None, "3", 1.5, b"3"])
def test_how_many_is_an_integer(impl: SimpleNamespace, most: object) -> None:
    """A number of items that is not an integer is refused, and nothing is taken."""
    bench = Bench(impl, [b"a"])
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        bench.reader.take_many(most)
    assert bench.reader.take() == b"a"


def test_only_what_is_published_is_taken(impl: SimpleNamespace) -> None:
    """Valid records behind the tail are not read until the tail moves."""
    bench = Bench(impl, [b"a", b"b", b"c"])
    bench.publish(0)
    assert bench.reader.take() is NOTHING
    bench.publish(9)
    assert bench.reader.take_many(10) == [b"a"]
    bench.publish(27)
    assert bench.reader.take_many(10) == [b"b", b"c"]


def test_a_tail_that_moved_is_not_looked_at_until_needed(impl: SimpleNamespace) -> None:
    """A reader reads up to the tail it knows before it loads the tail again, and a recovery makes it move back."""
    bench = Bench(impl, [b"a", b"b"])
    assert bench.reader.take() == b"a"
    bench.publish(9)
    assert bench.reader.take() == b"b"
    bench.reader.move(9, 1)
    assert bench.reader.take() is NOTHING


def test_control_records_are_skipped(impl: SimpleNamespace) -> None:
    """Control records are skipped and not counted, also when nothing follows them."""
    content = packed_record(b"\x01x", 0, CONTROL_RECORD)
    content += packed_record(b"a", len(content))
    content += packed_record(b"\x01y", len(content), CONTROL_RECORD | BATCH_CONTINUES)
    content += packed_record(b"\x01z", len(content), CONTROL_RECORD)
    bench = Bench(impl, content=content)
    assert bench.reader.take_record() == (b"a", 10, 0)
    assert bench.reader.take() is NOTHING
    assert (bench.reader.offset, bench.reader.sequence) == (len(content), 1)
    assert cursor_of(bench.cursor) == (len(content), 1)


def test_records_of_a_batch_are_messages_like_others(impl: SimpleNamespace) -> None:
    """Records of a batch are read like other messages."""
    content = packed_record(b"a", 0, BATCH_CONTINUES) + packed_record(b"b", 9)
    assert Bench(impl, content=content).reader.take_many(5) == [b"a", b"b"]


# Decoding


def test_items_are_decoded(impl: SimpleNamespace) -> None:
    """Decoded items can be any object, also None and `NOTHING`."""
    table = {b"n": None, b"i": 5, b"l": []}
    bench = Bench(impl, [b"n", b"i", b"l"], decode=table.__getitem__)
    assert bench.reader.take() is None
    assert bench.reader.take_record() == (5, 9, 1)
    assert bench.reader.take_many(2) == [[]]


def test_a_payload_that_does_not_decode_is_refused(impl: SimpleNamespace) -> None:
    """A payload that does not decode is passed to `refuse` with its position, the next one and the reason."""
    bench = Bench(impl, [b"1", b"x", b"3"], decode=int)
    assert bench.reader.take() == 1
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            bench.reader.take()
        assert isinstance(caught.value.__cause__, ValueError)
        assert caught.value.__cause__.__traceback__ is None or impl.name == "pure"
    offset, next_offset, payload, error = bench.refused[0]
    assert (offset, next_offset, payload) == (9, 18, b"x")
    assert isinstance(error, ValueError)
    assert cursor_of(bench.cursor) == (9, 1)
    bench.reader.move(next_offset, 2)
    assert bench.reader.take_record() == (3, 18, 2)


def test_refuse_must_raise(impl: SimpleNamespace) -> None:
    """A `refuse` that returns is an error, because there is no item."""
    bench = Bench(impl, [b"x"])
    reader = impl.Reader(bench.control, None, int, None, None, lambda *arguments: None)
    reader.bind(bench.segment, 0)
    for take in (reader.take, reader.take_record, lambda: reader.take_many(1)):
        with pytest.raises(SystemError, match="refuse\\(\\) must raise"):
            take()
    assert reader.offset == 0


def test_an_interruption_of_decode_is_not_refused(impl: SimpleNamespace) -> None:
    """An exception of the decoder that is not an `Exception` passes through, and the message is delivered again."""
    interrupt = True

    def decode(payload: bytes) -> bytes:
        if interrupt:
            raise StopNow
        return payload

    bench = Bench(impl, [b"a"], decode=decode)
    for take in (bench.reader.take, bench.reader.take_record, lambda: bench.reader.take_many(1)):
        with pytest.raises(StopNow):
            take()
    assert bench.refused == []
    interrupt = False
    assert bench.reader.take() == b"a"


# Decoding from a buffer that is used again


SIZES = [3, 0, 300, 65536, 65537, 3, 200_000, 1]


def reader_of(impl: SimpleNamespace, payloads: list[bytes], decode: Callable[..., Any], refuse: Any = None) -> Any:
    """Return a reader whose decode is done with the payload when it returns."""
    content, control = packed_records(payloads, 0), new_control()
    set_tail(control, WRITE_TAIL, len(content), 0, 0)
    reader = impl.Reader(control, None, decode, None, None, refuse, True)
    reader.bind(new_segment(len(content), content), 0)
    return reader


def test_each_payload_is_decoded_from_a_buffer_of_its_size(impl: SimpleNamespace) -> None:
    """Each payload is decoded from a buffer of exactly its size, in any order of sizes."""
    payloads = [random.Random(size).randbytes(size) for size in SIZES]
    reader = reader_of(impl, payloads, lambda payload: (len(memoryview(payload)), bytes(payload)))
    assert [reader.take() for _ in payloads] == list(zip(SIZES, payloads, strict=True))


def test_what_a_decoder_keeps_does_not_change(impl: SimpleNamespace) -> None:
    """A view of the buffer that a decoder keeps does not change with the next message."""
    payloads = [bytes([number]) * (5 + number % 3) for number in range(30)]
    views = reader_of(impl, payloads, memoryview).take_many(100)
    things = reader_of(impl, payloads, lambda payload: payload).take_many(100)
    assert [bytes(view) for view in views] == [bytes(thing) for thing in things] == payloads


def test_the_buffer_cannot_be_written(impl: SimpleNamespace) -> None:
    """The buffer is read-only for the decoder."""
    assert reader_of(impl, [b"abc"], lambda payload: memoryview(payload).readonly).take() is True


def test_a_payload_that_does_not_decode_from_the_buffer_is_refused_as_bytes(impl: SimpleNamespace) -> None:
    """A payload that does not decode from the buffer is passed to `refuse` as bytes."""
    refused: list[tuple[Any, ...]] = []

    def refuse(*arguments: Any) -> None:
        refused.append(arguments)
        raise RefusedError

    reader = reader_of(impl, [b"x", b"y"], lambda payload: int(bytes(payload)), refuse)
    with pytest.raises(RefusedError):
        reader.take()
    reader.move(9, 1)
    with pytest.raises(RefusedError):
        reader.take()
    assert [arguments[:3] for arguments in refused] == [(0, 9, b"x"), (9, 18, b"y")]
    assert {type(arguments[2]) for arguments in refused} == {bytes}


def test_msgspec_decodes_from_the_buffer(impl: SimpleNamespace) -> None:
    """The decoders of msgspec are called directly, and raw parts of a message keep their bytes."""
    messages = [{"number": number, "text": "t" * number} for number in range(20)]
    payloads = [msgspec.msgpack.encode(message) for message in messages]
    plain = reader_of(impl, payloads, msgspec.msgpack.Decoder(dict[str, int | str]).decode)
    assert plain.take_many(100) == messages
    raw = reader_of(impl, payloads, msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode)
    decoded = raw.take_many(100)
    assert [{key: msgspec.msgpack.decode(part) for key, part in one.items()} for one in decoded] == messages
    with pytest.raises(RefusedError):
        reader_of(impl, [b"\xc1"], msgspec.msgpack.Decoder().decode, Bench(impl).refuse).take()


def test_damage_is_found_in_the_buffer_too(impl: SimpleNamespace) -> None:
    """The checksum of the copy in the buffer is checked."""
    content = bytearray(packed_records([b"a", b"b"], 0))
    content[17] ^= 1

    def damaged(reader: Any, reason: str) -> None:
        raise DamagedError(reason)

    control = new_control()
    set_tail(control, WRITE_TAIL, len(content), 0, 0)
    reader = impl.Reader(control, None, bytes, None, damaged, None, True)
    reader.bind(new_segment(len(content), bytes(content)), 0)
    assert reader.take_many(5) == [b"a"]
    for reason, length in (("checksum mismatch", 1), ("record reaches beyond the end", 200)):
        content[9] = length
        reader.bind(new_segment(len(content), bytes(content)), 0)
        with pytest.raises(DamagedError, match=reason):
            reader.take()


@pytest.mark.parametrize("reuse", [False, True])
def test_a_record_that_claims_more_than_a_payload_may_have_is_damaged(impl: SimpleNamespace, reuse: bool) -> None:
    """A record that claims more than the largest payload is damaged, whatever its checksum, and one at the limit is
    not.
    """

    def damaged(reader: Any, reason: str) -> None:
        raise DamagedError(reason)

    content, control = packed_records([b"four", b"fives"], 0), new_control()
    set_tail(control, WRITE_TAIL, len(content), 0, 0)
    reader = impl.Reader(control, None, bytes, None, damaged, None, reuse, 4)
    reader.bind(new_segment(len(content), content), 0)
    assert reader.take() == b"four"
    with pytest.raises(DamagedError, match="record is longer than a message may be"):
        reader.take()
    with pytest.raises(OverflowError):
        impl.Reader(control, None, bytes, None, damaged, None, reuse, 1 << 30)


# Many, and an error among them


def test_what_came_before_an_error_is_handed_out(impl: SimpleNamespace) -> None:
    """Items before an error are returned first, and the next calls raise it until the reader is moved."""
    bench = Bench(impl, [b"1", b"2", b"x", b"4"], decode=int)
    assert bench.reader.take_many(10) == [1, 2]
    assert cursor_of(bench.cursor) == (18, 2)
    for _ in range(2):
        with pytest.raises(RefusedError):
            bench.reader.take_many(10)
    bench.reader.move(27, 3)
    assert bench.reader.take_many(10) == [4]


def test_what_came_before_damage_is_handed_out(impl: SimpleNamespace) -> None:
    """Items before damage are returned first, also where a segment ends and none follows."""
    bench = Bench(impl, [b"1", b"2", b"3"])
    bench.segment[SEGMENT_HEADER_SIZE + 26] ^= 1
    assert bench.reader.take_many(10) == [b"1", b"2"]
    with pytest.raises(DamagedError, match="checksum mismatch"):
        bench.reader.take_many(10)
    bench = Bench(impl, [b"1"])
    bench.publish(100)
    assert bench.reader.take_many(10) == [b"1"]
    with pytest.raises(LookupError):
        bench.reader.take_many(10)


def test_messages_before_an_interruption_are_delivered_again(impl: SimpleNamespace) -> None:
    """Messages before an interruption are delivered again, because neither the reader nor its cursor moved."""
    armed = True

    def decode(payload: bytes) -> bytes:
        if armed and payload == b"3":
            raise StopNow
        return payload

    content = packed_record(b"1", 0) + packed_record(b"c", 9, CONTROL_RECORD) + packed_records([b"2", b"3"], 18)
    bench = Bench(impl, content=content, decode=decode)
    with pytest.raises(StopNow):
        bench.reader.take_many(10)
    assert (bench.reader.offset, bench.reader.sequence) == (0, 0)
    assert cursor_of(bench.cursor) == (0, 0)
    armed = False
    assert bench.reader.take_many(10) == [b"1", b"2", b"3"]
    assert (bench.reader.offset, bench.reader.sequence) == (36, 3)


# Segments


def test_a_reader_without_a_segment_asks_for_one(impl: SimpleNamespace) -> None:
    """A reader without a segment asks for one when a message is published."""
    bench = Bench(impl, [b"a"], bound=False)
    bench.publish(0)
    assert bench.reader.take() is NOTHING
    assert bench.advanced == 0
    bench.publish(9)
    bench.on_advance = lambda reader: reader.bind(bench.segment, 0)
    assert bench.reader.take() == b"a"
    assert bench.advanced == 1


def test_at_the_end_of_a_segment_the_next_one_is_asked_for(impl: SimpleNamespace) -> None:
    """At the end of a segment the reader asks for the next one once, also within a batch."""
    first, second = packed_records([b"a", b"b"], 0), packed_record(b"c", 18, BATCH_CONTINUES)
    second += packed_record(b"d", 27)
    bench = Bench(impl, content=first, room=100)
    bench.segment[SEGMENT_END : SEGMENT_END + 8] = (18).to_bytes(8, "little")
    bench.publish(36)
    following = new_segment(len(second), second)
    bench.on_advance = lambda reader: reader.bind(following, 18)
    assert bench.reader.take_many(3) == [b"a", b"b", b"c"]
    assert bench.reader.take() == b"d"
    assert bench.reader.take() is NOTHING
    assert bench.advanced == 1


def test_at_the_end_of_a_segment_nothing_is_asked_before_more_is_published(impl: SimpleNamespace) -> None:
    """At a tail that is the end of a finished segment the reader does not ask for the next one."""
    bench = Bench(impl, [b"a"])
    bench.segment[SEGMENT_END : SEGMENT_END + 8] = (9).to_bytes(8, "little")
    assert bench.reader.take() == b"a"
    assert bench.reader.take() is NOTHING
    assert bench.advanced == 0


@pytest.mark.parametrize("remainder", range(17))
def test_bytes_behind_the_end_of_a_segment_are_not_read(impl: SimpleNamespace, remainder: int) -> None:
    """Bytes behind the end of a segment are not read."""
    content = packed_records([b"a", b"bc"], 0)
    for filler in (b"\x00", b"\xff"):
        bench = Bench(impl, content=content + filler * remainder)
        bench.segment[SEGMENT_END : SEGMENT_END + 8] = len(content).to_bytes(8, "little")
        following = new_segment(9, packed_record(b"d", len(content)))
        bench.on_advance = lambda reader, following=following: reader.bind(following, len(content))
        bench.publish(len(content) + 9)
        assert bench.reader.take_many(10) == [b"a", b"bc", b"d"]
        assert (bench.advanced, bench.damages) == (1, [])


def test_a_reader_before_or_behind_its_segment_asks_for_another(impl: SimpleNamespace) -> None:
    """A reader that is before or behind its segment asks for another one, and reads nothing outside."""
    for offset in (0, 99, 118, 1000):
        bench = Bench(impl, [b"a", b"b"], begin=100)
        bench.publish(2000)
        bench.reader.move(offset, 0)
        with pytest.raises(LookupError):
            bench.reader.take()
        assert bench.advanced == 1


def test_advance_may_move_the_reader(impl: SimpleNamespace) -> None:
    """`advance` may move the reader, for example over an offset gap."""
    gap = 1 << 40
    content = packed_record(b"after", gap)
    bench = Bench(impl, [b"before"])
    following = new_segment(len(content), content)

    def skip_gap(reader: Any) -> None:
        reader.bind(following, gap)
        reader.move(gap, reader.sequence)

    bench.on_advance = skip_gap
    bench.publish(gap + len(content))
    assert bench.reader.take_record() == (b"before", 0, 0)
    assert bench.reader.take_record() == (b"after", gap, 1)


def test_a_segment_that_ends_before_its_begin_is_not_read(impl: SimpleNamespace) -> None:
    """A segment whose end lies before its begin, as in a header that is being rewritten, is not read."""
    bench = Bench(impl, [b"a"], begin=100)
    bench.segment[SEGMENT_END : SEGMENT_END + 8] = (5).to_bytes(8, "little")
    with pytest.raises(LookupError):
        bench.reader.take()


def test_the_last_offsets_there_are(impl: SimpleNamespace) -> None:
    """A segment whose end would lie beyond 2**64 is read up to the tail."""
    top = (1 << 64) - 1
    content = packed_record(b"last", top - 12)
    control = new_control(top, 1, top - 12)
    reader = impl.Reader(control, None, None, None, None, None)
    reader.move(top - 12, 0)
    reader.bind(new_segment(500, content), top - 12)
    assert reader.take_record() == (b"last", top - 12, 0)
    assert reader.take() is NOTHING


def test_a_segment_must_have_a_header(impl: SimpleNamespace) -> None:
    """A segment shorter than a header is refused, and the reader keeps the one before."""
    bench = Bench(impl, [b"a"])
    for size in (0, 1, 63):
        with pytest.raises(ValueError, match="segment is shorter than its header"):
            bench.reader.bind(bytearray(size), 0)
    with pytest.raises(TypeError):
        bench.reader.bind(None, 0)
    with pytest.raises(OverflowError):
        bench.reader.bind(bytearray(100), -1)
    assert bench.reader.take() == b"a"
    assert bench.advanced == 0


def test_read_only_pages_are_enough_for_reading(impl: SimpleNamespace) -> None:
    """A reader without a cursor works on read-only pages."""
    bench = Bench(impl, [b"a", b"b"])
    reader = impl.Reader(bytes(bench.control), None, None, None, None, None)
    reader.bind(bytes(bench.segment), 0)
    assert reader.take_many(5) == [b"a", b"b"]


# Damage


def test_damage_is_reported_with_its_reason(impl: SimpleNamespace) -> None:
    """Damage is reported with its reason, and the reader stays at the record while `damaged` raises."""
    bench = Bench(impl, [b"a", b"b"])
    bench.segment[SEGMENT_HEADER_SIZE + 17] ^= 1
    assert bench.reader.take() == b"a"
    for _ in range(2):
        with pytest.raises(DamagedError):
            bench.reader.take()
    bench.segment[SEGMENT_HEADER_SIZE + 9] = 200
    with pytest.raises(DamagedError):
        bench.reader.take()
    assert bench.damages == [
        (9, "checksum mismatch"),
        (9, "checksum mismatch"),
        (9, "record reaches beyond the end"),
    ]


def test_a_reader_that_damaged_moved_continues(impl: SimpleNamespace) -> None:
    """A reader that `damaged` moves checks the next record, as often as needed."""
    bench = Bench(impl, [b"a", b"b", b"c", b"d"])
    bench.segment[SEGMENT_HEADER_SIZE + 17] ^= 1
    bench.segment[SEGMENT_HEADER_SIZE + 26] ^= 1
    bench.on_damage = lambda reader: reader.move(reader.offset + 9, reader.sequence + 1)
    assert bench.reader.take_many(10) == [b"a", b"d"]
    assert [offset for offset, _ in bench.damages] == [9, 18]
    assert bench.reader.sequence == 4


def test_a_record_that_became_valid_is_read(impl: SimpleNamespace) -> None:
    """A record that became valid, as in a segment that `damaged` bound again, is read."""
    bench = Bench(impl, [b"old"])
    fresh = new_segment(11, packed_record(b"new", 0))
    bench.segment[SEGMENT_HEADER_SIZE + 8] ^= 1
    bench.on_damage = lambda reader: reader.bind(fresh, 0)
    assert bench.reader.take() == b"new"
    assert bench.damages == [(0, "checksum mismatch")]


def test_a_zero_filled_page_gives_no_message(impl: SimpleNamespace) -> None:
    """A page of zeros contains no message, although the tail says so."""
    bench = Bench(impl, content=bytes(200))
    with pytest.raises(DamagedError, match="checksum mismatch"):
        bench.reader.take()


# Cursors


def test_each_take_is_stored_in_the_cursor(impl: SimpleNamespace) -> None:
    """Each read stores its position in the slot of the next generation, and the other slot keeps the former one."""
    bench = Bench(impl, [b"a", b"b", b"c"], cursor=new_cursor())
    assert cursor_slots(bench.cursor) == [None, (1, 0, 0)]
    bench.reader.take()
    assert cursor_slots(bench.cursor) == [(2, 9, 1), (1, 0, 0)]
    bench.reader.take_record()
    assert cursor_slots(bench.cursor) == [(2, 9, 1), (3, 18, 2)]
    bench.reader.take_many(5)
    assert cursor_slots(bench.cursor) == [(4, 27, 3), (3, 18, 2)]
    bench.reader.take()
    bench.reader.take_many(5)
    assert cursor_slots(bench.cursor) == [(4, 27, 3), (3, 18, 2)]


def test_a_move_is_stored_in_the_cursor(impl: SimpleNamespace) -> None:
    """A move is stored in the cursor, also backwards."""
    bench = Bench(impl, [b"a", b"b"])
    bench.reader.take_many(2)
    bench.reader.move(9, 1)
    assert cursor_of(bench.cursor) == (9, 1)
    assert bench.reader.take_record() == (b"b", 9, 1)


def test_senders_that_wait_for_capacity_are_woken_by_every_move(impl: SimpleNamespace) -> None:
    """A move wakes senders that wait for capacity, once each time they announce it, after the cursor was stored."""
    bench = Bench(impl, [b"a"] * 12)
    notified: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []
    bench.reader.notify_capacity(lambda: notified.append(cursor_of(bench.cursor)))
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS
    bench.reader.take()
    assert notified == []  # the cursor is not watched
    bench.control[CAPACITY_WATCHED] = 1
    for move in (
        bench.reader.take,
        bench.reader.take_record,
        lambda: bench.reader.take_many(2),
        lambda: bench.reader.move(0, 0),
        lambda: bench.reader.move_from(9, 18, 2),
    ):
        bench.control[CAPACITY_WAKE] |= WAKE_LOOPS | WAKE_THREADS
        move()
        expected.append(cursor_of(bench.cursor))
        assert bench.control[CAPACITY_WAKE] & (WAKE_LOOPS | WAKE_THREADS) == 0
        bench.reader.take()  # no sender waits
    assert notified == expected


def test_senders_that_wait_for_capacity_are_woken_by_acks(impl: SimpleNamespace) -> None:
    """An ack wakes senders that wait for capacity, and a delivery does not, because it moves nothing."""
    bench = Bench(impl, [b"a", b"b", b"c"])
    notified: list[tuple[int, int]] = []
    bench.control[CAPACITY_WATCHED] = 1
    bench.reader.notify_capacity(lambda: notified.append(cursor_of(bench.cursor)))
    bench.reader.track_acks()
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS
    _, offset, _, _, token = bench.reader.take_delivery()
    bench.reader.take()
    assert notified == []
    assert bench.reader.acknowledge(offset, token)
    assert notified == [(9, 1)]
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS
    assert bench.reader.ack(1)
    assert notified == [(9, 1), (18, 2)]


def test_an_error_while_waking_loses_no_message(impl: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while waking is reported as unraisable; what a signal handler may have raised is raised a little later.

    The pure implementation does that with Ctrl-C alone.
    """
    bench = Bench(impl, [b"a", b"b"])
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
    bench.control[CAPACITY_WATCHED] = 1
    errors: list[type[BaseException]] = [OSError, KeyboardInterrupt]
    if impl.Reader.__module__.endswith("_core"):
        errors[1] = ZeroDivisionError

    def fail() -> None:
        raise errors.pop(0)

    bench.reader.notify_capacity(fail)
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS
    assert bench.reader.take() == b"a"
    assert reported == [OSError]
    expected = errors[0]
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS

    def take_and_continue() -> None:
        bench.reader.take()
        time.sleep(5)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever an earlier test has left there
    try:
        with pytest.raises(expected):
            take_and_continue()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert bench.reader.sequence == 2


def test_a_reader_moves_from_where_it_is_expected(impl: SimpleNamespace) -> None:
    """A conditional move takes place only if the reader is at the expected position."""
    bench = Bench(impl, [b"a", b"b", b"c"])
    assert bench.reader.move_from(0, 9, 1) is True
    assert cursor_of(bench.cursor) == (9, 1)
    assert bench.reader.move_from(0, 18, 2) is False
    assert cursor_of(bench.cursor) == (9, 1)
    assert bench.reader.take_record() == (b"b", 9, 1)
    bench.reader.release()
    assert bench.reader.move_from(18, 0, 0) is False
    assert bench.reader.offset == 18


@pytest.mark.parametrize("arguments", [(-1, 0, 0), (0, -1, 0), (0, 0, 1 << 64), (0, 1 << 64, 0)])
def test_a_conditional_move_takes_64_unsigned_bits(impl: SimpleNamespace, arguments: tuple[int, int, int]) -> None:
    """A conditional move refuses numbers beyond 64 unsigned bits, and the reader stays."""
    bench = Bench(impl, [b"a"])
    with pytest.raises(OverflowError, match="value does not fit the word"):
        bench.reader.move_from(*arguments)
    assert bench.reader.take() == b"a"


def test_a_conditional_move_while_reading_is_refused(impl: SimpleNamespace) -> None:
    """A conditional move is refused while the reader decodes or calls back."""

    def decode(payload: bytes) -> bytes:
        with pytest.raises(RuntimeError, match="the same thread is already reading"):
            reader.move_from(0, 9, 1)
        return payload

    bench = Bench(impl, [b"a"])
    reader = impl.Reader(bench.control, None, decode, None, None, None)
    reader.bind(bench.segment, 0)
    assert reader.take() == b"a"


@pytest.mark.parametrize("generation", [1, 2, 7, 8, (1 << 63) + 1])
def test_a_cursor_continues_from_the_newest_generation(impl: SimpleNamespace, generation: int) -> None:
    """A cursor resumes from the slot with the newest generation, and fills the other one next."""
    cursor = new_cursor()
    set_cursor(cursor, generation - 1, 1, 1)
    set_cursor(cursor, generation, 5, 5)
    reader = impl.Reader(new_control(), cursor, None, None, None, None)
    reader.move(77, 7)
    slots = cursor_slots(cursor)
    assert slots[generation % 2] == (generation, 5, 5)
    assert slots[1 - generation % 2] == (generation + 1, 77, 7)


@pytest.mark.parametrize("generation", [6, 7])
def test_a_torn_slot_is_the_next_to_be_filled(impl: SimpleNamespace, generation: int) -> None:
    """A torn slot is filled next, whatever generation it claims, and the only valid slot is kept."""
    for claimed in (generation + 1, generation + 100, generation + 101, 0, (1 << 64) - 1):
        cursor = new_cursor()
        set_cursor(cursor, generation, 5, 5)
        torn = 64 * (1 - generation % 2)
        cursor[torn : torn + 8] = claimed.to_bytes(8, "little")
        cursor[torn + 8 : torn + 36] = b"\x11" * 28
        reader = impl.Reader(new_control(), cursor, None, None, None, None)
        reader.move(77, 7)
        slots = cursor_slots(cursor)
        assert slots[generation % 2] == (generation, 5, 5)
        assert slots[1 - generation % 2] == (generation + 1, 77, 7)


def test_a_cursor_has_the_time(impl: SimpleNamespace) -> None:
    """Each position in a cursor has a time in nanoseconds since the epoch, from which idleness is computed."""
    bench = Bench(impl)
    assert int.from_bytes(bench.cursor[64 + 24 : 64 + 32], "little") > 1_600_000_000 * 10**9


def test_a_cursor_leaves_the_rest_of_its_page_alone(impl: SimpleNamespace) -> None:
    """Storing a position leaves the rest of the page as it is, such as the owner behind the slots."""
    cursor = bytearray(b"\xcc" * 4096)
    reader = impl.Reader(new_control(), cursor, None, None, None, None)
    for number in range(4):
        reader.move(number, number)
    assert cursor[36:64] == b"\xcc" * 28
    assert cursor[100:] == b"\xcc" * (4096 - 100)


def test_a_cursor_must_be_whole_and_writable(impl: SimpleNamespace) -> None:
    """A cursor that is too short or read-only is refused."""
    for size in (0, 64, 127):
        with pytest.raises(ValueError, match="cursor is too short"):
            impl.Reader(new_control(), bytearray(size), None, None, None, None)
    with pytest.raises(BufferError):
        impl.Reader(new_control(), bytes(4096), None, None, None, None)
    impl.Reader(new_control(), bytearray(128), None, None, None, None)


def test_a_released_reader_has_nothing_to_take(impl: SimpleNamespace) -> None:
    """A released reader returns nothing, writes nothing, and asks for no segment."""
    bench = Bench(impl, [b"a", b"b"])
    bench.reader.take()
    bench.reader.release()
    bench.reader.release()
    bench.cursor.extend(b"not held")
    bench.segment.extend(b"not held")
    bench.reader.move(0, 0)
    assert cursor_of(bench.cursor) == (9, 1)
    assert bench.reader.take() is bench.reader.take_record() is NOTHING
    assert bench.reader.take_many(5) == []
    assert bench.advanced == 0


# Memory


def test_bound_memory_cannot_move(impl: SimpleNamespace) -> None:
    """A bytearray cannot be resized and a map cannot be closed while a reader has it bound."""
    cursor, segment = new_cursor(), mmap.mmap(-1, mmap.PAGESIZE)
    reader = impl.Reader(new_control(), cursor, None, None, None, None)
    reader.bind(segment, 0)
    with pytest.raises(BufferError):
        segment.close()
    with pytest.raises(BufferError):
        cursor.clear()
    reader.unbind()
    segment.close()
    with pytest.raises(ValueError, match="closed"):
        reader.bind(segment, 0)
    reader.release()
    cursor.clear()


def test_a_reader_may_lose_its_segment_while_it_decodes(impl: SimpleNamespace) -> None:
    """A reader that loses its segment while it decodes returns the message, whose payload was copied before."""
    bench = Bench(impl, [b"a", b"b"], bound=False)
    segment = mmap.mmap(-1, mmap.PAGESIZE)
    segment[: len(bench.segment)] = bytes(bench.segment)

    def decode(payload: bytes) -> bytes:
        reader.release()
        if not segment.closed:
            segment.close()
        return payload

    reader = impl.Reader(bench.control, bench.cursor, decode, bench.advance, bench.damaged, bench.refuse)
    reader.bind(segment, 0)
    bench.reader = reader
    assert reader.take_many(5) == [b"a"]
    assert reader.take() is NOTHING


def test_a_reader_in_a_cycle_is_collected(impl: SimpleNamespace) -> None:
    """A reader whose callbacks refer to its owner is collected with the cycle."""
    bench = Bench(impl, [b"a"])
    alive = weakref.ref(bench)
    del bench
    gc.collect()
    assert alive() is None


def test_a_reader_in_a_cycle_may_hold_views(impl: SimpleNamespace) -> None:
    """Collecting a reader in a cycle releases its views, in whatever order the collector clears objects."""
    for _ in range(3):
        bench = Bench(impl, [b"a"])
        bench.views = [memoryview(new_control()), memoryview(new_cursor()), memoryview(new_segment(100))]
        bench.reader = impl.Reader(bench.views[0], bench.views[1], bench.advance, *[bench.advance] * 3)
        bench.reader.bind(bench.views[2], 0)
        alive = weakref.ref(bench)
        del bench
        gc.collect()
        assert alive() is None


# One at a time


def test_reading_while_reading_is_refused(impl: SimpleNamespace) -> None:
    """A decoder or callback that reads from the same reader gets an error, and no deadlock."""
    inside: list[type[BaseException]] = []

    def decode(payload: bytes) -> bytes:
        for again in (reader.take, reader.take_record, lambda: reader.take_many(1)):
            with pytest.raises(RuntimeError, match="the same thread is already reading") as caught:
                again()
            inside.append(caught.type)
        return payload

    bench = Bench(impl, [b"a", b"b"])
    reader = impl.Reader(bench.control, bench.cursor, decode, None, None, None)
    reader.bind(bench.segment, 0)
    assert reader.take() == b"a"
    assert reader.take_many(1) == [b"b"]
    assert inside == [RuntimeError] * 6
    assert reader.take() is NOTHING


def test_a_reader_is_free_again_after_an_error(impl: SimpleNamespace) -> None:
    """A reader can be used again after an error of the decoder, of a callback or of a nested read."""
    bench = Bench(impl, [b"x"], decode=int)
    for _ in range(3):
        with pytest.raises(RefusedError):
            bench.reader.take()
        with pytest.raises(RefusedError):
            bench.reader.take_record()
        with pytest.raises(RefusedError):
            bench.reader.take_many(1)


def test_a_move_while_decoding_does_not_move_the_message(impl: SimpleNamespace) -> None:
    """A reader that is moved while it decodes returns the message, and continues at the new position."""
    bench = Bench(impl, [b"a", b"b"])

    def decode(payload: bytes) -> bytes:
        reader.move(500, 50)
        return payload

    reader = impl.Reader(bench.control, None, decode, None, None, None)
    reader.bind(bench.segment, 0)
    assert reader.take_record() == (b"a", 0, 0)
    assert (reader.offset, reader.sequence) == (9, 1)


@pytest.mark.parametrize("arguments", [(-1, 0), (0, -1), (1 << 64, 0), (0, 1 << 64)])
def test_a_move_takes_64_unsigned_bits(impl: SimpleNamespace, arguments: tuple[int, int]) -> None:
    """A move refuses numbers beyond 64 unsigned bits, and the reader stays."""
    bench = Bench(impl, [b"a"])
    before = bytes(bench.cursor)
    with pytest.raises(OverflowError, match="value does not fit the word"):
        bench.reader.move(*arguments)
    assert bytes(bench.cursor) == before
    assert bench.reader.take() == b"a"


def test_threads_share_a_reader(impl: SimpleNamespace) -> None:
    """Each message is delivered to one thread, in order within each, although decoding lets other threads run."""
    messages = 400
    bench = Bench(impl, [number.to_bytes(2, "big") for number in range(messages)])
    gate = threading.Lock()

    def decode(payload: bytes) -> int:
        with gate:  # Python code: another thread may run here
            return int.from_bytes(payload, "big")

    reader = impl.Reader(bench.control, bench.cursor, decode, None, None, None)
    reader.bind(bench.segment, 0)
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(mine: list[int], many: bool) -> None:
        while True:
            items = reader.take_many(3) if many else [reader.take()]
            if not items or items[0] is NOTHING:
                return
            mine.extend(items)

    running = [threading.Thread(target=take, args=(taken[n], n % 2 == 0)) for n in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert sorted(number for mine in taken for number in mine) == list(range(messages))
    assert all(mine == sorted(mine) for mine in taken)
    assert cursor_of(bench.cursor) == (messages * 10, messages)


# Arguments


def test_a_control_page_must_be_whole(impl: SimpleNamespace) -> None:
    """A control page that is too short, or not a buffer, is refused."""
    for size in (0, 8, CONTROL_SIZE - 1):
        with pytest.raises(ValueError, match="control page is too short"):
            impl.Reader(bytearray(size), None, None, None, None, None)
    with pytest.raises(TypeError):
        impl.Reader(None, None, None, None, None, None)


def test_a_reader_is_created_completely_or_not_at_all(impl: SimpleNamespace) -> None:
    """A reader cannot be created without its pages, so that no method finds them missing."""
    with pytest.raises((TypeError, AttributeError)):
        impl.Reader.__new__(impl.Reader).take()
    with pytest.raises(TypeError):
        impl.Reader()
