"""What children do whose channel is maintained meanwhile, and those who maintain it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from random import Random

from filechannel import ChannelOptions, blocking
from filechannel._errors import Busy
from filechannel._maintenance.retention import reclaim_after
from filechannel._maintenance.worker import WORKER
from filechannel._storage.registry import Registry
from tests.processes.crew import Link
from tests.processes.doors import hooked, stand_still

SMALL = ChannelOptions(segment_size=4096)


def payload(number: int) -> bytes:
    """What is sent."""
    return (b"%d " % number).ljust(300, b".")


def send_numbers(link: Link, path: Path) -> int:
    """Send numbered messages until told to end, not too far ahead of the slowest; return how many."""
    number = 0
    with blocking.open_channel(path, bytes) as channel, channel.sender() as tx:
        link.meet()
        while not link.is_called:
            for _ in range(20):
                tx.send(payload(number))
                number += 1
            while not link.is_called and max(each.lag_messages for each in channel.consumers()) > 500:
                time.sleep(0.001)
    return number


def receive_in_order(link: Link, path: Path, name: str) -> int:
    """Receive everything in order until told to end; return how many."""
    number = 0
    with blocking.open_channel(path, bytes) as channel, channel.receiver(name) as rx:
        link.meet()
        while not link.is_called:
            with suppress(TimeoutError):
                for message in rx.receive_many(100, timeout=0.05):
                    assert message == payload(number), f"{message[:10]!r} instead of {number}"
                    number += 1
    return number


def maintain_for_ever(link: Link, path: Path, idle: float) -> None:
    """Maintain the channel again and again, as fast as possible, until told to end."""
    with blocking.open_channel(path, bytes) as channel:
        store = channel._store
        link.tell("ready")
        while not link.is_called:
            with suppress(Busy), store.upkeep.turn(lambda: True):
                reclaim_after(store, idle)


def come_and_go(link: Link, path: Path, name: str, seed: int) -> tuple[int, int]:
    """Register at the oldest message, receive, go back, leave, again and again, until told to end.

    Whatever is there must be there until it was taken: no receive may find it gone. Returns how often it registered and
    went back.
    """
    random, came, went_back = Random(seed), 0, 0
    with blocking.open_channel(path, bytes) as channel:
        link.meet()
        while not link.is_called:
            rx = channel.receiver(name)
            came += 1
            seen: list[int] = []
            for _ in range(random.randrange(1, 40)):
                with suppress(TimeoutError):
                    record = rx.receive_record(timeout=0.05)
                    assert record.value == payload(record.sequence)
                    seen.append(record.offset)
            if seen:
                wanted = random.choice(seen)
                try:
                    rx.seek(wanted)  # type: ignore[arg-type]
                except ValueError:
                    pass  # it was gone before
                else:
                    went_back += 1
                    assert rx.receive_record(timeout=30).offset == wanted
                record = rx.receive_record(timeout=30)
                assert record.value == payload(record.sequence)
            rx.unsubscribe()
    return came, went_back


def stop_while_maintaining(link: Link, path: Path, where: str) -> None:
    """Maintain the channel once, and stand still in the middle of it; go on when woken."""
    door = hooked(_nothing_happens)

    def hook(call: str, _: str) -> None:
        if call == where:
            door.hook = _nothing_happens
            stand_still()

    with blocking.open_channel(path, bytes) as channel:
        store = channel._store
        WORKER.forget(store)  # or it may reclaim first
        link.meet()
        with store.upkeep.turn(lambda: True):
            if where in ("decided", "storing"):
                _stand_still_at(where)
            else:
                door.hook = hook
            reclaim_after(store, 0.0)


def _stand_still_at(where: str) -> None:
    """Between the decision and its being written down; or directly before the decision."""
    if where == "decided":
        carry_out = Registry.carry_out

        def slowly(self: Registry) -> None:
            if self.is_decided:
                # Not with the writer word, which others need: whoever is stopped there holds up senders, as any writer.
                Registry.carry_out = carry_out  # type: ignore[method-assign]
                stand_still()
            carry_out(self)

        Registry.carry_out = slowly  # type: ignore[method-assign]
    else:
        note = Registry.note

        def noted(self: Registry) -> int:
            seen = note(self)
            stand_still()
            return seen

        Registry.note = noted  # type: ignore[method-assign]


def _nothing_happens(_call: str, _name: str) -> None:
    pass
