"""Opening a directory as a channel, and refusing what is none."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.to_thread import run_sync

from filechannel import (
    ChannelLockedError,
    ChannelNotFoundError,
    ChannelOptions,
    Durability,
    FileChannel,
    NotAChannelError,
    OptionsMismatchError,
    SchemaMismatchError,
    StorageError,
    UnsupportedFormatError,
    blocking,
    open_channel,
)
from filechannel._format import PURE
from filechannel._format.layout import FORMAT_VERSION, OPENING_BYTE
from filechannel._storage.open_stores import STORES
from filechannel._storage.system.kernel_locks import KernelLocks
from filechannel._storage.system.os_calls import Files
from tests.backends import one_loop
from tests.channel.messages import Cancelled, Order, Placed, Point, content

pytestmark = pytest.mark.anyio

HOLD = """
import asyncio, sys
from filechannel import open_channel

async def main():
    channel = await open_channel(sys.argv[1], int)
    with channel.sender() as tx, channel.receiver("taken") as rx:
        for number in range(1000):
            await tx.send(number)
        assert [await rx.receive() for _ in range(10)] == list(range(10))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def change_manifest(path: Path, **changes: object) -> None:
    """Edit `channel.json` by hand."""
    manifest = path / "channel.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


async def make(path: Path, type_: type = Order, options: ChannelOptions | None = None) -> None:
    """Make a channel and close it."""
    async with open_channel(path, type_, options=options):
        pass


async def test_a_channel_is_created_where_nothing_is(path: Path) -> None:
    """Opening a path where nothing is makes the directory, its parents, and the files of a channel."""
    async with open_channel(path / "deep" / "orders", Order) as orders:
        assert isinstance(orders, FileChannel)
        assert orders.path == path / "deep" / "orders"
        assert orders.message_type is Order
    assert (path / "deep" / "orders" / "channel.json").is_file()


@one_loop
async def test_only_the_owner_may_look_into_a_channel(path: Path) -> None:
    """Directories are 0700 and files 0600, whatever the umask says."""
    previous = os.umask(0)
    try:
        async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver():
            await tx.send(Order(1))
    finally:
        os.umask(previous)
    for item in (path, *path.rglob("*")):
        assert stat.S_IMODE(item.stat().st_mode) == (0o700 if item.is_dir() else 0o600), item


@one_loop
async def test_the_mode_option_opens_a_channel_to_others(path: Path) -> None:
    """With `mode`, files get that mode and directories the matching one; the lock file is for users
    with write access.
    """
    previous = os.umask(0)
    try:
        async with open_channel(path, Order, options=ChannelOptions(mode=0o640)) as orders, orders.sender() as tx:
            await tx.send(Order(1))
    finally:
        os.umask(previous)
    for item in (path, *path.rglob("*")):
        expected = 0o750 if item.is_dir() else 0o600 if item == path / "lock" else 0o640
        assert stat.S_IMODE(item.stat().st_mode) == expected, item


async def test_open_channel_can_be_awaited(path: Path) -> None:
    """`await open_channel(…)` gives a channel that the caller closes."""
    channel = await open_channel(path, Order)
    assert channel.path == path
    await channel.aclose()


async def test_nothing_happens_before_the_context_is_used(path: Path) -> None:
    """Calling `open_channel` touches no file; awaiting or entering its result does."""
    open_channel(path, Order)
    assert not path.exists()


async def test_a_context_can_be_entered_again_after_it_was_closed(path: Path) -> None:
    """A context opens the channel each time it is entered."""
    context = open_channel(path, int)
    async with context as first, first.sender() as tx:
        await tx.send(1)
    async with context as second, second.receiver() as rx:
        assert await rx.receive() == 1


async def test_a_context_is_entered_once_at_a_time(path: Path) -> None:
    """Entering a context that is open already is an error and leaves the open channel alone."""
    context = open_channel(path, int)
    async with context as channel:
        with pytest.raises(RuntimeError, match="already entered"):
            await context.__aenter__()
        channel.statistics()


