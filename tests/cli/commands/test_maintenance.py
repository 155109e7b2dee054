"""`filechannel gc` and `filechannel compress`."""

from __future__ import annotations

from pathlib import Path

import pytest

from filechannel import blocking
from tests.cli.shell import Order, error, fill, orders, report, run


def consume(path: Path, count: int) -> None:
    """Let a consumer take so many messages."""
    with blocking.open_channel(path, Order) as opened, opened.receiver("billing") as receiver:
        receiver.receive_many(count)


def segments(path: Path) -> int:
    """Return how many segments there are."""
    found: int = report("info", path)["statistics"]["segments"]
    return found


def test_no_needed_segment_is_reclaimed(channel: Path) -> None:
    """`gc` keeps segments that a consumer needs, and names the consumer."""
    assert report("gc", channel) == {
        "segments": 0,
        "bytes": 0,
        "held_back_by": "no consumer is registered, so nothing counts as consumed",
        "dry_run": False,
    }
    consume(channel, 1)
    text = run("gc", channel).stdout
    assert text == (
        "removed 0 segments with 0 B of records\nthe oldest segment is kept: consumer 'billing' has not read it\n"
    )


def test_consumed_segments_are_reclaimed_at_once(channel: Path) -> None:
    """`gc` reclaims consumed segments at once, and a dry run prints the same and changes nothing."""
    consume(channel, 100)
    foreseen = report("gc", channel, "--dry-run")
    assert foreseen["dry_run"]
    assert segments(channel) == foreseen["segments"] > 0
    assert run("gc", channel, "--dry-run").stdout.startswith(f"would remove {foreseen['segments']} segment")
    done = report("gc", channel)
    assert (done["segments"], done["bytes"]) == (foreseen["segments"], foreseen["bytes"])
    assert orders(channel) == []
    assert report("gc", channel, "--dry-run")["segments"] == 0


def test_compressing(path: Path) -> None:
    """`compress` compresses finished segments without changing messages; a second run finds none."""
    fill(path, 1000)
    before = orders(path)
    done = report("compress", path)
    assert done["segments"] == report("info", path)["statistics"]["compressed_segments"] > 0
    assert done["bytes_after"] < done["bytes_before"]
    assert orders(path) == before
    assert run("compress", path).stdout.startswith("there is nothing to compress")


@pytest.mark.parametrize("options", [["--method", "gzip", "--level", "9"], ["--method", "zstd"]])
def test_how_to_compress(path: Path, options: list[str]) -> None:
    """`compress` accepts a method and a level."""
    fill(path, 1000)
    assert run("compress", path, *options).stdout.startswith("compressed ")


def test_a_level_that_is_none(channel: Path) -> None:
    """An invalid compression level, or one without a method, is wrong usage."""
    assert "level" in error("compress", channel, "--method", "gzip", "--level", "99", code=2)
    assert "--level needs --method" in error("compress", channel, "--level", "3", code=2)
