"""The pictures on the pages are what is drawn now, from what the pages say now."""

from __future__ import annotations

import re
import runpy
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import plots
from filechannel.cli.demo import pictures
from filechannel.cli.demo.crash_act import CrashProgress
from tests.docs.pages import ROOT

FLOWS = runpy.run_path(str(ROOT / "docs/images/flows.py"))["FLOWS"]
DEMO = runpy.run_path(str(ROOT / "docs/images/demo.py"))


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_the_flows_are_drawn(flow: object) -> None:
    """Running `python docs/images/flows.py` changes no picture of the documentation."""
    assert callable(flow)
    assert (ROOT / f"docs/images/{flow.__name__}.svg").read_text() == flow()  # type: ignore[attr-defined]


def test_the_plots_show_the_table() -> None:
    """Running `python -m benchmarks.plots` changes no plot, and draws each one."""
    found = dict(plots.drawn(plots.PAGE.read_text()))
    assert found.keys() == {f"{plot.name}.svg" for plot in plots.PLOTS}
    for name, picture in found.items():
        assert (plots.IMAGES / name).read_text() == picture


def test_a_plot_says_where_the_files_were() -> None:
    """Each plot of the documentation names memory or the file system of the disk."""
    for name, picture in plots.drawn(plots.PAGE.read_text()):
        assert ("files on ext4" if name == "bench-fsync.svg" else "files in memory") in picture


def test_the_comparison_agrees_with_the_plots() -> None:
    """The times in the comparison with other queues are those of the plots."""
    page = (ROOT / "docs/comparison.md").read_text()
    compared = re.findall(r"^\| .* \| ([\d.]+ (?:ns|µs)) \|$", page, re.MULTILINE)
    drawn = dict(plots.drawn(plots.PAGE.read_text()))
    shown = re.findall(r">([\d.]+ (?:ns|µs))<", drawn["bench-queue.svg"] + drawn["bench-processes.svg"])
    assert sorted(compared) == sorted(shown)


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    """The plots of a run of some groups show those groups, and no peer that was not measured."""
    title = plots.PLOTS[0].group
    lines = [f"| **{title}** | | |", *(f"| {bar.work} | 1.5 us | 1 Q |" for bar in plots.PLOTS[0].bars[1:])]
    plots.write("\n".join(lines), tmp_path)
    (picture,) = tmp_path.iterdir()
    assert picture.name == "bench-queue.svg"
    assert plots.PLOTS[0].bars[0].label not in picture.read_text()
    assert "1.5 µs" in picture.read_text()


def words_of(picture: str) -> str:
    """Return the words in a picture of a terminal, in order."""
    texts = re.findall(r'<text [^>]*clip-path="[^"]*">([^<]*)</text>', picture)
    return " ".join(" ".join(map(unescape, texts)).split())


def test_the_demo_is_shown_as_it_is() -> None:
    """The picture of the demo has its headings and the result that every promise was kept."""
    console = Console(width=DEMO["COLUMNS"], file=StringIO(), record=True)
    console.print(pictures.crashes(CrashProgress((), None)))
    shown = words_of(DEMO["IMAGE"].read_text())
    assert shown.startswith(f"$ {DEMO['COMMAND']}")
    assert " ".join(console.export_text().split()) in shown
    assert "Every promise was kept." in shown


def test_the_picture_of_the_demo_has_its_words() -> None:
    """The picture of the demo has the acts that kill, a mark for those left out, and the results."""
    rule = "─" * DEMO["COLUMNS"]
    acts = "".join(f"\n{rule}\nAct {number} <&>\n\nworker 1  ━━╸  5  alive   \n" for number in range(4))
    text = DEMO["shortened"](f"{acts}\n{rule}\nkept  it\n\nEvery promise was kept.\n")
    assert words_of(DEMO["draw"](text)) == " ".join(text.split())
    assert "Act 1" in text
    assert "Act 2" not in text
    assert text.endswith(f"…\n{rule}\nkept  it\n\nEvery promise was kept.\n")
