"""The Python of the guide runs as it is printed, with the real Spark."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from filechannel import open_channel
from tests.spark.conftest import ROOT
from tests.spark.messages import Order, fill, orders

PAGE = ROOT / "docs/guides/spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def namespace(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """What the page speaks of: channels under `data`, a frame and a stream of orders, an application."""
    # The JVM and its workers do not follow into another directory.
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "data/orders", orders(600), segment_size=4096)
    fill(tmp_path / "data/results", [])

    async def serve_requests() -> None:
        await asyncio.sleep(0.5)

    yield {
        "spark": spark,
        "frame": spark.read.format("filechannel").load(f"{tmp_path}/data/orders"),
        "stream": spark.readStream.format("filechannel").load(f"{tmp_path}/data/orders"),
        "Order": Order,
        "open_channel": open_channel,
        "serve_requests": serve_requests,
    }
    for query in spark.streams.active:
        query.stop()
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_guide_runs(spark: SparkSession, tmp_path: Path, namespace: dict[str, object]) -> None:
    """Each block after the other; places are those of the test, and queries that go on for ever are let do some."""
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) > 8
    for number, block in enumerate(blocks):
        placed = block.replace('"data/', f'"{tmp_path}/data/').replace("/tmp/archive", f"{tmp_path}/archive")
        placed = placed.replace("data/checkpoint", f"data/checkpoint-{number}")
        code = compile(placed, f"{PAGE.name}, block {number + 1}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, namespace)
        if inspect.isawaitable(result):
            asyncio.run(_finished(result))
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
    assert namespace["count"] == 600
    recent = namespace["recent"]
    assert recent.count() == 0  # type: ignore[attr-defined]
    shutil.rmtree(tmp_path / "data")


async def _finished(result: object) -> None:
    assert inspect.isawaitable(result)
    await asyncio.wait_for(result, 60)