async def test_a_relative_path_is_fixed_when_the_call_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the directory of the moment of the call, not that of the moment of opening."""
    path.mkdir()
    monkeypatch.chdir(path)
    context = open_channel("orders", Order)
    monkeypatch.chdir(path.parent)
    async with context as orders:
        assert orders.path == path / "orders"


async def test_what_was_sent_is_there_after_reopening(path: Path) -> None:
    """Messages, and how far each consumer got, outlive the channel object."""
    async with open_channel(path, Order) as orders, orders.sender() as tx, orders.receiver() as rx:
        await tx.send_many([Order(1), Order(2), Order(3)])
        assert await rx.receive() == Order(1)
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        assert await rx.receive_many(10) == [Order(2), Order(3)]


async def test_an_absent_channel_is_not_created_without_create(path: Path) -> None:
    """With `create=False` an absent channel is an error, and nothing is created."""
    with pytest.raises(ChannelNotFoundError, match="create=True"):
        await open_channel(path, Order, create=False)
    assert not path.exists()


async def test_an_existing_channel_opens_without_create(path: Path) -> None:
    """With `create=False` an existing channel opens."""
    await make(path)
    async with open_channel(path, Order, create=False):
        pass


@one_loop
async def test_a_file_is_not_a_channel(path: Path) -> None:
    """A path that is a file is refused and not changed."""
    path.write_text("mine")
    for create in (True, False):
        with pytest.raises(NotAChannelError, match="it is a file"):
            await open_channel(path, Order, create=create)
    assert path.read_text() == "mine"


@one_loop
async def test_a_directory_with_other_content_is_not_a_channel(path: Path) -> None:
    """A directory with other content is refused, the content is named, and nothing is added."""
    path.mkdir()
    (path / "letters.txt").write_text("mine")
    before = content(path)
    with pytest.raises(NotAChannelError, match=r"letters\.txt"):
        await open_channel(path, Order)
    assert content(path) == before


@one_loop
async def test_a_file_among_the_parents_is_refused(path: Path) -> None:
    """A path below a file is refused with an error that names the path."""
    path.write_text("mine")
    with pytest.raises(NotAChannelError, match=str(path)):
        await open_channel(path / "orders", Order)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_directory_without_permission_is_refused(path: Path) -> None:
    """A directory without write permission is an error that names it."""
    path.mkdir(mode=0o500)
    with pytest.raises(StorageError, match=f"{path}.*check the permissions of it"):
        await open_channel(path / "orders", Order)
    assert content(path) == {}


@one_loop
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 1}', '{"format": 0}', '{"format": true}', "\0\0\0\0"]
)
async def test_a_damaged_manifest_is_refused(path: Path, text: str) -> None:
    """A damaged `channel.json` is an error that names it, and nothing is changed."""
    await make(path)
    (path / "channel.json").write_text(text)
    before = content(path)
    with pytest.raises(NotAChannelError, match=r"channel\.json"):
        await open_channel(path, Order)
    assert content(path) == before


@one_loop
@pytest.mark.parametrize("schema", [None, 3, {"kind": "unheard of"}, {"nodes": []}])
async def test_a_damaged_schema_is_refused(path: Path, schema: object) -> None:
    """A schema that cannot be read is an error that says so, and nothing is changed."""
    await make(path)
    change_manifest(path, schema=schema)
    before = content(path)
    with pytest.raises(NotAChannelError, match="schema"):
        await open_channel(path, Order)
    assert content(path) == before


@one_loop
async def test_a_newer_format_is_refused(path: Path) -> None:
    """A channel of a newer format is refused with both versions named, and nothing is changed."""
    await make(path)
    change_manifest(path, format=99)
    before = content(path)
    with pytest.raises(UnsupportedFormatError, match=f"{path}.*99"):
        await open_channel(path, Order)
    assert content(path) == before


@one_loop
async def test_a_segment_of_a_newer_format_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of a newer format is refused with the channel named, and stays as it is."""
    async with open_channel(path, int) as channel, channel.sender() as tx:
        await tx.send(1)
    control = path / "control"
    control.write_bytes(bytes(len(control.read_bytes())))  # so that every segment is looked at
    monkeypatch.setattr("filechannel._storage.segments.segment.FORMAT_VERSION", 0)
    before = content(path / "segments")
    with pytest.raises(UnsupportedFormatError, match=f"{path}.*version {FORMAT_VERSION}.*version 0") as caught:
        await open_channel(path, int)
    assert caught.value.path == path
    assert content(path / "segments") == before


@one_loop
@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ChannelOptions(segment_size=1 << 20), "segment_size"),
        (ChannelOptions(max_message_size=100), "max_message_size"),
        (ChannelOptions(mode=0o644), "mode"),
        (ChannelOptions(durability=Durability.FSYNC), "durability"),
    ],
)
async def test_a_contradicting_option_is_refused(path: Path, options: ChannelOptions, name: str) -> None:
    """An option that differs from what is stored is an error that names it, and nothing is changed."""
    await make(path)
    before = content(path)
    with pytest.raises(OptionsMismatchError) as caught:
        await open_channel(path, Order, options=options)
    assert (caught.value.option, caught.value.path) == (name, path)
    assert str(path) in str(caught.value)
    assert ("configure" in str(caught.value)) == (name == "durability")
    assert content(path) == before


