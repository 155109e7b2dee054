"""The checks of a channel: what is wrong or unusual, and how to fix it. Each check is a function.

Nothing is changed, and only what can be read quickly is read: `verify` checks every record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..._errors import FileChannelError, UnexpectedFileError, UnsupportedFormatError
from ..._maintenance.background.reclaim_now import preview
from ..._maintenance.verify.directory_scan import DirectoryScan
from ..._maintenance.verify.findings import Severity
from ..._maintenance.verify.metadata_check import LINKS, check_metadata
from ..._maintenance.verify.segment_chain import read_chain
from ..._maintenance.watch_channel import Watch
from ..._shell_quoting import shell_words
from ..._storage.control.live_processes import holder_at
from ..._storage.recovery.create import is_remote
from ..._storage.segments.compression_codecs import require
from ..._storage.system.os_calls import QUARANTINE, Files
from ..ui.humanize import counted, number, size, span
from .consumer_checks import groups, held_by, idle_consumers, no_consumer_registered, stuck_consumers
from .local_process import LocalProcess, find_local
from .suggestion import Check, ExaminedChannel, Suggestion

_NEARLY = 0.9  # of a capacity
_LITTLE_DISK = 0.05
_FEW_FILES = 16  # segments and their indexes, the free list, a few consumers
_UNATTENDED = 900.0  # seconds; maintenance runs every five minutes if a channel is quiet
_MANY_SEGMENTS, _TINY = 1000, 1 << 20
_CLOCK = 60.0  # seconds
_IN_MEMORY = ("tmpfs", "ramfs")


def diagnose(path: Path, files: Files | None = None) -> list[Suggestion]:
    """Return the problems of a channel. Raise `ChannelNotFoundError` or `NotAChannelError` if it is not a channel."""
    found = list(_damage(path, files or Files()))
    try:
        with Watch.open(path, files) as watch:
            examined = ExaminedChannel(watch, watch.figures())
            for check in CHECKS:
                with suppress(UnexpectedFileError):  # it is already among the findings
                    found += check(examined)
    except (FileChannelError, FileNotFoundError, ValueError) as error:
        if not found:
            found.append(Suggestion(severity="error", kind="unreadable", what=str(error)))
    return found


def _damage(path: Path, files: Files) -> Iterator[Suggestion]:
    """Damage in headers, stored positions and file names."""
    with DirectoryScan.of(path, files) as scan:
        chain = read_chain(scan)
        found = [*check_metadata(scan, chain), *chain.findings]
        broken = [link.head for link in chain.links if link.head.header is None]
    bad = [finding for finding in found if finding.severity != "note"]
    mend = shell_words("filechannel", "repair", path)
    for finding in bad:
        what = f"{finding.location}: {finding.what}"
        if finding.kind == LINKS:
            yield Suggestion(severity=finding.severity, kind=LINKS, what=what, mend=f"{mend} --apply")
        elif finding.mend is not None:
            yield Suggestion(severity=finding.severity, kind=finding.kind, what=what, mend=finding.mend)
        else:
            yield Suggestion(severity=finding.severity, kind="damage", what=what, mend=mend)
    for head in broken:
        what = f"{scan.relative(head.path)}: not a segment: {head.problem}"
        yield Suggestion(severity="error", kind="damage", what=what, mend=mend)
    for finding in found:
        if finding.kind == "restarted":
            yield Suggestion(severity="note", kind="restarted", what=finding.what)


# Capacity and disk space


def capacity(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """A channel that is full or almost full."""
    figures, fill = examined.figures, examined.figures.fill
    slowest = min(figures.consumers, key=lambda each: each.offset, default=None)
    who = "no consumer is registered" if slowest is None else f"the slowest consumer is `{slowest.name}`"
    if figures.waiting_for_room:
        what = f"senders wait for capacity ({fill or 0:.0%} of the capacity used); {who}"
        yield Suggestion(severity="warning", kind="full", what=what, mend=examined.command("consumers"))
    elif fill is not None and fill >= _NEARLY and examined.watch.manifest.options.capacity is not None:
        severity: Severity = "note" if examined.watch.manifest.options.capacity.on_full == "drop_oldest" else "warning"
        what = f"{fill:.0%} of the capacity used; {who}"
        yield Suggestion(severity=severity, kind="full", what=what, mend=examined.command("consumers"))


def disk(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """A disk that is almost out of space or of inodes."""
    status, usage = os.statvfs(examined.watch.path), examined.figures.usage
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    left = f"the disk has {size(free)} left of {size(total)}; the channel takes {size(usage.bytes)}"
    yield from _scarce(examined, free, total, 4 * examined.watch.manifest.options.segment_size, left, "compress")
    files = f"the disk takes {counted(status.f_favail, 'more file')}, with {number(status.f_files)} in all"
    yield from _scarce(examined, status.f_favail, status.f_files, _FEW_FILES, files)


def _scarce(
    examined: ExaminedChannel, free: int, total: int, needed: int, what: str, *more: str
) -> Iterator[Suggestion]:
    """Report a scarce resource, and what keeps the data of the channel. A total of 0 means that there is no limit.

    *more* are further commands that free disk space, besides the one for what keeps the data.
    """
    if total and (free < needed or free < _LITTLE_DISK * total):
        holding, command = _holding(examined)
        severity: Severity = "error" if free < needed else "warning"
        mend = "; ".join(map(examined.command, (command, *more)))
        yield Suggestion(severity=severity, kind="disk", what=f"{what}; {holding}" if holding else what, mend=mend)


def _holding(examined: ExaminedChannel) -> tuple[str, str]:
    """Return what keeps the segments, or that they can be reclaimed, and the command to use."""
    try:
        found = preview(examined.watch.path, files=examined.watch.files)
    except (FileChannelError, OSError):  # other checks report it
        return "", "gc"
    pin = found.pinned_by
    if pin is None:
        return f"{size(found.bytes)} of records can be deleted" if found.segments else "", "gc"
    consumers = [each for each in examined.figures.consumers if each.name == pin.consumer]
    return (held_by(consumers[0]), "consumers") if consumers else (f"the oldest segment is kept: {pin}", "gc")


# Background work


def maintenance(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """No process does maintenance, or maintenance fails."""
    figures = examined.figures
    if figures.maintenance_errors:
        times = counted(figures.maintenance_errors, "time")
        what = f"maintenance failed {times}; the log of that process says why"
        yield Suggestion(severity="warning", kind="maintenance", what=what, mend=examined.command("gc"))
    is_empty = figures.oldest_offset == figures.write_offset
    if figures.writers and figures.maintained is not None and not is_empty:
        ago = (time.time_ns() - figures.maintained) / 1e9
        if ago > _UNATTENDED:
            what = (
                f"no maintenance has run for {span(ago)}, although {_count_of_processes(len(figures.writers))} it open"
            )
            yield Suggestion(severity="warning", kind="maintenance", what=what, mend=examined.command("gc"))


def flushes(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Failed flushes: the disk reported an error, or a file was deleted."""
    if examined.figures.failed_flushes:
        times = counted(examined.figures.failed_flushes, "time")
        what = f"a flush failed {times}: the log of the program or the kernel's log (dmesg) may say why"
        yield Suggestion(severity="error", kind="flush", what=what, mend=examined.command("verify"))


