"""The C core and its readable reference are the same to their callers."""

from __future__ import annotations

import inspect
import mmap
import os
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from filechannel._format import NOTHING, crc32c, layout, store_u64
from filechannel._format.layout import (
    APPEND_TAIL,
    BATCH_CONTINUES,
    CAPACITY_WAKE,
    CAPACITY_WATCHED,
    CONTROL_RECORD,
    CONTROL_SIZE,
    CURSOR_SLOTS,
    EPOCH,
    GROUP_SIZE,
    INDEX_CHECKED,
    REGISTRATIONS,
    RESERVED_END,
    SEGMENT_BEGIN,
    SEGMENT_CRC,
    SEGMENT_CREATED,
    SEGMENT_END,
    SEGMENT_END_CRC,
    SEGMENT_HEADER_SIZE,
    STATE,
    STATE_SEALED,
    TAIL_SLOTS,
    WAKE,
    WRITE_TAIL,
    WRITER_LOCK,
)
from tests.format.implementations import CLASSES, FUNCTIONS, NAMES
from tests.format.pages import (
    FOREVER,
    ZERO_HEADER_OFFSET,
    cursor_slots,
    new_control,
    new_cursor,
    new_segment,
    packed_record,
    set_cursor,
    set_tail,
)

Implementations = tuple[SimpleNamespace, SimpleNamespace]
TOP = (1 << 64) - 1

