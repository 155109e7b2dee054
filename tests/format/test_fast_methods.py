"""The bases of sender and receiver: coroutines that do their work at once if they can."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from filechannel._format.layout import WRITE_TAIL
from tests.format.pages import FOREVER, new_control, new_segment, packed_records, set_tail, tail_of


class RefusedError(Exception):
    """What the bench's `refuse` raises."""


class Pause:
    """Yields itself once, as a future would, and returns what is sent in."""

    def __await__(self) -> Any:
        return (yield self)


def sender_on(impl: SimpleNamespace, path: Any, slow: Callable[[Any], Any]) -> Any:
    """Return a sender as the channel makes it: a subclass that knows the slow way."""

    class Sender(impl.SendCore):
        def _send_slowly(self, item: object) -> Any:
            return slow(item)

        def _send_nowait_slowly(self, item: object) -> Any:
            return "slow", item

    sender = Sender()
    sender._attach(path)
    return sender


def receiver_on(impl: SimpleNamespace, reader: Any, slow: Callable[[], Any]) -> Any:
    """Return a receiver as the channel makes it: a subclass that knows the slow way."""

    class Receiver(impl.ReceiveCore):
        def _receive_slowly(self) -> Any:
            return slow()

        def _receive_nowait_slowly(self) -> Any:
            return "slow"

    receiver = Receiver()
    receiver._attach(reader)
    return receiver


