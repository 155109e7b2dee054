"""What comes from a channel, its directory or a file reaches a terminal as text, and never as a command to it."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from filechannel import ChannelOptions, blocking
from filechannel._errors import repair_command
from filechannel._shell_quoting import command, shell_words
from filechannel.cli.ui.escaping import safe, safe_json
from tests.cli.shell import TIMEOUT

TITLE = "\x1b]0;pwned\x07"
EVIL = f"{TITLE}\x1b[5m\x9b5m\rforged\nforged\x7f\u202e\u2066\u200b\u2028\ufeff\U000e0041"
FIELD = "\x9b5m\x7f\u202e\u200b"
"""As much of that as msgspec allows in the name of a field; another manifest may have any."""
EVIL_NAME = f"{EVIL}\udc9b\udcff$(touch pwned)'\"`touch pwned`;touch pwned"
OURS = re.compile(rb"\x1b\[(?:[0-9;]*[mABCDGHJK]|\?(?:25|1049)[hl])")
"""What rich and we write to a terminal: colours, moves of the cursor, the other screen."""


class Order(msgspec.Struct, rename={"sku": FIELD}):
    """A message whose field has such a name."""

    id: int
    sku: str


@pytest.fixture
def hostile(memory: Path) -> Path:
    """A channel whose path, consumers, fields, messages and unknown files have names that are terminal commands."""
    path = memory / EVIL_NAME
    with blocking.open_channel(path, Order, options=ChannelOptions(segment_size=4096)) as channel:
        channel.receiver(EVIL).close()
        channel.receiver("damaged" + EVIL).close()
        channel.group(TITLE + "group").close()
        with channel.sender() as sender:
            sender.send_many([Order(number, EVIL) for number in range(100)])
    damaged = [each for each in (path / "consumers").iterdir() if each.name.startswith("damaged")]
    damaged[0].write_bytes(b"\xff" * damaged[0].stat().st_size)
    (path / "segments" / f"stray{EVIL_NAME[:60]}").write_bytes(b"x")
    (path / "quarantine").mkdir(mode=0o700)
    (path / "quarantine" / f"1-{TITLE}").write_bytes(b"x")
    (path / "quarantine" / f"1-{TITLE}.json").write_text(json.dumps({"reason": EVIL, "file": EVIL}))
    return path


def commands(path: Path) -> list[list[str | Path]]:
    """Return commands that speak of a hostile channel, those that fail included; the last ones change it."""
    here = path.parent
    wrong = here / f"wrong{TITLE}.jsonl"
    wrong.write_text(json.dumps({"id": 1, EVIL + "x": 1}) + "\n")
    header = here / f"header{TITLE}.jsonl"
    described = {"kind": "record", "name": EVIL}
    header.write_text(json.dumps({"$filechannel": {"version": 1, "codec": EVIL, "schema": described}}) + "\n")
    copied = here / f"copied{TITLE}"
    broken = here / f"broken{TITLE}"
    broken.mkdir()
    (broken / "channel.json").write_text(json.dumps({"format": EVIL}))
    forged = here / f"forged{TITLE}"
    shutil.copytree(path, forged)
    manifest = forged / "channel.json"
    manifest.write_text(manifest.read_text().replace(json.dumps(FIELD, ensure_ascii=False), json.dumps(EVIL)))
    return [
        ["info", forged],
        ["info", forged, "--json"],
        ["tail", forged],
        ["doctor", forged],
        ["verify", forged],
        ["send", forged, "--file", wrong],
        ["import", forged, copied],
        ["repair", broken, "--like", forged],
        ["info", path],
        ["info", path, "--json"],
        ["top", path, "--once", "-i", "0.05"],
        ["top", path, "-n", "1", "-i", "0.05"],
        ["top", path, "-n", "1", "-i", "0.05", "--json"],
        ["top", here, "--once", "-i", "0.05"],
        ["tail", path],
        ["tail", path, "--json"],
        ["tail", path, "--from", EVIL],
        ["consumers", path],
        ["consumers", path, "--json"],
        ["consumers", "remove", path, EVIL + "unknown", "--yes"],
        ["consumers", "remove", path, EVIL],
        ["seek", path, EVIL + "unknown", "earliest"],
        ["seek", path, EVIL, EVIL],
        ["verify", path],
        ["verify", path, "--json"],
        ["doctor", path, broken, here / f"nothing{EVIL}"],
        ["doctor", path, "--json"],
        ["repair", path],
        ["repair", path, "--json"],
        ["repair", broken],
        ["export", path],
        ["export", path, copied],
        ["export", path, copied],
        ["export", path, here / TITLE / EVIL],
        ["import", path, wrong],
        ["import", path, header],
        ["import", here / f"new{TITLE}", header],
        ["import", here / f"new{TITLE}", here / f"nothing{EVIL}"],
        ["import", here / f"new{TITLE}", copied],
        ["send", path, "--file", wrong],
        ["send", path, "--file", here / EVIL],
        ["send", path, "--file", wrong, "--atomic"],
        ["info", here / f"nothing{EVIL_NAME}"],
        ["info", broken],
        ["info", wrong],
        [EVIL],
        ["info", f"--{EVIL}"],
        ["tail", path, "-n", EVIL],
        ["seek", path, EVIL, "earliest"],
        ["gc", path],
        ["compress", path],
        ["repair", path, "--apply"],
        ["consumers", "remove", path, EVIL, "--yes"],
        ["consumers", path],
        ["gc", path],
    ]


def encoded(words: list[str | Path]) -> list[str]:
    """Return the words of a command as the other program takes them."""
    return [os.fsencode(str(word)).hex() for word in words]


def output(script: Path, given: list[list[str | Path]], *, in_a_terminal: bool, **variables: str) -> bytes:
    """Run commands in order, and return the bytes that all of them have written."""
    script.write_text(json.dumps([encoded(words) for words in given]))
    program = [sys.executable, "-m", "tests.cli.forks", str(script)]
    environment = os.environ | {"TERM": "xterm-256color"} | variables
    if not in_a_terminal:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(
            program, env=environment, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT
        ) as process:
            return process.communicate(timeout=10 * TIMEOUT)[0]
    ours, theirs = pty.openpty()
    with subprocess.Popen(program, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # which is how Linux says that no process has the terminal any more
            while part := os.read(ours, 65536):
                shown += part
                if shown.endswith(b"[y/N] "):
                    os.write(ours, b"n\n")
    os.close(ours)
    assert process.returncode == 0
    return shown


def offending(shown: bytes) -> list[str]:
    """Return the lines that have anything but text that can be seen and our own commands to the terminal."""
    lines = re.split(rb"[\r\n]", OURS.sub(b"", shown))  # a carriage return: a bar is drawn over the one before it
    return [repr(line) for line in lines if not all(map(is_visible, line.decode(errors="surrogateescape")))]


def is_visible(character: str) -> bool:
    """Return whether a character has a glyph, or is a space."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


