"""`filechannel ship`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from filechannel.blocking import open_channel
from filechannel.cli.app import app
from tests.spark.messages import Order, fill, orders


def run(*arguments: object, code: int = 0) -> Result:
    """Give a command in this process, and see its exit code."""
    result = CliRunner().invoke(app, ["ship", *map(str, arguments)], prog_name="filechannel")
    assert result.exit_code == code, f"{result.exit_code}: {result.stdout}{result.stderr}{result.exception!r}"
    return result


def test_segments_are_shipped_once(path: Path, tmp_path: Path) -> None:
    """`ship` copies each segment once, and reports in words or JSON what it copied and what was there already."""
    fill(path, orders(1000), segment_size=4096)
    archive = f"file://{tmp_path}/archive"
    first = json.loads(run(path, archive, "--consumer", "archive", "--json").stdout)
    assert first["segments"] > 3
    assert f"has every finished segment, up to offset {first['end']}" in run(path, archive, "--verify").stdout.replace(
        "\n", " "
    )
    with open_channel(path, Order) as channel:
        assert [consumer.name for consumer in channel.consumers()] == ["archive"]
    fill(path, orders(200, 1000))
    assert "shipped " in run(path, archive).stdout


def test_a_gap_is_a_finding(path: Path, tmp_path: Path) -> None:
    """Messages that were reclaimed before they were shipped are reported, with exit code 1."""
    fill(path, orders(300), segment_size=4096)
    archive = f"file://{tmp_path}/archive"
    run(path, archive)
    with open_channel(path, Order) as channel, channel.sender() as sender:
        sender.send_many(orders(300, 300))
        channel.purge()
        sender.send_many(orders(300, 600))
    assert "1 gap in the archive" in run(path, archive, code=1).stderr


def test_wrong_paths_are_wrong_usage(path: Path, tmp_path: Path) -> None:
    """`ship` of a missing channel, to an unknown URI or into the archive of another channel is wrong usage."""
    archive = f"file://{tmp_path}/archive"
    assert "there is no channel at" in run(path, archive, code=2).stderr
    fill(path, orders(300), segment_size=4096)
    fill(tmp_path / "other", orders(300), segment_size=4096)
    assert "Arrow cannot open it" in run(path, "ftp://host/archive", code=2).stderr
    run(path, archive)
    assert "the archive of another channel" in run(tmp_path / "other", archive, code=2).stderr
