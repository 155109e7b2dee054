"""The pictures on the pages are what is drawn now, from what the pages say now."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from benchmarks import plots
from tests.docs.pages import ROOT

FLOWS = runpy.run_path(str(ROOT / "docs/images/flows.py"))["FLOWS"]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_the_flows_are_drawn(flow: object) -> None:
    """`python docs/images/flows.py` changes nothing."""
    assert callable(flow)
    assert (ROOT / f"docs/images/{flow.__name__}.svg").read_text() == flow()  # type: ignore[attr-defined]


def test_the_plots_show_the_table() -> None:
    """`python -m benchmarks.plots` changes nothing, and draws each plot."""
    found = dict(plots.drawn(plots.PAGE.read_text()))
    assert found.keys() == {f"{plot.name}.svg" for plot in plots.PLOTS}
    for name, picture in found.items():
        assert (plots.IMAGES / name).read_text() == picture


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    """A run of some groups draws those, and a plot leaves out a peer that was not there."""
    title = plots.PLOTS[0].group
    lines = [f"| **{title}** | | |", *(f"| {bar.work} | 1.5 us | 1 Q |" for bar in plots.PLOTS[0].bars[1:])]
    plots.write("\n".join(lines), tmp_path)
    (picture,) = tmp_path.iterdir()
    assert picture.name == "bench-queue.svg"
    assert plots.PLOTS[0].bars[0].label not in picture.read_text()
    assert "1.5 µs" in picture.read_text()
