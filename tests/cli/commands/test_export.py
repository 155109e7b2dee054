"""`filechannel export` and `filechannel import`: there and back."""

from __future__ import annotations

import enum
import json
import os
import signal
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from filechannel import ChannelOptions, Compression, blocking
from filechannel._channel.schema.codec import CodecName
from filechannel.cli.transfer import output_file
from filechannel.cli.transfer.output_file import replacing
from tests.cli.shell import SMALL, Order, error, fill, finish, orders, real, report, run, start
from tests.storage.boots import Boots


class Color(enum.Enum):
    """Known by its value."""

    RED = "red"


class Node(msgspec.Struct, omit_defaults=True):
    """Contains itself."""

    value: Annotated[int, msgspec.Meta(ge=0)]
    inside: list[Node] = []
    blob: bytes = b"\xff"
    when: datetime | None = None
    color: Color = Color.RED


class Sale(msgspec.Struct, tag=True, array_like=True):
    """An array on the wire."""

    id: int


class Refund(msgspec.Struct, tag=True, array_like=True):
    """A message that its tag distinguishes from the other one."""

    id: int
    why: str = ""


class Pair(NamedTuple):
    """An array, too."""

    left: int
    right: str = "r"


class Loose(TypedDict, total=False):
    """May leave out anything."""

    a: int


@dataclass
class Item:
    """Has defaults that are made."""

    price: Decimal
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    day: date = date(2026, 1, 1)


MESSAGES: dict[str, tuple[Any, list[Any]]] = {
    "struct": (Node, [Node(1), Node(2, [Node(3, when=datetime(2026, 1, 1, tzinfo=UTC))], b"")]),
    "union": (Sale | Refund, [Sale(1), Refund(2), Refund(3, "broken")]),
    "namedtuple": (Pair, [Pair(1), Pair(2, "x")]),
    "typeddict": (Loose, [{}, {"a": 1}]),
    "dataclass": (Item, [Item(Decimal("1.50"))]),
    "int": (int, [0, 2**63 - 1]),
    "bytes": (bytes, [b"", b"\x00\xff"]),
    "dict": (dict[str, float | None], [{"a": 1.5, "b": None}]),
    "keys": (dict[int, str], [{1: "a"}]),
    "text": (str, ["", "süß\n\x7f\x9b"]),
}
each_type = pytest.mark.parametrize("name", MESSAGES)


def make(path: Path, name: str, codec: CodecName | None = None) -> list[Any]:
    """Make a channel with messages of a kind, and return them."""
    message_type, messages = MESSAGES[name]
    with blocking.open_channel(path, message_type, codec=codec, options=SMALL) as opened, opened.sender() as sender:
        sender.send_many(messages)
    return messages


def read(path: Path, name: str, codec: CodecName | None = None) -> list[Any]:
    """Return what is in such a channel."""
    with blocking.open_channel(path, MESSAGES[name][0], codec=codec, create=False) as opened:
        with opened.replay() as receiver:
            return list(receiver)


@pytest.fixture
def file(path: Path) -> Path:
    """A file to export to."""
    return path.with_name("export.jsonl")


@each_type
def test_there_and_back_in_json(path: Path, file: Path, name: str) -> None:
    """A channel that is imported from a JSON export has the same messages, and accepts new ones of the same type."""
    messages = make(path, name)
    assert report("export", path, file, "--header")["messages"] == len(messages)
    copy = path.with_name("copy")
    assert report("import", copy, file) == {"imported": len(messages)}
    assert read(copy, name) == messages
    assert report("import", path, file) == {"imported": len(messages)}
    assert read(path, name) == messages * 2


@each_type
def test_there_and_back_in_parquet(path: Path, name: str) -> None:
    """A channel that is imported from a Parquet export has the same messages, as columns or as payloads."""
    messages = make(path, name)
    file, copy = path.with_name("export.parquet"), path.with_name("copy")
    if name == "struct":  # a column cannot contain itself
        assert "inside[]" in error("export", path, file)
        assert not file.exists()
        return
    assert report("export", path, file)["messages"] == len(messages)
    assert report("import", copy, file) == {"imported": len(messages)}
    assert read(copy, name) == messages