# A session-scoped fixture is the same for every example.
quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Return what a call answers, or the type and the message of its error."""
    try:
        answer = call()
    except (Exception, StopNow) as error:
        # What the buffer protocol itself says depends on the exporter.
        message = "" if isinstance(error, BufferError) else str(error).removeprefix("memoryview: ")
        # C knows the full name of a type that was made in C.
        return type(error), message.replace("array.array", "array").replace("filechannel._format._core.", "")
    return type(answer), answer


# Names


def shape(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    """Return a signature without its annotations: C has none."""
    return [(parameter.name, parameter.kind, parameter.default) for parameter in signature.parameters.values()]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_agree(both: Implementations, name: str) -> None:
    """Functions and constructors of both implementations take the same arguments."""
    pure, native = (getattr(impl, name) for impl in both)
    assert shape(inspect.signature(pure)) == shape(inspect.signature(native))


def members_of(class_: type) -> dict[str, Any]:
    """Return what a class offers, methods and properties."""
    return {name: member for name, member in vars(class_).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_members_agree(both: Implementations, name: str) -> None:
    """Methods of both implementations take the same arguments, and attributes are read-only attributes in both."""
    pure, native = (members_of(getattr(impl, name)) for impl in both)
    assert set(pure) == set(native)
    for member in pure:
        if isinstance(pure[member], property):
            assert pure[member].fset is None
            assert inspect.isgetsetdescriptor(native[member])
        else:
            # `self` apart: whether it could be passed by keyword does not matter.
            assert shape(inspect.signature(pure[member]))[1:] == shape(inspect.signature(native[member]))[1:], member


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_documented_alike(both: Implementations, name: str) -> None:
    """Everything in both implementations has a docstring, with the same first words."""
    pure, native = (getattr(impl, name) for impl in both)
    pairs = [(pure, native)]
    if name in CLASSES:
        pairs += [(members_of(pure)[member], members_of(native)[member]) for member in members_of(pure)]
    for one, other in pairs:
        first, second = inspect.getdoc(one), inspect.getdoc(other)
        assert first
        assert second
        assert first.split()[:2] == second.split()[:2]


def test_the_attributes_of_the_native_core_are_read_only(both: Implementations) -> None:
    """The attributes of the native core are read-only, as properties without a setter are."""
    for impl in both:
        writer = impl.Writer(new_control(), 1, 1, None, None)
        reader = impl.Reader(new_control(), None, None, None, None, None)
        for thing, name in ((writer, "pending"), (writer, "deferred"), (reader, "offset"), (reader, "sequence")):
            with pytest.raises(AttributeError):
                setattr(thing, name, 5)


@pytest.mark.usefixtures("both")
def test_the_numbers_of_the_c_core_are_those_of_the_layout() -> None:
    """Every number in layout.h is that of layout.py."""
    from filechannel._format import _core

    expected = {name: getattr(layout, name) for name in _core.LAYOUT if hasattr(layout, name)}
    expected |= {f"TAIL_SLOT_{index}": distance for index, distance in enumerate(layout.TAIL_SLOTS)}
    expected |= {f"CURSOR_SLOT_{index}": position for index, position in enumerate(layout.CURSOR_SLOTS)}
    assert expected == _core.LAYOUT
    assert len(_core.LAYOUT) == 65


@pytest.mark.usefixtures("both")
def test_the_c_core_says_how_it_computes_checksums() -> None:
    """The native core names the way it computes checksums, one of three."""
    from filechannel._format import _core

    assert _core.CRC32C_METHOD in ("sse4.2", "armv8", "table")


def test_nothing_is_one_object(both: Implementations) -> None:
    """`NOTHING` is one object, so that a comparison with `is` works in both implementations."""
    for impl in both:
        assert impl.Reader(new_control(), None, None, None, None, None).take() is NOTHING


# The same bytes


payloads = st.binary(max_size=60)
numbers = st.one_of(
    st.integers(0, 300),
    st.sampled_from([-1, 1 << 31, 1 << 32, 1 << 40, 1 << 63, TOP - 8, TOP, TOP + 1, -(1 << 70), ZERO_HEADER_OFFSET]),
)
flags = st.sampled_from([0, BATCH_CONTINUES, CONTROL_RECORD, BATCH_CONTINUES | CONTROL_RECORD, 1, 1 << 32])


@st.composite
def damaged_records(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return records that follow each other from an offset on, a few bits of them flipped, and the offset."""
    offset = draw(st.sampled_from([0, 5, 1 << 40, TOP - 100, ZERO_HEADER_OFFSET]))
    content = bytearray(draw(st.binary(max_size=12)))
    for payload in draw(st.lists(payloads, max_size=6)):
        content += packed_record(payload, (offset + len(content)) & TOP, draw(flags) & ~1 & 0xFFFFFFFF)
    content += bytes(draw(st.integers(0, 20)))
    for bit in draw(st.lists(st.integers(0, max(8 * len(content) - 1, 0)), max_size=2)) if content else []:
        content[bit // 8] ^= 1 << bit % 8
    return bytes(content), offset


@quick
@given(data=st.binary(max_size=3000), value=st.one_of(st.just(0), st.integers(0, 1 << 32), numbers))
def test_checksums_agree(both: Implementations, data: bytes, value: int) -> None:
    """Both implementations compute the same checksum of any bytes from any start value."""
    pure, native = (outcome(lambda impl=impl: impl.crc32c(data, value)) for impl in both)
    assert pure == native


@quick
@given(size=st.integers(0, 90), position=numbers, offset=numbers, flags=flags, payload=payloads)
def test_written_records_agree(
    both: Implementations, size: int, position: int, offset: int, flags: int, payload: bytes
) -> None:
    """Both implementations write the same record and return or raise the same."""
    buffers = bytearray(b"\x5a" * size), bytearray(b"\x5a" * size)
    answers = [
        outcome(lambda impl=impl, buffer=buffer: impl.write_record(buffer, position, offset, flags, payload))
        for impl, buffer in zip(both, buffers, strict=True)
    ]
    assert answers[0] == answers[1]
    assert buffers[0] == buffers[1]


@quick
@given(records=damaged_records(), position=st.integers(0, 40), behind=st.integers(-40, 5), shift=st.integers(-1, 1))
@example(records=(bytes(32), ZERO_HEADER_OFFSET), position=0, behind=0, shift=0)
def test_read_records_agree(
    both: Implementations, records: tuple[bytes, int], position: int, behind: int, shift: int
) -> None:
    """Both implementations read, scan, skip and find the same, in whole and damaged records and any range."""
    content, begin = records
    stop = len(content) + behind
    for name in ("read_record", "scan_records", "find_record"):
        for at in (0, position):
            arguments = (content, at, stop, begin + at + shift)
            pure, native = (outcome(partial(getattr(impl, name), *arguments)) for impl in both)
            assert pure == native, name
    for most in (0, 1, 2, 1 << 63):
        arguments = (content, position, stop, begin + position + shift, most)
        pure, native = (outcome(partial(impl.skip_records, *arguments)) for impl in both)
        assert pure == native, most


WORD_FUNCTIONS = {
    "load_u32": 0,
    "load_u64": 0,
    "store_u32": 1,
    "store_u64": 1,
    "swap_if_u32": 2,
    "release_word": 0,
    "wake_word": 1,
    "wake_waiters": 0,
    "set_bit": 1,
    "take_bits": 1,
}
"""How many numbers follow the position."""


@quick
@given(
    content=st.binary(max_size=24),
    name=st.sampled_from(list(WORD_FUNCTIONS)),
    position=st.one_of(st.integers(0, 24), numbers),
    values=st.tuples(numbers, numbers),
)
def test_words_agree(both: Implementations, content: bytes, name: str, position: int, values: tuple[int, int]) -> None:
    """Both implementations load, store and swap words in the same way, inside and outside of the buffer."""
    taken = WORD_FUNCTIONS[name]
    buffers = bytearray(content), bytearray(content)
    answers = [
        outcome(lambda impl=impl, buffer=buffer: getattr(impl, name)(buffer, position, *values[:taken]))
        for impl, buffer in zip(both, buffers, strict=True)
    ]
    assert answers[0] == answers[1]
    assert buffers[0] == buffers[1]


# The same operations


class StopNow(BaseException):
    """Something like KeyboardInterrupt."""


Step = tuple[str, tuple[Any, ...]]


def steps(**kinds: tuple[st.SearchStrategy[Any], ...]) -> st.SearchStrategy[list[Step]]:
    """Return lists of steps: a name and its arguments."""
    one = [st.tuples(st.just(name), st.tuples(*arguments)) for name, arguments in kinds.items()]
    return st.lists(st.one_of(one), min_size=1, max_size=25)


def timeless(segment: bytes | bytearray) -> bytes:
    """Return a segment without its creation time, which is in its checksum too; that has to be right."""
    if any(segment[SEGMENT_CREATED : SEGMENT_CREATED + 8]):
        crc = crc32c(segment[SEGMENT_END + 8 : SEGMENT_CRC], crc32c(segment[:SEGMENT_END]))
        assert crc.to_bytes(4, "little") == segment[SEGMENT_CRC:SEGMENT_END_CRC]
    return bytes(segment[:SEGMENT_CREATED] + segment[SEGMENT_END_CRC:])


class WriterRun:
    """One implementation's writer and send path on separate pages."""

    def __init__(self, impl: SimpleNamespace, begin: int, directory: Path | None = None) -> None:
        self.begin, self.directory = begin, directory
        self.control = new_control(begin, 3, begin)
        self.segments: list[bytearray] = []
        self.calls: list[Any] = []
        self.writer = impl.Writer(self.control, 9, 50, self.overflow, lambda: self.calls.append("notify"))
        self.path = impl.SendPath(self.writer, self.encode, self.refuse, self.encode_into, (str,))

    def overflow(self, payloads: list[bytes]) -> int:
        """Roll to the next segment, as a log would; else note what overflowed, and fail now and then."""
        if len(payloads) == 1 and (start := self.writer.fast_roll(payloads[0])) is not None:
            self.writer.wake_receivers()
            return int(start)
        self.calls.append(("overflow", list(payloads)))
        if payloads and payloads[0].startswith(b"E"):
            raise OSError("overflow")
        return 5

    def encode(self, item: bytes) -> Any:
        """Encode, or fail in some way."""
        if item.startswith(b"!"):
            raise StopNow
        return item if not item.startswith(b"?") else item.hex()

    def encode_into(self, item: str, buffer: bytearray) -> None:
        """Encode into a buffer, or fail in some way."""
        if item.startswith("!"):
            raise StopNow
        buffer[:] = item.encode("ascii")

    def refuse(self, item: object, error: Exception | None, index: int | None) -> None:
        """Note what was refused, and raise."""
        self.calls.append(("refuse", item, repr(error), index))
        raise LookupError(index)

    def do(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Do one step and return its outcome."""
        if name.startswith(("put", "encode")):
            return outcome(lambda: getattr(self.path, name)(*arguments))
        call = getattr(self, f"do_{name}", None) or getattr(self.writer, name)  # a misspelt step is not an outcome
        assert callable(call), name
        return outcome(lambda: call(*arguments))

    def do_fresh_segment(self, room: int, distance: int) -> None:
        """Bind an empty segment."""
        self.segments.append(new_segment(room))
        self.writer.bind(self.segments[-1], self.begin + distance)

    def do_spare(self, room: int, window: int, watched: str | None, kept: bool) -> None:
        """Prepare a file to roll to, which may be missing; a hook may watch, and fail at a step."""
        assert self.directory is not None
        number = len(self.segments)
        path = self.directory / f"spare-{number}"
        path.touch()
        found = path.stat()
        if not kept:
            path.unlink()
        self.segments.append(new_segment(room))
        header = self.segments[-1][:SEGMENT_HEADER_SIZE]
        arguments = header, found.st_dev, found.st_ino, os.fsencode(path.name), f"{0:020}.seg".encode(), 0, window
        watch = None if watched is None else partial(self.watch, watched)
        directory = os.open(self.directory, os.O_PATH | os.O_DIRECTORY)
        try:
            notify = partial(self.calls.append, "notify")
            self.writer.prepare_next(number, self.segments[-1], *arguments, notify, watch, directory)
        finally:
            os.close(directory)

    def do_roll(self, room: int, distance: int, allocated: int, outcome: str) -> None:
        """Roll on the slow path to a segment at a distance from the tail; the rename may fail, or unbind the writer."""
        begin, number = self.writer.pending + distance, len(self.segments)
        self.segments.append(new_segment(room))
        header = bytearray(self.segments[-1][:SEGMENT_HEADER_SIZE])
        store_u64(header, SEGMENT_BEGIN, begin & ((1 << 64) - 1))

        def rename() -> None:
            self.calls.append("rename")
            if outcome == "raises":
                raise StopNow
            if outcome == "unbinds":
                self.writer.unbind()

        self.writer.roll(number, self.segments[-1], bytes(header), allocated, rename)

    def watch(self, failing: str, step: str) -> None:
        """Note a step of the roll, and fail at one of them."""
        self.calls.append(step)
        if step == failing:
            raise StopNow

    def do_forget(self, back: int) -> None:
        """Release a file that was prepared lately."""
        self.writer.forget_next(len(self.segments) - back)

    def do_pending_roll(self) -> Any:
        """Return the pending roll without its time."""
        pending_roll = self.writer.pending_roll
        return pending_roll and (pending_roll[0], timeless(pending_roll[1]))

    def do_room(self, end: int, due: int) -> None:
        """Open a window."""
        self.writer.open_window(self.begin + end, due)

    def do_ahead(self, end: int, distance: int) -> None:
        """Have pages made present."""
        self.writer.populate_ahead(self.begin + end, distance)

    def do_marks(self) -> list[tuple[int, int]]:
        """Take the marks, whose times differ."""
        return [
            (offset, sequence) for offset, sequence, _ in INDEX_CHECKED.iter_unpack(self.writer.take_index_entries())
        ]

    def do_poke(self, position: int, content: bytes) -> None:
        """Write over words of the control page."""
        self.control[position : position + len(content)] = content

    def do_move_tail(self, tail: int, end: int, slot: int) -> None:
        """Move a tail, as another writer would."""
        set_tail(self.control, tail, self.begin + end, 7, self.begin, slot)

    def state(self) -> tuple[Any, ...]:
        """Return everything that can be seen from outside."""
        writer = self.writer
        return (
            bytes(self.control),
            [timeless(segment) for segment in self.segments],
            self.directory and sorted(path.name for path in self.directory.iterdir()),
            self.calls,
            writer.pending,
            writer.pending_sequence,
            writer.deferred,
            writer.current,
            writer.alone,
        )


lists = st.lists(st.binary(max_size=20), max_size=4)
items = st.one_of(
    st.text("a", max_size=12),
    st.text("aé!", max_size=12),
    st.sampled_from([b"", b"plain", b"!", b"?", 5]),
)
tails = st.sampled_from([WRITE_TAIL, APPEND_TAIL])
pokes = st.one_of(
    st.sampled_from([WRITER_LOCK, EPOCH, STATE, WAKE, RESERVED_END, REGISTRATIONS]),
    tails,
    st.builds(lambda tail, slot, more: tail + TAIL_SLOTS[slot] + more, tails, st.integers(0, 1), st.integers(0, 27)),
)
writing = steps(
    append=(payloads,),
    append_all=(lists,),
    start=(),
    change=(),
    write=(lists, st.one_of(st.integers(0, 3), numbers), flags),
    publish=(),
    wake_receivers=(),
    fresh_segment=(st.integers(0, 200), st.sampled_from([0, 0, 0, 40, 100])),
    room=(st.integers(-5, 210), st.sampled_from([FOREVER, FOREVER, FOREVER, 0])),
    limit_window=(st.one_of(st.integers(0, 9), numbers), st.sampled_from([0, 0, 1])),
    index_next=(),
    marks=(),
    ahead=(st.integers(-5, 210), st.one_of(st.integers(0, 100), numbers)),
    unbind=(),
    defer=(st.sampled_from([False, False, True]),),
    poke=(pokes, st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x00" * 4, b"\xff" * 8])),
    move_tail=(tails, st.integers(0, 60), st.integers(0, 1)),
    put=(items,),
    put_all=(st.lists(items, max_size=4),),
    encode_all=(st.lists(items, max_size=4), st.integers(0, 9)),
)
opening: list[Step] = [("fresh_segment", (200, 0)), ("room", (150, FOREVER))]


@settings(quick, max_examples=400)
@given(begin=st.sampled_from([0, 1 << 40, TOP - 150, TOP - 1000]), plan=writing)
def test_writers_agree(both: Implementations, begin: int, plan: list[Step]) -> None:
    """After any sequence of calls with changed words, both writers left the same bytes, results and callbacks."""
    pure, native = (WriterRun(impl, begin) for impl in both)
    for name, arguments in opening + plan:
        assert pure.do(name, arguments) == native.do(name, arguments), name
        assert pure.state() == native.state(), name


going_on = steps(
    append=(payloads,),
    put=(items,),
    append_all=(lists,),
    fast_roll=(payloads,),
    spare=(
        st.integers(0, 200),
        st.one_of(st.integers(0, 210), numbers),
        st.sampled_from([None, None, "", "check", "end", "header", "replace", "publish"]),
        st.sampled_from([True, True, True, False]),
    ),
    forget=(st.integers(0, 2),),
    roll=(
        st.integers(0, 200),
        st.sampled_from([0, 0, 0, -20, 40]),
        st.integers(0, 210),
        st.sampled_from(["", "", "raises", "unbinds"]),
    ),
    pending_roll=(),
    acknowledge_roll=(),
    marks=(),
    change=(),
    start=(),
    fresh_segment=(st.integers(20, 200), st.sampled_from([0, 40])),
    room=(st.integers(-5, 210), st.sampled_from([FOREVER, FOREVER, 0])),
    limit_window=(st.integers(0, 9), st.just(0)),
    ahead=(st.integers(-5, 210), st.integers(0, 100)),
    defer=(st.sampled_from([False, False, True]),),
    move_tail=(tails, st.integers(0, 60), st.integers(0, 1)),
    poke=(pokes, st.sampled_from([b"\x00", b"\x01", b"\x00" * 4])),
)
nearly_full: list[Step] = [
    ("start", ()),
    ("fresh_segment", (100, 0)),
    ("room", (100, FOREVER)),
    ("append", (bytes(40),)),
    ("append", (bytes(36),)),
    ("spare", (150, 100, None, True)),
]


@settings(quick, max_examples=300)
@example(begin=0, plan=[("append", (b"first",)), ("append", (b"second",)), ("pending_roll", ()), ("marks", ())])
@example(begin=0, plan=[("append", (b"",)), ("poke", (WAKE, b"\x01")), ("append", (b"",))])
@example(begin=0, plan=[("spare", (150, 100, "publish", True)), ("append", (b"first",)), ("pending_roll", ())])
@example(begin=0, plan=[("roll", (150, 0, 100, "")), ("room", (200, FOREVER)), ("append", (b"x",)), ("marks", ())])
@example(begin=0, plan=[("roll", (150, 0, 100, "raises")), ("append", (b"x",)), ("start", ()), ("append", (b"x",))])
@given(begin=st.sampled_from([0, 1 << 40, TOP - 150, TOP - 1000]), plan=going_on)
def test_writers_that_roll_agree(
    both: Implementations, tmp_path_factory: pytest.TempPathFactory, begin: int, plan: list[Step]
) -> None:
    """Both writers roll from segment to segment with the same bytes, names, results and callbacks."""
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as directory:
        places = [Path(directory, name) for name in ("pure", "native")]
        for place in places:
            place.mkdir()
        pure, native = (WriterRun(impl, begin, place) for impl, place in zip(both, places, strict=True))
        for name, arguments in nearly_full + plan:
            assert pure.do(name, arguments) == native.do(name, arguments), name
            assert pure.state() == native.state(), name


def test_the_next_segment_is_begun_by_either_implementation(impl: SimpleNamespace, tmp_path: Path) -> None:
    """A fast roll of either implementation writes name, first record and the end of the former segment."""
    run = WriterRun(impl, 0, tmp_path)
    for name, arguments in nearly_full:
        run.do(name, arguments)
    assert run.writer.append(b"first") == 92
    assert [path.name for path in tmp_path.iterdir()] == [f"{92:020}.seg"]
    assert int.from_bytes(run.segments[0][SEGMENT_END : SEGMENT_END + 8], "little") == 92
    assert run.segments[1][SEGMENT_HEADER_SIZE:].startswith(packed_record(b"first", 92))
    assert run.writer.pending_roll == (1, bytes(run.segments[1][:SEGMENT_HEADER_SIZE]))
    assert run.calls == []
    assert run.writer.append(b"second") == 105
    assert run.calls == ["notify"]


class ReaderRun:
    """One implementation's reader on separate pages: three segments that follow each other, the last half filled."""

    def __init__(
        self, impl: SimpleNamespace, begin: int, records: list[tuple[bytes, int]], *, reuse: bool = False
    ) -> None:
        self.begin, self.calls = begin, list[Any]()
        self.segments: list[tuple[int, bytearray]] = []
        offset = begin
        for third in range(3):
            content, start = b"", offset
            for payload, kind in records[third::3]:
                content += packed_record(payload, offset, kind)
                offset = start + len(content)
            self.segments.append((start, new_segment(len(content) + 30, content, offset if third < 2 else 0)))
        self.end = offset
        self.control = new_control(offset, len(records), start)
        self.cursor = new_cursor()
        set_cursor(self.cursor, 6, begin, 0)
        self.patience = 0
        self.interrupted = False
        self.known: list[tuple[int, int]] = []
        arguments = (self.control, self.cursor, self.decode, self.advance, self.damaged, self.refuse, reuse)
        self.reader = impl.Reader(*arguments)
        self.reader.notify_capacity(lambda: self.calls.append(("room", cursor_slots(self.cursor))))
        self.reader.move(begin, 0)

    def decode(self, buffer: Any) -> Any:
        """Decode, or fail in some way."""
        payload = bytes(buffer)
        if payload.startswith(b"!") or (self.interrupted and not payload):
            raise StopNow
        return payload.decode("ascii")

    def advance(self, reader: Any) -> None:
        """Bind the segment that covers the reader's offset, or raise."""
        self.calls.append(("advance", reader.offset))
        self.lose_patience()
        following = [pair for pair in self.segments if pair[0] <= reader.offset]
        if not following:
            raise LookupError("before the first segment")
        start, segment = following[-1]
        end = int.from_bytes(segment[SEGMENT_END : SEGMENT_END + 8], "little")
        if end and reader.offset >= end:
            raise LookupError("between segments")
        reader.bind(segment, start)

    def damaged(self, reader: Any, reason: str) -> None:
        """Continue one byte further, or raise."""
        self.calls.append(("damaged", reader.offset, reason))
        self.lose_patience()
        if reader.offset % 2:
            raise LookupError(reason)
        reader.move(reader.offset + 1, reader.sequence)

    def lose_patience(self) -> None:
        """Raise at last: a reader that stays where it is would ask for ever."""
        self.patience += 1
        if self.patience > 30:
            raise LookupError("patience")

    def refuse(self, offset: int, next_offset: int, payload: bytes, error: Exception) -> None:
        """Note what was refused, and raise."""
        self.calls.append(("refuse", offset, next_offset, payload, repr(error)))
        raise LookupError(offset)

    def do(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Do one step and return its outcome."""
        self.patience = 0
        call = getattr(self, f"do_{name}", None) or getattr(self.reader, name)  # a misspelt step is not an outcome
        assert callable(call), name
        return outcome(lambda: call(*arguments))

    def do_seek(self, distance: int) -> None:
        """Move near the begin."""
        self.reader.move((self.begin + distance) & TOP, distance)

    def do_take_back(self) -> tuple[Any, ...]:
        """Be interrupted in the middle of many."""
        self.interrupted = True
        try:
            return outcome(lambda: self.reader.take_many(3))
        finally:
            self.interrupted = False

    def do_keep(self, which: int, shift: int) -> None:
        """Bind one of the segments, or nearly so."""
        start, segment = self.segments[which]
        self.reader.bind(segment, start + shift)

    def do_take_delivery(self) -> Any:
        """Take one, and remember it."""
        found = self.reader.take_delivery()
        if found is not NOTHING:
            self.known.append((found[1], found[4]))
        return found

    def do_settle_known(self, which: int) -> Any:
        """Acknowledge one that was taken, perhaps not for the first time."""
        return self.reader.acknowledge(*self.known[which % len(self.known)]) if self.known else None

    def do_redeliver_known(self, which: int, due: int, counted: bool) -> Any:
        """Return one that was received, perhaps not for the first time."""
        return self.reader.redeliver(*self.known[which % len(self.known)], due, counted) if self.known else None

    def do_want_room(self, who: int) -> None:
        """Let senders wait for capacity."""
        self.control[CAPACITY_WATCHED], self.control[CAPACITY_WAKE] = 1, who

    def do_seal(self) -> None:
        """Seal the channel."""
        self.control[STATE] = STATE_SEALED

    def do_flip(self, which: int, position: int, bit: int) -> None:
        """Flip a bit of a record."""
        segment = self.segments[which][1]
        segment[SEGMENT_HEADER_SIZE + position % (len(segment) - SEGMENT_HEADER_SIZE)] ^= 1 << bit

    def do_finish(self, which: int, distance: int) -> None:
        """Store some end in a segment's header."""
        start, segment = self.segments[which]
        end = max(start + distance, 0) & TOP
        segment[SEGMENT_END : SEGMENT_END + 8] = end.to_bytes(8, "little")

    def do_publish(self, distance: int) -> None:
        """Let readers read up to somewhere around the end."""
        end = (self.end + distance) & TOP
        self.control[WRITE_TAIL : WRITE_TAIL + 8] = end.to_bytes(8, "little")

    def state(self) -> tuple[Any, ...]:
        """Return everything that can be seen from outside."""
        reader = self.reader
        held = reader.outstanding, reader.ready, reader.next_due, reader.drained, reader.may_have_more
        waiting = bytes(self.control[CAPACITY_WAKE : CAPACITY_WAKE + 4])
        return reader.offset, reader.sequence, cursor_slots(self.cursor), self.calls, held, waiting


kinds = st.sampled_from([0, 0, 0, BATCH_CONTINUES, CONTROL_RECORD])
record_lists = st.lists(st.tuples(st.binary(max_size=20), kinds), max_size=12)
reading = steps(
    take=(),
    take_record=(),
    take_many=(st.one_of(st.integers(-1, 9), numbers),),
    move=(numbers, st.integers(0, 5)),
    move_from=(st.one_of(st.just(0), numbers), st.integers(0, 60), st.integers(0, 5)),
    seek=(st.integers(-3, 60),),
    keep=(st.integers(0, 2), st.sampled_from([0, 0, 0, 1])),
    unbind=(),
    release=(),
    flip=(st.integers(0, 2), st.integers(0, 200), st.integers(0, 7)),
    finish=(st.integers(0, 2), st.integers(-70, 70)),
    publish=(st.integers(-40, 40),),
    want_room=(st.integers(0, 255),),
)


@settings(quick, max_examples=400)
@given(begin=st.sampled_from([0, 100, 1 << 40, TOP - 400]), records=record_lists, plan=reading, reuse=st.booleans())
def test_readers_agree(
    both: Implementations, begin: int, records: list[tuple[bytes, int]], plan: list[Step], reuse: bool
) -> None:
    """After any sequence of calls over damaged and moving pages, both readers return the same items, errors and
    cursors.
    """
    pure, native = (ReaderRun(impl, begin, records, reuse=reuse) for impl in both)
    for name, arguments in plan:
        assert pure.do(name, arguments) == native.do(name, arguments), name
        assert pure.state() == native.state(), name


counts = st.one_of(st.integers(0, 4), numbers)
tokens = st.integers(0, 12)
dues = st.sampled_from([0, 0, 1, TOP - 1, TOP])
holding = steps(
    take=(),
    take_record=(),
    take_delivery=(),
    take_many=(st.integers(0, 9),),
    take_back=(),
    ack=(counts,),
    nack=(st.one_of(st.none(), counts),),
    settle_known=(tokens,),
    redeliver_known=(tokens, dues, st.booleans()),
    acknowledge=(numbers, tokens),
    redeliver=(numbers, tokens, dues, st.booleans()),
    ready_positions=(st.integers(-1, 5),),
    outlook=(),
    acknowledge_before=(numbers,),
    redeliver_all=(),
    seek=(st.integers(-3, 60),),
    move_from=(st.one_of(st.just(0), numbers), st.integers(0, 60), st.integers(0, 5)),
    forget=(),
    unbind=(),
    flip=(st.integers(0, 2), st.integers(0, 200), st.integers(0, 7)),
    publish=(st.integers(-40, 40),),
    want_room=(st.integers(0, 255),),
    seal=(),
    release=(),
)


@settings(quick, max_examples=600)
@given(begin=st.sampled_from([0, 100, 1 << 40, TOP - 400]), records=record_lists, plan=holding, reuse=st.booleans())
def test_readers_that_hold_agree(
    both: Implementations, begin: int, records: list[tuple[bytes, int]], plan: list[Step], reuse: bool
) -> None:
    """After any sequence of takes, acks and nacks both readers return the same items, errors and cursors."""
    pure, native = (ReaderRun(impl, begin, records, reuse=reuse) for impl in both)
    for run in (pure, native):
        run.reader.track_acks()
    for name, arguments in plan:
        assert pure.do(name, arguments) == native.do(name, arguments), name
        assert pure.state() == native.state(), name


# The same errors


class Hostile:
    """Arguments that no caller should pass, created again for each call."""

    class RaisingIndex:
        """No number at all."""

        def __index__(self) -> int:
            raise KeyError("no number")

    class HugeIndex:
        """A number that fits no word."""

        def __index__(self) -> int:
            return 1 << 64

    class Five:
        """A number in disguise."""

        def __index__(self) -> int:
            return 5

    @classmethod
    def values(cls) -> Iterator[tuple[str, Any]]:
        """Yield names and things."""
        closed = mmap.mmap(-1, mmap.PAGESIZE)
        closed.close()
        released = memoryview(bytearray(CONTROL_SIZE))
        released.release()
        yield from {
            "none": None,
            "zero": 0,
            "minus one": -1,
            "large": TOP - 7,
            "largest": TOP,
            "too large": TOP + 1,
            "very negative": -(1 << 100),
            "true": True,
            "float": 1.0,
            "nan": float("nan"),
            "text": "text",
            "raising index": cls.RaisingIndex(),
            "huge index": cls.HugeIndex(),
            "index": cls.Five(),
            "object": object(),
            "type": int,
            "empty bytes": b"",
            "bytes": bytes(range(70)),
            "empty bytearray": bytearray(),
            "short bytearray": bytearray(5),
            "bytearray": bytearray(200),
            "read-only view": memoryview(bytes(CONTROL_SIZE)),
            "strided view": memoryview(bytearray(2 * CONTROL_SIZE))[::2],
            "shaped view": memoryview(bytearray(64)).cast("B", (8, 8)),
            "wide view": memoryview(bytearray(64)).cast("Q"),
            "empty wide view": memoryview(array("Q")),
            "released view": released,
            "closed map": closed,
            "array": array("d", [1.5] * 20),
            "list": [b"x"],
            "list of anything": [b"x", None, 5],
            "tuple": (b"x",),
            "lambda": lambda *arguments: 5,
        }.items()


def is_callback(name: str, place: int) -> bool:
    """Return whether an argument is only stored: it fails when it is called."""
    stored = {"Writer": (3, 4), "SendPath": (1, 2, 3), "Reader": (2, 3, 4, 5, 6)}
    return place in stored.get(name, ())


SOUND: dict[str, Callable[[], list[Any]]] = {
    "crc32c": lambda: [b"abc", 5],
    "write_record": lambda: [bytearray(40), 0, 0, 0, b"abc"],
    "read_record": lambda: [packed_record(b"abc", 5), 0, 11, 5],
    "scan_records": lambda: [packed_record(b"abc", 5), 0, 11, 5],
    "write_cursor_slot": lambda: [bytearray(128), 1, 2, 3, 4],
    "skip_records": lambda: [packed_record(b"abc", 5), 0, 11, 5, 1],
    "find_record": lambda: [packed_record(b"abc", 5), 0, 11, 5],
    "load_u32": lambda: [bytearray(16), 4],
    "load_u64": lambda: [bytearray(16), 8],
    "store_u32": lambda: [bytearray(16), 4, 1],
    "store_u64": lambda: [bytearray(16), 8, 1],
    "swap_if_u32": lambda: [bytearray(16), 4, 0, 1],
    "swap_if_u64": lambda: [bytearray(16), 8, 0, 1],
    "add_u64": lambda: [bytearray(16), 8, 1],
    "advance_position": lambda: [bytearray(GROUP_SIZE), 2],
    "fence": list,
    "take_word": lambda: [bytearray(16), 4, 1, 0.0],
    "release_word": lambda: [bytearray(16), 4],
    "wait_word": lambda: [bytearray(16), 4, 1, 0.0],  # differs, so the call does not wait, however long
    "wake_word": lambda: [bytearray(16), 4, 1],
    "wake_waiters": lambda: [bytearray(b"\x07" * 16), 4],
    "spin_above": lambda: [bytearray(b"\x07" * 16), 8, 5, 0.0],  # is above, likewise
    "set_bit": lambda: [bytearray(16), 8, 5],
    "take_bits": lambda: [bytearray(b"\x05" * 24), 8, 2],
    "close_in_child": lambda: [1 << 20],
    "keep_in_child": lambda: [1 << 20],
    "begin_slice": list,
    "mount_id": lambda: [1 << 20],
    "link_count": lambda: [0],
    "named_inode": lambda: [1 << 20, b"name"],
    "slice_is_over": list,
    "own_send": lambda: [int],
    "own_receive": lambda: [int],
    "join_records": lambda: [[b"x", b""]],
    "split_records": lambda: [packed_record(b"x", 0)],
    "can_store": lambda: [bytearray(16), 0, 0],
    "populate": lambda: [bytearray(16), 0, 0],
    "show_file": lambda: [mmap.mmap(-1, 16), 1 << 40],
    "populate_soon": lambda: [bytearray(16), 0, 0],
    "populate_wait": list,
}
SOUND_METHODS: dict[tuple[str, str], Callable[[], list[Any]]] = {
    ("Writer", "append"): lambda: [b"x"],
    ("Writer", "append_all"): lambda: [[b"x"]],
    ("Writer", "start"): list,
    ("Writer", "change"): list,
    ("Writer", "write"): lambda: [[b"x"], 0, 0],
    ("Writer", "copy"): lambda: [packed_record(b"x", 7), 0, 9, 7, 0],
    ("Writer", "longest"): lambda: [[b"x", b"xyz", b""]],
    ("Writer", "wake_receivers"): list,
    ("Writer", "publish"): list,
    ("Writer", "bind"): lambda: [bytearray(200), 0],
    ("Writer", "open_window"): lambda: [100, FOREVER],
    ("Writer", "limit_window"): lambda: [100, 5],
    ("Writer", "unbind"): list,
    ("Writer", "close"): list,
    ("Writer", "prepare_next"): lambda: [5, bytearray(200), bytes(64), 1, 2, b"spare", b"0" * 20, 0, 100, int, None, 0],
    ("Writer", "forget_next"): lambda: [5],
    ("Writer", "fast_roll"): lambda: [b"x"],
    ("Writer", "acknowledge_roll"): list,
    ("Writer", "roll"): lambda: [5, bytearray(200), bytes(64), 100, int],
    ("Writer", "index_next"): list,
    ("Writer", "take_index_entries"): list,
    ("Writer", "populate_ahead"): lambda: [100, 50],
    ("Writer", "defer"): lambda: [True],
    ("Reader", "take"): list,
    ("Reader", "take_or_yield"): list,
    ("Reader", "take_record"): list,
    ("Reader", "take_delivery"): list,
    ("Reader", "take_many"): lambda: [3],
    ("Reader", "move"): lambda: [0, 0],
    ("Reader", "move_from"): lambda: [0, 0, 0],
    ("Reader", "bind"): lambda: [bytearray(200), 0],
    ("Reader", "unbind"): list,
    ("Reader", "track_acks"): list,
    ("Reader", "share"): lambda: [bytearray(GROUP_SIZE), 2, 5, None],
    ("Reader", "entry_number"): lambda: [0, 1],
    ("Reader", "refused"): lambda: [0],
    ("Reader", "take_lost"): list,
    ("Reader", "must_wake"): list,
    ("Reader", "ack"): lambda: [1],
    ("Reader", "nack"): lambda: [1],
    ("Reader", "acknowledge"): lambda: [0, 1],
    ("Reader", "redeliver"): lambda: [0, 1, 0, True],
    ("Reader", "ready_positions"): lambda: [3],
    ("Reader", "outlook"): list,
    ("Reader", "acknowledge_before"): lambda: [9],
    ("Reader", "redeliver_all"): list,
    ("Reader", "forget"): list,
    ("Reader", "release"): list,
    ("Reader", "sleep_with"): lambda: [bytearray(8), 0.5],
    ("Reader", "notify_capacity"): lambda: [list],
    ("Columns", "take"): lambda: [packed_record(b"\x05", 7), 0, 9, 7, 1],
    ("Columns", "put"): lambda: [b"\x05", 7],
    ("Columns", "finish"): list,
    ("RowEncoder", "encode"): lambda: [(1, 0, None, None, b"\x05", ())],
    ("SendPath", "put"): lambda: ["x"],
    ("SendPath", "put_or_yield"): lambda: ["x"],
    ("SendPath", "put_all"): lambda: [["x"]],
    ("SendPath", "encode_all"): lambda: [["x"], 0],
}


TARGET = object()
"""Replaced by a writer of the same implementation."""
CONSTRUCTORS: dict[str, Callable[[], list[Any]]] = {
    "Writer": lambda: [new_control(), 1, 100, None, None],
    "Reader": lambda: [new_control(), new_cursor(), None, None, None, None, True],
    "SendPath": lambda: [TARGET, None, None, None, ()],
    "Columns": lambda: [("int", False, ())],
    "RowEncoder": lambda: [("int", 1, 0, (), ())],
    "SendCore": list,
    "ReceiveCore": list,
    "AckCore": list,
}


def content_of(thing: Any) -> Any:
    """Return the bytes of an argument that a call may have changed."""
    return bytes(thing) if isinstance(thing, (bytearray, mmap.mmap)) and not getattr(thing, "closed", False) else None


def compare_hostile(
    implementations: Implementations,
    call: Callable[[SimpleNamespace], Callable[..., Any]],
    sound: Callable[[], list[Any]],
    skip: str = "",
) -> None:
    """Pass every hostile value as every argument of a call, and compare the implementations."""
    for place in range(len(sound())):
        if is_callback(skip, place):
            continue
        for (label, _), *hostile in zip(Hostile.values(), Hostile.values(), Hostile.values(), strict=True):
            results = []
            for impl, (_, value) in zip(implementations, hostile, strict=True):
                arguments = sound()
                arguments[place] = value
                impl.begin_slice()
                result = outcome(lambda impl=impl, arguments=arguments: call(impl)(*arguments))
                results.append((result, [content_of(argument) for argument in arguments]))
            if label in ("closed map", "raising index", "nan"):
                assert results[0][0][0] == results[1][0][0], (place, label)
            else:
                assert results[0] == results[1], (place, label)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hostile_arguments_of_functions(both: Implementations, name: str) -> None:
    """For hostile arguments functions of both implementations return the same, or raise the same typed error."""

    def call(impl: SimpleNamespace) -> Callable[..., Any]:
        function = getattr(impl, name)
        if name == "close_in_child":
            return lambda descriptor: impl.keep_in_child(function(descriptor))
        # Only a map can be populated by the pure implementation; C sees no difference. And only C can show a file.
        return function if name not in ("populate", "show_file") else lambda *arguments: type(function(*arguments))

    compare_hostile(both, call, SOUND[name])


@pytest.mark.parametrize("name", CLASSES)
def test_hostile_arguments_of_constructors(both: Implementations, name: str) -> None:
    """A constructor refuses a hostile argument at once."""

    def call(impl: SimpleNamespace) -> Callable[..., Any]:
        def make(*arguments: Any) -> None:
            getattr(impl, name)(*(WriterRun(impl, 0).writer if value is TARGET else value for value in arguments))

        return make

    compare_hostile(both, call, CONSTRUCTORS[name], skip=name)


def in_use(impl: SimpleNamespace, class_: str) -> Any:
    """Return an object of a class that has something to work on."""
    if class_ == "Reader":
        return ReaderRun(impl, 0, [(b"a", 0)] * 5).reader
    if class_ == "Columns":
        return impl.Columns(("int", False, ()))
    if class_ == "RowEncoder":
        return impl.RowEncoder(("int", 1, 0, (), ()))
    if class_.endswith("Core"):
        return getattr(impl, class_)()
    run = WriterRun(impl, 0)
    for name, arguments in opening:
        run.do(name, arguments)
    return run.writer if class_ == "Writer" else run.path


@pytest.mark.parametrize(("class_", "method"), SOUND_METHODS)
def test_hostile_arguments_of_methods(both: Implementations, class_: str, method: str) -> None:
    """For hostile arguments methods of an object in use return the same, or raise the same typed error."""

    def call(impl: SimpleNamespace) -> Callable[..., Any]:
        thing = in_use(impl, class_)
        if method in ("publish", "write", "copy"):
            thing.start()
        return getattr(thing, method)

    compare_hostile(both, call, SOUND_METHODS[class_, method])


def test_every_method_was_tried(both: Implementations) -> None:
    """Every method is in the tables of hostile arguments."""
    for name in CLASSES:
        if name.endswith("Core"):
            continue  # coroutines: see test_cores.py
        methods = {member for member, value in members_of(getattr(both[0], name)).items() if callable(value)}
        assert methods == {method for class_, method in SOUND_METHODS if class_ == name}
    assert set(SOUND) == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_number_of_arguments_is_an_error(both: Implementations, name: str) -> None:
    """One argument too many or too few, and any keyword, are an error in every function."""
    sound = SOUND[name]()
    least = 1 if name == "crc32c" else len(sound)
    for impl in both:
        function = getattr(impl, name)
        with pytest.raises(TypeError):
            function(*sound, 1)
        with pytest.raises(TypeError):
            function(*sound, keyword=1)
        if sound:
            with pytest.raises(TypeError):
                function(*sound[: least - 1])


@pytest.mark.parametrize(("class_", "method"), SOUND_METHODS)
def test_a_wrong_number_of_arguments_of_a_method_is_an_error(both: Implementations, class_: str, method: str) -> None:
    """One argument too many or too few, and any keyword, are an error in every method."""
    sound = SOUND_METHODS[class_, method]()
    for impl in both:
        thing = in_use(impl, class_)
        with pytest.raises(TypeError):
            getattr(thing, method)(*sound, 1)
        with pytest.raises(TypeError):
            getattr(thing, method)(*sound, keyword=1)
        if sound:
            with pytest.raises(TypeError):
                getattr(thing, method)(*sound[:-1])


def test_memory_that_is_not_aligned_is_refused_by_the_native_core(both: Implementations) -> None:
    """The native core refuses memory that is not aligned, because words are loaded and stored whole."""
    native = both[1]
    room = memoryview(bytearray(2 * CONTROL_SIZE))
    for shift in range(1, 8):
        view = room[shift:]
        with pytest.raises(ValueError, match="not aligned"):
            native.Writer(view, 1, 1, None, None)
        with pytest.raises(ValueError, match="not aligned"):
            native.Reader(view, None, None, None, None, None)
        reader = native.Reader(room, None, None, None, None, None)
        with pytest.raises(ValueError, match="not aligned"):
            reader.bind(view, 0)
        with pytest.raises(ValueError, match="aligned word"):
            native.load_u64(view, 0)
        with pytest.raises(ValueError, match="aligned word"):
            native.store_u64(view, 8, 1)
    native.Writer(room[8:], 1, 1, None, None)


def test_cursor_slots_are_apart() -> None:
    """The slots of a cursor lie so far apart that a torn write of one cannot reach the other."""
    assert CURSOR_SLOTS[1] - CURSOR_SLOTS[0] >= layout.CURSOR.size
