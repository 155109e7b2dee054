"""The writer lock: one holder, nothing lost, no endless wait; and what breaks when a rule is left out."""

from __future__ import annotations

import pytest

from tests.model.checker import ViolationError, explore
from tests.model.lock_protocol import LockProtocol
from tests.model.lock_state import CONTINUED
from tests.model.machine import Machine

THREE = ("A", "B", "C")
STOPPED_FOR_EVER = LockProtocol().faults | {CONTINUED}


def check(protocol: LockProtocol) -> int:
    """Check everything; the number of states."""
    machine = Machine(protocol)
    graph = explore(machine)
    for who, name in enumerate(protocol.names):
        graph.require_reachable(f"{name} can get the word", machine.holds(protocol.served(who)))
    return len(graph)


def violation(protocol: LockProtocol) -> ViolationError:
    """What is found to be wrong."""
    with pytest.raises(ViolationError) as caught:
        check(protocol)
    return caught.value


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(LockProtocol(messages=2, kills=1), id="a writer dies"),
        pytest.param(LockProtocol(kills=2, generations=2), id="two die and come back"),
        pytest.param(LockProtocol(kills=1, generations=2, comes_back_to_send=False), id="comes back as a reader"),
        pytest.param(
            LockProtocol(names=THREE, kills=2, victims="AB", store_buffers=False), id="the cleaner dies as well"
        ),
        pytest.param(
            LockProtocol(names=THREE, kills=1, victims="A", generations=2, store_buffers=False),
            id="two want to take over while the dead one comes back",
        ),
    ],
)
def test_kills_lose_nothing_and_block_no_process(protocol: LockProtocol) -> None:
    """After kills at any step there is one lock holder, records are whole, and every live process gets the lock."""
    assert check(protocol) > 1000


def test_no_process_is_left_asleep() -> None:
    """Without kills wakeups alone suffice, and no process sleeps for ever without a bound."""
    check(LockProtocol(names=THREE, messages=2, bounded_sleeps=False, store_buffers=False))


def test_a_stopped_writer_is_not_robbed() -> None:
    """A stopped lock holder keeps the lock until it resumes or dies, and then the others get it."""
    check(LockProtocol(kills=1, generations=2, stops=True))


def test_a_process_stopped_for_ever_blocks_others_only_as_owner() -> None:
    """A process that is stopped for ever blocks others only while it holds the lock."""
    check(LockProtocol(kills=1, generations=2, stops=True, faults=STOPPED_FOR_EVER))


def test_mutant_byte_locked_before_the_generation_is_announced() -> None:
    """If the byte is locked before the generation is announced, a stopped process makes a dead holder look alive."""
    protocol = LockProtocol(kills=1, generations=2, stops=True, faults=STOPPED_FOR_EVER, generation_before_byte=False)
    found = violation(protocol)
    assert found.trace == [
        "B locks the word",
        "B is killed",
        "B comes back and locks the byte of its slot",
        "B is stopped",
    ]


def test_mutant_generation_not_probed() -> None:
    """Without probing the generation, a reused slot looks like its dead holder, and no process takes over."""
    found = violation(LockProtocol(kills=1, generations=2, comes_back_to_send=False, probes_generation=False))
    assert found.promise == "A can get the word"
    assert found.trace[-3:] == [
        "B is killed",
        "B comes back and announces a new generation",
        "B locks the byte of its slot",
    ]


def test_mutant_generation_not_in_the_word() -> None:
    """Without the generation in the word a live holder is robbed, because the value may belong to it now."""
    found = violation(LockProtocol(messages=2, kills=1, generations=2, generation_in_word=False))
    assert found.promise == "two live owners"
    assert found.trace[-2:] == ["A locks the word", "B takes over"]


def test_mutant_takeover_by_plain_store() -> None:
    """With a plain store two processes that find the holder dead both take over."""
    found = violation(LockProtocol(names=THREE, kills=1, store_buffers=False, takes_over_by_swap=False))
    assert found.promise == "two live owners"
    assert sum(step.endswith("takes over") for step in found.trace) == 2


def test_mutant_unlock_does_not_look_at_contended() -> None:
    """If unlocking ignores the contended bit, a process that sleeps without a bound is never woken."""
    found = violation(LockProtocol(looks_at_contended=False, bounded_sleeps=False))
    assert found.promise == "stuck"
    assert found.trace[-2:] == ["B sleeps", "A unlocks"]


def test_mutant_contended_forgotten_after_a_sleep() -> None:
    """If a woken process acquires the lock without the contended bit, the other sleepers sleep for ever."""
    protocol = LockProtocol(names=THREE, messages=2, bounded_sleeps=False, store_buffers=False, stays_contended=False)
    assert violation(protocol).promise == "stuck"


def test_mutant_no_clean_up() -> None:
    """Without cleaning up, the next record is written over what the dead writer left."""
    assert violation(LockProtocol(kills=1, cleans_up=False)).promise == "a record is copied over an unpublished one"


def test_mutant_reservation_forgotten_before_wiping() -> None:
    """If the reserved end is reset before wiping and the cleaner dies, the next one does not wipe."""
    protocol = LockProtocol(names=THREE, kills=2, store_buffers=False, wipes_before_forgetting=False)
    assert violation(protocol).promise == "a record is copied over an unpublished one"


def test_mutant_byte_unlocked_before_the_last_stores_land() -> None:
    """If stores may land after the byte is unlocked, the protocol fails: it relies on the kernel there."""
    found = violation(LockProtocol(kills=1, stores_land_before_byte_is_free=False))
    assert found.promise == "a record is copied over an unpublished one"


def test_mutant_kills_with_unbounded_sleeps() -> None:
    """With kills and sleeps without a bound, sleepers on the lock of a dead holder are never woken."""
    assert violation(LockProtocol(kills=1, bounded_sleeps=False)).trace[-1] == "B sleeps"
