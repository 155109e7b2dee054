"""The command line as a whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from filechannel.cli.app import app
from tests.cli.shell import error, fill, real, run

GROUP = typer.main.get_command(app)
NAMES = sorted(GROUP.commands)  # type: ignore[attr-defined]
ALL = [[name] for name in NAMES if name != "consumers"] + [["consumers", "list"], ["consumers", "remove"]]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_explains_itself(command: list[str]) -> None:
    """The help of a command has a one-line summary, an explanation, and examples that begin with its name."""
    text = run(*command, "--help").stdout
    usage = text.split("\n\n")[0]
    assert re.fullmatch(r"Usage: filechannel [\w ]+ \[OPTIONS\]( [A-Z]+(\.\.\.)?)*( \[[A-Z]+\](\.\.\.)?)?", usage)
    summary, explanation, *_ = text.split("\n\n")[1:]
    assert "\n" not in summary.strip()
    assert len(explanation.split()) > 10
    examples = text.partition("Examples:")[2]
    assert f"filechannel {' '.join(command)}" in examples


def test_the_summary_of_every_command_is_listed_whole() -> None:
    """No line of the list is cut off at 80 columns."""
    listed = run("--help").stdout.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.strip().splitlines()] == [*GROUP.commands]  # type: ignore[attr-defined]
    assert "..." not in listed


def test_the_version() -> None:
    """`--version` prints the version of the package, also as `python -m filechannel`."""
    assert real("--version") == (0, f"filechannel {version('filechannel')}\n", "")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["info"], ["info", "--nonsense", "x"], ["tail", "x", "-n", "many"]]
)
def test_wrong_usage_has_the_exit_code_2(arguments: list[str]) -> None:
    """Wrong usage exits with 2, and says what is wrong and where the help is."""
    assert "Try 'filechannel" in error(*arguments, code=2)


INTERRUPTING = """\
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
SCRIPT = [str(Path(sys.executable).with_name("filechannel"))]


@pytest.mark.parametrize("module", ["msgspec", "filechannel.cli", "typer", "filechannel.cli.commands.info"])
@pytest.mark.parametrize(
    "command",
    [SCRIPT, [sys.executable, "-m", "filechannel"], [sys.executable, "-X", "utf8", "-mfilechannel"]],
    ids=["script", "module", "short"],
)
def test_ctrl_c_while_it_starts(command: list[str], module: str, tmp_path: Path) -> None:
    """The command ends silently, whatever it is importing; where Ctrl-C is ignored, it continues."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "INTERRUPT_AT": module}
    whole = [*command, "--version"]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    examined = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *whole]
    done = subprocess.run(examined, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"filechannel {version('filechannel')}\n")


def test_importing_the_package_leaves_ctrl_c_alone() -> None:
    """The signal handler is installed only where the process can be nothing but the command line."""
    program = "import signal, filechannel, filechannel.cli; print(signal.getsignal(2) is signal.default_int_handler)"
    for command in (["-c", program], ["-c", program, "-m", "filechannel"]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.stdout.splitlines()[0] == "True", done.stderr


def test_without_the_extra_it_says_which_one_to_install() -> None:
    """The error names the extra, so that users need not know that the command line uses typer."""
    program = "import sys; sys.modules['typer'] = None; from filechannel.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "filechannel: the command line needs typer and rich: pip install 'filechannel[cli]'\n"


def test_it_starts_without_what_it_may_not_need() -> None:
    """The help is printed without importing the libraries for tables."""
    program = "import sys, filechannel.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"rich", "pydantic", "pyarrow", "pyspark", "aiofiles", "importlib.metadata"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "more", "places"),
    [
        ("info", (), ".statistics.messages"),
        ("tail", ("-n", 1), ".value.sku"),
        ("doctor", (), ".channels[].advice[].mend"),
        ("top", ("--once", "-i", 0.05), ".channels[].messages"),
    ],
)
def test_examples_look_where_something_is(path: Path, command: str, more: tuple[object, ...], places: str) -> None:
    """The jq examples in the help of a command use fields that its JSON has."""
    assert places in run(command, "--help").stdout
    fill(path, 1000)  # about which doctor has something to say
    found = [json.loads(run(command, path, *more, "--json", code=int(command == "doctor")).stdout)]
    for name, is_list in re.findall(r"\.(\w+)(\[\])?", places):
        found = [inner for each in found for inner in (each[name] if is_list else [each[name]])]
    assert found
