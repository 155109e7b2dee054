"""What children do whose channel is maintained at the same time, and those that maintain it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from random import Random

from filechannel import ChannelOptions, blocking
from filechannel._errors import Busy
from filechannel._maintenance.background.maintenance_thread import MAINTENANCE
from filechannel._maintenance.background.plan_reclaim import reclaim_after
from filechannel._storage.consumers.low_watermark import LowWatermark
from tests.processes.hooked_files import hooked, stop_here
from tests.processes.workers import Link

SMALL = ChannelOptions(segment_size=4096)


def payload(number: int) -> bytes:
    """What is sent."""
    return (b"%d " % number).ljust(300, b".")


def send_numbers(link: Link, path: Path) -> int:
    """Send numbered messages until the test ends it, not too far ahead of the slowest consumer; return how many."""
    number = 0
    with blocking.open_channel(path, bytes) as channel, channel.sender() as tx:
        link.meet()
        while not link.has_message:
            for _ in range(20):
                tx.send(payload(number))
                number += 1
            while not link.has_message and max(each.lag_messages for each in channel.consumers()) > 500:
                time.sleep(0.001)
    return number


def receive_in_order(link: Link, path: Path, name: str) -> int:
    """Receive everything in order until the test ends it; return how many."""
    number = 0
    with blocking.open_channel(path, bytes) as channel, channel.receiver(name) as rx:
        link.meet()
        while not link.has_message:
            with suppress(TimeoutError):
                for message in rx.receive_many(100, timeout=0.05):
                    assert message == payload(number), f"{message[:10]!r} instead of {number}"
                    number += 1
    return number


def maintain_for_ever(link: Link, path: Path, idle: float) -> None:
    """Maintain the channel as fast as possible, until the test ends it."""
    with blocking.open_channel(path, bytes) as channel:
        store = channel._store
        link.send("ready")
        while not link.has_message:
            with suppress(Busy), store.maintenance_lock.held(lambda: True):
                reclaim_after(store, idle)


def register_and_leave(link: Link, path: Path, name: str, seed: int) -> tuple[int, int]:
    """Register at the oldest message, receive, seek back, leave, repeatedly, until the test ends it.

    A stored message must stay until the consumer has received it: no receive may find it reclaimed. Returns how often
    the consumer registered and sought back.
    """
    random, came, went_back = Random(seed), 0, 0
    with blocking.open_channel(path, bytes) as channel:
        link.meet()
        while not link.has_message:
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
                    pass  # it was reclaimed before
                else:
                    went_back += 1
                    assert rx.receive_record(timeout=30).offset == wanted
                record = rx.receive_record(timeout=30)
                assert record.value == payload(record.sequence)
            rx.unsubscribe()
    return came, went_back


def stop_while_maintaining(link: Link, path: Path, where: str) -> None:
    """Maintain the channel once, and stop in the middle of it; continue after SIGCONT."""
    files = hooked(_nothing_happens)

    def hook(call: str, _: str) -> None:
        if call == where:
            files.hook = _nothing_happens
            stop_here()

    with blocking.open_channel(path, bytes) as channel:
        store = channel._store
        MAINTENANCE.forget(store)  # or it may reclaim first
        link.meet()
        with store.maintenance_lock.held(lambda: True):
            if where in ("decided", "storing"):
                _stop_at(where)
            else:
                files.hook = hook
            reclaim_after(store, 0.0)


def _stop_at(where: str) -> None:
    """Stop between the decision and its being stored; or directly before the decision."""
    if where == "decided":
        carry_out = LowWatermark.carry_out

        def slowly(self: LowWatermark) -> None:
            if self.is_decided:
                # Not with the writer lock, which others need: a process stopped there delays senders, like any writer.
                LowWatermark.carry_out = carry_out  # type: ignore[method-assign]
                stop_here()
            carry_out(self)

        LowWatermark.carry_out = slowly  # type: ignore[method-assign]
    else:
        note = LowWatermark.note

        def noted(self: LowWatermark) -> int:
            seen = note(self)
            stop_here()
            return seen

        LowWatermark.note = noted  # type: ignore[method-assign]


def _nothing_happens(_call: str, _name: str) -> None:
    pass