@pytest.mark.parametrize("in_a_terminal", [False, True], ids=["pipe", "terminal"])
def test_no_command_obeys_what_it_shows(hostile: Path, tmp_path: Path, in_a_terminal: bool) -> None:
    """No command prints a control or invisible character of a path, name, field, reason or message."""
    given = commands(hostile)
    shown = output(tmp_path / "commands.json", given, in_a_terminal=in_a_terminal)
    assert offending(shown) == []
    assert b"\x1b[5m" not in shown
    assert re.search(rb"[\r\n]forged", shown) is None
    assert shown.count(b"== exit code") == len(given)
    assert b"== exit code 70" not in shown
    assert rb"\x1b]0;pwned\x07" in shown  # it was shown
    assert in_a_terminal == (b"\x1b[" in shown)
    assert not Path("pwned").exists()


def test_a_traceback_is_escaped(hostile: Path, tmp_path: Path) -> None:
    """A traceback under FILECHANNEL_DEBUG is escaped like every other output."""
    shown = output(tmp_path / "commands.json", commands(hostile)[:8], in_a_terminal=False, FILECHANNEL_DEBUG="1")
    assert b"Traceback" in shown
    assert offending(shown) == []


def test_json_stays_exact(hostile: Path, tmp_path: Path) -> None:
    """Names and messages that are escaped in JSON are unchanged when the JSON is read."""
    given: list[list[str | Path]] = [
        ["consumers", hostile, "--json"],
        ["tail", hostile, "--json", "-n", "1"],
        ["export", hostile],
    ]
    shown = output(tmp_path / "commands.json", given, in_a_terminal=False)
    consumers, last, everything = (
        part.split(b"\n== exit code 0\n")[0].partition(b"\n")[2].split(b"the position of")[0]
        for part in shown.split(b"\n== command ")[1:]
    )
    assert EVIL in [each["name"] for each in json.loads(consumers)]
    assert json.loads(last)["value"] == {"id": 99, FIELD: EVIL}
    lines = everything.strip().split(b"\n")
    assert [json.loads(line)[FIELD] for line in lines] == [EVIL] * 100


