"""Run by test_leaks.py in a separate process: call the C core many times and check that nothing stays behind.

Each case creates its arguments again, so that a reference too many keeps an object alive and shows as memory.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from filechannel._format import _core
from filechannel._format.layout import (
    CONTROL_RECORD,
    GROUP_DUE,
    GROUP_LOCK,
    GROUP_RING,
    GROUP_SIZE,
    WAKE,
    WAKE_LOOPS,
    WAKE_THREADS,
    WRITE_TAIL,
)
from tests.format.pages import FOREVER, new_control, new_cursor, new_segment, packed_record, set_tail

ROUNDS = 40
MOST = 16
"""Bytes a round that are still no leak: a leaked reference keeps at least an object alive."""


class StopNow(BaseException):
    """Something like KeyboardInterrupt."""


ERRORS = (Exception, StopNow)


def functions() -> None:
    """Every function, right and wrong."""
    buffer, payload = bytearray(200), bytes(bytearray(b"payload"))
    end = _core.write_record(buffer, 0, 0, 0, payload)
    _core.read_record(buffer, 0, end, 0)
    _core.scan_records(buffer, 0, 200, 0)
    _core.skip_records(buffer, 0, 200, 0, 1 << 40)
    _core.find_record(buffer, 0, 200, 0)
    _core.crc32c(buffer, 1 << 20)
    _core.store_u64(buffer, 8, 1 << 60)
    _core.store_u32(buffer, 8, 1 << 30)
    _core.swap_if_u32(buffer, 8, _core.load_u32(buffer, 8), 5)
    _core.load_u64(buffer, 8)
    _core.fence()
    waiting(buffer)
    for position in (0, 1 << 20):
        with suppress(ValueError):
            _core.populate(bytearray(9000), position, 9000)
        with suppress(ValueError):
            _core.can_store(bytearray(9000), position, 9000)
        with suppress(ValueError):
            _core.populate_soon(bytearray(9000), position, 9000)
    _core.populate_wait()
    _core.begin_slice()
    _core.slice_is_over()
    numbers = [(1 << 64) + buffer[0], -(1 << 80), 1 << 63, "text", None, object()]
    for function, count in (
        (_core.write_record, 5),
        (_core.read_record, 4),
        (_core.scan_records, 4),
        (_core.skip_records, 5),
        (_core.find_record, 4),
        (_core.crc32c, 2),
        (_core.load_u32, 2),
        (_core.load_u64, 2),
        (_core.store_u32, 3),
        (_core.store_u64, 3),
        (_core.swap_if_u32, 4),
    ):
        for place in range(count + 1):
            for number in numbers:
                arguments: list[object] = [buffer, 0, 0, 0, payload][:count]
                arguments[place : place + 1] = [number]
                with suppress(*ERRORS):
                    function(*arguments)
    for damaged in (packed_record(payload * 9, 1), packed_record(payload * 9, 0)[:-1], b"short"):
        with suppress(ValueError):
            _core.read_record(damaged, 0, len(damaged), 0)


def waiting(buffer: bytearray) -> None:
    """Lock words, sleeping and sets, right and wrong."""
    _core.store_u64(buffer, 8, 0)
    _core.take_word(buffer, 8, 5, 0)
    _core.take_word(buffer, 8, 5, 1e-6)
    _core.release_word(buffer, 8)
    _core.wait_word(buffer, 8, 0, 1e-6)
    _core.wait_word(buffer, 8, 1, 1.0)
    _core.wake_word(buffer, 8, 1)
    _core.spin_above(buffer, 8, 1 << 60, 1e-6)
    for bit in range(64):
        _core.set_bit(buffer, 8, bit)
    _core.set_bit(buffer, 160, 63)
    _core.take_bits(buffer, 8, 20)
    assert _core.keep_in_child(_core.close_in_child(1 << 20))
    for function, count in (
        (_core.take_word, 4),
        (_core.release_word, 2),
        (_core.wait_word, 4),
        (_core.wake_word, 3),
        (_core.spin_above, 4),
        (_core.set_bit, 3),
        (_core.take_bits, 3),
    ):
        for place in range(count + 1):
            for wrong in ((1 << 64) + buffer[0], -(1 << 80), "text", None, object(), bytes(bytearray(9))):
                arguments: list[object] = [buffer, 0, 1, 0][:count]
                arguments[place : place + 1] = [wrong]
                with suppress(*ERRORS):
                    function(*arguments)
    for wrong in ((1 << 64) + buffer[0], -1, "text", None, object()):
        with suppress(*ERRORS):
            _core.close_in_child(wrong)
        with suppress(*ERRORS):
            _core.keep_in_child(wrong)


def writer() -> None:
    """Appends that are simple, that overflow, that notify and that fail."""
    control, calls = new_control(), list[object]()

    def overflow(payloads: list[bytes]) -> int:
        calls.append(list(payloads))
        if len(calls) % 2:
            raise OSError("overflow")
        return 1 << 40

    def notify() -> object:
        if calls:
            raise OSError("notify")
        return object()

    writer = _core.Writer(control, 1, 100, overflow, notify)
    for _ in range(3):
        writer.bind(new_segment(400), 0)
        writer.open_window(400, FOREVER)
        control[WAKE] = WAKE_LOOPS
        for payload in (b"abc", bytes(bytearray(99)), bytes(bytearray(101)), bytes(bytearray(80)), "text", None):
            with suppress(*ERRORS):
                writer.append(payload)
            with suppress(*ERRORS):
                writer.append_all([b"x" * 3, payload])
            control[WAKE] = WAKE_LOOPS | WAKE_THREADS
        with suppress(*ERRORS):
            writer.append_all([bytes(1)] * 200)
        writer.start()
        for arguments in (([b"a", b"b"], 0, 0), ([b"a"], 0, CONTROL_RECORD), ([None], 0, 0), ([b"a"], 0, 5), (0, 0, 0)):
            with suppress(*ERRORS):
                writer.write(*arguments)
        writer.publish()
        writer.change()
        assert writer.current in (True, False)
        control[WAKE] = WAKE_THREADS | WAKE_LOOPS
        with suppress(*ERRORS):
            writer.wake_receivers()
        for begin in (-1, "x"):
            with suppress(*ERRORS):
                writer.bind(bytearray(100), begin)
        for segment in (b"read only" * 20, bytearray(3), None):
            with suppress(*ERRORS):
                writer.bind(segment, 0)
        with suppress(*ERRORS):
            writer.open_window(1 << 40, FOREVER)
        assert (writer.pending, writer.pending_sequence) != (None, writer.deferred)
    writer.unbind()
    for arguments in ((control, -1, 1, None, None), (b"", 1, 1, None, None), (control, 1, -1, None, None), ()):
        with suppress(*ERRORS):
            _core.Writer(*arguments)


def itself() -> list[object]:
    """Return a list that is its own item."""
    items: list[object] = [1]
    items[0] = items
    items.append(2)
    return items


def send_path() -> None:
    """Items that fit, that do not, and encoders that fail in every way."""
    control = new_control()
    writer = _core.Writer(control, 1, 100, lambda payloads: len(payloads), None)
    writer.bind(new_segment(400), 0)
    writer.open_window(400, FOREVER)

    def encode(item: str) -> object:
        if item.startswith("!"):
            raise StopNow
        return item.encode("ascii") if not item.startswith("?") else item

    def refuse(item: object, error: Exception | None, index: int | None) -> None:
        if item != "silent?":
            raise LookupError(item, error, index)

    def encode_into(item: str, buffer: bytearray) -> None:
        buffer[:] = encode(item)

    for encoder, into, exact in ((encode, encode_into, (str, int)), (encode, None, ()), (None, None, ())):
        path = _core.SendPath(writer, encoder, refuse, into, exact)
        _core.begin_slice()
        items = ["fine" * 3, "?" * 9, "!" * 9, "\N{SNOWMAN}", "silent?", None, 5 << 40, b"raw" * 9, bytearray(9)]
        for item in items:
            for call, arguments in (
                (path.put, (item,)),
                (path.put_or_yield, (item,)),
                (path.put_all, ([item, "fine"],)),
                (path.encode_all, ([item, "fine"], 1 << 40)),
            ):
                with suppress(*ERRORS):
                    call(*arguments)
        with suppress(*ERRORS):
            _core.SendPath(writer, lambda items: items.clear() or b"", refuse).put_all(itself())
        for arguments in (([], 0, None, None), (writer, None, None, None, []), (writer,), ()):
            with suppress(*ERRORS):
                _core.SendPath(*arguments)


def reader() -> None:
    """Takes of everything: items, control records, damage, what does not decode, and the end."""
    content = b""
    for payload, flags in ((b"a" * 9, 0), (b"control", CONTROL_RECORD), (b"?", 0), (b"!", 0), (b"b", 0), (b"c", 0)):
        content += packed_record(payload, len(content), flags)
    control, cursor = new_control(), new_cursor()
    damage = packed_record(b"damaged" * 5, 1)
    set_tail(control, WRITE_TAIL, len(content) + len(damage) + 9, 0, 0)
    segment = new_segment(len(content) + len(damage), content + damage)

    def decode(payload: bytes) -> object:
        if payload == b"!":
            raise StopNow
        return payload.decode("ascii") if payload != b"?" else int(payload)

    def advance(reader: object) -> None:
        raise LookupError(reader)

    def damaged(reader: object, reason: str) -> None:
        raise LookupError(reader, reason)

    def refuse(offset: int, next_offset: int, payload: bytes, error: Exception) -> None:
        raise LookupError(offset, next_offset, payload, error)

    def decode_view(payload: object) -> object:
        kept.append(memoryview(payload))
        return decode(bytes(payload))

    kept: list[memoryview] = []
    for decoder, reuse in ((decode, False), (None, False), (decode_view, True)):
        reader = _core.Reader(control, cursor, decoder, advance, damaged, refuse, reuse)
        for call in (reader.take, reader.take_record, partial(reader.take_many, 3), reader.take_or_yield):
            _core.begin_slice()
            for offset in (0, 17, 32, 41, 50, 59, 68, 69, 1 << 50):
                reader.bind(segment, 0)
                reader.move(offset, 1 << 40)
                for _ in range(4):
                    with suppress(*ERRORS):
                        call()
        assert reader.offset + reader.sequence
        for arguments in ((bytearray(3), 0), (None, 0), (segment, -1)):
            with suppress(*ERRORS):
                reader.bind(*arguments)
        for arguments in ((-1, 0), (0, None), ()):
            with suppress(*ERRORS):
                reader.move(*arguments)
        with suppress(*ERRORS):
            reader.take_many("x")
        reader.unbind()
        reader.release()
    silent = _core.Reader(control, None, decode, None, None, lambda *arguments: object())
    silent.bind(segment, 0)
    silent.move(32, 0)
    with suppress(*ERRORS):
        silent.take()
    for arguments in ((b"",), (control, b"", None, None, None, None), (b"", None, None, None, None, None)):
        with suppress(*ERRORS):
            _core.Reader(*arguments)


class Sender(_core.SendCore):
    """Waits once, the slow way."""

    async def _send_slowly(self, item: object) -> None:
        await Pause()


class Receiver(_core.ReceiveCore):
    """Waits once, the slow way."""

    async def _receive_slowly(self) -> object:
        return await Pause()


class Pause:
    """Yields once."""

    def __await__(self):
        return (yield self)


def drive(coroutine: object, *steps: str) -> None:
    """Do with a coroutine what a loop may do."""
    for step in steps:
        with suppress(*ERRORS):
            {
                "send": lambda: coroutine.send(None),
                "item": lambda: coroutine.send(("an", "item")),
                "throw": lambda: coroutine.throw(LookupError("thrown")),
                "type": lambda: coroutine.throw(LookupError, "thrown"),
                "wrong": lambda: coroutine.throw(5),
                "close": lambda: coroutine.close(),
                "forget": lambda: None,
            }[step]()


def cores() -> None:
    """Coroutines that end in every way."""
    control = new_control()
    writer = _core.Writer(control, 1, 100, lambda payloads: len(payloads), None)
    writer.bind(new_segment(4000), 0)
    writer.open_window(4000, FOREVER)
    sender, receiver = Sender(), Receiver()
    content, shown = b"".join(packed_record(b"x", 9 * number) for number in range(40)), new_control()
    set_tail(shown, WRITE_TAIL, len(content), 0, 0)
    reader = _core.Reader(shown, None, None, None, None, None)
    reader.bind(new_segment(len(content), content), 0)
    for attached in (True, False):
        if attached:
            sender._attach(_core.SendPath(writer, lambda item: item.encode("ascii"), None))
            receiver._attach(reader)
        _core.begin_slice()
        for steps in (
            ("send",),
            ("send", "send"),
            ("send", "item"),
            ("item", "send", "send"),
            ("throw",),
            ("type",),
            ("wrong",),
            ("close",),
            ("send", "throw"),
            ("send", "type", "send"),
            ("send", "close", "send"),
            ("forget",),
        ):
            drive(sender.send("item" * 5), *steps)
            drive(sender.send("\N{SNOWMAN}"), *steps)
            drive(receiver.receive(), *steps)
        many = [receiver.receive() for _ in range(40)]
        for coroutine in many:
            coroutine.close()
        del many, coroutine
        for wrong in (None, 5, reader, writer):
            if wrong is not reader:
                with suppress(*ERRORS):
                    receiver._attach(wrong)
            with suppress(*ERRORS):
                sender._attach(wrong)
        sender._detach()
        receiver._detach()


def cycles() -> None:
    """Objects that hold each other are collected."""

    class Owner:
        def method(self, *arguments: object) -> int:
            return 0

    owner = Owner()
    owner.writer = _core.Writer(new_control(), 1, 1, owner.method, owner.method)
    owner.path = _core.SendPath(owner.writer, owner.method, owner.method, owner.method, (str,))
    owner.reader = _core.Reader(new_control(), new_cursor(), *[owner.method] * 4)
    owner.reader.bind(new_segment(9), 0)
    owner.sender, owner.receiver = Sender(), Receiver()
    owner.sender.owner = owner.receiver.owner = owner
    owner.sender._attach(owner.path)
    owner.waiting = owner.receiver.receive()
    owner.waiting.send(None)
    del owner
    gc.collect()


def growth_of(case: Callable[[], None], rounds: int) -> float:
    """Return the bytes that stay behind with each round."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    nones = sys.getrefcount(None)
    for _ in range(rounds):
        case()
    gc.collect()
    leaked_nones = abs(sys.getrefcount(None) - nones) // rounds
    return (tracemalloc.get_traced_memory()[0] - before) / rounds + 1000 * leaked_nones


