"""`python -m tests.docs PAGE`: run a page here, as a reader does who follows it from top to bottom."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import sys
from pathlib import Path
from types import ModuleType

import anyio
import anyio.to_thread

from filechannel import FileChannel, blocking

from .pages import Block, blocks_of
from .shell import Shell, commands_of


class PageError(Exception):
    """The page says something else than what happens."""


async def run_page(page: Path) -> None:
    """Run the blocks of a page in order, in the current directory."""
    # The page is the program: what it defines can be pickled, by its name or, in Spark, by value.
    program = sys.modules["__main__"] = ModuleType("__main__")
    names, printed = vars(program), ""
    with Shell() as shell:
        for block in blocks_of(page):
            if block.title is not None:
                await write_file(block)
            elif block.language == "python":
                printed = await run_python(page, block, names)
            elif block.language == "output":
                compare(page, block.line, block.text, printed)
            elif block.language == "console":
                await run_commands(page, block, shell)
    for value in list(names.values()):
        match value:
            case FileChannel():
                await value.aclose()
            case blocking.FileChannel():
                value.close()


async def write_file(block: Block) -> None:
    """Write a block with a title to the file of that name."""
    assert block.title is not None
    path = anyio.Path(block.title)
    await path.parent.mkdir(parents=True, exist_ok=True)
    await path.write_text(block.text)


async def run_python(page: Path, block: Block, names: dict[str, object]) -> str:
    """Run a block and return what it printed. Errors show the line of the page."""
    source = "\n" * (block.line - 1) + block.text
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(source, page, "exec", flags, dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()) as printed, anyio.fail_after(60):
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
    return printed.getvalue()


async def run_commands(page: Path, block: Block, shell: Shell) -> None:
    """Run the commands of a block. One that fails must show it: with `echo $?` behind it."""
    commands = commands_of(block.text)
    for command, after in zip(commands, [*commands[1:], None], strict=True):
        printed, code = await anyio.to_thread.run_sync(shell.run, command.line)
        if code and (after is None or after.line != "echo $?"):
            raise PageError(f"{page}:{block.line}: {command.line!r} ended with {code}:\n{printed}")
        if command.printed:
            compare(page, block.line, command.printed, printed)


def compare(page: Path, line: int, expected: str, printed: str) -> None:
    """Raise if something was printed that the page does not say. `...` matches anything."""
    first, *rest = (part.strip() for part in expected.split("..."))
    found = printed.strip()
    position = len(first) if found.startswith(first) else -1
    for part in rest:
        place = found.find(part, position) if position >= 0 else -1
        position = place + len(part) if place >= 0 else -1
    if position < 0 or (position < len(found) and not expected.rstrip().endswith("...")):
        raise PageError(f"{page}:{line}: the page says\n{expected}\nand this was printed\n{printed}")


if __name__ == "__main__":
    anyio.run(run_page, Path(sys.argv[1]))
