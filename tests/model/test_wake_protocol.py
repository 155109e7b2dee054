"""The wake word: no wakeup is lost; and which one is when a rule is left out."""

from __future__ import annotations

import pytest

from tests.model.checker import ViolationError, explore
from tests.model.machine import Machine
from tests.model.wake_protocol import WakeProtocol

MIXED = ("P1", "P2", "thread", "loop")
THREADS = ("P1", "P2", "thread1", "thread2")
LOOPS = ("P1", "P2", "loop1", "loop2")


def check(protocol: WakeProtocol) -> int:
    """Check everything; the number of states."""
    machine = Machine(protocol)
    graph = explore(machine, limit=2_000_000)
    graph.require_reachable("every waiter receives everything", machine.is_final)
    return len(graph)


def violation(protocol: WakeProtocol) -> ViolationError:
    """What is found to be wrong."""
    with pytest.raises(ViolationError) as caught:
        check(protocol)
    return caught.value


@pytest.mark.parametrize("names", [MIXED, THREADS, LOOPS], ids=["mixed", "threads", "loops"])
def test_no_wakeup_is_lost(names: tuple[str, ...]) -> None:
    """Two publishers and two waiters that sleep without a bound: every waiter receives everything."""
    assert check(WakeProtocol(names=names)) > 10_000


@pytest.mark.parametrize("waiter", ["thread", "loop"])
def test_no_wakeup_is_lost_over_many_messages(waiter: str) -> None:
    """Two messages from each publisher reach one waiter without a lost wakeup."""
    assert check(WakeProtocol(names=("P1", "P2", waiter), messages=(2, 2))) > 1000


def test_threads_miss_no_second_message() -> None:
    """Two threads receive three messages without a lost wakeup."""
    assert check(WakeProtocol(names=THREADS, messages=(2, 1), one_move_to_publish=True)) > 10_000


@pytest.mark.soak
@pytest.mark.parametrize("names", [MIXED, LOOPS], ids=["mixed", "loops"])
def test_loops_miss_no_second_message(names: tuple[str, ...]) -> None:
    """Two event loops receive three messages without a lost wakeup."""
    assert check(WakeProtocol(names=names, messages=(2, 1), one_move_to_publish=True)) > 100_000


@pytest.mark.parametrize("names", [MIXED, THREADS, LOOPS], ids=["mixed", "threads", "loops"])
def test_bounded_sleeps_heal_the_kill_of_a_publisher(names: tuple[str, ...]) -> None:
    """If publishers are killed at any step, bounded sleeps bring every visible message to every waiter."""
    assert check(WakeProtocol(names=names, kills=True, bounded_sleeps=True, one_move_to_publish=True)) > 10_000


@pytest.mark.parametrize("waiter", ["thread", "loop"])
def test_bounded_sleeps_heal_a_kill_inside_the_writer_lock(waiter: str) -> None:
    """If publishers are killed at any step of the writer lock, bounded sleeps bring every message to every waiter."""
    protocol = WakeProtocol(names=("P1", "P2", waiter), messages=(2, 1), kills=True, bounded_sleeps=True)
    assert check(protocol) > 1000


@pytest.mark.parametrize("waiters", [("thread",), ("loop",), ("thread", "loop"), ("loop1", "loop2")])
def test_senders_that_wait_for_capacity_miss_no_consumer(waiters: tuple[str, ...]) -> None:
    """With the fence of the consumer no sender that waits for capacity misses a position."""
    check(WakeProtocol(names=("P1", *waiters), messages=(3,), publisher_locks=False))


@pytest.mark.parametrize("waiter", ["thread", "loop"])
def test_bounded_sleeps_heal_the_kill_of_a_consumer(waiter: str) -> None:
    """If a consumer is killed at any step, bounded sleeps wake the senders that wait for capacity."""
    names = ("P1", waiter)
    check(WakeProtocol(names=names, messages=(2,), publisher_locks=False, kills=True, bounded_sleeps=True))


@pytest.mark.parametrize("waiter", ["thread", "loop"])
def test_mutant_consumer_without_a_fence(waiter: str) -> None:
    """Without its fence a consumer may find no waiting sender, which reads the old position."""
    found = violation(WakeProtocol(names=("P1", waiter), messages=(1,), publisher_locks=False, publisher_fence=False))
    assert found.promise == "stuck"


