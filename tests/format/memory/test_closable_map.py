"""Maps that are closed while in use: nothing is read from memory that was unmapped, and nothing stays mapped."""

from __future__ import annotations

import importlib
import mmap
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio import ClosedResourceError

from filechannel._format.layout import GROUP_DUE, GROUP_NEXT, GROUP_SIZE, WAKE
from filechannel._format.memory.closable_map import close_pending
from filechannel._format.sentinel import NOTHING
from tests.format.pages import new_control, new_cursor, new_segment, packed_record
from tests.format.sleepers import wait_until_asleep

TIMEOUT = 60  # seconds; nothing here takes as long


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that can be mapped."""
    path = tmp_path / "mapped"
    path.write_bytes(bytes(GROUP_SIZE))
    return path


@pytest.fixture
def make_map(impl: SimpleNamespace, path: Path) -> Callable[[], Any]:
    """What maps all of it."""
    module = importlib.import_module(f"filechannel._format.{'memory.closable_map' if impl.name == 'pure' else '_core'}")

    def make() -> Any:
        with path.open("r+b") as file:
            return module.Map(file.fileno(), GROUP_SIZE)

    return make


@pytest.fixture
def map_(make_map: Callable[[], Any]) -> Any:
    """A map of all of it."""
    return make_map()


def is_mapped(path: Path) -> bool:
    """Return whether this process has a map of a file."""
    return str(path) in Path("/proc/self/maps").read_text()


def acknowledge(impl: SimpleNamespace) -> None:
    """Let the pure implementation notice that a view was deleted, which it does when something else is closed."""
    if impl.name == "pure":
        close_pending()


def no_callback(*_: object) -> int:
    """Use instead of a callback that is never called."""
    raise AssertionError


def make_reader(impl: SimpleNamespace, control: object, cursor: object = None, decode: object = None) -> Any:
    """Return a reader without callbacks."""
    return impl.Reader(control, cursor, decode, no_callback, no_callback, no_callback)


def test_a_map_is_used_like_any_other(map_: Any, impl: SimpleNamespace) -> None:
    """A closable map has a length, holds bytes and words, and is an instance of `mmap`."""
    assert isinstance(map_, mmap.mmap)
    assert len(map_) == GROUP_SIZE
    map_[:4] = b"\1\2\3\4"
    map_[4] = 5
    assert map_[:5] == b"\1\2\3\4\5"
    assert (map_[4], impl.load_u32(map_, 0)) == (5, 0x04030201)


def test_closing_unmaps_at_once(map_: Any, path: Path) -> None:
    """Closing unmaps at once although references exist, and closing twice is closing once."""
    assert is_mapped(path)
    map_.close()
    assert not is_mapped(path)
    map_.close()


def test_a_closed_map_refuses_everything(map_: Any, impl: SimpleNamespace) -> None:
    """Every method of a closed map raises the error of a closed channel, not that of Python's maps."""
    map_.close()
    for refused in (
        lambda: map_[0],
        lambda: map_[:4],
        lambda: map_.__setitem__(0, 1),
        lambda: map_.__setitem__(slice(0, 1), b"1"),
        lambda: impl.load_u32(map_, 0),
        lambda: impl.store_u64(map_, 0, 1),
        lambda: impl.take_word(map_, 0, 1, 0),
        lambda: impl.Writer(map_, 1, 1, no_callback, no_callback),
        lambda: make_reader(impl, map_),
    ):
        with pytest.raises(ClosedResourceError):
            refused()


def test_a_map_in_use_stays_until_it_is_released(map_: Any, path: Path, impl: SimpleNamespace) -> None:
    """After closing, an existing view stays usable, none can be created, and the last release unmaps."""
    first, second = memoryview(map_), memoryview(map_)
    map_.close()
    first[:2] = b"ok"
    assert (is_mapped(path), bytes(second[:2])) == (True, b"ok")
    with pytest.raises(ClosedResourceError):
        map_[:2]
    first.release()
    assert is_mapped(path)
    second.release()
    acknowledge(impl)
    assert not is_mapped(path)