def quarantine(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Files in quarantine, which the user should inspect and delete."""
    directory = examined.watch.path / QUARANTINE
    names = examined.watch.files.list(directory)
    if names:
        count = len(names) - len(names) // 2
        held = sum(examined.watch.files.disk_space(directory / name) for name in names)
        found = f"{counted(count, 'file')} ({size(held)})"
        what = f"{found} of damaged data in {QUARANTINE}/; inspect it, then delete it"
        mend = f"cat -v {shell_words(directory)}/*.json"
        yield Suggestion(severity="warning", kind="quarantine", what=what, mend=mend)


def extras(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """A compression method that is not installed here."""
    method = examined.watch.manifest.options.compression.method
    try:
        require(method)
    except UnsupportedFormatError as error:
        what = f"its segments are compressed with {method}, which is not installed here"
        yield Suggestion(severity="error", kind="extra", what=what, mend=shell_words("pip", *error.advice.split()))


# Location


def file_system(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """A file system that does not provide what the options promise."""
    kind = examined.watch.files.file_system(examined.watch.path)
    durability = examined.watch.manifest.options.durability.kind
    if is_remote(kind):
        what = f"it is on {kind}, where maps and locks are not coherent: it can only be read, by one machine"
        yield Suggestion(severity="error", kind="file system", what=what, mend="move it to a local disk")
    elif kind in _IN_MEMORY:
        promised = durability != "os"
        what = f"it is on {kind}: everything is lost when the machine restarts"
        what += f", although its durability is {durability}" if promised else ""
        severity: Severity = "warning" if promised else "note"
        yield Suggestion(
            severity=severity, kind="file system", what=what, mend="move it to a disk" if promised else None
        )


def segments(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """A very large number of small files."""
    usage = examined.figures.usage
    count, stored = usage.plain + usage.compressed, usage.plain_bytes + usage.compressed_bytes
    if count >= _MANY_SEGMENTS and stored / count < _TINY:
        what = f"{counted(count, 'segment')} of {size(stored // count)} on average: opening and seeking take longer"
        mend = "segment_size is fixed at creation: export it, and import it into a channel with a larger one"
        yield Suggestion(severity="note", kind="segments", what=what, mend=mend)
    most = examined.watch.manifest.options.spare_segments
    if usage.spare > most + 1:
        what = f"{counted(usage.spare, 'file')} ({size(usage.spare_bytes)}) in the free list, where {most} are enough"
        yield Suggestion(severity="note", kind="spares", what=what, mend=examined.command("gc"))


def clock(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Timestamps in the future."""
    newest = max(
        [
            examined.figures.maintained or 0,
            *(
                each.position.time
                for each in examined.watch.consumer_listing.registrations()
                if each.position is not None
            ),
            *_created(examined.watch),
        ]
    )
    ahead = newest / 1e9 - time.time()
    if ahead > _CLOCK:
        what = f"its newest times are {span(ahead)} ahead of the clock, which was set back"
        mend = "until the clock has caught up, seeks by time are less exact and nothing expires"
        yield Suggestion(severity="warning", kind="clock", what=what, mend=mend)


def _created(watch: Watch) -> list[int]:
    try:
        return [watch.segments.header(begin).created for begin in watch.segments.begins[-1:]]
    except FileChannelError:
        return []


# Processes


def processes(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Processes that are stopped, or close to their limits."""
    control, busy = examined.watch.control, examined.watch.busy_writer
    for slot in examined.watch.living.slots:
        process = find_local(holder_at(control.map, slot))
        if process is None:
            continue
        if process.is_stopped:
            holding = slot == busy
            what = f"process {process.pid} is stopped{' while it holds the writer lock: senders wait for it' * holding}"
            severity: Severity = "error" if holding else "warning"
            yield Suggestion(severity=severity, kind="stopped", what=what, mend=f"kill -CONT {process.pid}")
        yield from _limits(process)


def _limits(process: LocalProcess) -> Iterator[Suggestion]:
    for what, used, most, mend in (
        ("open files", process.open_files, process.most_open_files, "raise it: ulimit -n, LimitNOFILE="),
        ("maps", process.maps, process.most_maps, "raise it: sysctl vm.max_map_count"),
    ):
        if used is not None and most is not None and used >= _NEARLY * most:
            text = f"process {process.pid} has {used:,} of {most:,} {what}"
            yield Suggestion(severity="warning", kind="limits", what=text, mend=mend)


def unreachable(examined: ExaminedChannel) -> Iterator[Suggestion]:
    """Messages after damage, which the next process that opens the channel for writing would move to quarantine."""
    found = examined.watch.unreachable
    if found is not None:
        mend = shell_words("filechannel", "repair", examined.watch.path, "--apply")
        yield Suggestion(severity="error", kind="unreachable", what=str(found), mend=mend)


CHECKS: tuple[Check, ...] = (
    unreachable,
    idle_consumers,
    stuck_consumers,
    no_consumer_registered,
    groups,
    capacity,
    disk,
    maintenance,
    flushes,
    quarantine,
    extras,
    file_system,
    segments,
    clock,
    processes,
)


def _count_of_processes(count: int) -> str:
    return "a process has" if count == 1 else f"{count} processes have"
