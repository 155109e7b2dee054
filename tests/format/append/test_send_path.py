"""From an object to a record."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from filechannel._format.layout import BATCH_CONTINUES
from tests.format.pages import FOREVER, new_control, new_segment, packed_record, packed_records, size_of, tail_of


class RefusedError(Exception):
    """What the bench's `refuse` raises."""


class StopNow(BaseException):
    """Something like KeyboardInterrupt, in the middle of encoding."""


class Bench:
    """A send path, its pages, and what it refused."""

    def __init__(
        self,
        impl: SimpleNamespace,
        encode: Callable[[Any], Any] | None = None,
        encode_into: Callable[[Any, bytearray], object] | None = None,
        exact: tuple[type, ...] = (),
        *,
        room: int = 4096,
        window: int | None = None,
    ) -> None:
        self.control, self.segment, self.capacity = new_control(), new_segment(room), room
        self.overflowed: list[list[bytes]] = []
        self.refused: list[tuple[object, Exception | None, int | None]] = []
        self.writer = impl.Writer(self.control, 1, room, self.overflow, None)
        self.writer.bind(self.segment, 0)
        self.writer.open_window(room if window is None else window, FOREVER)
        self.path = impl.SendPath(self.writer, encode, self.refuse, encode_into, exact)

    def overflow(self, payloads: list[bytes]) -> int:
        """Note what overflowed."""
        self.overflowed.append(payloads)
        return 4711

    def refuse(self, item: object, error: Exception | None, index: int | None) -> None:
        """Note what was refused, and raise."""
        self.refused.append((item, error, index))
        raise RefusedError(index)

    @property
    def untouched(self) -> bool:
        """Whether nothing was written and nothing published."""
        return self.segment == new_segment(self.capacity) and tail_of(self.control) == (0, 0, 0)


def encode_text(item: str) -> bytes:
    """Encode text."""
    return item.encode("ascii")


def test_an_item_is_encoded_and_appended(impl: SimpleNamespace) -> None:
    """An item is encoded and appended, and its offset is returned."""
    bench = Bench(impl, encode_text)
    assert bench.path.put("a") == 0
    assert bench.path.put("bb") == 9
    assert bench.segment[64:].startswith(packed_record(b"a", 0) + packed_record(b"bb", 9))
    assert tail_of(bench.control) == (19, 2, 0)


def test_a_buffer_is_its_own_payload(impl: SimpleNamespace) -> None:
    """Without an encoder the bytes of any buffer are written unchanged."""
    bench = Bench(impl)
    buffers = [
        b"a",
        type("Payload", (bytes,), {})(b"b"),
        bytearray(b"c"),
        memoryview(b"d-e-f-")[::2],
        memoryview(b"ghij").cast("B", (2, 2)),
        array("H", b"klmn"),
        memoryview(b""),
    ]
    payloads = [b"a", b"b", b"c", b"def", b"ghij", b"klmn", b""]
    for buffer in buffers:
        bench.path.put(buffer)
    end = size_of(*payloads)
    assert bench.segment[64:].startswith(packed_records(payloads, 0))
    assert bench.path.put_all(buffers) == end
    assert impl.scan_records(bench.segment, 64, 64 + 2 * end, 0)[:2] == (64 + 2 * end, 14)
    assert bench.path.encode_all(buffers, 0) == payloads


def test_a_buffer_that_changes_later_does_not_change_what_was_sent(impl: SimpleNamespace) -> None:
    """The payload is a copy, for overflow too."""
    bench = Bench(impl, window=0)
    buffer = bytearray(b"before")
    bench.path.put(buffer)
    buffer[:] = b"after!"
    assert bench.overflowed == [[b"before"]]
    buffer.extend(b"and it can still grow")


def test_a_list_is_one_batch(impl: SimpleNamespace) -> None:
    """A list is appended as one batch, and the offset of the first message is returned."""
    bench = Bench(impl, encode_text)
    bench.path.put("first")
    assert bench.path.put_all(["a", "b"]) == 13
    expected = packed_record(b"a", 13, BATCH_CONTINUES) + packed_record(b"b", 22)
    assert bench.segment[64 + 13 :].startswith(expected)


def test_what_is_not_simple_is_passed_to_overflow_encoded(impl: SimpleNamespace) -> None:
    """A message that takes the slow path is passed to `overflow` already encoded."""
    bench = Bench(impl, encode_text, window=0)
    assert bench.path.put("a") == 4711
    assert bench.path.put_all(["b", "c"]) == 4711
    assert bench.path.put_all([]) == 4711
    assert bench.overflowed == [[b"a"], [b"b", b"c"], []]