def test_releasing_a_view_keeps_the_error_that_is_raised(map_: Any, path: Path, impl: SimpleNamespace) -> None:
    """Releasing the last view unmaps, also on the way out of a call that failed, and keeps its error."""

    class Closing:
        def __index__(self) -> int:
            map_.close()
            raise ZeroDivisionError

    writer = impl.Writer(new_control(), 1, 100, no_callback, no_callback)
    writer.bind(map_, 0)
    with pytest.raises(ZeroDivisionError):
        writer.open_window(Closing(), 0)
    assert is_mapped(path)
    writer.unbind()
    acknowledge(impl)
    assert not is_mapped(path)


def test_a_thread_that_sleeps_on_a_word_keeps_the_map(map_: Any, path: Path, impl: SimpleNamespace) -> None:
    """A map that is closed while a thread sleeps on one of its words is unmapped when the thread returns."""
    if impl.name == "pure":
        pytest.skip("a thread that sleeps there uses no memory of the map")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(impl.wait_word(map_, WAKE, 0, 0.5)))
    thread.start()
    assert thread.native_id is not None
    wait_until_asleep(thread.native_id, partial(is_in, path))
    map_.close()
    assert is_mapped(path) or not thread.is_alive()
    thread.join(TIMEOUT)
    assert (answers, is_mapped(path)) == ([False], False)


def is_in(path: Path, address: int) -> bool:
    """Return whether an address is in a map of a file."""
    maps = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    return any(int(start, 16) <= address < int(end, 16) for start, end in (each.split("-") for each in maps))


# Writers


def test_a_closed_writer_releases_its_maps(make_map: Callable[[], Any], path: Path, impl: SimpleNamespace) -> None:
    """A closed writer releases its control page, segment and prepared file."""
    control, segment, following = make_map(), make_map(), make_map()
    writer = impl.Writer(control, 1, 100, no_callback, no_callback)
    writer.bind(segment, 0)
    names = b"/" + b"0" * 20, b"/" + b"1" * 20
    writer.prepare_next(object(), following, bytes(64), 0, 0, *names, 1, 100, no_callback, None, 0)
    for each in (control, segment, following):
        each.close()
    assert is_mapped(path)
    writer.close()
    writer.close()
    acknowledge(impl)
    assert not is_mapped(path)


def test_a_closed_writer_refuses_everything(impl: SimpleNamespace) -> None:
    """A closed writer refuses every call and drops its callbacks, which might be part of a cycle."""

    class Callback:
        def __call__(self, *_: object) -> int:
            raise AssertionError

    callback = Callback()
    writer = impl.Writer(new_control(), 1, 100, callback, callback)
    writer.bind(new_segment(1000), 0)
    writer.start()
    writer.open_window(500, (1 << 64) - 1)
    writer.append(b"a")
    writer.close()
    alive = weakref.ref(callback)
    del callback
    assert alive() is None
    for refused in (
        lambda: writer.append(b"b"),
        lambda: writer.append_all([b"b"] * 3),
        writer.start,
        writer.change,
        writer.publish,
        lambda: writer.bind(new_segment(1000), 0),
        lambda: writer.prepare_next(None, new_segment(9), bytes(64), 0, 0, b"0" * 20, b"0" * 20, 0, 0, list, None, 0),
    ):
        with pytest.raises(ClosedResourceError):
            refused()
    with pytest.raises(ClosedResourceError):
        impl.SendPath(writer, None, no_callback, None, ()).put(b"b")
    assert (writer.current, writer.fast_roll(b"b"), writer.wake_receivers()) == (False, None, None)


def test_a_writer_may_be_closed_by_its_own_callback(impl: SimpleNamespace) -> None:
    """A writer that its callback closes returns what the callback returns."""

    def overflow(_: object) -> int:
        writer.close()
        return 7

    writer = impl.Writer(new_control(), 1, 100, overflow, no_callback)
    assert writer.append(b"a") == 7
    with pytest.raises(ClosedResourceError):
        writer.append(b"a")


# Readers


