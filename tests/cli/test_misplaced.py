"""Something else where a file or a directory of a channel belongs: what the commands say, and what they leave alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from filechannel import UnexpectedFileError, blocking
from tests.cli.shell import Order, error, fill, orders, report, run

MAKE: dict[str, Callable[[Path], object]] = {
    "a symbolic link": lambda path: path.symlink_to("/etc/hostname"),
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
}


def consumed(path: Path) -> Path:
    """Return a channel of 1,000 orders, of which `slow` and `team` received ten and `fast` all."""
    fill(path, 1000)
    with blocking.open_channel(path, Order) as channel:
        with channel.receiver("slow", start="earliest") as slow, channel.receiver("fast", start="earliest") as fast:
            for _ in range(10):
                slow.receive()
            for _ in range(1000):
                fast.receive()
        with channel.group("team", start="earliest") as team:
            for _ in range(10):
                team.receive()
    return path


def replace(path: Path, kind: str) -> None:
    """Replace a file by something else."""
    path.unlink()
    MAKE[kind](path)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", ["slow", "team"])
def test_a_consumer_whose_file_is_something_else_holds_data_back(path: Path, kind: str, name: str) -> None:
    """A consumer whose file is something else is listed as damaged and reported, and `gc` removes nothing until it is
    repaired.
    """
    consumed(path)
    run("consumers", "remove", path, "team" if name == "slow" else "slow", "--yes")
    file = path / "consumers" / (f"{name}.cursor" if name == "slow" else f"{name}.group")
    replace(file, kind)
    listed = {each["name"]: each["damaged"] for each in report("consumers", path)}
    assert listed == {"fast": False, name: True}
    assert report("gc", path)["segments"] == 0
    assert len(orders(path)) == 1000
    (finding,) = report("verify", path, code=1)["findings"]
    assert (finding["kind"], finding["severity"], finding["file"]) == ("cursor", "error", f"consumers/{file.name}")
    assert kind in finding["what"]
    (channel,) = report("doctor", path, code=1)["channels"]
    damage = [each for each in channel["advice"] if each["kind"] == "damage"]
    assert [each["mend"] for each in damage] == [f"filechannel repair {path}"]
    with blocking.open_channel(path, Order) as opened, pytest.raises(UnexpectedFileError, match=f"is {kind}"):
        opened.group(name) if name == "team" else opened.receiver(name)
    assert report("repair", path, "--apply")["clean"]
    assert any(each.name.endswith(file.name) for each in (path / "quarantine").iterdir())
    with blocking.open_channel(path, Order) as opened:
        assert {each.name: each.lag_messages for each in opened.consumers()} == {"fast": 0, name: 1000}


@pytest.mark.parametrize("kind", MAKE)
def test_a_consumer_whose_file_is_something_else_can_be_removed(path: Path, kind: str) -> None:
    """`consumers remove` removes a consumer whose file is something else, unless it is a directory."""
    consumed(path)
    replace(path / "consumers" / "slow.cursor", kind)
    if kind == "a directory":
        assert "slow.cursor is a directory" in error("consumers", "remove", path, "slow", "--yes")
    else:
        run("consumers", "remove", path, "slow", "--yes")
        assert {each["name"] for each in report("consumers", path)} == {"fast", "team"}


@pytest.mark.parametrize("kind", MAKE)
def test_a_producer_whose_file_is_something_else_is_reported(path: Path, kind: str) -> None:
    """A producer whose file is something else is reported, and all data is kept until it is repaired."""
    consumed(path)
    run("consumers", "remove", path, "slow", "--yes")
    run("consumers", "remove", path, "team", "--yes")
    (path / "producers").mkdir()
    MAKE[kind](path / "producers" / "x.position")
    assert f"x.position is {kind}" in error("gc", path)
    assert len(orders(path)) == 1000
    (finding,) = report("verify", path, code=1)["findings"]
    assert (finding["kind"], finding["severity"], finding["file"]) == ("producer", "error", "producers/x.position")
    assert kind in finding["what"]
    assert report("repair", path, "--apply")["clean"]
    run("gc", path)


@pytest.mark.parametrize("kind", MAKE)
def test_an_index_that_is_something_else_is_reported(path: Path, kind: str) -> None:
    """An index that is something else is reported, and a repair quarantines it."""
    fill(path, 1000)
    first = min((path / "segments").glob("*.seg")).with_suffix(".idx")
    first.unlink(missing_ok=True)
    MAKE[kind](first)
    (finding,) = report("verify", path, code=1)["findings"]
    assert (finding["kind"], finding["severity"], finding["file"]) == (
        "misplaced",
        "warning",
        f"segments/{first.name}",
    )
    assert kind in finding["what"]
    assert report("repair", path, "--apply")["clean"]
    assert len(orders(path)) == 1000


# Directories


@pytest.mark.parametrize("name", ["segments", "consumers", "producers", "wake", "quarantine", "staging"])
def test_a_directory_that_is_a_link_is_a_finding(path: Path, name: str) -> None:
    """`doctor` and `verify` report a directory that is a link, and no repair changes it."""
    consumed(path)
    other = fill(path.with_name("other"), 10)
    elsewhere = path.with_name("elsewhere")
    if (path / name).exists():
        (path / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (path / name).symlink_to(elsewhere)
    found = [each for each in report("verify", path, code=1)["findings"] if each["kind"] == "directory"]
    severity = "error" if name in ("segments", "consumers", "producers") else "warning"
    assert [(each["file"], each["severity"]) for each in found] == [(name, severity)]
    assert "a symbolic link, not a directory" in found[0]["what"]
    first, second = report("doctor", path, other, code=1)["channels"]
    assert not [each for each in second["advice"] if each["severity"] != "note"]
    (advice,) = [each for each in first["advice"] if each["kind"] == "directory"]
    assert "not a directory" in advice["what"]
    assert str(path / name) in advice["mend"]
    plan = report("repair", path, code=1)
    assert ([each["file"] for each in plan["hopeless"]], plan["actions"]) == ([name], [])
    run("repair", path, "--apply", code=1)
    assert (path / name).is_symlink()
    (path / name).unlink()
    elsewhere.rename(path / name)
    assert len(orders(path)) == 1000


# What to do about it


@pytest.mark.parametrize("kind", MAKE)
def test_a_lock_file_that_is_something_else_is_to_be_removed(path: Path, kind: str) -> None:
    """The library, `verify`, `repair` and `doctor` say so; no repair can do it, because it needs that file."""
    fill(path, 10)
    replace(path / "lock", kind)
    advice = f"rm {'-r ' * (kind == 'a directory')}{path}/lock"
    with pytest.raises(UnexpectedFileError, match=f"lock is {kind}") as refused:
        blocking.open_channel(path, Order)
    assert advice in str(refused.value)
    assert "filechannel repair" not in str(refused.value)
    output = run("verify", path, code=1).stdout
    assert advice in output
    assert "filechannel repair" not in output
    (channel,) = report("doctor", path, code=1)["channels"]
    assert [each["mend"] for each in channel["advice"] if each["severity"] != "note"] == [advice]
    assert advice in error("repair", path, "--apply")
    assert os.system(advice) == 0
    assert len(orders(path)) == 10


@pytest.mark.parametrize(("count", "output"), [(1, "1 file in quarantine"), (2, "2 files in quarantine")])
def test_quarantined_files_are_counted(path: Path, count: int, output: str) -> None:
    """`doctor` and `verify` count quarantined files in a note, which is not a finding."""
    fill(path, 10)
    (path / "quarantine").mkdir(mode=0o700)
    for number in range(count):
        (path / "quarantine" / f"{number}-x.seg").write_bytes(b"old")
        (path / "quarantine" / f"{number}-x.seg.json").write_text("{}")
    [finding] = report("verify", path)["findings"]
    assert finding["what"].startswith(output)