def test_what_is_logged_or_warned_of_is_escaped(tmp_path: Path) -> None:
    """Log messages, warnings and tracebacks of threads are escaped, also those that no command prints."""
    program = """
import logging, sys, threading, warnings
from filechannel.cli import app
evil = sys.argv.pop()
def say(**_):
    logging.getLogger("filechannel").warning("%s", evil)
    warnings.warn(evil, stacklevel=1)
    thread = threading.Thread(target=int, args=[evil])
    thread.start()
    thread.join()
    raise SystemExit(0)
app.app = say
app.run()
"""
    done = subprocess.run([sys.executable, "-c", program, EVIL], capture_output=True, timeout=TIMEOUT, check=True)
    logged, *rest = done.stderr.split(b"\n")
    assert logged == safe(EVIL).encode()
    assert len(rest) > 5
    assert offending(done.stderr) == []


def test_every_invisible_character_is_escaped() -> None:
    """Every invisible character of Unicode is escaped, and JSON with it reads back unchanged."""
    everything = "".join(map(chr, [*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode]))
    shown = safe(everything)
    assert all(map(is_visible, set(shown)))
    storable = "".join(each for each in everything if not "\ud800" <= each <= "\udfff")
    text = safe_json(msgspec.json.encode(storable))
    assert json.loads(text) == storable
    assert all(map(is_visible, set(text.decode())))


@pytest.mark.parametrize(
    "name", ["plain", "two words", "it's", "$(touch pwned)", "`touch pwned`", ";touch pwned;", "a\nb", EVIL_NAME, "!!"]
)
def test_a_command_in_a_message_can_be_pasted(name: str, tmp_path: Path) -> None:
    """A path in an advised command is quoted, so that the shell finds it and executes nothing in it."""
    path = tmp_path / name
    text = repair_command(path)
    assert text.isprintable()
    bare = text[1:-1] if text.startswith("'") else text
    script = f"filechannel() {{ printf '%s\\0' \"$@\"; }}\n{bare}\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, cwd=tmp_path, check=True)
    assert done.stdout.split(b"\0")[1] == os.fsencode(path)
    subprocess.run(["bash", "-c", f"filechannel() {{ :; }}\n{text}\n"], capture_output=True, cwd=tmp_path, check=False)
    assert not (tmp_path / "pwned").exists()


def test_a_path_in_a_command_is_not_an_option() -> None:
    """A path that begins with a dash is printed in a command so that it is not taken for an option."""
    assert repair_command("-rf") == "'filechannel repair ./-rf --apply'"
    assert command("filechannel", "gc", "a b") == "filechannel gc 'a b'"
    assert shlex.split(shell_words("it's", "a b")) == ["it's", "a b"]
