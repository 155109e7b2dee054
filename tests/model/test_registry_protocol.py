"""The registry word: no registered consumer finds its messages reclaimed; and which does when a rule is left out."""

from __future__ import annotations

import pytest

from tests.model.checker import ViolationError, explore
from tests.model.machine import Machine
from tests.model.registry_protocol import RegistryProtocol


def check(protocol: RegistryProtocol) -> int:
    """Check everything; the number of states."""
    machine = Machine(protocol)
    graph = explore(machine, limit=2_000_000)
    graph.require_reachable("every consumer has a position", machine.is_final)
    return len(graph)


def test_no_registered_consumer_finds_its_messages_reclaimed() -> None:
    """Two maintaining processes, which may be killed or stopped at any step, and two consumers that register and seek
    back.
    """
    assert check(RegistryProtocol()) > 10_000


def test_one_consumer_may_seek_back_repeatedly() -> None:
    """One consumer that seeks back repeatedly never finds its messages reclaimed."""
    assert check(RegistryProtocol(names=("maintainer1", "maintainer2", "consumer1"), back=3)) > 1_000


@pytest.mark.parametrize(
    "rule",
    [
        *("counts", "stores_before_counting", "looks_after_noting", "decides_by_swap"),
        *("believes_decisions", "removes_what_is_decided"),
    ],
)
def test_every_rule_is_needed(rule: str) -> None:
    """Without any of its rules the protocol lets a registered consumer find its messages reclaimed."""
    with pytest.raises(ViolationError, match="finds its messages gone"):
        check(RegistryProtocol(**{rule: False}))  # type: ignore[arg-type]
