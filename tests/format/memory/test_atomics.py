"""Loads, stores and compare-and-swap on the words of a shared map."""

from __future__ import annotations

import mmap
import threading
from types import SimpleNamespace

import pytest

WIDTHS = [("u32", 4), ("u64", 8)]


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_a_stored_word_is_little_endian(impl: SimpleNamespace, kind: str, width: int) -> None:
    """A word is stored in little-endian order on every machine, and the bytes beside it are unchanged."""
    page = bytearray(b"\xaa" * 32)
    value = int.from_bytes(range(1, width + 1), "little")
    assert getattr(impl, f"store_{kind}")(page, 8, value) is None
    assert page == b"\xaa" * 8 + bytes(range(1, width + 1)) + b"\xaa" * (24 - width)
    assert getattr(impl, f"load_{kind}")(page, 8) == value


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_every_value_comes_back(impl: SimpleNamespace, kind: str, width: int) -> None:
    """Every value from zero to the largest, with every single bit, is loaded as it was stored."""
    page = bytearray(width)
    for value in (0, (1 << 8 * width) - 1, *(1 << bit for bit in range(8 * width))):
        getattr(impl, f"store_{kind}")(page, 0, value)
        assert getattr(impl, f"load_{kind}")(page, 0) == value


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
@pytest.mark.parametrize("value", [-1, None, 1 << 64, -(1 << 64)])
def test_a_value_that_does_not_fit_changes_nothing(
    impl: SimpleNamespace, kind: str, width: int, value: int | None
) -> None:
    """Storing a value that is negative or too large raises and changes nothing."""
    page = bytearray(b"\x55" * 16)
    with pytest.raises(OverflowError, match="value does not fit the word"):
        getattr(impl, f"store_{kind}")(page, 0, 1 << 8 * width if value is None else value)
    assert page == b"\x55" * 16


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_a_position_must_be_an_aligned_word_inside(impl: SimpleNamespace, kind: str, width: int) -> None:
    """A position that is not aligned, not wholly inside, or so large that it would wrap around is refused."""
    page = bytearray(b"\x55" * 16)
    bad = [1, 2, 3, 16 - width + 1, 16, 16 + width, 1 << 32, 1 << 63, (1 << 64) - width, (1 << 64) - 1]
    for position in bad:
        with pytest.raises(ValueError, match="position is not an aligned word inside the buffer"):
            getattr(impl, f"load_{kind}")(page, position)
        with pytest.raises(ValueError, match="position is not an aligned word inside the buffer"):
            getattr(impl, f"store_{kind}")(page, position, 0)
    for position in (-1, -8, 1 << 64, -(1 << 80)):
        with pytest.raises(OverflowError, match="value does not fit the word"):
            getattr(impl, f"load_{kind}")(page, position)
        with pytest.raises(OverflowError, match="value does not fit the word"):
            getattr(impl, f"store_{kind}")(page, position, 0)
    assert page == b"\x55" * 16


def test_a_buffer_shorter_than_a_word_has_none(impl: SimpleNamespace) -> None:
    """A buffer shorter than a word, also an empty one, has no word to load."""
    for size in range(4):
        with pytest.raises(ValueError, match="inside the buffer"):
            impl.load_u32(bytes(size), 0)
    for size in range(8):
        with pytest.raises(ValueError, match="inside the buffer"):
            impl.load_u64(bytes(size), 0)


def test_a_word_of_a_read_only_buffer_can_only_be_loaded(impl: SimpleNamespace) -> None:
    """Stores and swaps in a read-only buffer raise, even a swap that would not take place."""
    page = bytes(range(8))
    assert impl.load_u64(page, 0) == 0x0706050403020100
    for store in (
        lambda: impl.store_u32(page, 0, 1),
        lambda: impl.store_u64(page, 0, 1),
        lambda: impl.swap_if_u32(page, 0, 7, 1),
    ):
        with pytest.raises(BufferError):
            store()
    assert page == bytes(range(8))


def test_a_swap_happens_only_if_the_word_is_as_expected(impl: SimpleNamespace) -> None:
    """A swap takes place only if the word has the expected value, and returns whether it did."""
    page = bytearray(8)
    impl.store_u32(page, 4, 5)
    assert impl.swap_if_u32(page, 4, 6, 9) is False
    assert impl.load_u32(page, 4) == 5
    assert impl.swap_if_u32(page, 4, 5, 9) is True
    assert impl.load_u32(page, 4) == 9
    assert page[:4] == bytes(4)


@pytest.mark.parametrize(("expected", "value"), [(-1, 0), (0, -1), (1 << 32, 0), (0, 1 << 32)])
def test_a_swap_takes_words_only(impl: SimpleNamespace, expected: int, value: int) -> None:
    """A swap refuses values that do not fit a word, which when cut might equal it."""
    page = bytearray(8)
    with pytest.raises(OverflowError, match="value does not fit the word"):
        impl.swap_if_u32(page, 0, expected, value)
    assert page == bytes(8)


def test_a_swap_is_won_by_one_thread_at_a_time(impl: SimpleNamespace) -> None:
    """Threads that count with swaps lose no step."""
    page, steps, threads = bytearray(4), 2000, 4

    def count() -> None:
        for _ in range(steps):
            seen = impl.load_u32(page, 0)
            while not impl.swap_if_u32(page, 0, seen, seen + 1):
                seen = impl.load_u32(page, 0)

    running = [threading.Thread(target=count) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert impl.load_u32(page, 0) == steps * threads


def test_no_view_of_a_map_stays_behind(impl: SimpleNamespace) -> None:
    """After any call, also a failed one, the map can be closed, and a closed map is refused."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    impl.store_u32(page, 0, 1)
    impl.store_u64(page, 8, 1)
    assert impl.load_u32(page, 0) == impl.load_u64(page, 8) == 1
    assert impl.swap_if_u32(page, 0, 1, 2)
    with pytest.raises(ValueError, match="aligned word"):
        impl.load_u64(page, 1)
    with pytest.raises(ValueError, match="aligned word"):
        impl.store_u64(page, mmap.PAGESIZE, 1)
    page.close()
    with pytest.raises(ValueError, match="closed"):
        impl.load_u32(page, 0)
    with pytest.raises(ValueError, match="closed"):
        impl.store_u32(page, 0, 0)


def test_a_fence_answers_nothing(impl: SimpleNamespace) -> None:
    """A fence returns None."""
    assert impl.fence() is None