class Bench:
    """A sender and a receiver, and what took the slow path."""

    def __init__(self, impl: SimpleNamespace, payloads: list[bytes] | None = None) -> None:
        impl.begin_slice()
        self.slow: list[object] = []
        self.sent = new_control()
        self.writer = impl.Writer(self.sent, 1, 1000, self.overflow, None)
        self.writer.bind(new_segment(1000), 0)
        self.writer.open_window(1000, FOREVER)
        self.sender = sender_on(impl, impl.SendPath(self.writer, self.encode, self.refuse), self.slow_send)
        content, control = packed_records(payloads or [], 0), new_control()
        set_tail(control, WRITE_TAIL, len(content), 0, 0)
        self.reader = impl.Reader(control, None, None, None, None, None)
        self.reader.bind(new_segment(len(content), content), 0)
        self.receiver = receiver_on(impl, self.reader, self.slow_receive)
        self.send, self.receive = self.sender.send, self.receiver.receive

    def overflow(self, payloads: list[bytes]) -> int:
        """Note what overflowed."""
        self.slow.append(payloads)
        return 5

    def encode(self, item: str) -> bytes:
        """Encode text."""
        return item.encode("ascii")

    def refuse(self, item: object, error: Exception | None, index: int | None) -> None:
        """Raise what tests look for."""
        raise RefusedError(item)

    async def slow_send(self, item: object) -> None:
        """Note the item and wait once."""
        self.slow.append(item)
        self.slow.append(await Pause())

    async def slow_receive(self) -> object:
        """Wait once for the item."""
        self.slow.append("receive")
        return await Pause()

    @property
    def messages(self) -> int:
        """How many messages were sent."""
        return tail_of(self.sent)[1]


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Drive a coroutine that must not wait, and return its result."""
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    return stop.value.value


# At once


def test_an_item_is_sent_when_it_is_awaited(impl: SimpleNamespace) -> None:
    """`send` sends its item when it is awaited, without waiting, and returns nothing."""
    bench = Bench(impl)
    coroutine = bench.send("a")
    assert bench.messages == 0
    assert result_of(coroutine) is None
    assert bench.messages == 1
    assert bench.slow == []


def test_an_item_is_received_when_it_is_awaited(impl: SimpleNamespace) -> None:
    """`receive` takes its item when it is awaited, without waiting."""
    bench = Bench(impl, [b"a", b"b"])
    first, second = bench.receive(), bench.receive()
    assert bench.reader.offset == 0
    assert result_of(second) == b"a"
    assert result_of(first) == b"b"
    assert bench.slow == []


def test_an_item_that_overflows_is_sent(impl: SimpleNamespace) -> None:
    """An item that overflows is sent by `overflow`, and its offset is not returned."""
    bench = Bench(impl)
    bench.writer.unbind()
    assert result_of(bench.send("a")) is None
    assert bench.slow == [[b"a"]]


def test_a_refused_item_raises_from_the_await(impl: SimpleNamespace) -> None:
    """A refused item raises when the coroutine is awaited, not when it is created."""
    bench = Bench(impl)
    coroutine = bench.send("\N{SNOWMAN}")
    with pytest.raises(RefusedError):
        coroutine.send(None)
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        coroutine.send(None)


def test_an_error_of_reading_raises_from_the_await(impl: SimpleNamespace) -> None:
    """An error of reading raises from the await, and the reader stays where it is."""
    bench = Bench(impl, [b"x"])

    def decode(payload: bytes) -> None:
        raise KeyboardInterrupt

    control = new_control()
    set_tail(control, WRITE_TAIL, 9, 0, 0)
    reader = impl.Reader(control, None, decode, None, None, None)
    reader.bind(new_segment(9, packed_records([b"x"], 0)), 0)
    with pytest.raises(KeyboardInterrupt):
        receiver_on(impl, reader, bench.slow_receive).receive().send(None)
    assert reader.offset == 0


# Without waiting


def test_an_item_is_sent_now(impl: SimpleNamespace) -> None:
    """`send_nowait` sends an item, which may be passed by name, and returns its offset."""
    bench = Bench(impl)
    assert bench.sender.send_nowait("a") == 0
    assert bench.sender.send_nowait(item="b") == 9
    with pytest.raises(RefusedError):
        bench.sender.send_nowait("\N{SNOWMAN}")
    bench.writer.unbind()
    assert bench.sender.send_nowait("c") == 5
    assert (bench.messages, bench.slow) == (2, [[b"c"]])
    for wrong in (lambda: bench.sender.send_nowait(), lambda: bench.sender.send_nowait(1, 2)):
        with pytest.raises(TypeError):
            wrong()


def test_an_item_is_received_now(impl: SimpleNamespace) -> None:
    """`receive_nowait` takes an item, however long the time slice has lasted."""
    bench = Bench(impl, [b"x"] * 100)
    assert [bench.receiver.receive_nowait() for _ in range(100)] == [b"x"] * 100
    assert bench.receiver.receive_nowait() == "slow"


def test_what_cannot_be_done_now_is_for_the_subclass_to_answer(impl: SimpleNamespace) -> None:
    """What a fast `nowait` method cannot do goes to a method of the subclass: a flush, an empty channel, or a closed
    one.
    """
    bench = Bench(impl, [b"a"])
    bench.writer.defer(True)
    assert bench.sender.send_nowait("a") == ("slow", "a")
    bench.writer.defer(False)
    bench.sender._detach()
    bench.receiver._detach()
    assert bench.sender.send_nowait("a") == ("slow", "a")
    assert bench.receiver.receive_nowait() == "slow"
    assert (bench.messages, bench.reader.offset) == (0, 0)


# The slow way


def test_a_deferred_writer_takes_the_slow_path(impl: SimpleNamespace) -> None:
    """With a deferred writer `send` does nothing itself and awaits the slow coroutine, which gets the values sent to
    it.
    """
    bench = Bench(impl)
    bench.writer.defer(True)
    coroutine = bench.send("a")
    assert bench.slow == []
    assert isinstance(coroutine.send(None), Pause)
    assert bench.slow == ["a"]
    with pytest.raises(StopIteration) as stop:
        coroutine.send("resumed")
    assert stop.value.value is None
    assert bench.slow == ["a", "resumed"]
    assert bench.messages == 0


def test_an_empty_reader_takes_the_slow_path(impl: SimpleNamespace) -> None:
    """With an empty reader `receive` awaits the slow coroutine, and returns its result."""
    bench = Bench(impl)
    coroutine = bench.receive()
    assert isinstance(coroutine.send(None), Pause)
    with pytest.raises(StopIteration) as stop:
        coroutine.send(("any", "item"))
    assert stop.value.value == ("any", "item")
    assert bench.slow == ["receive"]


@pytest.mark.parametrize("item", [None, (), (1, 2), StopIteration(3), BaseException])
def test_a_result_may_be_anything(impl: SimpleNamespace, item: object) -> None:
    """A slow coroutine may return any object, also tuples and exceptions."""
    coroutine = Bench(impl).receive()
    coroutine.send(None)
    with pytest.raises(StopIteration) as stop:
        coroutine.send(item)
    assert stop.value.value is item


def test_a_detached_sender_or_receiver_takes_the_slow_path(impl: SimpleNamespace) -> None:
    """A detached sender or receiver takes the slow path, also in coroutines that were created before."""
    bench = Bench(impl, [b"a"])
    earlier = bench.send("earlier"), bench.receive()
    bench.sender._detach()
    bench.receiver._detach()
    for coroutine in (*earlier, bench.send("later"), bench.receive()):
        assert isinstance(coroutine.send(None), Pause)
        coroutine.close()
    assert bench.slow == ["earlier", "receive", "later", "receive"]
    assert (bench.messages, bench.reader.offset) == (0, 0)


def test_an_exception_is_thrown_where_the_slow_way_waits(impl: SimpleNamespace) -> None:
    """An exception that is thrown into a waiting coroutine is thrown into the slow one."""
    bench = Bench(impl)
    coroutine = bench.receive()
    coroutine.send(None)
    with pytest.raises(LookupError, match="thrown"):
        coroutine.throw(LookupError("thrown"))
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        coroutine.send(None)

    async def catches() -> str:
        try:
            await Pause()
        except LookupError:
            await Pause()
        return "caught"

    coroutine = receiver_on(impl, bench.reader, catches).receive()
    coroutine.send(None)
    assert isinstance(coroutine.throw(LookupError), Pause)
    assert result_of(coroutine) == "caught"


def test_a_slow_way_that_cannot_begin_raises(impl: SimpleNamespace) -> None:
    """An error in creating the slow coroutine raises from the await."""
    bench = Bench(impl)

    def slow() -> Any:
        raise OSError("no way")

    coroutine = receiver_on(impl, bench.reader, slow).receive()
    with pytest.raises(OSError, match="no way"):
        coroutine.send(None)


# Before the first step, and after the last


def test_what_is_thrown_before_the_first_step_comes_out_and_nothing_is_done(impl: SimpleNamespace) -> None:
    """An exception that is thrown before the first step is raised, and nothing was sent or received."""
    bench = Bench(impl, [b"a"])
    for coroutine in (bench.send("x"), bench.receive()):
        with pytest.raises(LookupError, match="early"):
            coroutine.throw(LookupError("early"))
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            coroutine.send(None)
    assert (bench.messages, bench.reader.offset, bench.slow) == (0, 0, [])


def test_closing_before_the_first_step_does_nothing(impl: SimpleNamespace) -> None:
    """Closing a coroutine before its first step does nothing, and emits no warning of a forgotten await."""
    bench = Bench(impl, [b"a"])
    for coroutine in (bench.send("x"), bench.receive()):
        assert coroutine.close() is None
        assert coroutine.close() is None
    gc.collect()
    assert (bench.messages, bench.reader.offset, bench.slow) == (0, 0, [])


def test_closing_ends_the_slow_way(impl: SimpleNamespace) -> None:
    """Closing a waiting coroutine closes the slow one, whose `finally` runs."""
    ended: list[bool] = []

    async def slow() -> None:
        try:
            await Pause()
        finally:
            ended.append(True)

    coroutine = receiver_on(impl, Bench(impl).reader, slow).receive()
    coroutine.send(None)
    coroutine.close()
    assert ended == [True]


def test_a_coroutine_is_awaited_once(impl: SimpleNamespace) -> None:
    """Awaiting a coroutine a second time raises, as for any other."""
    bench = Bench(impl, [b"a", b"b"])
    for coroutine in (bench.send("x"), bench.receive()):
        result_of(coroutine)
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            coroutine.send(None)
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            coroutine.throw(LookupError)
        coroutine.close()


def test_a_coroutine_begins_with_none(impl: SimpleNamespace) -> None:
    """Sending a value other than None into a new coroutine raises."""
    bench = Bench(impl)
    coroutine = bench.send("x")
    with pytest.raises(TypeError, match="just-started coroutine"):
        coroutine.send(5)
    assert result_of(coroutine) is None


def test_a_forgotten_await_is_noticed(impl: SimpleNamespace) -> None:
    """Each coroutine that is not awaited emits a warning that names the call."""
    bench = Bench(impl, [b"a"])
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            bench.send("x")
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            bench.receive()
    assert (bench.messages, bench.reader.offset) == (0, 0)


def test_a_coroutine_that_closes_itself_while_it_encodes_does_no_harm(impl: SimpleNamespace) -> None:
    """A coroutine that its encoder closes keeps the item alive, and the send is done or fails, but never both."""
    bench, inside = Bench(impl), list[object]()

    def encode(item: list[str]) -> bytes:
        for act in (coroutine.close, lambda: coroutine.throw(LookupError), lambda: coroutine.send(None)):
            try:
                inside.append(act())
            except (ValueError, LookupError, RuntimeError) as error:
                inside.append(type(error))
        gc.collect()
        return "".join(item).encode()

    path = impl.SendPath(bench.writer, encode, bench.refuse)
    coroutine = sender_on(impl, path, bench.slow_send).send(["a", "b"])
    assert result_of(coroutine) is None
    assert len(inside) == 3
    assert bench.messages == 1


def test_a_slow_path_that_throws_into_itself_does_no_harm(impl: SimpleNamespace) -> None:
    """A slow coroutine that throws into its own coroutine gets an error, because that is running."""
    inside: list[type[Exception]] = []

    async def slow() -> str:
        for act in (lambda: coroutine.send(None), lambda: coroutine.throw(LookupError), coroutine.close):
            try:
                act()
            except (ValueError, RuntimeError) as error:
                inside.append(type(error))
        gc.collect()
        return "went on"

    coroutine = receiver_on(impl, Bench(impl).reader, slow).receive()
    assert result_of(coroutine) == "went on"
    assert inside[0] is ValueError


def test_many_coroutines_at_once_are_separate(impl: SimpleNamespace) -> None:
    """Many coroutines at once do not affect each other, in whatever order they end."""
    bench = Bench(impl, [bytes([number]) for number in range(120)])
    taken: list[bytes] = []
    for _ in range(3):
        coroutines = [bench.receive() for _ in range(40)]
        while coroutines:
            if len(coroutines) % 20 == 0:
                impl.begin_slice()
            taken.append(result_of(coroutines.pop()))
    assert taken == [bytes([number]) for number in range(120)]


def test_results_that_are_kept_do_not_change(impl: SimpleNamespace) -> None:
    """A caller that keeps the StopIteration of a coroutine has it for itself, however many coroutines end later."""
    payloads = [bytes([number]) for number in range(20)]
    bench = Bench(impl, payloads)
    kept: list[StopIteration] = []
    for number in range(20):
        try:
            next(bench.receive().__await__())
        except StopIteration as stop:
            if number % 3:
                kept.append(stop)
    assert [stop.value for stop in kept] == [payloads[number] for number in range(20) if number % 3]


def test_a_result_does_not_outlive_its_coroutine(impl: SimpleNamespace) -> None:
    """A reused coroutine object keeps no reference to the last result."""

    class Message:
        pass

    alive: list[weakref.ref[Message]] = []

    async def slow() -> Message:
        message = Message()
        alive.append(weakref.ref(message))
        return message

    async def drain() -> None:
        for _ in range(3):
            await receiver.receive()

    receiver = receiver_on(impl, Bench(impl).reader, slow)
    with pytest.raises(StopIteration):
        drain().send(None)
    gc.collect()
    assert [one() for one in alive] == [None, None, None]


# What it is


def test_it_is_a_coroutine_to_every_check(impl: SimpleNamespace) -> None:
    """The abstract class, `inspect` and the event loops take the object for a coroutine."""
    coroutine = Bench(impl).send("x")
    assert isinstance(coroutine, Coroutine)
    assert inspect.isawaitable(coroutine)
    assert asyncio.iscoroutine(coroutine)
    coroutine.close()


def test_arguments_are_checked_by_the_call(impl: SimpleNamespace) -> None:
    """Wrong arguments raise a TypeError when the method is called."""
    bench = Bench(impl)
    for call in (
        lambda: bench.send(),
        lambda: bench.send(1, 2),
        lambda: bench.send(1, item=1),
        lambda: bench.send(other=1),
        lambda: bench.receive(1),
        lambda: bench.receive(item=1),
    ):
        with pytest.raises(TypeError):
            call()


def test_an_item_may_be_named(impl: SimpleNamespace) -> None:
    """The item can be passed by name, as in anyio's interface."""
    bench = Bench(impl)
    assert result_of(bench.send(item="a")) is None
    assert bench.messages == 1


