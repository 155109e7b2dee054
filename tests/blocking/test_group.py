"""Groups without async: members in threads, which wait and are woken, and in forked children."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from anyio import ClosedResourceError, EndOfStream, WouldBlock

from filechannel import AckError, ChannelOptions, LeaseExpiredError, StorageError
from filechannel._format import PURE
from filechannel._format.layout import GROUP_ENTRIES, GROUP_LOCK, LOCK_SLOT_SHIFT
from filechannel._storage.consumers.group_cursor import Group
from filechannel._storage.writable_store import WritableStore
from filechannel._wakeup import waiters
from filechannel.blocking import Acknowledgable, FileChannel, GroupReceiver, open_channel
from tests.blocking.children import running
from tests.blocking.threads import all_at_once, in_thread, until
from tests.channel.renewals import BEYOND, LEASE, counted_renewals
from tests.storage.handling import handle

TRIES = 20
"""A busy machine may be late repeatedly; a thread that does not check is late every time."""

WAYS: dict[str, Callable[[GroupReceiver[int]], object]] = {
    "receive": lambda rx: rx.receive(),
    "receive with a timeout": lambda rx: rx.receive(timeout=60),
    "receive_record": lambda rx: rx.receive_record().value,
    "receive_many": lambda rx: rx.receive_many(1)[0],
    "receive_many with linger": lambda rx: rx.receive_many(1, 0.001, timeout=60)[0],
    "next": lambda rx: next(rx),
    "receive_delivery": lambda rx: rx.receive_delivery().value,
    "deliveries": lambda rx: next(rx.deliveries()).value,
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
each_waiting = pytest.mark.parametrize("polls", [False, True], ids=["futex", "polling"])
SMALL = ChannelOptions(segment_size=4096)


def test_a_position_that_never_matches_ends_a_seek(channel: FileChannel[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek that never finds a position raises `StorageError` instead of looping for ever, also for a new group."""
    with channel.group("g") as rx:
        monkeypatch.setattr(WritableStore, "retain_from", lambda _store, _offset: False)
        with pytest.raises(StorageError, match=r"control is damaged: consumer 'g' found no valid position"):
            rx.seek("latest")
        with pytest.raises(StorageError, match="consumer 'new' found no valid position"), channel.group("new"):
            pass


def test_a_member_does_what_an_ack_receiver_does(channel: FileChannel[int]) -> None:
    """A member for threads has the order, counts, errors and redeliveries of an `AckReceiver`, also after reopening."""
    with channel.sender() as tx:
        tx.send_many(range(10))
    with channel.group("g") as rx:
        acks: Acknowledgable = rx
        assert [way(rx) for way in WAYS.values()] == list(range(8))
        acks.ack(3)
        acks.nack(2)
        assert (rx.unack_count, rx.peek(3)) == (3, [6, 7, 8])
        with pytest.raises(AckError):
            rx.ack(4)
    with channel.group("g") as rx:
        assert rx.receive_many(10) == list(range(3, 10))
        rx.ack(7)
        rx.seek(channel.offset_of(5))
        assert rx.receive() == 5
        rx.unsubscribe()
        with pytest.raises(ClosedResourceError):
            rx.ack()


