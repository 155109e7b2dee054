"""`filechannel doctor`: each check says what is so, and stays silent where it is not."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from filechannel import Capacity, ChannelOptions, Compression, Durability, Retention, blocking
from filechannel._format import PURE, crc32c, store_u32, store_u64
from filechannel._format.layout import (
    CURSOR,
    CURSOR_CHECKED,
    CURSOR_SLOTS,
    ENTRY,
    ENTRY_ATTEMPT_SHIFT,
    ENTRY_OUT,
    FAILED_FLUSHES,
    GROUP_NEXT,
    GROUP_NEXT_SEQUENCE,
    GROUP_RING,
    GROUP_TAIL,
    MAINTAINED,
    MAINTENANCE_ERRORS,
)
from filechannel._storage.segments.compression_codecs import codec
from filechannel._storage.system.os_calls import Files
from filechannel.cli.diagnosis import channel_checks, environment
from filechannel.cli.diagnosis.channel_checks import diagnose
from filechannel.cli.diagnosis.environment import examine
from tests.cli.shell import SMALL, Order, error, fill, in_a_terminal, real, report, run
from tests.storage.channels import opened

HOUR = 3_600_000_000_000


def kinds(path: Path) -> dict[str, str]:
    """Return which kinds of advice are given, and how severe they are; that this is in memory does not matter."""
    return {each.kind: each.severity for each in diagnose(path) if each.kind != "file system"}


def said(path: Path, kind: str) -> tuple[str, str | None]:
    """Return the one finding of a kind, and the command that fixes it."""
    (found,) = [each for each in diagnose(path) if each.kind == kind]
    return found.what, found.mend


def leave_idle(path: Path, name: str, hours: int) -> None:
    """Let a consumer have moved last so many hours ago."""
    file = path / "consumers" / f"{name}.cursor"
    content = bytearray(file.read_bytes())
    generations = [CURSOR.unpack_from(content, slot) for slot in CURSOR_SLOTS]
    newest = max(range(2), key=lambda slot: generations[slot][0])
    fields = (*generations[newest][:3], time.time_ns() - hours * HOUR)
    CURSOR.pack_into(content, CURSOR_SLOTS[newest], *fields, crc32c(CURSOR_CHECKED.pack(*fields)))
    file.write_bytes(content)


def subscribe(path: Path, name: str = "billing") -> None:
    """Register a consumer that takes one message."""
    with blocking.open_channel(path, Order) as channel, channel.receiver(name) as receiver:
        receiver.receive()


def test_a_channel_that_is_well(path: Path) -> None:
    """`doctor` reports nothing about a channel that is consumed, open or closed."""
    fill(path, 100)
    subscribe(path)
    assert kinds(path) == {}
    assert run("doctor", path).stdout.startswith(f"{path}: fine\n")
    with blocking.open_channel(path, Order):
        assert kinds(path) == {}


def test_an_idle_consumer_that_holds_data(path: Path) -> None:
    """`doctor` names an idle consumer and what it holds back, and the command that removes it works."""
    fill(path, 1000)
    subscribe(path, "the biller")
    file = path / "consumers" / "the%20biller.cursor"
    file.rename(path / "consumers" / "x.cursor")
    leave_idle(path, "x", 72)
    (path / "consumers" / "x.cursor").rename(file)
    what, mend = said(path, "idle")
    assert what.endswith("(999 messages) held by consumer `the biller`, idle for 3 days")
    assert mend == f"filechannel consumers remove {path} 'the biller'"
    run("doctor", path, code=1)
    run(*shlex.split(mend)[1:], "--yes")
    assert "idle" not in kinds(path)


def test_a_consumer_that_is_stuck(path: Path) -> None:
    """A consumer that has an owner and does not move is reported with its process."""
    fill(path, 100)
    subscribe(path)
    with blocking.open_channel(path, Order) as channel, channel.receiver("billing"):
        leave_idle(path, "billing", 5)
        what, _ = said(path, "stuck")
        assert f"process {os.getpid()}" in what
        assert "5 hours" in what


def test_no_consumer_is_registered(path: Path) -> None:
    """Data that no consumer will read is reported, unless an option limits it."""
    fill(path, 1000)
    assert kinds(path) == {"nobody": "warning"}
    limited = path.with_name("limited")
    fill(limited, 1000, ChannelOptions(segment_size=4096, retention=Retention(max_bytes=1 << 20)))
    assert kinds(limited) == {}


def test_a_full_channel(path: Path) -> None:
    """A nearly full channel is reported with its slowest consumer, and so are senders that wait."""
    options = ChannelOptions(segment_size=4096, capacity=Capacity(max_messages=100))
    fill(path, 100, options)
    subscribe(path)
    assert "99% of the capacity used; the slowest consumer is `billing`" in said(path, "full")[0]


def a_disk_with(monkeypatch: pytest.MonkeyPatch, **left: int) -> os.statvfs_result:
    """Let every disk have only so much left, as the fields of `statvfs` say it; return what it really has."""
    status = os.statvfs("/dev/shm")
    fields = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")
    found = [left.get(field, getattr(status, field)) for field in fields]
    monkeypatch.setattr(channel_checks.os, "statvfs", lambda _: os.statvfs_result((*found, *status[8:])))
    return status


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding names the free space, what uses how much, and the commands that show more or free space."""
    fill(path, 100)
    subscribe(path)
    status = a_disk_with(monkeypatch, f_bavail=10)
    what, mend = said(path, "disk")
    assert f"the disk has {10 * status.f_frsize / 1000:.1f} kB left" in what
    assert "(99 messages) held by consumer `billing`" in what
    assert mend == f"filechannel consumers {path}; filechannel compress {path}"


