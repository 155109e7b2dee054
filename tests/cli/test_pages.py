"""Commands on pages, and in the examples of the help, are commands that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from filechannel.cli.app import app
from tests.cli.shell import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP = typer.main.get_command(app)


def commands_in(text: str) -> Iterator[list[str]]:
    """Return the words after each `filechannel` in lines that are typed."""
    for line in text.splitlines():
        typed = line.strip().removeprefix("$ ")
        if "filechannel " not in typed or typed.startswith(("filechannel:", "pip ", "Usage:", "Try ")):
            continue
        words = shlex.split(typed, comments=True)
        for place, word in enumerate(words):
            if word == "filechannel":
                rest = words[place + 1 :]
                yield rest[: next((number for number, each in enumerate(rest) if each in ("|", ">", "<")), None)]


def typed() -> Iterator[pytest.ParameterSet]:
    """Return every command on a page and in the help."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for words in commands_in(block):
                yield pytest.param(words, id=f"{page.name}: {' '.join(words)}")
    names = [[name] for name in GROUP.commands if name != "consumers"]  # type: ignore[attr-defined]
    for command in [*names, ["consumers", "list"], ["consumers", "remove"]]:
        for words in commands_in(run(*command, "--help").stdout.partition("Examples:")[2].partition("\n\n")[0]):
            yield pytest.param(words, id=f"--help: {' '.join(words)}")


@pytest.mark.parametrize("words", list(typed()))
def test_it_is_a_command(words: list[str]) -> None:
    """A command line in a documentation page names an existing command and existing options."""
    command = GROUP
    rest = list(words)
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert "list" in command.commands, words
        command = command.commands["list"]
    with command.make_context("it", ["--help"], resilient_parsing=True) as context:
        parameters = command.get_params(context)
        known = {option for each in parameters for option in (*each.opts, *each.secondary_opts)}
    assert {word for word in rest if re.match(r"--?[a-z]", word)} <= known | {"-h", "--help"}
