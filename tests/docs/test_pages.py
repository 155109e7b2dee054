"""Every block of the README and of the documentation does what the page says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from filechannel._format import PURE

from .pages import PAGES, ROOT, Block, blocks_of, needs_of
from .running import run

RUN = [page for page in PAGES if "spark" not in needs_of(page) and blocks_of(page)]
SHELL = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{block.line}")
    for page in PAGES
    for block in blocks_of(page)
    if block.language == "sh"
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order in an empty directory, and warn about nothing."""
    for need in sorted(needs_of(page)):
        if need != "native":
            pytest.importorskip(need)
        elif PURE:
            pytest.skip("the pure implementation lets one process at a time have a channel")
    done = run(page, tmp_path, "-W", "error")
    assert not done.returncode, done.stderr
    assert not done.stderr


@pytest.mark.parametrize("block", SHELL)
def test_what_is_typed_into_a_shell_exists(block: Block) -> None:
    """The make targets, extras and commands that a page names exist."""
    for line in block.text.splitlines():
        if words := shlex.split(line, comments=True):
            assert known(words), line


def known(words: list[str]) -> bool:
    """Say whether a command can be typed in a checkout."""
    match words:
        case ["make", target, *_]:
            return re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
        case ["pip", "install", "."]:
            return True
        case ["pip", "install", package]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            named = re.fullmatch(r"(?:filechannel|\.)\[([\w,]+)\]", package)
            return named is not None and set(named[1].split(",")) <= extras.keys()
        case ["filechannel", command, *_]:
            script = Path(sys.executable).with_name("filechannel")
            return subprocess.run([script, command, "--help"], capture_output=True, check=False).returncode == 0
        case _:
            return False
