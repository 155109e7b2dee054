"""Shipping segments while others remove them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from filechannel import CorruptRecordError
from filechannel._maintenance.shipping import ship_segments
from filechannel._offset import Offset
from filechannel._storage.remote import HeldFiles, RemoteFile, RemoteFiles
from filechannel._storage.store import Store
from tests.maintenance.stores import fill
from tests.storage.channels import opened


class Archive(RemoteFiles):
    """A directory of this machine."""

    def describe(self, path: Path) -> str:
        """Return the path."""
        return str(path)

    def open_file(self, path: Path) -> RemoteFile:
        """Read it."""
        return HeldFiles(path, path.read_bytes()).open_file(path)

    def upload(self, local: Path, path: Path) -> None:
        """Copy it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(local, path)


def _lose_segments(store: Store, patch: pytest.MonkeyPatch, *, given_up: bool) -> None:
    """Let all but the newest one be gone between a look at which there are and one into the second."""
    following, begins = store.segments.following, store.segments.begins

    def look_and_lose(begin: int) -> Offset | None:
        found = following(begin)
        if begin != begins[0]:
            return found
        patch.undo()
        for other in begins[:-1]:
            store.segments.path(other).unlink()
        if given_up:
            store.control.oldest_offset = begins[-1]
        store.segments._mapped.clear()
        store.segments._headers.clear()
        return found

    patch.setattr(store.segments, "following", look_and_lose)


def test_what_is_removed_meanwhile_is_not_shipped(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that are given up while it is looked which there are do not count; what comes later is shipped."""
    with opened(path) as store:
        fill(store, 5)
        _lose_segments(store, monkeypatch, given_up=True)
        assert ship_segments(store, Archive(), tmp_path / "archive").segments == 0
        fill(store, 5)
        assert ship_segments(store, Archive(), tmp_path / "archive").segments >= 4


def test_what_is_lost_is_told(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is gone though nobody gave it up is damage."""
    with opened(path) as store:
        fill(store, 5)
        _lose_segments(store, monkeypatch, given_up=False)
        with pytest.raises(CorruptRecordError, match="missing"):
            ship_segments(store, Archive(), tmp_path / "archive")
