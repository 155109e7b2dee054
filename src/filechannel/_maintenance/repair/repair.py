"""Repair of a damaged channel: readable records stay in place, the rest is quarantined, and nothing is deleted.

Opening a channel recovers it. Recovery deals with the end of the log: what was lost in a power cut, and what was never
published. It trusts everything before a checkpoint, and reads none of it; readers that reach damage there get an
error, or skip it each time. A repair deals with the whole log, once: it reads every byte, repairs what opening would
not, and then opens the channel for the rest.

A repair is planned before anything changes, and the plan can be shown. If the process is killed, the channel
is no worse than before, and the next plan contains the remaining steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from ..._errors import ChannelLockedError, NotAChannelError
from ..._format.layout import CONTROL_SIZE
from ..._storage.control.control_file import CONTROL
from ..._storage.control.joining import opening
from ..._storage.control.live_processes import living_in
from ..._storage.control.lock_file import LOCK, open_lock_file
from ..._storage.control.lock_holder import Holder
from ..._storage.manifest import MANIFEST, MANIFEST_LIMIT, Manifest
from ..._storage.open_stores import STORES
from ..._storage.recovery.quarantine import Quarantine
from ..._storage.system.kernel_locks import UnwantedError
from ..._storage.system.os_calls import QUARANTINE, Files
from ..verify.directory_scan import DirectoryScan
from ..verify.findings import Finding, Report
from ..verify.metadata_check import DIRECTORY, LINKS, MISPLACED
from ..verify.segment_chain import Chain
from ..verify.segment_check import Checked
from ..verify.verification import Progress, Verification, report_of, verify
from .apply_repairs import RepairApplier
from .hard_links import HardLinks
from .position_repair import PositionRepair
from .rebuild_manifest import UnknownMessagesError, rebuild_manifest
from .segment_split import Change, plan_split

_ROUNDS: Final = 4  # of planning and applying: what opening leaves behind may have to be repaired, too
_MAPPED: Final = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step of a repair."""

    file: str
    """The file, relative to the channel's directory."""
    what: str
    """A description of what is done."""
    do: Callable[[], object]

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {"file": self.file, "what": self.what}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a repair does, and what it cannot do."""

    report: Report
    actions: tuple[Action, ...]
    unrepairable: tuple[Finding, ...]
    """What it cannot repair."""
    writers: tuple[Holder, ...]
    """The processes that have the channel open, for which it would have to wait."""


def plan_repair(
    path: Path, *, like: Path | None = None, progress: Progress = lambda _d, _t: None, files: Files | None = None
) -> Plan:
    """Check a channel, and return what a repair would do. Changes nothing; other processes may have it open.

    *like* is another channel, or a copy of a manifest, that gives codec and schema if the manifest is lost.
    """
    with DirectoryScan.of(path, files) as scan:
        return _Planner(scan, like, progress).plan()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The result of a repair."""

    actions: tuple[Action, ...]
    """What was done."""
    report: Report
    """The verification after the repair."""


def repair(
    path: Path, *, like: Path | None = None, progress: Progress = lambda _d, _t: None, files: Files | None = None
) -> Repaired:
    """Repair a channel. Raises `ChannelLockedError` if a process has it open.

    A process that is killed in the middle leaves a channel that is not worse than before; another repair does the rest.
    """
    files, done = files or Files(), list[Action]()
    files.confine(path)
    with DirectoryScan.of(path, files) as scan:
        if scan.manifest is not None:
            scan.manifest.check_writable(path)
    for _ in range(_ROUNDS):
        with _alone(files, path), DirectoryScan.of(path, files) as scan:
            plan = _Planner(scan, like, progress).plan()
            for action in plan.actions:
                action.do()
        if not plan.actions:
            break
        done += plan.actions
        if scan.manifest is not None or not plan.unrepairable:
            _open_once(files, path)
    return Repaired(actions=tuple(done), report=verify(path, files=files))


def _open_once(files: Files, path: Path) -> None:
    """Open the channel once: this finds the end of the log, and resumes after what is lost there."""
    store = STORES.open(path, check=lambda _: None, new=None, readonly=False, max_mapped_segments=_MAPPED, files=files)
    STORES.close(store)


