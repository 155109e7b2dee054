"""`filechannel send`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelOptions, blocking
from filechannel._format import PURE
from tests.cli.shell import Order, error, fill, finish, interrupt, orders, real, report, run, start

shares = pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")


@pytest.fixture
def file(path: Path) -> Path:
    """Where an input may be made."""
    return path.with_name("input.jsonl")


def sent(path: Path) -> list[Order]:
    """Return what was sent after the hundred that were there."""
    return orders(path)[100:]


def test_lines_from_stdin(channel: Path) -> None:
    """`send` sends each line of stdin as a message, with the defaults of the schema."""
    given = b'{"id": 1, "sku": "pen", "qty": 3}\n{"id": 2, "sku": "ink"}\n'
    assert real("send", channel, given=given) == (0, "", "sent 2 messages\n")
    assert sent(channel) == [Order(1, "pen", 3), Order(2, "ink", 1)]


def test_lines_from_a_file(channel: Path, file: Path) -> None:
    """`send` accepts files with empty lines, other line ends, a byte order mark, and without a last line end."""
    file.write_bytes(b'\xef\xbb\xbf{"id": 1, "sku": "a"}\r\n\n  \n{"id": 2, "sku": "b"}')
    assert report("send", channel, "--file", file) == {"sent": 2}
    assert [order.id for order in sent(channel)] == [1, 2]


@shares
def test_a_slow_writer_is_not_delayed(channel: Path) -> None:
    """`send` sends a line when it arrives, not when a buffer is full."""
    process = start("send", channel)
    assert process.stdin is not None
    with blocking.open_channel(channel, Order) as opened, opened.receiver(start="latest") as receiver:
        for number in range(3):
            process.stdin.write(b'{"id": %d, "sku": "pen"}\n' % number)
            process.stdin.flush()
            assert receiver.receive(timeout=60).id == number
    assert finish(process) == (0, "", "sent 3 messages\n")


def test_a_bad_line_ends_it(channel: Path, file: Path) -> None:
    """`send` stops at a bad line after sending those before it; the error has the line, the field and the count."""
    file.write_text('{"id": 1, "sku": "a"}\n\n{"id": 2, "sku": 7}\n{"id": 3, "sku": "c"}\n')
    text = error("send", channel, "--file", file)
    assert text == (
        "line 3 is not a message of the channel: Expected `str`, got `int` - at `$.sku`; 1 message was sent"
    )
    assert [order.id for order in sent(channel)] == [1]


@pytest.mark.parametrize("line", ["{", "[]", "nonsense", '{"id": 1}', '{"id": 1.5, "sku": "a"}', "\x00"])
def test_a_line_that_is_not_json_or_not_a_message(channel: Path, file: Path, line: str) -> None:
    """A line that is not a message is refused with its number, whatever it contains."""
    file.write_text(f"{line}\n")
    assert error("send", channel, "--file", file).startswith("line 1 is not a message of the channel: ")
    assert sent(channel) == []


def test_all_or_nothing(channel: Path, file: Path) -> None:
    """With --atomic a bad line means that nothing is sent, and otherwise all becomes visible at once."""
    lines = [f'{{"id": {number}, "sku": "a"}}' for number in range(50_000)]
    file.write_text("\n".join([*lines, "{}"]))
    assert error("send", channel, "--file", file, "--atomic").endswith("; nothing was sent")
    assert sent(channel) == []
    assert not (channel / "staging").exists()
    file.write_text("\n".join(lines))
    assert report("send", channel, "--file", file, "--atomic") == {"sent": 50_000}
    assert [order.id for order in sent(channel)] == list(range(50_000))
    assert not (channel / "staging").exists()


def test_a_channel_that_takes_few_at_once(path: Path, file: Path) -> None:
    """`send` divides lines that arrive together into as many batches as the capacity needs."""
    options = ChannelOptions(capacity=Capacity(max_messages=7, on_full="drop_oldest"))
    fill(path, 0, options)
    file.write_text("\n".join(f'{{"id": {number}, "sku": "a"}}' for number in range(100)))
    assert report("send", path, "--file", file) == {"sent": 100}
    assert orders(path)[-1].id == 99


def test_a_full_channel(path: Path, file: Path) -> None:
    """`send` to a full channel reports how many messages fitted; with the policy "wait" it waits until Ctrl-C."""
    fill(path, 0, ChannelOptions(capacity=Capacity(max_messages=5, on_full="raise")))
    file.write_text("\n".join(f'{{"id": {number}, "sku": "a"}}' for number in range(10)))
    assert error("send", path, "--file", file).endswith("; 5 messages were sent")
    assert len(orders(path)) == 5
    waiting = path.with_name("waiting")
    fill(waiting, 0, ChannelOptions(capacity=Capacity(max_messages=5, on_full="wait")))
    process = start("send", waiting, "--file", file, stdin=subprocess.DEVNULL)
    with blocking.open_channel(waiting, Order, readonly=True) as opened:
        while not (stored := opened.statistics().next_sequence):
            assert process.poll() is None
    assert interrupt(process) == (130, "", f"interrupted: {stored} messages were sent\n")
    assert len(orders(waiting)) == stored


def test_a_message_that_is_too_large(path: Path, file: Path) -> None:
    """The error of a message that is too large names its line, and the lines before it were sent."""
    fill(path, 0, ChannelOptions(max_message_size=100))
    file.write_text(f'{{"id": 1, "sku": "a"}}\n{{"id": 2, "sku": "{"x" * 200}"}}\n{{"id": 3, "sku": "a"}}')
    text = error("send", path, "--file", file)
    assert text.startswith("line 2 is not a message of the channel: 2")
    assert text.endswith("; 1 message was sent")
    assert [order.id for order in orders(path)] == [1]


def test_a_sealed_channel(channel: Path, file: Path) -> None:
    """A sealed channel accepts no more messages, and the error says so."""
    with blocking.open_channel(channel, Order) as opened:
        opened.seal()
    file.write_text('{"id": 1, "sku": "a"}')
    assert "is sealed and accepts no more messages" in error("send", channel, "--file", file)


def test_bytes(path: Path, file: Path) -> None:
    """`send` to a raw channel accepts lines, the whole input, or base64 in JSON."""
    with blocking.open_channel(path, bytes):
        pass
    file.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo \xff")
    assert report("send", path, "--file", file, "--raw") == {"sent": 3}
    assert report("send", path, "--file", file, "--raw", "--whole") == {"sent": 1}
    file.write_text('"aGVsbG8="')
    assert report("send", path, "--file", file) == {"sent": 1}
    with blocking.open_channel(path, bytes) as opened, opened.replay() as receiver:
        assert list(receiver) == [
            b"\xef\xbb\xbfone\r",
            b"",
            b"two \xff",
            b"\xef\xbb\xbfone\r\n\ntwo \xff",
            b"hello",
        ]


def test_raw_is_for_bytes(channel: Path) -> None:
    """A typed channel accepts only JSON, and refuses the options for bytes."""
    assert "this one has Order, send JSON" in error("send", channel, "--raw", "--file", os.devnull, code=2)


def test_no_such_file(channel: Path) -> None:
    """The error of a missing input file names it."""
    assert error("send", channel, "--file", "/nowhere.jsonl") == "/nowhere.jsonl: No such file or directory"


def test_nothing_to_send(channel: Path) -> None:
    """An empty input is not an error."""
    assert run("send", channel, "--file", os.devnull).stderr == "sent 0 messages\n"
    assert run("send", channel, "--file", os.devnull, "--atomic").stderr == "sent 0 messages\n"