@one_loop
async def test_an_unset_option_contradicts_nothing(path: Path) -> None:
    """Options that are left out are what the channel was created with."""
    await make(path, options=ChannelOptions(segment_size=1 << 20, durability=Durability.interval(5)))
    async with open_channel(path, Order, options=ChannelOptions(segment_size=1 << 20)):
        pass


@one_loop
async def test_another_type_is_refused_by_the_name_of_the_field(path: Path) -> None:
    """A type whose messages do not fit is an error that names the field, and nothing is changed."""

    class Changed(msgspec.Struct):
        id: int
        sku: int = 0
        qty: int = 1

    await make(path)
    before = content(path)
    with pytest.raises(SchemaMismatchError) as caught:
        await open_channel(path, Changed)
    assert "sku" in caught.value.field
    assert "sku" in str(caught.value)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert content(path) == before


@one_loop
async def test_a_new_field_with_a_default_fits(path: Path) -> None:
    """A channel opens with a type that has one more field with a default, and old messages get it."""

    class Longer(msgspec.Struct):
        id: int
        sku: str = "pen"
        qty: int = 1
        note: str = "none"

    async with open_channel(path, Order) as orders, orders.sender() as tx:
        await tx.send(Order(1))
    async with open_channel(path, Longer) as orders, orders.receiver() as rx:
        assert await rx.receive() == Longer(1)


@one_loop
async def test_raw_bytes_and_typed_messages_do_not_mix(path: Path) -> None:
    """A typed channel does not open as `bytes`, nor the other way round."""
    await make(path / "typed")
    await make(path / "raw", bytes)
    before = content(path)
    with pytest.raises(SchemaMismatchError, match="raw bytes; open it with the type Order, or use another") as caught:
        await open_channel(path / "typed", bytes)
    assert caught.value.path == path / "typed"
    assert "configure" not in str(caught.value)
    with pytest.raises(SchemaMismatchError, match=r"has raw bytes.*; open it with the type bytes, or use") as caught:
        await open_channel(path / "raw", Order)
    assert caught.value.path == path / "raw"
    assert "configure" not in str(caught.value)
    assert content(path) == before


@one_loop
async def test_a_union_does_not_open_as_one_of_its_members(path: Path) -> None:
    """A channel of two types of messages does not open as one of them."""
    async with open_channel(path, Placed | Cancelled):
        pass
    with pytest.raises(SchemaMismatchError):
        await open_channel(path, Placed)


@one_loop
async def test_another_codec_is_refused(path: Path) -> None:
    """A channel opens only with the codec that it was created with."""
    await make(path)
    with pytest.raises(OptionsMismatchError, match=f"{path} has codec='msgpack', not 'json'; open it with") as caught:
        await open_channel(path, Order, codec="json")
    assert "leave" not in str(caught.value)


@one_loop
async def test_a_codec_that_was_left_out_is_named(path: Path) -> None:
    """A channel with a codec other than the default one says which codec to open it with."""
    async with open_channel(path, Order, codec="json"):
        pass
    with pytest.raises(OptionsMismatchError, match="open it with codec='json'"):
        await open_channel(path, Order)


@pytest.mark.parametrize("type_", [object(), 3, "Order", lambda: None, threading.Lock])
def test_a_type_that_cannot_be_a_message_is_refused_at_once(path: Path, type_: object) -> None:
    """What msgspec cannot handle is a `TypeError` of the call itself."""
    with pytest.raises(TypeError):
        open_channel(path, type_)  # type: ignore[call-overload]
    assert not path.exists()


@pytest.mark.parametrize("options", [{"durability": Durability.OS}, Durability.OS, "fsync", 1])
def test_options_of_another_kind_are_refused_at_once(path: Path, options: object) -> None:
    """Options that are not `ChannelOptions` are a `TypeError` of the call itself."""
    with pytest.raises(TypeError, match="ChannelOptions"):
        open_channel(path, Order, options=options)  # type: ignore[call-overload]


@pytest.mark.parametrize("codec", ["pickle", "", "MSGPACK"])
def test_an_unknown_codec_is_refused_at_once(path: Path, codec: str) -> None:
    """A codec that does not exist is a `ValueError` that names those that do."""
    with pytest.raises(ValueError, match="msgpack"):
        open_channel(path, Order, codec=codec)  # type: ignore[call-overload]


