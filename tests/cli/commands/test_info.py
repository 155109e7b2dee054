"""`filechannel info`."""

from __future__ import annotations

import os
from pathlib import Path

from filechannel import Capacity, ChannelOptions, Compression, Durability, Retention, blocking
from tests.cli.shell import Order, fill, orders, report, run
from tests.storage.boots import Boots


def test_what_a_channel_is(channel: Path) -> None:
    """`info` prints messages, schema, space, options, and what holds back the oldest segment."""
    lines = dict(line.split("  ", 1) for line in run("info", channel).stdout.splitlines() if "  " in line.strip())
    facts = {name.strip(): value.strip() for name, value in lines.items()}
    assert facts["channel"] == str(channel)
    assert facts["messages"] == "Order as msgpack"
    assert facts["stored"] == "100 messages of 100 ever sent"
    assert facts["to disk"] == "when the system does (Durability.OS)"
    assert facts["retention"] == "consumed messages are deleted"
    assert facts["compression"] == "none"
    assert facts["segments of"] == "4.1 kB, mode 0600"
    assert facts["open for writing in"] == "no process"
    assert "Order(id: int, sku: str, qty: int)" in run("info", channel).stdout
    assert "no consumer is registered, so nothing counts as consumed" in run("info", channel).stdout


def test_who_uses_it(channel: Path) -> None:
    """`info` lists the processes that have the channel open and its consumers."""
    with blocking.open_channel(channel, Order) as opened, opened.receiver("billing") as receiver:
        receiver.receive_many(10)
        found = report("info", channel)
        assert [each["pid"] for each in found["statistics"]["writers"]] == [os.getpid()]
        (consumer,) = found["consumers"]
        assert consumer["name"] == "billing"
        assert consumer["lag_messages"] == 90
        assert consumer["owner"]["pid"] == os.getpid()
        text = run("info", channel).stdout
        assert f"process {os.getpid()} on " in text
        assert "consumer 'billing' has not read it" in text


def test_everything_in_json(path: Path) -> None:
    """`info --json` prints one document with the manifest and the statistics under their own names."""
    options = ChannelOptions(capacity=Capacity(max_messages=1000), retention=Retention(max_age=60.0))
    found = report("info", fill(path, 5, options))
    assert found["path"] == str(path)
    assert found["type"] == "Order"
    assert found["codec"] == "msgpack"
    assert found["options"]["retention"]["max_age"] == 60.0
    assert found["statistics"]["messages"] == 5
    assert found["statistics"]["room"]["max_messages"] == 1000
    assert isinstance(found["statistics"]["oldest_age"], float)
    text = run("info", path).stdout
    assert "5 of 1,000 messages used" in text
    assert "consumed messages are deleted, what is older than 60 seconds is deleted" in text


def test_a_sealed_channel_is_shown_as_sealed(channel: Path) -> None:
    """A sealed channel accepts no more messages."""
    with blocking.open_channel(channel, Order) as opened:
        opened.seal()
    assert "sealed: no message can be added" in run("info", channel).stdout


def test_nothing_is_all_on_disk(channel: Path) -> None:
    """`info` reports nothing left to flush for a channel whose messages were consumed and removed."""
    assert "not all of it on disk yet" in run("info", channel).stdout
    with blocking.open_channel(channel, Order) as opened, opened.receiver("billing") as receiver:
        receiver.receive_many(100)
    run("gc", channel)
    assert "not all of it on disk yet" not in run("info", channel).stdout
    assert report("info", channel)["statistics"]["messages"] == 0


def test_a_name_with_commands_in_it_reaches_no_terminal(path: Path) -> None:
    """`info` escapes control characters in names that other users chose."""
    fill(path, 1)
    with blocking.open_channel(path, Order) as opened:
        opened.receiver("a\x9b31mred").close()
    assert "a\\x9b31mred" in run("info", path).stdout


def test_options_in_words(path: Path) -> None:
    """`info` describes durability, compression and the policy for a full channel in words."""
    options = ChannelOptions(
        durability=Durability.interval(0.5),
        compression=Compression(method="gzip", level=9, after=120.0),
        retention=Retention(after_consumed="keep", max_bytes=2_000_000),
        capacity=Capacity(max_bytes=1_000_000_000, on_full="drop_oldest"),
    )
    text = run("info", fill(path, 1, options)).stdout
    assert "every 0.5 seconds (Durability.interval(0.5))" in text
    assert "gzip, level 9, 2 minutes after a segment is finished" in text
    assert "consumed messages are kept, the oldest above 2.0 MB are deleted" in text
    assert "of 1.0 GB used" in text
    assert "drop oldest" in text


def test_before_recovery(boots: Boots, channel: Path) -> None:
    """After a reboot only flushed messages are certain, and the output says so."""
    assert report("info", channel)["is_current"]
    boots.again()
    assert not report("info", channel)["is_current"]
    assert "was not opened since a restart" in run("info", channel).stderr
    assert len(orders(channel)) == 100  # which recovers it
    assert report("info", channel)["is_current"]