@contextmanager
def _alone(files: Files, path: Path) -> Generator[None]:
    """Keep every other process from opening a channel; `ChannelLockedError` if one has it open."""
    if not files.is_file(path / CONTROL):
        yield  # no process can have it open
        return
    with ExitStack() as opened:
        # Read-only: the file may have hard links outside of the channel, and is replaced then.
        control = files.open(path / CONTROL, writable=False)
        opened.callback(files.close, control)
        locks = open_lock_file(files, path, control, linked=True)
        opened.callback(locks.close)
        try:
            opened.enter_context(
                opening(files, path, control, locks, lambda: not living_in(files, path, control).slots)
            )
        except UnwantedError:
            raise _locked(path) from None
        locks.check_name()
        if living_in(files, path, control).slots:
            raise _locked(path)
        yield


def _locked(path: Path) -> ChannelLockedError:
    with DirectoryScan.of(path) as scan:
        holder = scan.writers[0].unless_ended() if scan.writers else Holder(None, None, None)
    return ChannelLockedError(path, holder.pid, holder.host, holder.since)


@final
class _Planner:
    """Plans one repair."""

    def __init__(self, scan: DirectoryScan, like: Path | None, progress: Progress) -> None:
        self._scan = scan
        self._like = like
        self._progress = progress
        mode = 0o600 if scan.manifest is None else scan.manifest.options.mode
        self._quarantine = Quarantine(scan.files, scan.path, mode)
        self._copies = HardLinks(scan.files, scan.path, mode, scan.limits)
        self._repairer = RepairApplier(scan.files, scan.path, scan.segments, mode, self._copies)
        self._mode = mode

    def plan(self) -> Plan:
        """Check everything, and return the plan."""
        chain, checked = Verification(self._scan, progress=self._progress).run()
        report = report_of(self._scan, chain, checked)
        unrepairable: list[Finding] = []
        actions: list[Action] = []
        left = tuple(finding for finding in report.findings if finding.mend is not None)
        if any(finding.kind == DIRECTORY and finding.severity == "error" for finding in left):
            # The link may lead to the right directory: treat nothing as lost before a person has checked.
            return Plan(report=report, actions=(), unrepairable=left, writers=tuple(self._scan.writers))
        actions += self._half_made(report)
        actions += self._links(report, lock=False)  # before anything is written in place
        actions += self._manifest(report, unrepairable)
        actions += self._segments(plan_split(checked, chain.end))
        actions += self._indexes(checked)
        actions += self._positions(report, chain)
        if not unrepairable:  # opening the channel repairs the control file, which needs a manifest
            actions += self._control(report, chain, checked, has_others=bool(actions))
        actions += self._links(report, lock=True)  # from then on other processes may open the channel
        return Plan(
            report=report,
            actions=tuple(actions),
            unrepairable=(*unrepairable, *left),
            writers=tuple(self._scan.writers),
        )

    # Files with hard links outside of the channel

    def _links(self, report: Report, *, lock: bool) -> Iterator[Action]:
        """Replace such files by copies: the lock file, which this repair holds, or the other files."""
        for finding in report.findings:
            if finding.kind == LINKS and (finding.file == LOCK) == lock:
                what = (
                    f"{'create it again' if lock else 'replace it with a copy'}: it is {finding.what.partition(':')[0]}"
                )
                do = partial(self._copies.replace, self._scan.path / finding.file)
                yield Action(file=finding.file, what=what, do=do)

    # The manifest

    def _manifest(self, report: Report, unrepairable: list[Finding]) -> Iterator[Action]:
        scan = self._scan
        if scan.manifest is not None:
            return
        try:
            like = None if self._like is None else manifest_at(scan.files, self._like)
            rebuilt = rebuild_manifest(scan, like)
        except UnknownMessagesError:
            unrepairable += [finding for finding in report.findings if finding.kind == "manifest"]
            return

        def write() -> None:
            path, problem = scan.path / MANIFEST, scan.manifest_problem or "damaged"
            if scan.files.is_file(path):
                self._quarantine.keep(path, problem)
            elif scan.files.exists(path):
                self._quarantine.move(path, problem)
            rebuilt.manifest.write(scan.files, scan.path)

        guesses = f" ({'; '.join(rebuilt.guesses)})" if rebuilt.guesses else ""
        yield Action(file=MANIFEST, what=f"create it again{guesses}", do=write)

    # Incomplete files

    def _half_made(self, report: Report) -> Iterator[Action]:
        for finding in report.findings:
            if finding.kind in {"half-made", "orphan", MISPLACED}:
                path = self._scan.path / finding.file
                what = f"move it to {QUARANTINE}/: {finding.what}"
                yield Action(file=finding.file, what=what, do=partial(self._quarantine.move, path, finding.what))

    # Segments

    def _segments(self, changes: list[Change]) -> Iterator[Action]:
        for change in changes:
            if change.is_needed:
                file = self._scan.relative(change.checked.head.path)
                yield Action(file=file, what=_describe(change), do=partial(self._repairer.change, change))

    def _indexes(self, checked: list[Checked]) -> Iterator[Action]:
        for each in checked:
            if each.bad_entries:
                finding = next(finding for finding in each.findings if finding.kind == "index")
                what = f"keep the {len(each.entries)} valid entries, and the old file in {QUARANTINE}/"
                do = partial(self._repairer.rewrite_index, each, finding.what)
                yield Action(file=finding.file, what=what, do=do)

    # Positions

    def _positions(self, report: Report, chain: Chain) -> Iterator[Action]:
        repairer = PositionRepair(self._scan, self._quarantine, self._mode, chain)
        for finding in report.findings:
            if finding.kind in {"cursor", "group", "producer"}:
                what, do = repairer.repair(finding)
                yield Action(file=finding.file, what=what, do=do)

    # The control file, and the end of the log

    def _control(self, report: Report, chain: Chain, checked: list[Checked], *, has_others: bool) -> Iterator[Action]:
        scan, path = self._scan, self._scan.path / CONTROL
        bad = [each for each in report.findings if each.kind in {"control", "checkpoint"} and each.severity != "note"]
        if bad:
            reason = "; ".join(finding.what for finding in bad)

            def keep() -> None:
                control, manifest = scan.control, scan.manifest
                if control is not None and manifest is not None and control.identity.is_foreign(manifest.id):
                    self._quarantine.move(path, reason)  # its checkpoints would be taken for those of this channel
                elif scan.files.is_file(path):
                    self._quarantine.keep_content(CONTROL, scan.files.read(path, CONTROL_SIZE), reason)
                elif scan.files.exists(path):
                    self._quarantine.move(path, reason)

            what = f"keep a copy in {QUARANTINE}/ and open the channel, which finds the end of the log again"
            yield Action(file=CONTROL, what=what, do=keep)
        elif chain.end is not None and _is_cut_short(chain, checked):
            what = (
                f"open the channel, which resumes far beyond offset {chain.end.offset}: everything before that is lost"
            )
            yield Action(file=CONTROL, what=what, do=_nothing)
        elif has_others and not scan.is_trusted:
            yield Action(file=CONTROL, what="open the channel, which finds the end of the log", do=_nothing)