@pytest.mark.parametrize("bad", [b"bytes", 3, None])
def test_a_path_of_another_kind_is_refused_at_once(bad: object) -> None:
    """A path that is neither text nor PathLike is a `TypeError` of the call itself."""
    with pytest.raises(TypeError, match=f"path={bad!r}: .*not {type(bad).__name__}"):
        open_channel(bad, Order)  # type: ignore[call-overload]


class _BytesPath:
    """A path that is made of bytes."""

    def __fspath__(self) -> bytes:
        return b"orders"


def test_a_path_like_of_bytes_is_refused_at_once() -> None:
    """A PathLike has to give a text."""
    with pytest.raises(TypeError, match=r"path=.*not bytes"):
        open_channel(_BytesPath(), Order)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [("", "empty"), ("a\0b", "null character"), (Path("a\0b"), "null character"), ("a\ud800", "cannot be encoded")],
    ids=["empty", "null", "null in a Path", "surrogate"],
)
def test_a_path_that_can_be_none_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str | Path, reason: str
) -> None:
    """What no directory can be called is a `ValueError` of the call itself that shows the path."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=reason) as caught:
        open_channel(bad, Order)
    assert f"path={bad!r}" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@one_loop
async def test_a_path_that_the_system_refuses_is_a_storage_error(path: Path) -> None:
    """A name that is too long, and a link to nowhere or to itself, is an error that names the path."""
    links = {path.with_name("itself"): "itself", path.with_name("nowhere"): "missing"}
    for link, target in links.items():
        link.symlink_to(target)
    before = sorted(os.listdir(path.parent))
    for bad in (path.with_name("x" * 300), *links):
        with pytest.raises(StorageError, match=f"{bad} cannot be opened: .*; check the path"):
            await open_channel(bad, Order)
    assert sorted(os.listdir(path.parent)) == before


@one_loop
async def test_a_limit_of_the_size_of_files_is_called_that(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system names no file then, and nothing is wrong with the path."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StorageError, match=f"{path} cannot be opened: File too large; .*ulimit -f"):
        await open_channel(path, Order)


@pytest.mark.parametrize("name", ["create", "readonly"])
@pytest.mark.parametrize("value", [1, 0, None, "no"], ids=repr)
def test_a_switch_is_true_or_false(path: Path, name: str, value: object) -> None:
    """Anything but a bool is a `TypeError` of the call itself that names the argument."""
    with pytest.raises(TypeError, match=f"{name}={value!r}: must be True or False"):
        open_channel(path, Order, **{name: value})  # type: ignore[call-overload]


async def test_a_readonly_open_creates_nothing(path: Path) -> None:
    """Opened read-only, an absent channel is an error even if it could be created; it does not say how."""
    with pytest.raises(ChannelNotFoundError) as caught:
        await open_channel(path, Order, readonly=True)
    assert str(caught.value).endswith(f"{path}; check the path: readonly=True creates nothing")
    assert not path.exists()


async def test_a_readonly_channel_can_be_replayed(path: Path) -> None:
    """A read-only channel shows its history."""
    async with open_channel(path, Order) as orders, orders.sender() as tx:
        await tx.send_many([Order(1), Order(2)])
    async with open_channel(path, Order, readonly=True) as orders, orders.replay() as rx:
        assert await rx.receive() == Order(1)
        assert rx.peek() == [Order(2)]
        assert orders.statistics().messages == 2
        assert await orders.offset_of(1) == rx.read_offset


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "beside a writer"])
async def test_a_readonly_channel_refuses_every_change(path: Path, shared: bool) -> None:
    """Nothing can be sent, registered or changed through a read-only channel, even if the process may write."""
    await make(path)
    writer = await open_channel(path, Order) if shared else None
    try:
        async with open_channel(path, Order, readonly=True) as orders:
            with pytest.raises(io.UnsupportedOperation, match="read-only; open it without readonly=True"):
                orders.sender()
            with pytest.raises(io.UnsupportedOperation, match=r"read-only; use replay\(\)"):
                orders.receiver()
            for action in (orders.flush, orders.seal, orders.purge, orders.configure):
                with pytest.raises(io.UnsupportedOperation, match="read-only"):
                    await action()
            assert not orders.statistics().sealed
    finally:
        if writer is not None:
            await writer.aclose()


async def test_a_reader_of_a_readonly_channel_sees_what_another_open_sends(path: Path) -> None:
    """A receiver of a read-only channel that waits gets what is sent through another open of the process."""
    await make(path, int)
    async with open_channel(path, int, readonly=True) as reader, reader.replay(stop=None) as rx:
        async with open_channel(path, int) as writer, writer.sender() as tx:
            async with anyio.create_task_group() as group:
                got: list[int] = []

                async def receive() -> None:
                    got.append(await rx.receive())

                group.start_soon(receive)
                await anyio.wait_all_tasks_blocked()
                await tx.send(7)
            assert got == [7]


async def test_closing_a_reader_of_a_readonly_channel_ends_its_wait(path: Path) -> None:
    """Closing a receiver of a read-only channel ends its wait."""
    await make(path, int)
    async with open_channel(path, int, readonly=True) as reader:
        rx = reader.replay(stop=None)
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await rx.receive()

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            rx.close()


@one_loop
async def test_another_process_may_write_too(path: Path) -> None:
    """Two processes share a channel, and statistics name both; without the C core the second is refused, by name."""
    holder = await run_sync(hold, path)
    try:
        if PURE:
            with pytest.raises(ChannelLockedError) as caught:
                await open_channel(path, int)
            assert caught.value.pid == holder.pid
            assert str(holder.pid) in str(caught.value)
            assert caught.value.since is not None
        else:
            async with open_channel(path, int) as channel:
                assert {writer.pid for writer in channel.statistics().writers} == {holder.pid, os.getpid()}
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    async with open_channel(path, int) as channel, channel.receiver("taken") as rx, channel.receiver("new") as new:
        assert rx.receive_many_nowait(2000) == list(range(10, 1000))
        assert new.receive_many_nowait(2000) == list(range(1000))


@one_loop
async def test_a_readonly_open_does_not_need_the_lock(path: Path) -> None:
    """Another process may read a channel while it is written, and sees the writer."""
    holder = await run_sync(hold, path)
    try:
        async with open_channel(path, int, readonly=True) as channel, channel.replay() as rx:
            assert rx.receive_many_nowait(2000) == list(range(1000))
            assert [writer.pid for writer in channel.statistics().writers] == [holder.pid]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    async with open_channel(path, int, readonly=True) as channel:
        assert channel.statistics().writers == ()


def hold(path: Path) -> subprocess.Popen[bytes]:
    """Start a process that has a channel open; it is ready when this returns."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


