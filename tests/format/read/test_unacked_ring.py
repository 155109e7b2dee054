"""A reader that holds what it hands out until it is acknowledged."""

from __future__ import annotations

import threading
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from filechannel._format import NOTHING
from filechannel._format.layout import STATE, STATE_SEALED
from tests.format.pages import cursor_of, packed_record
from tests.format.read.test_reader import Bench, DamagedError, RefusedError, StopNow

FAR = (1 << 64) - 1


def holding(impl: SimpleNamespace, count: int = 10, **options: Any) -> Bench:
    """Return a bench whose reader tracks acks, with records of one byte: each has nine."""
    bench = Bench(impl, [bytes([n]) for n in range(count)], **options)
    bench.reader.track_acks()
    return bench


def values(items: list[bytes]) -> list[int]:
    """Return the numbers in payloads of one byte."""
    return [item[0] for item in items]


def test_a_reader_that_does_not_hold_has_nothing_to_acknowledge(impl: SimpleNamespace) -> None:
    """A reader that does not track acks has nothing to ack, and its cursor follows every delivery."""
    bench = Bench(impl, [b"a", b"b"])
    reader = bench.reader
    assert reader.take_delivery() == (b"a", 0, 0, 1, 0)
    assert cursor_of(bench.cursor) == (9, 1)
    assert (reader.outstanding, reader.ready, reader.next_due, reader.ready_positions(5)) == (0, 0, 0, [])
    assert [reader.ack(1), reader.nack(1), reader.nack(None), reader.acknowledge(0, 1)] == [False] * 4
    assert not reader.redeliver(0, 1, 0, True)
    reader.forget()
    assert cursor_of(bench.cursor) == (9, 1)


def test_holding_begins_once(impl: SimpleNamespace) -> None:
    """Tracking acks a second time is refused."""
    with pytest.raises(ValueError, match="already set up"):
        holding(impl).reader.track_acks()


def test_the_cursor_follows_the_oldest(impl: SimpleNamespace) -> None:
    """The cursor follows the oldest unacked message, whichever way messages are received and acked."""
    bench = holding(impl)
    reader = bench.reader
    impl.begin_slice()
    assert (reader.take(), reader.take_or_yield(), reader.take_record()) == (b"\0", b"\1", (b"\2", 18, 2))
    assert values(reader.take_many(2)) == [3, 4]
    assert reader.take_delivery() == (b"\5", 45, 5, 1, 5)
    assert (reader.outstanding, cursor_of(bench.cursor)) == (6, (0, 0))
    assert reader.ack(2)
    assert (reader.outstanding, cursor_of(bench.cursor)) == (4, (18, 2))
    assert reader.acknowledge(45, 5)
    assert cursor_of(bench.cursor) == (18, 2)
    assert not reader.ack(4)
    assert reader.ack(3)
    assert cursor_of(bench.cursor) == (54, 6)