def test_items_can_be_encoded_without_sending(impl: SimpleNamespace) -> None:
    """`encode_all` returns the payloads of items without sending them."""
    bench = Bench(impl, encode_text)
    assert bench.path.encode_all(["a", "b"], 0) == [b"a", b"b"]
    assert bench.path.encode_all([], 5) == []
    assert bench.untouched


# What does not fit


def test_an_error_of_the_encoder_is_refused_with_its_cause(impl: SimpleNamespace) -> None:
    """An error of the encoder is refused with its cause, and nothing is written."""
    bench = Bench(impl, encode_text)
    with pytest.raises(RefusedError):
        bench.path.put("\N{SNOWMAN}")
    ((item, error, index),) = bench.refused
    assert (item, index) == ("\N{SNOWMAN}", None)
    assert isinstance(error, UnicodeEncodeError)
    assert error.__traceback__ is not None
    assert bench.untouched


@pytest.mark.parametrize("payload", [None, "text", bytearray(b"x"), 5])
def test_an_encoder_must_return_bytes(impl: SimpleNamespace, payload: object) -> None:
    """An encoder that does not return bytes is refused like one that raises."""
    bench = Bench(impl, lambda item: payload)
    with pytest.raises(RefusedError):
        bench.path.put("x")
    with pytest.raises(RefusedError):
        bench.path.put_all(["x"])
    for _, error, _ in bench.refused:
        assert isinstance(error, TypeError)
        assert str(error) == f"the codec's encode() returned {type(payload).__name__}, not bytes"
    assert bench.untouched


@pytest.mark.parametrize("item", [None, "text", [1], 5])
def test_without_an_encoder_only_buffers_are_sent(impl: SimpleNamespace, item: object) -> None:
    """Without an encoder anything but a buffer is refused, also a number, which does not mean so many zeros."""
    bench = Bench(impl)
    for put in (bench.path.put, lambda i: bench.path.put_all([i]), lambda i: bench.path.encode_all([i], 5)):
        with pytest.raises(RefusedError):
            put(item)
    assert bench.refused == [(item, None, None), (item, None, 0), (item, None, 5)]
    assert bench.untouched


def test_a_buffer_that_cannot_be_read_is_refused_with_its_cause(impl: SimpleNamespace) -> None:
    """A buffer that cannot be read, such as a released view, is refused with its cause."""
    bench, view = Bench(impl), memoryview(b"x")
    view.release()
    with pytest.raises(RefusedError):
        bench.path.put(view)
    assert isinstance(bench.refused[0][1], ValueError)
    assert bench.untouched


def test_a_bad_item_of_a_list_names_its_index(impl: SimpleNamespace) -> None:
    """A bad item of a list is refused with its index, counted from the given start, and nothing of the batch is
    written.
    """
    bench = Bench(impl, encode_text)
    with pytest.raises(RefusedError):
        bench.path.put_all(["a", "b", "\N{SNOWMAN}", "d"])
    with pytest.raises(RefusedError):
        bench.path.encode_all(["a", "\N{SNOWMAN}"], 100)
    assert [index for _, _, index in bench.refused] == [2, 101]
    assert bench.untouched


def test_an_interruption_of_the_encoder_is_not_refused(impl: SimpleNamespace) -> None:
    """An exception of the encoder that is not an `Exception` passes through."""

    def encode(item: object) -> bytes:
        raise StopNow

    bench = Bench(impl, encode)
    for put in (bench.path.put, lambda item: bench.path.put_all([item])):
        with pytest.raises(StopNow):
            put("x")
    assert bench.refused == []
    assert bench.untouched


def test_refuse_must_raise(impl: SimpleNamespace) -> None:
    """A `refuse` that returns is an error, because there is no payload."""
    bench = Bench(impl)
    for encode, into in (
        (encode_text, None),
        (lambda item: None, None),
        (encode_text, lambda item, buffer: 1 / 0),
        (None, None),
    ):
        path = impl.SendPath(bench.writer, encode, lambda *arguments: None, into, (int,))
        with pytest.raises(SystemError, match="refuse\\(\\) must raise"):
            path.put(5)
        with pytest.raises(SystemError, match="refuse\\(\\) must raise"):
            path.put_all([5])
    assert bench.untouched


# Into a buffer


def encode_into(item: str, buffer: bytearray) -> None:
    """Encode text into a buffer, with a result that differs from encode_text."""
    buffer[:] = b"into " + item.encode("ascii")


def test_items_of_exact_types_are_encoded_into_a_buffer(impl: SimpleNamespace) -> None:
    """Direct instances of exact types are encoded into a buffer, and other values and subclasses with `encode`."""
    bench = Bench(impl, lambda item: b"plain", encode_into, (str, bytes))
    for item in ("a", type("Text", (str,), {})("b"), 5, "longer than before", "c"):
        bench.path.put(item)
    payloads = [b"into a", b"plain", b"plain", b"into longer than before", b"into c"]
    assert bench.segment[64:].startswith(packed_records(payloads, 0))
    assert bench.refused == []


