"""A damaged copy of a channel: no command takes it for a whole one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from filechannel import ChannelOptions, Durability, blocking
from tests.cli.shell import Order, error, orders, report, run
from tests.storage.copying import DAMAGED, SENT, flip, segments_of

OPTIONS = ChannelOptions(segment_size=16384, durability=Durability.OS)


@pytest.fixture
def copy(path: Path) -> Path:
    """A copy of a channel that was never flushed, with one damaged record in a finished segment."""
    with blocking.open_channel(path, Order, options=OPTIONS) as channel, channel.sender() as sender:
        for number in range(SENT):
            sender.send(Order(number, "pen"))
    flip(segments_of(path)[DAMAGED])
    return shutil.copytree(path, path.with_name("copy"))


def test_verify_and_doctor_report_it(copy: Path) -> None:
    """`verify` and `doctor` end with exit code 1, and name the command that repairs the copy."""
    verified, diagnosed = run("verify", copy, code=1).stdout, run("doctor", copy, code=1).stdout
    for text in (verified, diagnosed):
        assert "not readable until repaired" in " ".join(text.split())
        assert f"filechannel repair {copy} --apply" in text
    assert f"{SENT - 1:,} messages" in verified
    (channel,) = report("doctor", copy, code=1)["channels"]
    (advice,) = (each for each in channel["advice"] if each["severity"] == "error")
    assert advice["kind"] == "unreachable"
    assert advice["mend"] == f"filechannel repair {copy} --apply"


def test_info_shows_it(copy: Path) -> None:
    """The number of messages after the damage is a line of its own, and a field in JSON."""
    result, unreachable = run("info", copy), report("info", copy)["unreachable"]
    assert (
        f"{unreachable['messages']:,} messages in {unreachable['segments']} segments after the damage" in result.stdout
    )
    assert f"of {SENT:,} ever sent" in result.stdout
    assert report("info", copy.with_name("orders"))["unreachable"] is None


@pytest.mark.parametrize("command", ["info", "export", "tail", "consumers"])
def test_what_is_said_about_it_recommends_a_repair(copy: Path, command: str) -> None:
    """The remark recommends to verify, and to repair before a process opens it for writing: never to collect."""
    said = run(command, copy, code=1 if command == "export" else 0).stderr
    assert f"filechannel verify {copy}" in said
    assert f"filechannel repair {copy} --apply" in said
    assert "filechannel gc" not in said


def test_an_export_fails_at_the_damage(copy: Path, tmp_path: Path) -> None:
    """Without --skip-damage an export of a damaged copy ends with the error for damage, and leaves no file."""
    file = tmp_path / "orders.jsonl"
    assert f"{segments_of(copy)[DAMAGED].name} is damaged at offset" in error("export", copy, file)
    assert not file.exists()


def test_an_export_that_skips_damage_has_what_is_behind_it(copy: Path) -> None:
    """With --skip-damage every intact message is written, and the exit code says that one is missing."""
    result = run("export", copy, "--skip-damage", code=1)
    assert len(result.stdout.splitlines()) == SENT - 1
    assert "1 record left out" in result.stderr


def test_tail_shows_the_newest_messages(copy: Path) -> None:
    """The last messages lie after the damage, and are shown."""
    assert [line.split()[0] for line in run("tail", copy, "-n", 2).stdout.splitlines()] == ["2998", "2999"]


def test_repair_keeps_all_but_the_damaged_message(copy: Path) -> None:
    """After the repair that they recommend, every other message is there, and nothing is reported."""
    run("repair", copy, "--apply")
    assert len(orders(copy)) == SENT - 1
    run("verify", copy)
    assert len(run("export", copy).stdout.splitlines()) == SENT - 1
