"""`filechannel demo`: the show itself, with real kills."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from filechannel._format import PURE
from tests.cli.shell import finish, start

pytestmark = pytest.mark.xdist_group("demo")


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "filechannel", "demo", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_demo_keeps_every_promise_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Each act prints what it did, the figures come last, and the demo's directory is deleted."""
    result = run_demo("--no-spark", TMPDIR=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("\nkept ") == (2 if PURE else 3)  # one process at a time cannot share work
    assert "Every promise was kept." in result.stdout
    assert "\n(a step can be accepted" in result.stdout
    assert "asyncio.Queue" in result.stdout
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []


def children_of(pid: int) -> list[int]:
    """Return the processes that one has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("moment", ["", "msgspec"], ids=["made", "importing"])
def test_ctrl_c_ends_every_process_silently(tmp_path: Path, moment: str) -> None:
    """A terminal signals the whole process group: no process prints an error, and neither a process nor the directory
    is left.
    """
    demo = start("demo", "--no-spark", environment={"TMPDIR": str(tmp_path)}, start_new_session=True)
    while not (children := children_of(demo.pid)):
        assert demo.poll() is None
    while moment not in Path(f"/proc/{children[0]}/maps").read_text():
        assert demo.poll() is None
    os.killpg(demo.pid, signal.SIGINT)
    code, _, said = finish(demo)
    assert (code, said) == (130, "")
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_java_is_named_before_anything_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the demo skips the pipeline and prints what to install."""
    from filechannel.cli.demo.spark_act import what_is_missing

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "openjdk" in (what_is_missing() or "")


def test_the_pipeline_leaves_nothing_behind_when_it_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its files are in the directory of the demo, which is deleted however the demo ends."""
    from filechannel.cli.demo import spark_act

    example = tmp_path / "example.py"
    example.write_text("import os, tempfile\ntempfile.mkdtemp()\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(spark_act, "script", lambda: example)
    (tmp_path / "demo").mkdir()
    assert not spark_act.run_pipeline(tmp_path / "demo")
    assert len(list((tmp_path / "demo").iterdir())) == 1


def test_the_pipeline_is_found_in_a_checkout() -> None:
    """The demo runs the pipeline example of the checkout."""
    from filechannel.cli.demo.spark_act import script

    assert script().read_text(encoding="utf-8").startswith('"""A complete pipeline')
