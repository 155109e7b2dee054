"""Verification: reads every meaningful byte of a channel, without changing one.

Other processes may send and receive at the same time, and segments are compressed, reclaimed and recycled during the
check. So everything that seems to be damaged is read again. If the file does not exist any more, or is another file, it
was not damage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TypeAlias, final

from ..._errors import repair_command
from ..._offset import Offset
from ..._runtime.threads import start_thread
from ..._storage.recovery.unreachable_records import describe_unreachable
from ..._storage.system.os_calls import Files
from .directory_scan import DirectoryScan, End
from .findings import Finding, Report
from .metadata_check import check_metadata
from .segment_chain import Chain, Link, read_chain
from .segment_check import Checked, Head, SegmentCheck, read_head
from .walk_segment_records import CheckPayload

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of bytes that are checked, and the total; any thread may call it."""
_MOST_THREADS = 8
_PAUSE = 0.002  # seconds
_CHECK_ATTEMPTS = 5  # for a segment that seems to be damaged while other processes use the channel


class _EndedError(Exception):
    """Another thread has failed, or the user has interrupted the verification."""


@final
class Verification:
    """Checks one channel."""

    def __init__(
        self,
        scan: DirectoryScan,
        *,
        check: CheckPayload | None = None,
        progress: Progress = lambda _done, _total: None,
        threads: int | None = None,
    ) -> None:
        self._scan = scan
        self._progress = progress
        self._threads = threads or min(os.cpu_count() or 1, _MOST_THREADS)
        self._segment_check = SegmentCheck(scan, check, self._tick)
        self._lock = Lock()  # only taken by verification threads, on which no signal handler runs
        self._ended = False
        self._running: set[object] = set()
        """One object for each thread that may read files."""
        self._done = 0
        self._total = 0

    def run(self) -> tuple[Chain, list[Checked]]:
        """Check all segments; return the chain with which they were checked, and the results."""
        chain = read_chain(self._scan)
        if chain.findings and self._scan.slots:  # a writer may have been in the middle of a change
            again = read_chain(self._scan).findings
            chain = replace(chain, findings=tuple(finding for finding in chain.findings if finding in again))
        return chain, self._check(chain)

    def _check(self, chain: Chain) -> list[Checked]:
        self._done, self._total = 0, chain.size
        self._progress(0, self._total)
        todo: SimpleQueue[tuple[int, Link]] = SimpleQueue()
        done: SimpleQueue[tuple[int, Checked | BaseException]] = SimpleQueue()
        for numbered in enumerate(chain.links):
            todo.put(numbered)
        try:
            for _ in range(min(self._threads, len(chain.links))):
                start_thread(partial(self._work, todo, done), "filechannel-verify")
            results = dict(_successful(done.get()) for _ in chain.links)
        except BaseException:
            self._ended = True
            while self._running:  # the caller closes the files that they read
                time.sleep(_PAUSE)
            raise
        return [results[number] for number in range(len(chain.links))]

    def _work(
        self, todo: SimpleQueue[tuple[int, Link]], done: SimpleQueue[tuple[int, Checked | BaseException]]
    ) -> None:
        """Check segments until none is left, or another thread has failed.

        Put each result, or an error, into *done*.
        """
        me = object()
        self._running.add(me)
        try:
            while not self._ended:
                number, link = todo.get_nowait()
                try:
                    done.put((number, self._check_one(link)))
                except BaseException as error:  # for the caller, which stops the other threads
                    done.put((number, error))
        except Empty:
            pass
        finally:
            self._running.discard(me)

    def _tick(self, size: int) -> None:
        if self._ended:
            raise _EndedError
        with self._lock:
            self._done += size
            done = min(self._done, self._total)
        self._progress(done, self._total)

    def _check_one(self, link: Link) -> Checked:
        """Check a segment.

        While other processes use the channel, report damage only if a second check finds the same.
        """
        checked = self._segment_check.check(link.head, link.bounds)
        for _ in range(_CHECK_ATTEMPTS):
            if not checked.findings or not self._scan.slots:
                break
            end = self._scan.end()
            head = read_head(self._scan.files, self._scan.segments, link.head.begin)
            if head is None or (end is not None and link.head.begin < end.oldest):
                return Checked(link.head, link.bounds)  # reclaimed since
            seen, checked = checked, self._segment_check.check(head, link.bounds)
            if seen.findings == checked.findings:
                break
        return checked


def _successful(found: tuple[int, Checked | BaseException]) -> tuple[int, Checked]:
    number, result = found
    if isinstance(result, BaseException):
        raise result
    return number, result


def verify(
    path: Path,
    *,
    check: CheckPayload | None = None,
    progress: Progress = lambda _done, _total: None,
    threads: int | None = None,
    files: Files | None = None,
) -> Report:
    """Check every file of a channel. Changes nothing, opens no channel, and disturbs no other process.

    *check* is called with every payload. Raises `ChannelNotFoundError`, `NotAChannelError`, and
    `UnsupportedFormatError` for what only a newer version, or one with another extra, can read.
    """
    with DirectoryScan.of(path, files) as scan:
        chain, checked = Verification(scan, check=check, progress=progress, threads=threads).run()
        return report_of(scan, chain, checked)


def report_of(scan: DirectoryScan, chain: Chain, checked: list[Checked]) -> Report:
    """Combine all findings into a report."""
    findings: list[Finding] = [*check_metadata(scan, chain)]
    findings += chain.findings
    for each in checked:
        findings += each.findings
    findings += _unreachable(scan, chain.end, checked)
    return Report(
        path=scan.path,
        findings=tuple(findings),
        segments=len(checked),
        messages=sum(each.messages for each in checked),
        bytes=sum(run.stop - run.start for each in checked for run in each.runs),
        lost=sum(each.lost for each in checked),
    )


def _unreachable(scan: DirectoryScan, end: End | None, checked: list[Checked]) -> Iterator[Finding]:
    """Report what recovery, which starts at the checkpoint, would quarantine.

    See `_storage.recovery.unreachable_records`.
    """
    if end is None or end.is_trusted:
        return
    start = max([end.offset, *(each.bounds.stop for each in checked if each.head.is_compressed)])
    at: Offset | None = None
    damage: tuple[Offset, Head] | None = None
    messages, segments = 0, list[Checked]()
    for each in checked:
        header = each.head.header
        is_linked = at is None or (header is not None and header.previous_end == at)
        expected, at = each.head.begin if is_linked else None, each.head.begin if at is None else at
        for run in each.runs:
            is_reached = run.start == expected or run.start <= start
            if damage is None and run.stop > start and (header is None or not is_reached):
                damage = Offset(max(at, start)), each.head
            if damage is not None:
                messages += run.messages
                segments += [] if each in segments[-1:] else [each]
            at = expected = run.stop
    if damage is not None:
        offset, head = damage
        what = f"{describe_unreachable(messages, len(segments), offset)}: {repair_command(scan.path)}"
        yield Finding(severity="error", kind="unreachable", file=scan.relative(head.path), what=what, offset=offset)