def test_what_is_attached_is_of_the_same_implementation(impl: SimpleNamespace) -> None:
    """`attach` refuses objects of the other implementation, and keeps what was attached before."""
    bench = Bench(impl, [b"a"])
    for wrong in (None, 5, bench.reader):
        with pytest.raises(TypeError, match=r"expected .*SendPath, not"):
            bench.sender._attach(wrong)
    for wrong in (None, 5, bench.writer):
        with pytest.raises(TypeError, match=r"expected .*Reader, not"):
            bench.receiver._attach(wrong)
    assert result_of(bench.send("x")) is None
    assert result_of(bench.receive()) == b"a"


def test_a_subclass_may_own_its_method(impl: SimpleNamespace) -> None:
    """A subclass can get a fast method of its own, and a class that is not a subclass is refused."""
    bench = Bench(impl, [b"a"])
    assert impl.own_send(type(bench.sender)) is type(bench.sender)
    assert impl.own_receive(type(bench.receiver)) is type(bench.receiver)
    assert result_of(bench.sender.send("x")) is None
    assert result_of(bench.sender.send(item="y")) is None
    assert bench.sender.send_nowait("z") == 18
    assert result_of(bench.receiver.receive()) == b"a"
    assert bench.receiver.receive_nowait() == "slow"
    for wrong in (None, 5, int, object, type("Stranger", (), {}), type(bench.receiver)):
        with pytest.raises(TypeError, match=r"expected a subclass of .*SendCore"):
            impl.own_send(wrong)
    with pytest.raises(TypeError, match=r"expected a subclass of .*ReceiveCore"):
        impl.own_receive(type(bench.sender))


