"""`filechannel top`: what it shows, channels that appear and disappear, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from filechannel import Capacity, ChannelOptions, StorageError, blocking
from filechannel._format import PURE
from filechannel.cli.ui.channel_set import ChannelSet, Picture
from filechannel.cli.ui.top_view import sparkline, view
from tests.cli.shell import TIMEOUT, Order, error, fill, finish, in_a_terminal, interrupt, real, report, run, start
from tests.maintenance.verify.test_verification import contents
from tests.storage.channels import opened
from tests.storage.faults import FLUSHING, FaultyFiles, input_output_error


def subscribe(path: Path, name: str, count: int) -> None:
    """Let a consumer take so many messages."""
    with blocking.open_channel(path, Order) as channel, channel.receiver(name) as receiver:
        receiver.receive_many(count)


def drawn(pictures: list[Picture], width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of a view."""
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(view(pictures, width, height, 1.0))
    return captured.get().splitlines()


def test_figures_of_a_channel(path: Path) -> None:
    """`top` shows what is stored, each consumer's lag, the fill level and the processes that use the channel."""
    fill(path, 1000, ChannelOptions(segment_size=4096, capacity=Capacity(max_messages=2000)))
    subscribe(path, "billing", 300)
    with blocking.open_channel(path, Order), ChannelSet([str(path)]) as channel_set:
        (picture,) = channel_set.update()
        figures = picture.figures
        assert figures is not None
        assert (figures.messages, figures.next_sequence, figures.fill) == (1000, 1000, 0.35)
        assert [holder.pid for holder in figures.writers] == [os.getpid()]
        (consumer,) = figures.consumers
        assert (consumer.name, consumer.lag_messages, consumer.owner, consumer.is_group) == (
            "billing",
            700,
            None,
            False,
        )


def test_paces(path: Path) -> None:
    """From the second update on `top` shows how many messages were sent and received per second."""
    fill(path, 100)
    subscribe(path, "billing", 10)
    with ChannelSet([str(path)]) as channel_set:
        (before,) = channel_set.update()
        first = before.figures
        fill(path, 50)
        subscribe(path, "billing", 20)
        (picture,) = channel_set.update()
        assert first is not None
        assert picture.figures is not None
        seconds = picture.figures.time - first.time
        assert picture.pace.per_second == pytest.approx(50 / seconds)
        assert picture.paces["billing"].per_second == pytest.approx(20 / seconds)
        assert list(picture.paces["billing"].history) == [90, 120]


def test_an_offset_gap_is_not_counted_as_throughput(path: Path) -> None:
    """After a failed flush the log resumes at a later offset: only records count as sent and received."""
    files = FaultyFiles()
    with opened(path, ChannelOptions(segment_size=4096), files=files) as store, ChannelSet([str(path)]) as channel_set:
        cursor = store.cursors.open("billing")
        cursor.store(0, 0, 0)
        channel_set.update()
        store.log.append([b"one"])
        files.fail(FLUSHING, input_output_error, once=True)
        with pytest.raises(StorageError):
            store.flusher.flush()
        end = store.log.append([b"two"]) + 11
        cursor.store(end, 2, 0)
        store.cursors.close(cursor)
        (picture,) = channel_set.update()
        assert end > 1 << 39
        for pace in (picture.pace, picture.paces["billing"]):
            assert pace.bytes_per_second == pytest.approx(11 * pace.per_second)


def test_nothing_is_changed(path: Path) -> None:
    """`top` changes no byte of the channel and registers no name."""
    fill(path, 100)
    before = contents(path)
    with ChannelSet([str(path)]) as channel_set:
        channel_set.update()
        channel_set.update()
    assert contents(path) == before


def test_channels_that_come_and_go(memory: Path) -> None:
    """`top` shows channels that are created, drops those that are removed, and notices replaced ones."""
    with ChannelSet([str(memory / "*")]) as channel_set:
        assert channel_set.update() == []
        fill(memory / "a", 10)
        (memory / "no channel").mkdir()
        assert [picture.path.name for picture in channel_set.update()] == ["a"]
        fill(memory / "b", 20)
        assert [picture.path.name for picture in channel_set.update()] == ["a", "b"]
        shutil.rmtree(memory / "a")
        assert [picture.path.name for picture in channel_set.update()] == ["b"]
        shutil.rmtree(memory / "b")
        fill(memory / "b", 30)
        (picture,) = channel_set.update()
        assert picture.figures is not None
        assert picture.figures.messages == 30


