"""Making pages present before they are written to, and maps that keep no descriptor."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


def test_the_content_of_populated_pages_stays(impl: SimpleNamespace, tmp_path: Path) -> None:
    """Populating any range of a map keeps its content, and returns whether the system can populate pages."""
    path = tmp_path / "pages"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        before = bytes(pages)
        answers = {impl.populate(pages, 0, len(pages)), impl.populate(pages, 5000, 3), impl.populate(pages, 4096, 8192)}
        assert answers in ({True}, {False})
        assert bytes(pages) == before


def test_nothing_to_populate_is_fine(impl: SimpleNamespace) -> None:
    """An empty range can be populated, also at the very end."""
    with mmap.mmap(-1, 8192) as pages:
        assert impl.populate(pages, 0, 0) is True
        assert impl.populate(pages, 8192, 0) is True


@pytest.mark.parametrize(
    ("position", "size"), [(0, 8193), (8192, 1), (8193, 0), (1, (1 << 64) - 1), ((1 << 64) - 1, 1)]
)
def test_a_range_must_lie_inside(impl: SimpleNamespace, position: int, size: int) -> None:
    """A range that is not wholly inside, also where its sum would wrap around, is refused."""
    with mmap.mmap(-1, 8192) as pages:
        with pytest.raises(ValueError, match="range is not inside the buffer"):
            impl.populate(pages, position, size)
        with pytest.raises(OverflowError, match="value does not fit the word"):
            impl.populate(pages, -1, 0)


def test_pages_that_cannot_be_written_are_refused(impl: SimpleNamespace) -> None:
    """Populating pages of a read-only or closed map is refused."""
    with pytest.raises(BufferError):
        impl.populate(bytes(8192), 0, 1)
    pages = mmap.mmap(-1, 8192)
    impl.populate(pages, 0, 8192)
    pages.close()
    with pytest.raises(ValueError, match="closed"):
        impl.populate(pages, 0, 1)


def test_a_store_that_would_kill_is_foreseen(impl: SimpleNamespace, tmp_path: Path) -> None:
    """A page behind the end of a truncated file is reported as not storable, and earlier pages keep their content."""
    path = tmp_path / "pages"
    path.write_bytes(b"." * 12288)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        assert impl.can_store(pages, 0, 12288)
        os.truncate(path, 5000)
        assert impl.can_store(pages, 100, 8000) is True
        if not impl.populate(pages, 0, 1):
            pytest.skip("this kernel cannot tell")
        assert impl.can_store(pages, 8192, 1) is False
        assert impl.can_store(pages, 8000, 200) is False
        assert impl.can_store(pages, 8192, 0) is True
        assert pages[:5000] == b"." * 5000


def test_memory_can_be_stored_to(impl: SimpleNamespace) -> None:
    """Anonymous memory is storable inside its range, and anything but a buffer is refused."""
    assert impl.can_store(bytearray(100), 0, 100) is True
    with pytest.raises(ValueError, match="range is not inside the buffer"):
        impl.can_store(bytearray(100), 50, 51)
    with pytest.raises(BufferError):
        impl.can_store(bytes(100), 0, 1)


def test_pages_are_populated_in_the_background(impl: SimpleNamespace) -> None:
    """Pages that are populated in the background keep their content, and afterwards the map can be closed."""
    maps = [mmap.mmap(-1, 1 << 20) for _ in range(10)]
    for number, pages in enumerate(maps):
        pages[5000] = number
        impl.populate_soon(pages, 4096 * number, 65536)
        pages[5001] = number
    impl.populate_wait()
    impl.populate_wait()
    for number, pages in enumerate(maps):
        assert pages[5000:5002] == bytes([number, number])
        pages.close()


def test_pending_background_work_keeps_its_map(impl: SimpleNamespace) -> None:
    """A map with pending background work can be closed only when the work is done or replaced."""
    first, second = mmap.mmap(-1, 1 << 20), mmap.mmap(-1, 1 << 20)
    impl.populate_soon(first, 0, 1 << 20)
    if impl.name == "native":
        with pytest.raises(BufferError):
            first.close()
    impl.populate_soon(second, 0, 1)
    impl.populate_wait()
    first.close()
    second.close()


def test_the_background_refuses_what_the_foreground_does(impl: SimpleNamespace) -> None:
    """Background work refuses the same arguments as populating at once, and keeps no reference to them."""
    with mmap.mmap(-1, 8192) as pages:
        for position, size in ((0, 8193), (8193, 0), ((1 << 64) - 1, 2)):
            with pytest.raises(ValueError, match="range is not inside the buffer"):
                impl.populate_soon(pages, position, size)
        with pytest.raises(OverflowError, match="value does not fit the word"):
            impl.populate_soon(pages, -1, 0)
    with pytest.raises(BufferError):
        impl.populate_soon(bytes(8192), 0, 1)


def test_a_forked_child_has_a_background_of_its_own(impl: SimpleNamespace) -> None:
    """A forked child has its own background thread, and neither waits for nor touches work of its parent."""
    script = (
        "import mmap, os, sys\n"
        "from tests.format.implementations import native_implementation, pure_implementation\n"
        f"impl = {impl.name}_implementation()\n"
        "pages = mmap.mmap(-1, 1 << 20)\n"
        "for _ in range(50): impl.populate_soon(pages, 0, 1 << 20)\n"
        "child = os.fork()\n"
        "impl.populate_wait()\n"
        "impl.populate_soon(pages, 0, 1 << 20)\n"
        "impl.populate_wait()\n"
        "if not child: os._exit(0)\n"
        "sys.exit(os.waitpid(child, 0)[1])\n"
    )
    root = Path(__file__).parents[3]
    result = subprocess.run([sys.executable, "-c", script], cwd=root, check=False, timeout=60, capture_output=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("access", [mmap.ACCESS_WRITE, mmap.ACCESS_READ], ids=["writable", "read-only"])
def test_a_map_shows_a_file_whose_descriptor_it_does_not_keep(
    impl: SimpleNamespace, tmp_path: Path, access: int
) -> None:
    """A map of a file without its descriptor shares its content; where that is not possible the map is unchanged."""
    path = tmp_path / "pages"
    path.write_bytes(b"file" * 2048)
    with path.open("r+b") as file, mmap.mmap(-1, 8192, access=access) as pages:
        open_before = len(os.listdir("/proc/self/fd"))
        shown = impl.show_file(pages, file.fileno())
        assert len(os.listdir("/proc/self/fd")) == open_before
        assert pages[:4] == (b"file" if shown else bytes(4))
        file.write(b"over")
        file.flush()
        assert pages[:4] == (b"over" if shown else bytes(4))
        if shown and access == mmap.ACCESS_WRITE:
            pages[4:8] = b"maps"
            assert path.read_bytes()[:8] == b"overmaps"


def test_only_a_map_can_show_a_file(impl: SimpleNamespace, tmp_path: Path) -> None:
    """Only a map can be replaced by a file, and only by an open one."""
    with (tmp_path / "pages").open("w+b") as file, mmap.mmap(-1, 4096) as pages:
        for other in (bytearray(4096), bytes(4096), memoryview(pages), None):
            with pytest.raises(TypeError, match="a map is needed"):
                impl.show_file(other, file.fileno())
        assert impl.show_file(pages, file.fileno()) is False  # which is shorter
        assert impl.show_file(pages, 1 << 20) is False
        assert impl.show_file(pages, 1 << 40) is False
        assert pages[:] == bytes(4096)