def test_one_that_was_never_attached_takes_the_slow_path(impl: SimpleNamespace) -> None:
    """A sender or receiver to which nothing was attached takes the slow path."""
    slow: list[object] = []
    sender = type("Sender", (impl.SendCore,), {"_send_slowly": lambda self, item: later(item)})()
    receiver = type("Receiver", (impl.ReceiveCore,), {"_receive_slowly": lambda self: later("receive")})()

    async def later(item: object) -> object:
        slow.append(item)
        return item

    sender._detach()
    result_of(sender.send("x"))
    assert result_of(receiver.receive()) == "receive"
    assert slow == ["x", "receive"]


def test_a_core_without_a_slow_path_raises(impl: SimpleNamespace) -> None:
    """The base classes, which have no slow path, raise."""
    for coroutine in (impl.SendCore().send("x"), impl.ReceiveCore().receive()):
        with pytest.raises(AttributeError, match="_slowly"):
            coroutine.send(None)


def test_cores_in_a_cycle_are_collected(impl: SimpleNamespace) -> None:
    """Fast senders and receivers in a cycle are collected, also with a coroutine that waits in the slow path."""
    bench = Bench(impl)
    waiting = bench.receive()
    waiting.send(None)
    bench.slow.append(waiting)
    bench.sender.bench = bench.receiver.bench = bench
    alive = weakref.ref(bench), weakref.ref(bench.sender), weakref.ref(bench.receiver)
    del bench, waiting
    gc.collect()
    assert [one() for one in alive] == [None, None, None]


