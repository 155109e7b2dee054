"""Payloads that wait in files: they come back as they were, or not at all, and nothing stays behind."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from filechannel import StorageError
from filechannel._storage.log.batch_parts import Records
from filechannel._storage.producers.staging import Staging
from filechannel._storage.system.os_calls import Files


def records(*parts: list[bytes]) -> list[Records]:
    """Return parts of messages as they are staged."""
    return [Records.of(part) for part in parts]


def staging(path: Path, group: str = "group") -> Staging:
    """Return the files of a group."""
    return Staging(Files(), path, group, 0o600)


def test_payloads_come_back(path: Path) -> None:
    """Staged payloads are read part by part, with empty payloads and without empty parts."""
    parts = [[b"a", b"", b"bcd"], [], [b"\xff" * 1000]]
    staged = staging(path).write(records(*parts))
    assert (staged.count, staged.group) == (4, "group")
    assert list(staging(path).payloads(staged)) == [parts[0], parts[2]]
    assert list(staging(path).read(staged)) == records(parts[0], parts[2])
    assert list(staging(path).payloads(staging(path).write([]))) == []


def test_consumed_files_are_removed(path: Path) -> None:
    """A staged file is deleted when all of it was read."""
    staged = staging(path).write(records([b"a"], [b"b"]))
    taken = staging(path).read_and_remove(staged)
    assert next(taken) == Records.of([b"a"])
    assert list(path.glob("staging/*/*")) != []
    assert list(taken) == records([b"b"])
    assert list(path.glob("staging/*/*")) == []


def test_no_other_user_may_read(path: Path) -> None:
    """Staged files have the mode of the channel's files, and directories the matching one."""
    staging(path).write(records([b"a"]))
    modes = {each.stat().st_mode & 0o777 for each in path.glob("staging/*/*")}
    assert modes == {0o600}
    assert (path / "staging/group").stat().st_mode & 0o777 == 0o700


def test_what_has_changed_is_refused(path: Path) -> None:
    """A staged file that is missing, shorter or damaged is not published."""
    staged = staging(path).write(records([b"a", b"b"]))
    for wrong in (replace(staged, name="none.rows"), replace(staged, size=3)):
        with pytest.raises(StorageError, match="nothing was sent"):
            list(staging(path).payloads(wrong))
    (file,) = path.glob("staging/*/*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StorageError, match="nothing was sent"):
        list(staging(path).payloads(staged))


def test_a_failed_write_leaves_nothing(path: Path) -> None:
    """A staged file that could not be written completely is deleted."""

    def parts() -> object:
        yield Records.of([b"a"])
        raise ValueError("a row is wrong")

    with pytest.raises(ValueError, match="a row is wrong"):
        staging(path).write(parts())  # type: ignore[arg-type]
    assert list(path.glob("staging/*/*")) == []


def test_sweeping(path: Path) -> None:
    """A sweep deletes a whole group and files of others that are a day old, and keeps younger ones."""
    for group in ("mine", "young", "old"):
        staging(path, group).write(records([b"a"]))
    long_ago = time.time() - 25 * 3600
    for each in (path / "staging/old").iterdir():
        os.utime(each, (long_ago, long_ago))
    os.utime(path / "staging/old", (long_ago, long_ago))
    staging(path, "mine").sweep()
    assert [each.name for each in (path / "staging").iterdir()] == ["young"]
    staging(path, "young").sweep()
    assert not (path / "staging").exists()
    staging(path, "young").sweep()