def test_mutant_kills_with_unbounded_sleeps() -> None:
    """A publisher killed between its store and its wakeup leaves a waiter asleep."""
    found = violation(WakeProtocol(names=("P1", "thread"), messages=(1,), kills=True))
    assert found.promise == "stuck"
    assert "P1 is killed" in found.trace


def test_mutant_waiter_stores_its_flag_without_a_fence() -> None:
    """Without its fence a waiter may look again before its flag is visible; with it the same waiter is right."""
    with_fence = WakeProtocol(names=("P1", "thread"), messages=(2,), waiter_arms_by_swap=False)
    check(with_fence)
    without = WakeProtocol(names=("P1", "thread"), messages=(2,), waiter_arms_by_swap=False, waiter_fence=False)
    assert violation(without).trace[-2:] == ["thread makes wake = 1 visible", "thread sleeps"]


@pytest.mark.parametrize("waiter", ["thread", "loop"])
def test_mutant_waiter_without_a_fence_where_loads_overtake_swaps(waiter: str) -> None:
    """Where loads overtake swaps a waiter needs a fence, which on x86 is the compare-and-swap."""
    names = ("P1", waiter)
    found = violation(WakeProtocol(names=names, messages=(1,), waiter_fence=False, loads_overtake_swaps=True))
    assert f"{waiter} looks at write_offset too early" in found.trace
    check(WakeProtocol(names=names, messages=(2,), waiter_fence=False))


def test_mutant_publisher_without_a_fence() -> None:
    """If the publisher unlocks by a plain store, it may read the wake word before its offset is visible."""
    found = violation(WakeProtocol(names=("P1", "thread"), messages=(1,), publisher_unlocks_by_swap=False))
    assert found.trace.index("P1 looks at wake: no waiter") < found.trace.index("P1 makes write_offset = 1 visible")


def test_mutant_publisher_without_a_fence_where_loads_overtake_swaps() -> None:
    """Where loads overtake swaps a publisher needs a fence, which on x86 is the exchange that unlocks."""
    names = ("P1", "thread")
    found = violation(WakeProtocol(names=names, messages=(1,), publisher_fence=False, loads_overtake_swaps=True))
    assert "P1 looks at wake too early" in found.trace
    check(WakeProtocol(names=names, messages=(2,), publisher_fence=False))


def test_mutant_loop_that_finds_its_flag_set_where_loads_overtake_swaps() -> None:
    """Where loads overtake swaps a loop may read a set flag before its bit is visible, and is not woken."""
    protocol = WakeProtocol(names=LOOPS, loads_overtake_swaps=True, one_move_to_publish=True, loop_always_swaps=False)
    assert "loop2 finds wake armed, too early" in violation(protocol).trace


def test_a_loop_may_leave_a_flag_alone_that_is_set_on_x86() -> None:
    """On x86 a loop need not set a flag that is set, because setting its bit is a fence."""
    check(WakeProtocol(names=LOOPS, one_move_to_publish=True, loop_always_swaps=False))


def test_mutant_flag_without_a_generation() -> None:
    """A second thread sets the flag that was cleared for the first, which then falls asleep
    although data is available.
    """
    found = violation(WakeProtocol(names=("P1", "thread1", "thread2"), messages=(1,), has_generation=False))
    assert found.trace.index("P1 wakes all threads") < found.trace.index("thread2 arms wake")
    assert found.trace.index("thread2 arms wake") < found.trace.index("thread1 sleeps")


def test_mutant_loop_sets_the_wake_word_before_its_bit() -> None:
    """A publisher clears the flag and finds no armed loop; the next publisher finds no flag."""
    found = violation(WakeProtocol(names=("P1", "loop"), messages=(2,), armed_before_wake=False))
    assert found.trace.index("P1 takes armed") < found.trace.index("loop sets its bit in armed")
    assert found.trace[-1] == "P1 looks at wake: no waiter"


def test_mutant_publisher_takes_armed_before_clearing_the_wake_word() -> None:
    """A second loop arms in between, and its flag is cleared without a byte for it."""
    found = violation(WakeProtocol(names=("P1", "loop1", "loop2"), messages=(2,), wake_before_armed=False))
    assert found.trace.index("P1 takes armed") < found.trace.index("loop2 sets its bit in armed")
    assert found.trace.index("loop2 sets its bit in armed") < found.trace.index("P1 clears wake")
