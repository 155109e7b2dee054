"""Failures: a short message, the right exit code, never a traceback, nothing half done."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from unittest.mock import ANY

import pytest

from filechannel import blocking
from filechannel._storage.segments import compression_codecs
from filechannel.cli.transfer import formats
from filechannel.cli.ui.failures import explain
from tests.cli.shell import SMALL, Order, error, fill, finish, interrupt, orders, real, run, run_as, start
from tests.file_systems import mounted_tmpfs, run_or_skip
from tests.processes.workers import Workers

OTHER_USER = 54321
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
ON_A_CHANNEL = [
    ["info", "CHANNEL"],
    ["tail", "CHANNEL"],
    ["send", "CHANNEL"],
    ["consumers", "CHANNEL"],
    ["consumers", "remove", "CHANNEL", "billing", "--yes"],
    ["seek", "CHANNEL", "billing", "earliest"],
    ["gc", "CHANNEL"],
    ["gc", "CHANNEL", "--dry-run"],
    ["compress", "CHANNEL"],
    ["export", "CHANNEL"],
    ["import", "CHANNEL", "FILE"],
]
each_command = pytest.mark.parametrize("command", ON_A_CHANNEL, ids=" ".join)


def about(command: list[str], path: Path) -> list[str]:
    """Return a command about a channel at a path."""
    return [str(path) if word == "CHANNEL" else os.devnull if word == "FILE" else word for word in command]


@each_command
def test_no_channel(command: list[str], path: Path) -> None:
    """A path where nothing exists is wrong usage."""
    assert error(*about(command, path), code=2).startswith(f"there is no channel at {path}")
    assert not path.exists()


@each_command
def test_not_a_channel(command: list[str], path: Path) -> None:
    """A command changes neither a directory with other content nor a file."""
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    assert error(*about(command, path), code=2) == f"{path} is not a channel: it has no channel.json"
    assert os.listdir(path) == ["notes.txt"]
    file = path / "notes.txt"
    assert error(*about(command, file), code=2) == f"{file} is not a channel: it is a file"


@each_command
def test_a_damaged_manifest(command: list[str], channel: Path) -> None:
    """A damaged manifest is an error with what is wrong and what fixes it, and not wrong usage."""
    mends = f"filechannel repair --like OTHER {channel} --apply"
    (channel / "channel.json").write_text('{"format": 1,')
    text = error(*about(command, channel), code=1)
    assert text.startswith(f"{channel} is not a channel: channel.json is damaged")
    assert mends in text
    for damage in (lambda: (channel / "channel.json").unlink(), lambda: (channel / "channel.json").mkdir()):
        damage()
        assert mends in error(*about(command, channel), code=1)


@pytest.mark.parametrize("command", [["info"], ["tail"], ["consumers"], ["gc", "--dry-run"], ["export"]], ids=" ".join)
@pytest.mark.parametrize("damage", ["missing", "cut off", "zeros"])
def test_a_damaged_control_file(command: list[str], channel: Path, damage: str) -> None:
    """With a damaged control file a read-only command names the command that finds the end of the log."""
    control = channel / "control"
    content = control.read_bytes()
    control.write_bytes(content[:100] if damage == "cut off" else bytes(len(content)))
    if damage == "missing":
        control.unlink()
    assert f"filechannel repair {channel} --apply" in error(command[0], channel, *command[1:], code=1)
    run("repair", channel, "--apply")
    assert len(orders(channel)) == 100


@by_root
@each_command
def test_a_user_without_permission(workers: Workers, command: list[str], channel: Path) -> None:
    """For a user without permission the error names the owner, and nothing is changed."""
    channel.parent.chmod(0o711)
    if command[0] in ("send", "import"):
        command = [*command, *(["--file", os.devnull] if command[0] == "send" else [])]
    rehearsal = about(command, channel.with_name("nothing"))
    code, text = workers.start(run_as, OTHER_USER, about(command, channel), rehearsal).result()
    assert code == 1
    assert text.startswith(f"filechannel: user {OTHER_USER} may not read {channel} (Permission denied: ")
    assert text.endswith(f"{channel} belongs to root, mode 0700: run the command as root, or ask root for access\n")
    assert len(orders(channel)) == 100


@by_root
def test_the_right_to_read_is_enough_for_a_report(workers: Workers, path: Path) -> None:
    """A user without write permission can read everything, and gets an error for each change."""
    fill(path, 100)
    path.parent.chmod(0o711)
    for found in [path, *path.rglob("*")]:
        found.chmod(0o755 if found.is_dir() else 0o644)
    before = {each: each.stat().st_mtime_ns for each in [path, *path.rglob("*")]}
    for command in (["info"], ["tail"], ["consumers"], ["gc", "--dry-run"], ["export"]):
        arguments = [command[0], str(path), *command[1:]]
        assert workers.start(run_as, OTHER_USER, arguments, arguments).result() == (0, ANY)
    assert {each: each.stat().st_mtime_ns for each in [path, *path.rglob("*")]} == before
    arguments = ["send", str(path), "--file", os.devnull]
    code, text = workers.start(run_as, OTHER_USER, arguments, arguments).result()
    assert code == 1
    assert f"user {OTHER_USER} may not change {path}" in text


def test_a_report_changes_nothing(channel: Path) -> None:
    """A report changes no byte of any file, and creates and deletes no file."""
    before = {each: each.read_bytes() for each in channel.rglob("*") if each.is_file()}
    for command in (["info"], ["tail"], ["consumers"], ["gc", "--dry-run"], ["export"]):
        assert real(command[0], channel, *command[1:])[0] == 0
    assert {each: each.read_bytes() for each in channel.rglob("*") if each.is_file()} == before


def test_a_damaged_record(channel: Path) -> None:
    """Reading stops at a damaged record with its offset, or skips it with `--skip-damage`."""
    segment = min((channel / "segments").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[1000] ^= 0xFF
    segment.write_bytes(content)
    text = error("tail", channel, "--from", "earliest")
    assert text.startswith(f"{segment.name} is damaged at offset ")
    assert "checksum" in text
    assert text.endswith(f"; 'filechannel repair {channel}' shows what can be repaired")
    assert error("tail", channel, "--from", "seq:50") == text
    code, out, _ = real("tail", channel, "--from", "earliest", "--skip-damage")
    assert code == 0
    assert len(out.splitlines()) == 99


@pytest.mark.parametrize("command", [["tail", "-n", "100000"], ["tail", "--json", "-n", "100000"], ["export"]])
def test_the_reader_of_the_output_may_exit(command: list[str], path: Path) -> None:
    """A broken pipe ends the command quietly."""
    fill(path, 5000)
    process = start(command[0], path, *command[1:], stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    process.stdout = None
    assert finish(process) == (141, "", "")


def test_a_report_to_a_closed_pipe(channel: Path) -> None:
    """A closed pipe ends a command silently, also if the report is written at exit."""
    reader, writer = os.pipe()
    os.close(reader)
    assert real("info", channel, stdout=writer) == (141, "", "")
    os.close(writer)


def test_ctrl_c_while_it_waits_for_messages(channel: Path) -> None:
    """A `tail -f` that is interrupted has printed every message until then."""
    process = start("tail", channel, "-f", "-n", 1)
    assert process.stdout is not None
    assert process.stdout.readline() == b'99  {"id":99,"sku":"pen","qty":1}\n'
    assert interrupt(process) == (130, "", "")


def test_ctrl_c_while_it_sends(channel: Path) -> None:
    """A `send` that is interrupted reports how many messages were sent."""
    process = start("send", channel)
    assert process.stdin is not None
    process.stdin.write(b'{"id":100,"sku":"ink"}\n{"id":101,"sku":"ink"}\n{"id":102,')
    process.stdin.flush()
    with blocking.open_channel(channel, Order, readonly=True) as opened, opened.replay("latest", None) as receiver:
        while opened.statistics().next_sequence < 102:
            pass
        receiver.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert finish(process)[2] == "interrupted: 2 messages were sent\n"
    assert orders(channel)[100:] == [Order(100, "ink"), Order(101, "ink")]


def test_sigterm_leaves_nothing_behind(path: Path) -> None:
    """An import that is terminated halfway has imported nothing, and its draft is deleted."""
    fill(path, 1)
    process = start("import", path.with_name("copy"), "--like", path)
    assert process.stdin is not None
    process.stdin.write(b'{"id":100,"sku":"ink"}\n')
    process.stdin.flush()
    while not list(path.parent.glob(".copy.*")):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    process.communicate()
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_during_a_finalizer_is_not_lost(name: str, code: int) -> None:
    """A signal during a finalizer, where Python drops exceptions, still ends the process."""
    program = f"""
