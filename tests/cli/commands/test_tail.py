"""`filechannel tail`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from filechannel import ChannelOptions, DataExpiredError, blocking
from filechannel._channel.lifecycle.channel_description import describe_channel
from tests.cli.shell import Order, error, fill, finish, run, start


def lines(*arguments: object) -> list[Any]:
    """Return what a tail in JSON shows."""
    return [json.loads(line) for line in run("tail", *arguments, "--json").stdout.splitlines()]


def numbers(*arguments: object) -> list[int]:
    """Return which messages a tail shows."""
    return [line["sequence"] for line in lines(*arguments)]


def test_the_last_messages(channel: Path) -> None:
    """`tail` prints the last ten messages, or as many as asked for, each with its sequence."""
    assert run("tail", channel).stdout.splitlines()[0] == '90  {"id":90,"sku":"pen","qty":1}'
    assert numbers(channel) == list(range(90, 100))
    assert numbers(channel, "-n", 3) == [97, 98, 99]
    assert numbers(channel, "-n", 0) == []
    assert numbers(channel, "-n", 1000) == list(range(100))


def test_each_line_says_where_it_was(channel: Path) -> None:
    """Each JSON line of `tail` has an offset at which another `tail` can begin."""
    (last,) = lines(channel, "-n", 1)
    assert last["value"] == {"id": 99, "sku": "pen", "qty": 1}
    assert lines(channel, "--from", last["offset"]) == [last]


def test_where_to_begin(channel: Path) -> None:
    """`tail` can begin at a sequence, a time, an age, or either end."""
    assert numbers(channel, "--from", "seq:95") == [95, 96, 97, 98, 99]
    assert len(numbers(channel, "--from", "earliest")) == 100
    assert numbers(channel, "--from", "latest") == []
    assert len(numbers(channel, "--from", "1h")) == 100
    assert len(numbers(channel, "--from", "2001-01-01")) == 100


@pytest.mark.parametrize("place", ["seq:100000", "seq:x", "yesterday", "1", "12h30", "99999999999999999999999d"])
def test_an_invalid_start(channel: Path, place: str) -> None:
    """An invalid start is wrong usage, and the error names the valid ones."""
    assert "--from" in error("tail", channel, "--from", place, code=2)


def test_following(channel: Path) -> None:
    """`tail -f` prints what any process sends at once, and ends with a sealed channel."""
    process = start("tail", channel, "-f", "-n", 1)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"99  ")
    with blocking.open_channel(channel, Order) as opened, opened.sender() as sender:
        for number in range(100, 105):
            sender.send(Order(number, "ink"))
            assert process.stdout.readline() == b'%d  {"id":%d,"sku":"ink","qty":1}\n' % (number, number)
        opened.seal()
    assert finish(process) == (0, "", "")


def test_no_consumer_is_left(channel: Path) -> None:
    """`tail` leaves no consumer and holds back no data."""
    run("tail", channel, "--from", "earliest")
    assert list((channel / "consumers").iterdir()) == []


def test_bytes_are_shown_as_text_if_they_are(path: Path) -> None:
    """`tail` prints bytes as text or hexadecimal, with control characters escaped, and in JSON as base64."""
    with blocking.open_channel(path, bytes) as opened, opened.sender() as sender:
        sender.send_many([b"hello", "süß\x1b[31m".encode(), b"\x00\xff", b"\xff" * 300, b""])
    text = run("tail", path).stdout.splitlines()
    assert text[0] == "0  hello"
    assert text[1] == "1  <73 c3 bc c3 9f 1b 5b 33 31 6d>"
    assert text[2] == "2  <00 ff>"
    assert text[3].endswith("ff> ... (300 bytes)")
    assert lines(path, "-n", 5)[0]["value"] == "aGVsbG8="


def test_a_text_with_commands_in_it_reaches_no_terminal(path: Path) -> None:
    """`tail` escapes control characters in texts as JSON does, also those that msgspec does not escape."""
    with blocking.open_channel(path, str) as opened, opened.sender() as sender:
        sender.send("\x1b[31m\x9b31m\x7fé")
    for option in ([], ["--json"]):
        assert "\\u001b[31m\\u009b31m\\u007fé" in run("tail", path, *option).stdout
    assert lines(path)[0]["value"] == "\x1b[31m\x9b31m\x7fé"


def test_a_record_that_is_not_a_message_is_shown(channel: Path) -> None:
    """`tail` prints an undecodable record in order, with the reason and its bytes, and continues."""
    description = describe_channel(channel)
    with blocking.open_channel(channel, Order) as opened, opened.sender() as sender:
        sender._connection.writer.append_all([msgspec.msgpack.encode({"id": "x"})])
        sender.send(Order(101, "ink"))
    before, wrong, after = lines(channel, "-n", 3)
    assert before["sequence"] == 99
    assert "Expected `int`, got `str`" in wrong["error"]
    assert wrong["payload"] == "gaJpZKF4"
    assert after["value"]["sku"] == "ink"
    assert "- " in run("tail", channel, "-n", 3).stdout
    assert description.manifest.codec == "msgpack"


def test_messages_reclaimed_while_it_reads_are_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command resumes with the messages that are left."""
    fill(path, 3)
    whole = blocking.Receiver.receive_record
    raised: list[DataExpiredError] = []

    def overtaken(self: blocking.Receiver[object], timeout: float | None = None) -> object:
        if not raised:
            raised.append(DataExpiredError(5, self.read_offset))
            raise raised[0]
        return whole(self, timeout)

    monkeypatch.setattr(blocking.Receiver, "receive_record", overtaken)
    result = run("tail", path)
    assert result.stderr == "5 messages were deleted before they could be shown\n"
    assert len(result.stdout.splitlines()) == 3


def test_a_codec_of_the_users_own(path: Path) -> None:
    """With a user's codec, `tail` and `export` print payloads as bytes."""

    class Upper:
        name = "upper"

        def encode(self, value: str, /) -> bytes:
            return value.upper().encode()

        def decode(self, payload: bytes, /) -> str:
            return payload.decode().lower()

    options = ChannelOptions()
    with blocking.open_channel(path, str, codec=Upper(), options=options) as opened, opened.sender() as sender:
        sender.send("hello")
    assert run("tail", path).stdout == "0  HELLO\n"
    assert run("export", path).stdout == '"SEVMTE8="\n'


def test_what_a_copy_does_not_show_is_said(channel: Path, tmp_path: Path) -> None:
    """`tail` of a channel that was not recovered prints its valid messages, and says that there may be more."""
    copy = shutil.copytree(channel, tmp_path / "the copy")
    assert run("tail", channel).stderr == ""
    for command in ("tail", "consumers"):
        assert f"filechannel gc '{copy}'" in run(command, copy).stderr
    assert numbers(copy) == list(range(90, 100))
    run("gc", copy)
    assert run("tail", copy).stderr == ""
    assert numbers(copy) == list(range(90, 100))


def test_the_last_messages_begin_behind_what_a_repair_left_out(path: Path) -> None:
    """`tail` skips sequences that a repair left out when it looks for its start."""
    fill(path, 300)
    begins = sorted((path / "segments").glob("0*.seg"))
    content = bytearray(begins[1].read_bytes())
    content[1000:2000] = b"\xff" * 1000
    begins[1].write_bytes(content)
    run("repair", path, "--apply")
    found = numbers(path, "-n", 1000)
    lost = min(set(range(300)) - set(found))
    shown = [number for number in found if number > lost]
    assert numbers(path, "-n", 300 - lost) == shown
