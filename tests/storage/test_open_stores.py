"""The stores of a process: one a directory."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from filechannel import ChannelOptions, StorageError
from filechannel._format.layout import OPENING_BYTE
from filechannel._storage.manifest import Manifest
from filechannel._storage.open_stores import Stores
from filechannel._storage.store import ReadOnlyStore, Store
from filechannel._storage.system.kernel_locks import KernelLocks, UnwantedError
from filechannel._storage.system.os_calls import Files
from tests.storage.channels import opened, payloads_of


def _open(stores: Stores, path: Path, *, readonly: bool = False) -> Store:
    return stores.open(
        path,
        check=lambda _: None,
        new=lambda: Manifest.new("machine", "raw", None, ChannelOptions(segment_size=4096).resolve()),
        readonly=readonly,
        max_mapped_segments=8,
    )


def test_two_opens_share_one_store(path: Path, tmp_path: Path) -> None:
    """Two opens of a directory by any path share one store, and closing one leaves the other."""
    stores = Stores()
    (tmp_path / "link").symlink_to(path)
    first, second = _open(stores, path), _open(stores, tmp_path / "link")
    assert first is second
    stores.close(first)
    second.log.append([b"one"])
    assert payloads_of(second) == [b"one"]
    stores.close(second)
    with opened(path) as store:
        assert payloads_of(store) == [b"one"]


def test_two_directories_have_two_stores(tmp_path: Path) -> None:
    """Two directories have two stores."""
    stores = Stores()
    first, second = (_open(stores, tmp_path / name) for name in "ab")
    assert first is not second
    stores.close(first)
    stores.close(second)


def test_a_readonly_open_shares_with_a_writer(path: Path) -> None:
    """A read-only open shares the store of a writer in the process."""
    stores = Stores()
    writer, reader = _open(stores, path), _open(stores, path, readonly=True)
    assert reader is writer
    stores.close(writer)
    stores.close(reader)


def test_a_writer_does_not_share_with_a_readonly_open(path: Path) -> None:
    """A writer does not share the store of a read-only open, and two writers share one."""
    stores = Stores()
    stores.close(_open(stores, path))
    reader = _open(stores, path, readonly=True)
    first, second = _open(stores, path), _open(stores, path)
    assert isinstance(reader, ReadOnlyStore)
    assert first is second is not reader
    first.log.append([b"one"])
    assert payloads_of(reader) == [b"one"]
    for store in (reader, first, second):
        stores.close(store)


def test_a_shared_open_is_checked_too(path: Path) -> None:
    """An open that does not fit is refused, although the store is open already."""
    stores = Stores()
    store = _open(stores, path)

    def refuse(_: Manifest) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        stores.open(path, check=refuse, new=None, readonly=False, max_mapped_segments=8)
    stores.close(store)
    with opened(path):
        pass


def test_a_directory_that_was_replaced_is_another_channel(path: Path, tmp_path: Path) -> None:
    """A directory that replaced another one has a store of its own."""
    stores = Stores()
    first = _open(stores, path)
    path.rename(tmp_path / "moved")
    second = _open(stores, path)
    assert second is not first
    second.log.append([b"second"])
    with pytest.raises(StorageError, match="was moved, removed or replaced"):
        first.log.append([b"first"])
    assert payloads_of(second) == [b"second"]
    stores.close(first)
    stores.close(second)


@pytest.mark.parametrize("what", ["moved", "removed", "replaced"])
def test_a_process_with_a_replaced_directory_open_creates_nothing_in_the_new_one(
    path: Path, tmp_path: Path, what: str
) -> None:
    """A process with a replaced directory open creates no files in the new one, and can still read the old one."""
    stores = Stores()
    first = _open(stores, path)
    sent = [b"%d" % number + bytes(900) for number in range(7)]
    for payload in sent:
        first.log.append([payload])
    owned = first.cursors.open("owned")
    path.rename(tmp_path / "elsewhere")
    if what == "removed":
        shutil.rmtree(tmp_path / "elsewhere")
    second = _open(stores, path) if what == "replaced" else None
    before = sorted(path.rglob("*"))
    for attempt in (
        lambda: [first.log.append([bytes(900)]) for _ in range(9)],
        lambda: first.cursors.open("new"),
        lambda: first.cursors.remove(owned),
        lambda: first.cursors.remove_unowned("new"),
        lambda: first.consumer_listing.watch("owned"),
        first.remove_expired,
        lambda: first.configure(lambda manifest: manifest),
        first.purge,
    ):
        with pytest.raises(StorageError, match="was moved, removed or replaced while it was open"):
            attempt()
    assert payloads_of(first)[:7] == sent
    stores.close(first)
    assert sorted(path.rglob("*")) == before
    if second is not None:
        stores.close(second)


def test_a_directory_that_others_are_opening_delays_no_other_one(tmp_path: Path) -> None:
    """An open that waits for a stopped process delays no open of another directory, and can be cancelled."""
    stores, wanted = Stores(), True
    held, other = tmp_path / "held", _open(stores, tmp_path / "other")
    stores.close(_open(stores, held))
    locks = KernelLocks(Files(), held / "lock")

    def wait() -> Store:
        return stores.open(
            held, check=lambda _: None, new=None, readonly=False, max_mapped_segments=8, wanted=lambda: wanted
        )

    with ThreadPoolExecutor(2) as threads, locks.holding(OPENING_BYTE):
        waiting = [threads.submit(wait) for _ in range(2)]
        stores.close(_open(stores, tmp_path / "third"))
        stores.close(other)
        assert not any(each.done() for each in waiting)
        wanted = False
        assert all(isinstance(each.exception(60), UnwantedError) for each in waiting)
    locks.close()
    stores.close(_open(stores, held))
