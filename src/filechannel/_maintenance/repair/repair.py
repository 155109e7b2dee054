"""Making a damaged channel whole: what can be read stays where it is, the rest is put aside, and nothing is deleted.

Opening a channel recovers it, which is about its end: what a power cut took, and what nobody published. That trusts
what lies before a checkpoint, and reads none of it; readers that come to damage there are told, or skip it each time. A
repair is about all of it, once and for all: it reads every byte, mends what opening would not, and then lets opening do
its part.

It is planned first, from what lies there, and that can be shown. Each step is done or not when whoever does it is
killed, and planning again finds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from .._errors import ChannelLockedError, NotAChannelError
from .._format.layout import CONTROL_SIZE
from .._storage.control import CONTROL
from .._storage.entrance import opening
from .._storage.files import QUARANTINE, Files
from .._storage.holder import Holder
from .._storage.kernel_locks import UnwantedError
from .._storage.lock_file import LOCK, open_lock_file
from .._storage.manifest import MANIFEST, MANIFEST_LIMIT, Manifest
from .._storage.processes import living_in
from .._storage.quarantine import Quarantine
from .._storage.stores import STORES
from .chain import Chain
from .findings import Finding, Report
from .mending import Mender
from .own_copies import OwnCopies
from .pieces import Change, plan_pieces
from .positions import PositionMender
from .salvage import UnknownMessagesError, salvage_manifest
from .segment_check import Checked
from .small_files import DIRECTORY, LINKS, MISPLACED
from .survey import Survey
from .verify import Progress, Verification, report_of, verify

_ROUNDS: Final = 4  # of planning and doing: what opening leaves behind may have to be mended, too
_MAPPED: Final = 2


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step of a repair."""

    file: str
    """Which file it is about, as seen from the channel's directory."""
    what: str
    """What is done, in words."""
    do: Callable[[], object]

    def to_json(self) -> dict[str, object]:
        """Return what it says."""
        return {"file": self.file, "what": self.what}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a repair does, and what it cannot do."""

    report: Report
    actions: tuple[Action, ...]
    hopeless: tuple[Finding, ...]
    """What it cannot mend."""
    writers: tuple[Holder, ...]
    """The processes that have the channel open, for which it would have to wait."""


def plan_repair(
    path: Path, *, like: Path | None = None, progress: Progress = lambda _d, _t: None, files: Files | None = None
) -> Plan:
    """Look at a channel, and return what a repair would do. Changes nothing; others may have it open.

    *like* is another channel, or a copy of a manifest, that says what the messages are if the manifest is lost.
    """
    with Survey.of(path, files) as survey:
        return _Planner(survey, like, progress).plan()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What came of a repair."""

    actions: tuple[Action, ...]
    """What was done."""
    report: Report
    """What is left to be said."""


def repair(
    path: Path, *, like: Path | None = None, progress: Progress = lambda _d, _t: None, files: Files | None = None
) -> Repaired:
    """Mend a channel. Raises `ChannelLockedError` if anybody has it open.

    Whoever is killed in the middle of it leaves a channel that is no worse than it was; another repair goes on.
    """
    files, done = files or Files(), list[Action]()
    files.confine(path)
    with Survey.of(path, files) as survey:
        if survey.manifest is not None:
            survey.manifest.check_writable(path)
    for _ in range(_ROUNDS):
        with _alone(files, path), Survey.of(path, files) as survey:
            plan = _Planner(survey, like, progress).plan()
            for action in plan.actions:
                action.do()
        if not plan.actions:
            break
        done += plan.actions
        if survey.manifest is not None or not plan.hopeless:
            _open_once(files, path)
    return Repaired(actions=tuple(done), report=verify(path, files=files))


def _open_once(files: Files, path: Path) -> None:
    """Let opening do its part: find the end of the log, and go on behind what is lost there."""
    store = STORES.open(path, check=lambda _: None, new=None, readonly=False, max_mapped_segments=_MAPPED, files=files)
    STORES.close(store)