def test_a_channel_of_json(path: Path, file: Path) -> None:
    """The header of an export names the codec of the channel."""
    messages = make(path, "struct", "json")
    run("export", path, file, "--header")
    run("import", path.with_name("copy"), file)
    assert read(path.with_name("copy"), "struct", "json") == messages


def test_one_message_a_line(channel: Path) -> None:
    """`export` writes one message a line and nothing else to stdout, and can select a range."""
    found = [json.loads(line) for line in run("export", channel).stdout.splitlines()]
    assert [each["id"] for each in found] == list(range(100))
    part = run("export", channel, "--from", "seq:10", "--to", "seq:12").stdout
    assert [json.loads(line)["id"] for line in part.splitlines()] == [10, 11]
    assert run("export", channel, "--from", "latest").stdout == ""
    assert "lies before" in error("export", channel, "--from", "latest", "--to", "earliest", code=2)


def test_a_pipe_between_two(channel: Path) -> None:
    """An export can be piped into the import of another channel."""
    _, out, _ = real("export", channel, "--header")
    assert real("import", channel.with_name("copy"), given=out.encode())[2] == "imported 100 messages\n"
    assert orders(channel.with_name("copy")) == orders(channel)


def test_a_file_that_is_there_stays(channel: Path, file: Path) -> None:
    """`export` refuses to overwrite an existing file without `--force`."""
    file.write_text("mine")
    assert error("export", channel, file, code=2) == f"{file} exists: add --force to replace it"
    assert file.read_text() == "mine"
    run("export", channel, file, "--force")
    assert len(file.read_text().splitlines()) == 100
    assert sorted(os.listdir(channel.parent)) == sorted([channel.name, file.name])


def test_a_directory_that_is_missing(channel: Path) -> None:
    """`export` into a missing directory is wrong usage, and the command says what to do."""
    text = error("export", channel, channel.with_name("nowhere") / "x.jsonl", code=2)
    assert text == f"there is not a directory {channel.with_name('nowhere')} for x.jsonl: create it, or check the path"