def test_no_exact_type_means_no_buffer(impl: SimpleNamespace) -> None:
    """Without exact types every item is encoded with `encode`."""
    bench = Bench(impl, encode_text, encode_into)
    assert bench.path.encode_all(["a"], 0) == [b"a"]


def test_a_batch_may_be_encoded_both_ways(impl: SimpleNamespace) -> None:
    """A batch of any size may mix both ways to encode, and keeps its order."""
    bench = Bench(impl, lambda item: b"%d" % item, encode_into, (str,), room=1 << 17)
    items: list[Any] = [number if number % 3 else "x" * number for number in range(300)]
    payloads = [b"%d" % number if number % 3 else b"into " + b"x" * number for number in range(300)]
    assert bench.path.encode_all(items, 0) == payloads
    assert bench.path.put_all(items) == 0
    content = b""
    for number, payload in enumerate(payloads):
        content += packed_record(payload, len(content), BATCH_CONTINUES if number < 299 else 0)
    assert bench.segment[64:].startswith(content)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65536, 65537, 200_000])
def test_a_buffer_grows_and_shrinks_with_its_items(impl: SimpleNamespace, size: int) -> None:
    """The buffer grows and shrinks with its items, and nothing of one message appears in the next."""

    def encode_into(item: int, buffer: bytearray) -> None:
        buffer[:] = b"x" * item

    bench = Bench(impl, encode_text, encode_into, (int,), room=1 << 20)
    sizes = [3, size, 0, size, 5]
    for each in sizes:
        bench.path.put(each)
    assert bench.segment[64:].startswith(packed_records([b"x" * each for each in sizes], 0))
    assert bench.path.encode_all(sizes, 0) == [b"x" * each for each in sizes]


def test_what_goes_to_overflow_is_bytes(impl: SimpleNamespace) -> None:
    """Payloads are passed to `overflow` as bytes, a copy of the buffer."""
    bench = Bench(impl, encode_text, encode_into, (str,), window=0)
    bench.path.put("a")
    bench.path.put_all(["b", "c"])
    bench.path.put("d")
    assert bench.overflowed == [[b"into a"], [b"into b", b"into c"], [b"into d"]]
    assert {type(payload) for payloads in bench.overflowed for payload in payloads} == {bytes}


def test_an_encoder_may_keep_the_buffer(impl: SimpleNamespace) -> None:
    """If an encoder keeps the buffer or a view of it, the next message uses another buffer."""
    kept: list[object] = []

    def encode_into(item: str, buffer: bytearray) -> None:
        buffer[:] = item.encode()
        kept.extend((buffer, memoryview(buffer)))

    bench = Bench(impl, encode_text, encode_into, (str,))
    for item in ("first", "second", "third"):
        bench.path.put(item)
    assert [bytes(one) for one in kept] == [b"first"] * 2 + [b"second"] * 2 + [b"third"] * 2
    assert bench.segment[64:].startswith(packed_records([b"first", b"second", b"third"], 0))


def test_an_encoder_may_send_on_the_same_path(impl: SimpleNamespace) -> None:
    """What an encoder sends on the same path while it encodes is sent first, and neither send disturbs the other."""

    def encode_into(item: int, buffer: bytearray) -> None:
        buffer[:] = b"%d" % item * 20
        if item:
            bench.path.put(item - 1)

    bench = Bench(impl, encode_text, encode_into, (int,))
    bench.path.put(3)
    assert bench.segment[64:].startswith(packed_records([b"%d" % number * 20 for number in range(4)], 0))


def test_msgspec_encodes_into_the_buffer(impl: SimpleNamespace) -> None:
    """The encoders of msgspec are called directly with the buffer."""
    encoder = msgspec.msgpack.Encoder()
    bench = Bench(impl, encoder.encode, encoder.encode_into, (dict,), room=1 << 16)
    items = [{"number": number, "text": "t" * number} for number in range(100)]
    for item in items:
        bench.path.put(item)
        bench.path.put([item])
    payloads = [encoder.encode(part) for item in items for part in (item, [item])]
    assert bench.segment[64:].startswith(packed_records(payloads, 0))
    assert bench.path.encode_all(items, 0) == [encoder.encode(item) for item in items]
    with pytest.raises(RefusedError):
        bench.path.put({"thing": object()})
    assert isinstance(bench.refused[0][1], TypeError)