import os, signal, sys
import typer
from filechannel.cli.ui.failures import end_when_terminated, reporting

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        sys.stderr.write("")  # a bytecode at which the handler runs

signal.signal(signal.SIGINT, signal.default_int_handler)
end_when_terminated()
def run():
    Finalized()
    print("dropped", flush=True)
    os.read(0, 1)
try:
    reporting(run)()
except typer.Exit as ended:
    sys.exit(ended.exit_code)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.wait(60) == code
    finally:
        process.kill()
        process.communicate()


def test_where_it_happened(path: Path) -> None:
    """`FILECHANNEL_DEBUG=1` shows the traceback, to find a bug."""
    process = start("info", path, environment={"FILECHANNEL_DEBUG": "1"})
    _, err = process.communicate(timeout=60)
    assert b"Traceback" in err
    assert b"ChannelNotFoundError" in err


def test_a_bug_is_named_in_a_line(channel: Path) -> None:
    """An unexpected exception has no traceback either, and exit code 1."""
    shutil.rmtree(channel / "segments")
    program = (
        "import sys, filechannel.cli.commands.info as m\n"
        "def fail(*_): raise ZeroDivisionError('oh')\n"
        "m.facts = fail\n"
        "from filechannel.cli import main; main()"
    )
    fill(channel.with_name("other"), 1, SMALL)
    command = [sys.executable, "-c", program, "info", str(channel.with_name("other"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "filechannel: ZeroDivisionError: oh (FILECHANNEL_DEBUG=1 shows where)\n"


def test_a_full_disk_behind_stdout(channel: Path) -> None:
    """If stdout is on a full disk the error is printed once."""
    with open("/dev/full", "wb") as full:
        for command in (["info"], ["tail"], ["export"], ["info", "--json"]):
            code, _, err = real(command[0], channel, *command[1:], stdout=full)
            assert (code, err) == (1, "filechannel: No space left on device\n"), command


@by_root
def test_a_read_only_mount(tmp_path: Path) -> None:
    """On a read-only mount the error names shell commands, and no argument of the library."""
    with mounted_tmpfs(tmp_path, 8 << 20) as mounted:
        channel = fill(mounted / "orders", 100)
        run_or_skip("mount", "-o", "remount,ro", mounted)
        advice = "Read-only file system; mount the file system for writing"
        for command in (
            ["gc"],
            ["send", "--file", os.devnull],
            ["send", "--atomic", "--file", os.devnull],
            ["compress"],
        ):
            assert error(*command, channel) == f"{channel}/control: {advice}"
        assert error("export", channel, mounted / "x.jsonl") == f"{mounted}/x.jsonl: {advice}"


def test_a_name_that_is_not_text(memory: Path) -> None:
    """Commands accept a path of any bytes."""
    odd = memory / os.fsdecode(b"odd\xff")
    fill(odd, 1)
    assert real("info", odd)[0] == real("info", odd, "--json")[0] == 0
    code, _, err = real("info", memory / os.fsdecode(b"none\xff"))
    assert (code, err) == (2, f"filechannel: there is no channel at {memory}/none\\udcff; check the path\n")


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("send CHANNEL <&-", 1, "Bad file descriptor"),
        ("import CHANNEL <&-", 1, "Bad file descriptor"),
        ("consumers remove CHANNEL audit <&-", 2, "stdin is not a terminal: add --yes"),
        ("info CHANNEL >&-", 1, "Bad file descriptor"),
        ("export CHANNEL >&-", 1, "Bad file descriptor"),
        ("verify CHANNEL 2>&-", 0, ""),
        ("tail nowhere 2>&-", 2, ""),
        ("gc CHANNEL <&- >&- 2>&-", 1, ""),
    ],
)
def test_streams_that_are_closed(channel: Path, command: str, code: int, text: str) -> None:
    """With a closed stdin, stdout or stderr a command reports what it can, and opens no channel file in its place."""
    with blocking.open_channel(channel, Order) as opened:
        opened.receiver("audit").close()
    line = f"{sys.executable} -m filechannel {command.replace('CHANNEL', str(channel))}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert len(orders(channel)) == 100


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.EACCES, "check the permissions of it"),
        (errno.EIO, "the kernel's log"),
        (errno.ENOENT, None),
    ],
    ids=lambda value: errno.errorcode.get(value, ""),
)
def test_what_the_system_refuses_comes_with_advice(number: int, advice: str | None) -> None:
    """An error of the operating system is printed with advice where the advice does not depend on the file."""
    text = explain(OSError(number, os.strerror(number), "data/orders/control"))
    assert text.startswith(f"data/orders/control: {os.strerror(number)}")
    assert advice is None or advice in text
    assert (";" in text) == (advice is not None)