def test_directories_of_channels(memory: Path) -> None:
    """A directory as an argument of `top` means all channels in it."""
    fill(memory / "a", 10)
    fill(memory / "b", 10)
    with ChannelSet([str(memory)]) as channel_set:
        assert [picture.path.name for picture in channel_set.update()] == ["a", "b"]


def test_a_channel_that_cannot_be_read(path: Path) -> None:
    """`top` shows a channel that cannot be read with the reason, and shows it normally once it is repaired."""
    fill(path, 10)
    whole = (path / "channel.json").read_text()
    (path / "channel.json").write_text("{")
    with ChannelSet([str(path)]) as channel_set:
        pictures = channel_set.update()
        assert "is damaged" in str(pictures[0].problem)
        assert any("is not a channel" in line for line in drawn(pictures, 200))
        (path / "channel.json").write_text(whole)
        assert channel_set.update()[0].problem is None


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 140, 200])
def test_it_fits_the_terminal(path: Path, width: int) -> None:
    """No line of `top` is wider than the terminal, and neither numbers nor their labels are cut to nothing."""
    fill(path, 1000)
    for number in range(3):
        subscribe(path, f"a consumer whose name is rather long {number}", number + 1)
    with ChannelSet([str(path)]) as channel_set:
        lines = drawn(channel_set.update(), width)
    assert max(map(len, lines)) <= width
    assert any("1,000" in line for line in lines)
    assert any("999" in line for line in lines)
    assert len(lines) == 6
    assert lines[1].startswith("CHANNEL / CONSUMER")
    assert [line[:17] for line in lines[3:]] == ["  └ a consumer wh"] * 3


def test_what_does_not_fit_is_counted(path: Path) -> None:
    """In a small window `top` shows what fits, and says how much does not."""
    fill(path, 10)
    for number in range(30):
        subscribe(path, f"c{number:02}", 1)
    with ChannelSet([str(path)]) as channel_set:
        lines = drawn(channel_set.update(), 80, 24)
    assert len(lines) <= 24
    assert lines[-1].startswith("11 more lines")


def test_the_wider_the_more(path: Path) -> None:
    """In a narrow terminal `top` drops the least important columns first, and gives width to names before details."""
    fill(path, 10)
    with ChannelSet([str(path)]) as channel_set:
        headings = {width: drawn(channel_set.update(), width)[1].split()[3:] for width in (20, 40, 60, 80, 120)}
    assert headings[20] == []
    assert headings[40] == ["MSG/S", "MESSAGES", "OPEN"]
    assert headings[60] == ["MSG/S", "MESSAGES", "BYTES", "OPEN", "HISTORY"]
    assert set(headings[120]) - set(headings[80]) == {"PLAIN", "COMPRESSED", "SPARE"}


def test_a_consumer_that_was_seen_to_move(path: Path) -> None:
    """`top` does not show a consumer as idle that it has seen move, although its stored time is old."""
    fill(path, 100)
    with (
        blocking.open_channel(path, Order) as channel,
        channel.receiver("billing") as receiver,
        ChannelSet([str(path)]) as channel_set,
    ):
        receiver.receive()
        channel_set.update()
        receiver.receive()
        (picture,) = channel_set.update()
        assert picture.figures is not None
        assert picture.idle(picture.figures.consumers[0]) == 0.0


def test_a_channel_that_is_sealed(path: Path) -> None:
    """`top` marks a sealed channel beside its name."""
    fill(path, 1)
    with blocking.open_channel(path, Order) as channel:
        channel.seal()
    with ChannelSet([str(path)]) as channel_set:
        line = drawn(channel_set.update(), 80)[2]
    assert line.startswith("…")  # of a path that is too long the end is shown
    assert "/orders sealed" in line


def test_nothing_to_look_at_once(memory: Path) -> None:
    """`top` for a path that matches no channel is wrong usage."""
    assert error("top", memory / "x", "--once", code=2) == f"there is no channel at {memory / 'x'}; check the path"