def test_asyncio_runs_them(impl: SimpleNamespace) -> None:
    """Under asyncio the coroutines can be awaited, run as tasks, and be cancelled before and while they wait."""

    async def main() -> None:
        bench = Bench(impl, [b"a", b"b"])
        await bench.send("x")
        await asyncio.create_task(bench.send("y"))
        assert await asyncio.wait_for(bench.receive(), 5) == b"a"
        assert await asyncio.gather(bench.receive(), bench.send("z")) == [b"b", None]
        never = asyncio.create_task(bench.send("never"))
        never.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never
        assert bench.messages == 3
        event = asyncio.Event()
        waiting = asyncio.create_task(receiver_on(impl, bench.reader, event.wait).receive())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        waiting = asyncio.create_task(receiver_on(impl, bench.reader, event.wait).receive())
        await asyncio.sleep(0)
        event.set()
        assert await waiting is True

    asyncio.run(main())


def test_trio_runs_them(impl: SimpleNamespace) -> None:
    """Under trio the coroutines can be awaited, run in a nursery, and be cancelled while they wait."""

    async def main() -> None:
        bench = Bench(impl, [b"a"])
        await bench.send("x")
        assert await bench.receive() == b"a"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.send, "y")
        assert bench.messages == 2
        event = trio.Event()
        with trio.move_on_after(0):
            await receiver_on(impl, bench.reader, event.wait).receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receiver_on(impl, bench.reader, event.wait).receive)
            await trio.testing.wait_all_tasks_blocked()
            event.set()

    trio.run(main)