def test_a_fifo_under_the_name_of_a_draft_is_not_waited_for(path: Path, tmp_path: Path) -> None:
    """A FIFO at the temporary path of an output, which another user may create, is not waited for."""
    fill(path, 10)
    os.mkfifo(tmp_path / ".out.jsonl.01234567.part")
    finish(start("export", path, tmp_path / "out.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("export", "CHANNEL", "DIRECTORY"), "DIRECTORY is a directory"),
        (("export", "CHANNEL", "DIRECTORY", "--force"), "DIRECTORY is a directory"),
        (("import", "CHANNEL", "DIRECTORY"), "DIRECTORY is a directory"),
        (("send", "CHANNEL", "--file", "DIRECTORY"), "DIRECTORY is a directory"),
        (("repair", "CHANNEL", "--like", "NOTHING"), "Invalid value for --like: there is nothing at NOTHING"),
        (
            ("repair", "CHANNEL", "--like", "NOTHING", "--apply"),
            "Invalid value for --like: there is nothing at NOTHING",
        ),
        (("repair", "CHANNEL", "--like", "DIRECTORY"), "DIRECTORY is not a channel: it has no channel.json"),
        (("compress", "CHANNEL", "--level", "3"), "filechannel: --level needs --method"),
        (("consumers", "remove", "CHANNEL", "bill"), "filechannel: stdin is not a terminal: add --yes"),
        (("info", "DIRECTORY"), "filechannel: DIRECTORY is not a channel: it has no channel.json"),
        (("doctor", "DIRECTORY"), "filechannel: DIRECTORY is not a channel: it has no channel.json"),
        (("verify", "DIRECTORY"), "filechannel: DIRECTORY is not a channel: it has no channel.json"),
        (("tail", "CHANNEL", "--from", "seq:x"), "'seq:x' is not a position in a channel: use 'earliest', 'latest'"),
        (("tail", "CHANNEL", "--from", "seq:-1"), "'seq:-1' is not a position in a channel: use 'earliest', 'latest'"),
        (("tail", "CHANNEL", "--from", "7"), "Invalid value for --from: no record begins at offset 7: the next one"),
        (("export", "CHANNEL", "--from", "7"), "Invalid value for --from: no record begins at offset 7: the next one"),
        (("export", "CHANNEL", "--to", "7"), "Invalid value for --to: no record begins at offset 7: the next one"),
        (("seek", "CHANNEL", "bill", "7"), "Invalid value for POSITION: no record begins at offset 7: the next one"),
        (("tail", "CHANNEL", "--from", "seq:99999"), "for --from: message 99999 is not stored: 0 to 99 are"),
        (("export", "CHANNEL", "--from", "seq:99999"), "for --from: message 99999 is not stored: 0 to 99 are"),
        (("seek", "CHANNEL", "bill", "seq:99999"), "for POSITION: message 99999 is not stored: 0 to 99 are"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_wrong_usage_is_reported_in_the_terms_of_the_command_line(
    channel: Path, tmp_path: Path, arguments: tuple[str, ...], output: str
) -> None:
    """The error names the path or option that is meant, with exit code 2; nothing is changed."""
    with blocking.open_channel(channel, Order) as opened:
        opened.receiver("bill").close()
    places = {"CHANNEL": channel, "DIRECTORY": tmp_path / "directory", "NOTHING": tmp_path / "nothing"}
    places["DIRECTORY"].mkdir()
    result = run(*(places.get(each, each) for each in arguments), code=2)
    for name, place in places.items():
        output = output.replace(name, str(place))
    assert output in result.stderr
    assert "start=" not in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["directory"]


def test_a_method_that_is_not_installed(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before anything is done, with the command that installs the method."""

    def nothing(_: str) -> NoReturn:
        raise ImportError

    monkeypatch.setattr(compression_codecs, "import_module", nothing)
    compression_codecs.codec.cache_clear()
    try:
        output = error("compress", channel, "--method", "lz4")
    finally:
        compression_codecs.codec.cache_clear()
    assert output == "lz4 is not installed: pip install 'filechannel[lz4]'"


def test_a_format_that_is_not_installed(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file if its extension gives the format, else the option."""
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    needs = "Parquet needs pyarrow and pyspark: pip install 'filechannel[spark]'"
    assert f"Invalid value for FILE: o.parquet: {needs}" in run("export", channel, "o.parquet", code=2).stderr
    output = run("export", channel, "o.txt", "--format", "parquet", code=2).stderr
    assert f"Invalid value for --format: {needs}" in output


@pytest.mark.parametrize("start", ["2999-01-01", "2999-01-01T00:00:00+00:00"])
def test_a_time_that_is_yet_to_come_is_the_end(channel: Path, start: str) -> None:
    """A time in the future means the end: `tail` and `export` print nothing, and `seek` leaves nothing to receive."""
    with blocking.open_channel(channel, Order) as opened:
        opened.receiver("bill").close()
    assert run("tail", channel, "--from", start).stdout == ""
    assert run("export", channel, "--from", start).stdout == ""
    assert run("export", channel, "--to", start).stdout.count("\n") == 100
    assert run("seek", channel, "bill", start).stdout.endswith("0 messages left\n")
