"""Every part of a channel replaced by something else, and every command given to what is left.

Run as a program, with the kind of thing to put there or with a seed for a sample of all: a process of its own, because
it may hang or take all memory.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from filechannel import ChannelOptions, Compression, FileChannelError, blocking
from filechannel._format.layout import CURSOR_SIZE
from filechannel._storage.log.batch_parts import Records
from filechannel._storage.producers.staging import Staging
from filechannel._storage.system.os_calls import Files
from tests.cli.shell import Order, invoke

MOST_SECONDS = 20.0
"""For one command; it takes some milliseconds, unless it waits for something."""
SAMPLE = 12
"""So many cases, for which there are a few seconds."""
MOST_MEMORY = 512 << 20
"""What all commands together may take besides: 32 MiB of an index, and the pages of a map, holes included."""
OPTIONS = ChannelOptions(segment_size=4096, compression=Compression(method="gzip"))


def make_channel(path: Path) -> None:
    """Make a channel that has a file of each kind."""
    with blocking.open_channel(path, Order, options=OPTIONS) as channel, channel.sender() as sender:
        with channel.receiver("slow") as slow, channel.group("team") as team:
            for number in range(200):
                sender.send(Order(number, "pen" * 10))
            slow.receive()
            team.receive()
        with blocking.open_channel(path.with_name("output"), Order) as output, output.sender() as target:
            with channel.ack_receiver("moved") as moved, blocking.transaction(moved, target):
                target.send(moved.receive())
    assert invoke("compress", path).exit_code == 0
    with blocking.open_channel(path, Order) as channel, channel.sender() as sender:
        for number in range(200, 300):
            sender.send(Order(number, "pen" * 10))
        channel.flush()
    staging = Staging(Files(), path, "group", 0o600)
    staging.list_for_later([staging.write([Records.of([b"a"])])])
    (path / "producers").mkdir(exist_ok=True)
    shutil.copyfile(next((path.with_name("output") / "producers").iterdir()), path / "producers" / "x.position")
    os.mkfifo(path / "wake" / "7")
    (path / "quarantine").mkdir()
    (path / "quarantine" / "1-x.seg").write_bytes(b"old")
    index = max((path / "segments").glob("0*.seg")).with_suffix(".idx")
    index.touch()


def parts_of(path: Path) -> list[str]:
    """Return every part, and for segments of each encoding the first and the last."""
    found = {str(part.relative_to(path)) for part in path.rglob("*")}
    segments = {form: sorted(name for name in found if name.endswith(form)) for form in (".seg", ".seg.z", ".idx")}
    for names in segments.values():
        found -= set(names[1:-1])
    return sorted(found)


# What an attacker puts there


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _link(path: Path, victim: Path) -> None:
    target = victim / ("directory" if path.is_dir() else "file")
    _remove(path)
    path.symlink_to(target)


def _nowhere(path: Path, victim: Path) -> None:
    _remove(path)
    path.symlink_to(victim / "new")


def _zero(path: Path, _victim: Path) -> None:
    _remove(path)
    path.symlink_to("/dev/zero")


def _device(path: Path, _victim: Path) -> None:
    if os.geteuid():
        return  # only root can make one
    _remove(path)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def _fifo(path: Path, _victim: Path) -> None:
    _remove(path)
    os.mkfifo(path)


def _hard_link(path: Path, victim: Path) -> None:
    """Of a file that looks right, so that it would be written to."""
    if path.is_dir():
        return
    kept = victim / "file"
    if stat.S_ISREG(path.lstat().st_mode):
        shutil.copyfile(path, kept)
    _remove(path)
    path.hardlink_to(kept)


def _directory(path: Path, _victim: Path) -> None:
    _remove(path)
    path.mkdir()
    (path / "file").write_bytes(b"inside")


def _sparse(path: Path, _victim: Path) -> None:
    """A terabyte after what was there."""
    if path.is_file():
        os.truncate(path, 1 << 40)


def _zeros(path: Path, _victim: Path) -> None:
    if path.is_file():
        os.truncate(path, 0)
        os.truncate(path, 1 << 40)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "link": _link,
    "nowhere": _nowhere,
    "zero": _zero,
    "device": _device,
    "fifo": _fifo,
    "hard-link": _hard_link,
    "directory": _directory,
    "sparse": _sparse,
    "zeros": _zeros,
}


# What its owner does


def _send_and_receive(path: Path) -> None:
    with blocking.open_channel(path, Order, create=False) as channel, channel.sender() as sender:
        for number in range(100):
            sender.send(Order(number, "ink" * 10))
        for name in ("slow", "new"):
            with suppress(FileChannelError), channel.receiver(name) as receiver:
                receiver.receive_nowait()
        with suppress(FileChannelError), channel.group("team") as team:
            team.receive_nowait()
        channel.statistics()
        channel.consumers()
        channel.flush()


def _read(path: Path) -> None:
    with blocking.open_channel(path, Order, readonly=True) as channel, channel.replay() as receiver:
        for _ in receiver:
            pass
        channel.statistics()
        channel.consumers()


def _sweep(path: Path) -> None:
    staging = Staging(Files(), path, "group", 0o600)
    with suppress(FileNotFoundError):
        for staged in staging.listed():
            list(staging.payloads(staged))
    staging.sweep()


LOOKING: dict[str, Callable[[Path], object]] = {
    "read": _read,
    "info": lambda path: invoke("info", path),
    "doctor": lambda path: invoke("doctor", path),
    "verify": lambda path: invoke("verify", path),
    "repair": lambda path: invoke("repair", path),
    "consumers": lambda path: invoke("consumers", path),
    "tail": lambda path: invoke("tail", path, "--from", "earliest"),
    "export": lambda path: invoke("export", path),
    "gc --dry-run": lambda path: invoke("gc", path, "--dry-run"),
}
CHANGING: dict[str, Callable[[Path], object]] = {
    "send": _send_and_receive,
    "gc": lambda path: invoke("gc", path),
    "compress": lambda path: invoke("compress", path),
    "consumers remove": lambda path: invoke("consumers", "remove", path, "slow", "--yes"),
    "sweep": _sweep,
    "repair --apply": lambda path: invoke("repair", path, "--apply"),
    "verify": lambda path: invoke("verify", path),
    "send again": _send_and_receive,
    "read again": _read,
}


def state(directory: Path) -> list[tuple[object, ...]]:
    """Return everything that must not change in a directory."""
    found = list[tuple[object, ...]]()
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found.append((str(path), status.st_mode, status.st_ino, status.st_size, content, status.st_uid))
    return found


def problems(choice: str) -> Iterator[str]:
    """Put one kind of thing where every part is, or some of all kinds; return what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        original = Path(scratch, "original", "channel")
        original.parent.mkdir()
        make_channel(original)
        cases = [(part, kind) for part in parts_of(original) for kind in KINDS]
        if choice in KINDS:
            cases = [(part, kind) for part, kind in cases if kind == choice]
        else:
            cases = Random(choice).sample(cases, SAMPLE)
        for number, (part, kind) in enumerate(cases):
            for commands in (LOOKING, CHANGING):
                place = Path(scratch, f"{number}-{commands is CHANGING}")
                yield from _try(kind, part, commands, original, place)
                shutil.rmtree(place)