def leak_of(case: Callable[[], None]) -> float:
    """Return what every one of some measurements shows: a cache fills once, a leak continues."""
    growth_of(case, 10)
    least = growth_of(case, ROUNDS)
    for _ in range(9):
        if least <= MOST:
            break
        least = min(least, growth_of(case, ROUNDS))
    return least


def held() -> None:
    """Takes, acks and nacks of a reader that holds, right and wrong."""
    content = b"".join(packed_record(bytes([n]), 9 * n) for n in range(40))
    control = new_control()
    set_tail(control, WRITE_TAIL, len(content), 0, 0)
    reader = _core.Reader(control, new_cursor(), None, None, None, None)
    reader.track_acks()
    reader.bind(new_segment(len(content), content), 0)

    class Receiver(_core.AckCore):
        def _ack_slowly(self, n: object) -> None:
            raise LookupError(n)

    receiver = Receiver()
    receiver._attach(reader)
    known = [reader.take_delivery() for _ in range(30)]
    for number, (_, offset, _, _, token) in enumerate(known[10:]):
        reader.redeliver(offset, token, 1 << 62 if number % 2 else 0, True)
        reader.acknowledge(offset, token)
    reader.ready_positions(100)
    assert reader.outstanding + reader.ready + reader.next_due
    reader.outlook()
    reader.redeliver_all()
    calls = (
        reader.ack,
        reader.nack,
        reader.acknowledge,
        reader.redeliver,
        reader.ready_positions,
        reader.track_acks,
        receiver.ack,
    )
    for call in (*calls, reader.outlook, reader.acknowledge_before, reader.redeliver_all):
        for arguments in ((), (1,), (None,), ("text",), (1 << 80,), (0, "text"), (0, 0, 0, 0), (0, 0, object(), 0)):
            with suppress(*ERRORS):
                call(*arguments)
    reader.take_many(100)
    reader.forget()