def test_many_are_outstanding(impl: SimpleNamespace) -> None:
    """More messages than the first allocation holds can be outstanding, repeatedly."""
    bench = Bench(impl, [b"x"] * 5000)
    bench.reader.track_acks()
    for taken in range(0, 5000, 50):
        bench.reader.take_many(50)
        assert bench.reader.ack(25)
        assert cursor_of(bench.cursor) == (9 * (taken // 2 + 25), taken // 2 + 25)
    assert bench.reader.nack(None)
    assert bench.reader.ready == 2500
    assert [bench.reader.take_record()[2] for _ in range(2500)] == list(range(2500, 5000))


def test_retrying_for_ever_takes_no_memory(impl: SimpleNamespace) -> None:
    """A message that fails again and again uses the memory of one."""
    bench = holding(impl, 2)
    bench.reader.take()
    tracemalloc.start()
    try:
        for _ in range(5000):
            assert bench.reader.nack(None)
            assert bench.reader.take() == b"\0"
        assert tracemalloc.get_traced_memory()[0] < 20_000
    finally:
        tracemalloc.stop()


def test_returned_messages_are_delivered_first_and_in_order(impl: SimpleNamespace) -> None:
    """Returned messages are delivered before new ones in order, also if they are returned out of order."""
    bench = holding(impl)
    taken = [bench.reader.take_delivery() for _ in range(6)]
    for number in (4, 1, 3):
        assert bench.reader.redeliver(taken[number][1], taken[number][4], 0, number != 3)
    assert bench.reader.ready_positions(2) == [(9, 1), (27, 3)]
    assert [bench.reader.take_delivery()[2:4] for _ in range(4)] == [(1, 2), (3, 1), (4, 2), (6, 1)]
    assert bench.reader.offset == 63


def test_what_is_delayed_comes_when_it_is_due(impl: SimpleNamespace) -> None:
    """A delayed message is delivered when it is due and not before, and the earliest time is known."""
    bench = holding(impl, 3)
    taken = [bench.reader.take_delivery() for _ in range(3)]
    dues = (FAR, FAR - 5, 1)
    for (_, offset, _, _, token), due in zip(taken, dues, strict=True):
        assert bench.reader.redeliver(offset, token, due, True)
    assert (bench.reader.ready, bench.reader.next_due, bench.reader.outstanding) == (1, FAR - 5, 0)
    assert bench.reader.may_have_more
    assert bench.reader.take() == b"\2"
    assert bench.reader.take() is NOTHING
    assert not bench.reader.may_have_more
    assert cursor_of(bench.cursor) == (0, 0)


def test_only_the_call_that_delivered_it_acks_it(impl: SimpleNamespace) -> None:
    """A redelivered message has another token, and only the call with its token acks it."""
    bench = holding(impl)
    _, offset, _, _, token = bench.reader.take_delivery()
    assert not bench.reader.acknowledge(offset, token + 1)
    assert not bench.reader.acknowledge(offset + 1, token)
    assert bench.reader.redeliver(offset, token, 0, True)
    assert not bench.reader.acknowledge(offset, token)
    assert bench.reader.take_delivery()[4] != token
    assert not bench.reader.redeliver(offset, token, 0, True)


def test_moving_keeps_what_was_before(impl: SimpleNamespace) -> None:
    """A move keeps outstanding messages before the new position; those behind it are delivered in any case."""
    bench = holding(impl)
    bench.reader.take_many(6)
    bench.reader.nack(3)
    bench.reader.move(36, 4)
    assert (bench.reader.outstanding, bench.reader.ready_positions(9)) == (3, [(27, 3)])
    assert values(bench.reader.take_many(3)) == [3, 4, 5]
    bench.reader.forget()
    assert (bench.reader.outstanding, cursor_of(bench.cursor)) == (0, (54, 6))
    assert bench.reader.move_from(54, 0, 0)
    assert cursor_of(bench.cursor) == (0, 0)


def test_an_interrupted_batch_is_delivered_again(impl: SimpleNamespace) -> None:
    """An interrupted batch is delivered again: new messages as new, redelivered ones with their attempts unchanged."""
    interrupted = True

    def decode(payload: bytes) -> bytes:
        if interrupted and payload == b"\4":
            raise StopNow
        return bytes(payload)

    bench = holding(impl, decode=decode)
    bench.reader.take_many(3)
    bench.reader.nack(2)
    with pytest.raises(StopNow):
        bench.reader.take_many(9)
    assert (bench.reader.outstanding, bench.reader.ready, bench.reader.offset) == (1, 2, 27)
    interrupted = False
    assert [bench.reader.take_delivery()[2:4] for _ in range(3)] == [(1, 2), (2, 2), (3, 1)]


def test_damage_of_a_message_to_be_redelivered_is_an_error(impl: SimpleNamespace) -> None:
    """Damage in a message to be redelivered raises at each call; once skipped it is dropped, and the others follow."""
    bench = holding(impl, 5)
    bench.reader.take_many(4)
    bench.reader.nack(3)
    bench.segment[64 + 18 + 8] ^= 1
    assert bench.reader.take() == b"\1"
    for _ in range(2):
        with pytest.raises(DamagedError):
            bench.reader.take()
    bench.on_damage = lambda reader: reader.move(27, 3)
    assert values(bench.reader.take_many(9)) == [3, 4]
    assert (bench.reader.outstanding, bench.reader.ready) == (4, 0)
    assert bench.reader.ack(4)
    assert cursor_of(bench.cursor) == (45, 5)


def test_a_callback_may_move_beyond_everything(impl: SimpleNamespace) -> None:
    """A callback may move the reader beyond all waiting messages, which are dropped then."""
    bench = holding(impl, 6)
    bench.reader.take_many(4)
    bench.reader.nack(3)
    bench.segment[64 + 9 + 8] ^= 1
    bench.on_damage = lambda reader: reader.move(45, 5)
    assert bench.reader.take_record() == (b"\5", 45, 5)
    assert (bench.reader.outstanding, bench.reader.ready) == (2, 0)
    assert cursor_of(bench.cursor) == (0, 0)
    assert bench.reader.ack(2)
    assert cursor_of(bench.cursor) == (54, 6)


def test_what_does_not_decode_any_more_stays(impl: SimpleNamespace) -> None:
    """A redelivered message that does not decode any more is refused at each call, and nothing moves."""
    decodes = True

    def decode(payload: bytes) -> bytes:
        if not decodes:
            raise LookupError
        return bytes(payload)

    bench = holding(impl, 3, decode=decode)
    bench.reader.take()
    bench.reader.nack(None)
    decodes = False
    for _ in range(2):
        with pytest.raises(RefusedError):
            bench.reader.take()
    decodes = True
    assert values(bench.reader.take_many(9)) == [0, 1, 2]


def test_control_records_do_not_move_the_cursor_past_unacked_messages(impl: SimpleNamespace) -> None:
    """The cursor passes control records when every message before them is acknowledged."""
    content = packed_record(b"a", 0)
    content += packed_record(b"\1x", len(content), 1 << 30)
    bench = Bench(impl, content=content)
    bench.reader.track_acks()
    assert (bench.reader.take(), bench.reader.take()) == (b"a", NOTHING)
    assert cursor_of(bench.cursor) == (0, 0)
    assert bench.reader.ack(1)
    assert cursor_of(bench.cursor) == (19, 1)


def test_a_sealed_channel_is_drained_when_nothing_is_unacked(impl: SimpleNamespace) -> None:
    """A sealed channel is drained when no message is outstanding or to be redelivered."""
    bench = holding(impl, 1)
    assert not bench.reader.drained
    bench.control[STATE] = STATE_SEALED
    assert bench.reader.drained
    bench.reader.take()
    assert not bench.reader.drained
    bench.reader.nack(None)
    assert not bench.reader.drained
    bench.reader.take()
    bench.reader.ack(1)
    assert bench.reader.drained


def test_a_released_reader_acks_nothing(impl: SimpleNamespace) -> None:
    """A released reader cannot ack, and its messages are redelivered to the next owner of the name."""
    bench = holding(impl)
    _, offset, _, _, token = bench.reader.take_delivery()
    bench.reader.release()
    assert not bench.reader.ack(1)
    assert not bench.reader.nack(None)
    assert not bench.reader.acknowledge(offset, token)
    assert not bench.reader.redeliver(offset, token, 0, True)
    assert cursor_of(bench.cursor) == (0, 0)


def test_acks_while_another_thread_decodes(impl: SimpleNamespace) -> None:
    """An ack while another thread decodes a redelivered message is stored, and that message cannot be acked yet."""
    inside, fast_roll = threading.Event(), threading.Event()
    slow = False

    def decode(payload: bytes) -> bytes:
        if slow:
            inside.set()
            assert fast_roll.wait(60)
        return bytes(payload)

    bench = holding(impl, 4, decode=decode)
    bench.reader.take_many(3)
    bench.reader.nack(1)
    slow = True
    taken: list[object] = []
    thread = threading.Thread(target=lambda: taken.append(bench.reader.take()))
    thread.start()
    assert inside.wait(60)
    acking = threading.Thread(target=lambda: taken.append(bench.reader.ack(2)))
    acking.start()
    fast_roll.set()
    thread.join(60)
    acking.join(60)
    assert sorted(map(str, taken)) == sorted(map(str, [b"\2", True]))
    assert (bench.reader.outstanding, cursor_of(bench.cursor)) == (1, (18, 2))


# The base of the receivers


def core_on(impl: SimpleNamespace, bench: Bench) -> tuple[Any, list[object]]:
    """Return a receiver that acknowledges, and what took the slow path."""
    slow: list[object] = []

    class Receiver(impl.AckCore):
        def _ack_slowly(self, n: object) -> None:
            slow.append(n)

        def _drained(self) -> None:
            slow.append("drained")

    receiver = impl.own_receive(Receiver)()
    receiver._attach(bench.reader)
    return receiver, slow


def test_ack_is_done_at_once_if_it_can(impl: SimpleNamespace) -> None:
    """The fast ack acknowledges one or several messages, with a positional or named count."""
    bench = holding(impl)
    receiver, slow = core_on(impl, bench)
    bench.reader.take_many(6)
    assert receiver.ack() is None
    assert receiver.ack(2) is None
    assert receiver.ack(n=3) is None
    assert (bench.reader.outstanding, cursor_of(bench.cursor), slow) == (0, (54, 6), [])


def test_an_unusual_ack_takes_the_slow_path(impl: SimpleNamespace) -> None:
    """An ack of too many, of no number, or of a detached receiver takes the slow path, which raises."""
    bench = holding(impl)
    receiver, slow = core_on(impl, bench)
    bench.reader.take()
    odd = [2, 0, -1, 1 << 80, -(1 << 80), True, 1.0, "1", None]
    for count in odd:
        receiver.ack(count)
    assert (slow, bench.reader.outstanding) == (odd, 1)
    receiver._detach()
    receiver.ack()
    assert (slow, bench.reader.outstanding) == ([*odd, 1], 1)
    for arguments, names in (((1, 1), {}), ((), {"m": 1}), ((1,), {"n": 1})):
        with pytest.raises(TypeError):
            receiver.ack(*arguments, **names)


def test_the_last_ack_of_a_sealed_channel_is_reported(impl: SimpleNamespace) -> None:
    """The last ack of a sealed channel is reported, so that waiters for its end are woken."""
    bench = holding(impl, 2)
    receiver, slow = core_on(impl, bench)
    bench.reader.take_many(2)
    bench.control[STATE] = STATE_SEALED
    receiver.ack()
    assert slow == []
    receiver.ack()
    assert slow == ["drained"]


def test_the_outlook_is_where_the_cursor_moves_if_all_is_acked(impl: SimpleNamespace) -> None:
    """The outlook is the position after an ack of everything, and None if an older message is to be redelivered."""
    bench = holding(impl)
    reader = bench.reader
    assert reader.outlook() == (0, 0, 0)
    assert values(reader.take_many(4)) == [0, 1, 2, 3]
    assert reader.outlook() == (4, 36, 4)
    assert reader.nack(1)
    assert reader.outlook() == (3, 27, 3)
    assert reader.redeliver(9, 1, FAR, True)
    assert reader.outlook() is None
    assert (reader.acknowledge(0, 1), reader.acknowledge(18, 1)) == (True, True)
    assert reader.outlook() == (0, 9, 1)
    reader.release()
    assert reader.outlook() is None


def test_everything_before_an_offset_is_acked(impl: SimpleNamespace) -> None:
    """Everything before an offset is acked in any state; later messages to be redelivered still are."""
    bench = holding(impl)
    reader = bench.reader
    assert values(reader.take_many(6)) == [0, 1, 2, 3, 4, 5]
    assert (reader.acknowledge(9, 1), reader.redeliver(18, 1, 0, True), reader.redeliver(27, 1, FAR, True)) == (
        True,
    ) * 3
    assert reader.redeliver(45, 1, 0, True)
    reader.acknowledge_before(36)
    assert (reader.outstanding, reader.ready, reader.next_due, cursor_of(bench.cursor)) == (1, 1, 0, (36, 4))
    assert values(reader.take_many(9)) == [5, 6, 7, 8, 9]
    reader.acknowledge_before(FAR)
    assert (reader.outstanding, reader.ready, cursor_of(bench.cursor)) == (0, 0, (90, 10))


def test_everything_outstanding_is_returned_uncounted(impl: SimpleNamespace) -> None:
    """All outstanding messages are returned in order and uncounted, and earlier nacks keep their count."""
    reader = holding(impl).reader
    assert values(reader.take_many(3)) == [0, 1, 2]
    assert reader.nack(1)
    reader.redeliver_all()
    assert (reader.outstanding, reader.ready) == (0, 3)
    assert [reader.take_delivery()[3] for _ in range(3)] == [1, 1, 2]


def test_only_a_reader_that_tracks_acks_has_an_outlook(impl: SimpleNamespace) -> None:
    """A reader that does not track acks, or was released, has no outlook, and nothing to ack or return."""
    bench = Bench(impl, [b"a", b"b"])
    assert (bench.reader.take(), bench.reader.outlook()) == (b"a", None)
    bench.reader.acknowledge_before(FAR)
    bench.reader.redeliver_all()
    assert cursor_of(bench.cursor) == (9, 1)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        bench.reader.acknowledge_before(-1)
