"""The Python of the README and of the documentation runs as it is printed."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from filechannel import FileChannel, open_channel

ROOT = Path(__file__).parent.parent
NEEDS_SPARK = ROOT / "docs/guides/spark.md"
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != NEEDS_SPARK)]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KEPT = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef


class Order(msgspec.Struct):
    """What the pages talk about."""

    id: int
    sku: str
    qty: int


def blocks() -> Iterator[pytest.ParameterSet]:
    """Return each block of Python with the imports and functions of the page before it."""
    for page in PAGES:
        before = ""
        for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
            yield pytest.param(block, before, id=f"{page.relative_to(ROOT)}:{number}")
            before += "".join(f"{ast.unparse(part)}\n" for part in ast.parse(block).body if isinstance(part, KEPT))


@pytest.mark.parametrize(("block", "before"), list(blocks()))
def test_the_block_runs(block: str, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program runs by itself; a part of one runs where `orders`, `tx` and `rx` are what the page says."""
    monkeypatch.chdir(tmp_path)
    if "asyncio.run(" in block:
        done = subprocess.run([sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    else:
        anyio.run(run_part, before + block)


@pytest.mark.parametrize("block", BLOCK.findall(NEEDS_SPARK.read_text()))
def test_a_block_for_spark_is_python(block: str) -> None:
    """What needs Spark, and frames that a page does not make, is only compiled here."""
    compile(block, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run_part(block: str) -> None:
    """Run the statements of a block one by one. Those that wait for messages find some."""
    namespace: dict[str, object] = {"Order": Order}
    async with open_channel("elsewhere/open", Order) as orders, open_channel("elsewhere/sealed", Order) as sealed:
        await fill(orders)
        await fill(sealed)
        await sealed.seal()
        with orders.sender() as tx, orders.receiver() as rx, sealed.receiver() as ended:
            namespace |= {"orders": orders, "tx": tx}
            for statement in ast.parse(block).body:
                # A loop over everything ends only where the channel does.
                namespace["rx"] = ended if isinstance(statement, ast.AsyncFor) else rx
                await run_statement(statement, namespace)


async def fill(channel: FileChannel[Order]) -> None:
    """Send what the page may receive."""
    async with channel.sender() as tx:
        await tx.send_many([Order(number, "pen", 1) for number in range(1000)])


async def run_statement(statement: ast.stmt, namespace: dict[str, object]) -> None:
    """Run one statement, which may use `await` although it is in no function."""
    module = ast.Module([statement], [])
    code = compile(module, "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, namespace)
    if inspect.isawaitable(result):
        with anyio.fail_after(30):
            await result