def shared() -> None:
    """Takes, acks, nacks and losses of readers that share, right and wrong."""
    content = b"".join(packed_record(bytes([n]), 9 * n) for n in range(40))
    control, group = new_control(), bytearray(GROUP_SIZE)
    group[GROUP_DUE : GROUP_DUE + 8] = b"\xff" * 8
    set_tail(control, WRITE_TAIL, len(content), 0, 0)

    def decode(payload: object) -> object:
        if bytes(payload)[0] % 7 == 3:  # type: ignore[call-overload]
            raise (LookupError if bytes(payload)[0] == 3 else StopNow)(payload)  # type: ignore[call-overload]
        return payload

    def refuse(offset: int, next_offset: int, payload: bytes, error: Exception) -> None:
        raise LookupError(offset, next_offset, payload) from error

    segment = new_segment(len(content), content)
    readers = [_core.Reader(control, None, decode, None, None, refuse, True) for _ in range(2)]
    for number, reader in enumerate(readers):
        reader.share(group, (number + 1) << 22 | 2, 1 << 60, lambda reader: reader is None)
        reader.bind(segment, 0)
    first, second = readers
    for call in (first.take_delivery, second.take_delivery, partial(first.take_many, 3), second.take) * 3:
        with suppress(*ERRORS):
            _, offset, _, _, token = call()
            second.redeliver(offset, token, 1 << 62, True)
            first.acknowledge(offset, token)
    first.refused(27)
    with suppress(*ERRORS):
        first.take_delivery()
    for place in range(GROUP_RING, GROUP_RING + 20 * 64, 64):
        group[place] ^= 3  # its member has lost it
    first.ack(1)
    first.nack(None)
    first.take_lost()
    first.must_wake()
    first.ready_positions(100)
    for call in (
        first.share,
        first.entry_number,
        first.refused,
        first.ack,
        first.acknowledge,
        first.redeliver,
        _core.advance_position,
    ):
        for arguments in ((), (1,), ("text",), (group, 2), (0, "text"), (group, 2, 5, None), (b"", 2, 5, None)):
            with suppress(*ERRORS):
                call(*arguments)
    with suppress(*ERRORS):
        second.take_many(100)
    second.forget()
    first.release()
    group[GROUP_LOCK] = 2
    second.take()