def test_a_dumb_terminal(path: Path) -> None:
    """On a dumb terminal `top` prints one update below the other."""
    fill(path, 10)
    shown = in_a_terminal("top", path, "-n", "2", "-i", "0.05", environment={"TERM": "dumb"})
    assert shown.count("CHANNEL / CONSUMER") == 2


def test_sparklines() -> None:
    """In a sparkline the largest value has full height, and zero is the lowest bar."""
    assert sparkline([0, 1, 2, 4, 8]) == "▁▂▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([0, 8], unicode=False) == ".@"


def test_once(path: Path) -> None:
    """`top --once` prints one update, as text or as one JSON document."""
    fill(path, 100)
    subscribe(path, "billing", 10)
    found = report("top", path, "--once", "-i", "0.05")
    (channel,) = found["channels"]
    assert (channel["messages"], channel["consumers"][0]["lag_messages"]) == (100, 90)
    assert {"plain", "compressed", "spare"} <= set(channel["disk"])
    assert "billing" in run("top", path, "--once", "-i", "0.05").stdout


def test_a_line_for_each_update(path: Path) -> None:
    """With --json and a number of updates there is a line of JSON for each."""
    fill(path, 10)
    code, out, _ = real("top", path, "--json", "-n", "3", "-i", "0.05")
    assert code == 0
    assert [len(json.loads(line)["channels"]) for line in out.splitlines()] == [1, 1, 1]


def test_ctrl_c_is_how_one_ends_it(path: Path) -> None:
    """Ctrl-C ends `top` without a traceback, and with success."""
    fill(path, 10)
    process = start("top", path, "--json", "-i", "0.05")
    assert process.stdout is not None
    process.stdout.readline()
    assert interrupt(process)[0] == 0


def test_a_closed_output_pipe(path: Path) -> None:
    """A broken pipe ends the command with the exit code of one."""
    fill(path, 10)
    process = start("top", path, "--json", "-i", "0.05")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert finish(process)[0] == 141


def _in_a_terminal(path: Path, end: Callable[[subprocess.Popen[bytes], int], object], width: int) -> tuple[int, str]:
    """Run it in a terminal, end it once it has drawn something, and see that the terminal is as it was."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    before = termios.tcgetattr(theirs)
    environment = os.environ | {"TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "filechannel", "top", str(path), "-i", "0.1"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        shown = b""
        while b"billing" not in shown:
            shown += os.read(ours, 65536)
        assert not termios.tcgetattr(theirs)[3] & termios.ICANON
        end(process, ours)
        while b"\x1b[?1049l" not in shown:
            shown += os.read(ours, 65536)
        code = process.wait(TIMEOUT)
    assert termios.tcgetattr(theirs) == before
    assert b"Traceback" not in shown
    os.close(ours)
    os.close(theirs)
    return code, shown.decode()


@pytest.mark.parametrize("width", [80, 140])
def test_q_ends_it(path: Path, width: int) -> None:
    """`q` ends `top` and restores the screen."""
    fill(path, 100)
    subscribe(path, "billing", 10)
    code, shown = _in_a_terminal(path, lambda _, terminal: os.write(terminal, b"xq"), width)
    assert code == 0
    assert ("COMPRESSED" in shown) == (width == 140)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(path: Path, number: signal.Signals, code: int) -> None:
    """A signal ends `top`, which restores the terminal."""
    fill(path, 100)
    subscribe(path, "billing", 10)
    assert _in_a_terminal(path, lambda process, _: process.send_signal(number), 80)[0] == code


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_waiters(path: Path) -> None:
    """`top` counts threads and event loops that wait for a message as long as they live."""
    fill(path, 10)
    program = (
        "import sys\nfrom filechannel import blocking\nfrom tests.cli.shell import Order\n"
        "channel = blocking.open_channel(sys.argv[1], Order)\nreceiver = channel.receiver('late', start='latest')\n"
        "print(flush=True)\nreceiver.receive()\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with ChannelSet([str(path)]) as channel_set:
            while True:  # it goes to sleep in its own time
                (picture,) = channel_set.update()
                assert picture.figures is not None
                if picture.figures.waiting_for_messages:
                    break
            process.kill()
            process.wait(TIMEOUT)
            (picture,) = channel_set.update()
            assert picture.figures is not None
            assert picture.figures.waiting_for_messages == 0
