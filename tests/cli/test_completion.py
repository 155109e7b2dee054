"""What the shell offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from filechannel import blocking
from tests.cli.shell import Order, fill


def complete(words: str) -> list[str]:
    """Return what bash is offered after some words."""
    environment = {
        "_FILECHANNEL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"filechannel {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    program = "from filechannel.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return [line for line in done.stdout.splitlines() if line]


def test_the_shell_completes_commands_and_consumers(path: Path) -> None:
    """Shell completion offers commands, and the consumers of the channel that was typed."""
    fill(path, 1)
    with blocking.open_channel(path, Order) as opened:
        for name in ("billing", "backup", "audit"):
            opened.receiver(name).close()
    assert complete("co") == ["compress", "consumers"]
    assert complete(f"seek {path} b") == ["backup", "billing"]
    assert complete(f"consumers remove {path} a") == ["audit"]
    assert complete("seek /nowhere a") == []


def test_named_positions_are_completed() -> None:
    """Both names are offered wherever a position is typed."""
    assert complete("seek here billing ") == ["earliest", "latest"]
    assert complete("tail here --from e") == ["earliest"]


def test_names_that_the_shell_would_take_apart(path: Path) -> None:
    """Shell completion quotes names with spaces or special characters."""
    fill(path, 1)
    with blocking.open_channel(path, Order) as opened:
        opened.receiver("the biller's").close()
    assert complete(f"seek {path} th") == [r"the\ biller\'s"]