def test_a_released_reader_releases_its_maps(make_map: Callable[[], Any], path: Path, impl: SimpleNamespace) -> None:
    """A released reader drops its maps and callbacks, and receives nothing any more."""
    control, cursor, segment = make_map(), make_map(), make_map()
    reader = make_reader(impl, control, cursor)
    reader.bind(segment, 0)
    reader.move(5, 3)
    for each in (control, cursor, segment):
        each.close()
    assert is_mapped(path)
    reader.release()
    assert not is_mapped(path)
    assert (reader.take(), reader.take_many(3), reader.offset, reader.sequence) == (NOTHING, [], 5, 3)
    assert (reader.may_have_more, reader.drained, reader.ready, reader.next_due) == (False, False, 0, 0)
    reader.move(6, 4)
    reader.bind(new_segment(1000), 0)
    reader.notify_capacity(no_callback)
    assert (reader.take(), reader.move_from(6, 7, 5)) == (NOTHING, False)
    with pytest.raises(ClosedResourceError):
        reader.sleep_with(bytearray(8), 0.0)
    with pytest.raises(ClosedResourceError):
        reader.share(bytearray(GROUP_SIZE), 1, 1, no_callback)
    assert reader.release() is False


def test_a_released_member_of_a_group_releases_its_file(map_: Any, path: Path, impl: SimpleNamespace) -> None:
    """A released group member releases its file, keeps the last position, and receives nothing."""
    reader = make_reader(impl, new_control(1000))
    impl.store_u64(map_, GROUP_NEXT, 40)
    impl.store_u64(map_, GROUP_DUE, (1 << 64) - 1)
    reader.share(map_, 1, 10**9, no_callback)
    assert reader.offset == 40
    map_.close()
    reader.release()
    assert not is_mapped(path)
    assert (reader.offset, reader.take(), reader.take_many(2), reader.outstanding) == (40, NOTHING, [], 0)
    assert (reader.ack(1), reader.nack(None), reader.acknowledge(40, 1), reader.ready_positions(5)) == (
        False,
        False,
        False,
        [],
    )
    assert (reader.entry_number(40, 1), reader.refused(40), reader.take_lost(), reader.full) == (-1, None, [], False)
    reader.forget()
    assert reader.must_wake() is False


def test_a_reader_may_be_released_by_its_own_decode(map_: Any, path: Path, impl: SimpleNamespace) -> None:
    """A reader that its decoder releases keeps its maps until the call has returned the message."""
    record = packed_record(b"a", 0)
    control, was_mapped = map_, list[bool]()
    control[: len(new_control())] = bytes(new_control(len(record), 1))

    def decode(payload: bytes) -> bytes:
        reader.release()
        control.close()
        was_mapped.append(is_mapped(path))
        return bytes(payload)

    reader = make_reader(impl, control, new_cursor(), decode)
    reader.bind(new_segment(100, record), 0)
    assert reader.take_many(5) == [b"a"]
    assert (was_mapped, is_mapped(path)) == ([True], False)
    assert reader.take() is NOTHING


def test_a_thread_that_sleeps_for_a_message_keeps_the_page(map_: Any, path: Path, impl: SimpleNamespace) -> None:
    """The page on which a thread sleeps for a message is unmapped when the thread returns, without a message."""
    if impl.name == "pure":
        pytest.skip("there threads sleep elsewhere")
    map_[: len(new_control())] = bytes(new_control())
    reader = make_reader(impl, map_)
    sleepers = bytearray(8)
    reader.sleep_with(sleepers, 0.0)

    class Core(impl.ReceiveCore):  # type: ignore[misc, name-defined]
        def _receive_here_slowly(self, left: float) -> object:
            return ("slowly", reader.take())

    core, answers = Core(), list[object]()
    core._attach(reader)
    thread = threading.Thread(target=lambda: answers.append(core._receive_here(0.5)))
    thread.start()
    assert thread.native_id is not None
    wait_until_asleep(thread.native_id, partial(is_in, path))
    reader.release()
    map_.close()
    thread.join(TIMEOUT)
    assert (answers, is_mapped(path), sleepers) == ([("slowly", NOTHING)], False, bytearray(8))
