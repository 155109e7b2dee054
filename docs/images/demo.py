"""Runs `filechannel demo --no-spark` and draws its output for the landing page: `python docs/images/demo.py`.

The picture shows the acts in which processes are killed, and the results of the whole demo. Every word and figure in it
is what the command printed; this program adds the prompt, the colors of a terminal, and a mark where acts are left out.
The terminal is narrow, so that the picture is readable on a phone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 56
COMMAND = "filechannel demo --no-spark"
IMAGE = Path(__file__).parent / "demo.svg"
KILLS = 2
"""How many acts kill processes: the first ones."""
LEFT_OUT = "…"
STYLED = (
    r"(?m)^(?P<cyan>\$ .*)$",
    r"(?m)^(?P<dim>─+)$",
    r"(?m)^─+\n(?P<bold>(?!kept)(?:.+\n)+)\n",  # the first paragraph of an act
    r"(?m)^(?P<bold>kill  .*)$",
    r"(?m)^worker \d +(?P<green>[━╸]+)(?=.*alive$)",
    r"(?m)^worker \d +(?P<red>[━╸]+)(?=.*killed$)",
    r"(?m)^worker .*(?P<green>alive)$",
    r"(?m)^worker .*(?P<red>killed)$",
    r"(?m)^(?P<green>kept)\b",
    r"(?m)^(?P<green>Every promise was kept\.)$",
)
"""What is colored: the name of a group is its style."""

# The template of rich without its web font, which a browser does not load for a picture, and with a width of its own.
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="540" role="img">
<title>The output of filechannel demo: processes are killed, and no accepted order is lost</title>
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px }}
.{unique_id}-title {{ font: 600 18px system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed() -> str:
    """Run the demo and return what it prints. Raise `CalledProcessError` if a promise was broken."""
    command = Path(sys.executable).with_name("filechannel")
    environment = os.environ | {"COLUMNS": str(COLUMNS)}
    words = [command, *COMMAND.split()[1:]]
    return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def shortened(output: str) -> str:
    """Return the acts that kill processes and the results, below a prompt."""
    rule = "─" * COLUMNS + "\n"
    output = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
    _, *acts, results = output.split(rule)
    return rule.join([f"$ {COMMAND}\n", *acts[: KILLS - 1], f"{acts[KILLS - 1]}{LEFT_OUT}\n", results])


def draw(text: str) -> str:
    """Return a picture of a terminal with this text."""
    console, drawn = Console(record=True, width=COLUMNS, file=StringIO()), Text(text.rstrip())
    for pattern in STYLED:
        drawn.highlight_regex(pattern)
    console.print(drawn)
    return console.export_svg(title=COMMAND, code_format=SVG, unique_id="demo")


if __name__ == "__main__":
    IMAGE.write_text(draw(shortened(printed())))
