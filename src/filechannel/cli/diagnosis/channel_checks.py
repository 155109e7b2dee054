"""What is wrong with a channel or unusual, in words, and what mends it. Each check is a function of its own.

Nothing is changed, and only what is quick to read is read: whether every record is whole is for `verify`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .._errors import FileChannelError, UnexpectedFileError, UnsupportedFormatError
from .._maintenance.chain import read_chain
from .._maintenance.findings import Severity
from .._maintenance.gc import foresee
from .._maintenance.small_files import LINKS, check_small_files
from .._maintenance.survey import Survey
from .._maintenance.watch import Watch
from .._shell import shell_words
from .._storage.codecs import require
from .._storage.creation import is_remote
from .._storage.files import QUARANTINE, Files
from .._storage.processes import holder_at
from .advice import Advice, Check, Patient
from .consumer_checks import groups, held_by, idle_consumers, nobody_registered, stuck_consumers
from .local_process import LocalProcess, find_local
from .wording import counted, number, size, span

_NEARLY = 0.9  # of a capacity
_LITTLE_DISK = 0.05
_FEW_FILES = 16  # segments and their indexes, those that wait, a name or two
_UNATTENDED = 900.0  # seconds; a quiet channel is looked at every five minutes
_MANY_SEGMENTS, _TINY = 1000, 1 << 20
_CLOCK = 60.0  # seconds
_IN_MEMORY = ("tmpfs", "ramfs")


def diagnose(path: Path, files: Files | None = None) -> list[Advice]:
    """Say what is wrong with a channel; raises `ChannelNotFoundError` and `NotAChannelError` if there is none."""
    found = list(_damage(path, files or Files()))
    try:
        with Watch.open(path, files) as watch:
            patient = Patient(watch, watch.look())
            for check in CHECKS:
                with suppress(UnexpectedFileError):  # which is among what was found
                    found += check(patient)
    except (FileChannelError, FileNotFoundError, ValueError) as error:
        if not found:
            found.append(Advice(severity="error", kind="unreadable", what=str(error)))
    return found


def _damage(path: Path, files: Files) -> Iterator[Advice]:
    """What a look at headers, positions and names shows."""
    with Survey.of(path, files) as survey:
        chain = read_chain(survey)
        found = [*check_small_files(survey, chain), *chain.findings]
        broken = [link.head for link in chain.links if link.head.header is None]
    bad = [finding for finding in found if finding.severity != "note"]
    mend = shell_words("filechannel", "repair", path)
    for finding in bad:
        what = f"{finding.place}: {finding.what}"
        if finding.kind == LINKS:
            yield Advice(severity=finding.severity, kind=LINKS, what=what, mend=f"{mend} --apply")
        elif finding.mend is not None:
            yield Advice(severity=finding.severity, kind=finding.kind, what=what, mend=finding.mend)
        else:
            yield Advice(severity=finding.severity, kind="damage", what=what, mend=mend)
    for head in broken:
        what = f"{survey.relative(head.path)}: not a segment: {head.problem}"
        yield Advice(severity="error", kind="damage", what=what, mend=mend)
    for finding in found:
        if finding.kind == "restarted":
            yield Advice(severity="note", kind="restarted", what=finding.what)


# Room


def capacity(patient: Patient) -> Iterator[Advice]:
    """A channel that is full, or soon will be."""
    figures, fill = patient.figures, patient.figures.fill
    slowest = min(figures.consumers, key=lambda each: each.offset, default=None)
    who = "no consumer is registered" if slowest is None else f"the slowest consumer is `{slowest.name}`"
    if figures.waiting_for_room:
        what = f"senders wait for room ({fill or 0:.0%} of the capacity used); {who}"
        yield Advice(severity="warning", kind="full", what=what, mend=patient.command("consumers"))
    elif fill is not None and fill >= _NEARLY and patient.watch.manifest.options.capacity is not None:
        severity: Severity = "note" if patient.watch.manifest.options.capacity.on_full == "drop_oldest" else "warning"
        what = f"{fill:.0%} of the capacity used; {who}"
        yield Advice(severity=severity, kind="full", what=what, mend=patient.command("consumers"))


def disk(patient: Patient) -> Iterator[Advice]:
    """A disk that is nearly full, of bytes or of files."""
    status, usage = os.statvfs(patient.watch.path), patient.figures.usage
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    left = f"the disk has {size(free)} left of {size(total)}; the channel takes {size(usage.bytes)}"
    yield from _scarce(patient, free, total, 4 * patient.watch.manifest.options.segment_size, left, "compress")
    files = f"the disk takes {counted(status.f_favail, 'more file')}, with {number(status.f_files)} in all"
    yield from _scarce(patient, status.f_favail, status.f_files, _FEW_FILES, files)


def _scarce(patient: Patient, free: int, total: int, needed: int, what: str, *more: str) -> Iterator[Advice]:
    """Say it, and what holds what the channel has, if there is little left; with a total of 0 nobody counts.

    *more* are commands that make room, besides the one for that.
    """
    if total and (free < needed or free < _LITTLE_DISK * total):
        holding, command = _holding(patient)
        severity: Severity = "error" if free < needed else "warning"
        mend = "; ".join(map(patient.command, (command, *more)))
        yield Advice(severity=severity, kind="disk", what=f"{what}; {holding}" if holding else what, mend=mend)


def _holding(patient: Patient) -> tuple[str, str]:
    """Return what keeps the segments from going, or that they may, and the command for it."""
    try:
        found = foresee(patient.watch.path, files=patient.watch.files)
    except (FileChannelError, OSError):  # other checks say so
        return "", "gc"
    pin = found.pinned_by
    if pin is None:
        return f"{size(found.bytes)} of records may go" if found.segments else "", "gc"
    consumers = [each for each in patient.figures.consumers if each.name == pin.consumer]
    return (held_by(consumers[0]), "consumers") if consumers else (f"the oldest segment stays: {pin}", "gc")


# What is done in the background


def maintenance(patient: Patient) -> Iterator[Advice]:
    """Nobody looks after it, or in vain."""
    figures = patient.figures
    if figures.maintenance_errors:
        times = counted(figures.maintenance_errors, "time")
        what = f"maintenance failed {times}; the log of the process in which it did says why"
        yield Advice(severity="warning", kind="maintenance", what=what, mend=patient.command("gc"))
    is_empty = figures.oldest_offset == figures.write_offset
    if figures.writers and figures.maintained is not None and not is_empty:
        ago = (time.time_ns() - figures.maintained) / 1e9
        if ago > _UNATTENDED:
            what = f"nobody has looked after it for {span(ago)}, although {_people(len(figures.writers))} it open"
            yield Advice(severity="warning", kind="maintenance", what=what, mend=patient.command("gc"))


def flushes(patient: Patient) -> Iterator[Advice]:
    """A disk that has refused something."""
    if patient.figures.failed_flushes:
        times = counted(patient.figures.failed_flushes, "time")
        what = f"the disk refused to flush, {times}: the kernel's log (dmesg) says why"
        yield Advice(severity="error", kind="flush", what=what, mend=patient.command("verify"))


def quarantine(patient: Patient) -> Iterator[Advice]:
    """What was put aside and nobody has looked at."""
    directory = patient.watch.path / QUARANTINE
    names = patient.watch.files.list(directory)
    if names:
        count = len(names) - len(names) // 2
        held = sum(patient.watch.files.disk_space(directory / name) for name in names)
        found = f"{counted(count, 'file')} ({size(held)})"
        what = f"{found} of damage put aside in {QUARANTINE}/; remove it when you have looked"
        mend = f"cat -v {shell_words(directory)}/*.json"
        yield Advice(severity="warning", kind="quarantine", what=what, mend=mend)


def extras(patient: Patient) -> Iterator[Advice]:
    """A method of compression that is not installed here."""
    method = patient.watch.manifest.options.compression.method
    try:
        require(method)
    except UnsupportedFormatError as error:
        what = f"its segments are compressed with {method}, which is not installed here"
        yield Advice(severity="error", kind="extra", what=what, mend=shell_words("pip", *error.advice.split()))


# Where it is


def file_system(patient: Patient) -> Iterator[Advice]:
    """A file system that is not what the options promise."""
    kind = patient.watch.files.file_system(patient.watch.path)
    durability = patient.watch.manifest.options.durability.kind
    if is_remote(kind):
        what = f"it is on {kind}, where maps and locks are not coherent: it can only be read, by one machine"
        yield Advice(severity="error", kind="file system", what=what, mend="move it to a local disk")
    elif kind in _IN_MEMORY:
        promised = durability != "os"
        what = f"it is on {kind}: everything is lost when the machine restarts"
        what += f", although its durability is {durability}" if promised else ""
        severity: Severity = "warning" if promised else "note"
        yield Advice(severity=severity, kind="file system", what=what, mend="move it to a disk" if promised else None)


def segments(patient: Patient) -> Iterator[Advice]:
    """Very many small files."""
    usage = patient.figures.usage
    count, stored = usage.plain + usage.compressed, usage.plain_bytes + usage.compressed_bytes
    if count >= _MANY_SEGMENTS and stored / count < _TINY:
        what = f"{counted(count, 'segment')} of {size(stored // count)} on average: opening and seeking take longer"
        mend = "segment_size is fixed at creation: export it, and import it into a channel with a larger one"
        yield Advice(severity="note", kind="segments", what=what, mend=mend)
    most = patient.watch.manifest.options.spare_segments
    if usage.spare > most + 1:
        what = f"{counted(usage.spare, 'spare file')} ({size(usage.spare_bytes)}), where {most} are enough"
        yield Advice(severity="note", kind="spares", what=what, mend=patient.command("gc"))


def clock(patient: Patient) -> Iterator[Advice]:
    """Times that are yet to come."""
    newest = max(
        [
            patient.figures.maintained or 0,
            *(each.position.time for each in patient.watch.roster.registrations() if each.position is not None),
            *_created(patient.watch),
        ]
    )
    ahead = newest / 1e9 - time.time()
    if ahead > _CLOCK:
        what = f"times in it are {span(ahead)} ahead of the clock, which was set back"
        mend = "until the clock has caught up, seeks by time are less exact and nothing expires"
        yield Advice(severity="warning", kind="clock", what=what, mend=mend)


def _created(watch: Watch) -> list[int]:
    try:
        return [watch.segments.header(begin).created for begin in watch.segments.begins[-1:]]
    except FileChannelError:
        return []


# Processes


def processes(patient: Patient) -> Iterator[Advice]:
    """Processes that stand still, or are at their limits."""
    control, busy = patient.watch.control, patient.watch.busy_writer
    for slot in patient.watch.living.slots:
        process = find_local(holder_at(control.map, slot))
        if process is None:
            continue
        if process.is_stopped:
            holding = slot == busy
            what = f"process {process.pid} is stopped{' in the middle of sending: everybody waits for it' * holding}"
            severity: Severity = "error" if holding else "warning"
            yield Advice(severity=severity, kind="stopped", what=what, mend=f"kill -CONT {process.pid}")
        yield from _limits(process)


def _limits(process: LocalProcess) -> Iterator[Advice]:
    for what, used, most, mend in (
        ("open files", process.open_files, process.most_open_files, "raise it: ulimit -n, LimitNOFILE="),
        ("maps", process.maps, process.most_maps, "raise it: sysctl vm.max_map_count"),
    ):
        if used is not None and most is not None and used >= _NEARLY * most:
            text = f"process {process.pid} has {used:,} of {most:,} {what}"
            yield Advice(severity="warning", kind="limits", what=text, mend=mend)


def unreachable(patient: Patient) -> Iterator[Advice]:
    """Messages behind damage, which the next open for writing would put aside."""
    found = patient.watch.unreachable
    if found is not None:
        mend = shell_words("filechannel", "repair", patient.watch.path, "--apply")
        yield Advice(severity="error", kind="unreachable", what=str(found), mend=mend)


CHECKS: tuple[Check, ...] = (
    unreachable,
    idle_consumers,
    stuck_consumers,
    nobody_registered,
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


def _people(count: int) -> str:
    return "a process has" if count == 1 else f"{count} processes have"