@each_way
@each_waiting
def test_a_thread_that_waits_is_woken(
    path: Path, way: Callable[[GroupReceiver[int]], object], polls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message, a nack of another member, the end of its delay, or a member that closes wakes a waiting thread."""
    monkeypatch.setattr(waiters, "POLL", polls)
    with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g") as rx:

        def wakes(call: Callable[[], object]) -> None:
            with in_thread(partial(way, rx)) as receiving:
                until(lambda: channel.statistics().waiters == 1)
                call()
                assert receiving.result(60) == 7
            rx.nack()

        wakes(lambda: tx.send(7))
        with channel.group("g") as other:
            wakes(other.receive_delivery().nack)
            wakes(partial(other.receive_delivery().nack, 0.01))
            assert other.receive() == 7
            wakes(other.close)


def test_an_expired_lease_is_noticed_by_a_waiting_thread(path: Path) -> None:
    """A waiting thread wakes when a lease expires, although no process sends a wakeup for it."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.group("g", lease=0.05) as slow, channel.group("g") as other:
            for _ in range(TRIES):
                tx.send(1)
                late = slow.receive_delivery()
                started = time.monotonic()
                again = other.receive_delivery(timeout=60)
                assert time.monotonic() - started > 0.04
                assert (again.value, again.attempt) == (1, 2)
                with pytest.raises(LeaseExpiredError):
                    late.ack()
                if time.monotonic() - started < 0.5:
                    break
                again.ack()
            else:
                pytest.fail("the lease did not expire before every waiter checks")


def test_a_timeout_counts_while_others_have_something(path: Path) -> None:
    """A receive that times out while other members have deliveries takes nothing."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g") as rx:
        tx.send(1)
        with channel.group("g") as other:
            other.receive()
            for way in (rx.receive, rx.receive_delivery, rx.receive_record, partial(rx.receive_many, 5)):
                for timeout in (0, 0.01):
                    with pytest.raises(TimeoutError):
                        way(timeout=timeout)
            with pytest.raises(TimeoutError), rx.processing(timeout=0):
                raise AssertionError
            assert rx.unack_count == 0
            other.ack()


def test_processing_acks_or_nacks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Success acks, an error nacks, Ctrl-C does not count, and the lease is renewed while the block runs."""
    renewed = counted_renewals(monkeypatch)
    with open_channel(path, int) as channel, channel.sender() as tx:
        with channel.group("g", lease=LEASE) as rx, channel.group("g") as other:
            tx.send_many([1, 2])
            with rx.processing() as item:
                assert item == 1
                until(lambda: len(renewed) > BEYOND)
                assert other.peek() == [2]
            for error in (LookupError, KeyboardInterrupt):
                with pytest.raises(error), rx.processing(timeout=1):
                    raise error
            delivery = rx.receive_delivery()
            assert (delivery.value, delivery.attempt) == (2, 2)


def test_threads_share_the_work(path: Path) -> None:
    """Members and clones in threads that receive, nack and ack process each message once."""
    count = 2000
    with open_channel(path, int, options=SMALL) as channel:
        done: list[int] = []

        def work(rx: GroupReceiver[int]) -> None:
            with rx:
                for delivery in rx.deliveries():
                    if delivery.attempt < 2 and delivery.value % 3 == 0:
                        delivery.nack(delivery.value % 2 * 1e-4)
                    else:
                        done.append(delivery.value)
                        delivery.ack()

        def send() -> None:
            with channel.sender() as tx:
                for number in range(count):
                    tx.send(number)
            channel.seal()

        with channel.group("g") as rx:
            all_at_once(send, *(partial(work, rx.clone() if n % 2 else channel.group("g")) for n in range(4)))
            assert sorted(done) == list(range(count))
            with pytest.raises(EndOfStream):
                rx.receive()


@pytest.mark.skipif(PURE, reason="no other process can hold the lock")
def test_a_group_lock_that_is_held_is_waited_for(path: Path) -> None:
    """While the group lock is held, a call that may not wait raises, and a receive waits for the lock."""
    with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g") as rx:
        tx.send(1)
        group, processes = rx._member._group, channel._store.processes
        assert processes is not None
        alive = processes.is_alive
        processes.is_alive = lambda _: True  # type: ignore[method-assign]
        try:
            group.map[GROUP_LOCK : GROUP_LOCK + 4] = (processes.own_word ^ 1 << LOCK_SLOT_SHIFT).to_bytes(4, "little")
            with in_thread(rx.receive) as receiving:
                assert not receiving.done()
                group.map[GROUP_LOCK : GROUP_LOCK + 4] = bytes(4)
                assert receiving.result(60) == 1
        finally:
            processes.is_alive = alive  # type: ignore[method-assign]


FORKING = """
import warnings
from anyio import ClosedResourceError
from filechannel._channel.subscription import group_member
warnings.simplefilter("ignore")
group_member._RENEWALS_PER_LEASE = 20  # so that a busy machine does not lose the lease
with open_channel(path, int) as channel, channel.sender() as tx, channel.group("g", lease=1.0) as rx:
    tx.send_many([1, 2, 3])
    held = rx.receive_delivery()
    kept = rx.processing()
    kept.__enter__()
    child = os.fork()
    if not child:
        code = 1
        try:
            for call in (rx.receive_nowait, rx.ack, held.ack, held.extend, rx.peek):
                try:
                    call()
                except ClosedResourceError:
                    continue
                raise AssertionError(call)
            if not PURE:
                with channel.group("g") as mine:
                    assert mine.receive() == 3
                    mine.ack()
                channel.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.ack()
    time.sleep(1.5)
    kept.__exit__(None, None, None)
    assert channel.consumers()[0].next_sequence == (2 if PURE else 3)
    say("done")
"""


def test_a_forked_child_owns_no_delivery_of_its_parent(path: Path) -> None:
    """A forked child's member is closed, it can join separately, and the parent keeps its deliveries and leases."""
    with running(FORKING, path) as child:
        child.expect("done")
        child.end()


def test_positions_are_flushed_as_the_options_say(path: Path) -> None:
    """Group positions are flushed after the configured number of acks, and at once under "fsync"."""
    for every in (3, 0.01, "fsync"):
        options = ChannelOptions(cursor_flush=every)  # type: ignore[arg-type]
        with open_channel(path, int, options=options) as channel, channel.sender() as tx:
            tx.send_many(range(10))
            with channel.group("g") as rx:
                rx.receive_many(4)
                rx.ack(4)
                with rx.processing() as item:
                    assert item == rx.statistics().next_sequence % 10 - 1
                assert rx.receive_nowait() == item + 1
                with pytest.raises(AckError):
                    rx.ack(2)
                rx.ack()
            with channel.group("g") as rx:
                rx.ack(len(rx.receive_many(10)))
                with pytest.raises(WouldBlock):
                    rx.receive_nowait()


def test_the_lock_holder_that_advances_the_ring_wakes_waiters(path: Path) -> None:
    """If an ack finds the group's lock held, the lock holder moves the position and wakes the waiting members."""
    with open_channel(path, int) as channel, channel.sender() as tx:
        tx.send_many(range(GROUP_ENTRIES + 1))
        with channel.group("g") as rx, channel.group("g") as other:
            assert len(rx.receive_many(GROUP_ENTRIES)) == GROUP_ENTRIES
            group, notified = channel._store.cursors._open["g"], list[int]()
            assert isinstance(group, Group)
            handle(channel._store.events.ring_freed, lambda: notified.append(1))

            def ack() -> None:
                rx.ack()
                assert not notified

            group._locked(ack)
            assert notified == [1]
            assert other.receive_nowait() == GROUP_ENTRIES
