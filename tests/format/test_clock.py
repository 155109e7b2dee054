"""The time slice: how long a thread may work before it must yield to its event loop.

The clock is read once in 32 units of work, and a thread that never began a slice is over it as soon as it reads. That
makes the units countable without waiting for any clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from filechannel._format import NOTHING, clock
from filechannel._format.layout import WRITE_TAIL
from tests.format.pages import FOREVER, new_control, new_segment, packed_records, set_tail, size_of

UNITS = 32
BYTES_PER_UNIT = 512
R = TypeVar("R")


def in_a_fresh_thread(work: Callable[[], R]) -> R:
    """Run work in a thread that never began a time slice, and return what it returns."""
    results: list[R] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def new_writer(impl: SimpleNamespace, control: bytearray | None = None):
    """Return a writer with plenty of space."""

    def overflow(payloads: list[bytes]) -> int:
        raise AssertionError("there is room")

    writer = impl.Writer(control or new_control(), 1, 1 << 20, overflow, lambda: None)
    writer.bind(new_segment(1 << 20), 0)
    writer.open_window(1 << 20, FOREVER)
    return writer


def new_reader(impl: SimpleNamespace, payloads: list[bytes]):
    """Return a reader with these messages before it."""
    control, content = new_control(), packed_records(payloads, 0)
    set_tail(control, WRITE_TAIL, len(content), len(payloads), 0)
    reader = impl.Reader(control, None, None, None, None, None)
    reader.bind(new_segment(len(content), content), 0)
    return reader


def steps_until_over(impl: SimpleNamespace, step: Callable[[], object], most: int = 100) -> int:
    """Count the steps after which the time slice is over."""
    for count in range(most):
        if impl.slice_is_over():
            return count
        step()
    raise AssertionError("the turn never ended")


def test_a_new_time_slice_is_not_over(impl: SimpleNamespace) -> None:
    """A new time slice is not over, whatever the last one was."""

    def work() -> bool:
        writer = new_writer(impl)
        steps_until_over(impl, lambda: writer.append(b""))
        assert impl.slice_is_over()
        impl.begin_slice()
        return impl.slice_is_over()

    assert in_a_fresh_thread(work) is False


def test_checking_costs_nothing(impl: SimpleNamespace) -> None:
    """Checking the time slice uses none of it."""

    def work() -> bool:
        return any(impl.slice_is_over() for _ in range(10 * UNITS))

    assert in_a_fresh_thread(work) is False


def test_each_append_is_a_unit(impl: SimpleNamespace) -> None:
    """Each append uses one unit of the time slice, and the clock is read after a number of units."""

    def work() -> int:
        writer = new_writer(impl)
        return steps_until_over(impl, lambda: writer.append(b""))

    assert in_a_fresh_thread(work) == UNITS


def test_each_taken_item_is_a_unit(impl: SimpleNamespace) -> None:
    """Each item that is taken uses one unit of the time slice."""

    def work() -> int:
        reader = new_reader(impl, [b""] * 100)
        return steps_until_over(impl, reader.take)

    assert in_a_fresh_thread(work) == UNITS


def test_taking_many_counts_each(impl: SimpleNamespace) -> None:
    """Taking many items uses a unit for each."""

    def work() -> int:
        reader = new_reader(impl, [b""] * 100)
        return steps_until_over(impl, lambda: reader.take_many(8))

    assert in_a_fresh_thread(work) == UNITS // 8


def test_a_batch_counts_by_its_bytes(impl: SimpleNamespace) -> None:
    """A batch uses one unit, and one for every 512 bytes."""

    def work() -> int:
        writer = new_writer(impl)
        payloads = [bytes(BYTES_PER_UNIT - 8)] * 3
        assert size_of(*payloads) == 3 * BYTES_PER_UNIT
        return steps_until_over(impl, lambda: writer.append_all(payloads))

    assert in_a_fresh_thread(work) == UNITS // 4


def test_large_payloads_count_as_several_units(impl: SimpleNamespace) -> None:
    """A payload of 16 KiB uses up the units until the clock is read."""

    def work() -> tuple[int, int]:
        writer, payload = new_writer(impl), bytes(UNITS * BYTES_PER_UNIT)
        return steps_until_over(impl, lambda: writer.append(payload)), writer.pending

    assert in_a_fresh_thread(work) == (1, UNITS * BYTES_PER_UNIT + 8)

    def read() -> int:
        reader = new_reader(impl, [bytes(UNITS * BYTES_PER_UNIT)] * 3)
        return steps_until_over(impl, reader.take)

    assert in_a_fresh_thread(read) == 1


def test_an_append_that_overflows_is_not_charged(impl: SimpleNamespace) -> None:
    """An append that overflows uses no unit, because it copies nothing."""

    def work() -> bool:
        writer = impl.Writer(new_control(), 1, 100, lambda payloads: 0, lambda: None)
        for _ in range(10 * UNITS):
            writer.append(b"x")
        return impl.slice_is_over()

    assert in_a_fresh_thread(work) is False


def test_a_time_slice_belongs_to_a_thread(impl: SimpleNamespace) -> None:
    """The time slice of one thread does not affect another."""

    def work() -> tuple[bool, bool, bool]:
        writer = new_writer(impl)
        steps_until_over(impl, lambda: writer.append(b""))
        return impl.slice_is_over(), in_a_fresh_thread(impl.slice_is_over), impl.slice_is_over()

    assert in_a_fresh_thread(work) == (True, False, True)


def test_a_time_slice_is_shared_by_everything_a_thread_works_on(impl: SimpleNamespace) -> None:
    """A task that serves many channels has one time slice, which belongs to its thread."""

    def work() -> int:
        writers = [new_writer(impl) for _ in range(4)]
        reader = new_reader(impl, [b""] * 100)
        steps = [lambda w=w: w.append(b"") for w in writers] + [reader.take] * 4
        return steps_until_over(impl, lambda: [step() for step in steps])

    assert in_a_fresh_thread(work) == UNITS // 8


def test_put_or_yield_yields_and_does_nothing(impl: SimpleNamespace) -> None:
    """`put_or_yield` returns None and sends nothing when the time slice is over, and sends in the next one."""

    def work() -> tuple[int, object, int, object]:
        control = new_control()
        writer = new_writer(impl, control)
        path = impl.SendPath(writer, None, None)
        put = 0
        while path.put_or_yield(b"") is not None:
            put += 1
        before = bytes(control)
        refused = path.put_or_yield(b"")
        assert bytes(control) == before
        impl.begin_slice()
        return put, refused, writer.pending, path.put_or_yield(b"")

    assert in_a_fresh_thread(work) == (UNITS, None, UNITS * 8, UNITS * 8)


def test_take_or_yield_yields_and_does_nothing(impl: SimpleNamespace) -> None:
    """`take_or_yield` returns NOTHING and takes nothing when the time slice is over, and takes in the next one."""

    def work() -> tuple[int, object, int, object]:
        reader = new_reader(impl, [b"m"] * 100)
        taken = 0
        while reader.take_or_yield() is not NOTHING:
            taken += 1
        refused, offset = reader.take_or_yield(), reader.offset
        impl.begin_slice()
        return taken, refused, offset, reader.take_or_yield()

    assert in_a_fresh_thread(work) == (UNITS, NOTHING, UNITS * 9, b"m")


def test_the_clock_is_read_once_in_so_many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pure implementation reads the time only when the units are used up, and continues if a millisecond has not
    passed.
    """
    now, looks = [0], [0]

    def monotonic_ns() -> int:
        looks[0] += 1
        return now[0]

    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic_ns=monotonic_ns))
    clock.begin_slice()
    assert looks[0] == 1
    for _ in range(UNITS - 1):
        clock.charge_slice(0)
        assert not clock.slice_is_over()
    assert looks[0] == 1
    clock.charge_slice(0)
    now[0] = 999_999
    assert not clock.slice_is_over()
    assert looks[0] == 2
    for _ in range(UNITS):
        clock.charge_slice(0)
    now[0] = 1_000_000
    assert clock.slice_is_over()
    assert clock.slice_is_over()
    clock.begin_slice()
    assert not clock.slice_is_over()