@contextmanager
def _alone(files: Files, path: Path) -> Generator[None]:
    """Keep every other process from opening a channel; `ChannelLockedError` if one has it open."""
    if not files.is_file(path / CONTROL):
        yield  # no process can have it open
        return
    with ExitStack() as opened:
        # Only to look at: it may have names outside of the channel, and is replaced then.
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
    with Survey.of(path) as survey:
        holder = survey.writers[0].unless_ended() if survey.writers else Holder(None, None, None)
    return ChannelLockedError(path, holder.pid, holder.host, holder.since)


@final
class _Planner:
    """Plans one repair."""

    def __init__(self, survey: Survey, like: Path | None, progress: Progress) -> None:
        self._survey = survey
        self._like = like
        self._progress = progress
        mode = 0o600 if survey.manifest is None else survey.manifest.options.mode
        self._quarantine = Quarantine(survey.files, survey.path, mode)
        self._copies = OwnCopies(survey.files, survey.path, mode, survey.limits)
        self._mender = Mender(survey.files, survey.path, survey.segments, mode, self._copies)
        self._mode = mode

    def plan(self) -> Plan:
        """Look at everything."""
        chain, checked = Verification(self._survey, progress=self._progress).run()
        report = report_of(self._survey, chain, checked)
        hopeless: list[Finding] = []
        actions: list[Action] = []
        left = tuple(finding for finding in report.findings if finding.mend is not None)
        if any(finding.kind == DIRECTORY and finding.severity == "error" for finding in left):
            # What it leads to may be what belongs there: treat nothing as lost before a person has checked.
            return Plan(report=report, actions=(), hopeless=left, writers=tuple(self._survey.writers))
        actions += self._half_made(report)
        actions += self._links(report, lock=False)  # before anything is written in place
        actions += self._manifest(report, hopeless)
        actions += self._segments(plan_pieces(checked, chain.end))
        actions += self._indexes(checked)
        actions += self._positions(report, chain)
        if not hopeless:  # its control file is mended by opening it, which needs a manifest
            actions += self._control(report, chain, checked, has_others=bool(actions))
        actions += self._links(report, lock=True)  # from then on other processes may open the channel
        return Plan(
            report=report,
            actions=tuple(actions),
            hopeless=(*hopeless, *left),
            writers=tuple(self._survey.writers),
        )

    # Files with names outside of the channel

    def _links(self, report: Report, *, lock: bool) -> Iterator[Action]:
        """Replace them by copies: the lock file, which this repair holds, or the others."""
        for finding in report.findings:
            if finding.kind == LINKS and (finding.file == LOCK) == lock:
                what = f"{'make it anew' if lock else 'replace it by a copy'}: it is {finding.what.partition(':')[0]}"
                do = partial(self._copies.replace, self._survey.path / finding.file)
                yield Action(file=finding.file, what=what, do=do)

    # The manifest

    def _manifest(self, report: Report, hopeless: list[Finding]) -> Iterator[Action]:
        survey = self._survey
        if survey.manifest is not None:
            return
        try:
            like = None if self._like is None else manifest_at(survey.files, self._like)
            salvaged = salvage_manifest(survey, like)
        except UnknownMessagesError:
            hopeless += [finding for finding in report.findings if finding.kind == "manifest"]
            return

        def write() -> None:
            path, problem = survey.path / MANIFEST, survey.manifest_problem or "damaged"
            if survey.files.is_file(path):
                self._quarantine.keep(path, problem)
            elif survey.files.exists(path):
                self._quarantine.take(path, problem)
            salvaged.manifest.write(survey.files, survey.path)

        guesses = f" ({'; '.join(salvaged.guesses)})" if salvaged.guesses else ""
        yield Action(file=MANIFEST, what=f"make it anew{guesses}", do=write)

    # Files that are half made

    def _half_made(self, report: Report) -> Iterator[Action]:
        for finding in report.findings:
            if finding.kind in {"half-made", "orphan", MISPLACED}:
                path = self._survey.path / finding.file
                what = f"move it to {QUARANTINE}/: {finding.what}"
                yield Action(file=finding.file, what=what, do=partial(self._quarantine.take, path, finding.what))

    # Segments

    def _segments(self, changes: list[Change]) -> Iterator[Action]:
        for change in changes:
            if change.is_needed:
                file = self._survey.relative(change.checked.head.path)
                yield Action(file=file, what=_describe(change), do=partial(self._mender.change, change))

    def _indexes(self, checked: list[Checked]) -> Iterator[Action]:
        for each in checked:
            if each.bad_entries:
                finding = next(finding for finding in each.findings if finding.kind == "index")
                what = f"keep the {len(each.marks)} entries that are right, and the old one in {QUARANTINE}/"
                do = partial(self._mender.rewrite_index, each, finding.what)
                yield Action(file=finding.file, what=what, do=do)

    # Positions

    def _positions(self, report: Report, chain: Chain) -> Iterator[Action]:
        mender = PositionMender(self._survey, self._quarantine, self._mode, chain)
        for finding in report.findings:
            if finding.kind in {"cursor", "group", "producer"}:
                what, do = mender.mend(finding)
                yield Action(file=finding.file, what=what, do=do)

    # The control file, and the end of the log

    def _control(self, report: Report, chain: Chain, checked: list[Checked], *, has_others: bool) -> Iterator[Action]:
        survey, path = self._survey, self._survey.path / CONTROL
        bad = [each for each in report.findings if each.kind in {"control", "checkpoint"} and each.severity != "note"]
        if bad:
            reason = "; ".join(finding.what for finding in bad)

            def keep() -> None:
                control, manifest = survey.control, survey.manifest
                if control is not None and manifest is not None and control.is_foreign(manifest.id):
                    self._quarantine.take(path, reason)  # its checkpoints would be taken for those of this channel
                elif survey.files.is_file(path):
                    self._quarantine.keep_content(CONTROL, survey.files.read(path, CONTROL_SIZE), reason)
                elif survey.files.exists(path):
                    self._quarantine.take(path, reason)

            what = f"keep a copy in {QUARANTINE}/ and open the channel, which finds the end of the log anew"
            yield Action(file=CONTROL, what=what, do=keep)
        elif chain.end is not None and _is_cut_short(chain, checked):
            what = f"open the channel, which goes on far behind offset {chain.end.offset}: what lay before it is lost"
            yield Action(file=CONTROL, what=what, do=_nothing)
        elif has_others and not survey.is_believed:
            yield Action(file=CONTROL, what="open the channel, which finds the end of the log", do=_nothing)


