"""`filechannel verify` and `filechannel repair`."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from filechannel import blocking
from tests.cli.shell import Order, error, fill, orders, real, report, run, start
from tests.maintenance.damage import overwrite, segments_of
from tests.storage.boots import Boots


def damage(path: Path) -> None:
    """Write over the payload of a record in the second segment."""
    overwrite(segments_of(path)[1], 200)


def test_a_whole_channel(path: Path) -> None:
    """`verify` of an intact channel reports how much it checked, and that nothing was found."""
    fill(path, 1000)
    assert re.fullmatch(r"1,000 messages in \d+ segments, [\d.]+ kB: no damage\n", run("verify", path).stdout)
    found = report("verify", path)
    assert (found["clean"], found["messages"], found["findings"]) == (True, 1000, [])


def test_damage_has_the_exit_code_1(path: Path) -> None:
    """The output names the offset and the next command to run."""
    fill(path, 1000)
    damage(path)
    text = run("verify", path, code=1).stdout
    assert f"segments/{segments_of(path)[1].name}:" in text
    assert f"filechannel repair {path}" in text
    found = report("verify", path, code=1)
    assert [finding["kind"] for finding in found["findings"]] == ["record"]
    assert found["lost"] >= 1


def test_messages_that_do_not_fit_the_schema(path: Path) -> None:
    """`verify --payloads` decodes every message and reports those that do not fit the schema."""
    fill(path, 10)
    manifest = path / "channel.json"
    manifest.write_text(manifest.read_text().replace('"int"', '"str"'))
    assert report("verify", path)["clean"]
    found = report("verify", path, "--payloads", code=1)
    assert {finding["kind"] for finding in found["findings"]} == {"payload"}


def test_payloads_of_raw_channels_are_all_right(path: Path) -> None:
    """`verify --payloads` accepts any bytes in a raw channel."""
    with blocking.open_channel(path, bytes) as channel, channel.sender() as sender:
        sender.send(b"\xff")
    assert report("verify", path, "--payloads")["messages"] == 1


def test_where_there_is_no_channel(path: Path) -> None:
    """A path without a channel is wrong usage."""
    for command in ("verify", "repair"):
        assert error(command, path, code=2) == f"there is no channel at {path}; check the path"


def test_a_repair_is_shown_before_it_is_done(path: Path) -> None:
    """`repair` without --apply changes nothing; with it, only the damaged part is removed."""
    fill(path, 1000)
    damage(path)
    plan = report("repair", path, code=1)
    assert not plan["applied"]
    assert len(plan["actions"]) == 1
    output = run("repair", path, code=1).stdout
    assert output.endswith(f"nothing was changed. To apply:\n  filechannel repair {path} --apply\n")
    assert not report("verify", path, code=1)["clean"]
    done = report("repair", path, "--apply")
    assert done["actions"] == plan["actions"]
    assert done["clean"]
    assert report("verify", path)["clean"]
    assert len(orders(path)) == 1000 - report("verify", path)["lost"] - 1
    assert run("repair", path).stdout == "there is nothing to repair\n"


def test_processes_that_have_it_open_are_named(path: Path) -> None:
    """`repair` is refused while processes have the channel open, and names them."""
    fill(path, 1000)
    damage(path)
    with blocking.open_channel(path, Order):
        message = error("repair", path, "--apply")
        assert str(os.getpid()) in message
        assert "nothing was done" in message


def test_a_lost_manifest_is_taken_from_elsewhere(path: Path) -> None:
    """`repair` needs the message type if the manifest is lost; a channel of the same type can supply it."""
    fill(path, 100)
    like = fill(path.with_name("like"), 10)
    (path / "channel.json").write_text("{")
    text = run("repair", path, "--apply", code=1).stdout
    assert "--like" in text
    assert report("repair", path, "--apply", "--like", like)["clean"]
    assert len(orders(path)) == 100


def test_real_exit_codes(path: Path) -> None:
    """The process exits with 0 for no findings, 1 for findings and 2 for wrong usage."""
    fill(path, 1000)
    assert real("verify", path)[0] == 0
    damage(path)
    assert real("verify", path)[0] == 1
    assert real("repair", path)[0] == 1
    assert real("repair", path, "--apply")[0] == 0
    assert real("verify", path / "x")[0] == 2


def test_the_end_of_a_killed_repair_is_another_one(path: Path) -> None:
    """After SIGKILL in the middle of a repair a second run finishes it."""
    fill(path, 1000)
    damage(path)
    process = start("repair", path, "--apply")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run("repair", path, "--apply")
    assert report("verify", path)["clean"]


def test_what_follows_a_lost_beginning_stays(path: Path, boots: Boots) -> None:
    """After a power cut, a channel whose first segment is missing keeps every later message, with its sequence."""
    fill(path, 300)
    boots.again()
    first, *rest = segments_of(path)
    assert rest
    first.unlink()
    left = report("verify", path, code=1)["messages"]
    assert 0 < left < 300
    run("repair", path, "--apply")
    assert report("verify", path)["messages"] == left
    assert [order.id for order in orders(path)] == list(range(300 - left, 300))


def test_without_a_manifest_nothing_is_done_over_and_over(path: Path) -> None:
    """Without a manifest a repair leaves the rest as it is; once the channel can be opened, it fixes everything."""
    fill(path, 100)
    like = fill(path.with_name("like"), 1)
    (path / "channel.json").unlink()
    (path / "channel.json").mkdir()
    os.truncate(path / "control", 10)
    assert report("repair", path, "--apply", code=1)["actions"] == []
    assert not (path / "quarantine").exists()
    [advice, *_] = report("doctor", path, code=1)["channels"][0]["advice"]
    assert "channel.json is a directory" in advice["what"]
    assert [each["file"] for each in report("repair", path, "--apply", "--like", like)["actions"]] == [
        "channel.json",
        "control",
    ]
    assert len(orders(path)) == 100


def test_a_directory_instead_of_the_control_file(path: Path) -> None:
    """A directory instead of the control file is moved to the quarantine, and recovery finds the end of the log."""
    fill(path, 100)
    (path / "control").unlink()
    (path / "control").mkdir()
    (path / "control" / "mine").write_text("something")
    for command in ("tail", "gc"):
        assert f"filechannel repair {path} --apply" in run(command, path, code=1).stderr
    run("repair", path, "--apply")
    assert len(orders(path)) == 100
    assert [each.read_text() for each in (path / "quarantine").glob("*-control/mine")] == ["something"]