async def test_a_failed_open_leaves_nothing_open(path: Path) -> None:
    """After an open that was refused the channel opens with the right arguments."""
    await make(path, Point)
    with pytest.raises(SchemaMismatchError):
        await open_channel(path, Order)
    async with open_channel(path, Point):
        pass


async def test_a_cancelled_open_leaves_nothing_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel whose opening was cancelled half-way is closed when the opening is done."""
    reached, may_continue = threading.Event(), threading.Event()
    open_store, close_store, closed = STORES.open, STORES.close, threading.Event()

    def slow_open(*args: object, **keywords: object) -> object:
        reached.set()
        assert may_continue.wait(30)
        return open_store(*args, **keywords)  # type: ignore[arg-type]

    def observed_close(store: object) -> None:
        close_store(store)  # type: ignore[arg-type]
        closed.set()

    monkeypatch.setattr(STORES, "open", slow_open)
    monkeypatch.setattr(STORES, "close", observed_close)

    async def release_when_cancelled(scope: anyio.CancelScope) -> None:
        await run_sync(reached.wait)
        scope.cancel()
        may_continue.set()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(release_when_cancelled, scope)
            async with open_channel(path, Order):
                await anyio.sleep_forever()
    assert await run_sync(closed.wait, 30)
    assert not STORES._open


@pytest.fixture
def opener(path: Path) -> Iterator[None]:
    """A process that is in the middle of opening the channel, and is stopped there."""
    with blocking.open_channel(path, Order):
        pass
    locks = KernelLocks(Files(), path / "lock")
    with locks.holding(OPENING_BYTE):
        yield
    locks.close()


@pytest.mark.usefixtures("opener")
async def test_opening_can_be_cancelled_while_another_process_is_opening_it(path: Path) -> None:
    """An open that waits for another process, which may be stopped, can be cancelled, and delays no other channel."""
    with anyio.move_on_after(0.05) as scope:
        await open_channel(path, Order)
    assert scope.cancelled_caught
    async with open_channel(path.with_name("another"), Order) as orders:
        assert [process.pid for process in orders.statistics().writers] == [os.getpid()]
