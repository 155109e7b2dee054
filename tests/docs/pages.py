"""What the pages of the documentation consist of: blocks, each at a line of its page.

| on a page | what is done with it |
| --- | --- |
| ```` ```python ```` | runs, in the namespace of the page, with top-level `await` |
| ```` ```output ```` | is what the block before it printed; `...` matches anything |
| ```` ```python title="a.py" ```` | is written to that file, and so is any other language with a title |
| ```` ```console ```` | what is behind `$ ` runs in one bash a page; what follows is what it prints, if it is given |
| ```` ```sh ```` | is not run, but its targets, extras and commands must exist |
| ```` ```text ```` | nothing: pictures, layouts, pseudo code |
| `<!-- run` … `-->` | runs as Python does, and is not shown: what a page takes for granted |
| `<!-- needs: spark -->` | the page is left to `tests/spark` |
| `<!-- needs: native -->` | several processes share a channel, which the pure implementation cannot do |
| `<!-- needs: module -->` | is skipped where that module is not installed |
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "output", "console", "sh", "text"}

_FENCE = r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$"
_HIDDEN = r"^<!-- run\n(?P<hidden>.*?)^-->$"
_BLOCK = re.compile(f"{_FENCE}|{_HIDDEN}", re.MULTILINE | re.DOTALL)
_INFO = re.compile(r'(?P<language>\w*)(?: title="(?P<title>[\w./-]+)")?')
_NEEDS = re.compile(r"^<!-- needs: (.*) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or a hidden one."""

    language: str
    title: str | None
    text: str
    line: int
    """The line of the page on which the text begins."""


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in order; raise `ValueError` for a block that has no meaning."""
    source, found = page.read_text(), []
    for match in _BLOCK.finditer(source):
        if match["hidden"] is not None:
            language, title, group = "python", None, "hidden"
        else:
            info, group = _INFO.fullmatch(match["info"]), "body"
            if info is None or not (info["title"] or info["language"] in LANGUAGES):
                raise ValueError(f"{page}:{_line(source, match.start())}: a block of {match['info'] or 'nothing'!r}")
            language, title = info["language"], info["title"]
        found.append(Block(language, title, textwrap.dedent(match[group]), _line(source, match.start(group))))
    return found


def needs_of(page: Path) -> set[str]:
    """Return what a page cannot be run without."""
    return {need for line in _NEEDS.findall(page.read_text()) for need in line.split(", ")}


def _line(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1