def test_a_full_disk_with_something_to_reclaim(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding names consumed data that is not yet reclaimed."""
    fill(path, 1000)
    with blocking.open_channel(path, Order) as channel, channel.receiver("billing") as receiver:
        receiver.receive_many(1000)
    a_disk_with(monkeypatch, f_bavail=10)
    what, mend = said(path, "disk")
    assert what.endswith("of records can be deleted")
    assert mend == f"filechannel gc {path}; filechannel compress {path}"


@pytest.mark.parametrize("retention", [Retention(), Retention(after_consumed="keep")], ids=["no consumer", "kept"])
def test_a_full_disk_without_a_consumer(path: Path, monkeypatch: pytest.MonkeyPatch, retention: Retention) -> None:
    """The finding explains in the words of `gc` and `info` why nothing is reclaimed."""
    fill(path, 100, ChannelOptions(segment_size=4096, retention=retention))
    a_disk_with(monkeypatch, f_bavail=10)
    with blocking.open_channel(path, Order, readonly=True) as channel:
        assert said(path, "disk")[0].endswith(f"; the oldest segment is kept: {channel.statistics().pinned_by}")


def test_a_disk_that_takes_no_more_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without free inodes is reported, however many bytes are free; one that does not
    count them is not.
    """
    fill(path, 100)
    subscribe(path)
    a_disk_with(monkeypatch, f_favail=1, f_files=5000)
    what, mend = said(path, "disk")
    assert kinds(path) == {"disk": "error"}
    assert what.startswith("the disk takes 1 more file, with 5,000 in all; ")
    assert "held by consumer `billing`" in what
    assert mend == f"filechannel consumers {path}"
    a_disk_with(monkeypatch, f_favail=0, f_files=0)
    assert kinds(path) == {}


def test_failures_in_the_background(path: Path) -> None:
    """Errors of maintenance and of flushes are counted in the control file and reported."""
    fill(path, 100)
    subscribe(path)
    with opened(path, SMALL) as store:
        store_u32(store.control.map, MAINTENANCE_ERRORS, 3)
        store_u32(store.control.map, FAILED_FLUSHES, 1)
        assert kinds(path) == {"maintenance": "warning", "flush": "error"}
        assert said(path, "flush") == (
            "a flush failed 1 time: the log of the program or the kernel's log (dmesg) may say why",
            f"filechannel verify {path}",
        )
        store_u32(store.control.map, MAINTENANCE_ERRORS, 0)
        store_u32(store.control.map, FAILED_FLUSHES, 0)
        store_u64(store.control.map, MAINTAINED, time.time_ns() - HOUR)
        what, mend = said(path, "maintenance")
        assert what == "no maintenance has run for 60 minutes, although a process has it open"
        assert mend == f"filechannel gc {path}"


def test_damage_that_shows_at_a_glance(path: Path) -> None:
    """`doctor` reports a damaged header, a damaged position and a missing file, each with the command that fixes it."""
    fill(path, 1000)
    subscribe(path)
    segment = sorted((path / "segments").glob("0*.seg"))[1]
    with segment.open("r+b") as file:
        file.write(b"\xff" * 20)
    what, mend = said(path, "damage")
    assert "not a segment" in what
    assert mend == f"filechannel repair {path}"
    run(*shlex.split(mend)[1:], "--apply")
    assert kinds(path) == {"quarantine": "warning"}


@pytest.mark.parametrize(
    "file", ["control", "lock", "segments/*.seg", "consumers/billing.cursor", "consumers/team.group"]
)
def test_a_file_with_a_name_outside_of_the_channel(path: Path, file: str) -> None:
    """`doctor` reports a file that has another name outside of the channel, and the advised command replaces it with a
    copy.
    """
    fill(path, 1000)
    with blocking.open_channel(path, Order) as channel, channel.group("team"):
        pass
    subscribe(path)
    linked = max(path.glob(file))
    elsewhere, victim = path.with_name("elsewhere"), path.with_name("victim")
    elsewhere.hardlink_to(linked)
    victim.write_text("precious")
    for name in (f"{linked.name}.new", f"new-{linked.name}"):  # what a copy may be called before it is whole
        linked.with_name(name).symlink_to(victim)
    content = elsewhere.read_bytes()
    what, mend = said(path, "links")
    assert what.startswith(f"{linked.relative_to(path)}: a file with 2 hard links")
    assert "`repair` has replaced it with a copy" in what
    findings = report("verify", path, code=1)["findings"]
    assert [each["kind"] for each in findings if each["file"] == str(linked.relative_to(path))] == ["links"]
    assert "links" in kinds(path)
    assert mend is not None
    assert shlex.split(mend) == ["filechannel", "repair", str(path), "--apply"]
    run(*shlex.split(mend)[1:])
    assert "links" not in kinds(path)
    assert (elsewhere.read_bytes(), victim.read_text()) == (content, "precious")
    assert elsewhere.stat().st_nlink == 1
    subscribe(path)
    with blocking.open_channel(path, Order) as channel, channel.group("team") as team:
        assert team.receive().id == 0


def test_a_backup_by_hard_links_is_not_a_finding(path: Path) -> None:
    """`doctor` does not report a backup by hard links, because finished segments are never written in place."""
    fill(path, 1000)
    *finished, _active = sorted((path / "segments").glob("*.seg"))
    for file in (path / "channel.json", *finished, *(path / "segments").glob("*.idx")):
        path.with_name(f"backup-{file.name}").hardlink_to(file)
    assert "links" not in kinds(path)
    assert report("verify", path)["clean"]


def test_a_damaged_manifest(path: Path) -> None:
    """A channel that cannot be opened is reported, and the command still runs."""
    fill(path, 100)
    (path / "channel.json").write_text("{")
    assert kinds(path) == {"damage": "error"}


def test_file_systems(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` notes a file system in memory under a durability that promises a disk, and one that several machines
    share.
    """
    fill(path, 10, ChannelOptions(segment_size=4096, durability=Durability.FSYNC))
    subscribe(path)
    monkeypatch.setattr(Files, "file_system", lambda *_: "tmpfs")
    assert (
        "everything is lost when the machine restarts, although its durability is fsync" in said(path, "file system")[0]
    )
    monkeypatch.setattr(Files, "file_system", lambda *_: "nfs4")
    assert "nfs4" in said(path, "file system")[0]
    monkeypatch.setattr(Files, "file_system", lambda *_: "ext4")
    assert diagnose(path) == []


def test_an_extra_that_is_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that cannot be read here are reported with the package to install."""
    fill(path, 10, ChannelOptions(segment_size=4096, compression=Compression(method="lz4")))
    subscribe(path)
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    codec.cache_clear()
    try:
        assert said(path, "extra")[1] == "pip install 'filechannel[lz4]'"
    finally:
        codec.cache_clear()


def test_many_small_segments_and_a_long_free_list(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` mentions many small segments and a long free list as notes, not as findings."""
    fill(path, 2000)
    subscribe(path)
    monkeypatch.setattr(channel_checks, "_MANY_SEGMENTS", 5)
    for number in range(5):
        (path / "segments" / f"spare-{number:020}.seg").write_bytes(bytes(4096))
    assert kinds(path) == {"segments": "note", "spares": "note"}
    run("doctor", path)


def test_a_clock_that_was_set_back(path: Path) -> None:
    """Times in the future are reported."""
    fill(path, 100)
    subscribe(path)
    leave_idle(path, "billing", -5)
    assert "hours ahead of the clock" in said(path, "clock")[0]


def test_groups(path: Path) -> None:
    """A message that is redelivered many times is reported, and so is an expired lease that no member notices."""
    with opened(path) as store:
        store.log.append([b"poison", b"other"])
        assert store.processes is not None
        group = store.cursors.join("workers", store.processes)
        group.begin(store.lookup.earliest())
        ENTRY.pack_into(group.map, GROUP_RING, ENTRY_OUT | 7 << ENTRY_ATTEMPT_SHIFT, 0, 14, 0, 0)
        for position, value in ((GROUP_TAIL, 1), (GROUP_NEXT, 14), (GROUP_NEXT_SEQUENCE, 1)):
            store_u64(group.map, position, value)
        store.cursors.close(group)
    found = kinds(path)
    assert found == {"attempts": "warning", "leases": "warning"}
    assert "delivered 7 times" in said(path, "attempts")[0]


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_a_process_that_is_stopped(path: Path) -> None:
    """A stopped process is reported with its pid and the command that resumes it."""
    fill(path, 10)
    subscribe(path)
    program = (
        "from tests.storage.channels import open_store, SMALL\nfrom pathlib import Path\nimport sys\n"
        "store = open_store(Path(sys.argv[1]), SMALL, create=False)\n"
        "print(flush=True)\nsys.stdin.read()\nstore.close()\n"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        what, mend = said(path, "stopped")
        assert (what, mend) == (f"process {process.pid} is stopped", f"kill -CONT {process.pid}")
        process.send_signal(signal.SIGCONT)
        process.communicate(b"")
    assert kinds(path) == {}


def test_a_process_at_its_limits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is about to run out of descriptors is reported."""
    fill(path, 10)
    subscribe(path)
    monkeypatch.setattr(channel_checks, "_NEARLY", 0.0)
    with blocking.open_channel(path, Order):
        texts = [each.what for each in diagnose(path) if each.kind == "limits"]
    assert [text.split()[-1] for text in texts] == ["files", "maps"]


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a channel `doctor` reports what this machine has and lacks."""
    monkeypatch.setattr(environment, "_java", lambda: "openjdk 17")
    found = report("doctor", code=int(PURE))
    assert {"Python", "native core", "zstd", "kernel"} <= set(found["environment"])
    monkeypatch.setattr(environment, "PURE", True)
    monkeypatch.delenv("FILECHANNEL_PURE", raising=False)
    assert [part.suggestion.kind for part in examine() if part.suggestion is not None] == ["core"]
    assert "native core" in run("doctor", code=1).stdout


def test_several_channels(path: Path) -> None:
    """Each channel is reported by its path; one finding decides the exit code."""
    fill(path, 100)
    subscribe(path)
    other = fill(path.with_name("other"), 1000)
    found = report("doctor", path, other, code=1)
    assert [each["path"] for each in found["channels"]] == [str(path), str(other)]
    assert found["channels"][1]["advice"][0]["kind"] in ("nobody", "file system")


def test_what_is_advised_can_be_pasted(memory: Path) -> None:
    """The commands that `doctor` advises can be pasted into a shell, whatever the names are, and fix the finding."""
    path = memory / 'it\'s $HOME;\n a "disk" \udcff' / "-x"
    path.parent.mkdir()
    fill(path, 1000)
    subscribe(path, "-the biller's")
    leave_idle(path, "-the%20biller%27s", 72)
    with opened(path, SMALL) as store:
        store_u32(store.control.map, MAINTENANCE_ERRORS, 3)
    segment = sorted((path / "segments").glob("0*.seg"))[1]
    with segment.open("r+b") as file:
        file.write(b"\xff" * 20)
    for kind, more in (("damage", " --apply"), ("idle", " --yes"), ("maintenance", ""), ("quarantine", "")):
        _, mend = said(path, kind)
        assert mend is not None
        command = mend.replace(" -- ", f"{more} -- ") if " -- " in mend else mend + more
        _pasted(command)
    shutil.rmtree(path / "quarantine")
    assert kinds(path) == {"nobody": "warning"}


def _pasted(command: str) -> None:
    """Give a command to a shell that knows this filechannel."""
    own = f'filechannel() {{ {shlex.quote(sys.executable)} -m filechannel "$@"; }}'
    subprocess.run(["bash", "-c", f"{own}\n{command}"], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_a_command_is_one_line(path: Path) -> None:
    """`doctor` prints a command on one line, however narrow the terminal is."""
    fill(path, 1000)
    subscribe(path)
    leave_idle(path, "billing", 72)
    mend = said(path, "idle")[1]
    assert mend is not None
    shown = in_a_terminal("doctor", path, width=40)
    assert f"    {mend}\r\n" in shown
    assert "held  \r\n           by consumer `billing`" in shown


def test_a_missing_manifest(path: Path) -> None:
    """A missing manifest is damage, like one that cannot be read."""
    fill(path, 100)
    (path / "channel.json").unlink()
    assert kinds(path) == {"damage": "error"}


def test_a_limit_that_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` advises a limit that can be raised: not beyond the hard limit, and a number if there is none."""
    mends = dict[tuple[int, int], str | None]()
    for limits in ((64, 64), (64, 1000), (64, resource.RLIM_INFINITY)):
        monkeypatch.setattr(environment.resource, "getrlimit", lambda _, limits=limits: limits)
        (mends[limits],) = [
            part.suggestion.mend for part in examine() if part.suggestion and part.suggestion.kind == "limits"
        ]
    assert list(mends.values()) == [
        "raise the hard limit: limits.conf, LimitNOFILE=",
        "ulimit -n 1000",
        "ulimit -n 65536",
    ]


def test_a_path_that_is_not_a_channel_among_others(path: Path) -> None:
    """The other channels are reported all the same; the exit code is that of wrong usage."""
    fill(path, 1000)
    result = run("doctor", path.with_name("nowhere"), path, code=2)
    assert result.stdout.startswith(f"{path}: ")
    assert result.stderr == f"filechannel: there is no channel at {path.with_name('nowhere')}; check the path\n"


def test_where_there_is_no_channel(path: Path) -> None:
    """A path without a channel is wrong usage, also in a separate process."""
    assert error("doctor", path, code=2) == f"there is no channel at {path}; check the path"
    assert real("doctor", path)[0] == 2
