"""Readers that share: what one has no other gets, until it is acked, returned or lost."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filechannel._format import NOTHING
from filechannel._format.layout import (
    CAPACITY_WAKE,
    CAPACITY_WATCHED,
    CONTROL_RECORD,
    ENTRY,
    ENTRY_ATTEMPT_SHIFT,
    ENTRY_ATTEMPTS,
    ENTRY_READY,
    ENTRY_SKIPPED,
    ENTRY_STATE,
    GROUP_DUE,
    GROUP_ENTRIES,
    GROUP_ENTRY_SIZE,
    GROUP_HEAD,
    GROUP_LOCK,
    GROUP_NEXT,
    GROUP_NEXT_SEQUENCE,
    GROUP_READY,
    GROUP_RING,
    GROUP_SIZE,
    GROUP_TAIL,
    STATE,
    STATE_SEALED,
    WAKE_LOOPS,
    WRITE_TAIL,
)
from tests.format.pages import cursor_of, packed_record, set_tail
from tests.format.read.test_reader import Bench, DamagedError, RefusedError, StopNow

NEVER = (1 << 64) - 1
LEASE = 3600 * 10**9
OWNER = 3 << 22 | 5 << 1
SIZE = 9  # of a record with a payload of one byte


def word(group: bytearray, position: int) -> int:
    """Return a double word."""
    return int.from_bytes(group[position : position + 8], "little")


def put(group: bytearray, position: int, value: int) -> None:
    """Store a double word."""
    group[position : position + 8] = value.to_bytes(8, "little")


def entry(group: bytearray, number: int) -> tuple[int, int, int, int, int]:
    """Return the fields of an entry."""
    return ENTRY.unpack_from(group, GROUP_RING + number % GROUP_ENTRIES * GROUP_ENTRY_SIZE)


class Members:
    """Some readers that share the same records."""

    def __init__(
        self, impl: SimpleNamespace, total: int = 10, count: int = 2, lease: int = LEASE, **options: Any
    ) -> None:
        self.group = bytearray(GROUP_SIZE)
        put(self.group, GROUP_DUE, NEVER)
        self.tended = 0
        self.answer: object = None
        payloads = options.pop("payloads", [bytes([n]) for n in range(total)])
        self.benches = [Bench(impl, payloads, **options) for _ in range(count)]
        for number, bench in enumerate(self.benches):
            bench.reader.share(self.group, OWNER + (number << 22), lease, self.tend)
        self.readers = [bench.reader for bench in self.benches]

    def tend(self, reader: object) -> object:
        """Note that a check was requested."""
        assert reader in self.readers
        self.tended += 1
        put(self.group, GROUP_DUE, NEVER)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_each_gets_what_no_other_has(impl: SimpleNamespace) -> None:
    """Each member gets the messages that no other has, in order, and the position follows the oldest unacked one."""
    members = Members(impl)
    a, b = members.readers
    impl.begin_slice()
    assert (a.take(), b.take(), a.take_or_yield(), b.take_record()) == (b"\0", b"\1", b"\2", (b"\3", 27, 3))
    assert a.take_many(2) == [b"\4", b"\5"]
    item, offset, sequence, attempt, token = b.take_delivery()
    assert (item, offset, sequence, attempt) == (b"\6", 54, 6, 1)
    assert token == entry(members.group, 6)[0]
    assert (a.outstanding, b.outstanding, a.offset, b.sequence) == (4, 3, 63, 7)
    assert a.ack(2)
    assert cursor_of(members.group) == (SIZE, 1)
    assert b.ack(1)
    assert cursor_of(members.group) == (27, 3)
    assert b.acknowledge(54, token)
    assert not b.acknowledge(54, token)
    assert b.ack(1)
    assert a.ack(2)
    assert not a.ack(1)
    assert cursor_of(members.group) == (63, 7)
    assert (word(members.group, GROUP_HEAD), word(members.group, GROUP_TAIL), members.tended) == (7, 7, 0)


def test_sharing_begins_once(impl: SimpleNamespace) -> None:
    """A reader begins to share once, not while it tracks acks, and with a file that is large enough."""
    members = Members(impl)
    for call in (lambda: members.readers[0].share(members.group, 2, 5, None), members.readers[0].track_acks):
        with pytest.raises(ValueError, match="already set up"):
            call()
    bench = Bench(impl, [b"a"])
    with pytest.raises(ValueError, match="group is too short"):
        bench.reader.share(bytearray(GROUP_SIZE - 1), 2, 5, None)
    bench.reader.track_acks()
    with pytest.raises(ValueError, match="already set up"):
        bench.reader.share(members.group, 2, 5, None)


def test_a_reader_that_does_not_share(impl: SimpleNamespace) -> None:
    """A reader that does not share has no group state."""
    reader = Bench(impl, [b"a"]).reader
    assert (reader.entry_number(0, 1), reader.refused(0), reader.take_lost(), reader.must_wake()) == (
        -1,
        None,
        [],
        False,
    )
    assert (reader.full, reader.release()) == (False, False)


def test_returned_messages_are_delivered_first(impl: SimpleNamespace) -> None:
    """Returned messages are delivered to any member before new ones, oldest first, counted or not."""
    members = Members(impl)
    a, b = members.readers
    taken = [a.take_delivery() for _ in range(4)]
    assert a.redeliver(taken[2][1], taken[2][4], 0, False)
    assert a.redeliver(taken[1][1], taken[1][4], 0, True)
    assert (b.ready, b.ready_positions(5), b.ready_positions(1), b.may_have_more) == (
        2,
        [(9, 1), (18, 2)],
        [(9, 1)],
        True,
    )
    assert [b.take_delivery()[2:4] for _ in range(3)] == [(1, 2), (2, 1), (4, 1)]
    assert a.nack(1)
    assert not a.nack(2)
    assert a.nack(None)
    assert [b.take_delivery()[2:4] for _ in range(2)] == [(0, 2), (3, 2)]
    assert (a.outstanding, b.outstanding) == (0, 5)


def test_attempts_are_counted_up_to_a_limit(impl: SimpleNamespace) -> None:
    """Attempts are counted up to the largest number that an entry can store."""
    members = Members(impl, 1, 1)
    reader = members.readers[0]
    for number in range(ENTRY_ATTEMPTS + 5):
        assert reader.take_delivery()[3] == min(number + 1, ENTRY_ATTEMPTS)
        assert reader.nack(1)


def test_what_is_delayed_says_when(impl: SimpleNamespace) -> None:
    """A delayed message is delivered to no member before its time, and a member checks then or within a second."""
    members = Members(impl, 1)
    a, b = members.readers
    _, offset, _, _, token = a.take_delivery()
    assert 0 < a.next_due <= time.monotonic_ns() + 10**9
    put(members.group, GROUP_DUE, NEVER)
    due = time.monotonic_ns() + LEASE
    assert a.redeliver(offset, token, due, True)
    assert word(members.group, GROUP_DUE) == due
    assert 0 < b.next_due <= time.monotonic_ns()
    assert (b.ready, b.take()) == (0, NOTHING)
    assert entry(members.group, 0)[4] == due


def test_a_delay_that_comes_too_late_changes_nothing(impl: SimpleNamespace) -> None:
    """A delay whose lease belongs to another member already changes nothing."""
    members = Members(impl, 1)
    a, b = members.readers
    _, offset, _, _, token = a.take_delivery()
    put(members.group, GROUP_RING, token & ~ENTRY_STATE | ENTRY_READY)
    put(members.group, GROUP_READY, 1)
    assert b.take_delivery()[2] == 0
    before = entry(members.group, 0)
    assert not a.redeliver(offset, token, before[4] + LEASE, True)
    assert a.take_lost() == [(offset, token)]
    assert entry(members.group, 0) == before


def test_only_its_member_acks_a_message(impl: SimpleNamespace) -> None:
    """A former member of a redelivered message cannot ack it, and gets one error."""
    members = Members(impl)
    a, b = members.readers
    _, offset, _, _, token = a.take_delivery()
    a.take_delivery()
    assert (a.entry_number(offset, token), b.entry_number(offset, token), a.entry_number(offset + 1, token)) == (
        0,
        -1,
        -1,
    )
    assert not b.acknowledge(offset, token)
    ready = token & ~ENTRY_STATE | ENTRY_READY
    put(members.group, GROUP_RING, ready + (1 << ENTRY_ATTEMPT_SHIFT))
    put(members.group, GROUP_READY, 1)
    assert b.take_delivery()[2:4] == (0, 2)
    assert (a.outstanding, b.outstanding) == (1, 1)
    assert a.ack(1)
    assert a.must_wake()
    assert (a.take_lost(), a.take_lost(), a.must_wake()) == ([(offset, token)], [], False)
    assert not a.acknowledge(offset, token)
    assert not a.redeliver(offset, token, 0, True)
    assert (a.outstanding, cursor_of_or_none(members.group)) == (1, None)


def cursor_of_or_none(group: bytearray) -> tuple[int, int] | None:
    """Return the position, if one was stored yet."""
    return cursor_of(group) if word(group, 64) else None


def test_an_undecodable_message_is_delivered_separately(impl: SimpleNamespace) -> None:
    """An undecodable message is delivered and acked separately, and ends a batch before it."""

    def decode(payload: Any) -> bytes:
        if bytes(payload) == b"\1":
            raise LookupError
        if bytes(payload) == b"\3":
            raise StopNow
        return bytes(payload)

    members = Members(impl, 5, decode=decode)
    a, b = members.readers
    assert a.take_many(4) == [b"\0"]
    assert a.ready == 1
    with pytest.raises(RefusedError):
        a.take_many(4)
    sequence, attempt, token = a.refused(SIZE)
    assert (sequence, attempt, a.outstanding, a.entry_number(SIZE, token)) == (1, 1, 1, 1)
    assert (b.refused(SIZE), a.refused(0)) == (None, None)
    assert a.take() == b"\2"
    with pytest.raises(StopNow):
        a.take()
    with pytest.raises(StopNow):
        a.take_many(5)
    assert (a.outstanding, a.ready) == (2, 1)
    assert a.nack(None)
    assert a.acknowledge(SIZE, token)
    assert a.refused(SIZE) is None
    assert [b.take_delivery()[2:4] for _ in range(2)] == [(0, 2), (2, 2)]


def test_a_full_ring(impl: SimpleNamespace) -> None:
    """With a full ring no new message is delivered before an ack, which reports that waiters have to be woken."""
    members = Members(impl, payloads=[b"x"] * (GROUP_ENTRIES + 2))
    a, b = members.readers
    assert len(a.take_many(GROUP_ENTRIES + 2)) == GROUP_ENTRIES
    assert (a.full, b.full, b.take(), b.take_many(3)) == (True, True, NOTHING, [])
    assert not a.must_wake()
    assert a.ack(1)
    assert (a.must_wake(), a.must_wake(), b.full) == (True, False, False)
    assert b.take_delivery()[2] == GROUP_ENTRIES
    assert a.nack(None)
    assert (b.take_delivery()[2], b.outstanding) == (1, 2)


WRONG: dict[int, tuple[int, ...]] = {
    GROUP_HEAD: (3, 1 << 31, (1 << 32) - 1, 1 << 63, NEVER),
    GROUP_TAIL: (0, 1, 3, GROUP_ENTRIES + 1, 1 << 31, 1 << 63, NEVER),
    GROUP_NEXT: (0, 1, 2 * SIZE - 1, 2 * SIZE + 1, 1 << 32, 1 << 63, NEVER),
    GROUP_NEXT_SEQUENCE: (0, 1, 3, 1 << 63, NEVER),
}


@pytest.mark.parametrize(("position", "value"), [(at, value) for at, values in WRONG.items() for value in values])
def test_words_that_contradict_each_other_are_left_to_python(impl: SimpleNamespace, position: int, value: int) -> None:
    """Words of a ring that contradict each other are reported to Python; nothing is delivered or stored, and no loop
    hangs.
    """
    members = Members(impl)
    a, b = members.readers
    assert a.take_many(2) == [b"\0", b"\1"]
    put(members.group, position, value)
    before = bytes(members.group)
    members.answer = StopNow()
    for reader in (a, b):
        assert not reader.full
        assert reader.ready_positions(5) == []
    for take in (b.take, b.take_record, b.take_delivery, lambda: b.take_many(3)):
        with pytest.raises(StopNow):
            take()
    assert members.tended == 4
    put(members.group, GROUP_DUE, word(bytearray(before), GROUP_DUE))
    assert members.group == before
    assert a.ack(2)
    is_noticed = word(members.group, GROUP_HEAD) == 0 and word(members.group, GROUP_TAIL) > 0
    assert (a.must_wake(), a.must_wake()) == (is_noticed, False)
    assert cursor_of_or_none(members.group) is None


def test_words_that_python_finds_in_order_do_not_loop(impl: SimpleNamespace) -> None:
    """If Python finds a contradictory ring in order repeatedly, the call raises instead of looping."""
    members = Members(impl)
    put(members.group, GROUP_TAIL, NEVER)
    with pytest.raises(ValueError, match="contradict"):
        members.readers[0].take()


def test_control_records_are_skipped(impl: SimpleNamespace) -> None:
    """Control records are delivered to no member, also at the end."""
    content = packed_record(b"c", 0, CONTROL_RECORD) + packed_record(b"a", 9) + packed_record(b"c", 18, CONTROL_RECORD)
    members = Members(impl, content=content)
    a, b = members.readers
    assert a.take_record() == (b"a", 9, 0)
    assert (b.take(), a.take(), b.offset, a.offset) == (NOTHING, NOTHING, 27, 27)
    assert a.ack(1)
    assert cursor_of(members.group) == (18, 1)


def test_the_end_is_reported(impl: SimpleNamespace) -> None:
    """The end of a sealed channel is reported when every message is acknowledged."""
    members = Members(impl, 2)
    a, b = members.readers
    for bench in members.benches:
        bench.control[STATE] = STATE_SEALED
        set_tail(bench.control, WRITE_TAIL, 2 * SIZE, 2, 0)
    a.take()
    assert a.ack(1)
    assert (a.drained, a.must_wake()) == (False, False)
    a.take()
    assert b.take() is NOTHING
    assert not b.drained
    assert a.ack(1)
    assert (a.drained, b.drained, a.must_wake()) == (True, True, True)


def test_damage_belongs_to_no_member(impl: SimpleNamespace) -> None:
    """Each member that reads a damaged record gets the error, and once it is skipped all members skip it."""
    content = bytearray(packed_record(b"a", 0) + packed_record(b"b", 9) + packed_record(b"c", 18))
    content[17] ^= 1
    members = Members(impl, content=bytes(content))
    a, b = members.readers
    assert a.take() == b"a"
    for reader in (a, b):
        with pytest.raises(DamagedError):
            reader.take()
    assert word(members.group, GROUP_TAIL) == 1
    members.benches[1].on_damage = lambda reader: reader.move(18, 2)
    assert b.take_record() == (b"c", 18, 2)
    assert a.take() is NOTHING


def test_a_message_to_be_redelivered_that_was_reclaimed_is_acked(impl: SimpleNamespace) -> None:
    """A reclaimed message that is to be redelivered is acked, and the reader moves on."""
    members = Members(impl, 4)
    a, b = members.readers
    assert a.take_many(2) == [b"\0", b"\1"]
    assert a.nack(None)
    b.unbind()

    def advance(reader: Any) -> None:
        if reader.offset < 2 * SIZE:
            reader.move(2 * SIZE, 2)
        reader.bind(members.benches[1].segment, 0)

    members.benches[1].on_advance = advance
    assert b.take_record() == (b"\1", SIZE, 1)  # it had the segment when it came to this one
    assert cursor_of(members.group) == (SIZE, 1)


def test_a_lock_that_is_taken_is_left_to_python(impl: SimpleNamespace) -> None:
    """A held group lock is left to Python, which waits and tries again, or reports that nothing is available."""
    members = Members(impl, 3)
    a, _ = members.readers
    members.group[GROUP_LOCK] = 2
    members.answer = False
    assert (a.take(), a.take_many(2), members.tended) == (NOTHING, [], 2)

    def free(_: object) -> None:
        members.group[GROUP_LOCK] = 0

    other = Bench(impl, [b"\0"])
    other.reader.share(members.group, OWNER, LEASE, free)
    assert other.reader.take() == b"\0"
    members.group[GROUP_LOCK] = 2
    assert other.reader.ack(1)  # the lock holder moves the position
    assert cursor_of_or_none(members.group) is None
    members.group[GROUP_LOCK] = 0
    assert not impl.advance_position(members.group, OWNER)
    assert cursor_of(members.group) == (SIZE, 1)


def test_what_is_due_is_left_to_python(impl: SimpleNamespace) -> None:
    """Expired leases and delays are left to Python before anything is delivered."""
    members = Members(impl, 3)
    put(members.group, GROUP_DUE, 1)
    assert members.readers[0].take() == b"\0"
    assert members.tended == 1


def test_an_entry_before_the_position(impl: SimpleNamespace) -> None:
    """An entry before the position is acked on the way, as after a rebuild."""
    members = Members(impl, 5)
    a, b = members.readers
    a.take()
    ENTRY.pack_into(members.group, GROUP_RING + GROUP_ENTRY_SIZE, ENTRY_SKIPPED, 9, 27, 2, 0)
    put(members.group, GROUP_NEXT, 27)
    put(members.group, GROUP_NEXT_SEQUENCE, 3)
    put(members.group, GROUP_TAIL, 2)
    assert b.take_record() == (b"\3", 27, 3)
    assert a.ack(1)
    assert cursor_of(members.group) == (27, 3)
    assert entry(members.group, 1)[0] & ENTRY_STATE == 0


def test_releasing_gives_everything_back(impl: SimpleNamespace) -> None:
    """Releasing a member returns all its messages once, without counting attempts, also undecodable ones."""

    def decode(payload: Any) -> bytes:
        if bytes(payload) == b"\1":
            raise LookupError
        return bytes(payload)

    members = Members(impl, 4, decode=decode)
    a, b = members.readers
    a.take()
    with pytest.raises(RefusedError):
        a.take()
    assert (a.release(), a.release()) == (True, False)
    assert (a.take(), a.ack(1), a.nack(None), b.ready) == (NOTHING, False, False, 2)
    assert b.take_delivery()[2:4] == (0, 1)


def test_forgetting(impl: SimpleNamespace) -> None:
    """After another process emptied the ring, a member forgets its deliveries."""
    members = Members(impl, 4)
    a, _ = members.readers
    _, offset, _, _, token = a.take_delivery()
    a.forget()
    assert (a.outstanding, a.acknowledge(offset, token), a.take_lost()) == (0, False, [])


Step = tuple[Any, ...]
steps: st.SearchStrategy[list[tuple[int, Step]]] = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.one_of(
            st.sampled_from(["take", "take_record", "take_delivery", "outstanding", "ready", "offset"]).map(
                lambda n: (n,)
            ),
            st.tuples(st.sampled_from(["take_many", "ack", "ready_positions"]), st.integers(0, 5)),
            st.tuples(st.just("nack"), st.one_of(st.none(), st.integers(0, 5))),
            st.tuples(st.just("acknowledge"), st.integers(0, 9)),
            st.tuples(st.just("redeliver"), st.integers(0, 9), st.booleans()),
            st.tuples(st.just("lose"), st.integers(0, 9)),
            st.tuples(st.sampled_from(["take_lost", "must_wake", "release"])),
        ),
    ),
    max_size=40,
)


class Run:
    """Does steps with one implementation."""

    def __init__(self, impl: SimpleNamespace) -> None:
        self.members = Members(impl, 20, 3)
        self.given: list[tuple[int, int]] = []

    def do(self, member: int, step: Step) -> object:
        """Do one step and return what came of it."""
        reader, group = self.members.readers[member], self.members.group
        name, *arguments = step
        if name in ("outstanding", "ready", "offset"):
            return getattr(reader, name)
        if name in ("acknowledge", "redeliver"):
            offset, token = self.given[arguments[0] % len(self.given)] if self.given else (0, 1)
            return (
                reader.acknowledge(offset, token)
                if name == "acknowledge"
                else reader.redeliver(offset, token, 0, arguments[1])
            )
        if name == "lose":
            number = word(group, GROUP_HEAD) + arguments[0]
            if number < word(group, GROUP_TAIL) and entry(group, number)[0] & ENTRY_STATE == 1:
                place = GROUP_RING + number % GROUP_ENTRIES * GROUP_ENTRY_SIZE
                put(group, place, entry(group, number)[0] + 1)
                put(group, GROUP_READY, word(group, GROUP_READY) + 1)
            return None
        result = getattr(reader, name)(*arguments)
        if name == "take_delivery" and result is not NOTHING:
            self.given.append((result[1], result[4]))
        return result

    def state(self) -> object:
        """Return everything in the group that is not a time."""
        group = self.members.group
        words = [word(group, at) for at in (GROUP_HEAD, GROUP_TAIL, GROUP_NEXT, GROUP_NEXT_SEQUENCE, GROUP_READY)]
        return words, [entry(group, number)[:4] for number in range(25)], cursor_of_or_none(group), group[GROUP_LOCK]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps)
def test_both_implementations_do_the_same(
    both: tuple[SimpleNamespace, SimpleNamespace], steps: list[tuple[int, Step]]
) -> None:
    """For random calls of three members both implementations return the same answers and store the same ring."""
    pure, native = Run(both[0]), Run(both[1])
    for member, step in steps:
        assert pure.do(member, step) == native.do(member, step)
        assert pure.state() == native.state()


def test_senders_that_wait_for_capacity_are_woken_when_the_position_moves(impl: SimpleNamespace) -> None:
    """An ack that moves the position wakes senders that wait for capacity; deliveries and acks behind others do not."""
    members = Members(impl)
    reader, bench = members.readers[0], members.benches[0]
    notified: list[tuple[int, int]] = []
    reader.notify_capacity(lambda: notified.append(cursor_of(members.group)))
    bench.control[CAPACITY_WATCHED] = 1
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS
    deliveries = [reader.take_delivery() for _ in range(6)]
    assert reader.acknowledge(deliveries[1][1], deliveries[1][4])
    assert reader.redeliver(deliveries[5][1], deliveries[5][4], 0, True)
    assert notified == []
    assert reader.acknowledge(deliveries[0][1], deliveries[0][4])
    assert notified == [(2 * SIZE, 2)]
    bench.control[CAPACITY_WAKE] |= WAKE_LOOPS
    assert reader.ack(1)
    assert notified == [(2 * SIZE, 2), (3 * SIZE, 3)]
    assert not reader.must_wake()