def rows() -> None:
    """Shapes and columns, right and wrong."""
    number, text = ("int", 8, 1, (b"\x01",), ()), ("string", 0, 0, (), ())
    shape = ("struct", 0, 0, (b"\xa1tx",), ((b"\xa1a", number), (b"\xa1b", text)))
    encoder = _core.RowEncoder(shape)
    offsets = (3).to_bytes(8, "big")[::-1][:4].rjust(8, b"\0")
    for value in (1, 2):
        columns = ((1, 0, None, None, value.to_bytes(8, "little"), ()), (1, 0, None, offsets, b"abc", ()))
        for given in (
            (1, 0, None, None, None, columns),
            (2, 0, None, None, None, columns),
            (1, 0, None, None, None, ()),
        ):
            with suppress(*ERRORS):
                encoder.encode(given)
    for wrong in (None, 5, shape[:4], (*shape[:4], ((b"", number), (b"", None))), (*shape[:3], (b"a", "b"), ())):
        with suppress(*ERRORS):
            _core.RowEncoder(wrong)
    for wrong in ([b"a", 5], None, [b"a", b""]):
        with suppress(*ERRORS):
            _core.split_records(_core.join_records(wrong) + b"x")


def main() -> int:
    """Measure every case and say which ones leak."""
    warnings.simplefilter("ignore")
    tracemalloc.start()
    leaks = 0
    for case in (functions, writer, send_path, reader, held, shared, rows, cores, cycles):
        leak = leak_of(case)
        if leak > MOST:
            leaks += 1
            sys.stderr.write(f"{case.__name__}: {leak:.1f} bytes stay behind with each round\n")
    return leaks


if __name__ == "__main__":
    sys.exit(main())
