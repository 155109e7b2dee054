"""`filechannel consumers` and `filechannel seek`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from filechannel import blocking
from tests.cli.shell import Order, error, in_a_terminal, orders, report, run


@pytest.fixture
def consumed(channel: Path) -> Path:
    """A channel of which `billing` has taken ten, and the group `audit` none."""
    with blocking.open_channel(channel, Order) as opened:
        with opened.receiver("billing") as receiver:
            receiver.receive_many(10)
        opened.group("audit").close()
    return channel


def names(path: Path) -> list[str]:
    """Return the registered consumer names."""
    return [each["name"] for each in report("consumers", path)]


def test_the_list(consumed: Path) -> None:
    """`consumers` lists each consumer with its lag and owner, also without the subcommand `list`."""
    heading, audit, billing = run("consumers", consumed).stdout.splitlines()
    assert heading.split() == ["CONSUMER", "KIND", "NEXT", "BEHIND", "BYTES", "OLDEST", "IDLE", "OWNER"]
    assert audit.split()[:4] == ["audit", "group", "0", "100"]
    assert billing.split()[:4] == ["billing", "single", "10", "90"]
    assert billing.endswith("none")
    assert run("consumers", "list", consumed).stdout.splitlines()[0] == heading
    assert [each["lag_messages"] for each in report("consumers", consumed)] == [100, 90]


def test_an_empty_list(channel: Path) -> None:
    """For a channel without consumers the command says so on stderr and prints nothing on stdout."""
    result = run("consumers", channel)
    assert (result.stdout, result.stderr) == ("", f"{channel} has no consumers\n")
    assert report("consumers", channel) == []


def test_removing(consumed: Path) -> None:
    """`remove` with `--yes` removes one or many consumers without a question."""
    assert run("consumers", "remove", consumed, "billing", "--yes").stderr == "removed billing\n"
    assert names(consumed) == ["audit"]


def test_removing_asks_first(consumed: Path) -> None:
    """`remove` asks first, and where it cannot ask, a missing `--yes` is wrong usage."""
    assert "add --yes" in error("consumers", "remove", consumed, "billing", code=2)
    assert names(consumed) == ["audit", "billing"]


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, ["audit"]), ("n", 1, ["audit", "billing"])])
def test_the_answer_counts(
    consumed: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: list[str]
) -> None:
    """`remove` takes any answer other than yes as no."""
    monkeypatch.setattr("builtins.input", lambda: answer)
    monkeypatch.setattr("filechannel.cli.commands.consumers.is_interactive", lambda: True)
    text = run("consumers", "remove", consumed, "billing", code=code).stderr
    assert "billing: 90 messages (" in text
    assert names(consumed) == left


def test_removing_an_unknown_consumer_removes_none(consumed: Path) -> None:
    """The command checks all names before it removes the first one."""
    text = error("consumers", "remove", consumed, "billing", "nobody", "--yes")
    assert text == f"there is no consumer 'nobody'; 'filechannel consumers {consumed}' lists them"
    assert names(consumed) == ["audit", "billing"]


@pytest.mark.parametrize("name", ["billing", "audit"])
def test_a_consumer_in_use_is_kept(consumed: Path, name: str) -> None:
    """A consumer in use is neither removed nor moved, and the message names its owner."""
    with blocking.open_channel(consumed, Order) as opened:
        with opened.receiver(name) if name == "billing" else opened.group(name):
            for command in (["consumers", "remove", consumed, name, "--yes"], ["seek", consumed, name, "latest"]):
                text = error(*command)
                assert text.startswith(f"consumer {name!r} is in use by process {os.getpid()} on ")
                assert text.endswith("; stop that process first, nothing was done")
    assert [each["lag_messages"] for each in report("consumers", consumed)] == [100, 90]


# Seeking


@pytest.mark.parametrize("name", ["billing", "audit"])
@pytest.mark.parametrize(("position", "left"), [("earliest", 100), ("latest", 0), ("seq:40", 60), ("1h", 100)])
def test_seeking(consumed: Path, name: str, position: str, left: int) -> None:
    """After `seek` a consumer resumes at the new position."""
    found = report("seek", consumed, name, position)
    assert found["after"]["lag_messages"] == left
    with blocking.open_channel(consumed, Order) as opened:
        with opened.receiver(name) if name == "billing" else opened.group(name) as receiver:
            assert len(receiver.receive_many_nowait(1000)) == left


def test_seeking_by_offset_and_back(consumed: Path) -> None:
    """`seek` prints the position before the move, with which it can be undone."""
    moved = report("seek", consumed, "billing", "seq:40")
    assert report("seek", consumed, "billing", moved["before"]["offset"])["after"] == moved["before"]
    text = run("seek", consumed, "billing", "earliest").stdout
    assert text.splitlines()[0].startswith("billing: was at message 10 (offset ")
    assert text.splitlines()[1].endswith("now at message 0 (offset 0), 100 messages left")


@pytest.mark.parametrize("position", ["1", "seq:1000", "soon", "99999999"])
def test_seeking_to_an_invalid_position(consumed: Path, position: str) -> None:
    """An invalid position is wrong usage, and the consumer is not moved."""
    assert "POSITION" in error("seek", consumed, "billing", position, code=2)
    assert report("consumers", consumed)[1]["next_sequence"] == 10


def test_seeking_registers_no_consumer(consumed: Path) -> None:
    """Seeking a name that does not exist does not register it."""
    assert error("seek", consumed, "typo", "latest").startswith("there is no consumer 'typo'")
    assert names(consumed) == ["audit", "billing"]
    assert len(orders(consumed)) == 100


@pytest.mark.parametrize("left", [0, 20, 4096], ids=["emptied", "cut off", "zeros"])
def test_a_damaged_position(consumed: Path, left: int) -> None:
    """Every command that reads it reports the damage and names the repair, after which the consumer starts at the
    oldest message.
    """
    file = consumed / "consumers" / "billing.cursor"
    file.write_bytes(bytes(left) if left > 100 else file.read_bytes()[:left])
    mends = f"filechannel repair {consumed}"
    assert [each["what"] for each in report("verify", consumed, code=1)["findings"] if each["kind"] == "cursor"]
    advice = report("doctor", consumed, code=1)["channels"][0]["advice"][0]
    assert "'billing' is damaged" in advice["what"]
    assert advice["mend"] == mends
    for command in ("consumers", "info"):
        result = run(command, consumed)
        assert "billing" in result.stdout
        assert f"{mends} --apply" in result.stderr
    assert [each["damaged"] for each in report("consumers", consumed)] == [False, True]
    assert f"{mends} --apply" in error("seek", consumed, "billing", "latest", code=1)
    run("gc", consumed)
    assert len(orders(consumed)) == 100
    before = file.read_bytes()
    assert "start again at the oldest message, offset 0: 100 messages" in run("repair", consumed, code=1).stdout
    assert file.read_bytes() == before
    run("repair", consumed, "--apply")
    assert [each["damaged"] for each in report("consumers", consumed)] == [False, False]
    assert [each["lag_messages"] for each in report("consumers", consumed)] == [100, 100]
    assert any(each.name.endswith("billing.cursor") for each in (consumed / "quarantine").iterdir())
    assert report("verify", consumed)["clean"]


def test_a_narrow_terminal(channel: Path) -> None:
    """In a narrow terminal the table has fewer columns, and none is cut."""
    with blocking.open_channel(channel, Order) as opened:
        opened.receiver("billing").close()
    narrow = in_a_terminal("consumers", channel, width=40).splitlines()
    assert len(narrow) == 2
    assert narrow[0].split()[0] == "CONSUMER"
    assert narrow[1].split()[0] == "billing"
    assert "OLDEST" not in narrow[0]
    assert "OLDEST" in in_a_terminal("consumers", channel, width=100)