def test_an_error_of_encode_into_is_refused_with_its_cause(impl: SimpleNamespace) -> None:
    """An error of `encode_into` is refused with its cause, and the next message is encoded correctly."""
    bench = Bench(impl, encode_text, encode_into, (str,))
    with pytest.raises(RefusedError):
        bench.path.put("\N{SNOWMAN}")
    with pytest.raises(RefusedError):
        bench.path.put_all(["a", "\N{SNOWMAN}"])
    assert [(type(error), index) for _, error, index in bench.refused] == [
        (UnicodeEncodeError, None),
        (UnicodeEncodeError, 1),
    ]
    assert bench.untouched
    assert bench.path.put("a") == 0


# Lists


@pytest.mark.parametrize("items", [None, (), ("a",), "ab", iter(["a"]), type("L", (list,), {})(["a"])])
def test_items_must_be_a_list(impl: SimpleNamespace, items: object) -> None:
    """`put_all` and `encode_all` accept only a list, because other iterables may change between two reads."""
    bench = Bench(impl, encode_text)
    with pytest.raises(TypeError, match="items must be a list"):
        bench.path.put_all(items)
    with pytest.raises(TypeError, match="items must be a list"):
        bench.path.encode_all(items, 0)


@pytest.mark.parametrize("change", [list.pop, list.clear, lambda items: items.append("more")])
def test_a_list_that_changes_size_while_it_is_encoded_is_an_error(
    impl: SimpleNamespace, change: Callable[[list[str]], object]
) -> None:
    """A list that changes its size while it is encoded raises an error, and nothing is sent."""
    items = ["a", "b", "c"]

    def encode(item: str) -> bytes:
        change(items)
        return b"x"

    bench = Bench(impl, encode)
    with pytest.raises(RuntimeError, match="the list changed size while it was encoded"):
        bench.path.put_all(items)
    assert bench.untouched


def test_an_item_that_leaves_its_list_while_it_is_encoded_stays_alive(impl: SimpleNamespace) -> None:
    """An item that its encoder removes from the list stays alive until it is encoded."""
    items: list[Any] = [["a"], ["b"]]

    def encode(item: list[str]) -> bytes:
        items[:] = [None, ["b"]]
        gc.collect()
        return item[0].encode()

    bench = Bench(impl, encode)
    assert bench.path.encode_all(items, 0) == [b"a", b"b"]


# With a time slice


def test_a_deferred_writer_is_left_alone(impl: SimpleNamespace) -> None:
    """With a deferred writer `put_or_yield` returns None and does nothing, because a flush has to be awaited."""
    encoded: list[object] = []
    bench = Bench(impl, lambda item: encoded.append(item) or b"x")
    assert bench.path.deferred is False
    bench.writer.defer(True)
    assert bench.path.deferred is True
    assert bench.path.put_or_yield("a") is None
    assert encoded == []
    assert bench.untouched
    bench.writer.defer(False)
    impl.begin_slice()
    assert bench.path.put_or_yield("a") == 0


def test_put_or_yield_refuses_like_put(impl: SimpleNamespace) -> None:
    """`put_or_yield` refuses an item like `put`, without an index."""
    bench = Bench(impl)
    impl.begin_slice()
    with pytest.raises(RefusedError):
        bench.path.put_or_yield(5)
    assert bench.refused == [(5, None, None)]


# Arguments and life


def test_a_send_path_needs_a_writer_and_a_tuple(impl: SimpleNamespace) -> None:
    """The constructor refuses a writer or exact types of a wrong type by name."""
    bench = Bench(impl)
    with pytest.raises(TypeError, match="writer must be a Writer, not int"):
        impl.SendPath(5, None, None, None)
    for exact in ([bytes], bytes, None):
        with pytest.raises(TypeError, match="exact must be a tuple of types"):
            impl.SendPath(bench.writer, None, None, None, exact)
    with pytest.raises(TypeError):
        impl.SendPath()
    with pytest.raises((TypeError, AttributeError)):
        impl.SendPath.__new__(impl.SendPath).put(b"x")


@pytest.mark.parametrize("first", [-1, 1 << 64])
def test_the_first_index_has_64_unsigned_bits(impl: SimpleNamespace, first: int) -> None:
    """The first index is an unsigned number of 64 bits, and anything else an error."""
    with pytest.raises(OverflowError, match="value does not fit the word"):
        Bench(impl).path.encode_all([b"x"], first)


def test_a_send_path_keeps_its_writer_alive(impl: SimpleNamespace) -> None:
    """A send path keeps its writer alive."""
    bench = Bench(impl)
    path = bench.path
    del bench
    gc.collect()
    assert path.put(b"x") == 0


def test_a_send_path_in_a_cycle_is_collected(impl: SimpleNamespace) -> None:
    """A send path whose callbacks refer to its owner is collected with the cycle."""
    bench = Bench(impl, encode_text)
    alive = weakref.ref(bench)
    del bench
    gc.collect()
    assert alive() is None