def _try(
    kind: str, part: str, commands: dict[str, Callable[[Path], object]], original: Path, place: Path
) -> Iterator[str]:
    channel, victim = place / "channel", place / "victim"
    _copy(original, channel)
    (victim / "directory").mkdir(parents=True)
    for name in ("file", "directory/7", "directory/file", "directory/x.position", f"directory/{0:020}.seg"):
        (victim / name).write_bytes(bytes(CURSOR_SIZE) + b"precious")
    KINDS[kind](channel / part, victim)
    before = state(victim)
    for name, command in commands.items():
        start = time.monotonic()
        try:
            result = command(channel)
            said = str(getattr(result, "stderr", ""))
            if "FILECHANNEL_DEBUG" in said or said.startswith("Usage:"):  # a bug, or no such command
                yield f"{part}: {kind}: {name}: {said}"
        except FileChannelError:
            pass
        except Exception as error:
            yield f"{part}: {kind}: {name}: {error!r}"
        if time.monotonic() - start > MOST_SECONDS:
            yield f"{part}: {kind}: {name}: took {time.monotonic() - start:.1f} seconds"
        if state(victim) != before:
            yield f"{part}: {kind}: {name}: changed the victim"
            before = state(victim)


def _copy(source: Path, target: Path) -> None:
    """Copy a channel, FIFOs and all."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        elif path.is_fifo():
            os.mkfifo(copy)
        else:
            shutil.copyfile(path, copy)


def main(choice: str) -> None:
    """Print what went wrong, time and memory included."""
    make = Path(tempfile.mkdtemp()) / "warm"
    make_channel(make)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    found = list(problems(choice))
    shutil.rmtree(make.parent)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
    if taken > MOST_MEMORY:
        found.append(f"took {taken >> 20} MiB more memory")
    sys.stdout.write("\n".join(found))


if __name__ == "__main__":
    main(sys.argv[1])