def _is_cut_short(chain: Chain, checked: list[Checked]) -> bool:
    """Tell whether the log ends behind the last record that is left."""
    if chain.end is None:
        return False
    reached = checked[-1].end if checked else chain.end.oldest
    return reached < chain.end.offset


def _describe(change: Change) -> str:
    head, pieces = change.checked.head, change.pieces
    if not pieces:
        return f"move it to {QUARANTINE}/: no record in it can be read"
    if change.is_header_only:
        piece = pieces[0]
        if head.header is None:
            return f"write its header anew: {change.checked.messages} messages from number {piece.first_sequence} on"
        if head.header.previous_end != piece.previous_end:
            return f"say in its header that nothing is left between offsets {piece.previous_end} and {piece.begin}"
        return f"say in its header that its records end at offset {piece.end}"
    lost = f", {change.checked.lost} lost" if change.checked.lost else ""
    kept = f"{change.checked.messages} messages stay where they are, in {len(pieces)} segment{'s' * (len(pieces) > 1)}"
    return f"leave out what is damaged: {kept}{lost}; the old file goes to {QUARANTINE}/"


def manifest_at(files: Files, path: Path) -> Manifest:
    """Read what the messages are from another channel, or from a copy of its manifest."""
    if path.is_dir():
        files.confine(path)
        return Manifest.read(files, path)
    try:
        return Manifest.parse(files.read(path, MANIFEST_LIMIT + 1), path)
    except FileNotFoundError:
        raise NotAChannelError(path, "it is not there") from None


def _nothing() -> None:
    pass
