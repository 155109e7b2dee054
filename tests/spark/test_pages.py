"""The pages about Spark do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, needs_of
from tests.docs.running import run

from .conftest import java

RUN = [page for page in PAGES if "spark" in needs_of(page)]


@pytest.mark.timeout(300)
@pytest.mark.skipif(java() is None, reason="no Java 17 or newer: install one or set JAVA_HOME")
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run in order in an empty directory, with their own Spark."""
    done = run(page, tmp_path, timeout=290)  # what Java prints is not ours
    assert done.returncode == 0, done.stderr