def _is_cut_short(chain: Chain, checked: list[Checked]) -> bool:
    """Return whether the log ends after the last record that is left."""
    if chain.end is None:
        return False
    reached = checked[-1].end if checked else chain.end.oldest
    return reached < chain.end.offset


def _describe(change: Change) -> str:
    head, repaired_segments = change.checked.head, change.repaired_segments
    if not repaired_segments:
        return f"move it to {QUARANTINE}/: no record in it can be read"
    if change.is_header_only:
        repaired = repaired_segments[0]
        if head.header is None:
            return f"rewrite its header: {change.checked.messages} messages from sequence {repaired.first_sequence} on"
        if head.header.previous_end != repaired.previous_end:
            between = f"offsets {repaired.previous_end} and {repaired.begin}"
            return f"record in its header that nothing is left between {between}"
        return f"record in its header that its records end at offset {repaired.end}"
    lost = f", {change.checked.lost} lost" if change.checked.lost else ""
    segments = f"{len(repaired_segments)} segment{'s' * (len(repaired_segments) > 1)}"
    kept = f"{change.checked.messages} messages stay in place, in {segments}"
    return f"leave out what is damaged: {kept}{lost}; the old file is moved to {QUARANTINE}/"


def manifest_at(files: Files, path: Path) -> Manifest:
    """Read codec and schema from another channel, or from a copy of its manifest."""
    if path.is_dir():
        files.confine(path)
        return Manifest.read(files, path)
    try:
        return Manifest.parse(files.read(path, MANIFEST_LIMIT + 1), path)
    except FileNotFoundError:
        raise NotAChannelError(path, "it is missing") from None


def _nothing() -> None:
    pass