def test_damage_leaves_no_file(channel: Path, file: Path) -> None:
    """An export of a damaged channel leaves no file; with --skip-damage it has the rest, and another exit code."""
    segment = min((channel / "segments").glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[1000] ^= 0xFF
    segment.write_bytes(content)
    assert "is damaged at offset" in error("export", channel, file)
    assert os.listdir(channel.parent) == [channel.name]
    result = run("export", channel, file, "--skip-damage", code=1)
    assert "1 record left out: damaged or undecodable" in result.stderr
    assert len(file.read_text().splitlines()) == 99


def test_values_json_cannot_represent(path: Path, file: Path) -> None:
    """An export refuses infinity and NaN, which as null could not be imported again."""
    with blocking.open_channel(path, float) as opened, opened.sender() as sender:
        sender.send_many([1.0, float("inf")])
    assert "export to Parquet" in error("export", path, file)
    assert not file.exists()
    parquet = path.with_name("export.parquet")
    run("export", path, parquet)
    run("import", path.with_name("copy"), parquet)
    with blocking.open_channel(path.with_name("copy"), float) as opened, opened.replay() as receiver:
        assert list(receiver) == [1.0, float("inf")]


def test_an_import_is_all_or_nothing(channel: Path, file: Path) -> None:
    """An import with a bad line at the end imports nothing, into an existing channel or a new one."""
    file.write_text('{"id": 1, "sku": "a"}\n' * 1000 + '{"id": "x"}\n')
    for target, more in ((channel, []), (channel.with_name("copy"), ["--like", channel])):
        text = error("import", target, file, *more)
        assert text.startswith("line 1001 is not a message of the channel: Expected `int`, got `str` - at `$.id`")
        assert text.endswith("; nothing was imported")
    assert len(orders(channel)) == 100
    assert sorted(os.listdir(channel.parent)) == sorted([channel.name, file.name])


def test_a_channel_like_another(channel: Path, file: Path) -> None:
    """An import with `--like` creates a channel with the schema and options of another one."""
    file.write_text('{"id": 1, "sku": "a"}\n')
    with blocking.open_channel(channel, Order) as opened:
        opened.configure(compression=Compression(after=3.0))
    copy = channel.with_name("copy")
    run("import", copy, file, "--like", channel)
    assert report("info", copy)["options"] == report("info", channel)["options"]
    assert report("info", copy)["id"] != report("info", channel)["id"]
    assert "a channel exists" in error("import", copy, file, "--like", channel, code=2)


def test_no_way_to_know_the_schema(path: Path, file: Path) -> None:
    """An import without a way to know the schema creates no channel."""
    file.write_text('{"id": 1, "sku": "a"}\n')
    assert "add --like CHANNEL, or export with --header" in error("import", path, file, code=2)
    assert not path.exists()


@pytest.mark.parametrize("header", ['{"$filechannel":{}}', '{"$filechannel":{"version":2,"codec":"x","schema":1}}'])
def test_a_header_that_is_damaged(path: Path, file: Path, header: str) -> None:
    """A damaged header is reported as such."""
    file.write_text(f"{header}\n")
    assert error("import", path, file).startswith("the header is ")
    assert not path.exists()


def test_a_header_of_other_messages(channel: Path, file: Path) -> None:
    """An import with another message type is refused before it reads a line that might fit by chance."""
    make(channel.with_name("other"), "dict")
    run("export", channel.with_name("other"), file, "--header")
    wrong = "message.sku: the channel has str, the file has float | None; nothing was imported"
    assert error("import", channel, file) == wrong
    file.write_bytes(b"\xef\xbb\xbf" + run("export", channel, "--header").stdout.encode())
    assert report("import", channel, file) == {"imported": 100}


def test_columns_of_another_channel(channel: Path, path: Path) -> None:
    """The header of a Parquet file is checked like that of a JSON export."""
    other, file = path.with_name("other"), path.with_name("export.parquet")
    make(other, "dataclass")
    run("export", other, file)
    assert "the file has " in error("import", channel, file)
    assert len(orders(channel)) == 100


def test_columns_from_elsewhere(channel: Path, path: Path) -> None:
    """A table of another program is accepted with narrower numbers, and without columns that have defaults."""
    file = path.with_name("elsewhere.parquet")

    def write(**columns: object) -> None:
        parquet.write_table(pa.table(columns), file)

    write(id=pa.array([1], pa.int32()), sku=["a"])
    assert report("import", channel, file) == {"imported": 1}
    assert orders(channel)[-1] == Order(1, "a", 1)
    write(id=[1], sku=["a"], price=[2])
    assert error("import", channel, file).startswith("column 'price' is not a field of the channel's messages")
    write(id=[1, 2], sku=["a", None])
    assert error("import", channel, file).startswith("rows 1 to 2 are not messages: column 'sku' is null")
    write(id=["x"], sku=["a"])
    assert error("import", channel, file).startswith("rows 1 to 1 are not messages: ")
    write(sku=["a"])
    assert error("import", channel, file).startswith("messages have a field 'id', and there is no column of that name")
    assert len(orders(channel)) == 101


@pytest.mark.parametrize("command", ["export", "import"])
def test_parquet_needs_a_file(channel: Path, command: str) -> None:
    """Parquet cannot be written to a stream."""
    assert "name a file" in error(command, channel, "--format", "parquet", code=2)


def test_no_parquet(channel: Path, file: Path) -> None:
    """A file that only claims to be Parquet is reported as such."""
    file.write_text("PAR")
    assert error("import", channel, file, "--format", "parquet").startswith(f"{file} is not a Parquet file: ")


def test_ctrl_c_at_any_line_leaves_no_draft(file: Path) -> None:
    """Ctrl-C before, while and after a file is written beside its target leaves no temporary file."""
    source, lines = str(Path(output_file.__file__)), 0

    def interrupt(after: int) -> bool:
        """Create a file and interrupt that before its n-th line; return whether there was such a line."""
        left = after

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != source or frame.f_code.co_name == "_remove":
                return None
            left -= event == "line"
            if not left:
                left = -1
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(KeyboardInterrupt), replacing(file, force=True) as draft:
                draft.write_text("content")
        finally:
            sys.settrace(before)
        return left < 0

    while interrupt(lines + 1):
        lines += 1
        assert {each.name for each in file.parent.iterdir()} <= {file.name}, lines
    assert lines > 20


def test_an_interrupted_export_leaves_nothing(path: Path, file: Path) -> None:
    """Ctrl-C in the middle of an export leaves no file and no output, with exit code 130."""
    fill(path, 200_000, ChannelOptions())
    process = start("export", path, file)
    while not list(path.parent.glob(".export*")) and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    if process.returncode != 0:  # it was faster than we were
        # If the interpreter is already shutting down, the signal itself ends it, which a shell reports as 130 as well.
        assert process.returncode in (130, -signal.SIGINT)
        assert (out, err) == (b"", b"")
        assert os.listdir(path.parent) == [path.name]


@pytest.fixture
def dying(tmp_path: Path) -> dict[str, str]:
    """An environment in which a process that flushes a file by its descriptor is killed instead."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.fsync = lambda _: os.kill(os.getpid(), 9)\n")
    return {"PYTHONPATH": str(tmp_path)}


def drafts(path: Path) -> list[str]:
    """Return what is there beside channels and files under their own names."""
    return [name for name in os.listdir(path.parent) if name.startswith(".")]


def test_the_next_export_deletes_what_a_killed_one_left(channel: Path, file: Path, dying: dict[str, str]) -> None:
    """The next export deletes the temporary files of a killed one, but no other files and none of a running export."""
    assert real("export", channel, file, environment=dying)[0] == -signal.SIGKILL
    assert len(drafts(file)) == 1
    mine = file.with_name(f".{file.name}.notes.part")
    mine.write_text("mine")
    with replacing(file, force=False) as other:
        run("export", channel, file)
        assert sorted(drafts(file)) == sorted([mine.name, other.name])
        file.unlink()
        other.write_text("made meanwhile")
    assert file.read_text() == "made meanwhile"
    assert real("export", channel, file, "--force", environment=dying)[0] == -signal.SIGKILL
    error("export", channel, file, code=2)
    assert drafts(file) == [mine.name]


def test_the_next_import_deletes_what_a_killed_one_left(channel: Path, file: Path, path: Path) -> None:
    """The next import deletes the incomplete channel of a killed one, and keeps one that is being created."""
    run("export", channel, file)
    new = path.with_name("new")
    processes = [start("import", new, "--like", channel) for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(file.read_bytes())
        process.stdin.flush()
    while len(drafts(new)) < 2:
        pass
    processes[0].kill()
    processes[0].communicate()
    run("import", new, file, "--like", channel)
    assert len(drafts(new)) == 1
    assert "was created" in finish(processes[1])[2]
    assert drafts(new) == []
    assert len(orders(new)) == 100


def test_an_export_of_a_copy_reports_what_it_leaves_out(channel: Path, boots: Boots) -> None:
    """Only a writer recovers the end of the log after a reboot: an export that may be short says so."""
    boots.again()
    assert "messages that need recovery are not shown" in run("export", channel).stderr


def test_nothing_is_allocated_without_the_lock_that_it_needs(channel: Path, file: Path) -> None:
    """Messages are copied while other threads run Python; its debug allocator ends a process that takes memory then."""
    run("export", channel, file, "--header")
    debug = {"PYTHONMALLOC": "debug"}
    assert real("import", channel.with_name("copy"), file, environment=debug) == (0, "", "imported 100 messages\n")


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["plain", "force"])
def test_a_device_or_a_fifo_is_not_replaced(channel: Path, force: list[str]) -> None:
    """An export as root does not replace /dev/null, another device or a FIFO."""
    fifo = channel.with_name("fifo")
    os.mkfifo(fifo)
    assert "is not a regular file" in error("export", channel, fifo, *force, code=2)
    assert fifo.is_fifo()
